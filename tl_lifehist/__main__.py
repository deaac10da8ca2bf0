"""`python -m tl_lifehist` is the command `tl-lifehist`."""

from tl_lifehist.cli import main

main()

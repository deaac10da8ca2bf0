"""What is public in `tl_lifehist.checkpoints`, beside the names at the top."""

# isort: skip_file

from .pocket import pocket_texts as pocket_texts
from .integrity import (
    IntegrityReport as IntegrityReport,
    fingerprint as fingerprint,
)

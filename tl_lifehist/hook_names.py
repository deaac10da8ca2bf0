"""What the name of a hook point says of its place: the block it lies in, and the site there."""

from __future__ import annotations

import re

_IN_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


def parse_hook_name(hook_name: str) -> tuple[int, str]:
    """Block and site: `(2, "attn.hook_z")` of `blocks.2.attn.hook_z`; -1 and the whole name outside the blocks.

    How it can mislead: it reads the name alone. Whether a model has that block and that site, only the model says.
    """
    found = _IN_BLOCK.fullmatch(hook_name)
    return (int(found[1]), found[2]) if found else (-1, hook_name)

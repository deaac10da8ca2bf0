"""What the name of a hook point says of its place: the block it lies in, and the site there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tl_lifehist.errors import InputError, nearest

_IN_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
# Other names of some sites: those of TransformerLens' bridge, and transformers' own modules, which SAELens takes too.
_OTHER_NAMES = {"hook_out": "hook_resid_post", "hook_in": "hook_resid_pre"}
_OTHER_NAMES |= {"mlp.hook_out": "hook_mlp_out", "attn.hook_out": "hook_attn_out"}
_MODULE = re.compile(r"(?:[\w]+\.)*(?:layers|h)\.(\d+)(?:\.(mlp))?")
_NAME = re.compile(r"[\w.]+")


def parse_hook_name(hook_name: str) -> tuple[int, str]:
    """Block and site: `(2, "attn.hook_z")` of `blocks.2.attn.hook_z`; -1 and the whole name outside the blocks.

    How it can mislead: it reads the name alone. Whether a model has that block and that site, only the model says.
    """
    found = _IN_BLOCK.fullmatch(hook_name)
    return (int(found[1]), found[2]) if found else (-1, hook_name)


def same_place(a: str, b: str) -> bool:
    """Whether two names may stand for one activation: equal, or two names of one site (`blocks.0.hook_resid_post`,
    `blocks.1.hook_resid_pre` and the module `model.layers.0`). True where one of them is no hook point's name.
    """
    return not (_NAME.fullmatch(a) and _NAME.fullmatch(b)) or _place(a) == _place(b)


def _place(hook_name: str) -> tuple[int, str]:
    module = _MODULE.fullmatch(hook_name)
    if module:
        return int(module[1]), "hook_mlp_out" if module[2] else "hook_resid_post"
    block, site = parse_hook_name(hook_name)
    site = _OTHER_NAMES.get(site, site) if block >= 0 else site
    return (block - 1, "hook_resid_post") if site == "hook_resid_pre" and block > 0 else (block, site)


def require_blocks(hook_names: Sequence[str], n_layers: int) -> None:
    """Refuse hook points of blocks that a model of so many does not have.

    Raises:
        InputError: names the hook point and the blocks that there are.
    """
    for name in hook_names:
        block, _ = parse_hook_name(name)
        if not -1 <= block < n_layers:
            raise InputError(
                f"The model has {n_layers} blocks, 0 to {n_layers - 1}, and no hook point {name!r}: "
                "choose other layers."
            )


def require_known(hook_names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a hook point that is none of those a model has.

    Raises:
        InputError: names the hook point and the nearest ones that there are.
    """
    there = dict.fromkeys(known)
    for name in hook_names:
        if name not in there:
            raise InputError(f"The model has no hook point {name!r}; the nearest names are: {nearest(name, there)}.")

"""Checkpoints that Composer wrote: one pickled file of a whole training state, whose model part we read."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tl_lifehist.errors import InputError

# The first that fits applies. These are the names of ModernBERT's training code and of transformers.
_RENAMED = (
    ("model.bert.encoder.layers.", "model.layers."),
    ("model.bert.", "model."),
    ("model.head.", "head."),
    ("model.decoder.", "decoder."),
)

_ARRAYS = (np._core.multiarray._reconstruct, np._core.multiarray.scalar)  # type: ignore[attr-defined]

# A training state holds clocks and random states beside the weights. Making one of these runs nothing.
_HARMLESS: list[Any] = [
    datetime.timedelta,
    datetime.datetime,
    datetime.timezone,
    np.ndarray,
    np.dtype,
    *_ARRAYS,
    *((made, f"numpy.core.multiarray.{made.__name__}") for made in _ARRAYS),  # as numpy 1 named them
    *(type(np.dtype(kind)) for kind in ("uint8", "uint32", "uint64", "int64", "float64")),
]


def read_composer(path: Path, step: int) -> dict[str, Tensor]:
    """The weights in a Composer checkpoint under the names that transformers gives them.

    Read with `weights_only=True`, so nothing in the file is run. Raises InputError when the file holds no model;
    torch's own errors when it cannot be read.
    """
    with torch.serialization.safe_globals(_HARMLESS):
        saved = torch.load(path, map_location="cpu", weights_only=True)
    try:
        state = saved["state"]["model"]
        return {transformers_name(name): tensor for name, tensor in state.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"Step {step}: {path} holds no model at ['state']['model'], so Composer did not write it: "
            "convert it yourself with save_pretrained."
        ) from error


def transformers_name(name: str) -> str:
    """`model.bert.encoder.layers.0.attn.Wo.weight` -> `model.layers.0.attn.Wo.weight`, and so on."""
    for old, new in _RENAMED:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name

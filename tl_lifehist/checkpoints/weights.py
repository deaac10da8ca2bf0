"""The files a checkpoint is made of, and whether they are whole: all there and not cut short."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tl_lifehist.errors import InputError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)

_REMEDY = "fetch or write this checkpoint again, or leave the step out"


def weight_files(folder: Path, step: int) -> list[Path]:
    """The files that hold the weights, in the order transformers looks for them. They need not exist.

    Empty when the folder holds no weights at all. Raises InputError for an index that cannot be read or that points
    out of the folder.
    """
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / single).is_file():
            return [folder / single]
        index = folder / f"{single}.index.json"
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
                outside = [name for name in names if Path(name).name != name]
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(
                    f"Step {step}: {index} is not an index of weight files ({error}): {_REMEDY}."
                ) from error
            if outside:
                raise InputError(f"Step {step}: {index} points out of its folder, to {outside[0]!r}: do not load this.")
            return [folder / name for name in names]
    return []


def check_weights(folder: Path, step: int) -> None:
    """Refuse a checkpoint that is not whole, before anything is loaded from it.

    A safetensors file says how long it must be, so one that was cut short is found without reading it. Pickled files
    say nothing of the kind; damage to those shows on loading.
    """
    if not folder.is_dir():
        raise InputError(f"Step {step}: the folder {folder} is missing: {_REMEDY}.")
    if not (folder / "config.json").is_file():
        raise InputError(f"Step {step}: {folder} has no config.json, so it is not a checkpoint: {_REMEDY}.")
    files = weight_files(folder, step)
    if not files:
        raise InputError(f"Step {step}: {folder} holds no weights (model.safetensors or pytorch_model.bin): {_REMEDY}.")
    for path in files:
        if not path.is_file():
            raise InputError(f"Step {step}: the weight file {path} is missing: {_REMEDY}.")
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt"):
                    pass
            except (SafetensorError, OSError) as error:
                raise InputError(f"Step {step}: {path} is truncated or damaged ({error}): {_REMEDY}.") from error

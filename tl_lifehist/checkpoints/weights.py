"""The files a checkpoint is made of, and whether they are whole: all there and not cut short."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tl_lifehist.checkpoints.revisions import parse_revision
from tl_lifehist.errors import InputError

COMPOSER_FILES = "ep*-ba*-rank0.pt"
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

SAMPLE = 2**20  # bytes read at each place of a large file
_REMEDY = "fetch or write this checkpoint again, or leave the step out"


def is_composer(path: Path) -> bool:
    """Whether a weight file is one that Composer wrote."""
    return path.suffix == ".pt" and parse_revision(path.name) is not None


def sampled_digest(files: Iterable[Path]) -> str:
    """A hash of the files' sizes and of bytes at their beginning, middle and end.

    Training changes every matrix, so that this tells two checkpoints apart without reading tens of gigabytes. A file
    that is not there counts as empty: what is wrong with it shows when it is loaded.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size if path.is_file() else 0
        digest.update(f"{path.name} {size}\n".encode())
        if size:
            with path.open("rb") as file:
                for start in sorted({0, max(0, size // 2 - SAMPLE // 2), max(0, size - SAMPLE)}):
                    file.seek(start)
                    digest.update(file.read(SAMPLE))
    return digest.hexdigest()[:16]


def weight_files(place: Path, step: int) -> list[Path]:
    """The files that hold the weights, in the order transformers looks for them. They need not exist.

    `place` is a folder, or a Composer file. Empty when the folder holds no weights at all. Raises InputError for an
    index that cannot be read or that points out of the folder, and for several Composer files in one folder.
    """
    if is_composer(place):
        return [place]
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (place / single).is_file():
            return [place / single]
        index = place / f"{single}.index.json"
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
            return [place / name for name in names]
    composer = sorted(filter(is_composer, place.glob(COMPOSER_FILES)))
    if len(composer) > 1:
        names = ", ".join(path.name for path in composer[:3])
        raise InputError(
            f"Step {step}: {place} holds several Composer files ({names}): leave one, or name their steps."
        )
    return composer


def check_weights(place: Path, step: int, config: Path | None = None) -> None:
    """Refuse a checkpoint that is not whole, before anything is loaded from it.

    A safetensors file says how long it must be, so one that was cut short is found without reading it. Pickled files
    say nothing of the kind; damage to those shows on loading.

    Args:
        place: the folder with the weights, or a Composer file.
        step: named in errors.
        config: the folder with config.json where it is another.
    """
    if not place.exists():
        kind = "file" if is_composer(place) else "folder"
        raise InputError(f"Step {step}: the {kind} {place} is missing: {_REMEDY}.")
    home = config or place
    if not (home / "config.json").is_file():
        raise InputError(
            f"Step {step}: {home} has no config.json, so it is not a checkpoint: {_REMEDY}; "
            "where the configuration lies elsewhere, say so with config_from=."
        )
    files = weight_files(place, step)
    if not files:
        raise InputError(f"Step {step}: {place} holds no weights (model.safetensors or pytorch_model.bin): {_REMEDY}.")
    for path in files:
        if not path.is_file():
            raise InputError(f"Step {step}: the weight file {path} is missing: {_REMEDY}.")
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt"):
                    pass
            except (SafetensorError, OSError) as error:
                raise InputError(f"Step {step}: {path} is truncated or damaged ({error}): {_REMEDY}.") from error

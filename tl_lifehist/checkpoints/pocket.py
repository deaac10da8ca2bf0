"""The pocket suite: a small GPT-NeoX trained on free text, its checkpoints, its tokenizer and three slices of text.

It lies inside the package, so everything runs offline. A model of half a million parameters shows how the methods
work; what it shows about features need not hold for large models.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints.boot import LoadOptions, load_tokenizer
from tl_lifehist.errors import InputError

SPLITS = ("train", "calibration", "test")


def pocket_path() -> Path:
    """The folder of the suite, laid out as `CheckpointSeries.from_directory` reads it."""
    return Path(__file__).resolve().parent / "pocket"


def check_pocket(folder: Path | None = None) -> tuple[str, ...]:
    """Compare every file with its checksum and return their names.

    Raises InputError that names the first file that is missing or damaged.
    """
    folder = folder or pocket_path()
    try:
        lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _damaged(folder / "SHA256SUMS", "missing") from error
    names = []
    for line in lines:
        expected, _, name = line.partition("  ")
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise _damaged(folder / name, "missing") from error
        if found != expected:
            raise _damaged(folder / name, "damaged")
        names.append(name)
    return tuple(names)


def pocket_texts(split: str) -> list[tuple[str, str]]:
    """The (document, text) pairs of "train", "calibration" or "test".

    The model was trained on documents of "train"; no document of the other two was seen in training.
    """
    if split not in SPLITS:
        raise InputError(f"The pocket suite has no split {split!r}: ask for one of {', '.join(SPLITS)}.")
    path = pocket_path() / "texts" / f"{split}.jsonl.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise _damaged(path, "missing or damaged") from error
    return [(row["document"], row["text"]) for row in rows]


def pocket_tokenizer() -> Any:
    """The suite's tokenizer: byte-level BPE of 1,024 tokens whose id 0 begins a text."""
    tokenizer = load_tokenizer(pocket_path(), LoadOptions())
    if tokenizer is None:
        raise _damaged(pocket_path() / "tokenizer.json", "missing")
    return tokenizer


def _damaged(path: Path, how: str) -> InputError:
    return InputError(f"{path} of the pocket suite is {how}: install the package again.")

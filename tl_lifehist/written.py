"""What a person writes: lists with commas, and files of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from tl_lifehist.errors import InputError

Number = TypeVar("Number", int, float)


def numbers(text: str, option: str, kind: type[Number] = int) -> list[Number]:
    """Numbers separated by commas."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{option} takes {what} separated by commas, not {text!r}.") from error


def words(text: str) -> tuple[str, ...]:
    """Words separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def listed(value: Any, kind: type = str, option: str = "") -> tuple[Any, ...]:
    """A list as the command line writes it, "1,2", or as a TOML file has it."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return words(value) if kind is str else tuple(numbers(value, option, kind))


def read_documents(path: Path) -> list[str]:
    """The documents of a .txt file, parted by blank lines, or of a .jsonl file.

    Raises:
        InputError: no such file, one that is no such text, or one of fewer than five documents.
    """
    if not path.is_file():
        raise InputError(f"There is no text file {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start:,}): save it as UTF-8.") from error
    if path.suffix == ".jsonl":
        # not splitlines: JSON strings may hold other line separators, such as U+2028, as they are
        lines = enumerate(text.split("\n"), start=1)
        documents = [_text_of(line, path, number) for number, line in lines if line.strip()]
    else:
        documents = [part for part in text.split("\n\n") if part.strip()]
    if len(documents) < 5:
        raise InputError(f"{path} holds {len(documents)} of the 5 documents that are needed to part the splits.")
    return documents


def _text_of(line: str, path: Path, number: int) -> str:
    """The `text` of one line of a jsonl file."""
    wanted = 'each line of a .jsonl file is an object with a string under "text", such as {"text": "A document."}'
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"{path}, line {number}: this is not JSON ({error}); {wanted}.") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise InputError(f'{path}, line {number}: there is no string under "text"; {wanted}.')
    return text

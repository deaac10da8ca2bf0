"""What a setting holds by its annotation, however it is given: in Python, by numpy, in a TOML file or a stored run."""

from __future__ import annotations

from types import UnionType
from typing import Any, get_args

from tl_lifehist.errors import InputError

_ONE = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "nothing"}
_MANY = {int: "whole numbers", float: "numbers", str: "strings"}
_NO = object()  # None is a value


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: `int` and `None` of `int | None`."""
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def item_of(kind: Any) -> Any:
    """The type of the items of `tuple[int, ...]`; None for what is no list."""
    return get_args(kind)[0] if getattr(kind, "__origin__", kind) is tuple else None


def fitted(name: str, value: Any, hint: Any) -> Any:
    """The value as a setting of this annotation holds it: 1 as 1.0 where a number is asked for, so that both ways to
    write it are one setting; lists and arrays as tuples, numpy's numbers as Python's.

    Raises:
        InputError: a value, or an item of a list, of another type: "8" for 8.
    """
    plain = _plain(value)
    for kind in kinds_of(hint):
        held = _held(plain, kind)
        if held is not _NO:
            return held
    raise InputError(f"{name} takes {' or '.join(sorted(map(_words, kinds_of(hint))))}, not {plain!r}.")


def _plain(value: Any) -> Any:
    """A number or an array of numpy as Python's."""
    return value.tolist() if hasattr(value, "tolist") else value


def _held(value: Any, kind: Any) -> Any:
    """The value as this one type holds it, or `_NO`."""
    if (item := item_of(kind)) is not None:
        if not isinstance(value, (list, tuple, range)):
            return _NO
        held = tuple(_held(_plain(one), item) for one in value)
        return _NO if any(one is _NO for one in held) else held
    if kind is float and type(value) is int:
        return float(value)
    # a truth value is a whole number to Python, and not to us
    return value if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) else _NO


def _words(kind: Any) -> str:
    item = item_of(kind)
    return _ONE.get(kind, str(kind)) if item is None else f"a list of {_MANY.get(item, str(item))}"

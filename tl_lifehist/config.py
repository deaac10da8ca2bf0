"""Configurations: nested frozen dataclasses whose field names are unique, so that a flat setting knows its place."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from tl_lifehist.errors import InputError, nearest

C = TypeVar("C")
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    tuple: "a list",
    type(None): "nothing",
}


def option(default: Any, about: str, *, registry: str = "") -> Any:
    """A field of a configuration with its one-line meaning; `registry` is the kind of the entries that it names."""
    return dataclasses.field(default=default, metadata={"about": about, "registry": registry})


def options(config: type | Any) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Every setting of a nested configuration: its section and its field."""
    for section in dataclasses.fields(config):
        for one in dataclasses.fields(section.default_factory):  # type: ignore[arg-type]
            yield section.name, one


def pool_of(config: Any) -> dict[str, Any]:
    """Every section and every setting of a configuration by name, for `stages.params_of`."""
    sections = {one.name: getattr(config, one.name) for one in dataclasses.fields(config)}
    settings = {one.name: getattr(sections[section], one.name) for section, one in options(config)}
    both = sections.keys() & settings.keys()
    if both or len(settings) != len(list(options(config))):
        raise ValueError(f"names of sections and settings must differ, all of them: {sorted(both)}")
    return {**sections, **settings}


def configured(kind: type[C], config: C | None, settings: Mapping[str, Any]) -> C:
    """A configuration with flat settings sorted into their sections: `{"d_sae": 64}` goes to `sae.d_sae`.

    Raises:
        InputError: a setting that no section has.
    """
    if config is not None and not isinstance(config, kind):
        raise InputError(f"config is a {type(config).__name__}: give a {kind.__name__}, or settings by their names.")
    made: Any = kind() if config is None else config
    place = {one.name: section for section, one in options(kind)}
    unknown = [name for name in settings if name not in place]
    if unknown:
        raise InputError(f"{unknown[0]!r} is no setting; the nearest are: {nearest(unknown[0], place)}.")
    for section in dict.fromkeys(place[name] for name in settings):
        own = {name: value for name, value in settings.items() if place[name] == section}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
        made = dataclasses.replace(made, **{section: dataclasses.replace(getattr(made, section), **given)})
    return made


def from_sections(kind: type[C], sections: Mapping[str, Any]) -> C:
    """A configuration from nested mappings, as a TOML file or a stored run has them; what is missing is as by default.

    Raises:
        InputError: an unknown section or setting, or a value of another type.
    """
    known = {section.name: section.default_factory for section in dataclasses.fields(kind)}  # type: ignore[arg-type]
    made = {}
    for name, values in sections.items():
        if name not in known or not isinstance(values, Mapping):
            raise InputError(f"[{name}] is no section; there are: {', '.join(known)}.")
        section: Any = known[name]
        hints = get_type_hints(section)
        for key, value in values.items():
            if key not in hints:
                raise InputError(f"{name}.{key} is no setting; the nearest are: {nearest(key, hints)}.")
            require_type(f"{name}.{key}", value, hints[key])
        made[name] = section(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    return kind(**made)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: `int` and `None` of `int | None`."""
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def require_type(name: str, value: Any, hint: Any) -> None:
    """Refuse a value of another type than the field's, "8" for 8."""
    plain = {getattr(kind, "__origin__", kind) for kind in kinds_of(hint)}
    fits = (
        (value is None and type(None) in plain)
        or (isinstance(value, bool) and bool in plain)
        or (isinstance(value, int) and not isinstance(value, bool) and bool(plain & {int, float}))
        or (isinstance(value, float) and float in plain)
        or (isinstance(value, str) and str in plain)
        or (isinstance(value, (list, tuple)) and tuple in plain)
    )
    if not fits:
        wanted = " or ".join(sorted(_WORDS.get(kind, str(kind)) for kind in plain))
        raise InputError(f"{name} takes {wanted}, not {value!r}.")


def to_toml(config: Any) -> str:
    """A configuration as the TOML file that gives it again, each setting with its meaning."""
    lines = []
    for section in dataclasses.fields(config):
        lines.append(f"\n[{section.name}]")
        held = getattr(config, section.name)
        for one in dataclasses.fields(held):
            value = getattr(held, one.name)
            # TOML has no null: what is None is left out, that is, as by default
            text = f"# {one.name} =" if value is None else f"{one.name} = {toml_value(value)}"
            lines.append(f"{text}  # {one.metadata['about']}")
    return "\n".join(lines).strip() + "\n"


def toml_value(value: Any) -> str:
    """A number, string, truth value or list of these as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)

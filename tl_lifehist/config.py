"""Configurations: nested frozen dataclasses whose field names are unique, so that a flat setting knows its place."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_type_hints

from tl_lifehist.errors import InputError, nearest
from tl_lifehist.setting_types import fitted

C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class Section:
    """Settings that belong together. Each is held as its annotation says, also in a section that is made by its class;
    one with ranges checks them after `super().__post_init__()`.

    Raises:
        InputError: a setting of another type or out of its range.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for one in dataclasses.fields(self):
            object.__setattr__(self, one.name, fitted(one.name, getattr(self, one.name), hints[one.name]))


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
        InputError: a setting that no section has, or a value of another type or out of its range.
    """
    if config is not None and not isinstance(config, kind):
        raise InputError(f"config is a {type(config).__name__}: give a {kind.__name__}, or settings by their names.")
    made: Any = kind() if config is None else config
    for one in dataclasses.fields(made):
        wanted: Any = one.default_factory
        if not isinstance(getattr(made, one.name), wanted):
            raise InputError(
                f"config.{one.name} is a {type(getattr(made, one.name)).__name__}: give a {wanted.__name__}."
            )
    place = {one.name: section for section, one in options(kind)}
    unknown = [name for name in settings if name not in place]
    sections = {one.name: one.default_factory.__name__ for one in dataclasses.fields(kind)}  # type: ignore[union-attr]
    if unknown and unknown[0] in sections:
        own = [name for name, section in place.items() if section == unknown[0]]
        raise InputError(
            f"{unknown[0]!r} is a section of settings: give its settings by their own names, such as {own[0]}=..., or "
            f"config={kind.__name__}({unknown[0]}={sections[unknown[0]]}({own[0]}=...))."
        )
    if unknown:
        raise InputError(f"{unknown[0]!r} is no setting; the nearest are: {nearest(unknown[0], place)}.")
    for section in dict.fromkeys(place[name] for name in settings):
        held = getattr(made, section)
        hints = get_type_hints(type(held))
        own = {name: fitted(name, value, hints[name]) for name, value in settings.items() if place[name] == section}
        made = dataclasses.replace(made, **{section: dataclasses.replace(held, **own)})
    return made


def from_sections(kind: type[C], sections: Mapping[str, Any]) -> C:
    """A configuration from nested mappings, as a TOML file or a stored run has them; what is missing is as by default.

    Raises:
        InputError: an unknown section or setting, or a value of another type or out of its range.
    """
    known = {section.name: section.default_factory for section in dataclasses.fields(kind)}  # type: ignore[arg-type]
    made = {}
    for name, values in sections.items():
        if name not in known or not isinstance(values, Mapping):
            raise InputError(f"[{name}] is no section; there are: {', '.join(known)}.")
        section: Any = known[name]
        hints = get_type_hints(section)
        for key in values:
            if key not in hints:
                raise InputError(f"{name}.{key} is no setting; the nearest are: {nearest(key, hints)}.")
        made[name] = section(**{key: fitted(f"{name}.{key}", value, hints[key]) for key, value in values.items()})
    return kind(**made)


def at_least(section: Section, least: float, *names: str) -> None:
    """Refuse settings below `least`, and NaN; None is none."""
    for name, value in _given(section, names):
        if not value >= least:
            raise InputError(f"{name}={value} must be at least {least}.")


def within(section: Section, low: float, high: float, *names: str) -> None:
    """Refuse settings outside `[low, high]`, and NaN; None is none."""
    for name, value in _given(section, names):
        if not low <= value <= high:
            raise InputError(f"{name}={value} must lie between {low} and {high}.")


def share_above_zero(section: Section, *names: str) -> None:
    """Refuse settings outside `(0, 1]`, and NaN; None is none."""
    for name, value in _given(section, names):
        if not 0 < value <= 1:
            raise InputError(f"{name}={value} must lie above 0 and up to 1.")


def above_zero(section: Section, *names: str) -> None:
    """Refuse settings that are not above 0, infinity and NaN; None is none."""
    for name, value in _given(section, names):
        if not 0 < value < math.inf:
            raise InputError(f"{name}={value} must be a number above 0.")


def _given(section: Section, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    held = [(name, getattr(section, name)) for name in names]
    return [(name, value) for name, value in held if value is not None]


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

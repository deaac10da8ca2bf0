"""The options of the study commands, made from the configurations, so that a new setting is an option by itself."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from tl_lifehist.config import from_sections, options
from tl_lifehist.registry import all_added
from tl_lifehist.setting_types import fitted, item_of, kinds_of

Values = dict[str, Any]


def study_command(
    app: typer.Typer, name: str, common: Mapping[str, tuple[Any, Any]], config: type, about: str
) -> Callable[[Callable[[Values, Any], None]], Callable[[Values, Any], None]]:
    """Register `run(values, config)` as a command: its common options by name, and an option for each setting.

    Args:
        common: type and default by name, for what is no setting: the model, the texts, where the run goes. A type is
            `Annotated[int, option]`, or `Annotated[str, option, tuple[int, ...]]` for what is written with commas and
            may be a list in a file.
        config: the configuration whose settings become options.

    What a TOML file (`--config`) says goes before the defaults, and an option before the file.
    """

    def register(run: Callable[[Values, Any], None]) -> Callable[[Values, Any], None]:
        app.command(name)(_Command(run, common, config, about))
        return run

    return register


class _Command:
    """A command whose options are read from its configuration whenever they are asked for, since entries of registries
    that were added since are named in the help.
    """

    def __init__(self, run: Callable[[Values, Any], None], common: Mapping[str, Any], config: type, about: str) -> None:
        self._run, self._common, self._config = run, common, config
        self.__name__, self.__doc__ = "command", about

    def __call__(self, ctx: Any, **given: Any) -> None:
        from tl_lifehist.console import clear_errors

        with clear_errors():
            self._run(*_settled(ctx, given, self._common, self._config))

    @property
    def __annotations__(self) -> dict[str, Any]:
        return {key: kind for key, (kind, _) in self._kinds().items()}

    @property
    def __signature__(self) -> inspect.Signature:
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature(
            [
                inspect.Parameter(key, keyword, annotation=kind, default=default)
                for key, (kind, default) in self._kinds().items()
            ]
        )

    def _kinds(self) -> dict[str, tuple[Any, Any]]:
        settings = {one.name: _option(self._config, section, one) for section, one in options(self._config)}
        return {"ctx": (typer.Context, inspect.Parameter.empty), **self._common, **settings}


def _option(config: type, section: str, one: Field[Any]) -> tuple[Any, Any]:
    """Type and default of the option of a setting; a list is written with commas."""
    hints = get_type_hints(_section(config, section))
    kind = hints[one.name]
    kinds = [k for k in kinds_of(kind) if k is not type(None)]
    listed = any(item_of(k) is not None for k in kinds)
    default = one.default
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    about = f"{one.metadata['about'][:1].upper()}{one.metadata['about'][1:]}."
    if added := all_added().get(one.metadata["registry"]):
        about += f" Added: {', '.join(added)}."
    option = typer.Option(help=about, rich_help_panel=section, show_default=default is not None)
    plain = str if listed else kinds[0]
    return Annotated[plain | None if default is None else plain, option], shown


def _section(config: type, name: str) -> Any:
    return config.__dataclass_fields__[name].default_factory  # type: ignore[attr-defined]


def _settled(ctx: Any, given: Values, common: Mapping[str, Any], config: type) -> tuple[Values, Any]:
    """Values of the common options and the configuration: defaults, then the file, then what was written."""
    sources = {key: ctx.get_parameter_source(key) for key in given}
    written = {key for key, source in sources.items() if source is not None and source.name != "DEFAULT"}
    file = _read(given["config"])
    top = {key: value for key, value in file.items() if not isinstance(value, Mapping)}
    _require_known(top, common)
    file_values = {key: _from_file(key, value, common[key][0]) for key, value in top.items() if key not in written}
    values = {key: given[key] for key in common} | file_values
    values |= _instead(values, written)
    # what is written and the file are one before they are checked: k=64 of the file may need a d_sae that is written
    sections = {key: value for key, value in file.items() if isinstance(value, Mapping)}
    for section, one in options(config):
        if one.name in written:
            sections[section] = {
                **sections.get(section, {}),
                one.name: _parsed(config, (section, one), given[one.name]),
            }
    return values, from_sections(config, sections)


def _from_file(key: str, value: Any, annotated: Any) -> Any:
    """The value of a common option as the command line would give it.

    Raises:
        InputError: a value of another type than the option's, or below its least.
    """
    from tl_lifehist.errors import InputError

    hint, option, *lists = get_args(annotated)
    kinds = [str if kind is Path else kind for kind in kinds_of(hint)]
    held = fitted(key, value, reduce(or_, [*kinds, *lists]))
    if option.min is not None and held is not None and held < option.min:
        raise InputError(f"{key}={held} must be at least {option.min}.")
    return Path(held) if Path in kinds_of(hint) and held is not None else held


def _instead(values: Values, written: set[str]) -> Values:
    """What gives way where hook points are named both in whole and by their blocks: the file, to what is written.

    Raises:
        InputError: both are written, or the file has both.
    """
    from tl_lifehist.errors import InputError

    named = bool(values.get("hook_names"))
    by_block = [key for key in ("layers", "sites") if values.get(key) and key in written]
    if named and by_block and "hook_names" in written:
        raise InputError(f"--hook-names and --{by_block[0]} both say where: leave one of them out.")
    if named and by_block:
        return {"hook_names": ""}
    if named and "hook_names" in written:
        return {"layers": ""}
    if named and values.get("layers"):
        raise InputError("The file has hook_names and layers, which both say where: leave one of them out.")
    return {}


def _read(path: Path | None) -> Values:
    from tl_lifehist.errors import InputError

    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"There is no configuration file {path} that can be read.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}.") from error


def _require_known(top: Values, common: Mapping[str, Any]) -> None:
    from tl_lifehist.errors import InputError, nearest

    for key in top:
        if key not in common or key in ("config", "dry_run"):
            raise InputError(f"{key!r} is no key of a configuration file; the nearest are: {nearest(key, common)}.")


def _parsed(config: type, place: tuple[str, Field[Any]], value: Any) -> Any:
    """A written value as the setting takes it."""
    from tl_lifehist.written import numbers, words

    section, one = place
    hint = get_type_hints(_section(config, section))[one.name]
    for kind in kinds_of(hint):
        if (item := item_of(kind)) is not None:
            return words(value) if item is str else tuple(numbers(value, f"--{one.name.replace('_', '-')}", item))
    return value

"""Named entries that studies, commands, plans and reports look up: a new one is one file and one `register` call."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from tl_lifehist.errors import InputError

E = TypeVar("E")
_ALL: dict[str, Registry] = {}
# Where the registries lie that settings name entries of; none of these modules imports anything heavy.
_HOMES = {
    "control": "tl_lifehist.lifehistory.control_kinds",
    "decomposition": "tl_lifehist.dictionaries.methods",
    "target": "tl_lifehist.sufficiency.target_kinds",
}


class Registry(Mapping[str, E], Generic[E]):
    """Entries by name, in the order in which they were registered.

    Args:
        kind: what an entry is, in errors: "decomposition", "target".
        entries: those that come with the package.
        travels: whether a study hands what was added to its workers in other processes.
        reserved: names that the package uses for something else.

    `added` holds what was registered since.
    """

    def __init__(
        self, kind: str, entries: Mapping[str, E], *, travels: bool = True, reserved: Iterable[str] = ()
    ) -> None:
        self.kind, self.travels = kind, travels
        self._entries = dict(entries)
        self._shipped = frozenset({*entries, *reserved})
        _ALL[kind] = self

    def register(self, name: str, entry: E) -> E:
        """Add an entry, or replace one that was added before.

        Raises:
            InputError: the name is one of the package's own, or no plain word.
        """
        if name in self._shipped:
            raise InputError(f"The {self.kind} {name!r} comes with the package: register yours under another name.")
        if not name.isidentifier():
            raise InputError(f"{name!r} is no name for a {self.kind}: use letters, digits and underscores.")
        self._entries[name] = entry
        return entry

    def unregister(self, name: str) -> None:
        """Forget an entry that was added."""
        if name in self._shipped or name not in self._entries:
            raise InputError(f"No {self.kind} {name!r} was registered.")
        del self._entries[name]

    @property
    def added(self) -> dict[str, E]:
        """Entries that do not come with the package."""
        return {name: entry for name, entry in self._entries.items() if name not in self._shipped}

    def require(self, names: Iterable[str], argument: str) -> tuple[str, ...]:
        """The names as a tuple, each known and given once.

        Raises:
            InputError: an unknown name, one given twice, or none.
        """
        chosen = tuple(names)
        if not chosen or len(set(chosen)) != len(chosen) or any(name not in self._entries for name in chosen):
            raise InputError(f"{argument}={list(chosen)}: name some of {list(self._entries)}, each once.")
        return chosen

    def __getitem__(self, name: str) -> E:
        try:
            return self._entries[name]
        except KeyError:
            raise InputError(f"The {self.kind} {name!r} is unknown: use one of {list(self._entries)}.") from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def load_plugins() -> None:
    """Import what installed packages name under the entry points `tl_lifehist.plugins`, so that a command knows the
    entries that they register.
    """
    for entry in entry_points(group="tl_lifehist.plugins"):
        entry.load()


def registry_of(kind: str) -> Registry:
    """The registry whose entries a setting names."""
    importlib.import_module(_HOMES[kind])
    return _ALL[kind]


def all_added() -> dict[str, Mapping[str, object]]:
    """What was added to any registry, by the registry's kind, for a worker in another process."""
    return {kind: registry.added for kind, registry in _ALL.items() if registry.travels and registry.added}


def adopt(added: Mapping[str, Mapping[str, object]]) -> None:
    """Register what `all_added` gave in another process."""
    for kind, entries in added.items():
        for name, entry in entries.items():
            _ALL[kind].register(name, entry)

"""A study as a list of stages: what each needs, what decides it, and whether what a folder holds of it still counts.

A stage's key is a hash of its parameters and of the keys of all it reads. So a changed number of draws makes stale
what lies to its right and nothing else, and a label decides nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tl_lifehist.errors import InputError
from tl_lifehist.registry import all_added
from tl_lifehist.store import Manifest, Results, Store, fingerprint
from tl_lifehist.tokens import TokenSet

if TYPE_CHECKING:
    from tl_lifehist.checkpoints.series import CheckpointSeries
    from tl_lifehist.models import HookedModel

T = TypeVar("T")
Outputs = Mapping[str, Any]

# Whose versions decide numbers: of everything, and further of the stages that load models
COMPUTING = ("tl_lifehist", "torch", "numpy", "scipy", "scikit-learn", "networkx")
LOADING = ("transformer-lens", "sae-lens", "transformers")


@dataclass(frozen=True)
class Cost:
    """What a stage takes, at most.

    Attributes:
        positions: that a model runs forward on.
        gradients: those of them that are also run backward.
        bytes: that it stores.
    """

    positions: float = 0.0
    gradients: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclass(frozen=True)
class Stage:
    """One step of a study: `fn(inputs, **params, **how)` returns its outputs by name.

    Attributes:
        name: what its folder is called.
        fn: a function at a module's top level, so that workers find it.
        params: keyword arguments of `fn`: numbers, strings, tuples, frozen dataclasses of them. They decide the
            outputs, so they are part of the key.
        needs: stages whose outputs it reads.
        texts: splits it reads.
        steps: checkpoints it loads.
        group: stages of one group run in one process, one after the other, and share loaded models and clean passes.
        title: what is done, for people.
        cost: what it takes.
        how: keyword arguments of `fn` that decide nothing: where something lies, how much is done at once.
    """

    name: str
    fn: Callable[..., Outputs]
    params: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    group: str = ""
    title: str = ""
    cost: Cost = Cost()
    how: Mapping[str, Any] = field(default_factory=dict)


def params_of(fn: Callable[..., Outputs], pool: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a stage's function out of a study's pool: those that its signature names, so that
    nothing else decides it and nothing that it takes is left out of its key.
    """
    wanted = [p for p in inspect.signature(fn).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return {p.name: pool[p.name] for p in wanted if p.name in pool or p.default is inspect.Parameter.empty}


class Inputs:
    """What a stage works on: outputs of the stages it needs, its texts, and the checkpoints it names."""

    def __init__(
        self,
        stage: Stage,
        store: Store,
        series: CheckpointSeries,
        texts: Mapping[str, str],
        load: Callable[[int], HookedModel],
        held: dict[Hashable, Any],
        keys: Mapping[str, str],
    ) -> None:
        self.series = series
        self._stage, self._store, self._texts, self._load, self._held = stage, store, texts, load, held
        self._keys = keys

    def __getitem__(self, stage: str) -> Results:
        """The outputs of a stage that is needed.

        Raises:
            InputError: the stage does not say that it needs it, so a change there would go unseen here; or the folder
                holds other outputs than those that this start of the run planned.
        """
        self._declared("needs", stage)
        results = self._store.results(stage)
        if results.key != self._keys[stage]:
            raise InputError(
                f"The outputs of {stage!r} are not those that {self._stage.name!r} was planned for: another start of "
                "the run wrote them; start its command again."
            )
        return results

    def text(self, split: str) -> TokenSet:
        """The tokens of a split, read once for a group."""
        self._declared("texts", split)
        return self.shared(("text", split), lambda: self._store.text(self._texts[split]))

    def model(self, step: int) -> HookedModel:
        """A checkpoint, loaded once for a group."""
        self._declared("steps", step)
        return self._load(step)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, called once for all stages of a group: for clean passes and what else several of them need."""
        if key not in self._held:
            self._held[key] = make()
        return self._held[key]

    def _declared(self, what: str, name: Any) -> None:
        known = getattr(self._stage, what)
        if name not in known:
            raise InputError(f"The stage {self._stage.name!r} reads {name!r}, but its {what} are {list(known)}.")


@dataclass(frozen=True)
class Planned:
    """A stage beside what a folder holds of it.

    Attributes:
        stage: the stage.
        key: of the outputs that are wanted.
        decided_by: what the key is a hash of.
        state: "done", "missing", "damaged" or "stale".
        why: the file that is damaged, or the parameter that differs; empty otherwise.
    """

    stage: Stage
    key: str
    decided_by: Mapping[str, Any]
    state: str
    why: str

    @property
    def done(self) -> bool:
        return self.state == "done"

    def again(self, store: Store) -> Planned:
        """The same, looked up anew where it was not done."""
        if self.done:
            return self
        state, why = state_of(self.stage.name, self.decided_by, store)
        return dataclasses.replace(self, state=state, why=why)


def plan(
    stages: Sequence[Stage],
    store: Store | None,
    series: CheckpointSeries,
    texts: Mapping[str, str],
    *,
    threads: int,
) -> list[Planned]:
    """Every stage with its key and its state in a folder (None: a folder that holds nothing). Loads no weights.

    Args:
        texts: key of the text of each split.
        threads: part of every key: sums differ in the last bit between numbers of threads.
    """
    keys: dict[str, str] = {}
    identities = {step: series.identity(step) for step in sorted({step for stage in stages for step in stage.steps})}
    planned = []
    for stage in stages:
        if stage.name in keys:
            raise ValueError(f"two stages are called {stage.name!r}")
        unknown = [name for name in stage.needs if name not in keys]
        if unknown:
            raise ValueError(f"stage {stage.name!r} needs {unknown}, which do not come before it")
        decided_by = {
            "params": plain(stage.params),
            "needs": {name: keys[name] for name in stage.needs},
            "texts": {split: texts[split] for split in stage.texts},
            "entries": _entries(stage.params),
            "weights": {str(step): identities[step] for step in stage.steps},
            "versions": versions((*COMPUTING, *LOADING) if stage.steps else COMPUTING),
            "threads": threads,
        }
        keys[stage.name] = fingerprint(decided_by)
        state, why = ("missing", "") if store is None else state_of(stage.name, decided_by, store)
        planned.append(Planned(stage, keys[stage.name], decided_by, state, why))
    return planned


def _entries(params: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the entries that were added to registries and that the parameters name: their code decides too."""
    named = set(_strings(plain(params)))
    added = {
        f"{kind} {name}": entry for kind, held in all_added().items() for name, entry in held.items() if name in named
    }
    return {name: fingerprint(_source(entry)) for name, entry in added.items()}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def _source(value: Any) -> Any:
    """An entry as plain values; of functions and classes, their source."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _source(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if callable(value):
        try:
            return inspect.getsource(value)
        except (OSError, TypeError):  # made in a prompt, or in C
            return getattr(value, "__qualname__", repr(type(value)))
    return plain(value)


def plan_held(store: Store) -> list[tuple[str, str, str]]:
    """Stage, state and why, of every stage that the last start of a run planned."""
    return [(name, *state_of(name, decided_by, store)) for name, decided_by in store.plan.items()]


def state_of(name: str, decided_by: Mapping[str, Any], store: Store) -> tuple[str, str]:
    """What a folder holds of a stage that is decided by this, and why it does not count."""
    if not store.folder(name).is_dir():
        return "missing", ""
    try:
        held = store.manifest(name)
    except InputError:
        return "damaged", "manifest.json is damaged"
    if held.key != fingerprint(decided_by) or fingerprint(held.decided_by) != held.key:
        return "stale", _difference(held, decided_by)
    damage = store.damage(name)
    return ("damaged", damage) if damage else ("done", "")


def _difference(held: Manifest, wanted: Mapping[str, Any]) -> str:
    """What differs, "sae.k: 8 → 16"; the stages that it follows from where nothing of its own does."""
    before, now = dict(held.decided_by), dict(wanted)
    needs = [before.pop("needs", {}), now.pop("needs", {})]
    found = [
        f"{path.removeprefix('params.')}: {_short(old)} → {_short(new)}" for path, old, new in differences(before, now)
    ]
    changed = [name for name, key in needs[1].items() if needs[0].get(name) != key]
    return ", ".join(found) or f"follows {', '.join(changed)}"


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two nested mappings differ: path, old and new value (None where there is none)."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys((*before, *now)):
            yield from differences(before.get(name), now.get(name), f"{path}.{name}" if path else str(name))
    elif before != now:
        yield path, before, now


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def plain(value: Any) -> Any:
    """A parameter as JSON has it.

    Raises:
        TypeError: a value that is no number, string, tuple, mapping or dataclass of these.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{value!r} cannot be a parameter of a stage: it has no key")


@functools.cache
def versions(packages: Iterable[str]) -> dict[str, str]:
    """The installed versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found

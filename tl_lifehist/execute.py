"""Computing the stages of a plan that are not done, in this process or on an executor."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from tl_lifehist.checkpoints.integrity import fingerprint
from tl_lifehist.errors import InputError
from tl_lifehist.registry import adopt, all_added
from tl_lifehist.stages import Inputs, Planned
from tl_lifehist.store import MANIFEST, Store

if TYPE_CHECKING:
    from tl_lifehist.checkpoints.series import CheckpointSeries
    from tl_lifehist.models import HookedModel


@runtime_checkable
class Executor(Protocol):
    """Anything whose `submit(fn, *args)` returns an object with `done()` and `result()`."""

    def submit(self, fn: Any, *args: Any) -> Any: ...


@contextlib.contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Run with this many threads, in torch and in the linear-algebra libraries, and put the old number back.

    Sums differ in the last bit between thread counts, so a study fixes the number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)


class Models(threading.local):
    """Checkpoints of a series in memory, each loaded once while a unit of work needs it; for each thread its own, since
    hooks of one would change what another sees.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, ...], HookedModel] = {}

    def loader(self, unit: Unit) -> Callable[[int], HookedModel]:
        """`load(step)` for a unit; what it does not load is let go of."""
        keys = {step: (unit.root, str(step), identity) for step, identity in unit.weights.items()}
        self._held = {key: model for key, model in self._held.items() if key in keys.values()}

        def load(step: int) -> HookedModel:
            if keys[step] not in self._held:
                with _LOADING:
                    model = unit.series.load(step)
                _require_known(model, step, unit)
                self._held[keys[step]] = model
            return self._held[keys[step]]

        return load


def _require_known(model: HookedModel, step: int, unit: Unit) -> None:
    """Refuse weights other than those that were checked: a loader or a branch may have changed since."""
    store, name = Store(unit.root), f"check/step{step}"
    if any(one.stage.name == name for one in unit.planned) or not (store.folder(name) / MANIFEST).is_file():
        return
    if store.results(name)["fingerprint"] != fingerprint(model):
        raise InputError(
            f"The weights at step {step} are not those that {unit.root} was begun with: give another folder, or bring "
            "the checkpoint back."
        )


_LOADING = threading.Lock()  # transformers does not load two models at a time
_IN_WORKER = Models()  # of a worker process: the final checkpoint serves one unit after the other


@dataclass(frozen=True)
class Unit:
    """Stages that run one after the other in one process, with what they need to run anywhere.

    It holds a recipe of the series and keys of the texts, never models, texts or a study.
    """

    root: str
    series: CheckpointSeries
    texts: Mapping[str, str]
    threads: int
    planned: tuple[Planned, ...]
    added: Mapping[str, Any]  # entries of registries that the user has added

    @property
    def weights(self) -> dict[int, str]:
        """The checkpoints it loads, with what tells their weights from others."""
        return {int(step): str(one) for p in self.planned for step, one in p.decided_by["weights"].items()}

    @property
    def size(self) -> float:
        return sum(one.stage.cost.positions + 2 * one.stage.cost.gradients for one in self.planned)


def run_unit(unit: Unit, models: Models | None = None, done: Callable[[str], None] | None = None) -> list[str]:
    """Compute the stages of a unit and store each as it is finished. Runs in whatever process it is given to.

    Raises:
        InputError: the run was started again with other settings meanwhile; what a stage refuses.
    """
    store, held = Store(unit.root), dict[Hashable, Any]()
    adopt(unit.added)
    load = (_IN_WORKER if models is None else models).loader(unit)
    with limited_threads(unit.threads):
        for one in unit.planned:
            name, stage = one.stage.name, one.stage
            inputs = Inputs(stage, store, unit.series, unit.texts, load, held, one.decided_by["needs"])
            outputs = stage.fn(inputs, **stage.params, **stage.how)
            if store.superseded(name, one.key):
                raise InputError(
                    f"{unit.root} was started with other settings meanwhile: {name!r} is no longer wanted."
                )
            store.save(name, outputs, one.key, one.decided_by)
            if done is not None:
                done(name)
    return [one.stage.name for one in unit.planned]


def units_of(
    planned: Sequence[Planned], root: str, series: CheckpointSeries, texts: Mapping[str, str], threads: int
) -> list[Unit]:
    """What is not done, as units of work: a unit holds a group's stages up to the first one that has to wait for
    another group.
    """
    home: dict[str, int] = {}  # stage -> its unit's place
    found: list[list[Planned]] = []
    open_unit: dict[str, int] = {}  # group -> the unit that its next stage may join
    for one in planned:
        if one.done:
            continue
        stage = one.stage
        at = open_unit.get(stage.group) if stage.group else None
        if at is not None:
            # joining must not make the unit wait for one that waits for it
            outside = {home[name] for name in stage.needs if name in home and home[name] != at}
            if any(at in _before(other, found, home) for other in outside):
                at = None
        if at is None:
            found.append([])
            at = len(found) - 1
            if stage.group:
                open_unit[stage.group] = at
        found[at].append(one)
        home[stage.name] = at
    added = all_added()
    return [Unit(root, series, texts, threads, tuple(part), added) for part in found]


def _before(unit: int, found: Sequence[Sequence[Planned]], home: Mapping[str, int]) -> set[int]:
    """The unit and all that have to be finished before it."""
    seen, todo = set[int](), [unit]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += [home[name] for one in found[at] for name in one.stage.needs if name in home]
    return seen


def execute(
    planned: Sequence[Planned],
    store: Store,
    series: CheckpointSeries,
    texts: Mapping[str, str],
    *,
    threads: int,
    executor: Executor | None = None,
    progress: bool | None = None,
    done: Callable[[str], None] | None = None,
    poll_seconds: float = 0.05,
) -> None:
    """Compute what is not done, each unit as soon as what it needs is there, the larger ones first.

    Args:
        planned: from `plan`, for this store.
        executor: where units run; None computes them here. Its jobs are polled, since not all executors give futures.
        progress: a bar; None shows it on a terminal alone.
        done: called in this process with the name of each stage that is there, those that were before included: at
            once where units run here, when the unit is done where they run elsewhere. What it raises ends the run.

    An error ends the run once the units under way are done; what is finished stays and is not computed again.
    """
    finished: set[str] = set()
    # workers keep what they fetch: this process drops a checkpoint when the last unit that loads it is done
    units = units_of(planned, str(store.path), series.kept(), texts, threads)
    left = Counter(step for unit in units for step in unit.weights)
    begun: set[int] = set()

    def completed(name: str) -> None:
        finished.add(name)
        if done is not None:
            done(name)

    def ended(unit: Unit) -> None:
        left.subtract(unit.weights.keys())
        begun.update(unit.weights)
        _drop(series, (step for step in unit.weights if left[step] == 0))

    for one in planned:
        if one.done:
            completed(one.stage.name)
    shown = None if progress is None else not progress
    with tqdm(desc="stages", total=len(planned), initial=len(finished), disable=shown) as bar:
        try:
            if executor is None:
                _here(units, finished, completed, ended, bar)
            else:
                _on_executor(units, executor, finished, completed, ended, bar, poll_seconds)
        finally:
            _drop(series, (step for step in begun if left[step] > 0))


def _drop(series: CheckpointSeries, steps: Iterable[int]) -> None:
    if not series.keep:
        for step in steps:
            series.discard(step)


def _here(
    units: Sequence[Unit],
    finished: set[str],
    completed: Callable[[str], None],
    ended: Callable[[Unit], None],
    bar: Any,
) -> None:
    models, waiting = Models(), list(units)

    def done(name: str) -> None:
        completed(name)
        bar.update()

    while waiting:
        unit = next(unit for unit in waiting if _needs(unit) <= finished)
        waiting.remove(unit)
        bar.set_description(unit.planned[0].stage.title or unit.planned[0].stage.name)
        try:
            run_unit(unit, models, done)
        finally:
            ended(unit)


def _on_executor(
    units: Sequence[Unit],
    executor: Executor,
    finished: set[str],
    completed: Callable[[str], None],
    ended: Callable[[Unit], None],
    bar: Any,
    poll_seconds: float,
) -> None:
    waiting = sorted(units, key=lambda unit: -unit.size)
    jobs: list[tuple[Any, Unit]] = []
    failure: BaseException | None = None
    try:
        while waiting or jobs:
            if failure is None:
                ready = [unit for unit in waiting if _needs(unit) <= finished]
                waiting = [unit for unit in waiting if unit not in ready]
                jobs += [(executor.submit(run_unit, unit), unit) for unit in ready]
            else:
                waiting, jobs = [], _not_begun(jobs)
            running = []
            for job, unit in jobs:
                if not job.done():
                    running.append((job, unit))
                    continue
                ended(unit)
                try:
                    for name in job.result():
                        completed(name)
                        bar.update()
                except BaseException as error:
                    failure = failure or error
            if len(running) == len(jobs):
                time.sleep(poll_seconds)
            jobs = running
    except BaseException:  # an interrupt: what has not begun is not to begin
        _not_begun(jobs)
        raise
    if failure is not None:
        raise failure


def _not_begun(jobs: Sequence[tuple[Any, Unit]]) -> list[tuple[Any, Unit]]:
    """Cancel what can be, and return the rest."""
    return [pair for pair in jobs if not (hasattr(pair[0], "cancel") and pair[0].cancel())]


def _needs(unit: Unit) -> set[str]:
    own = {one.stage.name for one in unit.planned}
    return {name for one in unit.planned for name in one.stage.needs} - own

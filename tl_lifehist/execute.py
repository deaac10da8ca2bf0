"""Computing the stages of a plan that are not done, in this process or on an executor."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from tl_lifehist.registry import adopt, all_added
from tl_lifehist.stages import Inputs, Planned
from tl_lifehist.store import Store

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


class Models:
    """Checkpoints of a series in memory, each loaded once while a unit of work needs it."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, ...], HookedModel] = {}

    def loader(self, unit: Unit) -> Callable[[int], HookedModel]:
        """`load(step)` for a unit; what it does not load is let go of."""
        keys = {step: (unit.root, str(step), identity) for step, identity in unit.weights.items()}
        self._held = {key: model for key, model in self._held.items() if key in keys.values()}

        def load(step: int) -> HookedModel:
            if keys[step] not in self._held:
                self._held[keys[step]] = unit.series.load(step)
            return self._held[keys[step]]

        return load


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


def run_unit(unit: Unit, models: Models | None = None) -> list[str]:
    """Compute the stages of a unit and store each as it is finished. Runs in whatever process it is given to."""
    store, held = Store(unit.root), dict[Hashable, Any]()
    adopt(unit.added)
    load = (_IN_WORKER if models is None else models).loader(unit)
    with limited_threads(unit.threads):
        for one in unit.planned:
            inputs = Inputs(one.stage, store, unit.series, unit.texts, load, held)
            store.save(
                one.stage.name, one.stage.fn(inputs, **one.stage.params, **one.stage.how), one.key, one.decided_by
            )
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
        done: called in this process with the name of each stage that is there, those that were before included. What
            it raises ends the run.

    An error ends the run once the units under way are done; what is finished stays and is not computed again.
    """
    finished = {one.stage.name for one in planned if one.done}
    # workers keep what they fetch: this process drops a checkpoint when the last unit that loads it is done
    units = units_of(planned, str(store.path), series.kept(), texts, threads)
    left = Counter(step for unit in units for step in unit.weights)
    call = done or (lambda name: None)
    for one in planned:
        if one.done:
            call(one.stage.name)
    shown = None if progress is None else not progress
    bar = tqdm(desc="stages", total=len(planned), initial=len(finished), disable=shown)

    def completed(unit: Unit) -> None:
        for one in unit.planned:
            finished.add(one.stage.name)
            call(one.stage.name)
        bar.update(len(unit.planned))
        left.subtract(unit.weights.keys())
        if not series.keep:
            for step in (step for step in unit.weights if left[step] == 0):
                series.discard(step)

    with bar:
        if executor is None:
            models = Models()
            for unit in units:
                bar.set_description(unit.planned[0].stage.title or unit.planned[0].stage.name)
                run_unit(unit, models)
                completed(unit)
        else:
            _on_executor(units, executor, finished, completed, poll_seconds)


def _on_executor(
    units: Sequence[Unit],
    executor: Executor,
    finished: set[str],
    completed: Callable[[Unit], None],
    poll_seconds: float,
) -> None:
    waiting = sorted(units, key=lambda unit: -unit.size)
    jobs: list[tuple[Any, Unit]] = []
    failure: BaseException | None = None
    while waiting or jobs:
        if failure is None:
            ready = [unit for unit in waiting if _needs(unit) <= finished]
            waiting = [unit for unit in waiting if unit not in ready]
            jobs += [(executor.submit(run_unit, unit), unit) for unit in ready]
        else:
            waiting = []
            jobs = [pair for pair in jobs if not (hasattr(pair[0], "cancel") and pair[0].cancel())]
        running = []
        for job, unit in jobs:
            if not job.done():
                running.append((job, unit))
                continue
            try:
                job.result()
                completed(unit)
            except BaseException as error:
                failure = failure or error
        if len(running) == len(jobs):
            time.sleep(poll_seconds)
        jobs = running
    if failure is not None:
        raise failure


def _needs(unit: Unit) -> set[str]:
    own = {one.stage.name for one in unit.planned}
    return {name for one in unit.planned for name in one.stage.needs} - own

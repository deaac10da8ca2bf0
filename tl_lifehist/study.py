"""What both studies do with their stages: plan them over a folder, compute what is not done, and give the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError
from tl_lifehist.execute import Executor, execute, limited_threads
from tl_lifehist.preflight import require_different, require_portable, watch_checks
from tl_lifehist.runs import Run
from tl_lifehist.stages import COMPUTING, LOADING, Planned, Stage, plain, plan, versions
from tl_lifehist.store import TABLES, Store
from tl_lifehist.tokens import TokenSet

LOGGER = logging.getLogger("tl_lifehist")


@runtime_checkable
class Study(Protocol):
    """What is asked of a study."""

    kind: str
    series: CheckpointSeries
    config: Any
    seed: int
    allow_duplicates: bool

    @property
    def hook_names(self) -> Sequence[str]: ...

    @property
    def reduced(self) -> Mapping[str, str]: ...

    def texts(self) -> dict[str, TokenSet]:
        """Its texts by split."""
        ...

    def stages(self) -> list[Stage]:
        """Its stages, each after those that it needs."""
        ...

    def warnings(self) -> list[str]:
        """What its settings make of its texts, a sentence each, where that is not what one expects."""
        ...

    def prepare(self, store: Store, planned: Sequence[Planned]) -> None:
        """Put into the store what the study was given, such as SAEs, where the plan does not find it done."""
        ...


def plan_of(study: Study, store: Store | None, *, threads: int) -> list[Planned]:
    """The stages of a study beside what a folder holds of them. Loads no weights and writes nothing."""
    keys = {split: tokens.key for split, tokens in study.texts().items()}
    return plan(study.stages(), store, study.series, keys, threads=threads)


def run_study(
    study: Study,
    out: str | Path,
    *,
    executor: Executor | None = None,
    threads: int = 1,
    progress: bool | None = None,
    say: Callable[[str], object] | None = None,
) -> Run:
    """Compute what is missing in the run folder `out` and return the run.

    Args:
        out: the run folder. The same call takes an interrupted run up again; after a change it computes what depends
            on the change.
        executor: anything whose `submit(fn, *args)` returns an object with `done()` and `result()`; None computes in
            this process. The tables do not depend on it.
        threads: of each worker; part of what decides the numbers.
        progress: a bar; by default only on a terminal.
        say: called with one line for what is used again and one for each reason to compute; by default these go to
            the logger "tl_lifehist".

    Raises:
        InputError: a folder of another study or series, one in use, a duplicated checkpoint, a series that workers
            cannot load, and what the stages refuse.
    """
    require_portable(study.series, executor)
    store = Store(out)
    with store.held(), limited_threads(threads):
        require_own(store, study)
        if not study.allow_duplicates:
            require_different(study.series)
        texts = {split: store.put_text(tokens) for split, tokens in study.texts().items()}
        planned = plan(study.stages(), store, study.series, texts, threads=threads)
        study.prepare(store, planned)
        planned = [one.again(store) for one in planned]
        for line in spoken(planned):
            (say or LOGGER.info)(line)
        # the plan first: tables that it does not name are refused from here on
        store.write_plan({one.stage.name: one.decided_by for one in planned})
        store.write_record(_record(study, threads))
        with _tables_spoken_of(store):
            execute(
                planned,
                store,
                study.series,
                texts,
                threads=threads,
                executor=executor,
                progress=progress,
                done=watch_checks(store, study.series, allow_duplicates=study.allow_duplicates),
            )
    return Run(store.path)


@contextmanager
def _tables_spoken_of(store: Store) -> Iterator[None]:
    """Where a changed start fails: that the folder's tables, of its earlier settings, cannot be read for now."""
    try:
        yield
    except InputError as error:
        held = TABLES in store.stages() and store.superseded(TABLES, store.manifest(TABLES).key)
        if not held:
            raise
        raise InputError(
            f"{error} The tables that {store.path} holds are of its earlier settings; they cannot be read until this "
            "start is finished, or the run is started with the earlier settings again."
        ) from error


def require_own(store: Store, study: Study) -> None:
    """Refuse the folder of another study or series, or of another version."""
    if not any((store.path / name).exists() for name in ("study.json", "units")):
        return
    known = store.record
    if all(stage.startswith("check/") for stage in store.stages()):
        return  # a first attempt that computed nothing must not claim the folder
    for what, mine in (("study", study.kind), ("series", study.series.name)):
        if known.get(what) != mine:
            raise InputError(
                f"{store.path} holds a run of another {what}, {known.get(what)!r} and not {mine!r}: give another "
                "folder."
            )


def _record(study: Study, threads: int) -> dict[str, Any]:
    return {
        "study": study.kind,
        "series": study.series.name,
        "steps": list(study.series.steps),
        "hook_names": list(study.hook_names),
        "config": plain(study.config),
        "texts": {
            split: {"key": t.key, "sequences": len(t), "positions": t.n_valid} for split, t in study.texts().items()
        },
        "reduced": dict(study.reduced),
        "seed": study.seed,
        "threads": threads,
        "versions": versions((*COMPUTING, *LOADING)),
    }


def spoken(planned: Sequence[Planned]) -> list[str]:
    """What is used again and what is computed, and why, in a line for each reason."""
    done = [one.stage.name for one in planned if one.done]
    lines = [f"used again: {_listed(done)}"] if done else []
    reasons: dict[str, list[str]] = {}
    for one in planned:
        if not one.done:
            reason = {"missing": "not there yet"}.get(one.state, f"{one.state}: {one.why}")
            if one.why.startswith("follows "):
                reason = one.why if len(one.why) < 40 else "follows from what is computed before it"
            reasons.setdefault(reason, []).append(one.stage.name)
    return lines + [f"computed ({reason}): {_listed(names)}" for reason, names in reasons.items()]


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")

"""What a study leaves on disk, how it is resumed, and how its units are spread over an executor.

A run folder holds `study.json`, `units/<name>/` and `tables/<name>.parquet`. A unit is written under a temporary name
and renamed when it is complete, so it is there whole or not at all; starting the same command again computes what is
missing. Everything can be read without this package: Parquet, npz without pickles, SAELens folders, GraphML, JSON.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import FeatureProfiles

VERSIONED = (
    "tl_lifehist",
    "torch",
    "transformer-lens",
    "sae-lens",
    "transformers",
    "numpy",
    "scipy",
    "scikit-learn",
    "networkx",
)
_TEMPORARY = ".partial-"


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


@contextlib.contextmanager
def clear_disk_errors(path: Path) -> Iterator[None]:
    """Say in one sentence what a full disk or a read-only folder means; nothing finished is lost."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"The disk of {path} is full: free some space and start the same command again; finished "
                "units are kept."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise InputError(f"{path} cannot be written: give a folder that you may write to.") from error
        raise


@dataclass(frozen=True)
class Unit:
    """One piece of work: `fn(folder, *args)` writes its results into `folder`. `fn` is a module-level function."""

    name: str
    fn: Callable[..., None]
    args: tuple[Any, ...] = ()
    steps: tuple[int, ...] = ()  # the checkpoints that it loads


def run_unit(root: str, name: str, threads: int, fn: Callable[..., None], args: tuple[Any, ...]) -> str:
    """Compute one unit into a temporary folder and rename it into place. Runs in whatever process it is given to."""
    final = Path(root) / "units" / name
    if final.exists():
        return name
    temporary = final.parent / f"{_TEMPORARY}{final.name}-{uuid.uuid4().hex[:8]}"
    with clear_disk_errors(Path(root)):
        temporary.mkdir(parents=True)
        try:
            with limited_threads(threads):
                fn(temporary, *args)
            try:
                os.replace(temporary, final)
            except OSError as error:
                # an orphan of a killed run was quicker, with the same result
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                shutil.rmtree(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return name


class RunFolder:
    """One run on disk, held by one process at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @contextlib.contextmanager
    def held(self, description: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Create the folder or take it up again, for as long as the context lasts.

        Args:
            description: what decides the results. It is written to `study.json` at the start, and a folder that holds
                another one is refused.

        Raises:
            InputError: another process holds the folder, it is of another configuration, or it cannot be written.
        """
        with clear_disk_errors(self.path):
            (self.path / "units").mkdir(parents=True, exist_ok=True)
            (self.path / "tables").mkdir(exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115 - held until the end of the run
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"Another process is working in {self.path}: wait for it to end, or give another folder."
                ) from error
            self._check(description)
            for leftover in self.path.glob(f"units/**/{_TEMPORARY}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield self
        finally:
            lock.close()

    def _check(self, description: Mapping[str, Any]) -> None:
        wanted = json.loads(json.dumps(description))
        versions = {}
        for package in VERSIONED:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        wanted["versions"] = versions
        if (self.path / "study.json").exists():
            known = self.study()
            differing = [key for key, value in wanted.items() if known.get(key) != value]
            if "config" in differing:
                before, now = known.get("config", {}), wanted["config"]
                differing += [f"config.{key}" for key in now if before.get(key) != now[key]]
                differing.remove("config")
            if differing and not self._begun():  # a first attempt that computed nothing must not claim the folder
                self.write_study(wanted)
            elif differing:
                raise InputError(
                    f"{self.path} holds a run of another configuration (differing: {', '.join(differing)}): "
                    "give another folder, or start with the same arguments."
                )
        else:
            self.write_study(wanted)

    def _begun(self) -> bool:
        """Whether any unit is finished, the checks of the checkpoints aside."""
        units = self.path / "units"
        held = (p.relative_to(units).parts for p in units.rglob("*") if p.is_file())
        return any(parts[0] != "check" and not any(p.startswith(_TEMPORARY) for p in parts) for parts in held)

    def study(self) -> dict[str, Any]:
        """`study.json`: configuration, versions, seed, threads, fingerprints."""
        path = self.path / "study.json"
        if not path.is_file():
            raise InputError(f"{self.path} holds no study.json: give the folder of a run.")
        return json.loads(path.read_text())

    def write_study(self, study: Mapping[str, Any]) -> None:
        """Replace `study.json` in one move."""
        temporary = self.path / f"{_TEMPORARY}study.json"
        temporary.write_text(json.dumps(study, indent=1) + "\n")
        os.replace(temporary, self.path / "study.json")

    def unit(self, name: str) -> Path:
        return self.path / "units" / name

    def run(
        self,
        units: Sequence[Unit],
        *,
        threads: int,
        executor: Executor | None = None,
        title: str = "units",
        progress: bool | None = None,
        poll_seconds: float = 0.05,
        done: Callable[[Unit], None] | None = None,
    ) -> None:
        """Compute the units that are missing, here or on an executor. Jobs are polled: not all executors give futures.
        `done` is called in this process with each unit that is there, those that were finished before included.

        An error ends the run once the units under way are done; what is finished stays and is not computed again.
        """
        missing = [unit for unit in units if not self.unit(unit.name).exists()]
        done = done or (lambda unit: None)
        for unit in units:
            if unit not in missing:
                done(unit)
        bar = tqdm(
            total=len(units),
            initial=len(units) - len(missing),
            desc=title,
            disable=None if progress is None else not progress,
        )
        with bar:
            if executor is None:
                for unit in missing:
                    run_unit(str(self.path), unit.name, threads, unit.fn, unit.args)
                    done(unit)
                    bar.update()
                return
            jobs = [(executor.submit(run_unit, str(self.path), u.name, threads, u.fn, u.args), u) for u in missing]
            failure: BaseException | None = None
            while jobs:
                waiting = []
                for job, unit in jobs:
                    if not job.done():
                        waiting.append((job, unit))
                        continue
                    try:
                        job.result()
                        done(unit)
                        bar.update()
                    except BaseException as error:
                        failure = failure or error
                if failure is not None:
                    waiting = [pair for pair in waiting if not (hasattr(pair[0], "cancel") and pair[0].cancel())]
                jobs = waiting
                if jobs:
                    time.sleep(poll_seconds)
            if failure is not None:
                raise failure

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        with clear_disk_errors(self.path):
            temporary = self.path / "tables" / f"{_TEMPORARY}{name}.parquet"
            table.to_parquet(temporary, index=False)
            os.replace(temporary, self.path / "tables" / f"{name}.parquet")

    def table(self, name: str) -> pd.DataFrame:
        """One table of a finished run.

        Raises:
            InputError: no such table; the ones there are named.
        """
        path = self.path / "tables" / f"{name}.parquet"
        if not path.is_file():
            known = sorted(p.stem for p in self.path.glob("tables/*.parquet"))
            raise InputError(
                f"{self.path} holds no table {name!r}; it holds: "
                f"{', '.join(known) or 'none (the run is not finished)'}."
            )
        return pd.read_parquet(path)


@dataclass(frozen=True)
class Run:
    """A finished run: `run.claims`, and every other table by `run.table(name)`; `run.tables` names them.

    Attributes:
        path: the run folder.
    """

    path: Path

    def table(self, name: str) -> pd.DataFrame:
        return RunFolder(self.path).table(name)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(sorted(p.stem for p in (self.path / "tables").glob("*.parquet")))

    @property
    def claims(self) -> pd.DataFrame:
        """Every claim beside its null: claim, observed, null, low, high, p, n, verdict ("beyond" | "within" |
        "not testable").
        """
        return self.table("claims")

    @property
    def study(self) -> dict[str, Any]:
        return RunFolder(self.path).study()


def load_run(path: str | Path) -> Run:
    """A finished run from its folder.

    Raises:
        InputError: the folder is no run, or the run is not finished.
    """
    folder = RunFolder(path)
    folder.study()
    folder.table("claims")
    return Run(Path(path))


def compare_runs(a: Run, b: Run) -> pd.DataFrame:
    """The claims of two runs side by side: claim, observed_a, null_a, verdict_a, observed_b, null_b, verdict_b.

    How it can mislead: two runs that differ in model, text and SAE size differ for all of these reasons at once.
    """
    columns = ["claim", "observed", "null", "verdict"]
    return a.claims[columns].merge(b.claims[columns], on="claim", how="outer", suffixes=("_a", "_b"))


def save_profile(profile: FeatureProfiles, path: Path) -> None:
    """A profile as npz of plain arrays: data, indices, indptr, shape, residual_norm, decoder_norm."""
    acts = profile.acts
    np.savez(
        path,
        data=acts.data,
        indices=acts.indices.astype(np.int32),
        indptr=acts.indptr.astype(np.int64),
        shape=np.array(acts.shape, dtype=np.int64),
        residual_norm=np.array(np.nan if profile.residual_norm is None else profile.residual_norm),
        decoder_norm=profile.norm,
    )


def load_profile(
    path: Path,
    *,
    step: int,
    hook_name: str,
    token_ids: NDArray[np.integer] | None = None,
    documents: NDArray[np.integer] | None = None,
) -> FeatureProfiles:
    """The counterpart of `save_profile`; reads no pickles."""
    with np.load(path, allow_pickle=False) as stored:
        acts = sp.csc_array((stored["data"], stored["indices"], stored["indptr"]), shape=tuple(stored["shape"]))
        norm = float(stored["residual_norm"])
        return FeatureProfiles(
            step, hook_name, acts, None if np.isnan(norm) else norm, token_ids, documents, stored["decoder_norm"]
        )

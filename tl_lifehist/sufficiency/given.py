"""A life-history run that a sufficiency study is given: which of its SAEs it can mask, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.lifehistory.stored import whole
from tl_lifehist.record import require_history
from tl_lifehist.runs import load_run
from tl_lifehist.stages import fingerprint
from tl_lifehist.store import TABLES, Store


@dataclass(frozen=True)
class GivenHistory:
    """The folder of a finished life-history run."""

    path: Path

    def sites(self, series: CheckpointSeries, hook_names: Sequence[str]) -> dict[int, tuple[str, ...]]:
        """Hook points by checkpoint, of the checkpoints of both: those of both, or all of the run's where they share
        none.

        Raises:
            InputError: the folder holds no finished run, or one of another study or series, or one that has no
                checkpoint of this series.
        """
        known = require_history(self.path, series.name, series.steps)
        load_run(self.path)
        steps = [step for step in series.steps if step in known["steps"]]
        shared = [name for name in known["hook_names"] if name in hook_names]
        return {step: tuple(shared or known["hook_names"]) for step in steps}

    def digest(self, step: int) -> str:
        """A hash of what decided the SAEs of a checkpoint, their profiles and the carriers; not of where they lie.

        Raises:
            InputError: one of them is missing, damaged, or of an earlier start of the run.
        """
        store, names = Store(self.path), (f"saes/step{step}", f"profiles/step{step}", TABLES)
        for name in (*names, "lineages"):
            whole(store, name)  # a key speaks for the files only where they are as they were written
        return fingerprint({name: store.manifest(name).key for name in names})

"""The sufficiency study: a series in, tables and a report out; resumable, on any executor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.errors import InputError
from tl_lifehist.preflight import (
    check_checkpoints,
    drop_after,
    require_portable,
    run_fingerprint,
    text_of,
    token_fingerprint,
)
from tl_lifehist.runs import Executor, Run, RunFolder, Unit, limited_threads
from tl_lifehist.sufficiency.targets import TARGETS
from tl_lifehist.tokens import TokenSet

SITES = ("hook_mlp_out", "hook_resid_post")
N_LAYERS, N_STEPS = 5, 8  # evenly spaced layers, log-spaced checkpoints (ours)
SPLITS = {"train": 512, "calibration": 256, "test": 256}  # sequences (ours)


@dataclass(frozen=True, eq=False)
class SufficiencyStudy:
    """When does a sparse part of an activation become enough to keep what the model does? Masks over decompositions,
    calibrated for four targets at each checkpoint and hook point, every mask under every metric, each beside its null.

    Attributes:
        series: the checkpoints. The last one is where transfers go.
        hook_names: hook points in depth order; by default both `hook_mlp_out` and `hook_resid_post` of 5 evenly spaced
            layers, first and last included. What they cost a model differs fifty-fold, so they are never mixed.
        train: text that dictionaries, fixed heads and alignments are fitted on; the pocket suite's own by default.
        calibration: other text, that masks are calibrated on.
        test: a third one, that everything is measured on.
        methods: names in `METHODS`: "svd", "ica", "nmf", "semi_nmf", and your own.
        targets: names in `TARGETS`: "reconstruction", "fixed_head", "downstream", "transfer", and your own. Every mask
            is scored under every metric, so fixed heads and alignments are fitted whichever targets are chosen.
        n_components: of each dictionary; the smaller of 100 and the width by default (ours).
        penalty_total: lambda times the number of components (ours: 0.1, which is 1e-3 at 100 components).
        relative_to: of the losses of "fixed_head" and "downstream": "entropy", "mean_ablation" or "nats".
        transfer_loss: "nmse" or "kl".
        steps: Adam steps of a mask (ours).
        batch_size: sequences a step (ours).
        translator_steps: Adam steps of a fixed head (ours).
        sweep: further values of `penalty_total` for the frontier (ours).
        seeds: of the masks; the tables of figures are the first one's, the others serve the stability.
        close_ups: methods whose frontier, stability and dictionary-level transfer are computed.
        n_random: random masks of the same soft mass, for each downstream mask (ours).
        ridge: of the alignments (ours).
        leave_out_massive: share of the rows farthest from the mean that is left out of every split, 0 for none.
        life_history: folder of a finished life-history run of the same series: asks whether downstream masks over its
            SAEs pick its carriers, at the hook points both have, or at all of the run's where they share none.
        seed: of everything else that is random.
        allow_duplicates: run even if neighbouring checkpoints hold identical weights.
        reduced: what was made smaller than the full study, `{what: how}`; the report prints it.

    How it can mislead: sufficiency is relative to its target, its site and its penalty; masks are not unique; a small
    downstream mask at a site the model hardly needs shows nothing, so every figure stands beside the empty mask's.
    """

    series: CheckpointSeries
    hook_names: Sequence[str] | None = None
    train: TokenSet | None = None
    calibration: TokenSet | None = None
    test: TokenSet | None = None
    methods: Sequence[str] = ("svd", "ica", "nmf", "semi_nmf")
    targets: Sequence[str] = ("reconstruction", "fixed_head", "downstream", "transfer")
    n_components: int | None = None
    penalty_total: float = 0.1
    relative_to: str = "entropy"
    transfer_loss: str = "nmse"
    steps: int = 1000
    batch_size: int = 16
    translator_steps: int = 400
    sweep: Sequence[float] = (0.01, 0.03, 0.3, 1.0)
    seeds: Sequence[int] = (0, 1, 2)
    close_ups: Sequence[str] = ("svd",)
    n_random: int = 20
    ridge: float = 1e-3
    leave_out_massive: float = 0.0
    life_history: str | Path | None = None
    seed: int = 0
    allow_duplicates: bool = False
    reduced: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in (("methods", METHODS), ("targets", TARGETS), ("close_ups", self.methods)):
            chosen = tuple(getattr(self, name))
            object.__setattr__(self, name, chosen)
            unknown = [value for value in chosen if value not in known]
            if unknown or len(set(chosen)) != len(chosen) or (not chosen and name != "close_ups"):
                raise InputError(f"{name}={list(chosen)}: name some of {list(known)}, each once.")
        for name, least in (("steps", 1), ("batch_size", 1), ("translator_steps", 1), ("n_random", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(*self.seeds, self.seed, 0) < 0:
            raise InputError(f"seeds={list(self.seeds)}: name at least one, each once, and none below 0, nor seed.")
        totals = [self.penalty_total, *self.sweep]
        if not all(0 < total < math.inf for total in totals) or len(set(self.sweep)) != len(self.sweep):
            raise InputError("penalty_total and every value of sweep must be numbers above 0, each once.")
        if self.n_components is not None and self.n_components < 1:
            raise InputError(f"n_components={self.n_components} must be at least 1.")
        if self.relative_to not in ("entropy", "mean_ablation", "nats"):
            raise InputError(f'relative_to={self.relative_to!r}: use "entropy", "mean_ablation" or "nats".')
        if self.transfer_loss not in ("nmse", "kl"):
            raise InputError(f'transfer_loss={self.transfer_loss!r}: use "nmse" or "kl".')
        if not 0 <= self.ridge < math.inf:
            raise InputError(f"ridge={self.ridge} must be a number and not negative.")
        if self.penalty_total in self.sweep:
            object.__setattr__(self, "sweep", tuple(total for total in self.sweep if total != self.penalty_total))
        if not 0 <= self.leave_out_massive < 0.5:
            raise InputError(f"leave_out_massive={self.leave_out_massive} must lie between 0 and 0.5.")
        for split, size in SPLITS.items():
            given = getattr(self, split)
            tokens = text_of(self.series, given, split)
            object.__setattr__(self, split, tokens if given is not None else tokens.subsample(size))
        prints = [token_fingerprint(getattr(self, split)) for split in SPLITS]
        if len(set(prints)) < len(prints):
            raise InputError("train, calibration and test must be three different texts: two of them are the same.")
        for split in ("calibration", "test"):
            if getattr(self, split).n_scored == 0:
                raise InputError(f"No position of the {split} tokens is scored: they need labels at valid positions.")
        if self.hook_names is None:
            layers = default_layers(self.series.shape.n_layers)
            names = [f"blocks.{layer}.{site}" for layer in layers for site in SITES]
            object.__setattr__(self, "hook_names", names)
        object.__setattr__(self, "hook_names", tuple(self.hook_names or ()))
        if not self.hook_names or len(set(self.hook_names)) != len(self.hook_names):
            raise InputError("Name at least one hook point, and each only once.")

    @property
    def last(self) -> int:
        """The final checkpoint, where transfers go."""
        return self.series.steps[-1]

    def description(self, threads: int) -> dict[str, Any]:
        """Everything that decides the results, as it is stored in `study.json`."""
        names = (
            *("methods", "targets", "n_components", "penalty_total", "relative_to", "transfer_loss", "steps"),
            *("batch_size", "translator_steps", "sweep", "seeds", "close_ups", "n_random", "ridge"),
            "leave_out_massive",
        )
        config: dict[str, Any] = {name: getattr(self, name) for name in names}
        config["life_history"] = None if self.life_history is None else run_fingerprint(self.life_history)
        for split in SPLITS:
            tokens = getattr(self, split)
            config[split] = token_fingerprint(tokens)
            config[f"{split}_sequences"], config[f"{split}_positions"] = len(tokens), tokens.n_valid
        return {
            "study": "sufficiency",
            "series": self.series.name,
            "steps": list(self.series.steps),
            "hook_names": list(self.hook_names or ()),
            "config": config,
            "reduced": {**self.reduced, **self._too_few_steps},
            "seed": self.seed,
            "threads": threads,
        }

    @property
    def _too_few_steps(self) -> dict[str, str]:
        from tl_lifehist.sufficiency.calibration import gates_can_close

        if gates_can_close(self.steps):
            return {}
        return {"steps of a mask": f"{self.steps}, in which no gate can close: nothing is claimed of any mask"}

    def units(self) -> list[Unit]:
        """One unit for each checkpoint and hook point, and one for each with SAEs of the life-history run."""
        from tl_lifehist.sufficiency.carriers import carriers_unit, shared_points
        from tl_lifehist.sufficiency.cell import cell_unit

        # workers keep what they fetch: the process that gave them their units drops it when the last one is done
        study = replace(self, series=self.series.kept())
        found = [
            Unit(f"cells/step{step}/{hook_name}", cell_unit, (study, step, hook_name), (step, self.last))
            for step in self.series.steps
            for hook_name in self.hook_names or ()
        ]
        if self.life_history is not None:
            found += [
                Unit(f"carriers/step{step}/{hook_name}", carriers_unit, (study, step, hook_name), (step,))
                for step, hook_name in shared_points(self)
            ]
        return found

    def run(
        self, out: str | Path, *, executor: Executor | None = None, threads: int = 1, progress: bool | None = None
    ) -> Run:
        """Compute what is missing in the run folder `out`, write tables and report, and return the run.

        Args:
            out: the run folder; the same call takes an interrupted run up again.
            executor: anything whose `submit(fn, *args)` returns an object with `done()` and `result()`; None computes
                in this process. The tables do not depend on it.
            threads: threads of each worker; part of the run's configuration.
            progress: progress bars; by default only on a terminal.

        Raises:
            InputError: a folder of another run or in use, a duplicated checkpoint, a series that workers cannot load,
                an unknown hook point, NaN activations, fewer rows than components.
        """
        from tl_lifehist.sufficiency.collect import collect

        require_portable(self.series, executor)
        folder = RunFolder(out)
        with folder.held(self.description(threads)), limited_threads(threads):

            def compute(title: str, units: Sequence[Unit]) -> None:
                folder.run(
                    units,
                    threads=threads,
                    executor=executor,
                    title=title,
                    progress=progress,
                    done=drop_after(self.series, units),
                )

            check_checkpoints(
                folder, self.series, self.hook_names or (), compute, allow_duplicates=self.allow_duplicates
            )
            compute("masks", self.units())
            collect(folder, self)
        from tl_lifehist.report.page import write_report

        write_report(folder.path)
        return Run(folder.path)


def default_layers(n_layers: int) -> list[int]:
    """Up to 5 evenly spaced layers, first and last included (ours)."""
    count = min(N_LAYERS, n_layers)
    return sorted({round(i * (n_layers - 1) / max(1, count - 1)) for i in range(count)})


def default_steps(steps: Sequence[int]) -> tuple[int, ...]:
    """Up to 8 of the steps, log-spaced, first and last included (ours)."""
    import numpy as np

    if len(steps) <= N_STEPS:
        return tuple(steps)
    marks = np.log1p(np.asarray(steps, dtype=float))
    wanted = np.linspace(marks[0], marks[-1], N_STEPS)
    return tuple(sorted({steps[int(np.abs(marks - mark).argmin())] for mark in wanted}))

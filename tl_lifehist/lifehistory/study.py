"""The life-history study: a series in, tables and a report out; resumable, on any executor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.dictionaries.sae import (
    check_init,
    init_seeds,
    load_training_state,
    save_training_state,
    train_at,
)
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import profile_saes
from tl_lifehist.preflight import check_checkpoints, drop_after, require_portable, text_of, token_fingerprint
from tl_lifehist.runs import Executor, Run, RunFolder, Unit, limited_threads, save_profile
from tl_lifehist.seeds import derive_seed
from tl_lifehist.tokens import TokenSet

N_FROZEN = 3  # further trainings at one checkpoint, for the frozen null
SIZES = {  # parts of the study that are samples even when nothing is reduced (ours); kept in study.json
    "singles_per_role": 15,
    "single_carriers": 60,
    "contexts": 5,
    "content_draws": 19,
    "regression_sets": 60,
    "forecast_permutations": 200,
    "unrelated_draws": 3,
}


@dataclass(frozen=True, eq=False)
class LifeHistoryStudy:
    """Features through training checkpoints: lineages, carriers, containment, load and forecast, each beside its null.

    Attributes:
        series: the checkpoints.
        hook_names: hook points in depth order, e.g. `blocks.2.hook_resid_post`.
        train: text the SAEs are trained on; the pocket suite's own by default.
        test: other text, that everything is measured on.
        d_sae: features of an SAE, 4 times the width by default ([prior]).
        k: active features per token ([prior]: 32).
        training_tokens: rows each SAE is trained on (ours).
        init: "shared", "independent" or "previous", see `train_saes`.
        noise_steps: checkpoints at which SAE noise is measured at both levels; by default the first, a middle and the
            last one.
        n_draws: control sets of each kind (ours).
        load_tokens: positions on which ablations are scored.
        seed: of everything random.
        allow_duplicates: run even if neighbouring checkpoints hold identical weights.
        reduced: what was made smaller than the full study, `{what: how}`; the report prints it.

    How it can mislead: every count depends on SAE size, training length and text; compare runs only at equal settings,
    and read each claim with its null and its n.
    """

    series: CheckpointSeries
    hook_names: Sequence[str]
    train: TokenSet | None = None
    test: TokenSet | None = None
    d_sae: int | None = None
    k: int = 32
    training_tokens: int = 600_000
    init: str = "shared"
    noise_steps: Sequence[int] | None = None
    n_draws: int = 100
    load_tokens: int = 16_384
    seed: int = 0
    allow_duplicates: bool = False
    reduced: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_init(self.init)
        object.__setattr__(self, "hook_names", tuple(self.hook_names))
        if len(set(self.hook_names)) != len(self.hook_names) or not self.hook_names:
            raise InputError("Name at least one hook point, and each only once.")
        if len(self.series.steps) < 2:
            raise InputError(
                "A life history needs at least two checkpoints, and this series has "
                f"{len(self.series.steps)}: add steps."
            )
        for split in ("train", "test"):
            object.__setattr__(self, split, text_of(self.series, getattr(self, split), split))
        steps = self.series.steps
        if self.noise_steps is None:
            object.__setattr__(self, "noise_steps", tuple(sorted({steps[0], steps[len(steps) // 2], steps[-1]})))
        unknown = [s for s in self.noise_steps or () if s not in steps]
        if unknown or steps[-1] not in (self.noise_steps or ()):
            raise InputError(
                f"noise_steps must be steps of the series and include the last one, {steps[-1]}; the "
                f"series has {list(steps)}."
            )

    @property
    def load_text(self) -> TokenSet:
        """The part of the test text that ablations are scored on."""
        assert self.test is not None
        return self.test.head(self.load_tokens)

    def replicates(self) -> list[tuple[int, str]]:
        """Further SAE trainings for the noise controls: `(step, "data1")` and so on (C1)."""
        last = self.series.steps[-1]
        found = [(step, name) for step in self.noise_steps or () for name in ("data1", "init1")]
        level = self.frozen_level
        found += [(last, f"{level}{i}") for i in range(1, N_FROZEN + 1) if (last, f"{level}{i}") not in found]
        return sorted(found)

    @property
    def frozen_level(self) -> str:
        """Replicates that repeat the run's own way to initialise."""
        return {"shared": "data", "independent": "init", "previous": "warm"}[self.init]

    def description(self, threads: int) -> dict[str, Any]:
        """Everything that decides the results, as it is stored in `study.json`."""
        assert self.train is not None
        assert self.test is not None
        config = {
            "d_sae": self.d_sae,
            "k": self.k,
            "training_tokens": self.training_tokens,
            "init": self.init,
            "noise_steps": list(self.noise_steps or ()),
            "n_draws": self.n_draws,
            "load_tokens": self.load_tokens,
            "n_frozen": N_FROZEN,
            **SIZES,
            "train": token_fingerprint(self.train),
            "test": token_fingerprint(self.test),
            "train_positions": self.train.n_valid,
            "test_positions": self.test.n_valid,
        }
        return {
            "study": "life-history",
            "series": self.series.name,
            "steps": list(self.series.steps),
            "hook_names": list(self.hook_names),
            "config": config,
            "reduced": dict(self.reduced),
            "seed": self.seed,
            "threads": threads,
        }

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
                an unknown hook point, NaN activations, no carriers left to ablate (the tables up to there are kept).
        """
        from tl_lifehist.lifehistory.analyses import STAGES
        from tl_lifehist.lifehistory.collect import collect

        require_portable(self.series, executor)
        folder = RunFolder(out)
        with folder.held(self.description(threads)), limited_threads(threads):
            root = str(folder.path)

            def compute(title: str, units: Sequence[Unit]) -> None:
                folder.run(
                    units,
                    threads=threads,
                    executor=executor,
                    title=title,
                    progress=progress,
                    done=drop_after(self.series, units),
                )

            steps = self.series.steps
            check_checkpoints(folder, self.series, self.hook_names, compute, allow_duplicates=self.allow_duplicates)
            if self.init == "previous":  # each unit starts from the one before
                for step in steps:
                    compute(f"training SAEs, step {step}", [self._training(root, step, "base")])
                done = []
            else:
                done = [self._training(root, step, "base") for step in steps]
            compute("training SAEs", [*done, *(self._training(root, *replicate) for replicate in self.replicates())])
            for title, functions in STAGES:
                compute(title, [self._unit(f"analysis/{fn.__name__}", fn, root, steps=steps[-1:]) for fn in functions])
            collect(folder, self)
        from tl_lifehist.report.page import write_report

        write_report(folder.path)
        return Run(folder.path)

    def _training(self, root: str, step: int, name: str) -> Unit:
        return self._unit(f"saes/step{step}/{name}", training_unit, root, step, name, steps=(step,))

    def _unit(self, unit: str, fn: Callable[..., None], root: str, *rest: Any, steps: tuple[int, ...]) -> Unit:
        """A unit whose worker keeps what it fetches: this process drops it when the last unit is done."""
        return Unit(unit, fn, (root, replace(self, series=self.series.kept()), *rest), steps)


def training_unit(folder: Path, root: str, study: LifeHistoryStudy, step: int, name: str) -> None:
    """Train the SAEs of one checkpoint and profile them: one model load feeds every hook point."""
    from tl_lifehist.effects import scored_losses

    assert study.train is not None
    assert study.test is not None
    level, number = name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)
    other_init, other_order = level == "init", number > 0
    seed = derive_seed(study.seed, number, 13) if other_init else study.seed
    order = (study.seed, step, 7) if not other_order else (study.seed, step, 7, number, 1 if other_init else 2)
    start_from = None
    if study.init == "previous" and not other_init:
        position = study.series.steps.index(step)
        source = step if level == "warm" else (study.series.steps[position - 1] if position else None)
        if source is not None:
            start_from = load_training_state(RunFolder(root).unit(f"saes/step{source}/base"), study.hook_names)
    model = study.series.load(step)
    trained = train_at(
        model,
        study.hook_names,
        study.train,
        init_seeds=init_seeds(study.hook_names, init=study.init, seed=seed, step=step),
        order_seed=derive_seed(*order),
        d_sae=study.d_sae,
        k=study.k,
        training_tokens=study.training_tokens,
        start_from=start_from,
        metadata={"model_name": study.series.name, "checkpoint_step": step},
    )
    for hook_name, one in trained.items():
        one.sae.save_model(folder / hook_name)
    if study.init == "previous" and name == "base":
        save_training_state(trained, folder)
    profiles = profile_saes(model, {h: one.sae for h, one in trained.items()}, study.test, step=step)
    for hook_name, profile in profiles.items():
        save_profile(profile, folder / hook_name / "profile.npz")
    if name == "base":
        losses = scored_losses(model, study.load_text)
        record = {"step": step, "base_ce": float(losses.mean()), "n_scored": len(losses)}
        record["fvu"] = {h: fvu(model, h, one.sae, study.load_text) for h, one in trained.items()}
        (folder / "checkpoint.json").write_text(json.dumps(record))


@torch.no_grad()
def fvu(model: Any, hook_name: str, sae: Any, tokens: TokenSet) -> float:
    """Share of the variance at a hook point that the SAE leaves (D1)."""
    from tl_lifehist.activations import collect_activations

    rows = collect_activations(model, hook_name, tokens)
    error = (rows - sae.decode(sae.encode(rows))).double().square().sum()
    return float(error / (rows - rows.mean(dim=0)).double().square().sum())


def depth_hook_names(n_layers: int, site: str = "hook_resid_post") -> tuple[str, ...]:
    """Blocks at depth 1/4, 1/2, 3/4 and 1, as the published study instruments four layers (ours)."""
    blocks = sorted({max(round(n_layers * share) - 1, 0) for share in (0.25, 0.5, 0.75, 1.0)})
    return tuple(f"blocks.{int(b)}.{site}" for b in blocks)

"""The life-history study: a series in, tables out, as a list of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.config import configured, pool_of
from tl_lifehist.errors import InputError
from tl_lifehist.execute import Executor
from tl_lifehist.few_documents import too_few
from tl_lifehist.lifehistory.config import LifeHistoryConfig
from tl_lifehist.lifehistory.content import vocabulary_key
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.lifehistory.costs import LifeHistoryCosts
from tl_lifehist.lifehistory.given import GivenSAEs
from tl_lifehist.lifehistory.history import sae_stage
from tl_lifehist.lifehistory.onset import require_onset
from tl_lifehist.lifehistory.stages.calibration import calibration
from tl_lifehist.lifehistory.stages.content import content
from tl_lifehist.lifehistory.stages.forecasts import forecasts
from tl_lifehist.lifehistory.stages.graphs import graphs
from tl_lifehist.lifehistory.stages.lineages import lineages
from tl_lifehist.lifehistory.stages.loads import load
from tl_lifehist.lifehistory.stages.noise import noise
from tl_lifehist.lifehistory.stages.profiles import profiles
from tl_lifehist.lifehistory.stages.recruitment import recruitment
from tl_lifehist.lifehistory.stages.saes import given, train
from tl_lifehist.lifehistory.stages.singles import singles
from tl_lifehist.lifehistory.stages.sweeps import sweeps
from tl_lifehist.lifehistory.stages.tables import tables
from tl_lifehist.preflight import check_stages, overlaps, require_apart, require_scored_text, text_of
from tl_lifehist.runs import Run
from tl_lifehist.seeds import study_seed
from tl_lifehist.stages import Cost, Planned, Stage, params_of
from tl_lifehist.store import Store
from tl_lifehist.study import run_study
from tl_lifehist.tokens import TokenSet


class LifeHistoryStudy:
    """Features through training checkpoints: lineages, carriers, containment, load and forecast, each beside its null.

    Args:
        series: the checkpoints.
        hook_names: hook points in depth order, e.g. `blocks.2.hook_resid_post`.
        train: text the SAEs are trained on; the pocket suite's own by default.
        test: other text, that everything is measured on.
        saes: SAEs that are there already, instead of training them: what `train_saes` or `load_saes` gives, any mapping
            `{(step, hook_name): sae}`, a folder of `step{N}/{hook_name}` in SAELens' format, or the folder of an
            earlier life-history run, whose replicates and whose settings of training come along. Others have no
            replicates, so that what needs the noise of their training is not testable.
        config: every threshold and size, by section; see `LifeHistoryConfig`.
        seed: of everything random.
        allow_duplicates: run even if checkpoints hold identical weights.
        reduced: what was made smaller than the full study, `{what: how}`; the report prints it. It decides nothing.
        settings: fields of any section by their names: `d_sae=64, min_similarity=0.6`.

    Raises:
        InputError: an unknown setting or one out of range, fewer than two checkpoints, a hook point named twice, no
            text, SAEs that are missing, damaged or of another width, a setting of training that SAEs given do not have.

    How it can mislead: every count depends on SAE size, training length and text; compare runs only at equal settings,
    and read each claim with its null and its n.
    """

    kind = "life-history"

    def __init__(
        self,
        series: CheckpointSeries,
        hook_names: Sequence[str],
        *,
        train: TokenSet | None = None,
        test: TokenSet | None = None,
        saes: Any = None,
        config: LifeHistoryConfig | None = None,
        seed: int = 0,
        allow_duplicates: bool = False,
        reduced: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.series, self.seed, self.allow_duplicates = series, study_seed(seed), allow_duplicates
        self.reduced = dict(reduced or {})
        self.hook_names = (hook_names,) if isinstance(hook_names, str) else tuple(hook_names)
        if len(set(self.hook_names)) != len(self.hook_names) or not self.hook_names:
            raise InputError("Name at least one hook point, and each only once.")
        if len(series.steps) < 2:
            raise InputError(
                f"A life history needs at least two checkpoints, and this series has {len(series.steps)}: add steps."
            )
        self.train, self.test = text_of(series, train, "train"), text_of(series, test, "test")
        require_apart(self.texts())
        require_scored_text(self.test, "test")
        self.config = configured(LifeHistoryConfig, config, settings)
        CONTROLS.require(self.config.control_sets.controls, "controls")
        require_onset(self.config.forecast.onset, series.steps)
        self.saes = None if saes is None else GivenSAEs.of(saes, series.steps, self.hook_names)
        if self.saes is not None:
            self.saes.require_width(series.shape.d_model)
            self.config = replace(self.config, sae=self.saes.training(self.config.sae, settings))
        self.noise_steps = self._noise_steps()

    def __repr__(self) -> str:
        return f"LifeHistoryStudy({self.series!r}, {', '.join(self.hook_names)})"

    def _noise_steps(self) -> tuple[int, ...]:
        steps, chosen = self.series.steps, self.config.noise.noise_steps
        if chosen is None:
            return tuple(sorted({steps[0], steps[len(steps) // 2], steps[-1]}))
        if not set(chosen) <= set(steps) or steps[-1] not in chosen:
            raise InputError(
                f"noise_steps must be steps of the series and include the last one, {steps[-1]}; the "
                f"series has {list(steps)}."
            )
        return tuple(sorted(chosen))

    @property
    def frozen_level(self) -> str:
        """Replicates that repeat the run's own way to initialise."""
        return {"shared": "data", "independent": "init", "previous": "warm"}[self.config.sae.init]

    def replicates(self) -> list[tuple[int, str]]:
        """Further SAE trainings for the noise controls: `(step, "data1")` and so on (C1)."""
        if self.saes is not None:
            return self.saes.replicates
        last = self.series.steps[-1]
        found = [(step, name) for step in self.noise_steps for name in ("data1", "init1")]
        frozen = [(last, f"{self.frozen_level}{i}") for i in range(1, self.config.noise.n_frozen + 1)]
        return sorted({*found, *frozen})

    @cached_property
    def _costs(self) -> LifeHistoryCosts:
        return LifeHistoryCosts(self.series, len(self.hook_names), self.train, self.test, self.config)

    def texts(self) -> dict[str, TokenSet]:
        """Its texts by split."""
        return {"train": self.train, "test": self.test}

    def stages(self) -> list[Stage]:
        """Its stages, each after those that it needs. What a stage's function names as a parameter decides it."""
        steps, last, kinds = self.series.steps, self.series.steps[-1], self.config.control_sets.controls
        replicates = self.replicates()
        own = [(step, "") for step in steps]
        profiled = tuple(f"profiles/step{step}" for step in steps)
        traced = (*profiled, "lineages")
        again = tuple(sae_stage(last, name) for name in ("data1", "init1") if (last, name) in replicates)
        loads = tuple(f"load/{kind}" for kind in kinds)
        joined = ("noise", "graphs", "recruitment", "singles", *loads, "content", "sweeps", "forecasts", "calibration")
        stage, ablating, costs = self._stage, self._ablating, self._costs
        return [
            *check_stages(self.series, self.hook_names),
            *(self._saes(step, replicate) for step, replicate in sorted([*own, *replicates])),
            *(self._profiles(step) for step in steps),
            stage("lineages", lineages, profiled, "lineages"),
            stage("noise", noise, (*traced, sae_stage(last), *again), "noise of SAE training"),
            stage("graphs", graphs, profiled, "containment graphs"),
            stage("recruitment", recruitment, (*traced, "graphs"), "what carriers recruit"),
            ablating("singles", singles, (*traced, "graphs"), costs.singles()),
            *(
                ablating(
                    f"load/{k}", load, (*traced, "noise", "graphs"), costs.load(k), kind=k, n_draws=self._n_sets(k)
                )
                for k in kinds
            ),
            ablating("content", content, (*traced, "graphs"), costs.content()),
            stage("sweeps", sweeps, profiled, "sweeps of the thresholds"),
            stage("forecasts", forecasts, (*traced, *map(sae_stage, steps)), "forecast of carriers"),
            stage("calibration", calibration, (*traced, "graphs"), "tests tried in planted worlds"),
            stage("tables", tables, (*traced, *joined), "tables and claims", cost=costs.tables()),
        ]

    def _stage(self, name: str, fn: Any, needs: tuple[str, ...], title: str, **more: Any) -> Stage:
        own = {key: more.pop(key) for key in set(more) - {f.name for f in fields(Stage)}}
        return Stage(name, fn, params_of(fn, {**self._pool, **own}), needs, title=title, **{"texts": ("test",), **more})

    def _ablating(self, name: str, fn: Any, needs: tuple[str, ...], cost: Cost, **own: Any) -> Stage:
        last = self.series.steps[-1]
        return self._stage(name, fn, (*needs, sae_stage(last)), "ablations", steps=(last,), cost=cost, **own)

    def _n_sets(self, kind: str) -> int:
        """Control sets of a kind: fewer where it is only described."""
        sets = self.config.control_sets
        return sets.n_draws if CONTROLS[kind].tested else sets.n_described

    @cached_property
    def _pool(self) -> dict[str, Any]:
        return {
            **pool_of(self.config),
            "steps": self.series.steps,
            "hook_names": self.hook_names,
            "seed": self.seed,
            "replicates": tuple(self.replicates()),
            "frozen_level": self.frozen_level,
            "vocabulary": vocabulary_key(self.series.tokenizer),
        }

    def _saes(self, step: int, replicate: str) -> Stage:
        name = sae_stage(step, replicate)
        if self.saes is not None:
            return Stage(name, given, {"digest": self.saes.digest(step, replicate)}, title="taking up SAEs")
        level, start = replicate.rstrip("0123456789"), None
        if self.config.sae.init == "previous" and level != "init":
            place = self.series.steps.index(step)
            start = step if level == "warm" else (self.series.steps[place - 1] if place else None)
        return self._stage(
            name,
            train,
            () if start is None else (sae_stage(start),),
            "training SAEs",
            texts=("train",),
            steps=(step,),
            group=f"step{step}",
            cost=self._costs.training(replicate),
            step=step,
            replicate=replicate,
            start=start,
        )

    def _profiles(self, step: int) -> Stage:
        replicates = tuple(name for at, name in self.replicates() if at == step)
        return self._stage(
            f"profiles/step{step}",
            profiles,
            tuple(sae_stage(step, name) for name in ("", *replicates)),
            "profiles of the SAEs",
            steps=(step,),
            group=f"step{step}",
            cost=self._costs.profiles(len(replicates)),
            step=step,
            replicates=replicates,
        )

    def warnings(self) -> list[str]:
        """What its settings make of its texts, a sentence each."""
        found = overlaps(self.texts())
        if few := too_few(self.test.head(self.config.sampling.load_tokens).scored_documents):
            found.append(f"There will be no interval over documents: {few}.")
        times = self.config.sae.training_tokens / self.train.n_valid
        if self.saes is None and times > 1:
            found.append(f"Each SAE is trained on every position about {times:,.1f} times.")
        return found

    def prepare(self, store: Store, planned: Sequence[Planned]) -> None:
        """Put given SAEs into the store where they are not there yet."""
        if self.saes is not None:
            for one in planned:
                if one.stage.fn is given and not one.done:
                    store.save(one.stage.name, self.saes.outputs(one.stage.name), one.key, one.decided_by)

    def run(
        self,
        out: str | Path,
        *,
        executor: Executor | None = None,
        threads: int = 1,
        progress: bool | None = None,
        say: Callable[[str], object] | None = None,
    ) -> Run:
        """Compute what is missing in the run folder `out` and return the run; see `tl_lifehist.study.run_study`.

        The same call takes an interrupted run up again. After a change of settings it computes what depends on them:
        another number of draws trains no SAE. `run.report()` writes the page.

        Raises:
            InputError: a folder of another study or series, or in use; a duplicated checkpoint; a series that workers
                cannot load; an unknown hook point; NaN activations.
        """
        return run_study(self, out, executor=executor, threads=threads, progress=progress, say=say)


def depth_hook_names(n_layers: int, site: str = "hook_resid_post") -> tuple[str, ...]:
    """Blocks at depth 1/4, 1/2, 3/4 and 1, as the published study instruments four layers (ours)."""
    blocks = sorted({max(round(n_layers * share) - 1, 0) for share in (0.25, 0.5, 0.75, 1.0)})
    return tuple(f"blocks.{int(b)}.{site}" for b in blocks)

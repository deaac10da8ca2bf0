"""The sufficiency study: a series in, tables out, as a list of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.config import configured, pool_of
from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.errors import InputError
from tl_lifehist.execute import Executor
from tl_lifehist.few_documents import too_few
from tl_lifehist.preflight import check_stages, overlaps, require_apart, require_scored_text, text_of
from tl_lifehist.runs import Run
from tl_lifehist.seeds import study_seed
from tl_lifehist.stages import Cost, Planned, Stage, params_of
from tl_lifehist.store import Store
from tl_lifehist.study import run_study
from tl_lifehist.sufficiency.calibration import gates_can_close
from tl_lifehist.sufficiency.config import SufficiencyConfig
from tl_lifehist.sufficiency.costs import SufficiencyCosts
from tl_lifehist.sufficiency.given import GivenHistory
from tl_lifehist.sufficiency.stages.feature_masks import feature_masks
from tl_lifehist.sufficiency.stages.fits import fits
from tl_lifehist.sufficiency.stages.masks import calibrated
from tl_lifehist.sufficiency.stages.reading import fit_stage
from tl_lifehist.sufficiency.stages.refits import refits
from tl_lifehist.sufficiency.stages.scores import scores
from tl_lifehist.sufficiency.stages.tables import tables
from tl_lifehist.sufficiency.target_kinds import TARGETS
from tl_lifehist.tokens import TokenSet

SITES = ("hook_mlp_out", "hook_resid_post")
N_LAYERS, N_STEPS = 5, 8  # evenly spaced layers, log-spaced checkpoints (ours)
SPLITS = {"train": 512, "calibration": 256, "test": 256}  # sequences (ours)


class SufficiencyStudy:
    """When does a sparse part of an activation become enough to keep what the model does? Masks over decompositions,
    calibrated for four targets at each checkpoint and hook point, every mask under every metric, each beside its null.

    Args:
        series: the checkpoints. The last one is where transfers go.
        hook_names: hook points in depth order; by default both `hook_mlp_out` and `hook_resid_post` of 5 evenly spaced
            layers, first and last included. What they cost a model differs fifty-fold, so they are never mixed.
        train: text that dictionaries, fixed heads and alignments are fitted on; the pocket suite's own by default.
        calibration: other text, that masks are calibrated on.
        test: a third one, that everything is measured on.
        config: every threshold and size, by section; see `SufficiencyConfig`. Every mask is scored under every metric,
            so fixed heads and alignments are fitted whichever targets are chosen.
        life_history: folder of a finished life-history run of the same series: asks whether downstream masks over its
            SAEs pick its carriers, at the hook points both have, or at all of the run's where they share none.
        seed: of everything that is random but masks and further dictionaries, which have `seeds`.
        allow_duplicates: run even if checkpoints hold identical weights.
        reduced: what was made smaller than the full study, `{what: how}`; the report prints it. It decides nothing.
        settings: fields of any section by their names: `penalty_total=0.3, methods=("svd",)`.

    Raises:
        InputError: an unknown setting or one out of range, an unknown method or target, texts that are missing or the
            same, a hook point named twice, a folder that holds no life history of the series.

    How it can mislead: sufficiency is relative to its target, its site and its penalty; masks are not unique; a small
    downstream mask at a site the model hardly needs shows nothing, so every figure stands beside the empty mask's.
    """

    kind = "sufficiency"

    def __init__(
        self,
        series: CheckpointSeries,
        hook_names: Sequence[str] | None = None,
        *,
        train: TokenSet | None = None,
        calibration: TokenSet | None = None,
        test: TokenSet | None = None,
        config: SufficiencyConfig | None = None,
        life_history: str | Path | None = None,
        seed: int = 0,
        allow_duplicates: bool = False,
        reduced: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.series, self.seed, self.allow_duplicates = series, study_seed(seed), allow_duplicates
        self.config = _without_own_penalty(configured(SufficiencyConfig, config, settings))
        methods = METHODS.require(self.config.dictionaries.methods, "methods")
        TARGETS.require(self.config.masks.targets, "targets")
        given = self.config.comparisons.close_ups
        self.close_ups = methods[:1] if given is None else tuple(given)
        if not set(self.close_ups) <= set(methods) or len(set(self.close_ups)) != len(self.close_ups):
            raise InputError(f"close_ups={list(self.close_ups)}: name some of {list(methods)}, each once.")
        self.train = _text(series, train, "train")
        self.calibration = _text(series, calibration, "calibration")
        self.test = _text(series, test, "test")
        require_apart(self.texts())
        for split in ("calibration", "test"):
            require_scored_text(self.texts()[split], split)
        if hook_names is None:
            hook_names = [f"blocks.{i}.{site}" for i in default_layers(series.shape.n_layers) for site in SITES]
        self.hook_names = (hook_names,) if isinstance(hook_names, str) else tuple(hook_names)
        if not self.hook_names or len(set(self.hook_names)) != len(self.hook_names):
            raise InputError("Name at least one hook point, and each only once.")
        self.life_history = None if life_history is None else GivenHistory(Path(life_history))
        masks = self.config.masks
        too_few = f"{masks.mask_steps}, in which no gate can close: nothing is claimed of any mask"
        closes = gates_can_close(masks.mask_steps, masks.learning_rate)
        self.reduced = {**(reduced or {}), **({} if closes else {"steps of a mask": too_few})}

    def __repr__(self) -> str:
        return f"SufficiencyStudy({self.series!r}, {', '.join(self.hook_names)})"

    @property
    def last(self) -> int:
        """The final checkpoint, where transfers go."""
        return self.series.steps[-1]

    def texts(self) -> dict[str, TokenSet]:
        """Its texts by split."""
        return {split: getattr(self, split) for split in SPLITS}

    def stages(self) -> list[Stage]:
        """Its stages, each after those that it needs; the final checkpoint's fits are first, since all others need its
        activations. What a stage's function names as a parameter decides it.

        Raises:
            InputError: a life history that is of another study or series, or has no checkpoint of this one.
        """
        bridge = {} if self.life_history is None else self.life_history.sites(self.series, self.hook_names)
        found: list[Stage] = []
        checks = {stage.steps[0]: stage for stage in check_stages(self.series, self.hook_names)}
        found.append(replace(checks.pop(self.last), group="final"))
        found.append(self._fits(self.last))
        for step in self.series.steps:
            if step != self.last:
                found += [checks[step], self._fits(step, bridge.get(step, ()))]
            found += self._of_checkpoint(step, bridge.get(step, ()))
        needs = [f"{kind}/step{step}" for step in self.series.steps for kind in ("refits", "masks", "scores")]
        needs += [f"feature_masks/step{step}" for step in bridge]
        params = params_of(tables, {**self._pool, "bridge_steps": tuple(bridge)})
        return [
            *found,
            Stage("tables", tables, params, tuple(needs), title="tables and claims", cost=self._costs.tables()),
        ]

    def _of_checkpoint(self, step: int, sae_hooks: tuple[str, ...]) -> list[Stage]:
        """What follows a checkpoint's fits, in the order in which one pass serves the most."""
        fitted, masks = fit_stage(step), f"masks/step{step}"
        models = tuple(dict.fromkeys((step, self.last)))
        at_last, costs = step == self.last, self._costs
        found = [
            self._stage("refits", refits, step, (fitted,), ("train",), (step,), sae_hooks, costs.refits()),
            self._stage(
                *("masks", calibrated, step, (fitted,), ("calibration",), models, sae_hooks),
                costs.masks(last=at_last),
            ),
            self._stage(
                *("scores", scores, step, (fitted, masks), ("calibration", "test"), models, sae_hooks),
                costs.scores(last=at_last),
            ),
        ]
        if sae_hooks and self.life_history is not None:
            found.insert(1, self._feature_masks(step, sae_hooks))
        return found

    def _fits(self, step: int, sae_hooks: tuple[str, ...] = ()) -> Stage:
        last = step == self.last
        needs = () if last else (fit_stage(self.last),)
        made = self._stage("fits", fits, step, needs, ("train",), (step,), sae_hooks, self._costs.fits(last=last))
        return replace(made, group="final") if last else made

    def _feature_masks(self, step: int, sae_hooks: tuple[str, ...]) -> Stage:
        assert self.life_history is not None
        own = {"sae_hooks": sae_hooks, "life_history": self.life_history.digest(step)}
        texts, cost = ("train", "calibration", "test"), self._costs.feature_masks(len(sae_hooks))
        made = self._stage("feature_masks", feature_masks, step, (), texts, (step,), sae_hooks, cost, **own)
        return replace(made, how={**made.how, "folder": str(self.life_history.path)})

    def _stage(
        self,
        kind: str,
        fn: Any,
        step: int,
        needs: tuple[str, ...],
        texts: tuple[str, ...],
        steps: tuple[int, ...],
        more_hooks: tuple[str, ...],
        cost: Cost,
        **own: Any,
    ) -> Stage:
        """A stage of one checkpoint. That a pass also serves `more_hooks`, which others of its stages read, decides
        nothing.
        """
        params = params_of(fn, {**self._pool, "step": step, "pass_hooks": (), "folder": "", **own})
        how: dict[str, Any] = {"pass_hooks": tuple(dict.fromkeys((*self.hook_names, *more_hooks)))}
        how["hooks_per_pass"] = self.config.memory.hooks_per_pass
        for name in ("pass_hooks", "hooks_per_pass", "folder"):
            params.pop(name, None)
        return Stage(f"{kind}/step{step}", fn, params, needs, texts, steps, f"step{step}", _TITLES[kind], cost, how)

    @cached_property
    def _pool(self) -> dict[str, Any]:
        return {
            **pool_of(self.config),
            "close_ups": self.close_ups,
            "steps": self.series.steps,
            "last": self.last,
            "hook_names": self.hook_names,
            "seed": self.seed,
        }

    @cached_property
    def _costs(self) -> SufficiencyCosts:
        n_hooks = len(self.hook_names)
        return SufficiencyCosts(self.series, n_hooks, **self.texts(), config=self.config, close_ups=self.close_ups)

    def warnings(self) -> list[str]:
        """What its settings make of its texts, a sentence each."""
        masks, found = self.config.masks, overlaps(self.texts())
        if few := too_few(self.test.scored_documents):
            found.append(f"There will be no interval over documents: {few}.")
        times = [f"{METHODS[m].label} {METHODS[m].cost:g}" for m in self.config.dictionaries.methods]
        if len(times) > 1:
            found.append(f"To fit dictionaries is not counted below; in times of an SVD, roughly: {', '.join(times)}.")
        if not gates_can_close(masks.mask_steps, masks.learning_rate):
            found.append(
                f"In {masks.mask_steps} steps no gate can close, so nothing will be claimed of any mask: use more "
                "(46 at the default learning rate)."
            )
        return found

    def prepare(self, store: Store, planned: Sequence[Planned]) -> None:
        """Nothing of what it was given goes into the store but texts."""

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
        another number of random masks fits no dictionary and calibrates no mask. `run.report()` writes the page.

        Raises:
            InputError: a folder of another study or series, or in use; a duplicated checkpoint; a series that workers
                cannot load; an unknown hook point; NaN activations; fewer rows than components.
        """
        return run_study(self, out, executor=executor, threads=threads, progress=progress, say=say)


_TITLES = {
    "fits": "dictionaries, fixed heads, alignments",
    "refits": "stability of dictionaries",
    "masks": "masks",
    "scores": "scores of the masks",
    "feature_masks": "masks over the SAEs of the life history",
}


def _text(series: CheckpointSeries, given: TokenSet | None, split: str) -> TokenSet:
    tokens = text_of(series, given, split)
    return tokens if given is not None else tokens.subsample(SPLITS[split])


def _without_own_penalty(config: SufficiencyConfig) -> SufficiencyConfig:
    """The sweep holds further values, so that no mask is calibrated twice."""
    comparisons, own = config.comparisons, config.masks.penalty_total
    sweep = tuple(total for total in comparisons.sweep if total != own)
    return replace(config, comparisons=replace(comparisons, sweep=sweep))


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

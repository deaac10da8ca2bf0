"""Finished life histories whose settings are not the defaults, and what they stored, read back piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from small import HOOKS

import tl_lifehist as lh
from tl_lifehist.lifehistory.config import LifeHistoryConfig
from tl_lifehist.store import Results, Store

STEPS = (0, 128, 1024, 4096)
SEED = 5
TRAINED: dict[str, Any] = {
    "d_sae": 48, "k": 7, "training_tokens": 1600, "init": "previous",
    "min_similarity": 0.65, "method": "dense", "transformed": 0.55, "max_gap": 1, "min_rate": 0.005, "min_count": 200,
    "firing_threshold": 0.02, "min_snapshots": 3, "min_share": 0.9, "consecutive": False, "alive_at_end": False,
    "min_containment": 0.5, "min_firings": 150, "min_lift": 1.5, "max_p": 1e-3,
    "noise_steps": (128, 4096), "n_frozen": 2, "frozen_draws": 80, "unrelated_draws": 2,
    "controls": ("mass", "count", "norm"), "n_draws": 4, "n_described": 3, "n_rewired": 3,
    "block": 7, "rate_block": 4, "caliper": 0.3, "max_unmatched": 0.9, "max_smd": 1.5,
    "load_tokens": 700, "singles_per_role": 3, "single_carriers": 8, "regression_sets": 7, "regression_share": 0.2,
    "content_draws": 3, "contexts": 2, "window": 7,
    "similarities": (0.35, 0.8), "rates": (2e-3, 2e-2), "containments": (0.6,), "lifts": (1.2, 3.0),
    "edge_ps": (1e-2,), "calipers": (0.2,), "frequent_ids": 20,
    "onset_share": 0.2, "min_positives": 4, "n_folds": 3, "n_repeats": 3, "n_permutations": 4, "inverse_penalty": 0.3,
    "n_groups": 6, "level": 0.3, "null_draws": 120, "early_share": 0.3, "min_lineages": 20, "min_mass_share": 0.3,
    "phase_two_share": 0.2, "min_role_features": 5, "worlds": 3,
}  # fmt: skip
# What one run cannot tell from a default another can: a rate that decides who is alive, an onset that is named.
OF_TRAINING = ("d_sae", "k", "training_tokens", "init")
GIVEN: dict[str, Any] = {
    **{name: value for name, value in TRAINED.items() if name not in OF_TRAINING},
    "method": "gated", "min_rate": 0.03, "min_count": 60, "min_similarity": 0.65,
    "transformed": None, "max_gap": 0, "min_snapshots": None, "min_firings": 60, "controls": ("rate", "count"),
    "single_carriers": 50, "load_tokens": 700, "onset": 128, "max_unmatched": 0.95, "caliper": 0.2, "min_lineages": 30,
    "alive_at_end": True,
}  # fmt: skip


@cache
def text(split: str, start: int, stop: int) -> lh.TokenSet:
    """Sequences of many documents in mixed order, so that the first few are no single document."""
    whole = lh.TokenSet.pocket(split)
    return whole[np.random.default_rng(1).permutation(len(whole))[start:stop]]


@cache
def series(*steps: int) -> lh.CheckpointSeries:
    return lh.CheckpointSeries.pocket().subset(steps)


def trained_study(**changes: Any) -> lh.LifeHistoryStudy:
    """SAEs are trained, each from those of the checkpoint before."""
    settings = {"train": text("train", 0, 40), "test": text("test", 0, 50), "seed": SEED, **TRAINED, **changes}
    return lh.LifeHistoryStudy(settings.pop("series", series(*STEPS)), HOOKS, **settings)


def given_study(folder: Path) -> lh.LifeHistoryStudy:
    """The SAEs of an earlier run, two trainings of which count as started from other weights."""
    texts = {"train": text("train", 0, 40), "test": text("test", 20, 70)}
    return lh.LifeHistoryStudy(series(*STEPS[1:]), HOOKS, saes=folder, seed=SEED + 3, **texts, **GIVEN)


def renamed(run: Path, folder: Path) -> Path:
    """The SAEs of a run as another run's, whose second training from other weights is what was a warm start.

    Features of each checkpoint stand in an order of their own: after warm starts a feature keeps its index, and what is
    taken from a wrong checkpoint would not be seen.
    """
    of_run, of_other = Store(run), Store(folder)
    kept = {
        name: name.replace("warm2", "init2")
        for name in of_run.plan
        if name.startswith(("saes/", "replicates/")) and "warm1" not in name
    }
    for number, (old, new) in enumerate(kept.items()):
        held, manifest = of_run.results(old), of_run.manifest(old)
        outputs = {h: reordered(held[h], seed=number) for h in HOOKS}
        of_other.save(new, outputs, manifest.key, manifest.decided_by)
    record = of_run.record
    record["config"]["sae"]["init"] = "independent"
    of_other.write_record(record)
    of_other.write_plan({kept.get(name, name): one for name, one in of_run.plan.items() if "warm1" not in name})
    return folder


def reordered(sae: Any, *, seed: int) -> Any:
    """The SAE with its features in another order."""
    order = np.random.default_rng(seed).permutation(len(sae.W_dec))
    sae.W_enc.data, sae.b_enc.data, sae.W_dec.data = sae.W_enc[:, order], sae.b_enc[order], sae.W_dec[order]
    return sae


@dataclass(frozen=True, eq=False)
class Case:
    """A study and its run; everything that stages read is read here anew, from what the stages before stored."""

    study: Any
    run: lh.Run
    models: dict[int, Any] = field(default_factory=dict)

    def __getitem__(self, stage: str) -> Results:
        return Store(self.run.path).results(stage)

    @property
    def config(self) -> LifeHistoryConfig:
        return self.study.config

    @property
    def seed(self) -> int:
        return self.study.seed

    @property
    def steps(self) -> tuple[int, ...]:
        return self.study.series.steps

    @property
    def last(self) -> int:
        return self.steps[-1]

    @property
    def test(self) -> lh.TokenSet:
        return self.study.test

    @property
    def scored(self) -> lh.TokenSet:
        """The part of the test text on which ablations are scored."""
        return self.test.head(self.config.sampling.load_tokens)

    def model(self, step: int) -> Any:
        if step not in self.models:
            self.models[step] = self.study.series.load(step)
        return self.models[step]

    def saes(self, step: int, replicate: str = "") -> dict[str, Any]:
        held = self[f"replicates/{replicate}/step{step}" if replicate else f"saes/step{step}"]
        return {h: held[h] for h in HOOKS}

    @cached_property
    def all_saes(self) -> lh.dictionaries.SAEs:
        return lh.dictionaries.SAEs({(s, h): sae for s in self.steps for h, sae in self.saes(s).items()})

    def profiles_at(self, step: int, replicate: str = "") -> dict[str, lh.FeatureProfiles]:
        held, known = self[f"profiles/step{step}"], {"token_ids": self.test.row_tokens}
        known["documents"] = self.test.row_documents
        named = {h: f"{replicate}/{h}" if replicate else h for h in HOOKS}
        return {h: lh.FeatureProfiles.from_arrays(held[n], step=step, hook_name=h, **known) for h, n in named.items()}

    @cached_property
    def profiles(self) -> dict[tuple[int, str], lh.FeatureProfiles]:
        return {(s, h): profile for s in self.steps for h, profile in self.profiles_at(s).items()}

    @property
    def final(self) -> dict[str, lh.FeatureProfiles]:
        return {h: self.profiles[self.last, h] for h in HOOKS}

    @property
    def alike(self) -> dict[str, Any]:
        """What decides whether two features are one."""
        m = self.config.matching
        return {
            "min_similarity": m.min_similarity,
            "method": m.method,
            **self.alive,
        }

    @property
    def traced(self) -> dict[str, Any]:
        return {
            **self.alike,
            "transformed": self.config.matching.transformed,
            "max_gap": self.config.matching.max_gap,
        }

    @property
    def alive(self) -> dict[str, Any]:
        return {"min_rate": self.config.alive.min_rate, "min_count": self.config.alive.min_count}

    @property
    def rule(self) -> dict[str, Any]:
        r = self.config.rule
        return {
            "min_snapshots": r.min_snapshots,
            "min_share": r.min_share,
            "consecutive": r.consecutive,
            "alive_at_end": r.alive_at_end,
        }

    @cached_property
    def lineages(self) -> lh.lifehistory.Lineages:
        return lh.trace_lineages(self.profiles, **self.traced)

    @cached_property
    def carriers(self) -> lh.lifehistory.Carriers:
        return self.lineages.carriers(**self.rule)

    def graph(self, step: int, **changes: Any) -> Any:
        c = self.config.containment
        settings = {
            "min_containment": c.min_containment,
            "min_firings": c.min_firings,
            "min_lift": c.min_lift,
            "max_p": c.max_p,
            "min_rate": self.config.alive.min_rate,
        }
        return lh.containment_dag({h: self.profiles[step, h] for h in HOOKS}, **{**settings, **changes})

    def cost(self, chosen: dict[str, list[int]]) -> float:
        """Nats that removing these features of the last checkpoint costs on the scored text."""
        return lh.ablation_effect(
            self.model(self.last), lh.FeatureAblation(self.saes(self.last), chosen), self.scored
        ).delta_ce

    def claim(self, claim_id: str) -> pd.Series:
        return self.run.claims.set_index("id").loc[claim_id]


def same(found: pd.DataFrame, expected: pd.DataFrame, *, rtol: float = 0.0) -> None:
    """The two tables hold the same; `rtol` is for what a model computed."""
    pd.testing.assert_frame_equal(
        found.reset_index(drop=True),
        expected.reset_index(drop=True),
        check_dtype=False,
        check_exact=rtol == 0,
        **({} if rtol == 0 else {"rtol": rtol, "atol": 1e-9}),
    )

"""Features of a finished life-history run, for whoever builds on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.store import Store


def stored_features(run: str | Path, step: int, hook_name: str) -> tuple[Any, FeatureProfiles, list[int]]:
    """The SAE of one checkpoint and hook point, its features' profile, and which of them are carriers there.

    Raises:
        InputError: the run has no such checkpoint or hook point, or is not finished.
    """
    store, stage = Store(run), f"saes/step{step}"
    if stage not in store.stages() or hook_name not in store.results(stage):
        raise InputError(f"{run} has no SAE of step {step} at {hook_name!r}: give a step and hook point of that run.")
    features = store.table("features")
    here = features[(features["step"] == step) & (features["hook_name"] == hook_name) & features["carrier"]]
    held = store.results(f"profiles/step{step}")[hook_name]
    profile = FeatureProfiles.from_arrays(held, step=step, hook_name=hook_name)
    return store.results(stage)[hook_name], profile, sorted(here["feature"].tolist())

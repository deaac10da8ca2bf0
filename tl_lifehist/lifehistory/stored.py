"""Features of a finished life-history run, for whoever builds on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tl_lifehist.dictionaries.sae import load_sae
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.runs import RunFolder, load_profile


def stored_features(run: str | Path, step: int, hook_name: str) -> tuple[Any, FeatureProfiles, list[int]]:
    """The SAE of one checkpoint and hook point, its features' profile, and which of them are carriers there.

    Raises:
        InputError: the run has no such checkpoint or hook point, or is not finished.
    """
    folder = RunFolder(run)
    unit = folder.unit(f"saes/step{step}/base") / hook_name
    if not unit.is_dir():
        raise InputError(f"{run} has no SAE of step {step} at {hook_name!r}: give a step and hook point of that run.")
    features = folder.table("features")
    here = features[(features["step"] == step) & (features["hook_name"] == hook_name) & features["carrier"]]
    profile = load_profile(unit / "profile.npz", step=step, hook_name=hook_name)
    return load_sae(unit), profile, sorted(here["feature"].tolist())

"""Features of a finished life-history run, for whoever builds on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.stages import state_of
from tl_lifehist.store import TABLES, Results, Store


def whole(store: Store, stage: str) -> Results:
    """The outputs of a stage as the last start of its run wanted them, with every file compared with its checksum.

    Raises:
        InputError: they are missing, damaged, or of an earlier start.
    """
    decided_by = store.plan.get(stage)
    state, why = ("missing", "") if decided_by is None else state_of(stage, decided_by, store)
    if state != "done":
        reason = f" ({why})" if why else ""
        raise InputError(f"{store.folder(stage)} is {state}{reason}: start that run's own command again.")
    return store.results(stage)


def stored_features(run: str | Path, step: int, hook_name: str) -> tuple[Any, FeatureProfiles, list[int]]:
    """The SAE of one checkpoint and hook point, its features' profile, and which of them are carriers there.

    Raises:
        InputError: the run has no such checkpoint or hook point, is not finished, or a file of these is damaged.
    """
    store, stage = Store(run), f"saes/step{step}"
    if stage not in store.plan or hook_name not in (saes := whole(store, stage)):
        raise InputError(f"{run} has no SAE of step {step} at {hook_name!r}: give a step and hook point of that run.")
    features = whole(store, TABLES)["features"]
    here = features[(features["step"] == step) & (features["hook_name"] == hook_name) & features["carrier"]]
    held = whole(store, f"profiles/step{step}")[hook_name]
    profile = FeatureProfiles.from_arrays(held, step=step, hook_name=hook_name)
    return saes[hook_name], profile, sorted(here["feature"].tolist())


def alive_features(run: str | Path, step: int, hook_name: str) -> list[int]:
    """The features of one checkpoint and hook point that the run counts as alive, by thresholds of its own; ascending.

    Raises:
        InputError: the run is not finished, or its lineages are damaged.
    """
    return sorted(whole(Store(run), "lineages")["alive"][f"{step}/{hook_name}"])

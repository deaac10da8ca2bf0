"""Matches between neighbouring checkpoints, chained into lineages (D5 to D7)."""

from __future__ import annotations

from typing import Any

from tl_lifehist.lifehistory.config import Alive, Matching
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.lifehistory.lineages import trace_lineages
from tl_lifehist.stages import Inputs, Outputs


def lineages(
    inputs: Inputs, *, steps: tuple[int, ...], hook_names: tuple[str, ...], alive: Alive, matching: Matching
) -> Outputs:
    """The table of lineages, the alive features of each checkpoint and hook point, and what a stable match is."""
    traced = trace_lineages(History(inputs, steps, hook_names).profiles, **tracing(alive, matching))
    found = {f"{s}/{h}": features.tolist() for (s, h), features in traced.alive.items()}
    return {"lineages": traced.to_dataframe(), "alive": found, "min_similarity": traced.min_similarity}


def tracing(alive: Alive, matching: Matching) -> dict[str, Any]:
    """Keyword arguments of `trace_lineages`."""
    return {**same_feature(alive, matching), **knobs(matching, "transformed", "max_gap")}


def same_feature(alive: Alive, matching: Matching) -> dict[str, Any]:
    """Keyword arguments of `match_features`."""
    return {**knobs(matching, "min_similarity", "method"), **knobs(alive, "min_rate", "min_count")}

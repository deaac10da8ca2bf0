"""What the carriers recruit in the containment graphs, beside node sets of equal size and rates (D15, C8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import pandas as pd

from tl_lifehist.lifehistory.config import Alive, CarrierRule, Containment, EqualFeatures
from tl_lifehist.lifehistory.containment import feature_roles
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.lifehistory.recruitment import can_be_parents, recruited_fraction, recruitment_null
from tl_lifehist.lifehistory.stages.graphs import ORIENTATIONS
from tl_lifehist.nulls import Null
from tl_lifehist.stages import Inputs, Outputs

ROLES = ("root", "mid", "leaf", "isolated")
_RECRUITED = ("recruited", "recruited_direct", "recruited_with_carriers")
_NULL = ("null_mean", "null_low", "null_high", "null_sd", "unmatched_share", "rewired_mean", "p")
_NONE = dict.fromkeys((*_RECRUITED, *_NULL), float("nan"))


def recruitment(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    alive: Alive,
    rule: CarrierRule,
    containment: Containment,
    equals: EqualFeatures,
    n_draws: int,
    n_rewired: int,
    seed: int,
) -> Outputs:
    """Table `dag`: a row for each checkpoint and orientation."""
    history = History(inputs, steps, hook_names)
    null = {"n_draws": n_draws, "n_rewired": n_rewired, "seed": seed}
    null |= {"block": equals.rate_block, **knobs(equals, "caliper", "max_unmatched")}
    parents = {"min_rate": alive.min_rate, "min_firings": containment.min_firings}
    rows = []
    for step in steps:
        profiles = history.profiles_of(step)
        carriers = history.carriers(rule).at(step)
        n_carriers = sum(map(len, carriers.values()))
        can = can_be_parents(profiles, carriers, containment.min_lift, **parents) if n_carriers else 0
        for orientation in ORIENTATIONS:
            graph = history.graph(step, orientation)
            row = {"step": step, "orientation": orientation, **_counts(graph)}
            row |= {"n_carriers": n_carriers, "n_can_be_parents": can}
            # a carrier that fires less than a node must is none
            there = any((h, f) in graph for h, features in carriers.items() for f in features)
            rows.append(row | (_recruited(graph, carriers, null) if there else _NONE))
    return {"dag": pd.DataFrame(rows)}


def _counts(graph: nx.DiGraph) -> dict[str, int]:
    tally = pd.Series(list(feature_roles(graph).values()), dtype=object).value_counts()
    return {
        "n_nodes": graph.number_of_nodes(),
        "n_edges": graph.number_of_edges(),
        **{f"n_{role}": int(tally.get(role, 0)) for role in ROLES},
    }


def _recruited(graph: nx.DiGraph, carriers: Mapping[str, list[int]], null: Mapping[str, Any]) -> dict[str, float]:
    drawn = recruitment_null(graph, carriers, **null)
    return {
        "recruited": recruited_fraction(graph, carriers),
        "recruited_direct": recruited_fraction(graph, carriers, direct=True),
        "recruited_with_carriers": recruited_fraction(graph, carriers, count_carriers=True),
        "null_mean": drawn.mean,
        "null_low": drawn.low,
        "null_high": drawn.high,
        "null_sd": Null(drawn.observed, drawn.draws).sd,
        "unmatched_share": drawn.unmatched_share,
        "rewired_mean": drawn.rewired_mean,
        "p": drawn.p,
    }

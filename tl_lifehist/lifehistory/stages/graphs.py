"""Containment graphs in both orientations at every checkpoint (D12 to D14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import pandas as pd

from tl_lifehist.lifehistory.config import Alive, Containment
from tl_lifehist.lifehistory.containment import containment_dag, feature_roles
from tl_lifehist.lifehistory.history import EDGE_COLUMNS, EDGE_MEASURES, History, knobs
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.stages import Inputs, Outputs

ORIENTATIONS = ("container", "depth")


def graphs(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    alive: Alive,
    containment: Containment,
) -> Outputs:
    """Tables `edges` and `roles`, in the order of the graphs, and the last checkpoint's graphs."""
    history = History(inputs, steps, hook_names)
    edges, roles = [], []
    at_end: dict[str, nx.DiGraph] = {}
    for step in steps:
        found: dict[str, dict[Any, str]] = {}
        for orientation in ORIENTATIONS:
            graph = contained(history.profiles_of(step), containment, alive, orientation=orientation)
            found[orientation] = feature_roles(graph)
            edges += [
                (step, orientation, *a, *b, *(data[name] for name in EDGE_MEASURES))
                for a, b, data in graph.edges(data=True)
            ]
            if step == steps[-1]:
                at_end[orientation] = graph
        roles += [(step, *node, role, found["depth"][node]) for node, role in found["container"].items()]
    tables = {
        "edges": pd.DataFrame(edges, columns=[*EDGE_COLUMNS, *EDGE_MEASURES]),
        "roles": pd.DataFrame(roles, columns=["step", "hook_name", "feature", "role_container", "role_depth"]),
    }
    return tables | {f"graphs/{orientation}": graph for orientation, graph in at_end.items()}


def contained(
    profiles: Mapping[str, FeatureProfiles], containment: Containment, alive: Alive, **more: Any
) -> nx.DiGraph:
    """`containment_dag` by the study's thresholds."""
    return containment_dag(profiles, **{**knobs(containment), "min_rate": alive.min_rate, **more})

"""The life history so far, as a stage reads it from the outputs of the stages before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np

from tl_lifehist.lifehistory.config import CarrierRule
from tl_lifehist.lifehistory.lineages import Carriers, Lineages
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.stages import Inputs

EDGE_COLUMNS = ("step", "orientation", "source_hook", "source_feature", "target_hook", "target_feature")
EDGE_MEASURES = ("containment", "lift", "overlap")


@dataclass(frozen=True, eq=False)
class History:
    """Profiles, SAEs, lineages and carriers, each read when it is asked for.

    Attributes:
        inputs: of a stage that needs what it asks for.
        steps: the checkpoints, ascending.
        hook_names: in depth order.
    """

    inputs: Inputs
    steps: tuple[int, ...]
    hook_names: tuple[str, ...]

    @property
    def last(self) -> int:
        return self.steps[-1]

    def profiles_of(self, step: int, replicate: str = "") -> dict[str, FeatureProfiles]:
        """Profiles of one checkpoint by hook point, of the run's own SAEs or of a replicate's."""
        return self.inputs.shared(("profiles", step, replicate), lambda: self._read(step, replicate))

    def _read(self, step: int, replicate: str) -> dict[str, FeatureProfiles]:
        test, held = self.inputs.text("test"), self.inputs[f"profiles/step{step}"]
        known: dict[str, Any] = {"token_ids": test.row_tokens, "documents": test.row_documents}
        prefix = f"{replicate}/" if replicate else ""
        return {
            h: FeatureProfiles.from_arrays(held[f"{prefix}{h}"], step=step, hook_name=h, **known)
            for h in self.hook_names
        }

    @property
    def profiles(self) -> dict[tuple[int, str], FeatureProfiles]:
        """Of every checkpoint and hook point."""
        return {(s, h): p for s in self.steps for h, p in self.profiles_of(s).items()}

    @property
    def final(self) -> dict[str, FeatureProfiles]:
        """Of the last checkpoint."""
        return self.profiles_of(self.last)

    def saes_of(self, step: int, replicate: str = "") -> dict[str, Any]:
        """SAEs of one checkpoint by hook point."""
        held = self.inputs[sae_stage(step, replicate)]
        return {h: held[h] for h in self.hook_names}

    @cached_property
    def lineages(self) -> Lineages:
        held = self.inputs["lineages"]
        alive = {
            (s, h): np.array(held["alive"][f"{s}/{h}"], dtype=np.int64) for s in self.steps for h in self.hook_names
        }
        return Lineages(held["lineages"], self.steps, self.hook_names, alive, held["min_similarity"])

    def graph(self, step: int, orientation: str = "container") -> nx.DiGraph:
        """The containment graph of a checkpoint (D13), as it was stored: same nodes and edges in the same order."""
        held, profiles = self.inputs["graphs"], self.profiles_of(step)
        nodes, edges = held["roles"], held["edges"]
        nodes = nodes[nodes["step"] == step]
        sizes, n_rows = nodes["hook_name"].value_counts(), profiles[self.hook_names[0]].n_rows
        n_pairs = int(sizes.sum() ** 2 - (sizes**2).sum()) // 2
        graph = nx.DiGraph(orientation=orientation, n_rows=n_rows, n_pairs=n_pairs)
        for h, feature in zip(nodes["hook_name"], nodes["feature"].tolist(), strict=True):
            count = int(profiles[h].count[feature])
            graph.add_node((h, feature), count=count, firing_rate=count / profiles[h].n_rows)
        for row in edges[(edges["step"] == step) & (edges["orientation"] == orientation)].to_dict("records"):
            source, target = (row["source_hook"], row["source_feature"]), (row["target_hook"], row["target_feature"])
            graph.add_edge(source, target, **{name: row[name] for name in EDGE_MEASURES})
        return graph

    def carriers(self, rule: CarrierRule) -> Carriers:
        """The persistent carriers (D9)."""
        return self.lineages.carriers(**knobs(rule))


def sae_stage(step: int, replicate: str = "") -> str:
    """The stage whose outputs are the SAEs of a checkpoint."""
    return f"replicates/{replicate}/step{step}" if replicate else f"saes/step{step}"


def knobs(config: Any, *names: str) -> Mapping[str, Any]:
    """The fields of a section of the configuration as keyword arguments: those named, or all."""
    fields = names or tuple(config.__dataclass_fields__)
    return {name: getattr(config, name) for name in fields}

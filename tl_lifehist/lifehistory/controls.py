"""Control sets for the load of carriers: the label "carrier" exchanged among features of equal count, rate or mass
(D19).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
from tl_lifehist.inference.exchange import BLOCK, CALIPER, Bools, Strata, strata_of
from tl_lifehist.lifehistory.containment import feature_roles
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.metrics import standardised_difference

Chosen = dict[str, list[int]]
MAX_UNMATCHED = 0.5  # share of carriers without an equal (ours), above which a claim would be about a few of them
MAX_SMD = 0.25  # of the matched quantity, within a layer (ours): beyond it the others are no equals
LEAST_EQUALS = 5  # carriers with an equal (ours): with fewer, sets under exchange hardly differ


@dataclass(frozen=True, eq=False)
class Equals:
    """The carriers and the features among which their label is exchanged.

    Attributes:
        kind: of control.
        hook_names: hook point of each feature, `[item]`.
        features: its number, `[item]`.
        strata: the features in groups of equals; `strata.marked` are the carriers that have one.
        measure: what makes them equal, `[item]`; None where all are.
    """

    kind: str
    hook_names: NDArray[np.object_]
    features: NDArray[np.int64]
    strata: Strata
    measure: NDArray[np.float64] | None

    def chosen(self, marked: Bools) -> Chosen:
        """A set of items as features by hook point; a hook point without any is listed too."""
        return {
            str(h): sorted(self.features[marked & (self.hook_names == h)].tolist()) for h in np.unique(self.hook_names)
        }

    def smd(self, values: NDArray[np.float64]) -> float:
        """Standardised mean difference between the carriers tested and their equals, in the layer where it is largest.

        Args:
            values: of each item, such as the logarithm of its mass.
        """
        marked, weight = self.strata.marked, np.zeros(len(values))
        for group in self.strata.groups:  # what an equal's place in a set under exchange is worth
            weight[group] = marked[group].sum() / len(group)
        gaps = []
        for h in np.unique(self.hook_names[marked]):
            here = self.hook_names == h
            inside = here & (weight > 0)
            gap = values[marked & here].mean() - np.average(values[inside], weights=weight[inside])
            gaps.append(standardised_difference(values[marked & here], values[inside], gap=gap))
        return max(gaps, key=abs) if gaps else float("nan")


def equals_of(
    profiles: Mapping[str, FeatureProfiles],
    carriers: Mapping[str, Sequence[int]],
    *,
    kind: str,
    among: Mapping[str, Sequence[int]] | None = None,
    block: int = BLOCK,
    caliper: float = CALIPER,
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> Equals:
    """Carriers and alive non-carriers of the same hook points, in groups of equals (D19).

    Args:
        profiles: `{hook_name: FeatureProfiles}` of one checkpoint.
        carriers: `{hook_name: [feature, ...]}` at that checkpoint.
        kind: one of `CONTROLS`: "count" takes all features of a layer as equals; "rate" and "mass", and others with a
            measure, at most `block` neighbours in its logarithm within `caliper`.
        among: the non-carriers to compare with, by hook point; all alive ones by default.
        block: features of a group at most.
        caliper: width of a group at most, in decades.
        min_rate: see `FeatureProfiles.alive`.
        min_count: see `FeatureProfiles.alive`.

    Raises:
        InputError: an unknown kind, or a measure that gives no positive number for each feature.

    How it can mislead: it compares the carriers that have an equal and no others; `strata.unmatched_share` says how
    many have none.
    """
    control = CONTROLS[kind]
    names, features, labels, measures = [], [], [], []
    for h, chosen in carriers.items():
        own = np.unique(np.asarray(chosen, dtype=np.int64))
        alive = np.flatnonzero(profiles[h].alive(min_rate=min_rate, min_count=min_count))
        pool = alive if among is None else np.intersect1d(alive, np.asarray(among.get(h, []), dtype=np.int64))
        items = np.union1d(own, pool)
        names += [h] * len(items)
        features.append(items)
        labels.append(np.isin(items, own))
        if control.measure is not None:
            measures.append(control.of_features(profiles[h])[items])
    hook_names = np.array(names, dtype=object)
    measure = np.concatenate(measures) if measures else None
    value = None if measure is None else np.log10(np.maximum(measure, 1e-30))
    strata = strata_of(np.concatenate(labels), hook_names.astype(str), value, block=block, caliper=caliper)
    return Equals(kind, hook_names, np.concatenate(features), strata, measure)


@dataclass(frozen=True)
class ControlDraw:
    """One set under exchange and the carriers it stands beside: those that have an equal."""

    kind: str
    draw: int
    controls: Chosen
    carriers: Chosen
    unmatched_share: float


def draw_controls(
    profiles: Mapping[str, FeatureProfiles],
    carriers: Mapping[str, Sequence[int]],
    *,
    kind: str,
    n_draws: int = 100,
    seed: int = 0,
    among: Mapping[str, Sequence[int]] | None = None,
    block: int = BLOCK,
    caliper: float = CALIPER,
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> list[ControlDraw]:
    """Sets in which the label "carrier" is exchanged among equals of the same hook points (D19): for measures of one's
    own on sets of features. The arguments and errors are those of `equals_of`.

    How it can mislead: as `equals_of`; and sets under exchange hold carriers too.
    """
    found = equals_of(
        profiles,
        carriers,
        kind=kind,
        among=among,
        block=block,
        caliper=caliper,
        min_rate=min_rate,
        min_count=min_count,
    )
    own, share = found.chosen(found.strata.marked), found.strata.unmatched_share
    sets = found.strata.draws(n_draws, np.random.default_rng(seed))
    return [ControlDraw(kind, i, found.chosen(drawn), own, share) for i, drawn in enumerate(sets)]


def require_carriers(carriers: Mapping[str, Sequence[int]]) -> None:
    """Refuse an empty set: its load is 0 and says nothing."""
    if not any(len(c) for c in carriers.values()):
        raise InputError(
            "The carrier set is empty, so there is nothing to ablate: lower min_snapshots, or use more "
            "or longer-trained checkpoints."
        )


def with_role(graph: nx.DiGraph, role: str) -> Chosen:
    """The features of one role by hook point."""
    chosen: Chosen = {}
    for (name, feature), found in feature_roles(graph).items():
        chosen.setdefault(name, [])
        if found == role:
            chosen[name].append(int(feature))
    return chosen

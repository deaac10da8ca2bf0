"""What carriers recruit: features that can be reached from them in a containment DAG, beside its nulls (D15, C8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import scipy.sparse as sp

from tl_lifehist.errors import InputError
from tl_lifehist.inference.exchange import CALIPER, strata_of
from tl_lifehist.lifehistory.containment import MIN_LIFT, Bools, Floats, Ints, Node
from tl_lifehist.lifehistory.controls import MAX_UNMATCHED
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.nulls import Null

RATE_BLOCK = 5  # neighbours in log rate (ours): the ten nearest of sixty are a wide window


def recruited_fraction(
    graph: nx.DiGraph,
    carriers: Mapping[str, Sequence[int]],
    *,
    direct: bool = False,
    count_carriers: bool = False,
) -> float:
    """Share of the alive non-carriers that can be reached from at least one carrier (D15); NaN when there are none.

    Args:
        graph: from `containment_dag`.
        carriers: `{hook_name: [feature, ...]}`, as `Carriers.at(step)` gives them; those that are no nodes are ignored.
        direct: children of carriers only.
        count_carriers: share of all alive features that are carriers or reached.

    How it can mislead: any set of broad features reaches much of the graph. Read it beside `recruitment_null`.

    Raises:
        InputError: there is no carrier at all.
    """
    nodes = list(graph)
    seeds = _seeds(nodes, carriers)
    reached = _reached(_children(*_edges(graph, nodes), len(nodes)), seeds, direct)
    return float(_fraction(seeds, reached, count_carriers)[0])


def can_be_parents(
    profiles: Mapping[str, FeatureProfiles],
    carriers: Mapping[str, Sequence[int]],
    min_lift: float = MIN_LIFT,
    *,
    min_rate: float = MIN_RATE,
    min_firings: int = MIN_COUNT,
) -> int:
    """How many carriers can have an edge at all: alive, and firing on at most 1/`min_lift` of the rows (D12)."""
    total = 0
    for hook_name, features in carriers.items():
        if hook_name in profiles and len(features):
            profile, chosen = profiles[hook_name], np.asarray(features, dtype=np.int64)
            alive = profile.alive(min_rate=min_rate, min_count=min_firings)[chosen]
            total += int((alive & (profile.count[chosen] * min_lift <= profile.n_rows * (1 + 1e-12))).sum())
    return total


@dataclass(frozen=True, eq=False)
class RecruitmentNull:
    """The recruited fraction beside two nulls (C8).

    Attributes:
        observed: recruited fraction of the carriers.
        draws: recruited fraction of random sets of nodes with as many features in each layer and the same rates.
        p: two-sided, how often the draws lie as far out; NaN when `unmatched_share` is above `max_unmatched`.
        rewired: recruited fraction of the carriers in graphs rewired with every in- and out-degree kept, for each pair
            of layers. They show what the carriers' numbers of children alone would reach.
        rewired_p: one-sided, how often `rewired` is as large.
        unmatched_share: carriers without an equal, which stand in every draw.

    How it can mislead: the sets under exchange hold carriers too, so where carriers have few equals they hardly differ
    from the carriers and the test is weak.
    """

    observed: float
    draws: Floats
    p: float
    rewired: Floats
    rewired_p: float
    unmatched_share: float

    @property
    def mean(self) -> float:
        """Mean of `draws`."""
        return self._sets.mean

    @property
    def low(self) -> float:
        """Lower end of the central 95 % of `draws`."""
        return self._sets.low

    @property
    def high(self) -> float:
        """Upper end of the central 95 % of `draws`."""
        return self._sets.high

    @property
    def rewired_mean(self) -> float:
        """Mean of `rewired`."""
        return self._graphs.mean

    @property
    def rewired_interval(self) -> tuple[float, float]:
        """The central 95 % of `rewired`."""
        return self._graphs.low, self._graphs.high

    @property
    def _sets(self) -> Null:
        return Null(self.observed, self.draws)

    @property
    def _graphs(self) -> Null:
        return Null(self.observed, self.rewired)


def recruitment_null(
    graph: nx.DiGraph,
    carriers: Mapping[str, Sequence[int]],
    *,
    n_draws: int = 100,
    n_rewired: int = 20,
    direct: bool = False,
    block: int = RATE_BLOCK,
    caliper: float = CALIPER,
    max_unmatched: float = MAX_UNMATCHED,
    burn_in: int = 20,
    thinning: int = 5,
    seed: int = 0,
) -> RecruitmentNull:
    """Compare what the carriers recruit with random sets of like nodes and with rewired graphs (C8).

    In a draw the label "carrier" is exchanged among nodes of a layer in blocks of neighbouring log rate. Rewiring
    swaps the targets of two edges between the same
    two layers when both new edges are new and respect the graph's order, so a rewired graph stays acyclic.

    Args:
        n_draws: random sets.
        n_rewired: rewired graphs.
        direct: count children only, as in `recruited_fraction`.
        block: nodes of like rate among which the label is exchanged (ours).
        caliper: how far they may lie apart, in decades of firing rate (ours).
        max_unmatched: share of carriers without an equal, above which there is no `p`.
        burn_in: rounds of swaps before the first rewired graph, each trying every edge once (ours).
        thinning: rounds between one rewired graph and the next (ours).

    Raises:
        InputError: no carrier at all, or none of them a node of the graph.
    """
    nodes = list(graph)
    seeds = _seeds(nodes, carriers)
    if not seeds.any():
        raise InputError("No carrier is a node of the graph: build the graph at a checkpoint where carriers are alive.")
    generator = np.random.default_rng(seed)
    layer = np.unique([node[0] for node in nodes], return_inverse=True)[1] if nodes else np.zeros(0, dtype=np.int64)
    log_rate = np.log10([graph.nodes[node]["firing_rate"] for node in nodes])
    source, target = _edges(graph, nodes)
    children = _children(source, target, len(nodes))
    observed = float(_fraction(seeds, _reached(children, seeds, direct))[0])

    strata = strata_of(seeds[:, 0], layer, log_rate, block=block, caliper=caliper)
    alone = seeds[:, 0] & ~strata.inside
    sets = (strata.draws(n_draws, generator) | alone).T
    draws = _fraction(sets, _reached(children, sets, direct))

    rewired = np.zeros(n_rewired)
    chain = _rewirings(graph, nodes, source, target, n_rewired, generator, burn_in=burn_in, thinning=thinning)
    for draw, (a, b) in enumerate(chain):
        rewired[draw] = _fraction(seeds, _reached(_children(a, b, len(nodes)), seeds, direct))[0]
    share = strata.unmatched_share
    return RecruitmentNull(
        observed=observed,
        draws=draws,
        p=Null(observed, draws, rounding=1e-12).p_two_sided if share <= max_unmatched else float("nan"),
        rewired=rewired,
        rewired_p=Null(observed, rewired).p,
        unmatched_share=share,
    )


def _seeds(nodes: Sequence[Node], carriers: Mapping[str, Sequence[int]]) -> Bools:
    """Which nodes are carriers, `[node, 1]`."""
    named = {(hook_name, int(f)) for hook_name, features in carriers.items() for f in features}
    if not named:
        raise InputError("There are no carriers, so nothing can be recruited: lower min_snapshots or add checkpoints.")
    return np.array([node in named for node in nodes], dtype=bool).reshape(-1, 1)


def _edges(graph: nx.DiGraph, nodes: Sequence[Node]) -> tuple[Ints, Ints]:
    place = {node: i for i, node in enumerate(nodes)}
    pairs = np.array([(place[a], place[b]) for a, b in graph.edges], dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _children(source: Ints, target: Ints, n: int) -> sp.csr_array:
    """`[child, parent]`, so that a product with a set of nodes gives the set's children."""
    return sp.csr_array((np.ones(len(source), dtype=np.float32), (target, source)), shape=(n, n))


def _reached(children: sp.csr_array, sets: Bools, direct: bool) -> Bools:
    """The nodes that each column of `sets` reaches along edges; a starting node only where another one reaches it."""
    reached = np.zeros_like(sets)
    frontier = sets
    while frontier.any():
        frontier = ((children @ frontier.astype(np.float32)) > 0) & ~reached
        reached |= frontier
        if direct:
            break
    return reached


def _fraction(sets: Bools, reached: Bools, count_carriers: bool = False) -> Floats:
    with np.errstate(invalid="ignore"):
        if count_carriers:
            return (sets | reached).sum(axis=0) / np.float64(len(sets))
        return (reached & ~sets).sum(axis=0) / (~sets).sum(axis=0)


def _rewirings(
    graph: nx.DiGraph,
    nodes: Sequence[Node],
    source: Ints,
    target: Ints,
    n_graphs: int,
    generator: np.random.Generator,
    *,
    burn_in: int = 20,
    thinning: int = 5,
) -> Iterator[tuple[Ints, Ints]]:
    """Edges of graphs with the degrees of this one, from one chain of random swaps. A round tries every edge once."""
    depth_of = {name: i for i, name in enumerate(dict.fromkeys(node[0] for node in nodes))}
    depth = np.array([depth_of[node[0]] for node in nodes])
    count = np.array([graph.nodes[node]["count"] for node in nodes])
    size = -count if graph.graph["orientation"] == "container" else np.zeros_like(count)
    rank = np.empty(len(nodes), dtype=np.int64)
    rank[np.lexsort((depth, size))] = np.arange(len(nodes))  # every edge goes from a lower rank to a higher one
    group = depth[source] * len(depth_of) + depth[target]
    target = target.copy()
    # Invariant: a swap within one pair of layers leaves every node's edges to and from each layer as many as they were,
    # and only new edges that go up in rank are let in, so the graph stays simple and acyclic.
    for number in range(n_graphs):
        for turn in range(thinning if number else burn_in):
            order = np.lexsort((generator.random(len(source)), group))[turn % 2 :]
            one, two = order[: len(order) // 2 * 2 : 2], order[1::2]
            together = group[one] == group[two]
            one, two = one[together], two[together]
            new = np.stack([source[one] * len(nodes) + target[two], source[two] * len(nodes) + target[one]])
            ordered = (rank[source[one]] < rank[target[two]]) & (rank[source[two]] < rank[target[one]])
            _, inverse, repeats = np.unique(new.ravel(), return_inverse=True, return_counts=True)
            fresh = (repeats[inverse] == 1) & ~np.isin(new.ravel(), source * len(nodes) + target)
            swap = ordered & fresh.reshape(new.shape).all(axis=0)
            one, two = one[swap], two[swap]
            target[one], target[two] = target[two], target[one]
        yield source, target.copy()

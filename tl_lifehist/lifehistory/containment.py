"""Which features fire inside others across layers: the containment DAG and its roles (D12 to D14)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import networkx as nx
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.stats import hypergeom

from tl_lifehist.errors import InputError, one_of
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles

MIN_CONTAINMENT = 0.8
MIN_LIFT = 2.0
MAX_P = 1e-6
_CELLS = 1 << 19  # overlaps counted at a time: 4 MB, so that the counters stay in the cache
_FIRINGS = 1 << 16  # firings looked up at a time

Node = tuple[str, int]
Ints = NDArray[np.integer]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def containment_dag(
    profiles: Mapping[str, FeatureProfiles],
    *,
    min_containment: float = MIN_CONTAINMENT,
    min_firings: int = MIN_COUNT,
    min_lift: float = MIN_LIFT,
    max_p: float = MAX_P,
    min_rate: float = MIN_RATE,
    orientation: str = "container",
) -> nx.DiGraph:
    """The graph of containment between features of different layers at one checkpoint (D12, D13).

    Nodes `(hook_name, feature)` are the alive features, with `count` and `firing_rate`. An edge has
    `containment` = |T_i ∩ T_j| / |T_i| for the contained i, `lift` = containment / (|T_j| / N) and `overlap` =
    |T_i ∩ T_j|. The graph has `orientation`, `n_rows` and `n_pairs`. All are plain values, so `nx.write_graphml`
    works.

    Args:
        profiles: `{hook_name: FeatureProfiles}` of one checkpoint, in depth order.
        min_containment: least containment of an edge (ours).
        min_firings: least firings of a node (ours).
        min_lift: least lift (ours). Without it a feature that fires everywhere contains everything.
        max_p: largest hypergeometric tail P(overlap or more) times `n_pairs` (Bonferroni; ours). `n_pairs` counts each
            pair of alive features of different layers once: which of the two is tested for being inside the other
            follows from their sizes or their depth, before the overlap is seen, and the tail is the same either way.
        min_rate: least firing rate of a node.
        orientation: "container" tests the smaller firing set against the larger, whichever is deeper, and the larger
            is the parent (at equal size the lower layer). "depth" tests the lower layer's feature against the higher
            layer's, and the lower, contained one is the parent. Either order is total, so both graphs are acyclic.

    How it can mislead: with a lift of L no feature that fires on more than 1/L of the tokens has an edge, and carriers
    are broad: print `can_be_parents`. The p-value takes tokens as independent, which within a document they are not,
    and containment is co-firing, not cause.

    Raises:
        InputError: no profiles, profiles of several checkpoints or over different rows, or a threshold out of range.
    """
    n_rows = _require_one_checkpoint(profiles)
    if not 0 < min_containment <= 1 or min_lift <= 0 or max_p <= 0:
        raise InputError("min_containment must lie above 0 and up to 1, min_lift and max_p above 0.")
    one_of("orientation", orientation, ("container", "depth"))
    alive = {h: np.flatnonzero(p.alive(min_rate=min_rate, min_count=min_firings)) for h, p in profiles.items()}
    sizes = [len(features) for features in alive.values()]
    n_pairs = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    graph = nx.DiGraph(orientation=orientation, n_rows=n_rows, n_pairs=n_pairs)
    for hook_name, features in alive.items():
        counts = profiles[hook_name].count[features].tolist()
        graph.add_nodes_from(
            ((hook_name, f), {"count": c, "firing_rate": c / n_rows})
            for f, c in zip(features.tolist(), counts, strict=True)
        )
    for low, high, i, j, overlap in _overlap_blocks(profiles, alive, min_lift):
        count_low, count_high = profiles[low].count[i], profiles[high].count[j]
        contained = np.minimum.outer(count_low, count_high) if orientation == "container" else count_low[:, None]
        # Thin the block at a hair below the threshold, and apply it exactly to the few pairs that are left
        row, column = np.nonzero(overlap >= (min_containment * (1 - 1e-12)) * contained)
        i, j, k, a, b = i[row], j[column], overlap[row, column], count_low[row], count_high[column]
        contained = np.minimum(a, b) if orientation == "container" else a
        containment, lift = k / contained, k * n_rows / (a * b)
        keep = np.flatnonzero((containment >= min_containment) & (lift >= min_lift))
        p = hypergeom.sf(k[keep] - 1, n_rows, a[keep], b[keep])
        keep = keep[p * n_pairs < max_p]
        downward = (b > a) if orientation == "container" else np.zeros(len(a), dtype=bool)
        columns = (x[keep].tolist() for x in (i, j, containment, lift, k, downward))
        for f, g, c, ratio, shared, flip in zip(*columns, strict=True):
            parent, child = ((high, g), (low, f)) if flip else ((low, f), (high, g))
            graph.add_edge(parent, child, containment=c, lift=ratio, overlap=shared)
    return graph


def containment_index(
    profiles: Mapping[str, FeatureProfiles],
    *,
    min_lift: float = MIN_LIFT,
    min_rate: float = MIN_RATE,
    min_firings: int = MIN_COUNT,
    alive: Mapping[str, Ints] | None = None,
) -> dict[str, Floats]:
    """One containment score for each feature, `{hook_name: [feature]}`, as the forecast uses it (ours, D21).

    For feature f the largest |T_f ∩ T_g| / min(|T_f|, |T_g|) over alive g of the other layers with a lift of at least
    `min_lift`; 0 where no g qualifies, NaN where f is not alive.

    Args:
        alive: alive features by hook point, instead of those that `min_rate` and `min_firings` choose.

    How it can mislead: the largest of thousands of overlaps is above 0 by chance too, most of all for rare features.

    Raises:
        InputError: no profiles, profiles of several checkpoints or over different rows.
    """
    n_rows = _require_one_checkpoint(profiles)
    if alive is None:
        alive = {h: np.flatnonzero(p.alive(min_rate=min_rate, min_count=min_firings)) for h, p in profiles.items()}
    index = {h: np.full(p.n_features, np.nan) for h, p in profiles.items()}
    for hook_name, features in alive.items():
        index[hook_name][features] = 0.0
    for low, high, i, j, overlap in _overlap_blocks(profiles, alive, min_lift):
        a, b = profiles[low].count[i], profiles[high].count[j]
        score = overlap / np.minimum.outer(a, b)
        score[overlap * n_rows < min_lift * np.multiply.outer(a, b)] = 0
        index[low][i] = np.maximum(index[low][i], score.max(axis=1))
        index[high][j] = np.maximum(index[high][j], score.max(axis=0))
    return index


def _require_one_checkpoint(profiles: Mapping[str, FeatureProfiles]) -> int:
    if not profiles:
        raise InputError("There are no profiles: give {hook_name: FeatureProfiles} of one checkpoint.")
    if len(rows := {p.n_rows for p in profiles.values()}) > 1:
        raise InputError(f"The profiles cover {sorted(rows)} rows: compute all of them on the same tokens.")
    if len(steps := {p.step for p in profiles.values()}) > 1:
        raise InputError(f"The profiles are of steps {sorted(steps)}: containment is defined within one checkpoint.")
    return rows.pop()


def _overlap_blocks(
    profiles: Mapping[str, FeatureProfiles], alive: Mapping[str, Ints], min_lift: float
) -> Iterator[tuple[str, str, Ints, Ints, Ints]]:
    """Lower hook point, higher one, features i and j, and |T_i ∩ T_j| as exact integers `[i, j]`, a block at a time.

    The lift N |T_i ∩ T_j| / (|T_i| |T_j|) is at most N / max(|T_i|, |T_j|), so denser features are left out at once.
    Counting goes over firings: for each firing of i the features of the other layer at that row. Through `np.bincount`
    into a block of counters this is three times faster than scipy's sparse product, which also has to build its result.
    """
    names = list(profiles)
    for place, low in enumerate(names):
        for high in names[place + 1 :]:
            sets = []
            for name in (low, high):
                features = np.asarray(alive[name])
                fits = profiles[name].count[features] * min_lift <= profiles[name].n_rows * (1 + 1e-12)
                sets.append(features[fits])
            i, j = sets
            if not len(i) or not len(j):
                continue
            left = sp.csc_array(profiles[low].acts[:, i])
            right = sp.csr_array(profiles[high].acts[:, j])
            right.data = np.ones(right.nnz, dtype=np.int8)  # only where they fire is read
            size = max(1, _CELLS // len(j))
            for start in range(0, len(i), size):
                stop = min(start + size, len(i))
                yield low, high, i[start:stop], j, _count_together(left, right, start, stop)


def _count_together(left: sp.csc_array, right: sp.csr_array, start: int, stop: int) -> Ints:
    width = right.shape[1]
    counts = np.zeros((stop - start) * width, dtype=np.int64)
    first, last = int(left.indptr[start]), int(left.indptr[stop])
    cell = np.repeat(np.arange(stop - start) * width, np.diff(left.indptr[start : stop + 1]))
    for at in range(first, last, _FIRINGS):
        rows = left.indices[at : min(at + _FIRINGS, last)]
        others = right[rows]
        keys = np.repeat(cell[at - first : at - first + len(rows)], np.diff(others.indptr))
        keys += others.indices
        counts += np.bincount(keys, minlength=len(counts))
    return counts.reshape(stop - start, width)


def feature_roles(graph: nx.DiGraph) -> dict[Node, str]:
    """Each node's role (D14): "root" has children only, "leaf" parents only, "mid" both, "isolated" neither.

    How it can mislead: roles depend on the orientation and on every threshold of the graph.
    """
    names = {(False, True): "root", (True, True): "mid", (True, False): "leaf", (False, False): "isolated"}
    return {node: names[graph.in_degree(node) > 0, graph.out_degree(node) > 0] for node in graph}

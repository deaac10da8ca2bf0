from __future__ import annotations

from fractions import Fraction
from math import comb

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory import containment, recruitment
from tl_lifehist.lifehistory.containment import containment_dag, containment_index, feature_roles
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.lifehistory.recruitment import can_be_parents, recruited_fraction, recruitment_null

N = 1000
ORIENTATIONS = ["container", "depth"]


def layers(*sets: list[range], n: int = N, step: int = 7) -> dict[str, FeatureProfiles]:
    """One profile per layer, feature f firing on the rows `sets[layer][f]`."""
    profiles = {}
    for number, firing in enumerate(sets):
        acts = np.zeros((n, len(firing)))
        for f, rows in enumerate(firing):
            acts[list(rows), f] = 1.5
        profiles[f"h{number}"] = FeatureProfiles(step, f"h{number}", acts)
    return profiles


def random_layers(seed: int, n: int = 300, width: int = 9, depth: int = 3) -> dict[str, FeatureProfiles]:
    """Firing sets of all sizes; many are noisy subsets of sets in other layers, some are of equal size."""
    rng = np.random.default_rng(seed)
    fires = rng.random((depth * width, n)) < rng.choice([0.02, 0.1, 0.3, 0.9], depth * width)[:, None]
    for f in rng.permutation(depth * width)[: depth * width // 2]:
        fires[f] = fires[rng.integers(depth * width)] & (rng.random(n) < rng.choice([0.4, 0.9, 1.0]))
    blocks = fires.reshape(depth, width, n)
    return {f"h{i}": FeatureProfiles(0, f"h{i}", sp.csr_array(block.T.astype(float))) for i, block in enumerate(blocks)}


def brute_force(profiles, *, c, lift, max_p, min_firings, orientation):
    """Every pair of features of two layers, densely and one at a time."""
    fires = {h: p.acts.toarray() > 0 for h, p in profiles.items()}
    n = next(iter(fires.values())).shape[0]
    nodes = [(h, f) for h in fires for f in range(fires[h].shape[1]) if fires[h][:, f].sum() >= min_firings]
    depth = {h: i for i, h in enumerate(fires)}
    pairs = [(a, b) for a in nodes for b in nodes if depth[a[0]] < depth[b[0]]]
    edges = {}
    for a, b in pairs:
        size_a, size_b = int(fires[a[0]][:, a[1]].sum()), int(fires[b[0]][:, b[1]].sum())
        both = int((fires[a[0]][:, a[1]] & fires[b[0]][:, b[1]]).sum())
        inside, outside = (size_a, size_b) if orientation == "depth" or size_a <= size_b else (size_b, size_a)
        ci = both / inside
        p = hypergeom.sf(both - 1, n, size_a, size_b) * len(pairs)
        if ci >= c and both * n / (size_a * size_b) >= lift and p < max_p:
            parent, child = (b, a) if orientation == "container" and size_b > size_a else (a, b)
            edges[parent, child] = (ci, ci / (outside / n), both)
    return nodes, edges, len(pairs)


@given(
    st.integers(0, 10_000),
    st.sampled_from([0.5, 0.7, 0.8, 0.9, 1.0]),
    st.sampled_from([0.5, 1.0, 2.0, 5.0]),
    st.sampled_from([1e-6, 1e-2, 1e9]),
    st.sampled_from(ORIENTATIONS),
)
def test_the_graph_is_that_of_a_dense_computation(seed, c, lift, max_p, orientation):
    profiles = random_layers(seed)
    graph = containment_dag(
        profiles, min_containment=c, min_lift=lift, max_p=max_p, min_firings=5, min_rate=0.0, orientation=orientation
    )
    nodes, edges, n_pairs = brute_force(profiles, c=c, lift=lift, max_p=max_p, min_firings=5, orientation=orientation)
    assert list(graph) == nodes
    assert graph.graph == {"orientation": orientation, "n_rows": 300, "n_pairs": n_pairs}
    assert set(graph.edges) == set(edges)
    for a, b, data in graph.edges(data=True):
        assert (data["containment"], data["lift"], data["overlap"]) == pytest.approx(edges[a, b])


@given(st.integers(0, 10_000), st.sampled_from(ORIENTATIONS))
def test_the_graph_has_no_cycle_and_no_edge_within_a_layer(seed, orientation):
    graph = containment_dag(
        random_layers(seed, depth=4), min_containment=0.3, min_lift=0.1, max_p=1e9, min_firings=1, min_rate=0.0,
        orientation=orientation,
    )  # fmt: skip
    assert nx.is_directed_acyclic_graph(graph)
    assert all(a[0] != b[0] for a, b in graph.edges)


def test_nested_sets_have_containment_one_and_the_larger_is_the_parent_whichever_is_deeper():
    profiles = layers([range(100), range(500, 560)], [range(20, 80), range(450, 650)])
    graph = containment_dag(profiles)
    assert set(graph.edges) == {(("h0", 0), ("h1", 0)), (("h1", 1), ("h0", 1))}
    assert graph.edges[("h0", 0), ("h1", 0)] == {"containment": 1.0, "lift": 10.0, "overlap": 60}
    assert graph.nodes["h1", 1] == {"count": 200, "firing_rate": 0.2}


def test_by_depth_only_the_lower_feature_may_be_the_contained_one_and_it_is_the_parent():
    graph = containment_dag(
        layers([range(100), range(500, 560)], [range(20, 80), range(450, 650)]), orientation="depth"
    )
    assert set(graph.edges) == {(("h0", 1), ("h1", 1))}
    assert graph.edges[("h0", 1), ("h1", 1)]["lift"] == pytest.approx(5)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_at_equal_size_the_lower_layer_is_the_parent(orientation):
    graph = containment_dag(layers([range(100)], [range(100)], [range(5, 105)]), orientation=orientation)
    assert set(graph.edges) == {(("h0", 0), ("h1", 0)), (("h0", 0), ("h2", 0)), (("h1", 0), ("h2", 0))}


def test_disjoint_sets_have_no_edge_and_index_zero():
    profiles = layers([range(100)], [range(100, 200)])
    assert containment_dag(profiles, min_containment=1e-9, min_lift=1e-9, max_p=1e9).number_of_edges() == 0
    assert containment_index(profiles)["h0"].tolist() == [0.0]


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_dense_container_without_lift_has_no_edge(orientation):
    profiles = layers([range(100)], [range(900)])
    assert containment_dag(profiles, orientation=orientation).number_of_edges() == 0
    assert containment_dag(profiles, min_lift=1.1, max_p=1.0, orientation=orientation).number_of_edges() == 1
    assert containment_index(profiles)["h0"].tolist() == [0.0]


def test_the_p_value_is_the_exact_hypergeometric_tail_times_the_number_of_pairs():
    profiles = layers([range(60), range(200, 300)], [range(12, 112)])  # overlap 48 of 60, two pairs
    ways = sum(comb(100, k) * comb(N - 100, 60 - k) for k in range(48, 61))
    exact = float(2 * Fraction(ways, comb(N, 60)))
    assert containment_dag(profiles, max_p=exact * 1.001).number_of_edges() == 1
    assert containment_dag(profiles, max_p=exact * 0.999).number_of_edges() == 0


def test_features_that_are_not_alive_are_no_nodes():
    profiles = layers([range(49), range(50), range(0)], [range(300)])
    assert list(containment_dag(profiles)) == [("h0", 1), ("h1", 0)]
    assert list(containment_dag(profiles, min_rate=0.1)) == [("h1", 0)]
    assert list(containment_dag(profiles, min_firings=1)) == [("h0", 0), ("h0", 1), ("h1", 0)]
    assert np.isnan(containment_index(profiles)["h0"]).tolist() == [True, False, True]
    assert containment_index(profiles, alive={"h0": np.array([0]), "h1": np.array([0])})["h0"][0] == 1


def test_counting_in_small_pieces_changes_nothing(monkeypatch):
    profiles = random_layers(3)
    whole = containment_dag(profiles, min_firings=5, min_rate=0.0, min_lift=1.0)
    assert whole.number_of_edges() > 3
    monkeypatch.setattr(containment, "_CELLS", 20)
    monkeypatch.setattr(containment, "_FIRINGS", 7)
    pieces = containment_dag(profiles, min_firings=5, min_rate=0.0, min_lift=1.0)
    assert nx.utils.graphs_equal(whole, pieces)


def test_a_single_layer_gives_nodes_without_edges():
    graph = containment_dag(layers([range(100), range(60)]))
    assert (len(graph), graph.number_of_edges(), graph.graph["n_pairs"]) == (2, 0, 0)


def test_the_graph_can_be_written_as_graphml(tmp_path):
    graph = containment_dag(layers([range(100)], [range(20, 80)]))
    nx.write_graphml(graph, tmp_path / "graph.graphml")
    back = nx.read_graphml(tmp_path / "graph.graphml")
    assert back.edges[str(("h0", 0)), str(("h1", 0))] == {"containment": 1.0, "lift": 10.0, "overlap": 60}
    assert back.graph["orientation"] == "container"


@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.5, 2.0]))
def test_the_containment_index_is_that_of_a_dense_computation(seed, lift):
    profiles = random_layers(seed)
    index = containment_index(profiles, min_lift=lift, min_firings=5, min_rate=0.0)
    fires = {h: p.acts.toarray() > 0 for h, p in profiles.items()}
    for h, own in fires.items():
        for f in range(own.shape[1]):
            size = own[:, f].sum()
            if size < 5:
                assert np.isnan(index[h][f])
                continue
            scores = [0.0]
            for other in (o for name, o in fires.items() if name != h):
                for g in other.T:
                    both, least = int((own[:, f] & g).sum()), min(size, g.sum())
                    if g.sum() >= 5 and both * 300 >= lift * size * g.sum():
                        scores.append(both / least)
            assert index[h][f] == pytest.approx(max(scores))


def hand_made() -> nx.DiGraph:
    """a0 -> b0 -> c0, a0 -> c1, a1 -> c1, and b1, c2 alone."""
    graph = nx.DiGraph(orientation="depth", n_rows=N, n_pairs=0)
    for node in [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1), ("c", 2)]:
        graph.add_node(node, count=100, firing_rate=0.1)
    graph.add_edges_from([(("a", 0), ("b", 0)), (("b", 0), ("c", 0)), (("a", 0), ("c", 1)), (("a", 1), ("c", 1))])
    return graph


def test_roles():
    roles = feature_roles(hand_made())
    assert [roles[n] for n in hand_made()] == ["root", "root", "mid", "isolated", "leaf", "leaf", "isolated"]


def test_recruited_fraction_by_hand():
    graph = hand_made()
    assert recruited_fraction(graph, {"a": [0]}) == 3 / 6
    assert recruited_fraction(graph, {"a": [0]}, direct=True) == 2 / 6
    assert recruited_fraction(graph, {"a": [0]}, count_carriers=True) == 4 / 7
    # a carrier that another carrier reaches is not recruited; one that is no node is ignored
    assert recruited_fraction(graph, {"a": [0], "b": [0, 99], "z": [1]}) == 2 / 5
    assert recruited_fraction(graph, {"a": [], "c": [2]}) == 0
    assert recruited_fraction(graph, {"z": [1]}) == 0


def test_recruited_fraction_is_nan_when_every_alive_feature_is_a_carrier():
    carriers = {"a": [0, 1], "b": [0, 1], "c": [0, 1, 2]}
    assert np.isnan(recruited_fraction(hand_made(), carriers))
    assert recruited_fraction(hand_made(), carriers, count_carriers=True) == 1
    assert np.isnan(recruited_fraction(nx.DiGraph(), {"a": [0]}))
    assert np.isnan(recruitment_null(hand_made(), carriers, n_draws=3, n_rewired=2).p)


@given(st.integers(0, 10_000))
def test_recruited_fraction_is_that_of_networkx_descendants(seed):
    graph = containment_dag(random_layers(seed), min_firings=5, min_rate=0.0, min_lift=1.0, max_p=1.0)
    rng = np.random.default_rng(seed)
    nodes = list(graph)
    chosen = {nodes[i] for i in rng.permutation(len(nodes))[:4]}
    below = set().union(*(nx.descendants(graph, node) for node in chosen)) - chosen
    carriers = {h: [f for name, f in chosen if name == h] for h in ("h0", "h1", "h2")}
    assert recruited_fraction(graph, carriers) == pytest.approx(len(below) / (len(nodes) - len(chosen)))


def test_can_be_parents_counts_alive_carriers_that_are_rare_enough():
    profiles = layers([range(500), range(501), range(60), range(10)], [range(900)])
    carriers = {"h0": [0, 1, 2, 3], "h1": [0], "unknown": [5]}
    assert can_be_parents(profiles, carriers, 2.0) == 2
    assert can_be_parents(profiles, carriers, 1.0) == 4
    assert can_be_parents(profiles, {"h0": []}, 1.0) == 0


def broad_carriers(seed: int = 0) -> tuple[nx.DiGraph, dict[str, list[int]]]:
    """Two layers: 40 broad sets per layer, of which 10 carriers hold 3 small sets of the other layer each."""
    rng = np.random.default_rng(seed)
    n, profiles = 4000, {}
    broad = rng.random((2, n, 40)) < rng.uniform(0.05, 0.06, 40)
    small = np.stack([broad[1 - h][:, np.repeat(np.arange(10), 3)] & (rng.random((n, 30)) < 0.4) for h in range(2)])
    for h in range(2):
        acts = np.concatenate([broad[h], small[h]], axis=1).astype(float)
        profiles[f"h{h}"] = FeatureProfiles(0, f"h{h}", acts)
    return containment_dag(profiles, min_firings=20), {"h0": list(range(10)), "h1": list(range(10))}


def test_carriers_that_recruit_are_beyond_random_sets_of_like_rate():
    graph, carriers = broad_carriers()
    null = recruitment_null(graph, carriers, n_draws=60, n_rewired=5)
    assert null.observed == recruited_fraction(graph, carriers) == pytest.approx(0.5, abs=0.02)
    assert null.unmatched_share == 0
    assert null.p == pytest.approx(2 / 61)  # two-sided
    assert null.low <= null.mean <= null.high < null.observed
    # rewiring keeps the number of children, and here nothing lies deeper, so it changes nothing
    assert null.rewired_mean == pytest.approx(null.observed, abs=0.02)


def test_random_sets_are_within_their_own_null():
    graph, _ = broad_carriers()
    values = [
        recruitment_null(graph, {"h0": [3, 12, 25], "h1": [4, 33, 17]}, n_draws=40, n_rewired=0, seed=s) for s in (0, 1)
    ]
    assert all(v.p > 0.05 for v in values)
    assert np.isnan(values[0].rewired_mean)


def test_carriers_without_equals_get_no_p():
    profiles = layers([range(400), range(450), *(range(50 + i) for i in range(20))], [range(300, 400)])
    null = recruitment_null(containment_dag(profiles), {"h0": [0, 1]}, n_draws=20, n_rewired=2)
    assert null.unmatched_share == 1
    assert np.isnan(null.p)
    assert len(null.draws) == 20


@given(st.integers(0, 1000), st.sampled_from(ORIENTATIONS))
def test_rewired_graphs_keep_degrees_between_layers_and_stay_acyclic(seed, orientation):
    graph = containment_dag(
        random_layers(seed, depth=4), min_containment=0.4, min_lift=0.8, max_p=1e9, min_firings=3, min_rate=0.0,
        orientation=orientation,
    )  # fmt: skip
    nodes = list(graph)
    source, target = recruitment._edges(graph, nodes)

    def degrees(a, b):
        pairs = [(nodes[i], nodes[j]) for i, j in zip(a, b, strict=True)]
        return sorted((x, y[0]) for x, y in pairs), sorted((x[0], y) for x, y in pairs)

    for a, b in recruitment._rewirings(graph, nodes, source, target, 2, np.random.default_rng(seed)):
        assert degrees(a, b) == degrees(source, target)
        rewired = nx.DiGraph(zip(a.tolist(), b.tolist(), strict=True))
        assert rewired.number_of_edges() == len(source)
        assert nx.is_directed_acyclic_graph(rewired)


def test_rewiring_moves_edges():
    graph, _ = broad_carriers()
    nodes = list(graph)
    source, target = recruitment._edges(graph, nodes)
    (_, moved), *_ = recruitment._rewirings(graph, nodes, source, target, 1, np.random.default_rng(0))
    assert (moved != target).mean() > 0.5


def test_the_null_repeats_with_its_seed_and_leaves_the_global_generator_alone():
    graph, carriers = broad_carriers()
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    a, b, c = (recruitment_null(graph, carriers, n_draws=10, n_rewired=2, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.draws, b.draws)
    np.testing.assert_array_equal(a.rewired, b.rewired)
    assert not np.array_equal(a.draws, c.draws)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_bad_input_is_refused_in_a_sentence():
    good = layers([range(100)], [range(60)])
    with pytest.raises(InputError, match="no profiles"):
        containment_dag({})
    with pytest.raises(InputError, match="same tokens"):
        containment_dag({**good, "h2": FeatureProfiles(7, "h2", np.ones((5, 1)))})
    with pytest.raises(InputError, match="one checkpoint"):
        containment_index({**good, "h2": FeatureProfiles(8, "h2", np.ones((N, 1)))})
    with pytest.raises(InputError, match="min_containment"):
        containment_dag(good, min_containment=0.0)
    with pytest.raises(InputError, match="min_lift"):
        containment_dag(good, min_lift=0.0)
    with pytest.raises(InputError, match='"container" or "depth"'):
        containment_dag(good, orientation="sideways")
    with pytest.raises(InputError, match="no carriers"):
        recruited_fraction(containment_dag(good), {"h0": []})
    with pytest.raises(InputError, match="node of the graph"):
        recruitment_null(containment_dag(good), {"h0": [77]})

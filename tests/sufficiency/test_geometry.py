from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sufficiency.toys import AttentionToy, axis_dictionary, causal_tokens, padded, random_dictionary, sign_toy

import tl_lifehist as lh
from tl_lifehist.errors import InputError
from tl_lifehist.sufficiency.fisher import fixed_head_fisher, measure_gate_fisher
from tl_lifehist.sufficiency.geometry import gini, gini_null, participation_ratio, permuted_labels, sender_receiver
from tl_lifehist.sufficiency.sensitivity import gate_scores


def attention_case():
    model = AttentionToy()
    tokens = causal_tokens(torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(0)))
    return model, tokens, random_dictionary(lh.collect_activations(model, "hook_mid", tokens), 3)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12), st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_the_participation_ratio_counts_the_directions_of_a_spectrum(values: list[float], seed: int, scale: float):
    spectrum = torch.tensor(values, dtype=torch.float64)
    n = len(values)
    turn = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[0]
    matrix = turn @ torch.diag(spectrum) @ turn.T
    expected = float(spectrum.sum() ** 2 / (spectrum**2).sum())
    assert participation_ratio(matrix) == pytest.approx(expected, rel=1e-9)
    assert participation_ratio(matrix * scale) == pytest.approx(expected, rel=1e-9)
    assert 1 - 1e-9 <= expected <= n + 1e-9


def test_participation_of_known_matrices():
    assert participation_ratio(torch.eye(7)) == pytest.approx(7)
    assert participation_ratio(torch.ones(7, 7)) == pytest.approx(1)
    assert math.isnan(participation_ratio(torch.zeros(3, 3)))
    with pytest.raises(InputError, match="not symmetric"):
        participation_ratio(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))


def test_gini_of_known_values():
    assert gini(torch.full((5,), 3.0)) == pytest.approx(0)
    assert gini(torch.tensor([0.0, 0.0, 0.0, 8.0])) == pytest.approx(0.75)
    assert gini(torch.tensor([1.0, 3.0])) == pytest.approx(0.25)
    assert math.isnan(gini(torch.zeros(4)))
    with pytest.raises(InputError, match="none below 0"):
        gini(torch.tensor([1.0, -1e-3]))
    with pytest.raises(InputError, match="at least one"):
        gini(torch.zeros(0))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=15), st.floats(0.01, 100))
def test_gini_is_the_mean_difference_over_twice_the_mean(values: list[float], scale: float):
    x = torch.tensor(values, dtype=torch.float64)
    if float(x.sum()) < 1e-6:
        return
    expected = float((x.unsqueeze(0) - x.unsqueeze(1)).abs().mean() / (2 * x.mean()))
    assert gini(x) == pytest.approx(expected, abs=1e-12)
    assert gini(x.flip(0) * scale) == pytest.approx(expected, abs=1e-12)


def test_permuting_keeps_the_labels_and_where_they_are_scored():
    ids = torch.randint(7, (6, 5), generator=torch.Generator().manual_seed(0))
    tokens = padded(causal_tokens(ids), 1, 2)
    before = torch.random.get_rng_state()
    changed = permuted_labels(tokens, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(changed.scored, tokens.scored)
    assert torch.equal(changed.labels[changed.scored].sort().values, tokens.labels[tokens.scored].sort().values)
    assert torch.equal(changed.labels[~changed.scored], tokens.labels[~tokens.scored])
    assert not torch.equal(changed.labels, tokens.labels)
    assert all(
        torch.equal(getattr(changed, name), getattr(tokens, name))
        for name in ("ids", "valid", "attention_mask", "documents")
    )
    assert torch.equal(permuted_labels(tokens, seed=1).labels, changed.labels)
    assert not torch.equal(permuted_labels(tokens, seed=2).labels, changed.labels)


def test_the_null_of_gini_is_gini_under_permuted_labels():
    toy = sign_toy(read=(5, 11), base=1.0)  # two of twenty equal components matter: Gini 0.9 with any labels
    dictionary = axis_dictionary(toy.acts)
    assert gini(gate_scores(toy.model, dictionary, toy.tokens, hook_name=toy.hook_name).tau) == pytest.approx(0.9)
    null = gini_null(toy.model, dictionary, toy.tokens, hook_name=toy.hook_name, n_draws=3)
    assert null == pytest.approx([0.9, 0.9, 0.9], abs=0.04)

    model, tokens, dictionary = attention_case()
    null = gini_null(model, dictionary, tokens, hook_name="hook_mid", n_draws=3, seed=4)
    for draw, value in enumerate(null):
        text = permuted_labels(tokens, seed=4 + draw)
        assert value == gini(gate_scores(model, dictionary, text, hook_name="hook_mid").tau)
    assert len({round(value, 6) for value in null.tolist()}) == 3


def test_a_fisher_of_equal_uncorrelated_read_columns_has_their_number_as_participation():
    toy = sign_toy(c=0.5, read=(0, 3, 6, 9))
    dictionary = axis_dictionary(toy.acts)
    exact = measure_gate_fisher(toy.model, dictionary, toy.tokens, hook_name=toy.hook_name, method="exact")
    # the curvature depends on the sum of the signs, which couples pairs of columns a little
    signs = toy.signs[:, list(toy.read)]
    p = torch.sigmoid(0.5 * signs.sum(1))
    own, pair = float((p * (1 - p)).mean()), float((p * (1 - p) * signs[:, 0] * signs[:, 1]).mean())
    expected = (4 * own) ** 2 / (4 * own**2 + 12 * pair**2)
    assert 3.8 < expected < 4
    assert participation_ratio(exact.matrix) == pytest.approx(expected)


def test_sender_and_receiver_agree_where_the_head_is_the_tail_and_differ_where_it_reads_elsewhere():
    toy = sign_toy(repeats=8)
    dictionary = axis_dictionary(toy.acts)
    gates = torch.zeros(20)
    gates[[5, 11, 17]] = 1
    downstream = measure_gate_fisher(toy.model, dictionary, toy.tokens, hook_name=toy.hook_name, method="exact")
    same = fixed_head_fisher(toy.reading_head(toy.read), dictionary, toy.acts, method="exact")
    agree = sender_receiver(gates, gates, same, downstream)
    assert agree.overlap == 1
    assert agree.overlap_null == pytest.approx(0.09, abs=0.05)
    assert agree.overlap_p < 0.01
    assert agree.alignment == pytest.approx(1)
    assert agree.participation_fixed_head == pytest.approx(agree.participation_downstream)

    elsewhere = fixed_head_fisher(toy.reading_head(range(4)), dictionary, toy.acts, method="exact")
    first = torch.zeros(20)
    first[:4] = 1
    differ = sender_receiver(first, gates, elsewhere, downstream)
    assert differ.overlap == 0
    assert differ.alignment == pytest.approx(0, abs=1e-12)
    assert differ.participation_fixed_head > differ.participation_downstream

    narrow = fixed_head_fisher(toy.reading_head(range(4)), axis_dictionary(toy.acts, range(6)), toy.acts)
    with pytest.raises(InputError, match="6 and 20 components"):
        sender_receiver(gates, gates, narrow, downstream)


def test_the_null_leaves_the_model_alone():
    model, tokens, dictionary = attention_case()
    asked = [p.requires_grad for p in model.parameters()]
    gini_null(model, dictionary, tokens, hook_name="hook_mid", n_draws=2, keep_error=True, batch_size=3)
    assert [p.requires_grad for p in model.parameters()] == asked
    assert not any(point.fwd_hooks for point in model.hook_dict.values())

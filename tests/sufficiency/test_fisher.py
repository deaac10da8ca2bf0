from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sufficiency.toys import (
    AttentionToy,
    LinearDictionary,
    axis_dictionary,
    causal_tokens,
    padded,
    random_dictionary,
    sign_toy,
    tanh_model,
)

import tl_lifehist as lh
from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.errors import InputError
from tl_lifehist.metrics import kl_divergence
from tl_lifehist.models import frozen
from tl_lifehist.readout import readout_kl
from tl_lifehist.sufficiency.curvature import pullback_fisher
from tl_lifehist.sufficiency.fisher import (
    closed_form_gates,
    fixed_head_fisher,
    gate_fisher,
    measure_gate_fisher,
    predicted_kl,
)
from tl_lifehist.sufficiency.geometry import participation_ratio
from tl_lifehist.sufficiency.moments import FisherMoments
from tl_lifehist.sufficiency.sensitivity import gate_scores
from tl_lifehist.sufficiency.translator import Translator
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet


def rows_of(n: int, d_model: int = 6, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d_model, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention_case(n_sequences: int, length: int, *, hook_name: str = "hook_embed", n_components: int = 4):
    model = AttentionToy(seed=1)
    ids = torch.randint(7, (n_sequences, length), generator=torch.Generator().manual_seed(2))
    tokens = causal_tokens(ids)
    return model, tokens, random_dictionary(lh.collect_activations(model, hook_name, tokens), n_components)


def by_autograd(model, dictionary, tokens: TokenSet, hook_name: str) -> torch.Tensor:
    """Formula 12 word by word: the whole Jacobian of the logits with respect to the gates."""
    suffix = ModelSuffix(model, hook_name)
    prefix = suffix.run_prefix(tokens)
    basis = MaskBasis.of(dictionary, hook_name)

    def logits(gates: torch.Tensor) -> torch.Tensor:
        return suffix.head(suffix.run_suffix(prefix, basis.rows(prefix.acts, gates)))

    gates = torch.ones(len(dictionary.W_dec), dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(logits, gates)
    p = logits(gates).softmax(-1).detach()
    middle = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    return torch.einsum("pwi,pwx,pxj->ij", jacobian, middle, jacobian) / tokens.n_scored


def test_the_expansion_of_the_kl_is_of_third_order():
    head, rows = tanh_model().head, rows_of(40)
    fisher = pullback_fisher(head, rows)
    errors = []
    for size in (0.08, 0.04, 0.02):
        r = size * rows_of(40, seed=1)
        quadratic = torch.einsum("ri,rij,rj->r", r, fisher, r) / 2
        errors.append((kl_divergence(head(rows), head(rows - r)) - quadratic).abs().sum())
    ratios = [float(a / b) for a, b in pairwise(errors)]
    assert ratios == pytest.approx([8, 8], abs=0.5)


@given(st.integers(0, 1000), st.integers(2, 5))
def test_the_pullback_is_positive_semi_definite_of_rank_below_the_vocabulary(seed: int, d_vocab: int):
    fisher = pullback_fisher(tanh_model(d_vocab=d_vocab, seed=seed).head, rows_of(5, seed=seed))
    eigenvalues = torch.linalg.eigvalsh(fisher)
    largest = float(eigenvalues.max())
    assert largest > 0
    assert float(eigenvalues.min()) > -1e-12 * largest
    assert int((eigenvalues > 1e-10 * largest).sum(1).max()) <= d_vocab - 1


def test_labels_drawn_from_the_model_have_the_curvature_as_their_second_moment():
    model = tanh_model()
    ids = torch.arange(24).unsqueeze(1)
    acts = model.embedding.detach()
    dictionary = random_dictionary(acts, 5)
    basis = MaskBasis.of(dictionary, "hook_embed")
    codes = basis.codes(acts)
    full = basis.rows(acts, torch.ones(5, dtype=torch.float64))
    p = model.head(full).softmax(-1)

    first, second = torch.zeros(24, 5, dtype=torch.float64), torch.zeros(24, 5, dtype=torch.float64)
    for label in range(4):  # the expectation over labels, term by term
        tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), torch.full_like(ids, label))
        g = gate_scores(model, dictionary, tokens, hook_name="hook_embed").gradients
        first += p[:, label : label + 1] * g
        second += p[:, label : label + 1] * g**2
    curvature = torch.einsum("id,rde,ie->ri", dictionary.W_dec, pullback_fisher(model.head, full), dictionary.W_dec)
    torch.testing.assert_close(first, torch.zeros_like(first), rtol=0, atol=1e-10)
    torch.testing.assert_close(second, codes**2 * curvature, rtol=0, atol=1e-10)
    assert float(second.max()) > 0.01

    # and so for a model that acts on each position alone, M is that of the fixed head, whichever way it is computed
    exact = gate_fisher(model, dictionary, tokens, hook_name="hook_embed", method="exact")
    moved = codes.unsqueeze(2) * dictionary.W_dec
    outer = torch.einsum("rid,rde,rje->ij", moved, pullback_fisher(model.head, full), moved)
    torch.testing.assert_close(exact, outer / 24, rtol=1e-10, atol=1e-14)
    fixed = fixed_head_fisher(model.head, dictionary, acts, method="exact")
    torch.testing.assert_close(fixed.matrix, exact, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("hook_name", ["hook_embed", "hook_mid"])
@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_the_exact_form_is_formula_12_word_by_word(hook_name: str, batch_size: int):
    model, tokens, dictionary = attention_case(6, 5, hook_name=hook_name)
    exact = gate_fisher(model, dictionary, tokens, hook_name=hook_name, method="exact", batch_size=batch_size)
    torch.testing.assert_close(exact, by_autograd(model, dictionary, tokens, hook_name), rtol=1e-10, atol=1e-14)
    wide = padded(tokens, 2, 1)
    padded_exact = gate_fisher(model, dictionary, wide, hook_name=hook_name, method="exact", batch_size=batch_size)
    torch.testing.assert_close(padded_exact, exact, rtol=1e-10, atol=1e-14)


def test_the_estimate_agrees_with_the_exact_form_where_the_per_position_form_does_not():
    model, tokens, dictionary = attention_case(400, 6)
    exact = measure_gate_fisher(model, dictionary, tokens, hook_name="hook_embed", method="exact", batch_size=200)
    estimate = measure_gate_fisher(model, dictionary, tokens, hook_name="hook_embed", n_samples=4, batch_size=200)
    assert estimate.n_sequences == exact.n_sequences == 400
    assert estimate.n_scored == 2000
    z = (estimate.matrix - exact.matrix) / estimate.standard_error
    assert float(z.abs().max()) < 3
    assert float(z.square().mean().sqrt()) < 1.2  # the standard error also covers other text, so 1 is not exceeded
    assert float(z.square().mean().sqrt()) > 0.1  # and it is no loose bound

    # each position alone: the Jacobian of its own logits with respect to its own activation, and nothing else
    suffix, basis = ModelSuffix(model, "hook_embed"), MaskBasis.of(dictionary, "hook_embed")
    some = tokens[:100]
    prefix = suffix.run_prefix(some)
    codes, full = basis.codes(prefix.acts), basis.rows(prefix.acts, torch.ones(4, dtype=torch.float64))
    per_position = torch.zeros(4, 4, dtype=torch.float64)
    for scored, row in enumerate(prefix.scored_row.tolist()):
        if scored % 5 != 4:
            continue  # the last scored position of each sequence is enough of them
        moved = torch.autograd.functional.jacobian(
            lambda x: suffix.run_suffix(prefix, full.index_put((torch.tensor(row),), x))[scored],  # noqa: B023
            full[row],
        )
        logits = suffix.run_suffix(prefix, full)[scored].detach()
        p = logits.softmax(-1)
        derivative = moved @ (codes[row].unsqueeze(1) * dictionary.W_dec).T
        per_position += derivative.T @ (torch.diag(p) - torch.outer(p, p)) @ derivative / 100
    # on those same positions the truth is M with labels at the last scored position only
    labels = torch.full_like(some.labels, -100)
    labels[:, 4] = some.labels[:, 4]
    last = measure_gate_fisher(
        model, dictionary, TokenSet(some.ids, some.valid, labels), hook_name="hook_embed", method="exact"
    )
    last_estimate = measure_gate_fisher(
        model, dictionary, TokenSet(some.ids, some.valid, labels), hook_name="hook_embed", n_samples=16
    )
    assert float(((last_estimate.matrix - last.matrix) / last_estimate.standard_error).abs().max()) < 3
    assert float(((per_position - last.matrix) / last_estimate.standard_error).abs().max()) > 5


def test_the_standard_error_is_the_spread_of_estimates_over_texts():
    model = AttentionToy(seed=1)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(7, (1600, 4), generator=generator)
    labels = causal_tokens(ids).labels
    labels[torch.rand(ids.shape, generator=generator) < 0.4] = -100  # sequences of different weight
    tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), labels)
    dictionary = random_dictionary(lh.collect_activations(model, "hook_embed", tokens), 3)
    estimates = [
        measure_gate_fisher(model, dictionary, tokens[i : i + 40], hook_name="hook_embed", seed=i, batch_size=40)
        for i in range(0, 1600, 40)
    ]
    spread = torch.stack([e.matrix for e in estimates]).std(0)
    said = torch.stack([e.standard_error**2 for e in estimates]).mean(0).sqrt()
    torch.testing.assert_close(said, spread, rtol=0.35, atol=0)


@pytest.mark.parametrize("n_samples", [1, 3])
def test_the_sums_behind_the_standard_error_are_those_of_the_matrices_themselves(n_samples: int):
    g = rows_of(n_samples * 7, 4).reshape(n_samples, 7, 4)
    n = torch.tensor([1, 2, 3, 4, 5, 6, 7])
    blocks = torch.einsum("dei,dej->eij", g, g) / n_samples
    left, right = FisherMoments(), FisherMoments()
    left.add_gradients(g[:, :3], n[:3])
    left.add_gradients(g[:, 3:], n[3:])
    right.add_blocks(blocks, n)
    a, b = left.result("estimate"), right.result("exact")
    torch.testing.assert_close(a.matrix, b.matrix)
    torch.testing.assert_close(a.standard_error, b.standard_error)
    assert a.participation_ratio == pytest.approx(b.participation_ratio)
    residual = blocks - n[:, None, None] * b.matrix
    expected = (residual.square().sum(0) * 7 / 6).sqrt() / n.sum()
    torch.testing.assert_close(b.standard_error, expected)


@pytest.mark.parametrize("draws", [1, 2])
def test_the_participation_ratio_pairs_different_sequences_only(draws):
    """Both the square of the trace and the trace of the square leave out what a sequence has with itself."""
    g = torch.stack([rows_of(4, 3, seed=draw) + 1 for draw in range(draws)])
    x = torch.einsum("dei,dej->eij", g, g) / draws
    traces, products = x.diagonal(dim1=1, dim2=2).sum(1), torch.einsum("eij,fij->ef", x, x)
    other = ~torch.eye(4, dtype=torch.bool)
    expected = float(torch.outer(traces, traces)[other].sum() / products[other].sum())
    n_scored = torch.tensor([2, 5, 3, 1])
    by_gradients, by_blocks = FisherMoments(), FisherMoments()
    by_gradients.add_gradients(g, n_scored)
    by_blocks.add_blocks(x, n_scored)
    for moments in (by_gradients, by_blocks):
        result = moments.result("estimate")
        assert result.participation_ratio == pytest.approx(expected, rel=1e-9)
        assert expected != pytest.approx(participation_ratio(result.matrix), rel=0.02)


def test_few_sequences_do_not_bend_the_participation_ratio():
    # gradients that are alike in all 20 directions: the truth is 20, but 40 of them span fewer evenly
    naive, debiased = [], []
    for seed in range(400):
        moments = FisherMoments()
        moments.add_gradients(rows_of(40, 20, seed=seed).unsqueeze(0), torch.ones(40, dtype=torch.long))
        result = moments.result("estimate")
        naive.append(participation_ratio(result.matrix))
        debiased.append(1 / result.participation_ratio)
    assert sum(naive) / 400 == pytest.approx(1 / (1 / 20 + 1 / 40), rel=0.05)
    assert sum(debiased) / 400 == pytest.approx(1 / 20, rel=0.05)


def test_a_reader_is_a_translator_or_any_head():
    toy = sign_toy()
    dictionary = axis_dictionary(toy.acts)
    head = toy.reading_head(range(10))
    exact = fixed_head_fisher(head, dictionary, toy.acts, method="exact")
    assert bool((exact.matrix.diagonal()[:10] > 0.01).all())
    assert float(exact.matrix[10:].abs().max()) < 1e-20
    weight = torch.linalg.qr(rows_of(20, 20))[0]
    turned = Translator(weight, torch.zeros(20, dtype=torch.float64), lambda rows: head(rows @ weight.T))
    read = fixed_head_fisher(turned, dictionary, toy.acts, method="exact")
    torch.testing.assert_close(read.matrix, exact.matrix, rtol=1e-9, atol=1e-14)
    estimate = fixed_head_fisher(head, dictionary, toy.acts.repeat(100, 1), n_samples=2)
    assert estimate.n_scored == 3200
    z = ((estimate.matrix - exact.matrix) / estimate.standard_error)[:10, :10]
    assert float(z.abs().max()) < 4.5
    other = fixed_head_fisher(head, dictionary, toy.acts.repeat(100, 1), n_samples=2, seed=1)
    assert not torch.equal(other.matrix, estimate.matrix)


@pytest.mark.parametrize("hook_name", ["blocks.0.hook_mlp_out", "blocks.2.hook_resid_post"])
def test_on_a_trained_model_the_quadratic_form_predicts_the_kl_of_gates_near_1(pocket_model, pocket_tokens, hook_name):
    acts = lh.collect_activations(pocket_model, hook_name, lh.TokenSet.pocket("calibration")[:40])
    dictionary = lh.with_reference(_principal(acts, 8), acts)
    text = pocket_tokens[:4]
    exact = gate_fisher(pocket_model, dictionary, text, hook_name=hook_name, method="exact", batch_size=2)
    suffix, basis = ModelSuffix(pocket_model, hook_name), MaskBasis.of(dictionary, hook_name)
    with frozen(pocket_model), torch.no_grad():
        prefix = suffix.run_prefix(text)
        full = suffix.run_suffix(prefix, basis.rows(prefix.acts, torch.ones(8)))
        for seed in range(3):
            gates = 1 - 0.2 * torch.rand(8, generator=torch.Generator().manual_seed(seed))
            masked = suffix.run_suffix(prefix, basis.rows(prefix.acts, gates))
            measured = float(readout_kl(suffix.head, full, masked).mean())
            assert predicted_kl(gates, exact) == pytest.approx(measured, rel=0.15)
            assert measured > 1e-5
    # on one text, estimates differ by their draws alone
    draws = torch.stack([gate_fisher(pocket_model, dictionary, text, hook_name=hook_name, seed=s) for s in range(16)])
    z = (draws.mean(0) - exact) / draws.std(0) * 4
    assert float(z.diagonal().abs().max()) < 3.5
    assert float(z.square().mean().sqrt()) == pytest.approx(1, abs=0.4)


@pytest.mark.parametrize("center_codes", [True, False])
def test_the_dictionarys_own_error_is_one_more_component(center_codes: bool):
    """Of a dictionary that misses a little, even the full mask's cost is predicted, and that of gates near 1."""
    model = AttentionToy(seed=1)
    ids = torch.randint(7, (400, 6), generator=torch.Generator().manual_seed(5))
    tokens = causal_tokens(ids)
    acts = lh.collect_activations(model, "hook_mid", tokens)
    axes = torch.linalg.qr(rows_of(5, 5, seed=3)).Q
    dictionary = LinearDictionary(axes[:, :4].contiguous(), axes[:, :4].T.contiguous(), acts)
    dictionary.W_dec = dictionary.W_dec * 0.95  # misses one direction and a little of the others
    knobs = {"hook_name": "hook_mid", "center_codes": center_codes}
    fisher = measure_gate_fisher(model, dictionary, tokens, n_samples=8, error_component=True, **knobs)
    assert fisher.matrix.shape == (5, 5)
    gates = torch.tensor([1.0, 0.9, 1.0, 0.85]).double()
    for z in (torch.ones(4).double(), gates):
        measured = lh.evaluate_mask(model, dictionary, z, tokens, **knobs).kl
        assert predicted_kl(z, fisher.matrix) == pytest.approx(measured, rel=0.5)
    # nothing is missed by a complete dictionary, and the rest is the plain gate Fisher
    complete = LinearDictionary(axes, axes.T.contiguous(), acts)
    plain = measure_gate_fisher(model, complete, tokens, seed=2, **knobs).matrix
    whole = measure_gate_fisher(model, complete, tokens, seed=2, error_component=True, **knobs).matrix
    assert torch.allclose(whole[:5, :5], plain, atol=1e-9)
    assert whole[5].abs().max() < 1e-9


def test_a_model_in_half_precision_is_measured_in_float32(pocket_series, pocket_tokens):
    model, hook_name = pocket_series.load(4096), "blocks.2.hook_resid_post"
    acts = lh.collect_activations(model, hook_name, pocket_tokens)
    dictionary, text = lh.with_reference(_principal(acts, 3), acts), pocket_tokens[:2]

    def measured() -> tuple[torch.Tensor, torch.Tensor]:
        scores = gate_scores(model, dictionary, text, hook_name=hook_name)
        return scores.tau, gate_fisher(model, dictionary, text, hook_name=hook_name, method="exact").diagonal()

    plain = measured()
    model.to(torch.bfloat16)
    for half, full in zip(measured(), plain, strict=True):
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, full, rtol=0.1, atol=0.02 * float(full.max()))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def _principal(acts: torch.Tensor, n_components: int):
    directions = torch.linalg.svd(acts - acts.mean(0), full_matrices=False)[2][:n_components]
    return LinearDictionary(directions.T.contiguous(), directions, acts)


def test_closed_form_gates_of_the_sign_toy():
    toy = sign_toy()
    shares = toy.acts.var(0, correction=0)
    shares = shares / shares.sum()
    gates = closed_form_gates(shares, penalty=1e-2)
    assert float(gates.mean()) == pytest.approx(0.660214, abs=1e-6)
    assert float(((1 - gates) ** 2 * shares).sum()) == pytest.approx(0.0318424, abs=1e-7)
    assert int((gates == 0).sum()) == 2
    # c = 0.01, lambda = 0.1, relative to mean ablation: the diagonal of M gives 0.85 on what the head reads
    small = sign_toy(c=0.01)
    dictionary = axis_dictionary(small.acts)
    diagonal = gate_fisher(small.model, dictionary, small.tokens, hook_name="hook_embed", method="exact").diagonal()
    logits = small.model(small.tokens.ids)[:, 0].detach()
    reference = float(kl_divergence(logits, torch.zeros_like(logits)).mean())
    gates = closed_form_gates(diagonal / (2 * reference), penalty=0.1)
    torch.testing.assert_close(gates[[5, 11, 17]], torch.full((3,), 0.85).double(), atol=5e-3, rtol=0)
    assert int((gates > 0).sum()) == 3
    assert closed_form_gates(torch.tensor([0.0, 1.0]), penalty=0).tolist() == [0, 1]
    with pytest.raises(InputError, match="negative"):
        closed_form_gates(torch.tensor([-0.1, 1.0]), penalty=0.1)


def test_what_cannot_be_measured_is_named():
    model, tokens, dictionary = attention_case(3, 4)
    with pytest.raises(InputError, match="method='sampled' is unknown"):
        gate_fisher(model, dictionary, tokens, hook_name="hook_embed", method="sampled")
    with pytest.raises(InputError, match="n_samples=0"):
        gate_fisher(model, dictionary, tokens, hook_name="hook_embed", n_samples=0)
    nothing = TokenSet(tokens.ids, tokens.valid, torch.full_like(tokens.ids, -100))
    for method in ("estimate", "exact"):
        with pytest.raises(InputError, match="No position is scored"):
            gate_fisher(model, dictionary, nothing, hook_name="hook_embed", method=method)
    with pytest.raises(InputError, match="no activations"):
        fixed_head_fisher(lambda x: x, dictionary, torch.zeros(0, 5).double())
    with pytest.raises(InputError, match="2 gates and a Fisher of 4"):
        predicted_kl(torch.ones(2), torch.eye(4))
    alone = measure_gate_fisher(model, dictionary, tokens[:1], hook_name="hook_embed")
    assert bool(alone.standard_error.isnan().all())
    assert alone.participation_ratio != alone.participation_ratio


def test_a_seed_draws_the_same_labels_and_another_seed_others():
    model, tokens, dictionary = attention_case(7, 5)
    first, again, other = (gate_fisher(model, dictionary, tokens, hook_name="hook_embed", seed=s) for s in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("method", ["estimate", "exact"])
def test_the_model_and_the_global_random_state_are_left_alone(method: str):
    model, tokens, dictionary = attention_case(3, 4)
    before = torch.random.get_rng_state()
    asked = [p.requires_grad for p in model.parameters()]
    gate_fisher(model, dictionary, tokens, hook_name="hook_embed", method=method)
    assert torch.equal(before, torch.random.get_rng_state())
    assert [p.requires_grad for p in model.parameters()] == asked
    assert not any(point.fwd_hooks for point in model.hook_dict.values())

    class Failing(type(dictionary)):
        def encode(self, x):
            raise RuntimeError("out of memory")

    dictionary.__class__ = Failing
    with pytest.raises(RuntimeError, match="out of memory"):
        gate_fisher(model, dictionary, tokens, hook_name="hook_embed", method=method)
    assert [p.requires_grad for p in model.parameters()] == asked
    assert not any(point.fwd_hooks for point in model.hook_dict.values())

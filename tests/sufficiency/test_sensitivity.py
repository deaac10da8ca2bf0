from __future__ import annotations

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
)

import tl_lifehist as lh
from tl_lifehist.errors import InputError
from tl_lifehist.interventions import MaskedReconstruction
from tl_lifehist.metrics import cross_entropy
from tl_lifehist.sufficiency.sensitivity import GateScores, enrichment, gate_scores
from tl_lifehist.tokens import NO_LABEL, TokenSet

READ = [5, 11, 17]
NAN = float("nan")


def attention_case(n_sequences: int = 5, length: int = 6, *, seed: int = 0, **options):
    model = AttentionToy(seed=seed, **options)
    ids = torch.randint(7, (n_sequences, length), generator=torch.Generator().manual_seed(seed))
    tokens = causal_tokens(ids)
    return model, tokens, random_dictionary(lh.collect_activations(model, "hook_embed", tokens), 4, seed=seed)


def by_hooks(model, dictionary, tokens: TokenSet, hook_name: str, **options) -> torch.Tensor:
    """What one would write: a gate vector, a hook, one backward pass for each sequence alone."""
    rows = []
    for i in range(len(tokens)):
        one = tokens[[i]]
        gates = torch.ones(len(dictionary.W_dec), dtype=dictionary.W_dec.dtype, requires_grad=True)
        intervention = MaskedReconstruction(hook_name, dictionary, gates, **options)
        kwargs = {} if one.attention_mask is None else {"attention_mask": one.attention_mask}
        with model.hooks(fwd_hooks=intervention.fwd_hooks(one.valid)):
            logits = model(one.ids, **kwargs)
        loss = cross_entropy(logits[one.scored], one.labels[one.scored]).mean()
        rows.append(torch.autograd.grad(loss, gates)[0])
    return torch.stack(rows)


def test_the_sign_toy_has_the_scores_of_the_method_page():
    toy = sign_toy()
    scores = gate_scores(toy.model, axis_dictionary(toy.acts), toy.tokens, hook_name=toy.hook_name)
    assert scores.tau.dtype == torch.float64
    assert scores.n_sequences == 32
    other = [i for i in range(20) if i not in READ]
    for found, expected in ((scores.tau, 0.0548094), (scores.omega, 0.0062555)):
        torch.testing.assert_close(found[READ], torch.full((3,), expected).double(), atol=5e-8, rtol=0)
        assert float(found[other].abs().max()) < 1e-25
    gates = torch.zeros(20, dtype=torch.float64)
    gates[READ] = 1
    assert enrichment(gates, scores.tau) == pytest.approx(20 / 3)
    assert enrichment(gates, scores.omega) == pytest.approx(20 / 3)


def scores_of(*values: float) -> GateScores:
    return GateScores(torch.tensor(values, dtype=torch.float64).unsqueeze(1), "h")


def test_tau_and_omega_of_known_gradients():
    pull = scores_of(0, 2)
    assert (float(pull.tau), float(pull.omega), float(pull.coherence)) == (2, 1, 0.5)
    assert float(pull.omega_debiased) == (2 * 1 - 2) / 1
    torn = scores_of(1, -1, 1, -1)
    assert (float(torn.tau), float(torn.omega)) == (1, 0)
    assert float(torn.omega_debiased) == pytest.approx(-1 / 3)
    assert scores_of(0, 0).coherence.isnan().all()
    assert scores_of(3).omega_debiased.isnan().all()


@given(st.integers(0, 10_000), st.integers(2, 30))
def test_omega_lies_between_0_and_tau_and_its_debiased_form_is_the_mean_over_pairs(seed: int, n: int):
    g = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    scores = GateScores(g, "h")
    assert bool((scores.omega >= 0).all() and (scores.omega <= scores.tau * (1 + 1e-12)).all())
    pairs = (g.sum(0) ** 2 - (g**2).sum(0)) / (n * (n - 1))
    torch.testing.assert_close(scores.omega_debiased, pairs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"center_codes": False}, {"keep_error": True}])
@pytest.mark.parametrize("hook_name", ["hook_embed", "hook_mid"])
def test_one_backward_pass_a_batch_gives_each_sequence_its_own_gradient(hook_name: str, options: dict):
    model, tokens, _ = attention_case()
    dictionary = random_dictionary(lh.collect_activations(model, hook_name, tokens), 4)
    scores = gate_scores(model, dictionary, tokens, hook_name=hook_name, batch_size=3, **options)
    expected = by_hooks(model, dictionary, tokens, hook_name, **options)
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(scores.gradients, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("hook_name", ["blocks.0.hook_mlp_out", "blocks.1.hook_resid_post", "blocks.3.hook_resid_post"])
def test_the_same_on_a_trained_model(pocket_model, pocket_tokens, hook_name: str):
    tokens = pocket_tokens[:3]
    dictionary = random_dictionary(lh.collect_activations(pocket_model, hook_name, tokens), 12)
    scores = gate_scores(pocket_model, dictionary, tokens, hook_name=hook_name)
    expected = by_hooks(pocket_model, dictionary, tokens, hook_name)
    torch.testing.assert_close(scores.gradients, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("batch_size", [1, 2, 5, 16])
def test_the_batch_size_changes_nothing(batch_size: int):
    model, tokens, dictionary = attention_case()
    whole = gate_scores(model, dictionary, tokens, hook_name="hook_embed", batch_size=5)
    parts = gate_scores(model, dictionary, tokens, hook_name="hook_embed", batch_size=batch_size)
    torch.testing.assert_close(parts.gradients, whole.gradients, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("by", ["sequence", "document"])
@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 3), (2, 1)])
def test_padding_changes_nothing(left: int, right: int, by: str):
    model, tokens, dictionary = attention_case()
    plain = gate_scores(model, dictionary, tokens, hook_name="hook_embed", by=by)
    wide = gate_scores(model, dictionary, padded(tokens, left, right), hook_name="hook_embed", by=by)
    torch.testing.assert_close(wide.gradients, plain.gradients, rtol=1e-12, atol=1e-14)


def test_documents_cut_into_windows_score_as_uncut_ones():
    # a model that acts on each position alone: cutting does not change its predictions, so nothing may change at all
    toy = sign_toy(c=0.7)
    dictionary = axis_dictionary(toy.acts)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    ids, labels = order.reshape(4, 8), toy.labels[order].reshape(4, 8)
    labels[1, 3:] = NO_LABEL  # documents with different numbers of scored positions
    uncut = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), labels)

    windows = [(d, start, min(start + 3, 8)) for d in range(4) for start in (0, 3, 6)]
    shape = (len(windows), 3)
    cut_ids, cut_labels = torch.zeros(shape, dtype=torch.long), torch.full(shape, NO_LABEL)
    seen = torch.zeros(shape, dtype=torch.bool)
    for row, (document, start, end) in enumerate(windows):
        cut_ids[row, : end - start], cut_labels[row, : end - start] = (
            ids[document, start:end],
            labels[document, start:end],
        )
        seen[row, : end - start] = True
    documents = torch.tensor([d for d, _, _ in windows]).unsqueeze(1).expand(shape).clone()
    cut = TokenSet(cut_ids, seen, cut_labels, None, documents)

    whole = gate_scores(toy.model, dictionary, uncut, hook_name=toy.hook_name)
    parts = gate_scores(toy.model, dictionary, cut, hook_name=toy.hook_name, by="document", batch_size=5)
    assert whole.n_sequences == parts.n_sequences == 4
    torch.testing.assert_close(parts.gradients, whole.gradients, rtol=1e-12, atol=1e-15)
    # by sequence, windows without a scored position do not count, and the others count one each
    assert gate_scores(toy.model, dictionary, cut, hook_name=toy.hook_name).n_sequences == 10


def test_two_documents_in_one_sequence_are_refused_by_document():
    model, tokens, dictionary = attention_case()
    documents = torch.arange(6).expand(5, 6) // 3
    mixed = TokenSet(tokens.ids, tokens.valid, tokens.labels, None, documents.clone())
    with pytest.raises(InputError, match="Sequence 0 scores positions of 2 documents"):
        gate_scores(model, dictionary, mixed, hook_name="hook_embed", by="document")
    assert gate_scores(model, dictionary, mixed, hook_name="hook_embed").n_sequences == 5


def test_sequences_without_a_scored_position_are_left_out():
    model, tokens, dictionary = attention_case()
    labels = tokens.labels.clone()
    labels[[1, 4]] = NO_LABEL
    some = TokenSet(tokens.ids, tokens.valid, labels)
    kept = gate_scores(model, dictionary, tokens[[0, 2, 3]], hook_name="hook_embed")
    for batch_size in (1, 2, 5):
        found = gate_scores(model, dictionary, some, hook_name="hook_embed", batch_size=batch_size)
        torch.testing.assert_close(found.gradients, kept.gradients, rtol=1e-12, atol=1e-14)


@given(st.integers(0, 10_000))
def test_scale_sign_and_order_of_the_components_change_nothing(seed: int):
    model, tokens, dictionary = attention_case(3, 4, seed=seed % 20)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(4, generator=generator)
    scale = (torch.rand(4, generator=generator, dtype=torch.float64) + 0.3) * torch.tensor([1.0, -1.0, 1.0, -1.0])
    acts = lh.collect_activations(model, "hook_embed", tokens)
    other = LinearDictionary((dictionary.W_enc * scale)[:, order], (dictionary.W_dec / scale.unsqueeze(1))[order], acts)
    plain = gate_scores(model, dictionary, tokens, hook_name="hook_embed")
    changed = gate_scores(model, other, tokens, hook_name="hook_embed")
    torch.testing.assert_close(changed.tau, plain.tau[order], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(changed.omega, plain.omega[order], rtol=1e-9, atol=1e-14)


class Watching(LinearDictionary):
    """Sees the model from inside a pass, and can fail there."""

    model: AttentionToy | None = None
    armed = False

    def encode(self, x):
        if self.model is not None:
            assert not any(p.requires_grad for p in self.model.parameters())
        if self.armed:
            raise RuntimeError("out of memory")
        return super().encode(x)


def test_the_model_is_as_before_also_after_an_error():
    model, tokens, dictionary = attention_case()
    model.head.requires_grad_(False)

    def state():
        hooks = sum(len(p.fwd_hooks) + len(p.bwd_hooks) for p in model.hook_dict.values())
        asked = [(p.requires_grad, p.grad is None, p.dtype) for p in model.parameters()]
        return hooks, model.training, asked, torch.random.get_rng_state().sum()

    before = state()
    weights = [p.detach().clone() for p in model.parameters()]
    acts = lh.collect_activations(model, "hook_embed", tokens)
    watching = Watching(dictionary.W_enc, dictionary.W_dec, acts)
    watching.model = model  # inside a pass no weight gradient is computed
    gate_scores(model, watching, tokens, hook_name="hook_embed")
    assert str(state()) == str(before)
    watching.armed = True
    with pytest.raises(RuntimeError, match="out of memory"):
        gate_scores(model, watching, tokens, hook_name="hook_embed")
    assert str(state()) == str(before)
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))


def test_what_cannot_be_scored_is_named():
    model, tokens, dictionary = attention_case()
    with pytest.raises(InputError, match="'hook_embd'.*hook_embed"):
        gate_scores(model, dictionary, tokens, hook_name="hook_embd")
    with pytest.raises(InputError, match="by='token' is unknown"):
        gate_scores(model, dictionary, tokens, hook_name="hook_embed", by="token")
    with pytest.raises(InputError, match="batch_size=0"):
        gate_scores(model, dictionary, tokens, hook_name="hook_embed", batch_size=0)
    unlabelled = TokenSet(tokens.ids, tokens.valid, torch.full_like(tokens.ids, NO_LABEL))
    with pytest.raises(InputError, match="No position is scored"):
        gate_scores(model, dictionary, unlabelled, hook_name="hook_embed")
    narrow = random_dictionary(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).double(), 3)
    with pytest.raises(InputError, match="width 4"):
        gate_scores(model, narrow, tokens, hook_name="hook_embed")
    model.embedding.data[tokens.ids[3, 2]] = NAN
    first = int((tokens.ids == tokens.ids[3, 2]).any(1).nonzero()[0])
    with pytest.raises(InputError, match=f"sequence {first}, position"):
        gate_scores(model, dictionary, tokens, hook_name="hook_embed", batch_size=2)


def test_enrichment_of_the_method_page_and_its_limits():
    scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
    assert enrichment(torch.tensor([1.0, 0.0, 0.0, 0.0]), scores) == pytest.approx(1.6)
    assert enrichment(torch.full((4,), 0.3), scores) == pytest.approx(1)
    assert enrichment(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])) == pytest.approx(4)
    assert enrichment(torch.zeros(4), scores) != enrichment(torch.zeros(4), scores)  # NaN
    assert enrichment(torch.ones(4), torch.zeros(4)) != enrichment(torch.ones(4), torch.zeros(4))
    with pytest.raises(InputError, match="negative"):
        enrichment(torch.ones(4), torch.tensor([1.0, -1.0, 0.0, 0.0]))
    with pytest.raises(InputError, match="4 gates and 3 scores"):
        enrichment(torch.ones(4), torch.ones(3))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e3)), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_enrichment_is_bounded_and_blind_to_the_scale_of_the_scores(pairs: list[tuple[float, float]], scale: float):
    gates, scores = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    if float(scores.sum()) < 1e-3 or float(gates.mean()) < 1e-3:
        return
    value = enrichment(gates, scores)
    assert 0 <= value <= 1 / float(gates.mean()) * (1 + 1e-9)
    assert enrichment(gates, scores * scale) == pytest.approx(value, rel=1e-9, abs=1e-12)

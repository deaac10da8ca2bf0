"""Every figure of an evaluation against a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sufficiency.toys import (
    AttentionToy,
    axis_dictionary,
    causal_tokens,
    padded,
    random_dictionary,
    sign_toy,
    tanh_model,
)

import tl_lifehist as lh
from tl_lifehist.effects import ablation_effect
from tl_lifehist.interventions import MaskedReconstruction
from tl_lifehist.sufficiency.alignment import align_checkpoints
from tl_lifehist.sufficiency.clean import CleanRun
from tl_lifehist.sufficiency.evaluation import evaluate_mask, evaluate_masks
from tl_lifehist.sufficiency.targets import Transfer
from tl_lifehist.sufficiency.translator import Translator
from tl_lifehist.tokens import TokenSet


def gates_on(columns, n=20):
    gates = torch.zeros(n, dtype=torch.float64)
    gates[list(columns)] = 1
    return gates


def scored(toy, gates, **knobs):
    return evaluate_mask(toy.model, axis_dictionary(toy.acts), gates, toy.tokens, hook_name=toy.hook_name, **knobs)


def test_h20_read_coordinates():
    found = scored(sign_toy(1.0), gates_on([5, 11, 17]))
    assert found.soft_mass == pytest.approx(0.15)
    assert found.nmse == pytest.approx(0.908402112, abs=1e-9)
    assert found.kl == pytest.approx(0, abs=1e-12)
    assert found.accuracy_drop == 0
    assert found.empty.kl == pytest.approx(0.2087786, abs=1e-7)
    assert found.entropy == pytest.approx(0.4843686, abs=1e-7)
    assert found.empty.relative_kl == pytest.approx(0.2087786 / 0.4843686, abs=1e-6)


@pytest.mark.parametrize(
    ("kept", "lost"), [([5], 0.7567104), ([11], 0.7567104), ([5, 17], 0.4016344), ([], 1.0), ([0, 1, 2], 1.0)]
)
def test_h20_lost_fraction(kept, lost):
    assert scored(sign_toy(1.0), gates_on(kept)).lost_fraction == pytest.approx(lost, abs=1e-7)


@pytest.mark.parametrize("knobs", [{"keep_error": True}, {"center_codes": False}])
def test_the_lost_fraction_is_of_mean_ablation_even_where_the_empty_mask_is_none(pocket_model, pocket_tokens, knobs):
    name, tokens = "blocks.1.hook_resid_post", pocket_tokens[:4]
    acts = lh.collect_activations(pocket_model, name, tokens)
    dictionary = random_dictionary(acts, 8)
    dictionary.b_dec = 0.5 * dictionary.x_mean  # codes that are not centred
    dictionary.code_mean = dictionary.encode(acts).mean(0)
    gates = torch.rand(8, generator=torch.Generator().manual_seed(1))
    found = evaluate_mask(pocket_model, dictionary, gates, tokens, hook_name=name, **knobs)
    ablated = CleanRun(pocket_model, name, tokens, 4).kl_of_constant(acts.mean(0))
    for one in (found, found.empty, found.full):
        assert one.lost_fraction == pytest.approx(one.kl / ablated, rel=1e-4)
    assert abs(found.empty.lost_fraction - 1) > 0.05
    centred = evaluate_mask(pocket_model, dictionary, gates, tokens, hook_name=name)
    assert centred.empty.lost_fraction == 1
    assert centred.empty.kl == pytest.approx(ablated, rel=1e-4)


def test_empty_and_full_masks_are_exact(pocket_model, pocket_tokens):
    name = "blocks.2.hook_resid_post"
    acts = lh.collect_activations(pocket_model, name, pocket_tokens)
    found = evaluate_mask(pocket_model, axis_dictionary(acts), torch.full((96,), 0.5), pocket_tokens, hook_name=name)
    assert found.empty.nmse == 1.0
    assert found.empty.lost_fraction == 1.0
    assert found.full.nmse < 1e-10
    assert found.full.kl < 1e-6
    assert found.full.accuracy_drop == 0
    assert found.nmse == pytest.approx(0.25, abs=1e-5)
    assert 0 < found.kl < found.empty.kl


def test_full_masks_in_float64():
    for model, hook_name, ids in (
        (tanh_model(seed=4), "hook_embed", torch.arange(24).unsqueeze(1)),
        (AttentionToy(seed=2), "hook_mid", torch.randint(0, 7, (6, 5), generator=torch.Generator().manual_seed(0))),
    ):
        if ids.shape[1] > 1:
            tokens = causal_tokens(ids)
        else:
            tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids % 4)
        acts = lh.collect_activations(model, hook_name, tokens)
        svd = lh.decompose(acts, method="svd", n_components=acts.shape[1])
        found = evaluate_mask(model, svd, torch.ones(acts.shape[1]).double(), tokens, hook_name=hook_name)
        assert found.nmse <= 1e-12
        assert found.kl <= 1e-12
        assert found.accuracy_drop == 0


@pytest.mark.parametrize("k", [1, 3, 5])
def test_svd_of_rank_k_leaves_the_other_shares(k):
    toy = sign_toy(0.7, base=0.83)
    share = (toy.scales.square() / toy.scales.square().sum()).sort(descending=True).values
    svd = lh.decompose(toy.acts, method="svd", n_components=k)
    found = evaluate_mask(toy.model, svd, torch.ones(k).double(), toy.tokens, hook_name=toy.hook_name)
    assert found.nmse == pytest.approx(1 - float(share[:k].sum()), abs=1e-10)


def test_figures_equal_those_of_the_hooks(pocket_model, pocket_tokens):
    """The whole model with the plain hook, measured by code of another study."""
    name, tokens = "blocks.1.hook_mlp_out", pocket_tokens[:6]
    dictionary = random_dictionary(lh.collect_activations(pocket_model, name, tokens), 20)
    gates = torch.rand(20, generator=torch.Generator().manual_seed(1))
    for knobs in ({}, {"center_codes": False}, {"keep_error": True}):
        found = evaluate_mask(pocket_model, dictionary, gates, tokens, hook_name=name, batch_size=4, **knobs)
        effect = ablation_effect(pocket_model, MaskedReconstruction(name, dictionary, gates, **knobs), tokens)
        assert found.kl == pytest.approx(effect.kl, rel=1e-4)
        assert found.accuracy_drop == pytest.approx(effect.accuracy_drop, abs=0.2)
        assert found.base_ce == pytest.approx(effect.base_ce, rel=1e-5)
        assert found.by_document["kl"].to_numpy() == pytest.approx(effect.by_document["kl"].to_numpy(), rel=1e-3)
        assert found.kl_interval[0] <= found.kl <= found.kl_interval[1]


@pytest.mark.parametrize(("n_left", "n_right"), [(3, 0), (0, 3), (2, 2)])
def test_padding_leaves_every_document_as_it_was(n_left, n_right):
    toy = AttentionToy()
    tokens = causal_tokens(torch.randint(0, 7, (6, 5), generator=torch.Generator().manual_seed(9)))
    dictionary = random_dictionary(lh.collect_activations(toy, "hook_mid", tokens), 4)
    gates = torch.tensor([0.9, 0.2, 0.6, 0.0]).double()
    plain, wide = (
        evaluate_mask(toy, dictionary, gates, t, hook_name="hook_mid", batch_size=4)
        for t in (tokens, padded(tokens, n_left, n_right))
    )
    assert wide.by_document.to_numpy() == pytest.approx(plain.by_document.to_numpy(), rel=1e-9)
    assert wide.nmse == pytest.approx(plain.nmse, rel=1e-12)


def test_padding_of_a_real_model(pocket_model, pocket_tokens):
    plain = pocket_tokens[:3]
    wide = padded(plain, 6, 0, pad_id=1)
    name = "blocks.1.hook_resid_post"
    dictionary = random_dictionary(lh.collect_activations(pocket_model, name, plain), 30)
    gates = torch.rand(30, generator=torch.Generator().manual_seed(3))
    a, b = (evaluate_mask(pocket_model, dictionary, gates, t, hook_name=name).by_document for t in (plain, wide))
    assert b["kl"].to_numpy() == pytest.approx(a["kl"].to_numpy(), rel=1e-3)
    assert b["nmse"].to_numpy() == pytest.approx(a["nmse"].to_numpy(), rel=1e-4)


def test_documents_cut_into_windows_count_as_documents():
    """A model of single positions sees the same in one window of six and in three of two."""
    model = tanh_model()
    ids = torch.randint(0, 24, (7, 6), generator=torch.Generator().manual_seed(4))
    documents = torch.arange(7).unsqueeze(1).expand(7, 6).clone()
    whole = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids % 4, None, documents)
    cut = TokenSet(*(t if t is None else t.reshape(21, 2) for t in whole.tensors()))
    dictionary = random_dictionary(lh.collect_activations(model, "hook_embed", whole), 5)
    gates = torch.rand(5, generator=torch.Generator().manual_seed(5)).double()
    a, b = (evaluate_mask(model, dictionary, gates, t, hook_name="hook_embed") for t in (whole, cut))
    assert b.by_document.to_numpy() == pytest.approx(a.by_document.to_numpy(), rel=1e-9)
    assert b.kl_interval == pytest.approx(a.kl_interval)


def test_fixed_head_and_transfer_figures():
    toy = sign_toy(1.0)
    turned = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(0)).double()).Q
    final_acts = toy.acts @ turned * 1.7 + 0.4
    final = type(toy.model)(final_acts, lambda rows: toy.model.head((rows - 0.4) @ turned.T / 1.7))
    alignment = align_checkpoints(toy.acts, final_acts, ridge=0.0)
    translator = Translator(torch.eye(20).double(), torch.zeros(20).double(), toy.reading_head(range(10)))
    found = scored(toy, gates_on([5, 11, 17]), translator=translator, transfer=Transfer(final, alignment))
    # the final checkpoint is the source turned, scaled and moved, so its figures are the source's
    assert found.transfer_nmse == pytest.approx(0.908402112, abs=1e-8)
    assert found.transfer_kl == pytest.approx(0, abs=1e-10)
    assert found.empty.transfer_kl == pytest.approx(0.2087786, abs=1e-6)
    assert found.empty.transfer_relative_kl == pytest.approx(0.2087786 / 0.4843686, abs=1e-6)
    # the fixed head reads ten signs, of which the mask keeps one
    assert found.full.fixed_head_kl == pytest.approx(0, abs=1e-12)
    assert found.fixed_head_kl > 0.1
    # over the entropy of what it says itself
    logs = toy.reading_head(range(10))(toy.acts).log_softmax(-1)
    entropy = float(-(logs.exp() * logs).sum(-1).mean())
    assert found.fixed_head_relative_kl == pytest.approx(found.fixed_head_kl / entropy, rel=1e-9)
    assert entropy != pytest.approx(found.entropy, rel=0.1)
    one_of_ten = scored(toy, gates_on([5]), translator=translator)
    assert found.fixed_head_kl == pytest.approx(one_of_ten.fixed_head_kl, abs=1e-12)


def test_a_figure_that_was_not_asked_for_is_nan():
    found = scored(sign_toy(1.0), gates_on([5]))
    for name in ("fixed_head_kl", "fixed_head_relative_kl", "transfer_nmse", "transfer_kl", "transfer_relative_kl"):
        assert np.isnan(getattr(found, name))


def test_a_reference_of_nothing_gives_nan():
    toy = sign_toy(0.0)  # the head reads nothing, so ablation costs nothing
    found = scored(toy, gates_on([5]))
    assert found.kl == 0
    assert np.isnan(found.lost_fraction)


def test_order_sign_and_scale_of_components_change_nothing(pocket_model, pocket_tokens):
    name, tokens = "blocks.2.hook_mlp_out", pocket_tokens[:4]
    acts = lh.collect_activations(pocket_model, name, tokens)
    dictionary = random_dictionary(acts, 8)
    gates = torch.rand(8, generator=torch.Generator().manual_seed(2))
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
    factor = torch.tensor([-2.0, 0.5, 3.0, -1.0, 4.0, 0.2, 1.5, -0.3])
    changed = type(dictionary)((dictionary.W_enc * factor)[:, order], (dictionary.W_dec / factor[:, None])[order], acts)
    a = evaluate_mask(pocket_model, dictionary, gates, tokens, hook_name=name)
    b = evaluate_mask(pocket_model, changed, gates[order], tokens, hook_name=name)
    assert b.kl == pytest.approx(a.kl, rel=1e-4)
    assert b.nmse == pytest.approx(a.nmse, rel=1e-4)


def test_several_masks_as_one_by_one(pocket_model, pocket_tokens):
    name, tokens = "blocks.2.hook_mlp_out", pocket_tokens[:4]
    dictionary = random_dictionary(lh.collect_activations(pocket_model, name, tokens), 8)
    masks = {i: torch.rand(8, generator=torch.Generator().manual_seed(i)) for i in range(3)}
    together = evaluate_masks(pocket_model, dictionary, masks, tokens, hook_name=name, batch_size=3)
    for i, gates in masks.items():
        alone = evaluate_mask(pocket_model, dictionary, gates, tokens, hook_name=name)
        assert together[i].kl == pytest.approx(alone.kl, rel=1e-5)
        assert together[i].lost_fraction == pytest.approx(alone.lost_fraction, rel=1e-5)


def test_bad_gates(pocket_model, pocket_tokens):
    name, tokens = "blocks.2.hook_mlp_out", pocket_tokens[:2]
    dictionary = random_dictionary(lh.collect_activations(pocket_model, name, tokens), 8)
    for gates in (torch.ones(7), torch.full((8,), 1.2), torch.full((8,), float("nan"))):
        with pytest.raises(lh.InputError, match=r"[Gg]ates"):
            evaluate_mask(pocket_model, dictionary, gates, tokens, hook_name=name)

"""The fixed head: where it starts, what it can learn, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from sufficiency.toys import RowModel, tanh_model

import tl_lifehist as lh
from tl_lifehist.metrics import kl_divergence, top_row_share
from tl_lifehist.readout import readout_kl
from tl_lifehist.sufficiency.massive import without_massive
from tl_lifehist.sufficiency.translator import Translator, fit_translator, scored_rows
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet


def test_at_the_last_layer_it_starts_perfect_and_stays_so(pocket_model, pocket_tokens):
    found = fit_translator(pocket_model, "blocks.3.hook_resid_post", pocket_tokens[:4], steps=5)
    assert found.history["kl"][0] < 1e-6
    assert found.history["kl"].max() < 0.02
    assert torch.allclose(found.weight, torch.eye(96), atol=0.05)


def test_outside_the_stream_it_starts_at_the_mean_residual(pocket_model, pocket_tokens):
    name, tokens = "blocks.1.hook_mlp_out", pocket_tokens[:4]
    found = fit_translator(pocket_model, name, tokens, steps=1, batch_rows=10_000, learning_rate=1e-9)
    suffix = ModelSuffix(pocket_model, name)
    acts, final = scored_rows(suffix, tokens, 4)
    constant = readout_kl(suffix.head, final, final.mean(0).expand_as(final)).mean()
    assert torch.allclose(found(acts), final.mean(0).expand_as(final), atol=1e-3)
    # rows are drawn with replacement
    assert found.history["kl"][0] == pytest.approx(float(constant), rel=0.1)


@pytest.mark.parametrize("site", ["hook_mlp_out", "hook_resid_post"])
def test_it_learns(pocket_model, pocket_tokens, site):
    name, tokens = f"blocks.1.{site}", pocket_tokens[:8]
    found = fit_translator(pocket_model, name, tokens, steps=60, batch_rows=512)
    suffix = ModelSuffix(pocket_model, name)
    acts, final = scored_rows(suffix, pocket_tokens[8:], 4)  # other text
    kl = [float(readout_kl(suffix.head, final, rows).mean()) for rows in (found(acts), final.mean(0).expand_as(final))]
    assert kl[0] < 0.8 * kl[1]
    assert found.history["kl"].tail(5).mean() < 0.8 * found.history["kl"].head(5).mean()


def test_an_affine_model_is_recovered_whatever_its_scale():
    """A head of the user's own on a model whose suffix is affine: the fit reaches the model's own predictions."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.randn(6, 6, generator=generator).double() / 6**0.5
    read = torch.randn(6, 5, generator=generator).double()
    for scale in (0.01, 1.0, 100.0):
        embedding = (torch.randn(60, 6, generator=generator).double() + 2) * scale
        model = RowModel(embedding, lambda rows, s=scale: (rows / s) @ turn @ read)
        ids = torch.arange(60).unsqueeze(1)
        tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids % 5)
        knobs = {"head": lambda rows, s=scale: rows / s @ read, "batch_rows": 60, "learning_rate": 0.03}
        found = fit_translator(model, "hook_embed", tokens, steps=500, **knobs)
        logits = found.head(found(embedding))
        assert float(kl_divergence(model(ids).squeeze(1), logits).mean().detach()) < 1e-3
        assert found.history["kl"][0] > 0.05


def test_it_is_a_function_of_its_seed(pocket_model, pocket_tokens):
    runs = [
        fit_translator(pocket_model, "blocks.1.hook_mlp_out", pocket_tokens[:3], steps=3, seed=s) for s in (0, 0, 1)
    ]
    assert torch.equal(runs[0].weight, runs[1].weight)
    assert not torch.equal(runs[0].weight, runs[2].weight)


def test_unlabelled_text_is_refused(pocket_model, pocket_tokens):
    nothing = TokenSet(pocket_tokens.ids, pocket_tokens.valid, torch.full_like(pocket_tokens.ids, -100))
    with pytest.raises(lh.InputError, match="scored"):
        fit_translator(pocket_model, "blocks.1.hook_mlp_out", nothing, steps=1)


def test_a_translator_by_hand():
    found = Translator(torch.eye(2).double() * 3, torch.tensor([1.0, -1.0]).double(), lambda rows: rows)
    assert found(torch.tensor([[1.0, 2.0]]).double()).tolist() == [[4.0, 5.0]]


def test_massive_rows_are_found_and_left_out():
    model = tanh_model(seed=1)
    with torch.no_grad():
        model.embedding[7] *= 50
    ids = torch.randint(0, 7, (10, 6), generator=torch.Generator().manual_seed(0))
    ids[3, 2] = 7
    tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids % 4)
    left = without_massive(model, "hook_embed", tokens, 1e-3)
    assert (tokens.valid & ~left.valid).nonzero().tolist() == [[3, 2]]
    assert torch.equal(left.labels, tokens.labels)
    assert without_massive(model, "hook_embed", tokens, 0.0) is tokens
    with pytest.raises(lh.InputError, match="share"):
        without_massive(model, "hook_embed", tokens, 0.6)


def test_the_top_rows_share_is_that_of_one_row_in_a_thousand():
    """Of 4,000 rows in pairs about the mean, four stand out and forty hold much more."""
    scale = torch.ones(2000).double()
    scale[2:20] = 5
    scale[:2] = 10
    x = torch.cat([scale, -scale]).unsqueeze(1) * torch.tensor([[0.6, 0.8]]).double() + 7
    whole = 2 * (2 * 100 + 18 * 25 + 1980)
    assert top_row_share(x) == pytest.approx(400 / whole)
    assert top_row_share(x, 0.01) == pytest.approx((400 + 36 * 25) / whole)
    assert top_row_share(x[:30], 1e-3) == pytest.approx(top_row_share(x[:30], 1 / 30))  # at least one row

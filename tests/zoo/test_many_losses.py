"""Losses under many interventions are those of whole passes, whatever the architecture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from zoo.architectures import POSITIONS, VOCAB, ZOO, D

import tl_lifehist as lh
from tl_lifehist.effects import scored_losses
from tl_lifehist.errors import InputError
from tl_lifehist.many_losses import ManyLosses
from tl_lifehist.tokens import TokenSet


class Shift:
    """Adds a constant at hook points."""

    def __init__(self, names: list[str], by: float) -> None:
        self.names, self.by = names, by

    def fwd_hooks(self, valid=None):
        return [(name, lambda value, hook: value + self.by * torch.ones(D).cumsum(0).to(value)) for name in self.names]


def few_tokens() -> TokenSet:
    ids = torch.randint(0, VOCAB, (6, POSITIONS - 1), generator=torch.Generator().manual_seed(1))
    return TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids.roll(-1, 1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("batch_size", [2, 16])
def test_every_architecture_gets_the_losses_of_whole_passes(name, batch_size):
    model, tokens = ZOO[name](), few_tokens()
    hooks = [point for point in ("blocks.1.hook_resid_post", "blocks.2.hook_resid_post") if point in model.hook_dict]
    sets = [Shift(hooks, 0.3), Shift(hooks[-1:], -0.5), Shift(hooks, 0.1)]
    try:
        wanted = [scored_losses(model, tokens, one, batch_size=batch_size) for one in sets]
    except InputError:
        pytest.skip("a model that is refused in whole passes")
    many = ManyLosses(model, tokens, hooks, batch_size=batch_size)
    np.testing.assert_allclose(many.base, scored_losses(model, tokens, batch_size=batch_size), atol=1e-9)
    for one, losses in zip(sets, wanted, strict=True):
        np.testing.assert_allclose(many.of(one), losses, atol=1e-8)


@pytest.mark.parametrize(
    ("sites", "executed"),
    [
        (["blocks.2.hook_resid_post"], [3]),
        (["blocks.2.hook_resid_post", "blocks.2.hook_mlp_out"], [2, 3]),
        (["blocks.3.hook_resid_post", "blocks.1.hook_resid_post"], [2, 3]),
    ],
)
def test_the_numbers_are_the_same_and_only_the_blocks_above_run(pocket_model, pocket_tokens, make_sae, sites, executed):
    saes = {site: make_sae(seed=i) for i, site in enumerate(sites)}
    ablation = lh.FeatureAblation(saes, {site: range(0, 64, 3) for site in sites})
    many = ManyLosses(pocket_model, pocket_tokens, sites, batch_size=5)
    wanted = scored_losses(pocket_model, pocket_tokens, ablation, batch_size=5)
    np.testing.assert_array_equal(many.of(ablation), wanted)
    assert many.starts_above
    np.testing.assert_array_equal(many.of(None), scored_losses(pocket_model, pocket_tokens, batch_size=5))
    ran: list[int] = []
    handles = [b.attn.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, b in enumerate(pocket_model.blocks)]
    try:
        many.of(ablation)
    finally:
        for handle in handles:
            handle.remove()
    assert ran == executed * 3


def test_batches_that_are_not_stored_are_run_whole(pocket_model, pocket_tokens, make_sae, monkeypatch):
    monkeypatch.setattr("tl_lifehist.many_losses.KEPT", 5 * pocket_tokens.ids.shape[1] * 96)
    site = "blocks.2.hook_resid_post"
    ablation = lh.FeatureAblation({site: make_sae()}, {site: [1, 2, 3]})
    many = ManyLosses(pocket_model, pocket_tokens, [site], batch_size=5)
    np.testing.assert_array_equal(many.of(ablation), scored_losses(pocket_model, pocket_tokens, ablation, batch_size=5))


def test_a_hook_point_that_was_not_named_is_refused(pocket_model, pocket_tokens, make_sae):
    below = "blocks.0.hook_resid_post"
    many = ManyLosses(pocket_model, pocket_tokens[:2], ["blocks.2.hook_resid_post"])
    with pytest.raises(InputError, match="which were not named before"):
        many.of(lh.FeatureAblation({below: make_sae()}, {below: [1]}))

"""Hook points with an axis of heads: rows have the heads side by side, as SAELens has them."""

from __future__ import annotations

import pytest
import torch
from zoo.architectures import BLOCKS, HEADS, ZOO, D, Plain
from zoo.walk import TOLERANCE, WALK, Site, error, tokens_of

import tl_lifehist as lh
from tl_lifehist.hook_rows import flat, with_rows
from tl_lifehist.lifehistory.profiles import profile_saes

TRANSFORMER = "TransformerLens' HookedTransformer"


@pytest.mark.parametrize(
    ("name", "hook_name"),
    [
        ("pre-norm stack", "blocks.1.hook_z"),
        *((TRANSFORMER, f"blocks.{block}.attn.hook_{site}") for block, site in ((2, "z"), (1, "q"), (1, "result"))),
    ],
)
def test_heads_go_through_everything(name, hook_name):
    if name == TRANSFORMER:
        pytest.importorskip("transformer_lens.HookedTransformer", reason="transformer-lens 4 has it no more")
    model = ZOO[name]()
    site = Site(model, hook_name)
    assert site.acts.shape[1] == D * (HEADS if "result" in hook_name else 1)
    for way, walk in WALK.items():
        assert error(walk(site)) < TOLERANCE, way


def test_a_head_of_a_row_is_the_models_head():
    model, tokens = Plain(), tokens_of()
    _, cache = model.run_with_cache(tokens.ids)
    z = cache["blocks.1.hook_z"]
    rows = lh.collect_activations(model, "blocks.1.hook_z", tokens)
    assert torch.equal(rows.unflatten(1, (HEADS, -1)), z[tokens.valid])
    assert torch.equal(with_rows(z, tokens.valid, rows), z)


def test_attention_patterns_are_no_rows_however_many_heads_there_are():
    for heads in (3, 5):
        with pytest.raises(lh.InputError, match="not \\[seq, pos, d_model\\] or"):
            flat(torch.zeros(2, heads, 5, 5), "blocks.0.attn.hook_pattern", (2, 5))
    assert flat(torch.zeros(2, 5, 5, 4), "blocks.0.attn.hook_z", (2, 5)).shape == (2, 5, 20)


@pytest.fixture
def head_sae(saelens):
    """An SAE of `hook_z` as SAELens loads it: it wants heads on an axis of their own."""
    from sae_lens.saes.sae import SAEMetadata
    from sae_lens.saes.topk_sae import TopKSAE, TopKSAEConfig

    hook_name = f"blocks.{BLOCKS - 2}.hook_z"
    config = TopKSAEConfig(
        d_in=D, d_sae=12, k=3, reshape_activations="hook_z", metadata=SAEMetadata(hook_name=hook_name), dtype="float64"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sae = TopKSAE(config)
        sae.W_dec.data = torch.nn.functional.normalize(torch.randn(12, D, dtype=torch.float64), dim=1)
        sae.W_enc.data = sae.W_dec.data.T.contiguous()
    return sae.requires_grad_(False).eval()


def test_an_attention_output_sae_in_profiles_ablations_and_masks(head_sae, tmp_path):
    model, tokens, hook_name = Plain(), tokens_of(), head_sae.cfg.metadata.hook_name
    rows = lh.collect_activations(model, hook_name, tokens)
    with pytest.raises(lh.InputError, match="turn_off_forward_pass_hook_z_reshaping"):
        lh.with_reference(head_sae, rows)
    head_sae.save_model(tmp_path)
    sae = lh.load_sae(tmp_path)
    codes = sae.encode(rows)
    profile = profile_saes(model, {hook_name: sae}, tokens)[hook_name]
    assert profile.acts.nnz == int((codes > profile.firing_threshold).sum())
    referenced = lh.with_reference(sae, rows)
    ablation = lh.FeatureAblation({hook_name: referenced}, {hook_name: [0, 5]})
    effect = lh.ablation_effect(model, ablation, tokens)
    mask = torch.linspace(0, 1, 12, dtype=torch.float64)
    found = lh.evaluate_mask(model, referenced, mask, tokens, hook_name=hook_name)
    site = Site(model, hook_name)
    wanted = {
        "ablation": rows - codes[:, [0, 5]] @ sae.W_dec[[0, 5]],
        "mask": rows.mean(0) + (mask * (codes - codes.mean(0))) @ sae.W_dec,
    }
    for name, kl in (("ablation", effect.kl), ("mask", found.kl)):
        changed = site.passed(lambda _, name=name: wanted[name])[0].detach()
        p = site.clean.log_softmax(-1)
        by_hand = (p.exp() * (p - changed.log_softmax(-1))).sum(-1).mean()
        assert kl == pytest.approx(float(by_hand), rel=1e-5), name

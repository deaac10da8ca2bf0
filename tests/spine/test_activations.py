from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from toys import LinearToy, NaNToy, TwiceToy

import tl_lifehist as lh
from tl_lifehist.activations import NonFiniteActivations, stream_activations
from tl_lifehist.errors import InputError
from tl_lifehist.models import run_model
from tl_lifehist.tokens import TokenSet

HOOKS = ["blocks.0.hook_resid_post", "blocks.2.hook_mlp_out"]


def test_rows_are_the_valid_positions_in_order(pocket_model, pocket_tokens):
    _, cache = pocket_model.run_with_cache(pocket_tokens.ids)
    for name in HOOKS:
        rows = lh.collect_activations(pocket_model, name, pocket_tokens, batch_size=5)
        assert rows.shape == (pocket_tokens.n_valid, 96)
        torch.testing.assert_close(rows, cache[name][pocket_tokens.valid], rtol=1e-5, atol=1e-5)


def test_later_batches_run_no_block_beyond_the_last_one_needed(pocket_model, pocket_tokens):
    seen = []
    with pocket_model.hooks(
        fwd_hooks=[(f"blocks.{i}.hook_resid_post", lambda v, hook, i=i: seen.append(i)) for i in range(4)]
    ):
        list(stream_activations(pocket_model, ["blocks.1.hook_resid_post"], pocket_tokens, batch_size=6))
        seen.clear()  # the first time, two sequences are run again
        list(stream_activations(pocket_model, ["blocks.1.hook_resid_post"], pocket_tokens, batch_size=6))
    assert seen == [0, 1, 2, 3, 0, 1]


def test_padding_changes_no_row(pocket_model, pocket_tokens):
    short = pocket_tokens[:3]
    padded_ids = torch.cat([short.ids, torch.zeros(3, 20, dtype=torch.long)], dim=1)
    keep = torch.cat([torch.ones_like(short.ids), torch.zeros(3, 20, dtype=torch.long)], dim=1)
    valid = torch.cat([short.valid, torch.zeros(3, 20, dtype=torch.bool)], dim=1)
    padded = TokenSet(padded_ids[:, :128], valid[:, :128], torch.full((3, 128), -100), keep[:, :128])
    for name in HOOKS:
        torch.testing.assert_close(
            lh.collect_activations(pocket_model, name, padded), lh.collect_activations(pocket_model, name, short)
        )


def test_a_hand_written_model_and_float64_are_kept():
    ids = torch.tensor([[0, 1, 2], [4, 5, 6]])
    tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), torch.full_like(ids, -100))
    rows = lh.collect_activations(LinearToy(), "hook_embed", tokens)
    assert rows.dtype == torch.float64
    assert torch.equal(rows, LinearToy().embed.detach()[ids].reshape(-1, 5))


def test_nan_names_hook_sequence_and_position():
    ids = torch.tensor([[0, 1, 2], [4, 3, 6]])
    tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), torch.full_like(ids, -100))
    with pytest.raises(NonFiniteActivations, match=r"'hook_embed', sequence 1, position 1 is NaN"):
        lh.collect_activations(NaNToy(), "hook_embed", tokens, batch_size=1)
    assert not any(point.fwd_hooks for point in NaNToy().hook_dict.values())


def test_nan_in_a_series_names_the_step():
    from toys import AxisDictionary

    ids = torch.tensor([[0, 1, 3]])
    tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), torch.full_like(ids, -100))
    with pytest.raises(InputError, match="Step 70: .*'hook_embed'"):
        lh.profile_saes(NaNToy(), {"hook_embed": AxisDictionary(5)}, tokens, step=70)


def test_bad_hook_points_and_empty_sets_are_named(pocket_model, pocket_tokens):
    with pytest.raises(InputError, match=r"nearest names are: .*blocks.3.hook_resid_post"):
        lh.collect_activations(pocket_model, "blocks.3.hook_residpost", pocket_tokens)
    with pytest.raises(InputError, match=r"not \[seq, pos, d_model\]"):
        lh.collect_activations(pocket_model, "blocks.0.attn.hook_pattern", pocket_tokens)
    tokens = TokenSet(torch.tensor([[1]]), torch.tensor([[True]]), torch.tensor([[-100]]))
    with pytest.raises(InputError, match="fired 2 times"):
        lh.collect_activations(TwiceToy(), "hook_twice", tokens)
    none = TokenSet(pocket_tokens.ids, torch.zeros_like(pocket_tokens.valid), pocket_tokens.labels)
    with pytest.raises(InputError, match="No position is valid"):
        lh.collect_activations(pocket_model, HOOKS[0], none)


def test_ids_outside_the_vocabulary_are_named(pocket_model):
    tokens = TokenSet(torch.tensor([[0, 5000]]), torch.tensor([[True, True]]), torch.tensor([[-100, -100]]))
    with pytest.raises(InputError, match="Token id 5000 is outside the model's vocabulary of 1024"):
        lh.collect_activations(pocket_model, HOOKS[0], tokens)


def test_hooked_transformer_and_bridge_give_the_same_rows(hooked_transformer_classes):
    HookedTransformer, HookedTransformerConfig = hooked_transformer_classes
    config = HookedTransformerConfig(
        n_layers=2, d_model=16, n_ctx=8, d_head=8, n_heads=2, d_vocab=11, act_fn="gelu", seed=0
    )
    model = HookedTransformer(config).eval()
    ids = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids.roll(-1, 1))
    _, cache = model.run_with_cache(ids)
    rows = lh.collect_activations(model, "blocks.0.hook_resid_post", tokens, batch_size=1)
    torch.testing.assert_close(rows, cache["blocks.0.hook_resid_post"].reshape(-1, 16))
    from toys import AxisDictionary

    dictionary = {"blocks.0.hook_resid_post": AxisDictionary(16, dtype=torch.float32)}
    effect = lh.ablation_effect(model, lh.FeatureAblation(dictionary, {"blocks.0.hook_resid_post": [0, 3]}), tokens)
    assert effect.kl > 0


def test_windows_beyond_the_embeddings_of_positions_are_named():
    model = LinearToy()
    model.cfg = SimpleNamespace(positional_embedding_type="standard", n_ctx=8, d_vocab=5)
    with pytest.raises(InputError, match=r"Windows of 9 positions are longer than the 8 .*--context-size"):
        run_model(model, torch.zeros(1, 9, dtype=torch.long))
    assert run_model(model, torch.zeros(1, 8, dtype=torch.long)).shape[1] == 8

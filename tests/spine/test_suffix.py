"""The part of a model above a hook point gives what the whole model gives, and runs no block below."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tl_lifehist as lh
from tl_lifehist.models import frozen, run_model
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet

SITES = ("hook_resid_pre", "hook_attn_out", "hook_mlp_out", "hook_resid_post")


@pytest.fixture(scope="module")
def hooked_transformer(hooked_transformer_classes):
    HookedTransformer, HookedTransformerConfig = hooked_transformer_classes
    config = HookedTransformerConfig(
        n_layers=3, d_model=16, n_ctx=24, d_head=8, n_heads=2, d_mlp=32, act_fn="gelu", d_vocab=37, seed=5
    )
    return HookedTransformer(config).eval()


def random_tokens() -> TokenSet:
    """Sequences for the random model, the first position of each not valid."""
    ids = torch.randint(0, 37, (4, 11), generator=torch.Generator().manual_seed(2))
    labels = torch.cat([ids[:, 1:], torch.full((4, 1), -100)], dim=1)
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[:, 0] = False
    return TokenSet(ids, valid, labels)


def padded(tokens: TokenSet, side: str, pad: int = 5) -> TokenSet:
    """The same sequences with `pad` masked positions on one side."""
    ends = {"left": (pad, 0), "right": (0, pad)}[side]

    def wide(tensor: Tensor, value: int) -> Tensor:
        return nn.functional.pad(tensor.long(), ends, value=value).to(tensor.dtype)

    assert tokens.documents is not None
    return TokenSet(
        wide(tokens.ids, 3),
        wide(tokens.valid, 0),
        wide(tokens.labels, -100),
        wide(torch.ones_like(tokens.ids), 0),
        wide(tokens.documents, 0),
    )


def by_hooks(model, hook_name: str, tokens: TokenSet, rows: Tensor) -> Tensor:
    """What a user would write: the whole model with a hook."""

    def replace(value, hook):
        changed = value.clone()
        changed[tokens.valid] = rows
        return changed

    with model.hooks(fwd_hooks=[(hook_name, replace)]):
        return run_model(model, tokens.ids, tokens.attention_mask)[tokens.scored]


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("layer", [0, 1, 3])
def test_bridge_agrees_with_hooks_to_the_last_bit(pocket_model, pocket_tokens, site, layer):
    name, batch = f"blocks.{layer}.{site}", pocket_tokens[:3]
    suffix = ModelSuffix(pocket_model, name)
    with torch.no_grad():
        prefix = suffix.run_prefix(batch)
        rows = prefix.acts * 0.7 + 0.1
        assert torch.equal(suffix.run_suffix(prefix, prefix.acts), prefix.final)
        assert torch.allclose(
            suffix.head(suffix.run_suffix(prefix, rows)), by_hooks(pocket_model, name, batch, rows), atol=2e-5
        )
        assert torch.allclose(suffix.head(prefix.final), run_model(pocket_model, batch.ids)[batch.scored], atol=2e-5)


@pytest.mark.parametrize("site", [*SITES, "hook_resid_mid"])
def test_hooked_transformer_agrees_with_hooks(hooked_transformer, site):
    tokens = random_tokens()
    for layer in range(3):
        name = f"blocks.{layer}.{site}"
        suffix = ModelSuffix(hooked_transformer, name)
        with torch.no_grad():
            prefix = suffix.run_prefix(tokens)
            rows = -prefix.acts
            assert torch.allclose(
                suffix.head(suffix.run_suffix(prefix, rows)),
                by_hooks(hooked_transformer, name, tokens, rows),
                atol=1e-5,
            )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("site", ["hook_mlp_out", "hook_resid_post"])
def test_padding_changes_nothing(pocket_model, pocket_tokens, side, site):
    plain = pocket_tokens[:2]
    wide = padded(plain, side)
    suffix = ModelSuffix(pocket_model, f"blocks.1.{site}")
    with torch.no_grad():
        a, b = suffix.run_prefix(plain), suffix.run_prefix(wide)
        assert torch.allclose(a.acts, b.acts, atol=1e-5)
        assert torch.allclose(suffix.run_suffix(a, a.acts * 0.5), suffix.run_suffix(b, b.acts * 0.5), atol=2e-5)


def assert_only_these_run(model, hook_name: str, tokens: TokenSet, executed: list[int]) -> None:
    """`final` runs the attention of these blocks, each once, and `head` that of none."""
    suffix = ModelSuffix(model, hook_name)
    with torch.no_grad():
        prefix = suffix.run_prefix(tokens)
    ran: list[int] = []
    handles = [block.attn.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, block in enumerate(model.blocks)]
    try:
        with torch.no_grad():
            suffix.run_suffix(prefix, prefix.acts)
            assert ran == executed
            suffix.head(prefix.final)
            assert ran == executed
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(("site", "executed"), [("hook_resid_post", [3]), ("hook_mlp_out", [2, 3])])
def test_only_the_blocks_above_run(pocket_model, pocket_tokens, site, executed):
    assert_only_these_run(pocket_model, f"blocks.2.{site}", pocket_tokens[:2], executed)


@pytest.mark.parametrize(
    ("site", "executed"), [("hook_resid_post", [2]), ("hook_mlp_out", [1, 2]), ("hook_resid_pre", [1, 2])]
)
def test_only_the_blocks_above_run_in_a_hooked_transformer(hooked_transformer, site, executed):
    assert_only_these_run(hooked_transformer, f"blocks.1.{site}", random_tokens(), executed)


def test_gradients_equal_those_through_the_whole_model(pocket_model, pocket_tokens):
    name, batch = "blocks.1.hook_mlp_out", pocket_tokens[:2]
    suffix = ModelSuffix(pocket_model, name)
    prefix = suffix.run_prefix(batch)
    slopes = []
    with frozen(pocket_model):
        for run in (
            lambda rows: suffix.head(suffix.run_suffix(prefix, rows)),
            lambda rows: by_hooks(pocket_model, name, batch, rows),
        ):
            rows = prefix.acts.clone().requires_grad_()
            run(rows).log_softmax(-1)[:, 7].sum().backward()
            slopes.append(rows.grad)
    assert torch.allclose(slopes[0], slopes[1], atol=1e-5, rtol=1e-4)


def test_nothing_is_left_on_the_model(pocket_model, pocket_tokens):
    suffix = ModelSuffix(pocket_model, "blocks.1.hook_resid_post")
    batch = pocket_tokens[:2]
    before = run_model(pocket_model, batch.ids)
    asked = [p.requires_grad for p in pocket_model.parameters()]
    prefix = suffix.run_prefix(batch)
    with pytest.raises(RuntimeError, match="shape"), frozen(pocket_model):
        suffix.run_suffix(prefix, torch.zeros(3, 96))
    assert [p.requires_grad for p in pocket_model.parameters()] == asked
    assert not any("forward" in block.__dict__ for block in pocket_model.blocks)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in pocket_model.blocks)
    assert torch.equal(run_model(pocket_model, batch.ids), before)


def test_entries_of_chosen_sequences(pocket_model, pocket_tokens):
    suffix = ModelSuffix(pocket_model, "blocks.2.hook_mlp_out")
    whole = suffix.run_prefix_all(pocket_tokens[:5], batch_size=2)
    chosen = torch.tensor([4, 1])
    part = whole[chosen]
    direct = suffix.run_prefix(pocket_tokens[chosen])
    assert len(part) == 2
    assert torch.allclose(part.acts, direct.acts, atol=1e-5)
    assert torch.allclose(part.final, direct.final, atol=2e-5)
    assert torch.equal(part.scored_row, direct.scored_row)


def test_unknown_hook_point(pocket_model):
    with pytest.raises(lh.InputError, match="nearest names"):
        ModelSuffix(pocket_model, "blocks.1.hook_mlp_output")


def test_a_model_in_training_mode_is_refused(hooked_transformer):
    hooked_transformer.train()
    try:
        with pytest.raises(lh.InputError, match="training mode"):
            ModelSuffix(hooked_transformer, "blocks.1.hook_mlp_out")
    finally:
        hooked_transformer.eval()
    assert ModelSuffix(hooked_transformer, "blocks.1.hook_mlp_out").has_blocks

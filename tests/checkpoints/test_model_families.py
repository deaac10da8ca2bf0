"""Every family, loaded by its name from the emulated hub, is the model that transformers runs."""

from __future__ import annotations

import pytest
import torch
from checkpoints.families import FAMILIES, MASKED_FAMILIES, build

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.effects import ablation_effect, scored_logits
from tl_lifehist.interventions import FeatureAblation, MaskedReconstruction
from tl_lifehist.models import exactly_once
from tl_lifehist.tokens import TokenSet

SITES = ("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post")
PARALLEL = ("GPT-NeoX",)  # attention and MLP side by side: there is no residual stream between them


class Rotated:
    """A complete dictionary: an orthonormal basis around a mean."""

    def __init__(self, d_model: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.W_dec = torch.linalg.qr(torch.randn(d_model, d_model, generator=generator)).Q
        self.x_mean = torch.randn(d_model, generator=generator)
        self.code_mean, self.code_sample = torch.zeros(d_model), torch.zeros(1, d_model)

    def encode(self, x):
        return (x - self.x_mean) @ self.W_dec.T

    def decode(self, codes):
        return self.x_mean + codes @ self.W_dec


@pytest.fixture(params=list(FAMILIES))
def family(request):
    return request.param


@pytest.fixture
def loaded(published, family):
    """The first checkpoint of a family: through the hub and the bridge, and as it was built."""
    repo = FAMILIES[family][2]
    if family == "ModernBERT":  # its steps lie in a repository of their own
        repo = "almanach/moderncamembert-base-ckpts"
    series = CheckpointSeries.from_hub(repo, cache_dir=published.cache, device="cpu")
    return series.load(series.steps[0]), build(family, series.steps[0] if family == "ModernBERT" else 0)


def tokens_for(family, masked_tokenizer, tiny_tokenizer):
    generator = torch.Generator().manual_seed(1)
    texts = [" ".join(f"w{i}" for i in torch.randint(4, 64, (n,), generator=generator)) for n in (60, 13, 40)]
    if family in MASKED_FAMILIES:
        return TokenSet.for_masked_lm(texts, masked_tokenizer, context_size=20, mask_rate=0.3)
    return TokenSet.from_texts(texts, tiny_tokenizer, context_size=20)


def padded(side):
    ids = torch.randint(4, 64, (3, 20), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if side == "left":
        mask[0, :6], mask[1, :13] = 0, 0
    elif side == "right":
        mask[0, -6:], mask[1, -13:] = 0, 0
    # Absolute positions count from the first real token; transformers is told so, the bridge finds out.
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def test_the_masked_models_boot_by_name_once_the_package_is_imported(published, ids):
    # One test for both, for transformers keeps the address that it asks for chat templates.
    from transformer_lens.model_bridge import TransformerBridge

    for name, family, seed in (
        ("EuroBERT/EuroBERT-210m", "EuroBERT", 99),
        ("almanach/moderncamembert-base", "ModernBERT", 0),
    ):
        bridge = TransformerBridge.boot_transformers(name, device="cpu")
        torch.testing.assert_close(bridge(ids), build(family, seed)(ids).logits, atol=1e-5, rtol=0)
        assert bridge.cfg.architecture == FAMILIES[family][0]
        assert bridge.tokenizer.mask_token_id == 3


@torch.no_grad()
def test_logits_are_those_of_transformers_with_and_without_padding(loaded, family):
    bridge, reference = loaded
    for side in ("none", "right", "left"):
        ids, mask, positions = padded(side)
        asked = {} if side == "none" else {"attention_mask": mask}
        expected = reference(ids, **asked, **({"position_ids": positions} if side == "left" else {})).logits
        real = mask.bool()
        torch.testing.assert_close(bridge(ids, **asked)[real], expected[real], atol=1e-5, rtol=0)
        if side == "left" or (side == "right" and family in MASKED_FAMILIES):  # what was hidden could have been seen
            assert float((bridge(ids)[real] - expected[real]).abs().max()) > 1e-3


@torch.no_grad()
def test_every_hook_point_of_a_block_holds_what_the_block_computes_and_fires_once(loaded, family):
    bridge, reference = loaded
    ids, mask, _ = padded("right")
    seen: dict[str, torch.Tensor] = {}
    names = [
        f"blocks.{i}.{site}" for i in range(3) for site in SITES if (family, site) != (*PARALLEL, "hook_resid_mid")
    ]
    hooks = [(name, lambda value, hook, name=name: seen.__setitem__(name, value.clone())) for name in names]
    with exactly_once(bridge, hooks):
        bridge(ids, attention_mask=mask)
    expected = by_hand(reference, ids, mask)
    assert set(names) <= set(expected)
    for name in names:
        torch.testing.assert_close(
            seen[name], expected[name], atol=2e-6, rtol=0, msg=lambda text, n=name: f"{n}: {text}"
        )


def by_hand(model, ids, mask):
    """The residual stream and what is added to it, from forward hooks on transformers' own modules."""
    base = model.base_model
    blocks = getattr(base, "layers", getattr(base, "h", None))
    found: dict[str, torch.Tensor] = {}

    def keep(name, which):
        def hook(module, args, kwargs, out):
            value = {"in": lambda: args[0] if args else kwargs["hidden_states"], "out": lambda: out}[which]()
            found[name] = (value[0] if isinstance(value, tuple) else value).clone()

        return hook

    handles = []
    for i, block in enumerate(blocks):
        parts = dict(block.named_children())
        attention = next(parts[n] for n in ("self_attn", "attention", "attn") if n in parts)
        attn_out, mlp_out = attention, parts["mlp"]
        if "post_feedforward_layernorm" in parts:  # OLMo 2 norms what is added, so that is what counts
            attn_out, mlp_out = parts["post_attention_layernorm"], parts["post_feedforward_layernorm"]
        for module, site, which in (
            (block, "hook_resid_pre", "in"),
            (attn_out, "hook_attn_out", "out"),
            (mlp_out, "hook_mlp_out", "out"),
            (block, "hook_resid_post", "out"),
        ):
            handle = module.register_forward_hook(keep(f"blocks.{i}.{site}", which), with_kwargs=True)
            handles.append(handle)
    model(ids, attention_mask=mask)
    for handle in handles:
        handle.remove()
    for i in range(len(blocks)):
        before, added = found[f"blocks.{i}.hook_resid_pre"], found[f"blocks.{i}.hook_attn_out"]
        found[f"blocks.{i}.hook_resid_mid"] = before + added
    return found


@torch.no_grad()
def test_a_changed_last_residual_goes_through_the_whole_head(loaded, family):
    bridge, reference = loaded
    ids, _, _ = padded("none")
    residual = torch.randn(3, 20, 32, generator=torch.Generator().manual_seed(2))
    with bridge.hooks(fwd_hooks=[("blocks.2.hook_resid_post", lambda value, hook: residual)]):
        changed = bridge(ids)
    base = reference.base_model
    norm = next(getattr(base, n) for n in ("final_layer_norm", "final_norm", "norm", "ln_f") if hasattr(base, n))
    head = getattr(reference, "head", torch.nn.Identity())
    torch.testing.assert_close(changed, reference.get_output_embeddings()(head(norm(residual))), atol=1e-5, rtol=0)


@torch.no_grad()
def test_open_gates_of_a_complete_dictionary_and_an_ablation_of_nothing_change_nothing(
    loaded, family, masked_tokenizer, tiny_tokenizer
):
    bridge, _ = loaded
    tokens = tokens_for(family, masked_tokenizer, tiny_tokenizer)
    assert tokens.attention_mask is not None
    clean = scored_logits(bridge, tokens, None)
    for hook_name in ("blocks.1.hook_mlp_out", "blocks.2.hook_resid_post"):
        complete = Rotated(32)
        for keep_error in (False, True):
            opened = MaskedReconstruction(hook_name, complete, torch.ones(32), keep_error=keep_error)
            torch.testing.assert_close(scored_logits(bridge, tokens, opened), clean, atol=1e-4, rtol=0)
        closed = MaskedReconstruction(hook_name, complete, torch.zeros(32))
        assert float((scored_logits(bridge, tokens, closed) - clean).abs().max()) > 1e-2
        nothing = FeatureAblation({hook_name: complete}, {hook_name: []})
        assert torch.equal(scored_logits(bridge, tokens, nothing), clean)
        effect = ablation_effect(bridge, nothing, tokens)
        assert (effect.delta_ce, effect.kl, effect.accuracy_drop) == (0, 0, 0)
        assert effect.n_scored == tokens.n_scored > 10
        something = ablation_effect(bridge, FeatureAblation({hook_name: complete}, {hook_name: range(16)}), tokens)
        assert something.kl > 1e-3

"""The self-check finds what it should, nothing else, once, and at little cost."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import Tensor, nn
from zoo.architectures import (
    BLOCKS,
    Block,
    D,
    Draw,
    EmbeddingInHead,
    Experts,
    KeptActivation,
    LeftOpen,
    Noise,
    Parallel,
    Plain,
    Sandwich,
    SoftCaps,
    Stack,
    UNet,
)
from zoo.walk import tokens_of

import tl_lifehist as lh
from tl_lifehist import self_check
from tl_lifehist.suffix import ModelSuffix

INSIDE, BEHIND = "blocks.1.hook_mlp_out", "blocks.2.hook_resid_post"


class GatedSkip(Stack):
    """A U-net skip behind a weight that starts at 0."""

    def more(self, draw: Draw) -> None:
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, ids: Tensor) -> Tensor:
        x = first = self.blocks[0](self.embed(ids))
        for block in list(self.blocks)[1:]:
            x = block(x)
        return self.head(x + self.weight * first)


class KeptByShape(Stack):
    """A later block reads what an earlier one has kept for inputs of this shape."""

    class block(Block):
        def __init__(self, draw: Draw) -> None:
            super().__init__(draw)
            self.kept: dict[torch.Size, Tensor] = {}
            self.reads: dict[torch.Size, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x + 0.5 * self.reads.get(x.shape, torch.zeros_like(x)))
            self.kept[x.shape] = x.detach()
            return x

    def more(self, draw: Draw) -> None:
        self.blocks[3].reads = self.blocks[1].kept


def plain_hooks(model, hook_name: str, tokens, rows: Tensor) -> Tensor:
    def replace(value, hook):
        changed = value.clone()
        changed[tokens.valid] = rows.to(changed)
        return changed

    with torch.no_grad(), model.hooks(fwd_hooks=[(hook_name, replace)]):
        return model(tokens.ids)[tokens.scored]


def run(model, hook_name: str, tokens=None) -> tuple[Tensor, Tensor, list[str]]:
    """Predictions with other rows, those of plain hooks, and what the user is told."""
    tokens = tokens_of() if tokens is None else tokens
    suffix = ModelSuffix(model, hook_name)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prefix = suffix.run_prefix(tokens)
        rows = 0.6 * prefix.acts + 0.2
        found = suffix.head(suffix.run_suffix(prefix, rows))
    return found, plain_hooks(model, hook_name, tokens, rows), [str(one.message) for one in caught]


def assert_same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [Plain, Parallel, Sandwich, Experts, SoftCaps])
def test_a_plain_stack_is_run_in_part_in_any_arithmetic(make, dtype):
    model = make().to(dtype)
    for hook_name in (INSIDE, BEHIND):
        _, _, told = run(model, hook_name)
        assert not told
        assert ModelSuffix(model, hook_name).has_blocks
    assert self_check.known_of(model).skips == {INSIDE: True, BEHIND: True}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [UNet, EmbeddingInHead])
def test_what_is_no_plain_stack_is_found_in_any_arithmetic(make, dtype):
    found, wanted, told = run(make().to(dtype), INSIDE)
    assert len(told) == 1
    torch.testing.assert_close(found, wanted, atol=1e-9 if dtype == torch.float64 else 0.1, rtol=0)


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
def test_a_weak_skip_is_found_too(size):
    model = GatedSkip()
    model.weight.data += size
    found, wanted, told = run(model, INSIDE)
    assert len(told) == 1
    assert_same(found, wanted)


def test_clean_rows_alone_would_not_show_what_a_model_has_kept():
    """With one sequence, what is kept of the clean pass is right for clean rows."""
    for model in (KeptByShape(), KeptActivation()):
        found, wanted, told = run(model, "blocks.1.hook_resid_post", tokens_of()[:1])
        assert len(told) == 1
        assert "depends on more than the residual stream" in told[0]
        assert_same(found, wanted)


def test_each_hook_point_is_checked():
    model = UNet()
    for hook_name, n_told in ((BEHIND, 0), (INSIDE, 1)):
        found, wanted, told = run(model, hook_name)
        assert len(told) == n_told
        assert_same(found, wanted)
    assert self_check.known_of(model).skips == {BEHIND: True, INSIDE: False}


def test_other_weights_are_checked_anew():
    model = GatedSkip()
    for change, n_told in ((0.0, 0), (1.0, 1), (-1.0, 0)):
        with torch.no_grad():
            model.weight += change
        found, wanted, told = run(model, INSIDE)
        assert len(told) == n_told
        assert_same(found, wanted)


def test_the_warning_says_where_and_why_once():
    model = EmbeddingInHead()
    first, second = run(model, BEHIND)[2], run(model, BEHIND)[2]
    assert len(first) == 1
    assert BEHIND in first[0]
    assert "does not read that block's output alone" in first[0]
    assert not second


def positions_run(model) -> list[int]:
    """Filled with the positions that each block works on."""
    seen: list[int] = []
    for block in model.blocks:
        block.hook_attn_out.register_forward_hook(lambda module, args, out: seen.append(out.shape[0] * out.shape[1]))
    return seen


@pytest.mark.parametrize("hook_name", ["blocks.0.hook_resid_pre", INSIDE, BEHIND, "blocks.3.hook_resid_post"])
def test_the_check_costs_two_passes_of_two_sequences_once(hook_name):
    model, tokens = Plain(), tokens_of(4)
    seen = positions_run(model)
    suffix = ModelSuffix(model, hook_name)
    with torch.no_grad():
        suffix.run_prefix(tokens)
        first = sum(seen)
        seen.clear()
        suffix.run_prefix(tokens)
    usual = sum(seen)
    of_two = BLOCKS * 2 * tokens.ids.shape[1]
    single = 3 * BLOCKS  # passes of one token
    assert usual == BLOCKS * tokens.ids.numel()
    assert first - usual <= 2 * of_two + 2 * tokens.ids.shape[1] + single
    assert first > usual


def test_the_check_of_collected_activations_costs_two_passes_of_two_sequences_once():
    model, tokens = Plain(), tokens_of(4)
    seen = positions_run(model)
    lh.collect_activations(model, INSIDE, tokens)
    first = sum(seen)
    seen.clear()
    lh.collect_activations(model, INSIDE, tokens)
    assert 0 < first - sum(seen) <= 2 * BLOCKS * 2 * tokens.ids.shape[1]


def test_what_is_known_goes_with_the_model():
    model = Plain()
    run(model, INSIDE)
    gc.collect()
    before = len(self_check._KNOWN)
    assert model in self_check._KNOWN
    del model
    gc.collect()
    assert len(self_check._KNOWN) == before - 1


def test_a_head_that_is_asked_before_any_text():
    rows = torch.randn(3, D, dtype=torch.float64)
    assert_same(ModelSuffix(Plain(), BEHIND).head(rows), Plain().head(rows))
    logits = torch.randn(3, 11, dtype=torch.float64)
    with pytest.warns(UserWarning, match="the whole model is run"):
        assert ModelSuffix(EmbeddingInHead(), BEHIND).head(logits) is logits


class Wrapped:
    """A model that cannot be held weakly."""

    __slots__ = ("blocks", "inner")

    def __init__(self, inner) -> None:
        self.inner, self.blocks = inner, inner.blocks

    def hooks(self, fwd_hooks=(), bwd_hooks=()):
        return self.inner.hooks(fwd_hooks=fwd_hooks, bwd_hooks=bwd_hooks)

    @property
    def hook_dict(self):
        return self.inner.hook_dict

    def __call__(self, ids):
        return self.inner(ids)


def test_a_model_that_cannot_be_held_weakly():
    for inner, n_told in ((Plain(), 0), (UNet(), 1)):
        found, wanted, told = run(Wrapped(inner), INSIDE)
        assert len(told) == n_told
        assert_same(found, wanted)


def test_what_no_pass_agrees_on_is_an_error():
    with torch.random.fork_rng(devices=[]), pytest.raises(lh.InputError, match="noise or keeps a state"):
        run(Noise(), INSIDE)


def test_a_pass_is_not_ended_where_the_next_one_would_change():
    model, tokens = LeftOpen(), tokens_of(4)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens.ids)
    rows = lh.collect_activations(model, INSIDE, tokens, batch_size=1)
    assert_same(rows, cache[INSIDE][tokens.valid])
    assert self_check.known_of(model).collects == {(INSIDE,): False}


def test_padded_vocabularies_are_no_difference():
    """Entries of -inf, and of the least number there is, are no difference."""

    class Padded(Plain):
        def head(self, x: Tensor) -> Tensor:
            logits = super().head(x)
            logits[..., -1] = float("-inf")
            logits[..., -2] = torch.finfo(logits.dtype).min
            return logits

    for dtype in (torch.float64, torch.float32):
        known = Padded().to(dtype)
        tokens = tokens_of()
        suffix = ModelSuffix(known, INSIDE)
        with torch.no_grad():
            suffix.run_prefix(lh.TokenSet(tokens.ids % 9, tokens.valid, tokens.labels % 9))
        assert self_check.known_of(known).skips == {INSIDE: True}


@pytest.mark.parametrize("make", [Plain, EmbeddingInHead])
def test_logits_that_do_not_fit_are_made_again(make, monkeypatch):
    """A residual is kept whatever its size; logits of a text are not."""
    tokens, found = tokens_of(5), []
    for kept in (2**28, 0):
        monkeypatch.setattr("tl_lifehist.suffix.KEPT", kept)
        suffix = ModelSuffix(make(), BEHIND)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prefix = suffix.run_prefix_all(tokens, 2)
            chosen = prefix[torch.tensor([3, 0])]
            found.append((prefix.final, chosen.final, suffix.run_suffix(chosen, 0.5 * chosen.acts)))
        assert (prefix.last is None) == (kept == 0 and make is EmbeddingInHead)
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


def test_a_fixed_head_reads_row_by_row():
    def beside(rows: Tensor) -> Tensor:
        return (rows - rows.mean(dim=0)) @ Plain().unembedding.detach()

    with pytest.raises(lh.InputError, match="read row by row"):
        lh.fit_translator(Plain(), BEHIND, tokens_of(), head=beside, steps=1)

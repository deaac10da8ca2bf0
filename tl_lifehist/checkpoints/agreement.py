"""Is the bridge the model? Both are run on the same few tokens whenever a checkpoint is loaded."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tl_lifehist.errors import InputError

N_TOKENS = 12  # of each of the two sequences: drawn from the vocabulary with seed 0, the second padded on the right
N_PADDED = 4
# Largest root mean square of what the logits differ by, over their own standard deviation. Rounding stays far below in
# single precision; in half precision it passes through every block.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@dataclass(frozen=True)
class Probe:
    """Two sequences and the logits that the Hugging Face model gives for them, at the positions that are real."""

    ids: Int[Tensor, "one pos"]
    mask: Int[Tensor, "one pos"] | None
    whole: Float[Tensor, "pos d_vocab"]  # of the sequence without a mask
    padded: Float[Tensor, "real d_vocab"]  # of the sequence whose end is masked; empty of a model that takes no mask


@torch.no_grad()
def probe(hf_model: Any, step: int) -> Probe:
    """The Hugging Face model's logits, before a bridge is built around its modules.

    Raises:
        InputError: NaN or infinite logits (a run that diverged, or a damaged file of the right length).
    """
    generator = torch.Generator().manual_seed(0)
    length = min(N_TOKENS, getattr(hf_model.config, "max_position_embeddings", None) or N_TOKENS)
    ids = torch.randint(0, hf_model.config.vocab_size, (1, length), generator=generator)
    mask: Tensor | None = torch.ones_like(ids)
    mask[:, -min(N_PADDED, length - 1) :] = 0
    ids, mask = ids.to(hf_model.device), mask.to(hf_model.device)
    accepted = inspect.signature(hf_model.forward).parameters.values()
    if not any(p.name == "attention_mask" or p.kind is p.VAR_KEYWORD for p in accepted):
        mask = None  # of a model that comes with code of its own
    found = Probe(ids, mask, *_logits(lambda *args, **kwargs: hf_model(*args, **kwargs).logits, ids, mask))
    if not bool(torch.isfinite(found.whole).all() and torch.isfinite(found.padded).all()):
        raise InputError(
            f"Step {step}: the model's logits are NaN or infinite: fetch this checkpoint again, or leave the step out."
        )
    return found


def keep_dtype(bridge: Any) -> None:
    """Let rotated queries and keys keep the model's precision, as transformers' own OLMo does.

    OLMo 1 to 3 compute their rotary angles in float32; TransformerLens' attention multiplies half precision with them
    and then fails on the values, which are half precision still.
    """
    for module in list(bridge.modules()):
        for name in ("hook_rot_q", "hook_rot_k"):
            point = module._modules.get(name)
            if point is not None:
                # A hook of torch's, in front of any that a user adds, and none of those that TransformerLens removes.
                point.register_forward_hook(_rounding(module))


def _rounding(attention: Any) -> Any:
    def rounded(point: Any, args: Any, value: Tensor) -> Tensor:
        return value.to(next(attention.parameters()).dtype)

    return rounded


@torch.no_grad()
def require_agreement(bridge: Any, expected: Probe, step: int, kind: str) -> None:
    """Refuse a bridge whose logits are not those of the model that it wraps.

    Raises:
        InputError: the bridge does not run, or it gives other logits; the message says by how much.

    How it can mislead: a dozen tokens do not show what begins later in a sequence, such as a sliding window, and half
    precision hides what is smaller than its rounding.
    """
    remedy = "try another version of transformer-lens, or wrap the model yourself and use CheckpointSeries.from_loader"
    dtype = next(bridge.parameters()).dtype
    try:
        found = _logits(bridge, expected.ids, expected.mask)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        raise InputError(
            f"Step {step}: {kind} runs in transformers and its bridge does not in {_named(dtype)} ({first}): "
            f"load it with another dtype, {remedy}."
        ) from error
    for now, before, what in (
        (found[0], expected.whole, f"{expected.ids.shape[1]} token ids drawn with seed 0"),
        (found[1], expected.padded, f"{expected.ids.shape[1]} token ids drawn with seed 0, the last of them padding"),
    ):
        if not len(before):
            continue
        off = now.double() - before.double()
        share = float(off.square().mean().sqrt() / before.double().std().clamp_min(1e-12))
        if not share <= TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16]):
            raise InputError(
                f"Step {step}: TransformerLens' bridge of {kind} is not the model: on {what} its logits differ from "
                f"transformers' by up to {float(off.abs().max()):.3g}, {share:.1%} of their spread: {remedy}."
            )


def _logits(model: Any, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    whole = model(ids)[0]
    return whole, whole[:0] if mask is None else model(ids, attention_mask=mask)[0][mask[0].bool()]


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Streaming capture at hook points: one forward pass feeds every hook point, and stops at the last one needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel, exactly_once, require_hooks, run_model
from tl_lifehist.tokens import TokenSet, require_valid

BATCH_SIZE = 32


class NonFiniteActivations(InputError):
    """An activation is NaN or infinite."""


class _Enough(Exception):
    """Raised inside the last hook needed, so that no later block runs. Never leaves this file."""


def stream_activations(
    model: HookedModel, hook_names: Sequence[str], tokens: TokenSet, *, batch_size: int = BATCH_SIZE
) -> Iterator[dict[str, Float[Tensor, "row d_model"]]]:
    """Yield, batch after batch, the activations at valid positions, in order: `{hook_name: [row, d_model]}`.

    The first batch runs the whole model and insists that each hook point fires exactly once; later ones end as soon
    as all hook points have fired. That needs no `stop_at_layer`, which some models ignore silently.

    Raises:
        InputError: an unknown hook point (the nearest names are given), a model in training mode, or activations
            that are not one vector a position.
        NonFiniteActivations: a NaN or an infinity, with its hook point, sequence and position.
    """
    require_hooks(model, hook_names)
    for start, batch in zip(range(0, len(tokens), batch_size), tokens.batches(batch_size), strict=True):
        caught: dict[str, Tensor] = {}
        hooks = [(name, _keeper(name, caught, start, batch, len(hook_names) if start else 0)) for name in hook_names]
        with torch.no_grad():
            if start == 0:
                with exactly_once(model, hooks):
                    run_model(model, batch.ids, batch.attention_mask)
            else:
                try:
                    with model.hooks(fwd_hooks=hooks):
                        run_model(model, batch.ids, batch.attention_mask)
                except _Enough:
                    pass
        yield {name: caught[name] for name in hook_names}


def _keeper(
    name: str, caught: dict[str, Tensor], start: int, batch: TokenSet, stop_after: int
) -> Callable[[Tensor, Any], None]:
    def keep(value: Tensor, hook: Any) -> None:
        caught[name] = require_rows(value, name, batch, start)
        if len(caught) == stop_after:
            raise _Enough

    return keep


def require_rows(
    value: Tensor, hook_name: str, batch: TokenSet, first_sequence: int = 0
) -> Float[Tensor, "row d_model"]:
    """The rows of an activation at the batch's valid positions, at least float32.

    Raises:
        InputError: the activation is not one vector a position.
        NonFiniteActivations: a NaN or an infinity; `first_sequence` is where the batch starts in the token set.
    """
    if value.ndim != 3 or value.shape[:2] != batch.ids.shape:
        raise InputError(
            f"The activation at {hook_name!r} has shape {tuple(value.shape)}, not [seq, pos, d_model]: "
            "choose a hook point with one vector a position, such as blocks.0.hook_resid_post."
        )
    rows = value[batch.valid.to(value.device)]
    finite = torch.isfinite(rows).all(dim=1)
    if not bool(finite.all()):
        seq, pos = batch.valid.nonzero()[int((~finite).nonzero()[0])].tolist()
        raise NonFiniteActivations(
            f"The activation at {hook_name!r}, sequence {first_sequence + seq}, position {pos} is NaN or infinite: "
            "load the model in float32 and check the checkpoint."
        )
    # Only arithmetic below float32 is raised; float64 stays.
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def collect_activations(
    model: HookedModel, hook_name: str, tokens: TokenSet, *, batch_size: int = BATCH_SIZE
) -> Float[Tensor, "row d_model"]:
    """All activations at one hook point, a row for each valid position in order, at least float32, on the CPU.

    Memory is `n_valid x d_model`: stream with `stream_activations` when that is too much.

    Raises:
        InputError: see `stream_activations`; also when no position is valid.
    """
    if not isinstance(tokens, TokenSet):
        raise InputError(
            f"tokens is a {type(tokens).__name__}: give TokenSet.from_texts(texts, tokenizer), or "
            "TokenSet(ids, valid, labels) for ids of your own."
        )
    require_valid(tokens)
    parts = [batch[hook_name].cpu() for batch in stream_activations(model, [hook_name], tokens, batch_size=batch_size)]
    return torch.cat(parts)

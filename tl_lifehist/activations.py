"""Streaming capture at hook points: one forward pass feeds every hook point, and stops at the last one needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.hook_rows import NonFiniteActivations as NonFiniteActivations
from tl_lifehist.hook_rows import require_rows
from tl_lifehist.models import HookedModel, exactly_once, require_hooks, run_model
from tl_lifehist.self_check import VALUE, known_of, spread_error, tolerance, two_of, unsteady
from tl_lifehist.tokens import TokenSet, require_valid

BATCH_SIZE = 32


class _Enough(BaseException):
    """Raised inside the last hook needed, so that no later block runs. Never leaves this file, and no `except
    Exception` of a model's own holds it up.
    """


def stream_activations(
    model: HookedModel, hook_names: Sequence[str], tokens: TokenSet, *, batch_size: int = BATCH_SIZE
) -> Iterator[dict[str, Float[Tensor, "row d_model"]]]:
    """Yield, batch after batch, the activations at valid positions, in order: `{hook_name: [row, d_model]}`. Where a
    hook point has heads, `d_model` is all of them side by side.

    The first batch runs the whole model and insists that each hook point fires exactly once; later ones end as soon
    as all hook points have fired. That needs no `stop_at_layer`, which some models ignore silently. Once a model and
    hook points, two sequences are run again that way, and have to give what they gave in their batch.

    Raises:
        InputError: an unknown hook point (the nearest names are given), a model in training mode, activations that
            are not one vector a position, or a model whose activations are not the same in every pass.
        NonFiniteActivations: a NaN or an infinity, with its hook point, sequence and position.
    """
    require_hooks(model, hook_names)
    may_end = True
    for start, batch in zip(range(0, len(tokens), batch_size), tokens.batches(batch_size), strict=True):
        caught = _caught(model, hook_names, batch, start, ends=may_end and start > 0)
        if start == 0:
            may_end = _may_end(model, hook_names, batch, caught)
        yield caught


@torch.no_grad()
def _caught(
    model: HookedModel,
    hook_names: Sequence[str],
    batch: TokenSet,
    start: int,
    *,
    ends: bool,
    dtypes: dict[str, torch.dtype] | None = None,
) -> dict[str, Tensor]:
    """One pass; with `ends` only as far as the last hook point. `dtypes` is told the model's own arithmetic."""
    caught: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[Tensor, Any], None]:
        def keep(value: Tensor, hook: Any) -> None:
            caught[name] = require_rows(value, name, batch, start)
            if dtypes is not None:
                dtypes[name] = value.dtype
            if ends and len(caught) == len(hook_names):
                raise _Enough

        return keep

    hooks = [(name, keeper(name)) for name in hook_names]
    if ends:
        with suppress(_Enough), model.hooks(fwd_hooks=hooks):
            run_model(model, batch.ids, batch.attention_mask)
    else:
        with exactly_once(model, hooks):
            run_model(model, batch.ids, batch.attention_mask)
    return {name: caught[name] for name in hook_names}


def _may_end(model: HookedModel, hook_names: Sequence[str], batch: TokenSet, caught: Mapping[str, Tensor]) -> bool:
    """Whether passes may end at the last hook point: a sequence, twice, has to give what it gave in its batch, also
    right after a pass that was ended.

    Raises:
        InputError: whole passes give something else as well.
    """
    known, names = known_of(model), tuple(hook_names)
    if names in known.collects or batch.n_valid == 0 or not names:
        return known.collects.get(names, True)
    two, lengths = two_of(batch), batch.valid.sum(1).tolist()
    chosen = two[[1, 1]]  # in another place, with another neighbour
    wanted = {name: rows.split(lengths)[int(two[1])].repeat(2, 1) for name, rows in caught.items()}
    dtypes: dict[str, torch.dtype] = {}

    def again(*, ends: bool) -> dict[str, Tensor]:
        for _ in range(2):  # the second comes after a pass of the same kind
            found = _caught(model, names, batch[chosen], 0, ends=ends, dtypes=dtypes)
        return found

    def differ(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
        return any(spread_error(a[name], b[name]) > VALUE * tolerance(dtypes[name]) for name in names)

    ends = not differ(again(ends=True), wanted)
    if not ends:
        whole = again(ends=False)
        if differ(whole, wanted):
            raise unsteady(differ(again(ends=False), whole))
    known.collects[names] = ends
    return ends


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

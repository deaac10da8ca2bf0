"""The gradient of each sequence's loss with respect to the gates, at gates of 1: one backward pass a batch.

Sequences do not see each other, so the gradient of a batch's summed loss at the rows of one sequence is that of the
sequence's own loss. `g_i = sum over rows of u_i <v_i, dL/dx>` then gives all gates at once; a gate for each row, and
the graph through codes and directions that it would need, never exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.activations import require_rows
from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.errors import InputError
from tl_lifehist.models import Hook, HookedModel, exactly_once, frozen, run_model
from tl_lifehist.readout import Head, readout_cross_entropy
from tl_lifehist.sufficiency.reconstruction import MaskBasis
from tl_lifehist.tail import Tail
from tl_lifehist.tokens import TokenSet

BATCH_SIZE = 16
Labels = Callable[[TokenSet, Head, Tensor], Sequence[Tensor]]  # batch, head, final residual -> label sets [scored]


class _Reached(Exception):
    """Raised by the hook behind the last block, so that nothing after it runs. Never leaves this file."""


class EditedPass(Tail):
    """A tail for one pass a batch: nothing is stored, so the blocks above the hook point run once and not twice."""

    def edited(
        self, batch: TokenSet, edit: Callable[[Tensor], Tensor], first_sequence: int = 0
    ) -> Float[Tensor, "scored d_last"]:
        """The residual behind the last block at the scored positions, with `edit(activations)` at the valid positions
        of the hook point. Gradients flow to what `edit` returns.

        Raises:
            InputError: a hook point that does not fire exactly once, or has no vector a position.
            NonFiniteActivations: a NaN or an infinity at the hook point.
        """
        reached: list[Tensor] = []

        def replace(value: Tensor, hook: Any) -> Tensor:
            rows = edit(require_rows(value, self.hook_name, batch, first_sequence))
            changed = value.clone()
            changed[batch.valid.to(value.device)] = rows.to(changed)
            return changed

        def stop(value: Tensor, hook: Any) -> None:
            reached.append(value)
            raise _Reached

        hooks: list[Hook] = [(self.hook_name, replace)]
        if self._blocks:
            hooks.append((self._last, stop))
        with self._watched({}), exactly_once(self.model, hooks), suppress(_Reached):
            reached.append(run_model(self.model, batch.ids, batch.attention_mask))
        return reached[0][batch.scored.to(reached[0].device)]


def sequence_gradients(
    model: HookedModel,
    dictionary: Dictionary,
    tokens: TokenSet,
    labels: Labels,
    *,
    hook_name: str,
    center_codes: bool = True,
    keep_error: bool = False,
    batch_size: int = BATCH_SIZE,
) -> Iterator[tuple[TokenSet, Float[Tensor, "draw seq component"]]]:
    """Yield each batch with the gradient of the *summed* cross-entropy of each of its sequences, for each label set.

    Sequences without a scored position have gradients of 0. The model is changed while a batch is computed, never
    between two batches.

    Raises:
        InputError: a model in training mode, an unknown hook point, no scored position, a dictionary of another width.
    """
    if tokens.n_scored == 0:
        raise InputError("No position is scored: the token set needs labels at valid positions.")
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} must be at least 1.")
    tail = EditedPass(model, hook_name)
    basis = MaskBasis.of(dictionary, hook_name, center_codes=center_codes, keep_error=keep_error)
    for start in range(0, len(tokens), batch_size):
        batch = tokens[start : start + batch_size]
        if batch.n_scored:
            with frozen(model):
                gradients = _of_batch(tail, basis, batch, start, labels)
            yield batch, gradients


def _of_batch(
    tail: EditedPass, basis: MaskBasis, batch: TokenSet, start: int, labels: Labels
) -> Float[Tensor, "draw seq component"]:
    kept: dict[str, Any] = {}

    def full(acts: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        codes = basis.codes(acts)
        kept["codes"] = codes
        kept["rows"] = (basis.base(acts, codes) + codes @ basis.directions).requires_grad_()
        return kept["rows"]

    with torch.enable_grad():
        final = tail.edited(batch, full, start)
        sets = labels(batch, tail.head, final.detach())
        slopes = [
            torch.autograd.grad(
                readout_cross_entropy(tail.head, final, chosen).sum(), kept["rows"], retain_graph=i + 1 < len(sets)
            )[0]
            for i, chosen in enumerate(sets)
        ]
    sequence = batch.valid.nonzero()[:, 0].to(slopes[0].device)
    return torch.stack([_by_sequence(kept["codes"] * (s @ basis.directions.T), sequence, len(batch)) for s in slopes])


def _by_sequence(rows: Tensor, sequence: Tensor, n_sequences: int) -> Tensor:
    return rows.new_zeros(n_sequences, rows.shape[1]).index_add_(0, sequence, rows).cpu()

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

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.errors import InputError
from tl_lifehist.hook_rows import NonFiniteActivations
from tl_lifehist.models import HookedModel, frozen
from tl_lifehist.readout import Head, readout_cross_entropy
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet, require_scored

BATCH_SIZE = 16
Labels = Callable[[TokenSet, Head, Tensor], Sequence[Tensor]]  # batch, head, final residual -> label sets [scored]


def sequence_gradients(
    model: HookedModel,
    dictionary: Dictionary,
    tokens: TokenSet,
    labels: Labels,
    *,
    hook_name: str,
    center_codes: bool = True,
    keep_error: bool = False,
    error_component: bool = False,
    batch_size: int = BATCH_SIZE,
) -> Iterator[tuple[TokenSet, Float[Tensor, "draw seq component"]]]:
    """Yield each batch with the gradient of the *summed* cross-entropy of each of its sequences, for each label set.

    With `error_component` what the open mask misses of each activation is one more component with a gate of its own,
    the last; the gradients are then at the clean activation itself.

    Sequences without a scored position have gradients of 0. The model is changed while a batch is computed, never
    between two batches.

    Raises:
        InputError: a model in training mode, an unknown hook point, no scored position, a dictionary of another width.
    """
    require_scored(tokens)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} must be at least 1.")
    suffix = ModelSuffix(model, hook_name)
    basis = MaskBasis.of(dictionary, hook_name, center_codes=center_codes, keep_error=keep_error)
    with suppress(NonFiniteActivations):  # the pass itself names the sequence
        suffix.try_edits(tokens[:batch_size])
        suffix.try_slopes(tokens[:batch_size])
    for start in range(0, len(tokens), batch_size):
        batch = tokens[start : start + batch_size]
        if batch.n_scored:
            with frozen(model):
                gradients = _of_batch(suffix, basis, batch, start, labels, error_component)
            yield batch, gradients


def _of_batch(
    suffix: ModelSuffix, basis: MaskBasis, batch: TokenSet, start: int, labels: Labels, error_component: bool
) -> Float[Tensor, "draw seq component"]:
    kept: dict[str, Any] = {}

    def full(acts: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        codes = basis.codes(acts)
        kept["codes"] = codes
        rows = basis.base(acts, codes) + codes @ basis.directions
        kept["error"] = acts.to(rows) - rows
        kept["rows"] = (acts.to(rows).clone() if error_component else rows).requires_grad_()
        return kept["rows"]

    with torch.enable_grad():
        final = suffix.run_edited(batch, full, start)
        sets = labels(batch, suffix.head, final.detach())
        slopes = [
            torch.autograd.grad(
                readout_cross_entropy(suffix.head, final, chosen).sum(), kept["rows"], retain_graph=i + 1 < len(sets)
            )[0]
            for i, chosen in enumerate(sets)
        ]
    sequence = batch.valid.nonzero()[:, 0].to(slopes[0].device)
    found = []
    for slope in slopes:
        by_row = kept["codes"] * (slope @ basis.directions.T)
        if error_component:
            by_row = torch.cat([by_row, (kept["error"] * slope).sum(dim=1, keepdim=True)], dim=1)
        found.append(_by_sequence(by_row, sequence, len(batch)))
    return torch.stack(found)


def _by_sequence(rows: Tensor, sequence: Tensor, n_sequences: int) -> Tensor:
    return rows.new_zeros(n_sequences, rows.shape[1]).index_add_(0, sequence, rows).cpu()

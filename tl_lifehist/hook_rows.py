"""The activation at a hook point as rows, one a valid position, and back."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.tokens import TokenSet


class NonFiniteActivations(InputError):
    """An activation is NaN or infinite."""


def flat(value: Tensor, hook_name: str, shape: tuple[int, ...]) -> Float[Tensor, "seq pos d_model"]:
    """One vector a position. Heads (`hook_z`, `hook_q`, `hook_result`) stand side by side in it, as SAELens has them.

    Args:
        value: `[seq, pos, d_model]` or `[seq, pos, head, d_head]`.
        hook_name: for errors.
        shape: of the batch, `(seq, pos)`.

    Raises:
        InputError: the activation is not one vector a position.
    """
    # attention patterns are [seq, head, pos, pos], and look like heads where there are as many of them as positions
    patterns = value.ndim == 4 and value.shape[2] == value.shape[3] == value.shape[1]
    if value.ndim not in (3, 4) or tuple(value.shape[:2]) != tuple(shape) or patterns:
        raise InputError(
            f"The activation at {hook_name!r} has shape {tuple(value.shape)}, not [seq, pos, d_model] or "
            "[seq, pos, head, d_head]: choose a hook point with one vector a position, such as "
            "blocks.0.hook_resid_post."
        )
    return value.flatten(2)


def require_rows(
    value: Tensor, hook_name: str, batch: TokenSet, first_sequence: int = 0
) -> Float[Tensor, "row d_model"]:
    """The rows of an activation at the batch's valid positions, at least float32.

    Raises:
        InputError: the activation is not one vector a position.
        NonFiniteActivations: a NaN or an infinity; `first_sequence` is where the batch starts in the token set.
    """
    rows = flat(value, hook_name, tuple(batch.ids.shape))[batch.valid.to(value.device)]
    finite = torch.isfinite(rows).all(dim=1)
    if not bool(finite.all()):
        seq, pos = batch.valid.nonzero()[int((~finite).nonzero()[0])].tolist()
        raise NonFiniteActivations(
            f"The activation at {hook_name!r}, sequence {first_sequence + seq}, position {pos} is NaN or infinite: "
            "load the model in float32 and check the checkpoint."
        )
    # Only arithmetic below float32 is raised; float64 stays.
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def with_rows(value: Tensor, valid: Bool[Tensor, "seq pos"], rows: Float[Tensor, "row d_model"]) -> Tensor:
    """The activation with `rows` at the valid positions, and as it was, bit by bit, at the others. Gradients flow."""
    changed = value.clone()
    changed[valid.to(value.device)] = rows.to(changed).unflatten(1, value.shape[2:])
    return changed

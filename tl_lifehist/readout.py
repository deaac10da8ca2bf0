"""Figures of predictions read from residual rows, in chunks of rows, so that a large vocabulary needs little memory.

Each figure of a row depends on that row alone. So the gradient of every row is taken chunk by chunk while the logits
of the chunk exist, and none are kept for a backward pass: with 128k tokens and 2,048 rows they take 1 GiB a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tl_lifehist.metrics import cross_entropy, entropy, kl_divergence

Head = Callable[[Tensor], Tensor]  # [row d_model] -> logits [row d_vocab]

CHUNK = 2**24  # logits that exist at a time


def chunks(head: Head, n_rows: int, like: Tensor) -> Iterator[slice]:
    """Slices of rows whose logits fit into one chunk."""
    if n_rows == 0:
        return
    with torch.no_grad():
        d_vocab = head(like[:1].detach()).shape[-1]
    size = max(1, CHUNK // d_vocab)
    for start in range(0, n_rows, size):
        yield slice(start, start + size)


class _ByRow(torch.autograd.Function):
    """`figure(rows[chunk], chunk)` for every chunk, with the gradient of each row beside it."""

    @staticmethod
    def forward(ctx, rows, figure, parts):  # type: ignore[override]
        values, slopes = [], []
        for part in parts:
            with torch.enable_grad():
                chunk = rows[part].detach().requires_grad_()
                value = figure(chunk, part)
                (slope,) = torch.autograd.grad(value.sum(), chunk)
            values.append(value.detach())
            slopes.append(slope)
        ctx.save_for_backward(torch.cat(slopes))
        return torch.cat(values)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        (slopes,) = ctx.saved_tensors
        return grad.unsqueeze(1).to(slopes) * slopes, None, None


def _by_row(head: Head, rows: Tensor, figure: Callable[[Tensor, slice], Tensor]) -> Tensor:
    parts = list(chunks(head, len(rows), rows))
    if not parts:
        return rows.new_zeros(0)
    if torch.is_grad_enabled() and rows.requires_grad:
        return _ByRow.apply(rows, figure, parts)  # type: ignore[return-value]
    with torch.no_grad():
        return torch.cat([figure(rows[part], part) for part in parts])


def readout_kl(
    head: Head,
    clean: Float[Tensor, "row d_model"],
    changed: Float[Tensor, "row d_other"],
    changed_head: Head | None = None,
) -> Float[Tensor, " row"]:
    """KL(head(clean) || head(changed)) in nats, row by row; gradients flow to `changed` alone."""
    def figure(rows: Tensor, part: slice) -> Tensor:
        with torch.no_grad():
            reference = head(clean[part])
        return kl_divergence(reference, head(rows))

    return _by_row(head, changed, figure)


def readout_cross_entropy(
    head: Head, final: Float[Tensor, "row d_model"], labels: Int[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """Negative log-probability of the labels in nats, row by row; gradients flow to `final`."""
    return _by_row(head, final, lambda rows, part: cross_entropy(head(rows), labels[part]))


def readout_entropy(head: Head, final: Float[Tensor, "row d_model"]) -> Float[Tensor, " row"]:
    """Entropy of the predictions in nats, row by row."""
    return _by_row(head, final.detach(), lambda rows, part: entropy(head(rows)))


@torch.no_grad()
def readout_top1(head: Head, final: Float[Tensor, "row d_model"]) -> Int[Tensor, " row"]:
    """The most probable token of each row."""
    parts = [head(final[part]).argmax(-1) for part in chunks(head, len(final), final)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


@torch.no_grad()
def sample_labels(head: Head, final: Float[Tensor, "row d_model"], generator: torch.Generator) -> Int[Tensor, " row"]:
    """A token drawn from the prediction of each row."""
    drawn = []
    for part in chunks(head, len(final), final):
        probabilities = head(final[part]).double().softmax(-1).cpu()
        drawn.append(torch.multinomial(probabilities, 1, generator=generator).squeeze(1))
    return torch.cat(drawn) if drawn else torch.zeros(0, dtype=torch.long)

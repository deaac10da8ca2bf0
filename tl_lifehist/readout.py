"""Figures of predictions read from residual rows, in chunks of rows, so that a large vocabulary needs little memory.

Each figure of a row depends on that row alone. So the gradient of every row is taken chunk by chunk while the logits
of the chunk exist, and none are kept for a backward pass: with 128k tokens and 2,048 rows they take 1 GiB per copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.metrics import cross_entropy, entropy, kl_of_logs, log_probabilities

Head = Callable[[Tensor], Tensor]  # [row d_model] -> logits [row d_vocab]

CHUNK = 2**24  # logits that exist at a time


def chunks(head: Head, rows: Tensor, copies: int = 1) -> Iterator[slice]:
    """Slices of rows such that the logits of a slice, `copies` times, fit into one chunk."""
    if len(rows) == 0:
        return
    d_vocab = getattr(head, "d_vocab", None)  # a head that knows it need not be asked
    if d_vocab is None:
        with torch.no_grad():
            d_vocab = head(rows[:1].detach().reshape(-1, rows.shape[-1])[:1]).shape[-1]
    size = max(1, CHUNK // (d_vocab * copies))
    for start in range(0, len(rows), size):
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
                if not value.requires_grad:
                    raise InputError(
                        "What reads these rows gives no gradient: take torch.no_grad out of the model's head."
                    )
                (slope,) = torch.autograd.grad(value.sum(), chunk)
            values.append(value.detach())
            slopes.append(slope)
        ctx.save_for_backward(torch.cat(slopes))
        return torch.cat(values)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        (slopes,) = ctx.saved_tensors
        return grad.unsqueeze(-1).to(slopes) * slopes, None, None


def _by_row(head: Head, rows: Tensor, figure: Callable[[Tensor, slice], Tensor]) -> Tensor:
    parts = list(chunks(head, rows, copies=rows[0].numel() // rows.shape[-1] if len(rows) else 1))
    if not parts:
        return rows.new_zeros(rows.shape[:-1])
    if torch.is_grad_enabled() and rows.requires_grad:
        return _ByRow.apply(rows, figure, parts)  # type: ignore[return-value]
    with torch.no_grad():
        return torch.cat([figure(rows[part], part) for part in parts])


def require_row_by_row(head: Head, rows: Float[Tensor, "row d_model"]) -> None:
    """Refuse a head whose logits for a row depend on the rows beside it: it is read in chunks.

    Raises:
        InputError: it does.
    """
    with torch.no_grad():
        some = rows[:3].detach()
        together, alone = log_probabilities(head(some)), log_probabilities(head(some[:1]))
    if alone.shape[0] != 1 or not torch.allclose(together[:1], alone, rtol=1e-3, atol=1e-3):
        raise InputError(
            "The head gives a row other logits when other rows stand beside it: it has to read row by row."
        )


def readout_kl(
    head: Head,
    clean: Float[Tensor, "row d_model"],
    changed: Float[Tensor, "row *mask d_other"],
    *,
    clean_head: Head | None = None,
) -> Float[Tensor, "row *mask"]:
    """KL(head(clean) || head(changed)) in nats, row by row; gradients flow to `changed` alone. `clean_head` reads the
    clean rows where it is another.

    Several versions of each row (`changed` of shape `[row, mask, d_model]`) share the clean predictions.
    """

    def figure(rows: Tensor, part: slice) -> Tensor:
        with torch.no_grad():
            log_p = log_probabilities((clean_head or head)(clean[part]))
            p = log_p.exp()
        if rows.ndim == 2:
            return kl_of_logs(p, log_p, log_probabilities(head(rows)))
        log_q = log_probabilities(head(rows.flatten(0, 1))).unflatten(0, rows.shape[:-1])
        return kl_of_logs(p.unsqueeze(1), log_p.unsqueeze(1), log_q)

    return _by_row(head, changed, figure)


def readout_cross_entropy(
    head: Head, final: Float[Tensor, "row d_model"], labels: Int[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """Negative log-probability of the labels in nats, row by row; gradients flow to `final`."""
    return _by_row(head, final, lambda rows, part: cross_entropy(head(rows), labels[part]))


def readout_entropy(head: Head, final: Float[Tensor, "row d_model"]) -> Float[Tensor, " row"]:
    """Entropy of the predictions in nats, row by row."""
    return _by_row(head, final.detach(), lambda rows, part: entropy(head(rows)))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Predictions from changed residuals beside the clean ones, row by row.

    Attributes:
        entropy: of the clean predictions, nats.
        correct: whether the clean top-1 token is the label.
        cross_entropy: of the labels under the clean predictions, nats.
        kl: KL(clean || changed), nats, for each changed version.
        changed_correct: whether its top-1 token is the label.
    """

    entropy: Float[Tensor, " row"]
    correct: Bool[Tensor, " row"]
    cross_entropy: Float[Tensor, " row"]
    kl: Float[Tensor, "version row"]
    changed_correct: Bool[Tensor, "version row"]


@torch.no_grad()
def compare_readouts(
    head: Head,
    clean: Float[Tensor, "row d_model"],
    changed: Sequence[Float[Tensor, "row d_model"]],
    labels: Int[Tensor, " row"],
) -> Comparison:
    """Compare any number of changed versions with the clean rows: the clean logits are made once per chunk."""
    found: dict[str, list[Tensor]] = {name: [] for name in ("entropy", "correct", "cross_entropy", "kl", "changed")}
    for part in chunks(head, clean):
        reference, targets = head(clean[part]), labels[part].to(clean.device)
        log_p = log_probabilities(reference)
        probabilities = log_p.exp()
        found["entropy"].append(entropy(reference))
        found["correct"].append(reference.argmax(-1) == targets)
        found["cross_entropy"].append(cross_entropy(reference, targets))
        kls, hits = [], []
        for version in changed:
            logits = head(version[part])
            kls.append(kl_of_logs(probabilities, log_p, log_probabilities(logits)))
            hits.append(logits.argmax(-1) == targets)
        found["kl"].append(torch.stack(kls) if kls else clean.new_zeros(0, len(targets)))
        found["changed"].append(torch.stack(hits) if hits else torch.zeros(0, len(targets), dtype=torch.bool))
    if not found["entropy"]:
        none = clean.new_zeros(0)
        return Comparison(
            none, none.bool(), none, none.new_zeros(len(changed), 0), none.new_zeros(len(changed), 0).bool()
        )
    return Comparison(
        torch.cat(found["entropy"]),
        torch.cat(found["correct"]),
        torch.cat(found["cross_entropy"]),
        torch.cat(found["kl"], dim=1),
        torch.cat(found["changed"], dim=1),
    )


@torch.no_grad()
def sample_labels(head: Head, final: Float[Tensor, "row d_model"], generator: torch.Generator) -> Int[Tensor, " row"]:
    """A token drawn from the prediction of each row."""
    drawn = []
    for part in chunks(head, final):
        probabilities = head(final[part]).double().softmax(-1).cpu()
        drawn.append(torch.multinomial(probabilities, 1, generator=generator).squeeze(1))
    return torch.cat(drawn) if drawn else torch.zeros(0, dtype=torch.long)

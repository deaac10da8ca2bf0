"""The fixed head: an affine map into the final residual stream, read by the model's own head (formula 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel, frozen
from tl_lifehist.readout import Head, readout_kl, require_row_by_row
from tl_lifehist.sufficiency.gates import require_counts
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet, require_scored

STEPS, BATCH_ROWS, LEARNING_RATE = 400, 256, 3e-3  # ours


@dataclass(frozen=True, eq=False)
class Translator:
    """`head(h @ weight + bias)`: what the predictions would be if the model ended at the hook point.

    Attributes:
        weight: maps activations to the final residual stream; the identity for an untrained one in the stream.
        bias: added to it.
        head: residual rows to logits: final norm, prediction head of a masked model, unembedding.
        history: step, kl (nats, over the rows of the step) of the fit.

    How it can mislead: it says what a linear reader could take from the activation, not what the model takes.
    """

    weight: Float[Tensor, "d_model d_final"]
    bias: Float[Tensor, " d_final"]
    head: Head
    history: pd.DataFrame = field(default_factory=pd.DataFrame)

    def __call__(self, acts: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_final"]:
        """The translated rows, to be read by `head`. Gradients flow to `acts`."""
        return acts @ self.weight.to(acts) + self.bias.to(acts)

    def to_tensors(self) -> dict[str, Tensor]:
        """All but the head, which is the model's, by name: what a file holds."""
        lines = {str(name): torch.tensor(column.to_numpy()) for name, column in self.history.items()}
        return {"weight": self.weight.cpu(), "bias": self.bias.cpu(), **lines}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], head: Head) -> Translator:
        """The counterpart of `to_tensors`, read by `head`."""
        history = pd.DataFrame({name: t.numpy() for name, t in tensors.items() if name not in ("weight", "bias")})
        return cls(tensors["weight"], tensors["bias"], head, history)


def fit_translator(
    model: HookedModel,
    hook_name: str,
    tokens: TokenSet,
    *,
    head: Callable[[Tensor], Tensor] | None = None,
    steps: int = STEPS,
    batch_rows: int = BATCH_ROWS,
    learning_rate: float = LEARNING_RATE,
    batch_size: int = 16,
    seed: int = 0,
) -> Translator:
    """Fit the affine map of a fixed head by KL(model || head(a(h))) at the scored positions (formula 7 of the
    sufficiency methods, the tuned-lens construction).

    In the residual stream the map starts at the identity, anywhere else at zero with the mean final residual as bias.
    Weights learn in units of each coordinate's standard deviation, so that one learning rate fits every model and a few
    massive coordinates do not hide the others.

    Args:
        model: hooked, in evaluation mode; its parameters are frozen meanwhile and get their setting back.
        hook_name: where activations are read.
        tokens: text that no mask is calibrated or tested on.
        head: what reads the translated rows, to logits that are compared with the model's own; by default everything
            behind the model's last block, the prediction head of a masked language model included.
        steps: Adam steps (ours); the learning rate falls linearly to 0.
        batch_rows: scored positions a step (ours).
        learning_rate: of Adam (ours).
        batch_size: sequences a clean pass.
        seed: draws the rows.

    Raises:
        InputError: no scored position, an unknown hook point, a model in training mode.

    How it can mislead: an under-trained translator makes the fixed head look blind; its KL to the model is in
    `history` and on the study's table of checkpoints.
    """
    require_scored(tokens)
    require_counts(steps=steps, batch_rows=batch_rows, batch_size=batch_size)
    suffix = ModelSuffix(model, hook_name)
    acts, final = scored_rows(suffix, tokens, batch_size)
    return translator_of(
        suffix, acts, final, head=head, steps=steps, batch_rows=batch_rows, learning_rate=learning_rate, seed=seed
    )


def translator_of(
    suffix: ModelSuffix,
    acts: Float[Tensor, "scored d_model"],
    final: Float[Tensor, "scored d_final"],
    *,
    head: Callable[[Tensor], Tensor] | None = None,
    steps: int = STEPS,
    batch_rows: int = BATCH_ROWS,
    learning_rate: float = LEARNING_RATE,
    seed: int = 0,
) -> Translator:
    """`fit_translator` for rows that a pass has left already: activations and clean final residuals at the same scored
    positions, at least float32, on one device.

    Raises:
        InputError: no rows.
    """
    if len(acts) == 0:
        raise InputError("There are no rows to fit the fixed head to: the text needs scored positions.")
    require_counts(steps=steps, batch_rows=batch_rows)
    read = head or suffix.head
    if head is not None and not suffix.has_blocks:
        final_like, in_stream = acts, True  # a model without blocks has no final residual but its own hook point
    else:
        final_like, in_stream = final, suffix.in_residual_stream and acts.shape[1] == final.shape[1]
    if head is not None:
        require_row_by_row(head, final_like)
    mean, target_mean = acts.mean(dim=0), final_like.mean(dim=0)
    scale, target_scale = _scales(acts, mean), _scales(final_like, target_mean)
    start = torch.eye(acts.shape[1]).to(acts) if in_stream else acts.new_zeros(acts.shape[1], final_like.shape[1])
    # the learned part, in units of the scales; it sees rows without their mean, so that weight and bias do not compete
    moved = acts.new_zeros(start.shape).requires_grad_()
    shift = acts.new_zeros(final_like.shape[1]).requires_grad_()
    # eps well above rounding: where the start is the answer, there is no gradient to follow
    optimiser = torch.optim.Adam([moved, shift], lr=learning_rate, eps=1e-6)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    constant = torch.zeros_like(target_mean) if in_stream else target_mean
    generator = torch.Generator().manual_seed(seed)
    history = []
    with frozen(suffix.model), torch.enable_grad():
        for step in range(steps):
            drawn = torch.randint(len(acts), (min(batch_rows, len(acts)),), generator=generator).to(acts.device)
            rows = acts[drawn]
            change = ((rows - mean) / scale) @ moved + shift
            loss = readout_kl(
                read, final[drawn], rows @ start + constant + target_scale * change, clean_head=suffix.head
            ).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            history.append((step, float(loss.detach())))
    learned = moved.detach() * target_scale / scale.unsqueeze(1)
    weight, bias = start + learned, constant + target_scale * shift.detach() - mean @ learned
    return Translator(weight, bias, read, pd.DataFrame(history, columns=["step", "kl"]))


def _scales(rows: Float[Tensor, "row d"], mean: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """Standard deviation of each coordinate; a coordinate that hardly varies counts as a thousandth of the largest."""
    spread = (rows - mean).square().mean(dim=0).sqrt()
    return spread.clamp_min(max(1e-3 * float(spread.max()), 1e-12))


@torch.no_grad()
def scored_rows(
    suffix: ModelSuffix, tokens: TokenSet, batch_size: int
) -> tuple[Float[Tensor, "scored d_model"], Float[Tensor, "scored d_final"]]:
    """Activations and clean final residuals at the scored positions, in order, at least float32."""
    acts, final = [], []
    for start in range(0, len(tokens), batch_size):
        prefix = suffix.run_prefix(tokens[start : start + batch_size], start)
        acts.append(prefix.acts[prefix.scored_row.to(prefix.value.device)])
        final.append(prefix.final.to(torch.promote_types(prefix.final.dtype, torch.float32)))
    return torch.cat(acts), torch.cat(final)

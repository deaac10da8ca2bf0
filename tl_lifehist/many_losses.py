"""Losses of one text under many interventions at the same hook points (sets of features and their controls).

What lies below the first of these hook points is the same under all of them. So it is run once, with the reference
losses, and every further pass starts from what that pass stored; the blocks above run on the same shapes as in a whole
pass, so the losses are the same numbers. Whether a model may be started there is asked of the first intervention and
the first batch, against a whole pass; where it may not, whole passes are run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tl_lifehist.effects import BATCH_SIZE, scored_logits
from tl_lifehist.errors import InputError
from tl_lifehist.hook_names import parse_hook_name
from tl_lifehist.interventions import Intervention
from tl_lifehist.metrics import cross_entropy
from tl_lifehist.models import Hook, HookedModel, exactly_once, require_hooks, run_model
from tl_lifehist.partial_model import PartialModel, keeper
from tl_lifehist.self_check import require_repeatable, tolerance
from tl_lifehist.tokens import TokenSet, require_scored

KEPT = 2**28  # numbers stored of the clean pass; batches beyond it are run whole


class ManyLosses:
    """Cross-entropy at the scored positions of `tokens`, for any number of interventions at `hook_names`.

    Args:
        model: in evaluation mode; its weights and its text must not change while this is used.
        tokens: the text.
        hook_names: the hook points of all interventions to come.
        batch_size: sequences of a pass.

    Attributes:
        base: losses of the bare model, nats, one a scored position, in order.
        starts_above: whether passes start at the first hook point; None until an intervention has been tried.

    Raises:
        InputError: a model in training mode or with noise, an unknown hook point, or no scored position.

    How it can mislead: it does not; it gives what `effects.scored_losses` gives, which remains the definition.
    """

    @torch.no_grad()
    def __init__(
        self, model: HookedModel, tokens: TokenSet, hook_names: Sequence[str], *, batch_size: int = BATCH_SIZE
    ) -> None:
        require_scored(tokens)
        require_hooks(model, hook_names)
        require_repeatable(model, tokens)
        self.model = model
        self.starts_above: bool | None = None
        self._known = set(hook_names)
        self._first = _lowest(model, hook_names)
        if self._first is None:
            self.starts_above = False
        self._batches = [batch for batch in tokens.batches(batch_size) if batch.n_scored]
        self._starts: list[Tensor | None] = []
        losses, room = [], KEPT
        for batch in self._batches:
            loss, start = self._clean(batch)
            losses.append(loss)
            room -= 0 if start is None else start.numel()
            self._starts.append(start if room >= 0 else None)
        self.base = _joined(losses)

    @torch.no_grad()
    def of(self, intervention: Intervention | None) -> NDArray[np.float64]:
        """Losses with the intervention, nats, one a scored position, in order; those of the bare model for None.

        Raises:
            InputError: an unknown hook point, or one that does not fire exactly once.
        """
        if intervention is None:
            return self.base
        names = {name for name, _ in intervention.fwd_hooks()}
        if not names <= self._known:
            raise InputError(f"The intervention is at {sorted(names - self._known)}, which were not named before.")
        if not names:
            return self.base
        if self.starts_above is None:
            self.starts_above = self._same(intervention)
        return _joined(
            [
                self._whole(batch, intervention)
                if start is None or not self.starts_above
                else self._above(batch, start, intervention)
                for batch, start in zip(self._batches, self._starts, strict=True)
            ]
        )

    def _clean(self, batch: TokenSet) -> tuple[Tensor, Tensor | None]:
        """Losses of the bare model, and what the block at the first hook point starts from."""
        first = self._first
        if first is None:
            return _losses(scored_logits(self.model, batch, None), batch), None
        caught: dict[str, Tensor] = {}
        hooks: list[Hook] = [(first.hook_name, keeper(caught))] if first.starts_behind else []
        with first.watched(caught), exactly_once(self.model, hooks):
            logits = run_model(self.model, batch.ids, batch.attention_mask)
        return _losses(logits[batch.scored.to(logits.device)], batch), caught.get(
            "value" if first.starts_behind else "start"
        )

    def _whole(self, batch: TokenSet, intervention: Intervention) -> Tensor:
        return _losses(scored_logits(self.model, batch, intervention), batch)

    def _above(self, batch: TokenSet, start: Tensor, intervention: Intervention) -> Tensor:
        assert self._first is not None
        with self._first.started_from(start):
            return self._whole(batch, intervention)

    def _same(self, intervention: Intervention) -> bool:
        """Whether a pass that starts above gives what a whole pass gives, on the first batch. That batch was not the
        last one run, so what a model keeps of a pass is of another, where there is more than one.
        """
        batch, start = self._batches[0], self._starts[0]
        if start is None:
            return False
        try:
            above = self._above(batch, start, intervention)
        except Exception:  # whatever a model's own code may raise; a whole pass raises what is the user's
            return False
        off = (above - self._whole(batch, intervention)).abs()
        return bool((off <= tolerance(start.dtype) * (1 + above.abs())).all())


def _lowest(model: HookedModel, hook_names: Sequence[str]) -> PartialModel | None:
    """The model above the lowest block that has one of the hook points; None where there is nothing to leave out."""
    parts = [PartialModel(model, name) for name in hook_names]
    if not parts or any(part.at is None for part in parts):
        return None
    lowest = min(parse_hook_name(part.hook_name)[0] for part in parts)
    there = [part for part in parts if part.at == lowest]
    # a block that has another hook point inside has to run again, from its input
    inside = [part for part in there if not part.starts_behind]
    part = (inside or there)[0]
    return part if lowest > 0 or part.starts_behind else None


def _losses(logits: Tensor, batch: TokenSet) -> Tensor:
    return cross_entropy(logits, batch.labels[batch.scored])


def _joined(parts: Sequence[Tensor]) -> NDArray[np.float64]:
    return torch.cat(list(parts)).double().cpu().numpy()

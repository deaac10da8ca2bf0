"""Whether a model may be run in part above a hook point: each way of it against a full pass, once.

What fails is done by the whole model from then on, and a warning says why. See `self_check` for what is compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.hook_rows import require_rows, with_rows
from tl_lifehist.models import frozen, run_model
from tl_lifehist.partial_model import PartialModel, Prefix
from tl_lifehist.self_check import (
    SLOPE,
    VALUE,
    Trial,
    changed_rows,
    distance,
    known_of,
    scored_everywhere,
    some_of,
    some_sum,
    spread_error,
    tolerance,
    two_of,
)
from tl_lifehist.tokens import TokenSet

_ENDED = "ending a pass early changes the next one"


class CheckedModel(PartialModel):
    """A model that is run in part where that gives what the whole gives."""

    head: Any  # what follows the last block

    def tried(self, batch: TokenSet) -> Trial:
        """A full pass over two sequences, and whether the head gives its logits from what is behind the last block."""
        known = self.known
        trial = Trial(self.model, self.hook_name, self.last_name if self.blocks else None, batch)
        if not self.blocks or known.reads is False:
            return trial
        cause = ""
        if len(trial.last) != 1:
            cause = f"{self.last_name} fires {len(trial.last)} times in a pass"
        else:
            try:
                final = trial.last[0][trial.batch.valid.to(trial.last[0].device)]
                off = max(trial.error(trial.of(final, i), self.read, i) for i in (0, 1))
            except Exception as error:  # whatever a model's own code may raise
                cause = f"what follows the last block cannot be run alone ({_named(error)})"
            else:
                if not off <= trial.tolerance:
                    cause = (
                        "what follows the last block does not read that block's output alone, row by row (predictions "
                        f"change by {off:.1e} of their spread)"
                    )
        if cause:
            self.read_no_more(trial, cause)
        else:
            known.reads = True
        return trial

    def settle(self, trial: Trial, prefix: Prefix) -> bool:
        """Once a model and hook point: `run_suffix` has to give what the full pass gave, or the whole model is run.

        Returns:
            Whether the prefix is of use; otherwise what is behind the last block is something else from now on.

        Raises:
            InputError: the whole model gives something else as well.
        """
        known, pair = self.known, replace(prefix[trial.chosen], batch=trial.batch)
        if self.hook_name in known.skips:
            return True
        if spread_error(pair.acts, trial.acts) > VALUE * trial.tolerance:
            trial.refuse()
        turned, causes = pair[torch.tensor([1, 0])], []
        for skips in (True, False) if self.at is not None and pair.start is not None else (False,):
            self.end_a_pass()
            try:
                final = self.above(turned, trial.mixed, skips=skips)
                kept = len(trial.of(trial.acts, 1))
                same, clean = (self.head(some_of(one[:kept])) for one in (final, turned.final))
                off = max(trial.error(final[kept:], self.head, 0), distance(same, clean))
            except Exception as error:  # whatever a model's own code may raise
                if not (skips or self.has_blocks):
                    raise
                causes.append(f"running the blocks above it alone raises {_named(error)}")
                continue
            if off <= trial.tolerance:
                break
            causes.append(
                f"what is above it depends on more than the residual stream there (predictions change by {off:.1e} of "
                "their spread): a skip connection, a second stream, an order of its own, something kept from a pass"
            )
        else:
            self.read_no_more(trial, _ENDED)
            return False
        self.end_a_pass()  # the head has run since, and to its end
        again = self.at_hook(trial.batch[torch.tensor([1, 1])])
        if spread_error(again, trial.of(trial.acts, 1).repeat(2, 1)) > VALUE * trial.tolerance:
            self.read_no_more(trial, _ENDED)
            return False
        known.skips[self.hook_name] = skips
        if known.cause and self.hook_name not in known.edits:
            causes.insert(0, known.cause)
        if causes:
            self._tell(causes)
        return True

    @torch.no_grad()
    def try_edits(self, batch: TokenSet) -> None:
        """Once a model and hook point: `_edited` has to give what a full pass gives."""
        known = known_of(self.model, own=self.own)
        if self.hook_name in known.skips or self.hook_name in known.edits or batch.n_valid == 0:
            return
        trial = self.tried(batch)
        while True:
            seen: list[Tensor] = []

            def edit(acts: Tensor, seen: list[Tensor] = seen) -> Tensor:
                seen.append(acts)
                return trial.mixed

            self.end_a_pass()
            final = self.edited(trial.turned, edit)
            wanted = torch.cat([trial.of(trial.acts, 1), trial.of(trial.acts, 0)])
            off = trial.error(final[len(trial.of(trial.acts, 1)) :], self.head, 0)
            if off <= trial.tolerance and spread_error(seen[0], wanted) <= VALUE * trial.tolerance:
                break
            self.read_no_more(trial, _ENDED)
        known.edits.add(self.hook_name)
        if known.cause:
            self._tell([known.cause])

    def try_slopes(self, batch: TokenSet) -> None:
        """Once a model and hook point: the gradient of a backward pass with frozen parameters and hooks gone has to be
        that of a full pass with the hooks in place.

        Raises:
            InputError: it is not, or the model gives none.
        """
        known = known_of(self.model, own=self.own)
        if self.hook_name in known.slopes or batch.n_valid == 0:
            return
        pair = scored_everywhere(batch[two_of(batch)])
        given: list[Tensor] = []

        def change(value: Tensor, hook: Any) -> Tensor:
            given.append(changed_rows(require_rows(value, self.hook_name, pair)).detach().requires_grad_())
            return with_rows(value, pair.valid, given[-1])

        try:
            with torch.enable_grad(), self.model.hooks(fwd_hooks=[(self.hook_name, change)]):
                logits = run_model(self.model, pair.ids, pair.attention_mask)
                (wanted,) = torch.autograd.grad(some_sum(logits[pair.scored.to(logits.device)]), given[0])
            with torch.enable_grad(), frozen(self.model):
                rows = given[0].detach().requires_grad_()
                final = self.edited(pair, lambda acts: rows)
                loss = some_sum(self.head(final))
                (slope,) = torch.autograd.grad(loss, rows)
        except RuntimeError as error:
            raise InputError(
                f"This model gives no gradient at {self.hook_name!r} ({_named(error)}), and masks and scores need one: "
                "switch off gradient checkpointing, take out no_grad, work in place and gradients within its forward."
            ) from error
        off = spread_error(slope.reshape(-1, 1), wanted.reshape(-1, 1))
        if not off <= SLOPE * tolerance(logits.dtype):
            raise InputError(
                f"The gradient at {self.hook_name!r} with frozen parameters is not that of a full pass (it differs by "
                f"{off:.1e} of its size): switch off gradient checkpointing, and take out what reads requires_grad."
            )
        known.slopes.add(self.hook_name)

    def read_no_more(self, trial: Trial, cause: str) -> None:
        """From now on logits are what is behind the last block; where they are already, the model has no answer."""
        known = self.known
        if not self.blocks or known.reads is False:
            trial.refuse()
        if known.skips or known.edits:  # passes may be kept that end at the last block
            raise InputError(
                f"At {self.hook_name!r}, unlike at other hook points of this model, {cause}: leave it out."
            )
        known.reads, known.cause = False, cause
        trial.run(None)  # a whole pass, after which nothing is left of one that was ended

    def _tell(self, causes: Sequence[str]) -> None:
        text = " and ".join(dict.fromkeys(causes))
        warnings.warn(f"At {self.hook_name!r} the whole model is run, slower and as exact: {text}.", stacklevel=3)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]

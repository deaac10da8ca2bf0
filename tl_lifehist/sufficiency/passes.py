"""Clean passes that serve many hook points at once: a checkpoint reads each text once, whatever is made of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel
from tl_lifehist.sufficiency.massive import keep_rows, ordinary_rows
from tl_lifehist.suffix import ModelSuffix, Prefix, run_all_prefixes, run_prefixes
from tl_lifehist.tokens import TokenSet

T = TypeVar("T")
BATCH_SIZE = 16  # sequences at a time


@dataclass(frozen=True, eq=False)
class TrainRows:
    """What a pass over the train text leaves of one hook point.

    Attributes:
        tokens: the text, less the rows that are left out.
        kept: which of the text's valid rows are left.
        acts: activations at the valid positions of `tokens`, at least float32.
        final: the clean residual behind the last block at its scored positions, at least float32.
    """

    tokens: TokenSet
    kept: Bool[Tensor, " whole"]
    acts: Float[Tensor, "row d_model"]
    final: Float[Tensor, "scored d_final"]

    @property
    def scored_acts(self) -> Float[Tensor, "scored d_model"]:
        """Activations at the scored positions."""
        return self.acts[self.tokens.scored[self.tokens.valid]]

    def without_massive(self, share: float) -> TrainRows:
        """The rows less the `share` of them that lies farthest from the mean, as `without_massive` leaves them."""
        if share == 0:
            return self
        kept = ordinary_rows(self.acts, share)
        whole = self.kept.clone()
        whole[self.kept] = kept
        final = self.final[kept[self.tokens.scored[self.tokens.valid]]]
        return TrainRows(keep_rows(self.tokens, kept), whole, self.acts[kept], final)


@torch.no_grad()
def train_rows(
    model: HookedModel, hook_names: Sequence[str], tokens: TokenSet, *, batch_size: int = BATCH_SIZE
) -> dict[str, TrainRows]:
    """Activations of several hook points, and what is behind the last block, from one clean pass; on the CPU.

    The rows are those of `collect_activations` and of `scored_rows`, bit for bit. What is behind the last block is one
    tensor for all of them.

    Raises:
        InputError: no valid position; as `run_prefixes`.
    """
    if tokens.n_valid == 0:
        raise InputError("No position is valid: every token is padding, special or the first of its sequence.")
    suffixes = [ModelSuffix(model, name) for name in hook_names]
    acts: dict[str, list[Tensor]] = {name: [] for name in hook_names}
    final: list[Tensor] = []
    for start in range(0, len(tokens), batch_size):
        found = run_prefixes(suffixes, tokens[start : start + batch_size], start)
        for name, prefix in zip(hook_names, found, strict=True):
            acts[name].append(prefix.acts.cpu())
        behind = found[0].final
        final.append(behind.to(torch.promote_types(behind.dtype, torch.float32)).cpu())
    kept, last = torch.ones(tokens.n_valid, dtype=torch.bool), torch.cat(final)
    return {name: TrainRows(tokens, kept, torch.cat(acts.pop(name)), last) for name in hook_names}


def clean_prefixes(
    model: HookedModel, hook_names: Sequence[str], tokens: TokenSet, *, batch_size: int = BATCH_SIZE
) -> dict[str, Prefix]:
    """What one clean pass over a text leaves above each of several hook points, by hook point."""
    suffixes = [ModelSuffix(model, name) for name in hook_names]
    return dict(zip(hook_names, run_all_prefixes(suffixes, tokens, batch_size), strict=True))


def prefix_without_massive(prefix: Prefix, share: float) -> Prefix:
    """The same pass over the text less the `share` of its rows that lies farthest from the mean."""
    if share == 0:
        return prefix
    return replace(prefix, batch=keep_rows(prefix.batch, ordinary_rows(prefix.acts, share)))


def at_once(hook_names: Sequence[str], hooks_per_pass: int | None) -> Iterator[tuple[str, ...]]:
    """The hook points of each pass: all of them, or so many."""
    size = hooks_per_pass or len(hook_names)
    for start in range(0, len(hook_names), max(1, size)):
        yield tuple(hook_names[start : start + size])


class LatestPass:
    """Holds what the latest pass left, so that stages that want the same share it and memory holds one at a time."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._held: Any = None

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make()` gave for this key, made anew unless it was asked for last."""
        if self._key != key:
            self._key = self._held = None  # let go of it before the next is made
            self._held = make()
            self._key = key
        return self._held

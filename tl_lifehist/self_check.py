"""Whether a model may be run in part: each shortcut against one full pass of two sequences, once.

A pass above a hook point assumes a plain stack of blocks: the residual stream alone goes from one to the next, and what
follows the last block reads its output alone, row by row. Skip connections, embeddings mixed in again, blocks in
another order, caches and noise break that without an error. So the first time that a model is run above a hook point,
one full pass with *changed* activations there says what the answer is, and every shortcut has to give it. Changed
ones, because clean activations leave right what a model has kept from the clean pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tl_lifehist.errors import InputError
from tl_lifehist.hook_rows import require_rows, with_rows
from tl_lifehist.models import Hook, HookedModel, run_model
from tl_lifehist.tokens import NO_LABEL, TokenSet

# what two ways to the same number may differ by, over the spread of such numbers, in a model's arithmetic
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
VALUE, SLOPE = 4, 10  # activations and gradients, which nothing averages, may differ by so many times more
ROWS = 64  # positions of a sequence whose predictions are compared
_LEAST = -80.0  # log-probabilities below it count as it: vocabularies are padded with -inf


@dataclass(eq=False)
class Known:
    """What has been found of a model with its present weights.

    Attributes:
        weights: what tells them from others.
        reads: whether what follows the last block reads that block's output alone, row by row; None until tried.
        skips: whether the blocks below may be skipped, by hook point.
        edits: hook points at which passes that are needed once have been tried.
        slopes: hook points at which gradients have been tried.
        collects: whether a pass may end at its last hook point, by hook points.
        repeats: whether two full passes give the same predictions; None until tried.
        cause: why `reads` is False.
    """

    weights: tuple[Any, ...]
    reads: bool | None = None
    skips: dict[str, bool] = field(default_factory=dict)
    edits: set[str] = field(default_factory=set)
    slopes: set[str] = field(default_factory=set)
    collects: dict[tuple[str, ...], bool] = field(default_factory=dict)
    repeats: bool | None = None
    cause: str = ""


_KNOWN: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()


def known_of(model: HookedModel, *, look: bool = True, own: Known | None = None) -> Known:
    """What is known of a model; nothing, where its weights have changed. `look=False` takes it as it was. A model
    that cannot be held weakly has `own`.
    """
    try:
        found = _KNOWN.get(model)
        if found is None or (look and found.weights != _weights_of(model)):
            found = _KNOWN[model] = Known(_weights_of(model))
    except TypeError:
        return Known(()) if own is None else own
    return found


def _weights_of(model: HookedModel) -> tuple[Any, ...]:
    """Changes with every optimiser step, loaded state and conversion, and costs no look at a number: a skip connection
    that starts at 0 is a plain stack only until it is trained.
    """
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return tuple((p.data_ptr(), -1 if p.is_inference() else p._version, p.dtype) for p in parameters)


class Trial:
    """One full pass over two sequences of a batch with changed activations at a hook point.

    Attributes:
        batch: the sequences, each valid position scored.
        chosen: which sequences of the batch they are.
        acts: what the pass found at the hook point.
        rows: what was put there.
        last: what each firing of the hook point behind the last block saw.

    Raises:
        InputError: a hook point that does not fire exactly once, or has no vector a position.
    """

    def __init__(self, model: HookedModel, hook_name: str, last_name: str | None, batch: TokenSet) -> None:
        self.model, self.hook_name = model, hook_name
        self.chosen = two_of(batch)
        self.batch = scored_everywhere(batch[self.chosen])
        self.acts, self.rows, self.last, self._logits = self.run(last_name)
        self.tolerance = tolerance(self._logits[0].dtype)

    @torch.no_grad()
    def run(self, last_name: str | None) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """The full pass: activations, what was put in their place, what is behind the last block, some logits of each
        sequence.
        """
        seen: list[Tensor] = []
        given: list[Tensor] = []
        last: list[Tensor] = []

        def change(value: Tensor, hook: Any) -> Tensor:
            seen.append(require_rows(value, self.hook_name, self.batch))
            given.append(changed_rows(seen[-1]))
            return with_rows(value, self.batch.valid, given[-1])

        hooks: list[Hook] = [(self.hook_name, change)]
        if last_name is not None:
            hooks.append((last_name, lambda value, hook: last.append(value.clone())))
        with self.model.hooks(fwd_hooks=hooks):
            logits = run_model(self.model, self.batch.ids, self.batch.attention_mask)
        if len(seen) != 1:
            raise InputError(
                f"The hook point {self.hook_name!r} fired {len(seen)} times in one forward pass instead of once, "
                "so its activation is not defined: choose another hook point."
            )
        each = [some_of(one[valid.to(one.device)]) for one, valid in zip(logits, self.batch.valid, strict=True)]
        return seen[0], given[0], last, each

    @property
    def turned(self) -> TokenSet:
        """The sequences the other way round, so that what a model has kept of a pass is of the wrong one."""
        return self.batch[torch.tensor([1, 0])]

    @property
    def mixed(self) -> Float[Tensor, "row d_model"]:
        """Rows for `turned`: the first keeps its activations, the second is changed as it was. Each has another
        neighbour than it had.
        """
        return torch.cat([self.of(self.acts, 1), self.of(self.rows, 0)])

    def of(self, rows: Float[Tensor, "row ..."], sequence: int) -> Float[Tensor, "part ..."]:
        """Those of one sequence of `batch`."""
        return rows.split(self.batch.valid.sum(1).tolist())[sequence]

    def error(self, final: Tensor, head: Callable[[Tensor], Tensor], sequence: int) -> float:
        """How far the predictions of one sequence's rows are from those of the full pass (`distance`)."""
        return distance(head(some_of(final)), self._logits[sequence])

    def refuse(self) -> None:
        """Raise, after a second look for the cause.

        Raises:
            InputError: the model's predictions are not the same in every pass.
        """
        again = self.run(None)
        off = max(distance(a, b) for a, b in zip(again[3], self._logits, strict=True))
        raise unsteady(off > self.tolerance or spread_error(again[0], self.acts) > VALUE * self.tolerance)


def some_of(rows: Float[Tensor, "row d"]) -> Float[Tensor, "some d"]:
    """At most `ROWS` of them, evenly spaced."""
    return rows[torch.linspace(0, len(rows) - 1, min(ROWS, len(rows))).long().to(rows.device)]


def tolerance(dtype: torch.dtype) -> float:
    """What two ways to the same number may differ by, over its size, in a model's arithmetic."""
    return TOLERANCE.get(dtype, TOLERANCE[torch.float32])


def unsteady(same_batch: bool) -> InputError:
    """The error of a model that has no answer of its own."""
    if same_batch:
        return InputError(
            "Two passes of this model over the same text differ, though it is in evaluation mode: it draws noise or "
            "keeps a state between passes. Make it give the same predictions each time, then nothing else is needed."
        )
    return InputError(
        "What this model computes for a sequence depends on the other sequences of its batch, or on the pass before: "
        "every figure here takes sequences as independent. Take out what they share, such as an expert's capacity, "
        "statistics of the batch or a cache."
    )


def two_of(batch: TokenSet) -> Int[Tensor, " two"]:
    """Two sequences that differ and have a valid position each; the same one twice, where there is but one."""
    some = batch.valid.any(dim=1).nonzero()[:, 0]
    first = some[0]
    others = some[(batch.ids[some] != batch.ids[first]).any(dim=1)]
    return torch.stack([first, others[0] if len(others) else first])


def scored_everywhere(batch: TokenSet) -> TokenSet:
    """Each valid position scored, so that the more of them are compared."""
    return replace(batch, labels=torch.where(batch.valid, torch.zeros_like(batch.ids), NO_LABEL))


def changed_rows(acts: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
    """Each row less a part of itself, plus noise of each coordinate's own size: no row stays, none is beyond reach."""
    size = acts.square().mean(dim=0).sqrt()
    size = torch.where(size > 0, size, size.max() if bool(size.max() > 0) else torch.ones_like(size))
    noise = torch.randn(acts.shape, generator=torch.Generator().manual_seed(0)).to(acts)
    return 0.75 * acts + 0.5 * size * noise


def distance(found: Float[Tensor, "row d_vocab"], wanted: Float[Tensor, "row d_vocab"]) -> float:
    """The largest distance of a row's log-probabilities from the wanted ones, over their spread, less what rounding of
    large logits explains. Infinite where the shapes or the NaNs differ.
    """
    if found.shape != wanted.shape:
        return float("inf")
    eps = torch.finfo(wanted.dtype).eps if wanted.is_floating_point() else 0.0
    a, b = (x.double().log_softmax(-1).clamp_min(_LEAST) for x in (found, wanted))
    counted = wanted.double().abs()[b > _LEAST]
    if not bool((a.isnan() == b.isnan()).all()) or not len(counted):
        return float("inf")
    a, b = a.nan_to_num(), b.nan_to_num()
    rounding = 2 * eps * float(counted.max())
    spread = float((b - b.mean(-1, keepdim=True)).square().mean().sqrt())
    off = float((a - b).square().mean(-1).sqrt().max())
    return max(0.0, off - rounding) / max(spread, 1e-6)


def spread_error(found: Float[Tensor, "row d"], wanted: Float[Tensor, "row d"]) -> float:
    """The same for activations, in units of each coordinate's own size, so that massive ones hide no other."""
    if found.shape != wanted.shape:
        return float("inf")
    size = wanted.double().square().mean(dim=0).sqrt()
    off = (found.double() - wanted.double()) / size.clamp_min(1e-3 * float(size.max()) + 1e-30)
    return float(off.square().mean(dim=1).sqrt().max())


def some_sum(logits: Float[Tensor, "row d_vocab"]) -> Float[Tensor, ""]:
    """A number that depends on every prediction, for a gradient."""
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).to(logits)
    return (logits.log_softmax(-1).clamp_min(_LEAST) * weights).sum()


def require_repeatable(model: HookedModel, tokens: TokenSet) -> None:
    """Refuse a model whose predictions for a sequence change with its neighbour: two passes of two, once a model.

    Raises:
        InputError: noise, a state between passes, or sequences that see each other.
    """
    known = known_of(model)
    if known.repeats or tokens.n_valid == 0:
        return
    chosen = two_of(tokens)

    @torch.no_grad()
    def predictions(batch: TokenSet) -> Tensor:
        return run_model(model, batch.ids, batch.attention_mask).flatten(0, -2)[batch.valid.flatten()]

    lengths = tokens[chosen].valid.sum(1).tolist()
    first = predictions(tokens[chosen])
    wanted = first.split(lengths)[1]
    again = predictions(tokens[chosen[[1, 1]]]).chunk(2)  # in another place, with another neighbour
    if max(distance(some_of(one), some_of(wanted)) for one in again) > tolerance(first.dtype):
        raise unsteady(distance(some_of(predictions(tokens[chosen])), some_of(first)) > tolerance(first.dtype))
    known.repeats = True


def made_up(model: HookedModel) -> TokenSet:
    """Two sequences for a model of which no text is at hand."""
    declared = getattr(getattr(model, "cfg", None), "d_vocab", None)
    modules = model.modules() if isinstance(model, nn.Module) else ()
    sizes = [m.num_embeddings for m in modules if isinstance(m, nn.Embedding)]
    ids = torch.arange(1, 17).reshape(2, 8) % max(2, min([declared] if declared else sizes, default=2))
    return TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids)

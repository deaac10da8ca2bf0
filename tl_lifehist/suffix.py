"""The part of a model above a hook point, run on its own: no block below it is computed again.

`start_at_layer` raises on some models and is ignored on others, so the earlier blocks get a pass-through `forward`
while a suffix runs, and the block at the hook point starts from what one clean pass stored. At mid-depth that saves
half of every step of a mask. What comes after the last block (final norm, prediction head, unembedding, soft caps) is
run through the model's own code in the same way, on the rows that are scored and on no other.

All of that is right for a plain stack of blocks alone. So once a model and hook point each shortcut has to give what
one full pass gives (`self_check`); where one does not, the whole model is run instead, and a warning says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.hook_rows import NonFiniteActivations, flat, require_rows
from tl_lifehist.models import Hook, HookedModel, exactly_once, run_model
from tl_lifehist.partial_model import Prefix as Prefix
from tl_lifehist.partial_model import Reached, keeper, stopper
from tl_lifehist.self_check import known_of, made_up
from tl_lifehist.suffix_check import CheckedModel
from tl_lifehist.tokens import TokenSet

KEPT = 2**28  # logits of a text that are kept between passes, in numbers; more are made again by each


class ModelSuffix(CheckedModel):
    """The part of `model` above `hook_name`.

    Args:
        model: a TransformerBridge, a HookedTransformer, or anything with hooks; without `blocks` it is run whole.
        hook_name: where activations are replaced, one vector a position.

    Attributes:
        head: everything behind the last block, on residual rows of any position. Where that is not all that the logits
            are made of, the logits themselves are what is behind the last block, and `head` changes nothing.

    Raises:
        InputError: an unknown hook point, or a model in training mode; at its first run, a model whose predictions are
            not the same in every pass.
    """

    def __init__(self, model: HookedModel, hook_name: str) -> None:
        super().__init__(model, hook_name)
        self.head: ModelHead = ModelHead(self)

    @property
    def in_residual_stream(self) -> bool:
        """Whether the activation is the residual stream itself, so that the final head can read it."""
        return self._in_stream and self.has_blocks

    def run_prefix(self, batch: TokenSet, first_sequence: int = 0) -> Prefix:
        """`run_prefixes` for this hook point alone."""
        return run_prefixes([self], batch, first_sequence)[0]

    def run_prefix_all(self, tokens: TokenSet, batch_size: int) -> Prefix:
        """`run_all_prefixes` for this hook point alone."""
        return run_all_prefixes([self], tokens, batch_size)[0]

    def run_suffix(self, prefix: Prefix, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "scored d_last"]:
        """The residual behind the last block at the scored positions, with `rows` at the valid positions of the hook
        point. Gradients flow to `rows`.
        """
        return self.above(prefix, rows, skips=self.known.skips.get(self.hook_name, True))

    def run_edited(
        self, batch: TokenSet, edit: Callable[[Tensor], Tensor], first_sequence: int = 0
    ) -> Float[Tensor, "scored d_last"]:
        """`run_suffix` for rows that are needed once: the whole model up to the last block in one pass, with
        `edit(activations)` at the valid positions of the hook point. Nothing is stored, so no block runs twice.

        Raises:
            InputError: a hook point that does not fire exactly once, or has no vector a position; a model whose
                predictions are not the same in every pass.
            NonFiniteActivations: a NaN or an infinity at the hook point.
        """
        with suppress(NonFiniteActivations):  # the pass itself names the sequence
            self.try_edits(batch)
        return self.edited(batch, edit, first_sequence)

    def unembed(self, rows: Float[Tensor, "row d_last"]) -> Float[Tensor, "row d_vocab"]:
        """Logits of residual rows: the model's own norm, prediction head and unembedding. Gradients flow to `rows`."""
        if self.blocks and self.known.reads is None:  # a head that comes from a file is asked before any text is run
            run_prefixes([self], made_up(self.model))
        return self.read(rows) if self.has_blocks else rows


@torch.no_grad()
def run_prefixes(suffixes: Sequence[ModelSuffix], batch: TokenSet, first_sequence: int = 0) -> list[Prefix]:
    """One clean pass over a batch for any number of hook points of one model, in their order. What each finds is what
    a pass of its own finds; what lies behind the last block is shared.

    Args:
        suffixes: of one model.
        batch: the sequences.
        first_sequence: where the batch starts in its token set, for errors.

    Raises:
        InputError: hook points of several models, one that does not fire exactly once, or has no vector a position.
        NonFiniteActivations: a NaN or an infinity at a hook point.
    """
    if len({id(one.model) for one in suffixes}) != 1:
        raise InputError("A pass is one model's: give at least one hook point, all of the same model.")
    for one in suffixes:
        one.own = suffixes[0].own
    known = known_of(suffixes[0].model, own=suffixes[0].own)
    untried = {one.hook_name: one for one in suffixes if one.hook_name not in known.skips and batch.n_valid}
    try:
        trials = {name: one.tried(batch) for name, one in untried.items()}
    except NonFiniteActivations:
        _one_pass(suffixes, batch, first_sequence)  # names the sequence
        raise
    while True:
        found = _one_pass(suffixes, batch, first_sequence)
        of_hook = {one.hook_name: prefix for one, prefix in zip(suffixes, found, strict=True)}
        if all(one.settle(trials[name], of_hook[name]) for name, one in untried.items()):
            return found


def _one_pass(suffixes: Sequence[ModelSuffix], batch: TokenSet, first_sequence: int) -> list[Prefix]:
    model, blocks = suffixes[0].model, suffixes[0].has_blocks
    caught: list[dict[str, Tensor]] = [{} for _ in suffixes]
    reached: list[Tensor] = []
    hooks: list[Hook] = [(one.hook_name, keeper(found)) for one, found in zip(suffixes, caught, strict=True)]
    if blocks:  # nothing behind the last block is needed, and logits of every position are large
        hooks.append((suffixes[0].last_name, stopper(reached)))
    with ExitStack() as stack:
        for one, found in zip(suffixes, caught, strict=True):
            stack.enter_context(one.watched(found))
        stack.enter_context(exactly_once(model, hooks))
        with suppress(Reached):
            reached.append(run_model(model, batch.ids, batch.attention_mask))
    for one, found in zip(suffixes, caught, strict=True):
        require_rows(found["value"], one.hook_name, batch, first_sequence)
        found["value"] = flat(found["value"], one.hook_name, tuple(batch.ids.shape))
    if not bool(torch.isfinite(reached[0][batch.scored.to(reached[0].device)]).all()):
        raise InputError("The model's own predictions are NaN or infinite: load it in float32.")
    return [
        Prefix(batch, found["value"] if one.starts_behind else found.get("start"), found["value"], reached[0], model)
        for one, found in zip(suffixes, caught, strict=True)
    ]


def run_all_prefixes(suffixes: Sequence[ModelSuffix], tokens: TokenSet, batch_size: int) -> list[Prefix]:
    """`run_prefixes` over all of `tokens`, in batches: one clean pass, a prefix for each hook point."""
    parts, lasts, fits = [], [], True
    for start in range(0, len(tokens), batch_size):
        part = run_prefixes(suffixes, tokens[start : start + batch_size], start)
        last = part[0].last
        # a residual always is; logits of a whole text can take many times as much
        fits = fits and last is not None and (suffixes[0].has_blocks or last[0].numel() * len(tokens) <= KEPT)
        lasts = [*lasts, last] if fits else []
        parts.append([replace(one, last=None) for one in part])
    last = torch.cat(lasts) if fits else None
    found = []
    for i, one in enumerate(suffixes):
        value = torch.cat([part[i].value for part in parts])
        start = value  # behind a block its output is where the next one starts: one tensor is enough
        if not one.starts_behind:
            kept = [part[i].start for part in parts]
            start = None if kept[0] is None else torch.cat([x for x in kept if x is not None])
        found.append(Prefix(tokens, start, value, last, one.model))
    return found


class ModelHead:
    """`head(rows)` of a suffix, as a thing of its own that knows the size of its vocabulary."""

    def __init__(self, suffix: ModelSuffix) -> None:
        self._suffix = suffix

    def __call__(self, rows: Float[Tensor, "row d_last"]) -> Float[Tensor, "row d_vocab"]:
        return self._suffix.unembed(rows)

    @property
    def d_vocab(self) -> int | None:
        """Logits a row; None where only a row can tell."""
        declared = getattr(getattr(self._suffix.model, "cfg", None), "d_vocab", None)
        return int(declared) if self._suffix.has_blocks and declared else None

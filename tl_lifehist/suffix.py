"""The part of a model above a hook point, run on its own: no block below it is computed again.

`start_at_layer` raises on some models and is ignored on others, so the earlier blocks get a pass-through `forward`
while a suffix runs, and the block at the hook point starts from what one clean pass stored. At mid-depth that saves
half of every step of a mask. What comes after the last block (final norm, prediction head, unembedding, soft caps) is
run through the model's own code in the same way, on the rows that are scored and on no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tl_lifehist.activations import require_rows
from tl_lifehist.errors import InputError
from tl_lifehist.models import Hook, HookedModel, device_of, exactly_once, require_hooks, run_model
from tl_lifehist.tokens import TokenSet

_BLOCK_POINT = re.compile(r"blocks\.(\d+)\.")


class _Reached(Exception):
    """Raised by the hook behind the last block, so that nothing after it runs. Never leaves this file."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """What one clean pass leaves for any number of passes above the hook point.

    Attributes:
        batch: the sequences.
        start: what the block at the hook point starts from (None: the whole model is run again).
        value: the activation at the hook point.
        last: the clean residual behind the last block (logits, for a model without blocks).
    """

    batch: TokenSet
    start: Float[Tensor, "seq pos d_model"] | None
    value: Float[Tensor, "seq pos d_model"]
    last: Float[Tensor, "seq pos d_last"]

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, index: slice | Int[Tensor, " chosen"]) -> Prefix:
        start = None if self.start is None else self.start[index]
        return Prefix(self.batch[index], start, self.value[index], self.last[index])

    @property
    def acts(self) -> Float[Tensor, "row d_model"]:
        """Activations at the valid positions, in order, at least float32."""
        return _raised(self.value[self.batch.valid.to(self.value.device)])

    @property
    def final(self) -> Float[Tensor, "scored d_last"]:
        """The clean residual behind the last block at the scored positions."""
        return self.last[self.batch.scored.to(self.last.device)]

    @property
    def scored_sequence(self) -> Int[Tensor, " scored"]:
        """Which sequence each row of `final` belongs to."""
        return self.batch.scored.nonzero()[:, 0]

    @property
    def scored_row(self) -> Int[Tensor, " scored"]:
        """Which row of `acts` each scored position is."""
        return self.batch.scored[self.batch.valid].nonzero()[:, 0]


class ModelSuffix:
    """The part of `model` above `hook_name`.

    Args:
        model: a TransformerBridge, a HookedTransformer, or anything with hooks; without `blocks` it is run whole.
        hook_name: where activations are replaced, one vector a position.

    Attributes:
        head: everything behind the last block, on residual rows of any position.
        in_residual_stream: whether the activation is the residual stream itself, so that the final head can read it.
        starts_behind: whether the activation is a block's output, so that the block itself need not run again.
        last_name: the hook point behind the last block.

    Raises:
        InputError: an unknown hook point, or a model in training mode.
    """

    def __init__(self, model: HookedModel, hook_name: str) -> None:
        require_hooks(model, [hook_name])
        self.model, self.hook_name = model, hook_name
        found = getattr(model, "blocks", None)
        known = model.hook_dict
        self._point = known[hook_name]
        self._blocks = list(found) if isinstance(found, nn.ModuleList) else []
        self.last_name = f"blocks.{len(self._blocks) - 1}.hook_resid_post"
        if self.last_name not in known:
            self._blocks = []
        inside = _BLOCK_POINT.match(hook_name)
        self._at = int(inside.group(1)) if inside and self._blocks else None
        # at a block's output the block itself need not run: its result is the activation
        self.starts_behind = self._at is not None and self._point is known.get(f"blocks.{self._at}.hook_resid_post")
        sides = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post")
        self.in_residual_stream = any(self._point is known.get(f"blocks.{self._at}.{side}") for side in sides)
        self._pairs: bool | None = None  # blocks return (residual, ...) and not the residual; None until one has run
        self.head = ModelHead(self)

    @property
    def has_blocks(self) -> bool:
        """Whether anything can be skipped."""
        return bool(self._blocks)

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
        batch = prefix.batch
        where = batch.valid.to(prefix.value.device)
        reached: list[Tensor] = []

        def replace(value: Tensor, hook: Any) -> Tensor:
            changed = value.clone()
            changed[where] = rows.to(changed)
            return changed

        hooks: list[Hook] = [(self.hook_name, replace)]
        if not self._blocks:
            with self.model.hooks(fwd_hooks=hooks):
                reached.append(run_model(self.model, batch.ids, batch.attention_mask))
        else:
            stopped = [*hooks, (self.last_name, _stopper(reached))]
            with suppress(_Reached), self._shortened(prefix.start), self.model.hooks(fwd_hooks=stopped):
                run_model(self.model, batch.ids, batch.attention_mask)
        return reached[0][batch.scored.to(reached[0].device)]

    def run_edited(
        self, batch: TokenSet, edit: Callable[[Tensor], Tensor], first_sequence: int = 0
    ) -> Float[Tensor, "scored d_last"]:
        """`run_suffix` for rows that are needed once: the whole model up to the last block in one pass, with
        `edit(activations)` at the valid positions of the hook point. Nothing is stored, so no block runs twice.

        Raises:
            InputError: a hook point that does not fire exactly once, or has no vector a position.
            NonFiniteActivations: a NaN or an infinity at the hook point.
        """
        reached: list[Tensor] = []

        def replace(value: Tensor, hook: Any) -> Tensor:
            rows = edit(require_rows(value, self.hook_name, batch, first_sequence))
            changed = value.clone()
            changed[batch.valid.to(value.device)] = rows.to(changed)
            return changed

        hooks: list[Hook] = [(self.hook_name, replace)]
        if self._blocks:
            hooks.append((self.last_name, _stopper(reached)))
        with self.watched({}), exactly_once(self.model, hooks), suppress(_Reached):
            reached.append(run_model(self.model, batch.ids, batch.attention_mask))
        return reached[0][batch.scored.to(reached[0].device)]

    def unembed(self, rows: Float[Tensor, "row d_last"]) -> Float[Tensor, "row d_vocab"]:
        """Logits of residual rows: the model's own norm, prediction head and unembedding. Gradients flow to `rows`."""
        if not self._blocks:
            return rows
        self._look_at_a_block()
        replaced = dict.fromkeys(self._blocks[:-1], self._through)
        replaced[self._blocks[-1]] = self._fixed(rows.unsqueeze(1))
        # a sequence of one token for each row: no limit on the number of positions, no attention between rows
        ids = torch.zeros(len(rows), 1, dtype=torch.long, device=device_of(self.model))
        with _forwards(replaced):
            return self.model(ids).squeeze(1)

    @contextmanager
    def watched(self, caught: dict[str, Tensor]) -> Iterator[None]:
        """Catch what the block at the hook point is given, and see whether blocks return tuples."""
        handles = []
        if self._blocks:

            def output(module: nn.Module, args: Any, result: Any) -> None:
                self._pairs = isinstance(result, tuple)

            handles.append(self._blocks[0].register_forward_hook(output))
        if self._at is not None and not self.starts_behind:

            def entered(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                caught["start"] = _residual(args, kwargs)

            handles.append(self._blocks[self._at].register_forward_pre_hook(entered, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _shortened(self, start: Tensor | None) -> Iterator[None]:
        """The model with the blocks below the hook point skipped."""
        if self._at is None or start is None:
            yield
            return
        self._look_at_a_block()
        replaced: dict[nn.Module, Callable[..., Any]] = dict.fromkeys(self._blocks[: self._at], self._through)
        block = self._blocks[self._at]
        if self.starts_behind:
            replaced[block] = lambda *args, **kwargs: self._shaped(self._point(start))
        else:
            own = block.forward

            def from_start(*args: Any, **kwargs: Any) -> Any:
                if args:
                    return own(start, *args[1:], **kwargs)
                return own(**{**kwargs, "hidden_states": start})

            replaced[block] = from_start
        with _forwards(replaced):
            yield

    @torch.no_grad()
    def _look_at_a_block(self) -> None:
        """See what blocks return, by one token, where no pass has shown it."""
        if self._pairs is None:

            def output(module: nn.Module, args: Any, result: Any) -> None:
                self._pairs = isinstance(result, tuple)
                raise _Reached

            handle = self._blocks[0].register_forward_hook(output)
            try:
                with suppress(_Reached):
                    self.model(torch.zeros(1, 1, dtype=torch.long, device=device_of(self.model)))
            finally:
                handle.remove()

    def _through(self, *args: Any, **kwargs: Any) -> Any:
        return self._shaped(_residual(args, kwargs))

    def _fixed(self, value: Tensor) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._shaped(value.to(_residual(args, kwargs)))

    def _shaped(self, value: Tensor) -> Any:
        return (value,) if self._pairs else value


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
    model, blocks = suffixes[0].model, suffixes[0].has_blocks
    caught: list[dict[str, Tensor]] = [{} for _ in suffixes]
    reached: list[Tensor] = []
    hooks: list[Hook] = [(one.hook_name, _keeper(found)) for one, found in zip(suffixes, caught, strict=True)]
    if blocks:  # nothing behind the last block is needed, and logits of every position are large
        hooks.append((suffixes[0].last_name, _stopper(reached)))
    with ExitStack() as stack:
        for one, found in zip(suffixes, caught, strict=True):
            stack.enter_context(one.watched(found))
        stack.enter_context(exactly_once(model, hooks))
        with suppress(_Reached):
            reached.append(run_model(model, batch.ids, batch.attention_mask))
    for one, found in zip(suffixes, caught, strict=True):
        require_rows(found["value"], one.hook_name, batch, first_sequence)
    if not bool(torch.isfinite(reached[0][batch.scored.to(reached[0].device)]).all()):
        raise InputError("The model's own predictions are NaN or infinite: load it in float32.")
    return [
        Prefix(batch, found["value"] if one.starts_behind else found.get("start"), found["value"], reached[0])
        for one, found in zip(suffixes, caught, strict=True)
    ]


def run_all_prefixes(suffixes: Sequence[ModelSuffix], tokens: TokenSet, batch_size: int) -> list[Prefix]:
    """`run_prefixes` over all of `tokens`, in batches: one clean pass, a prefix for each hook point."""
    starts = range(0, len(tokens), batch_size)
    parts = [run_prefixes(suffixes, tokens[start : start + batch_size], start) for start in starts]
    last = torch.cat([part[0].last for part in parts])
    found = []
    for i, one in enumerate(suffixes):
        value = torch.cat([part[i].value for part in parts])
        start = value  # behind a block its output is where the next one starts: one tensor is enough
        if not one.starts_behind:
            kept = [part[i].start for part in parts]
            start = None if kept[0] is None else torch.cat([x for x in kept if x is not None])
        found.append(Prefix(tokens, start, value, last))
    return found


class ModelHead:
    """`head(rows)` of a suffix, as a thing of its own that knows the size of its vocabulary."""

    def __init__(self, suffix: ModelSuffix) -> None:
        self._suffix = suffix

    def __call__(self, rows: Float[Tensor, "row d_last"]) -> Float[Tensor, "row d_vocab"]:
        return self._suffix.unembed(rows)

    @cached_property
    def d_vocab(self) -> int | None:
        """Logits a row; None where only a row can tell."""
        declared = getattr(getattr(self._suffix.model, "cfg", None), "d_vocab", None)
        return int(declared) if self._suffix.has_blocks and declared else None


def _keeper(caught: dict[str, Tensor]) -> Callable[..., None]:
    """A hook that keeps what it sees."""

    def keep(value: Tensor, hook: Any) -> None:
        caught["value"] = value

    return keep


def _stopper(reached: list[Tensor]) -> Callable[..., None]:
    """A hook that keeps what it sees and ends the pass."""

    def stop(value: Tensor, hook: Any) -> None:
        reached.append(value)
        raise _Reached

    return stop


def _residual(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _raised(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))


@contextmanager
def _forwards(replaced: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Modules with another `forward`, for as long as the context lasts.

    A bridge's own `__setattr__` sends the name to the wrapped module, so it is passed by.
    """
    before = {module: module.__dict__.get("forward") for module in replaced}
    try:
        for module, forward in replaced.items():
            object.__setattr__(module, "forward", forward)
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                object.__setattr__(module, "forward", forward)

"""A model run in part: blocks passed by, passes that are ended at the last block, what follows it run alone.

Whether that gives what the whole model gives is not asked here but in `suffix_check`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tl_lifehist.hook_rows import require_rows, with_rows
from tl_lifehist.models import Hook, HookedModel, device_of, exactly_once, require_hooks, run_model
from tl_lifehist.self_check import Known, known_of
from tl_lifehist.tokens import TokenSet

_BLOCK_POINT = re.compile(r"blocks\.(\d+)\.")


class Reached(BaseException):
    """Raised by the hook behind the last block, so that nothing after it runs. It reaches no user, and no `except
    Exception` of a model's own holds it up.
    """


@dataclass(frozen=True, eq=False)
class Prefix:
    """What one clean pass leaves for any number of passes above the hook point.

    Attributes:
        batch: the sequences.
        start: what the block at the hook point starts from (None: the whole model is run again).
        value: the activation at the hook point, heads side by side.
        last: the clean residual behind the last block; logits, for a model without blocks, or one whose logits are no
            function of that residual alone. None where those would not fit: `final` is then run again.
        model: of whom the pass was.
    """

    batch: TokenSet
    start: Float[Tensor, "seq pos d_stream"] | None
    value: Float[Tensor, "seq pos d_model"]
    last: Float[Tensor, "seq pos d_last"] | None
    model: HookedModel

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, index: slice | Int[Tensor, " chosen"]) -> Prefix:
        start = None if self.start is None else self.start[index]
        last = None if self.last is None else self.last[index]
        return Prefix(self.batch[index], start, self.value[index], last, self.model)

    @property
    def acts(self) -> Float[Tensor, "row d_model"]:
        """Activations at the valid positions, in order, at least float32."""
        return raised(self.value[self.batch.valid.to(self.value.device)])

    @cached_property
    def final(self) -> Float[Tensor, "scored d_last"]:
        """The clean residual behind the last block at the scored positions."""
        last = self.last
        if last is None:
            with torch.no_grad():
                last = run_model(self.model, self.batch.ids, self.batch.attention_mask)
        return last[self.batch.scored.to(last.device)]

    @property
    def scored_sequence(self) -> Int[Tensor, " scored"]:
        """Which sequence each row of `final` belongs to."""
        return self.batch.scored.nonzero()[:, 0]

    @property
    def scored_row(self) -> Int[Tensor, " scored"]:
        """Which row of `acts` each scored position is."""
        return self.batch.scored[self.batch.valid].nonzero()[:, 0]


class PartialModel:
    """What `ModelSuffix` runs, without asking whether it may.

    Attributes:
        blocks: the model's blocks; none where they cannot be told.
        at: the block that the hook point lies in.
        starts_behind: whether the activation is a block's output, so that the block itself need not run again.
        last_name: the hook point behind the last block.
        own: what is known of a model that cannot be held weakly.
    """

    def __init__(self, model: HookedModel, hook_name: str) -> None:
        require_hooks(model, [hook_name])
        self.model, self.hook_name = model, hook_name
        found = getattr(model, "blocks", None)
        known = model.hook_dict
        self._point = known[hook_name]
        self.blocks = list(found) if isinstance(found, nn.ModuleList) else []
        self.last_name = f"blocks.{len(self.blocks) - 1}.hook_resid_post"
        if self.last_name not in known:
            self.blocks = []
        inside = _BLOCK_POINT.match(hook_name)
        self.at = int(inside.group(1)) if inside and self.blocks else None
        # at a block's output the block itself need not run: its result is the activation
        self.starts_behind = self.at is not None and self._point is known.get(f"blocks.{self.at}.hook_resid_post")
        sides = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post")
        self._in_stream = any(self._point is known.get(f"blocks.{self.at}.{side}") for side in sides)
        self._pairs: bool | None = None  # blocks return (residual, ...) and not the residual; None until one has run
        self.own = Known(())

    @property
    def known(self) -> Known:
        """What has been found of the model."""
        return known_of(self.model, look=False, own=self.own)

    @property
    def has_blocks(self) -> bool:
        """Whether what follows the last block can be run alone."""
        return bool(self.blocks) and self.known.reads is not False

    def above(self, prefix: Prefix, rows: Tensor, *, skips: bool) -> Tensor:
        batch = prefix.batch
        hooks: list[Hook] = [(self.hook_name, lambda value, hook: with_rows(value, batch.valid, rows))]
        with self.started_from(prefix.start if skips else None), self.model.hooks(fwd_hooks=hooks):
            return self.behind(batch)

    def behind(self, batch: TokenSet) -> Float[Tensor, "scored d_last"]:
        """What a pass leaves behind the last block at the scored positions; it runs no further."""
        reached: list[Tensor] = []
        if self.has_blocks:
            with suppress(Reached), self.model.hooks(fwd_hooks=[(self.last_name, stopper(reached))]):
                run_model(self.model, batch.ids, batch.attention_mask)
        else:
            reached.append(run_model(self.model, batch.ids, batch.attention_mask))
        return reached[0][batch.scored.to(reached[0].device)]

    def edited(self, batch: TokenSet, edit: Callable[[Tensor], Tensor], first_sequence: int = 0) -> Tensor:
        def change(value: Tensor, hook: Any) -> Tensor:
            return with_rows(value, batch.valid, edit(require_rows(value, self.hook_name, batch, first_sequence)))

        with self.watched({}), exactly_once(self.model, [(self.hook_name, change)]):
            return self.behind(batch)

    def at_hook(self, batch: TokenSet) -> Float[Tensor, "row d_model"]:
        """Activations of a pass that goes no further than the hook point, unless passes must not be ended."""
        reached: list[Tensor] = []

        def stop(value: Tensor, hook: Any) -> None:
            reached.append(require_rows(value, self.hook_name, batch))
            if self.has_blocks:
                raise Reached

        with suppress(Reached), self.model.hooks(fwd_hooks=[(self.hook_name, stop)]):
            run_model(self.model, batch.ids, batch.attention_mask)
        return reached[0]

    def end_a_pass(self) -> None:
        """A pass of one token that is ended like any other: whatever it leaves behind is there."""
        ids = torch.zeros(1, 1, dtype=torch.long)
        with suppress(Exception):  # not every model takes one token
            self.behind(TokenSet(ids, ids > 0, ids))

    def read(self, rows: Float[Tensor, "row d_last"]) -> Float[Tensor, "row d_vocab"]:
        self._look_at_a_block()
        replaced = dict.fromkeys(self.blocks[:-1], self._through)
        replaced[self.blocks[-1]] = self._fixed(rows.unsqueeze(1))
        # a sequence of one token for each row: no limit on the number of positions, no attention between rows
        ids = torch.zeros(len(rows), 1, dtype=torch.long, device=device_of(self.model))
        with _forwards(replaced):
            return self.model(ids).squeeze(1)

    @contextmanager
    def watched(self, caught: dict[str, Tensor]) -> Iterator[None]:
        """Catch what the block at the hook point is given, and see whether blocks return tuples."""
        handles = []
        if self.blocks:

            def output(module: nn.Module, args: Any, result: Any) -> None:
                self._pairs = isinstance(result, tuple)

            handles.append(self.blocks[0].register_forward_hook(output))
        if self.at is not None and not self.starts_behind:

            def entered(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                with suppress(TypeError):
                    caught["start"] = _residual(args, kwargs).clone()  # the block may work in place

            handles.append(self.blocks[self.at].register_forward_pre_hook(entered, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def started_from(self, start: Tensor | None) -> Iterator[None]:
        """The model with the blocks below the hook point skipped, for any passes over the batch that `start` is of:
        the block at the hook point is given `start`, or gives it, where the hook point is its output.
        """
        if self.at is None or start is None:
            yield
            return
        self._look_at_a_block()
        replaced: dict[nn.Module, Callable[..., Any]] = dict.fromkeys(self.blocks[: self.at], self._through)
        block = self.blocks[self.at]
        if self.starts_behind:
            # the next block may work in place
            replaced[block] = lambda *args, **kwargs: self._shaped(self._point(start.clone()))
        else:
            own = block.forward

            def from_start(*args: Any, **kwargs: Any) -> Any:
                at, fresh = _slot(args, kwargs), start.clone()  # the block may work in place
                if isinstance(at, int):
                    return own(*args[:at], fresh, *args[at + 1 :], **kwargs)
                return own(*args, **{**kwargs, at: fresh})

            replaced[block] = from_start
        with _forwards(replaced):
            yield

    @torch.no_grad()
    def _look_at_a_block(self) -> None:
        """See what blocks return, by one token, where no pass has shown it."""
        if self._pairs is None:

            def output(module: nn.Module, args: Any, result: Any) -> None:
                self._pairs = isinstance(result, tuple)
                raise Reached

            handle = self.blocks[0].register_forward_hook(output)
            try:
                with suppress(Reached):
                    self.model(torch.zeros(1, 1, dtype=torch.long, device=device_of(self.model)))
            finally:
                handle.remove()

    def _through(self, *args: Any, **kwargs: Any) -> Any:
        return self._shaped(_residual(args, kwargs))

    def _fixed(self, value: Tensor) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._shaped(value.to(_residual(args, kwargs)).clone())

    def _shaped(self, value: Tensor) -> Any:
        return (value,) if self._pairs else value


def keeper(caught: dict[str, Tensor]) -> Callable[..., None]:
    """A hook that keeps what it sees."""

    def keep(value: Tensor, hook: Any) -> None:
        caught["value"] = value.clone()  # what follows may work in place

    return keep


def stopper(reached: list[Tensor]) -> Callable[..., None]:
    """A hook that keeps what it sees and ends the pass."""

    def stop(value: Tensor, hook: Any) -> None:
        reached.append(value)
        raise Reached

    return stop


def _slot(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str:
    """Where a block is given the residual stream: the first numbers of shape `[seq, pos, d]`, whatever their name."""
    for at, value in [*enumerate(args), *kwargs.items()]:
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3:
            return at
    raise TypeError("a block that is given no residual stream")


def _residual(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    at = _slot(args, kwargs)
    return args[at] if isinstance(at, int) else kwargs[at]


def raised(value: Tensor) -> Tensor:
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

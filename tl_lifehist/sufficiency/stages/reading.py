"""What several stages of one checkpoint read: its train rows and its clean runs, each text in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tl_lifehist.activations import stream_activations
from tl_lifehist.models import HookedModel
from tl_lifehist.stages import Inputs
from tl_lifehist.sufficiency.calibration import BATCH_SIZE
from tl_lifehist.sufficiency.clean import CleanRun
from tl_lifehist.sufficiency.massive import keep_rows, ordinary_rows
from tl_lifehist.sufficiency.passes import (
    LatestPass,
    TrainRows,
    at_once,
    clean_prefixes,
    prefix_without_massive,
    train_rows,
)
from tl_lifehist.tokens import TokenSet


def fit_stage(step: int) -> str:
    """The stage whose outputs are the fits of a checkpoint."""
    return f"fits/step{step}"


@dataclass(frozen=True)
class Reading:
    """How the stages of one checkpoint read its texts.

    Attributes:
        inputs: of the stage.
        step: the checkpoint.
        last: the final checkpoint, whose train activations its fits hold.
        leave_out_massive: share of the rows farthest from the mean that is left out.
        pass_hooks: hook points that a pass serves, so that all stages of the checkpoint share it.
        hooks_per_pass: how many at once; all by default.
    """

    inputs: Inputs
    step: int
    last: int
    leave_out_massive: float
    pass_hooks: Sequence[str]
    hooks_per_pass: int | None = None

    @property
    def model(self) -> HookedModel:
        return self.inputs.model(self.step)

    @property
    def final_model(self) -> HookedModel:
        """That of the final checkpoint, which is the same one there."""
        return self.inputs.model(self.last)

    @property
    def _passes(self) -> LatestPass:
        return self.inputs.shared("passes", LatestPass)

    def chunks(self, hook_names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
        """The hook points of each pass, and those of them that are wanted; passes that serve none are left out."""
        for chunk in at_once(self.pass_hooks, self.hooks_per_pass):
            wanted = [name for name in chunk if name in hook_names]
            if wanted:
                yield chunk, wanted

    def train(self, hook_names: Sequence[str]) -> Iterator[tuple[str, TrainRows]]:
        """Hook points with their train rows, massive ones included."""
        tokens = self.inputs.text("train")
        for chunk, wanted in self.chunks(hook_names):
            key = ("train", self.step, chunk)
            found = self._passes.get(key, lambda chunk=chunk: train_rows(self.model, chunk, tokens))
            for name in wanted:
                yield name, found[name]

    def final_acts(self, hook_name: str) -> Tensor:
        """The final checkpoint's activations at every valid position of the train text, as its fits hold them."""
        return self.inputs[fit_stage(self.last)][f"{hook_name}/acts"]["acts"]

    def train_acts(self, hook_names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Hook points with their train activations, massive rows left out; those of the final checkpoint are there
        already.
        """
        if self.step != self.last:
            share = self.leave_out_massive
            yield from ((name, rows.without_massive(share).acts) for name, rows in self.train(hook_names))
            return
        for name in hook_names:
            acts = self.final_acts(name)
            yield name, acts[ordinary_rows(acts, self.leave_out_massive)]

    def calibration(
        self, hook_names: Sequence[str], *, batch_size: int, with_final: bool = False
    ) -> Iterator[tuple[str, CleanRun]]:
        """Hook points with their clean run over the calibration text, and with that of the final checkpoint beside it
        where it will be asked for.
        """
        tokens, size = self.inputs.text("calibration"), max(batch_size, BATCH_SIZE)
        for chunk, wanted in self.chunks(hook_names):
            key = ("calibration", self.step, chunk)
            found = self._passes.get(key, lambda chunk=chunk: clean_prefixes(self.model, chunk, tokens))
            beside = {}
            if with_final and self.step != self.last:
                beside = clean_prefixes(self.final_model, wanted, tokens)
            for name in wanted:
                own = prefix_without_massive(found[name], self.leave_out_massive)
                others: tuple[CleanRun, ...] = ()
                if name in beside:
                    final = replace(beside.pop(name), batch=own.batch)
                    others = (CleanRun(self.final_model, name, own.batch, size, given=final),)
                yield name, CleanRun(self.model, name, own.batch, size, given=own, others=others)

    def without_massive(self, hook_names: Sequence[str], split: str) -> dict[str, TokenSet]:
        """A split for each hook point, massive rows left out: in one pass, or in none where none are left out."""
        tokens = self.inputs.text(split)
        if self.leave_out_massive == 0:
            return dict.fromkeys(hook_names, tokens)
        parts: dict[str, list[Tensor]] = {name: [] for name in hook_names}
        for batch in stream_activations(self.model, hook_names, tokens):
            for name, rows in batch.items():
                parts[name].append(rows.cpu())
        kept = {name: ordinary_rows(torch.cat(rows), self.leave_out_massive) for name, rows in parts.items()}
        return {name: keep_rows(tokens, rows) for name, rows in kept.items()}

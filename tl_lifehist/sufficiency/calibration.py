"""Calibrating masks: gates that keep a target at the least soft mass (formulas 3 to 5 of the sufficiency methods)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor
from tqdm.auto import tqdm

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel, frozen
from tl_lifehist.sufficiency.clean import CleanRun
from tl_lifehist.sufficiency.gates import SoftMask, require_counts, temperature
from tl_lifehist.sufficiency.objectives import Injected, Quadratic, injected_losses, readout_losses
from tl_lifehist.sufficiency.targets import Objective, Reconstruction, Target
from tl_lifehist.tokens import TokenSet, require_scored, require_valid

STEPS, BATCH_SIZE, LEARNING_RATE, START = 1000, 16, 0.05, 2.0  # ours
SETTLED = 0.75  # share of the steps after which the learning rate falls linearly to 0 (ours)
REACH = 8.0  # |alpha| / temperature stays below it: a saturated sigmoid has no slope left to come back by (ours)
RECORDED = 10  # steps between two lines of a mask's history


@dataclass(frozen=True, eq=False)
class MaskTask:
    """One mask to calibrate.

    Attributes:
        dictionary: whose components are gated; it carries its reference (`decompose`, `with_reference`).
        target: what to preserve.
        penalty: lambda, the penalty on one component's gate. At k components `0.1 / k` keeps lambda k at 0.1.
        seed: draws the minibatches.
        center_codes: as in `MaskedReconstruction`.
        keep_error: as in `MaskedReconstruction`.
    """

    dictionary: Dictionary
    target: Any
    penalty: float = 1e-3
    seed: int = 0
    center_codes: bool = True
    keep_error: bool = False


def calibrate_mask(
    model: HookedModel,
    dictionary: Dictionary,
    tokens: TokenSet,
    target: Any,
    *,
    hook_name: str,
    penalty: float = 1e-3,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    center_codes: bool = True,
    keep_error: bool = False,
    learning_rate: float = LEARNING_RATE,
    progress: bool | None = False,
) -> SoftMask:
    """One soft mask: gates `sigmoid(alpha / temperature)` that minimise `relative loss + penalty * sum of gates`
    (formula 5 of the sufficiency methods) by Adam on alpha.

    Args:
        model: hooked, in evaluation mode; its parameters are frozen meanwhile and get their setting back.
        dictionary: with its reference, as `decompose` and `with_reference` give it.
        tokens: the calibration split: text the dictionary was not fitted on, and other text than the test.
        target: `Reconstruction()`, `FixedHead(translator)`, `Downstream()` or `Transfer(final_model, alignment)`.
        hook_name: where the activation is replaced.
        penalty: lambda (ours: 1e-3 at 100 components).
        steps: Adam steps (ours).
        batch_size: sequences a step; as many as there are, or more, puts all of them into every step.
        seed: draws the minibatches.
        center_codes: as in `MaskedReconstruction`.
        keep_error: as in `MaskedReconstruction`.
        learning_rate: of Adam (ours); it falls linearly to 0 over the last quarter.
        progress: a bar; None shows it on a terminal alone.

    Raises:
        InputError: a dictionary without reference or of another width, no scored position, fewer than one step, a
            negative penalty, a model in training mode, an unknown hook point, a reference near 0.

    How it can mislead: a small mask can be an easy site and not a sufficient set; `evaluate_mask` puts the empty and
    the full mask beside it. In fewer than 46 steps no gate can close, and the mask says nothing.
    """
    task = MaskTask(dictionary, target, penalty, seed, center_codes, keep_error)
    return calibrate_masks(
        model,
        [task],
        tokens,
        hook_name=hook_name,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        progress=progress,
    )[0]


def calibrate_masks(
    model: HookedModel,
    tasks: Sequence[MaskTask],
    tokens: TokenSet,
    *,
    hook_name: str,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    learning_rate: float = LEARNING_RATE,
    progress: bool | None = False,
) -> list[SoftMask]:
    """Several masks at one hook point, in the order of `tasks`: methods, targets, penalties and seeds share one clean
    pass, and masks that go through the same model with the same minibatches share each step. Each comes out as
    `calibrate_mask` alone would give it, up to rounding.

    Raises:
        InputError: as `calibrate_mask`.
    """
    require_counts(steps=steps, batch_size=batch_size)
    clean = CleanRun(model, hook_name, tokens, max(batch_size, BATCH_SIZE))
    return calibrate_on(
        clean, tasks, steps=steps, batch_size=batch_size, learning_rate=learning_rate, progress=progress
    )


def calibrate_on(
    clean: CleanRun,
    tasks: Sequence[MaskTask],
    *,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    learning_rate: float = LEARNING_RATE,
    progress: bool | None = False,
) -> list[SoftMask]:
    """`calibrate_masks` on a clean run, which may have been made already.

    Raises:
        InputError: as `calibrate_mask`.
    """
    model, tokens, hook_name = clean.model, clean.tokens, clean.hook_name
    _check(tasks, tokens, learning_rate)
    require_counts(steps=steps, batch_size=batch_size)
    known: dict[tuple[int, bool, bool], MaskBasis] = {}
    bases = []
    for t in tasks:  # one basis for tasks that share it, so that rows are encoded once
        key = (id(t.dictionary), t.center_codes, t.keep_error)
        if key not in known:
            known[key] = MaskBasis.of(t.dictionary, hook_name, center_codes=t.center_codes, keep_error=t.keep_error)
        bases.append(known[key])
    objectives = [task.target.objective(clean, basis) for task, basis in zip(tasks, bases, strict=True)]
    for one in objectives:
        if isinstance(one, Injected):
            one.suffix.try_slopes(one.prefix.batch)
    return _descend(model, tasks, objectives, bases, len(tokens), hook_name, steps, batch_size, learning_rate, progress)


def gates_can_close(steps: int, learning_rate: float = LEARNING_RATE) -> bool:
    """Whether so many Adam steps, each of at most the learning rate, reach from a gate's start to one half.

    In fewer (46 at the default rate) no gate can close whatever the loss says, and every mask is near gates of 1.
    """
    return learning_rate * steps * (1 + SETTLED) / 2 >= START


def _check(tasks: Sequence[MaskTask], tokens: TokenSet, learning_rate: float) -> None:
    if not tasks:
        raise InputError("There is no mask to calibrate: give at least one task.")
    for task in tasks:
        if isinstance(task.target, type) or not isinstance(task.target, Target):
            raise InputError(
                f"target={task.target!r} is no target: use lh.Reconstruction(), lh.FixedHead(translator), "
                "lh.Downstream() or lh.Transfer(final_model, alignment)."
            )
    require_valid(tokens)
    if any(not isinstance(task.target, Reconstruction) for task in tasks):
        require_scored(tokens)
    if not 0 < learning_rate < math.inf:
        raise InputError(f"learning_rate={learning_rate} must be a number above 0.")
    for task in tasks:
        if not 0 <= task.penalty < math.inf:
            raise InputError(f"penalty={task.penalty} must be a number and not negative.")


def _descend(
    model: HookedModel,
    tasks: Sequence[MaskTask],
    objectives: Sequence[Objective],
    bases: Sequence[MaskBasis],
    n_sequences: int,
    hook_name: str,
    steps: int,
    batch_size: int,
    learning_rate: float,
    progress: bool | None,
) -> list[SoftMask]:
    alphas = [torch.full_like(basis.code_mean, START).requires_grad_() for basis in bases]
    optimiser = torch.optim.Adam(alphas, lr=learning_rate)
    falling = max(1.0, (1 - SETTLED) * steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (steps - step) / falling))
    draws = {task.seed: _minibatches(n_sequences, batch_size, task.seed) for task in tasks}
    evaluate = _grouped(tasks, objectives)
    history: list[list[tuple[int, float, float, float]]] = [[] for _ in tasks]
    models = [model, *(o.suffix.model for o in objectives if isinstance(o, Injected))]
    with ExitStack() as stack:
        for one in {id(m): m for m in models}.values():
            stack.enter_context(frozen(one))
        stack.enter_context(torch.enable_grad())  # notebooks often switch gradients off altogether
        for step in tqdm(range(steps), desc="masks", disable=None if progress is None else not progress):
            heat = temperature(step, steps)
            with torch.no_grad():
                for alpha in alphas:
                    alpha.clamp_(-REACH * heat, REACH * heat)
            gates = [torch.sigmoid(alpha / heat) for alpha in alphas]
            losses = evaluate(gates, {seed: next(draw) for seed, draw in draws.items()})
            total = sum(
                loss.double() + task.penalty * z.double().sum()
                for loss, task, z in zip(losses, tasks, gates, strict=True)
            )
            optimiser.zero_grad()
            total.backward()  # type: ignore[union-attr]
            optimiser.step()
            schedule.step()
            if step % RECORDED == 0 or step == steps - 1:
                for lines, loss, z in zip(history, losses, gates, strict=True):
                    lines.append((step, heat, float(loss.detach()), float(z.detach().mean())))
    final = temperature(steps, steps)
    columns = ["step", "temperature", "loss", "soft_mass"]
    return [
        SoftMask(
            torch.sigmoid((alpha.detach() / final).clamp(-REACH, REACH)),
            hook_name,
            task.dictionary,
            task.target.name,
            task.penalty,
            task.seed,
            pd.DataFrame(lines, columns=columns),
            task.center_codes,
            task.keep_error,
        )
        for alpha, task, lines in zip(alphas, tasks, history, strict=True)
    ]


def _grouped(
    tasks: Sequence[MaskTask], objectives: Sequence[Objective]
) -> Callable[[list[Tensor], dict[int, Tensor]], list[Tensor]]:
    """All losses of a step; masks of one model (or one fixed head) on the same minibatches go through it together."""
    together: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, (task, objective) in enumerate(zip(tasks, objectives, strict=True)):
        if not isinstance(objective, Quadratic):
            shared = objective.suffix if isinstance(objective, Injected) else objective.translate
            together[id(shared), task.seed].append(i)

    def evaluate(gates: list[Tensor], sequences: dict[int, Tensor]) -> list[Tensor]:
        losses = {i: o(gates[i]) for i, o in enumerate(objectives) if isinstance(o, Quadratic)}
        for (_, seed), members in together.items():
            parts: list[Any] = [objectives[i] for i in members]
            joint = injected_losses if isinstance(parts[0], Injected) else readout_losses
            losses |= zip(members, joint(parts, [gates[i] for i in members], sequences[seed]), strict=True)
        return [losses[i] for i in range(len(objectives))]

    return evaluate


def _minibatches(n_sequences: int, batch_size: int, seed: int) -> Iterator[Int[Tensor, " chosen"]]:
    """Endless minibatches of sequences, shuffled anew in every round; all of them in order where they fit in one."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        if batch_size >= n_sequences:
            yield torch.arange(n_sequences)
            continue
        order = torch.randperm(n_sequences, generator=generator)
        for start in range(0, n_sequences - batch_size + 1, batch_size):
            yield order[start : start + batch_size].sort().values

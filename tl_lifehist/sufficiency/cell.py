"""One checkpoint and hook point of a study: its fits and texts, and its masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.models import HookedModel
from tl_lifehist.sufficiency.calibration import MaskTask, calibrate_on
from tl_lifehist.sufficiency.clean import CleanRun, NoReference
from tl_lifehist.sufficiency.config import Comparisons, Geometry, Masks
from tl_lifehist.sufficiency.fitted import Fitted
from tl_lifehist.sufficiency.target_kinds import TARGETS
from tl_lifehist.sufficiency.targets import TargetContext
from tl_lifehist.tokens import TokenSet


@dataclass(frozen=True, eq=False)
class Cell:
    """What is scored at one checkpoint and hook point.

    Attributes:
        step: the checkpoint.
        hook_name: the hook point.
        model: the checkpoint's model.
        final_model: that of the final checkpoint, where transfers go.
        calibration: text that rankings are made on.
        test: text that everything is measured on.
        fitted: on the train text.
        masks: what masks preserve and how they were calibrated.
        comparisons: what they stand beside.
        close_ups: methods with frontier and stability.
        geometry: how sensitivity and curvature are measured.
        seed: of everything random but the masks.
    """

    step: int
    hook_name: str
    model: HookedModel
    final_model: HookedModel
    calibration: TokenSet
    test: TokenSet
    fitted: Fitted
    masks: Masks
    comparisons: Comparisons
    close_ups: tuple[str, ...]
    geometry: Geometry
    seed: int


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Gates with what they were calibrated for.

    Attributes:
        method: of the dictionary.
        target: what was to be preserved.
        penalty_total: lambda times the number of components.
        seed: of the minibatches.
        gates: between 0 and 1.
        history: step, temperature, loss, soft_mass of the descent.
    """

    method: str
    target: str
    penalty_total: float
    seed: int
    gates: Float[Tensor, " component"]
    history: pd.DataFrame = field(default_factory=pd.DataFrame)


def calibrate(
    clean: CleanRun,
    fitted: Fitted,
    final_model: HookedModel,
    masks: Masks,
    *,
    close_ups: Sequence[str],
    sweep: Sequence[float],
    seeds: Sequence[int],
) -> list[Calibrated]:
    """All masks of a checkpoint and hook point in one descent: targets and methods, then the close-ups' sweep and
    seeds, downstream. A target whose reference is practically 0 has none (formula 9).
    """
    context = TargetContext(
        fitted.translator, fitted.alignments["aligned"], final_model, masks.relative_to, masks.transfer_loss
    )
    targets = {name: TARGETS[name].make(context) for name in masks.targets}
    first, own = seeds[0], masks.penalty_total
    wanted = [(m, t, own, first) for m in fitted.dictionaries for t in masks.targets]
    if "downstream" in masks.targets:
        wanted += [(m, "downstream", total, first) for m in close_ups for total in sweep]
        wanted += [(m, "downstream", own, seed) for m in close_ups for seed in seeds[1:]]
    while wanted:
        tasks = []
        for method, target, total, seed in wanted:
            dictionary = fitted.dictionaries[method]
            tasks.append(MaskTask(dictionary, targets[target], total / len(dictionary.W_dec), seed))
        try:
            found = calibrate_on(
                clean,
                tasks,
                steps=masks.mask_steps,
                batch_size=masks.batch_size,
                learning_rate=masks.learning_rate,
            )
        except NoReference as error:
            wanted = [w for w in wanted if w[1] != error.target]
        else:
            return [Calibrated(*w, mask.gates, mask.history) for w, mask in zip(wanted, found, strict=True)]
    return []


_NAMES = ("method", "target", "penalty_total", "seed")


def gates_table(masks: Iterable[Calibrated]) -> pd.DataFrame:
    """One row for each gate: method, target, penalty_total, seed, component, gate."""
    parts = []
    for one in masks:
        values = one.gates.cpu().numpy()
        named = {name: getattr(one, name) for name in _NAMES}
        parts.append(pd.DataFrame({**named, "component": range(len(values)), "gate": values}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*_NAMES, "component", "gate"])


def history_table(masks: Iterable[Calibrated]) -> pd.DataFrame:
    """How each mask came to rest: method, target, penalty_total, seed, mask_step, temperature, loss, soft_mass."""
    parts = [
        one.history.rename(columns={"step": "mask_step"}).assign(**{name: getattr(one, name) for name in _NAMES})
        for one in masks
    ]
    columns = [*_NAMES, "mask_step", "temperature", "loss", "soft_mass"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def calibrated_in(gates: pd.DataFrame) -> Iterator[Calibrated]:
    """The masks of a table of gates, in its order; their histories are not in it."""
    for _, rows in gates.groupby(list(_NAMES), sort=False):
        named = {name: rows[name].iloc[0] for name in _NAMES}
        yield Calibrated(
            str(named["method"]),
            str(named["target"]),
            float(named["penalty_total"]),
            int(named["seed"]),
            torch.tensor(rows["gate"].to_numpy()),
        )

"""Masks of one checkpoint: the gates of every target, method, penalty and seed at all its hook points."""

from __future__ import annotations

from tl_lifehist.stages import Inputs, Outputs
from tl_lifehist.sufficiency.cell import calibrate, gates_table, history_table
from tl_lifehist.sufficiency.config import Masks
from tl_lifehist.sufficiency.fitted import Fitted
from tl_lifehist.sufficiency.sites import joined, with_site
from tl_lifehist.sufficiency.stages.reading import Reading, fit_stage


def calibrated(
    inputs: Inputs,
    *,
    step: int,
    last: int,
    hook_names: tuple[str, ...],
    leave_out_massive: float,
    masks: Masks,
    close_ups: tuple[str, ...],
    sweep: tuple[float, ...],
    seeds: tuple[int, ...],
    pass_hooks: tuple[str, ...],
    hooks_per_pass: int | None = None,
) -> Outputs:
    """`gates`, and `history` of how they came to rest, each with its checkpoint and hook point."""
    reading = Reading(inputs, step, last, leave_out_massive, pass_hooks, hooks_per_pass)
    gates, history = [], []
    runs = reading.calibration(hook_names, batch_size=masks.batch_size, with_final="transfer" in masks.targets)
    for name, clean in runs:
        fitted = Fitted.from_outputs(inputs[fit_stage(step)], clean.suffix)
        found = calibrate(clean, fitted, reading.final_model, masks, close_ups=close_ups, sweep=sweep, seeds=seeds)
        gates.append(with_site(gates_table(found), step, name))
        history.append(with_site(history_table(found), step, name))
    return {"gates": joined(gates), "history": joined(history)}

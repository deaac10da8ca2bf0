"""SAEs of one checkpoint, all hook points from one pass (D1), and their replicates for the noise controls (C1)."""

from __future__ import annotations

from typing import Any

from tl_lifehist.dictionaries.sae import TrainedSAE, init_seeds, train_at
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.config import SAETraining
from tl_lifehist.lifehistory.history import sae_stage
from tl_lifehist.seeds import derive_seed
from tl_lifehist.stages import Inputs, Outputs


def train(
    inputs: Inputs,
    *,
    step: int,
    hook_names: tuple[str, ...],
    sae: SAETraining,
    seed: int,
    replicate: str = "",
    start: int | None = None,
) -> Outputs:
    """SAEs by hook point; with `init="previous"` also the weights that the next checkpoint starts from.

    Args:
        replicate: "" for the run's own; "data1" has other rows, "init1" other initial weights as well, "warm1" starts
            from the run's own.
        start: checkpoint whose SAEs training starts from; None starts from the seed.
    """
    level, number = replicate.rstrip("0123456789"), int(replicate.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)
    own_seed = derive_seed(seed, number, 13) if level == "init" else seed
    order = (seed, step, 7, number, 1 if level == "init" else 2) if number else (seed, step, 7)
    trained = train_at(
        inputs.model(step),
        hook_names,
        inputs.text("train"),
        init_seeds=init_seeds(hook_names, init=sae.init, seed=own_seed, step=step),
        order_seed=derive_seed(*order),
        d_sae=sae.d_sae,
        k=sae.k,
        training_tokens=sae.training_tokens,
        start_from=None if start is None else _states(inputs, start, hook_names),
        metadata={"model_name": inputs.series.name, "checkpoint_step": step},
    )
    outputs: dict[str, Any] = {h: one.sae for h, one in trained.items()}
    if sae.init == "previous" and not replicate:
        outputs |= {f"training/{h}": dict(one.state) for h, one in trained.items()}
    return outputs


def _states(inputs: Inputs, step: int, hook_names: tuple[str, ...]) -> dict[str, TrainedSAE]:
    held = inputs[sae_stage(step)]
    return {h: TrainedSAE(None, held[f"training/{h}"], None) for h in hook_names}


def given(inputs: Inputs, **_: Any) -> Outputs:
    """SAEs that the study was given are put into the folder before any stage runs, so that this is never reached."""
    raise InputError("The SAEs that the study was given are gone from the folder: start it again with the same saes=.")

"""How often a tested claim errs, and what it finds, in planted worlds of a run's own size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from tl_lifehist.errors import InputError
from tl_lifehist.inference.worlds import World, rejections
from tl_lifehist.lifehistory.worlds import worlds_of_run as life_history_worlds_of
from tl_lifehist.runs import Run

WORLDS: Mapping[str, Callable[[Run], list[World]]] = {"life-history": life_history_worlds_of}


def calibrate_claims(run: Run, *, n_worlds: int = 200, power: bool = True, seed: int = 0) -> pd.DataFrame:
    """The tests of a finished run, tried in worlds of the run's own size: a row for each tested claim and effect.

    A world takes from the run how many features, documents or checkpoints there are and how rates and masses lie, and
    from a random generator all that the claim is about. An effect of 0 gives the false-positive rate, others the power.

    Args:
        run: of either study.
        n_worlds: worlds of each effect; with 200 a rate of 5 % is known to within 3 %.
        power: also at the effects that each claim names.
        seed: of the worlds.

    Returns:
        The columns of `rejections`.

    Raises:
        InputError: a run of a study that has no worlds.

    How it can mislead: a test holds its level in these worlds and no others; what they leave out (hook points that
    share a shock, SAEs that fail together) can still be taken for an effect.
    """
    kind = str(run.study["study"])
    if kind not in WORLDS:
        raise InputError(f"A run of the kind {kind!r} has no worlds to be tried in: give one of {', '.join(WORLDS)}.")
    return rejections(WORLDS[kind](run), n_worlds=n_worlds, power=power, seed=seed)

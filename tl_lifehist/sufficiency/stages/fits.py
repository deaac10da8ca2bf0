"""Fits of one checkpoint: dictionaries, fixed heads and alignments at all its hook points, from one pass of the train
text.
"""

from __future__ import annotations

from typing import Any

from tl_lifehist.dictionaries.decomposition import Decomposition
from tl_lifehist.stages import Inputs, Outputs
from tl_lifehist.sufficiency.config import Dictionaries, Heads
from tl_lifehist.sufficiency.fitted import fit_site
from tl_lifehist.sufficiency.stages.reading import Reading, fit_stage
from tl_lifehist.suffix import ModelSuffix


def fits(
    inputs: Inputs,
    *,
    step: int,
    last: int,
    hook_names: tuple[str, ...],
    dictionaries: Dictionaries,
    heads: Heads,
    close_ups: tuple[str, ...],
    seed: int,
    pass_hooks: tuple[str, ...],
    hooks_per_pass: int | None = None,
) -> Outputs:
    """A `Fitted` for each hook point. Those of the final checkpoint, which come first, also hold its activations, which
    the alignments of all others need.
    """
    share = dictionaries.leave_out_massive
    reading = Reading(inputs, step, last, share, pass_hooks, hooks_per_pass)
    outputs: dict[str, Any] = {}
    for name, whole in reading.train(hook_names):
        rows = whole.without_massive(share)
        final_acts, known = rows.acts, dict[str, Decomposition]()
        if step == last:
            outputs[f"{name}/acts"] = {"acts": whole.acts}
        else:
            final_acts = reading.final_acts(name)[rows.kept]
            if share == 0:  # the same rows, so the final checkpoint's own dictionaries
                held = inputs[fit_stage(last)]
                known = {m: Decomposition.from_tensors(held[f"{name}/dictionaries/{m}"]) for m in close_ups}
        fitted = fit_site(
            ModelSuffix(reading.model, name),
            rows,
            final_acts,
            known,
            step=step,
            dictionaries=dictionaries,
            heads=heads,
            close_ups=close_ups,
            seed=seed,
        )
        outputs |= fitted.to_outputs()
    return outputs

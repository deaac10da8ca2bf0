"""What the SAEs of one checkpoint do on the test text: profiles (D4), loss of the model, variance left (D1)."""

from __future__ import annotations

from typing import Any

from tl_lifehist.activations import collect_activations
from tl_lifehist.effects import scored_losses
from tl_lifehist.lifehistory.history import sae_stage
from tl_lifehist.lifehistory.profiles import profile_replicates
from tl_lifehist.metrics import fvu
from tl_lifehist.stages import Inputs, Outputs


def profiles(
    inputs: Inputs,
    *,
    step: int,
    hook_names: tuple[str, ...],
    replicates: tuple[str, ...],
    load_tokens: int,
    firing_threshold: float,
) -> Outputs:
    """Profiles by hook point, those of replicates under `replicate/hook_name`, and a record of the checkpoint. One
    pass over the text serves the SAEs of all.
    """
    model, test = inputs.model(step), inputs.text("test")
    saes = {name: {h: inputs[sae_stage(step, name)][h] for h in hook_names} for name in ("", *replicates)}
    found = profile_replicates(model, saes, test, step=step, firing_threshold=firing_threshold)
    outputs: dict[str, Any] = {
        f"{name}/{h}" if name else h: profile.to_arrays() for name, at in found.items() for h, profile in at.items()
    }
    text = test.head(load_tokens)
    losses = scored_losses(model, text)
    left = {}
    for h, sae in saes[""].items():
        rows = collect_activations(model, h, text)
        left[h] = fvu(rows, sae.decode(sae.encode(rows)))
    return {**outputs, "checkpoint": {"base_ce": float(losses.mean()), "n_scored": len(losses), "fvu": left}}

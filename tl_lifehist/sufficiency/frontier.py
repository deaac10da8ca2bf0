"""The frontier: what is lost against how much is kept, over a sweep of the penalty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions, n_features, reference_of
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel
from tl_lifehist.sufficiency.calibration import BATCH_SIZE, STEPS, MaskTask, calibrate_masks
from tl_lifehist.sufficiency.evaluation import evaluate_masks
from tl_lifehist.sufficiency.nulls import rivals
from tl_lifehist.sufficiency.targets import Downstream, Target
from tl_lifehist.tokens import TokenSet

PENALTY_TOTALS = (0.01, 0.03, 0.1, 0.3, 1.0)  # lambda k; at 100 components lambda goes from 1e-4 to 1e-2 (ours)
RIVALS = ("hard", "dealt")
COLUMNS = [
    *("penalty", "penalty_total", "soft_mass", "nmse", "kl", "relative_kl", "lost_fraction", "accuracy_drop"),
    *("variance_lost_fraction", "full_lost_fraction"),
]


def frontier(
    model: HookedModel,
    dictionary: Dictionary,
    tokens: TokenSet,
    test_tokens: TokenSet,
    *,
    hook_name: str,
    target: Target | None = None,
    penalty_totals: Sequence[float] = PENALTY_TOTALS,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    center_codes: bool = True,
    keep_error: bool = False,
    progress: bool | None = False,
) -> pd.DataFrame:
    """One mask for each penalty, all calibrated in one descent, and what each of them loses on other text.

    A row per penalty, in their order; `onset_of_sufficiency` reads the table as it is (formula 18 of the sufficiency
    methods). Columns:

    - `penalty`, the lambda of formula 5, and `penalty_total`, lambda times the number of components;
    - `soft_mass`, `nmse`, `kl` (nats), `relative_kl`, `lost_fraction` (the empty mask scores 1) and `accuracy_drop`
      (percentage points), as in `MaskEvaluation`;
    - `variance_lost_fraction`: that of the leading components by variance at the same soft mass, the cheaper of hard
      gates and of the mask's own gates dealt out by rank;
    - `full_lost_fraction`: that of the full mask, the same in every row: what the dictionary itself loses.

    Args:
        model: hooked, in evaluation mode.
        dictionary: with its reference.
        tokens: the calibration split.
        test_tokens: the test split, on which all figures are measured.
        hook_name: where the activation is replaced.
        target: what the masks preserve; `Downstream()` by default. The figures are those of `model` in any case.
        penalty_totals: values of lambda k (ours).
        steps: Adam steps.
        batch_size: sequences a step.
        seed: draws the minibatches, the same for all penalties.
        center_codes: as in `MaskedReconstruction`.
        keep_error: as in `MaskedReconstruction`.
        progress: a bar; None shows it on a terminal alone.

    Raises:
        InputError: no penalty, one that is not a positive number; as `calibrate_masks` and `evaluate_masks`.

    How it can mislead: the points are those of one text and one seed, so small differences between neighbours mean
    nothing. Steps that are too few leave masks of low penalty near the gates they began with. A curve below its
    variance curve is not yet small: read both beside the empty mask's KL, `kl / lost_fraction`.
    """
    if not penalty_totals or not all(total > 0 and math.isfinite(total) for total in penalty_totals):
        raise InputError(f"penalty_totals={list(penalty_totals)}: name at least one, each a number above 0.")
    k = n_features(dictionary)
    wanted = Downstream() if target is None else target
    tasks = [MaskTask(dictionary, wanted, total / k, seed, center_codes, keep_error) for total in penalty_totals]
    masks = calibrate_masks(
        model, tasks, tokens, hook_name=hook_name, steps=steps, batch_size=batch_size, progress=progress
    )
    variance = contributed_variance(dictionary, hook_name)
    gates = {("own", i): mask.gates for i, mask in enumerate(masks)}
    gates |= {(kind, i): g for i, m in enumerate(masks) for kind, g in zip(RIVALS, rivals(m, variance), strict=True)}
    scored = evaluate_masks(
        model,
        dictionary,
        gates,
        test_tokens,
        hook_name=hook_name,
        center_codes=center_codes,
        keep_error=keep_error,
        batch_size=batch_size,
        seed=seed,
    )
    rows = []
    for i, (mask, total) in enumerate(zip(masks, penalty_totals, strict=True)):
        own, full = scored["own", i], scored["own", i].full
        assert full is not None
        figures = (own.soft_mass, own.nmse, own.kl, own.relative_kl, own.lost_fraction, own.accuracy_drop)
        beside = (min(scored[kind, i].lost_fraction for kind in RIVALS), full.lost_fraction)
        rows.append((mask.penalty, float(total), *figures, *beside))
    return pd.DataFrame(rows, columns=COLUMNS)


@torch.no_grad()
def contributed_variance(dictionary: Dictionary, hook_name: str) -> Float[Tensor, " component"]:
    """What a decomposition stores as `component_variance`, up to a factor; of other dictionaries, the variance of each
    component's contribution over the reference's sample of codes.
    """
    stored = getattr(dictionary, "component_variance", None)
    if stored is not None:
        return stored
    codes = reference_of(hook_name, dictionary, None, "the ranking by variance").code_sample
    return codes.var(dim=0, correction=0) * decoder_directions(dictionary).square().sum(dim=1)

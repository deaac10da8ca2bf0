"""The claims of a sufficiency run, each beside its null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tl_lifehist.claims import NOT_TESTABLE, Claim
from tl_lifehist.metrics import exceedance_p, interval
from tl_lifehist.sufficiency.calibration import gates_can_close
from tl_lifehist.sufficiency.config import Masks, Verdicts
from tl_lifehist.sufficiency.trajectories import AGAINST

UNIT = ["step", "hook_name"]  # methods read the same activations, so they are averaged first
RIVALS = {
    "random": "random masks of equal soft mass",
    "top_variance": "the top components by variance at equal soft mass",
    "tau_ranked": "the top components by tau (one backward pass) at equal soft mass",
    "fisher_diagonal": "the top components by curvature at equal soft mass",
}
QUANTITIES = {"relative_kl": "relative KL", "soft_mass": "soft mass"}  # whose trajectories are claimed

Tables = Mapping[str, pd.DataFrame]


def make_claims(tables: Tables, masks: Masks, *, verdicts: Verdicts, seed: int) -> list[Claim]:
    """The claims of every site, in order. `low` and `high` are the central 95 % of the null, p is one-sided, n counts
    units: checkpoint and hook point, methods averaged. No claim on a mask is made after fewer steps than a gate needs
    to close.
    """
    paired = _Paired(verdicts, seed)
    evaluation, of_masks, others = tables["evaluation"], list[Claim](), list[Claim]()
    for site, here in evaluation.groupby("site", sort=False):
        at = {name: table[table["site"] == site] for name, table in tables.items() if "site" in table}
        means = {str(mask): part.groupby(UNIT).mean(numeric_only=True) for mask, part in here.groupby("mask")}
        if "downstream" in means:
            of_masks += _downstream(str(site), means, at, paired)
        if "transfer" in tables:
            others += _transfer(str(site), at["transfer"], paired)
        others += _anisotropy(str(site), at["anisotropy"], paired)
        of_masks += _stability(str(site), at["stability"], paired)
    of_masks += _trajectories(tables["trajectories"], evaluation, verdicts)
    if "carriers" in tables:
        of_masks += _bridge(tables["carriers"], verdicts.level)
    if not gates_can_close(masks.mask_steps, masks.learning_rate):
        note = f"in {masks.mask_steps} steps no gate can close: the masks are still near their start"
        of_masks = [replace(one, verdict=NOT_TESTABLE, note=note) for one in of_masks]
    return of_masks + others


class _Paired:
    """`paired` with the thresholds of one study."""

    def __init__(self, verdicts: Verdicts, seed: int) -> None:
        self.verdicts, self.seed = verdicts, seed

    def __call__(self, id: str, text: str, observed: pd.Series, null: pd.Series, *, less: bool = False) -> Claim:
        return paired(id, text, observed, null, less=less, verdicts=self.verdicts, seed=self.seed)


def paired(
    id: str, text: str, observed: pd.Series, null: pd.Series, *, less: bool, verdicts: Verdicts, seed: int
) -> Claim:
    """Is `observed` below (or above) `null` over the units that have both? By flipping the sign of whole units'
    differences; low and high are the null's mean plus the central 95 % of the mean difference with signs flipped.
    """
    both = pd.concat([observed.rename("observed"), null.rename("null")], axis=1, join="inner").dropna()
    claim = Claim(
        id,
        text,
        headline=True,
        verdict=NOT_TESTABLE,
        observed=float(both["observed"].mean()),
        null=float(both["null"].mean()),
        n=len(both),
    )
    least = verdicts.least_units
    if len(both) < least:
        note = f"a sign test of fewer than {least} units (checkpoint and hook point) cannot reach the level"
        return replace(claim, note=note)
    gap = (both["observed"] - both["null"]).to_numpy()
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(verdicts.n_flips, len(gap)))
    flipped = signs @ gap / len(gap)
    low, high = interval(claim.null + flipped)
    rounding = 1e-9 * float(np.abs(gap).mean())  # the same signs may sum to another last bit
    p = exceedance_p((-gap.mean() if less else gap.mean()) - rounding, -flipped if less else flipped)
    # units that all differ in the fourth digit pass a sign test and mean nothing
    small = abs(gap.mean()) < verdicts.least_effect * max(abs(claim.null), abs(claim.observed))
    counts = p <= verdicts.level
    note = f"the difference is below {verdicts.least_effect:.0%}, too small to count" if small and counts else ""
    return claim.decided(bool(counts and not small), low=low, high=high, p=p, note=note)


def _downstream(site: str, masks: Tables, at: Tables, paired: _Paired) -> Iterator[Claim]:
    own, start = masks["downstream"], f"masks.{site}"
    lost, said = own["lost_fraction"], f"{site}: downstream masks lose less than"
    yield paired(
        f"{start}.cheaper_than_empty", f"{said} mean ablation", lost, masks["empty"]["lost_fraction"], less=True
    )
    nulls = at.get("nulls", pd.DataFrame())
    kinds = set(nulls["kind"]) if len(nulls) else set()
    for kind, words in RIVALS.items():
        if kind in kinds:
            rival = nulls[nulls["kind"] == kind].groupby(UNIT)["lost_fraction"].mean()
            yield paired(f"{start}.cheaper_than_{kind}", f"{said} {words}", lost, rival, less=True)
    if "reconstruction" in masks:
        other = masks["reconstruction"]
        yield paired(
            f"{start}.smaller_than_reconstruction",
            f"{site}: downstream masks are smaller than reconstruction masks (soft mass)",
            own["soft_mass"],
            other["soft_mass"],
            less=True,
        )
        yield paired(
            f"{start}.more_coherent_than_reconstruction",
            f"{site}: downstream masks select directions of coherent gradient more than reconstruction masks "
            "(omega enrichment)",
            own["enrichment_omega"],
            other["enrichment_omega"],
        )
    if "random" in kinds:
        chance = nulls[nulls["kind"] == "random"].groupby(UNIT)["enrichment_tau"].mean()
        text = f"{site}: downstream masks select sensitive directions beyond random masks (tau enrichment)"
        yield paired(f"{start}.more_sensitive_than_random", text, own["enrichment_tau"], chance)


def _transfer(site: str, transfer: pd.DataFrame, paired: _Paired) -> Iterator[Claim]:
    full = transfer[(transfer["mask"] == "full") & (transfer["step"] < transfer["step"].max())]
    means = {c: part.groupby(UNIT)["nmse"].mean() for c, part in full.groupby("control")}
    if {"aligned", "shuffled"} <= set(means):
        text = f"{site}: earlier checkpoints carry the final activation (transfer NMSE, full mask) beyond shuffled rows"
        yield paired(f"transfer.{site}.closer_than_shuffled", text, means["aligned"], means["shuffled"], less=True)


def _anisotropy(site: str, table: pd.DataFrame, paired: _Paired) -> Iterator[Claim]:
    means = table.groupby(UNIT)[["gini_tau", "gini_null"]].mean()
    text = f"{site}: sensitivity is more concentrated than under permuted labels (Gini of tau)"
    yield paired(f"sensitivity.{site}.concentrated", text, means["gini_tau"], means["gini_null"])


def _stability(site: str, table: pd.DataFrame, paired: _Paired) -> Iterator[Claim]:
    if len(table):
        means = table.groupby(UNIT)[["overlap", "overlap_null"]].mean()
        text = f"{site}: downstream masks of two seeds agree beyond random masks (overlap)"
        yield paired(f"stability.{site}.masks_of_two_seeds", text, means["overlap"], means["overlap_null"])


def _trajectories(table: pd.DataFrame, evaluation: pd.DataFrame, verdicts: Verdicts) -> Iterator[Claim]:
    """What formula 17 is asked of: relative KL and soft mass of the downstream mask, beside the empty mask."""
    least = verdicts.least_units
    chosen = table[(table["mask"] == "downstream") & table["quantity"].isin(list(QUANTITIES))]
    for line in chosen.to_dict("records"):
        site, against = line["site"], line["against"]
        units = evaluation.loc[evaluation["site"] == site, AGAINST[against]].nunique()
        note = "limits: the correlation's own 95 %; never beyond where the empty mask or the entropy shows the same"
        if units < least:
            note = f"{units} of them have too few orders for a p of {verdicts.level}"
        claim = Claim(
            f"trajectory.{site}.{line['quantity']}.{against}",
            f"{site}: {QUANTITIES[line['quantity']]} of downstream masks changes with {against} "
            "(rank correlation; null: the empty mask's)",
            headline=True,
            verdict=NOT_TESTABLE,
            observed=line["pooled"],
            null=line["empty"] if np.isfinite(line["empty"]) else 0.0,  # an empty mask's mass does not vary
            low=line["pooled_low"],
            high=line["pooled_high"],
            p=line["p"],
            n=line["n_cells"],
            note=note,
        )
        known = np.isfinite(line["pooled"]) and np.isfinite(line["p"]) and units >= least
        yield claim.decided(bool(line["claimed"])) if known else claim


def _bridge(table: pd.DataFrame, level: float) -> Iterator[Claim]:
    """One claim a hook point at the last checkpoint that has SAEs, with the error kept and dropped."""
    rows: list[dict[Any, Any]] = table[table["step"] == table["step"].max()].to_dict("records")
    for line in rows:
        error = "kept" if line["keep_error"] else "dropped"
        claim = Claim(
            f"bridge.{line['hook_name']}.error_{error}",
            f"{line['hook_name']}: downstream masks over SAE features (error {error}) pick carriers beyond "
            "non-carriers of equal mass",
            headline=True,
            verdict=NOT_TESTABLE,
            observed=line["against"],
            null=line["null"],
            low=line["low"],
            high=line["high"],
            p=line["p"],
            n=line["n_carriers"],
            note=f"{line['unmatched_share']:.0%} of the carriers have no equal among the others; log mass of the "
            f"two sides is {line['mass_gap']:.2f} standard deviations apart",
        )
        yield claim.decided(line["p"] <= level) if np.isfinite(line["p"]) else claim

"""The claims of a sufficiency run, each beside its null."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tl_lifehist.metrics import exceedance_p, interval
from tl_lifehist.sufficiency.calibration import gates_can_close
from tl_lifehist.sufficiency.trajectories import AGAINST

COLUMNS = ["claim", "observed", "null", "low", "high", "p", "n", "verdict", "note"]
LEVEL, LEAST_UNITS, N_FLIPS = 0.05, 5, 2000  # ours; below five units no sign test can reach the level
LEAST_EFFECT = 0.01  # of the larger mean (ours)
UNIT = ["step", "hook_name"]  # methods read the same activations, so they are averaged first
RIVALS = {
    "random": "random masks of equal soft mass",
    "top_variance": "the top components by variance at equal soft mass",
    "tau_ranked": "the top components by tau (one backward pass) at equal soft mass",
    "fisher_diagonal": "the top components by curvature at equal soft mass",
}

WORDS = {"relative_kl": "relative KL", "soft_mass": "soft mass"}

Row = dict[str, Any]


def make_claims(tables: dict[str, pd.DataFrame], seed: int, *, steps: int) -> pd.DataFrame:
    """One row a claim and site: claim, observed, null, low, high (the central 95 % of the null), p (one-sided), n
    (units: checkpoint and hook point; methods averaged), verdict. No claim on a mask is made after fewer `steps` than
    a gate needs to close.
    """
    evaluation, of_masks, rows = tables["evaluation"], [], []
    for site, here in evaluation.groupby("site", sort=False):
        at = {name: table[table["site"] == site] for name, table in tables.items() if "site" in table}
        masks = {str(mask): part.groupby(UNIT).mean(numeric_only=True) for mask, part in here.groupby("mask")}
        if "downstream" in masks:
            of_masks += _downstream(str(site), masks, at, seed)
        if "transfer" in tables:
            rows += _transfer(str(site), at["transfer"], seed)
        rows += _anisotropy(str(site), at["anisotropy"], seed)
        of_masks += _stability(str(site), at["stability"], seed)
    of_masks += _trajectories(tables["trajectories"], evaluation)
    if "carriers" in tables:
        of_masks += _carriers(tables["carriers"])
    if not gates_can_close(steps):
        note = f"in {steps} steps no gate can close: the masks are still near their start"
        of_masks = [row | {"verdict": "not testable", "note": note} for row in of_masks]
    return pd.DataFrame(of_masks + rows, columns=COLUMNS)


def paired(claim: str, observed: pd.Series, null: pd.Series, *, less: bool, seed: int) -> Row:
    """Is `observed` below (or above) `null` over the units that have both? By flipping the sign of whole units'
    differences; low and high are the null's mean plus the central 95 % of the mean difference with signs flipped.
    """
    both = pd.concat([observed.rename("observed"), null.rename("null")], axis=1, join="inner").dropna()
    row: Row = {"claim": claim, "n": len(both), "p": float("nan"), "low": float("nan"), "high": float("nan")}
    row |= {"observed": float(both["observed"].mean()), "null": float(both["null"].mean())}
    if len(both) < LEAST_UNITS:
        note = f"a sign test of fewer than {LEAST_UNITS} units (checkpoint and hook point) cannot reach the level"
        return row | {"verdict": "not testable", "note": note}
    gap = (both["observed"] - both["null"]).to_numpy()
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(N_FLIPS, len(gap)))
    flipped = signs @ gap / len(gap)
    low, high = interval(row["null"] + flipped)
    rounding = 1e-9 * float(np.abs(gap).mean())  # the same signs may sum to another last bit
    p = exceedance_p((-gap.mean() if less else gap.mean()) - rounding, -flipped if less else flipped)
    # units that all differ in the fourth digit pass a sign test and mean nothing
    small = abs(gap.mean()) < LEAST_EFFECT * max(abs(row["null"]), abs(row["observed"]))
    note = f"the difference is below {LEAST_EFFECT:.0%}, too small to count" if small and p <= LEVEL else ""
    verdict = "beyond" if p <= LEVEL and not small else "within"
    return row | {"low": low, "high": high, "p": p, "verdict": verdict, "note": note}


def _downstream(site: str, masks: dict[str, pd.DataFrame], at: dict[str, pd.DataFrame], seed: int) -> list[Row]:
    own = masks["downstream"]
    lost = own["lost_fraction"]
    rows = [
        paired(
            f"{site}: downstream masks lose less than mean ablation",
            lost,
            masks["empty"]["lost_fraction"],
            less=True,
            seed=seed,
        )
    ]
    nulls = at.get("nulls", pd.DataFrame())
    for kind, words in RIVALS.items():
        if len(nulls) and (nulls["kind"] == kind).any():
            rival = nulls[nulls["kind"] == kind].groupby(UNIT)["lost_fraction"].mean()
            rows.append(paired(f"{site}: downstream masks lose less than {words}", lost, rival, less=True, seed=seed))
    if "reconstruction" in masks:
        other = masks["reconstruction"]
        rows.append(
            paired(
                f"{site}: downstream masks are smaller than reconstruction masks (soft mass)",
                own["soft_mass"],
                other["soft_mass"],
                less=True,
                seed=seed,
            )
        )
        rows.append(
            paired(
                f"{site}: downstream masks select directions of coherent gradient more than reconstruction masks "
                "(omega enrichment)",
                own["enrichment_omega"],
                other["enrichment_omega"],
                less=False,
                seed=seed,
            )
        )
    if len(nulls) and (nulls["kind"] == "random").any():
        chance = nulls[nulls["kind"] == "random"].groupby(UNIT)["enrichment_tau"].mean()
        name = f"{site}: downstream masks select sensitive directions beyond random masks (tau enrichment)"
        rows.append(paired(name, own["enrichment_tau"], chance, less=False, seed=seed))
    return rows


def _transfer(site: str, transfer: pd.DataFrame, seed: int) -> list[Row]:
    full = transfer[(transfer["mask"] == "full") & (transfer["step"] < transfer["step"].max())]
    means = {c: part.groupby(UNIT)["nmse"].mean() for c, part in full.groupby("control")}
    if not {"aligned", "shuffled"} <= set(means):
        return []
    name = f"{site}: earlier checkpoints carry the final activation (transfer NMSE, full mask) beyond shuffled rows"
    return [paired(name, means["aligned"], means["shuffled"], less=True, seed=seed)]


def _anisotropy(site: str, table: pd.DataFrame, seed: int) -> list[Row]:
    means = table.groupby(UNIT)[["gini_tau", "gini_null"]].mean()
    name = f"{site}: sensitivity is more concentrated than under permuted labels (Gini of tau)"
    return [paired(name, means["gini_tau"], means["gini_null"], less=False, seed=seed)]


def _stability(site: str, table: pd.DataFrame, seed: int) -> list[Row]:
    if not len(table):
        return []
    means = table.groupby(UNIT)[["overlap", "overlap_null"]].mean()
    name = f"{site}: downstream masks of two seeds agree beyond random masks (overlap)"
    return [paired(name, means["overlap"], means["overlap_null"], less=False, seed=seed)]


def _trajectories(table: pd.DataFrame, evaluation: pd.DataFrame) -> list[Row]:
    """What formula 17 is asked of: relative KL and soft mass of the downstream mask, beside the empty mask."""
    rows = []
    chosen = table[(table["mask"] == "downstream") & table["quantity"].isin(list(WORDS))]
    for line in chosen.itertuples(index=False):
        units = evaluation.loc[evaluation["site"] == line.site, AGAINST[line.against]].nunique()
        known = np.isfinite(line.pooled) and np.isfinite(line.p) and units >= LEAST_UNITS
        note = "limits: the correlation's own 95 %; never beyond where the empty mask or the entropy shows the same"
        if units < LEAST_UNITS:
            note = f"{units} of them have too few orders for a p of {LEVEL}"
        rows.append(
            {
                "claim": f"{line.site}: {WORDS[line.quantity]} of downstream masks changes with {line.against} "
                "(rank correlation; null: the empty mask's)",
                "observed": line.pooled,
                "null": line.empty if np.isfinite(line.empty) else 0.0,  # an empty mask's mass does not vary
                "low": line.pooled_low,
                "high": line.pooled_high,
                "p": line.p,
                "n": line.n_cells,
                "verdict": ("beyond" if line.claimed else "within") if known else "not testable",
                "note": note,
            }
        )
    return rows


def _carriers(table: pd.DataFrame) -> list[Row]:
    """One claim a hook point at the last checkpoint that has SAEs, with the error kept and dropped."""
    rows = []
    for line in table[table["step"] == table["step"].max()].itertuples(index=False):
        error = "kept" if line.keep_error else "dropped"
        testable = np.isfinite(line.p)
        rows.append(
            {
                "claim": f"{line.hook_name}: downstream masks over SAE features (error {error}) pick carriers beyond "
                "non-carriers of equal mass",
                "observed": line.against,
                "null": line.null,
                "low": line.low,
                "high": line.high,
                "p": line.p,
                "n": line.n_carriers,
                "verdict": ("beyond" if line.p <= LEVEL else "within") if testable else "not testable",
                "note": f"{line.unmatched_share:.0%} of the carriers have no equal among the others; log mass of the "
                f"two sides is {line.mass_gap:.2f} standard deviations apart",
            }
        )
    return rows

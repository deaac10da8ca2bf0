"""Ours beside the published figures: to be read together, never to be tuned towards."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tl_lifehist.sufficiency.target_kinds import TARGETS
from tl_lifehist.sufficiency.trajectories import AGAINST

# Medians of Bernas, Chevalier, Jourdan and Hudelot (2026); over which cells, and at which site, is not said.
PUBLISHED = {
    ("reconstruction", "soft_mass"): 0.730,
    ("reconstruction", "nmse"): 0.215,
    ("reconstruction", "enrichment_omega"): 1.08,
    ("fixed_head", "soft_mass"): 0.834,
    ("downstream", "soft_mass"): 0.066,
    ("downstream", "relative_kl"): 0.020,
    ("downstream", "accuracy_drop"): 0.80,
    ("downstream", "nmse"): 0.959,
    ("downstream", "enrichment_omega"): 5.32,
}
TOO_FEW = "- (too few of them)"
BESIDE = ("relative_kl", "accuracy_drop", "nmse")  # of the empty and the full mask, which have no published figure
WORDS = {
    "soft_mass": "soft mass",
    "nmse": "NMSE",
    "relative_kl": "relative KL",
    "accuracy_drop": "accuracy drop, pp",
    "enrichment_omega": "omega enrichment",
}


def published_table(tables: dict[str, pd.DataFrame], *, least_units: int = 5) -> pd.DataFrame:
    """Medians over the cells of each site beside the published ones: quantity, ours, n, published.

    A site is never mixed with another: what they cost a model differs fifty-fold.
    """
    evaluation, rows = tables["evaluation"], []
    for site, here in evaluation.groupby("site", sort=False):
        wanted = list(PUBLISHED) + [(mask, name) for mask in ("empty", "full") for name in BESIDE]
        for mask, name in wanted:
            values = here.loc[here["mask"] == mask, name].dropna()
            if len(values):
                title = f"{site}, {TARGETS[mask].label if mask in TARGETS else mask} mask: {WORDS[name]}"
                known = PUBLISHED.get((mask, name))
                rows.append((title, _short(values.median()), len(values), "" if known is None else _short(known)))
        rows += _transfer_rows(str(site), tables.get("transfer"))
    rows += _sign_rows(tables["trajectories"], evaluation, least_units)
    return pd.DataFrame(rows, columns=["quantity", "ours", "n", "published"])


def _transfer_rows(site: str, transfer: pd.DataFrame | None) -> list[tuple[str, str, int, str]]:
    if transfer is None or not len(transfer):
        return []
    early = transfer["step"] < transfer["step"].max()
    here = transfer[
        (transfer["site"] == site) & (transfer["control"] == "aligned") & (transfer["mask"] == "full") & early
    ]
    medians = here.groupby("method", sort=False)["relative_kl"].median().dropna()
    if medians.empty:
        return []
    text = ", ".join(f"{method} {_short(value)}" for method, value in medians.items())
    return [
        (f"{site}: transfer relative KL, full mask", text, len(here), "SVD and ICA generally below NMF and SemiNMF")
    ]


def _sign_rows(table: pd.DataFrame, evaluation: pd.DataFrame, least_units: int) -> list[tuple[str, str, int, str]]:
    signs = {
        "checkpoint": "Pythia strongly positive, EuroBERT-210M negative, OLMo positive",
        "depth": "Pythia about 0, EuroBERT-210M strongly positive, OLMo positive",
    }
    chosen = table[(table["mask"] == "downstream") & (table["quantity"] == "relative_kl")]
    return [
        (
            f"{line['site']}: correlation of downstream relative KL with {line['against']} "
            f"(empty mask {_short(line['empty'])})",
            _short(line["pooled"]) if evaluation[AGAINST[line["against"]]].nunique() >= least_units else TOO_FEW,
            int(line["n_cells"]),
            signs[line["against"]],
        )
        for line in chosen.to_dict("records")
    ]


def _short(value: float) -> str:
    return "-" if not np.isfinite(value) else f"{value:.3g}"

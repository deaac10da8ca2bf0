"""Our figures beside the published ones: to compare, never to tune towards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tl_lifehist.lifehistory.lineages import Carriers, Lineages

Tables = Mapping[str, pd.DataFrame]


def _early_rate(events: pd.DataFrame, early_share: float) -> float:
    """Births and deaths per step in the early transitions over those in the later ones."""
    both = events[events["kind"] == "both"].groupby(["step_from", "step_to"], as_index=False)["count"].sum()
    length, last = both["step_to"] - both["step_from"], both["step_to"].max()
    early = both["step_to"] <= max(early_share * last, both["step_to"].min())
    later = both.loc[~early, "count"].sum() / max(int(length[~early].sum()), 1)
    return float(both.loc[early, "count"].sum() / length[early].sum() / later) if later > 0 else float("nan")


def published_table(
    tables: Tables, lineages: Lineages, carriers: Carriers, *, early_share: float = 0.01
) -> pd.DataFrame:
    """Our figures beside those published for Pythia-160M and 410M: to compare, never to tune towards."""
    claims = tables["claims"].set_index("id")["observed"]
    survival, forecast, dag = tables["survival_by_entropy"], tables["forecast"], tables["dag"]
    final = dag[(dag["step"] == dag["step"].max()) & (dag["orientation"] == "container")]
    recruited = float(final["recruited"].iloc[0])
    ends = survival["survival"] if len(survival) else pd.Series([np.nan])
    parts = tables["ablation_parts"].set_index("part")["delta_ce"] if len(tables["ablation_parts"]) else {}
    n_carriers, n_onset = len(carriers), int(forecast["n"].iloc[0])

    def found(claim_id: str) -> float:
        return float(claims.get(claim_id, np.nan))

    def text(value: float, unit: str = "") -> str:
        return "not available" if not np.isfinite(value) else f"{value:.2f}{unit}"

    joint = float(parts["joint"]) if len(parts) else float("nan")
    rows = [
        ("persistent carriers", str(n_carriers), len(lineages.summary()), "51", "49"),
        (
            "event rate, early (the first 1 % or the first transition) against later",
            text(_early_rate(tables["events"], early_share), "x"),
            len(lineages.summary()),
            "about 40x",
            "about 40x (model not said)",
        ),
        (
            "carriers already present at the onset",
            text(100 * found("carriers.present_at_onset"), " %"),
            n_carriers,
            "73 %",
            "not said",
        ),
        (
            "survival, high against low entropy",
            f"{text(100 * float(ends.iloc[-1]), ' %')} against {text(100 * float(ends.iloc[0]), ' %')}",
            n_onset,
            "43 % against 0.6 % (model not said)",
            "",
        ),
        ("joint ablation of the carriers, nats", text(joint), n_carriers, "about 0.90 (cost or excess: not said)", ""),
        (
            "single-feature ablation, root / mid / leaf",
            f"epsilon squared {text(found('single.roles'))}",
            len(tables["single"]),
            "no significant difference",
            "",
        ),
        ("forecast AUC", text(float(forecast["auc"].iloc[0])), n_onset, "0.80 to 0.83 over the two", ""),
        ("forecast enrichment", text(float(forecast["enrichment"].iloc[0]), "x"), n_onset, "9.3x (model not said)", ""),
        (
            "recruited fraction at the end",
            text(100 * recruited, " %"),
            int(final["n_nodes"].iloc[0]),
            "64 %",
            "53 %",
        ),
    ]
    return pd.DataFrame(rows, columns=["quantity", "ours", "n", "pythia_160m", "pythia_410m"])

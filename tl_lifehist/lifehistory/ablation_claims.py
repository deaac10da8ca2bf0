"""Claims on what features bear: joint loads, single features and content classes, each beside its null."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.lifehistory.ablation_breakdown import compare_roles
from tl_lifehist.lifehistory.verdicts import COLUMNS, N_DRAWS, Tables, claim, untestable

CONTROLS = {
    "count": "as many other features",
    "count_root": "as many other roots",
    "count_mid": "as many other mids",
    "count_leaf": "as many other leaves",
    "rate": "as many features of the same firing rates",
    "mass": "as many features of the same masses",
    "stable": "as many seed-stable features of the same masses",
}


def ablation_claims(tables: Tables) -> list[dict[str, Any]]:
    """What the carriers bear jointly, beside each kind of control (D18, D19)."""
    rows = []
    for record in tables["load_summary"].to_dict("records") if len(tables["load_summary"]) else []:
        subset = "; random subsets of equal size on both sides" if record["subset"] else ""
        note = (
            f"nats, joint ablation, {record['n_draws']} draws (least possible p {1 / (record['n_draws'] + 1):.2f}); "
            f"all carriers cost {record['delta_ce']:.3f} "
            "over a base of "
            f"{record['base_ce']:.3f}; {record['unmatched_share']:.0%} of carriers without an equal; "
            "balance (SMD) log rate "
            f"{record['smd_log_rate']:.2f}, log mass {record['smd_log_mass']:.2f}{subset}"
        )
        values = (
            f"removing the carriers costs more than removing {CONTROLS[record['kind']]}",
            record["carriers"] if record["n_draws"] else record["delta_ce"],
            record["control_mean"],
            record["low"],
            record["high"],
            record["p"],
            int(record["n_scored"]),
            record["verdict"],
            note,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    parts = tables["ablation_parts"]
    if len(parts):
        cost = parts.set_index("part")["delta_ce"]
        for other in ("sum of layers", "sum of singles", "leading by mass", "leading by rate", "random direction"):
            if other in cost:
                row = untestable(
                    f"joint load of the carriers against: {other}",
                    float(cost["joint"]),
                    int(parts["n_features"].iloc[0]),
                    "one comparison, no draws",
                )
                rows.append(row | {"null": float(cost[other])})
    for record in tables["ablation_regression"].to_dict("records") if len(tables["ablation_regression"]) else []:
        if record["term"] == "carriers":
            row = untestable(
                "being a carrier adds to the load of a random set once its mass and rate are known",
                record["coefficient"],
                int(record["n"]),
                "",
            )
            note = (
                f"nats per standard deviation; 95 % interval of the coefficient {record['low']:.3f} to "
                f"{record['high']:.3f}; null 0"
            )
            rows.append(row | {"null": 0.0, "verdict": "beyond" if record["low"] > 0 else "within", "note": note})
    return rows


def single_claim(tables: Tables, rng: np.random.Generator) -> dict[str, Any]:
    """Whether roles explain what a feature costs alone, beside roles shuffled within layers (D17)."""
    name = "the cost of a single feature differs between root, mid and leaf"
    single = tables["single"]
    if len(single):
        single = single[single["sampled"] & single["role"].isin(["root", "mid", "leaf"])].dropna(subset=["per_firing"])
    roles = compare_roles(single)
    if not np.isfinite(roles["epsilon_squared"]):
        return untestable(name, float("nan"), int(roles["n"]), "too few features of these roles")
    ranks, labels = single["per_firing"].rank().to_numpy(), single["role"].to_numpy()
    layer = single["hook_name"].to_numpy()
    spread = ((ranks - ranks.mean()) ** 2).sum()

    def epsilon(shuffled: NDArray[Any]) -> float:
        kinds = (shuffled == role for role in np.unique(shuffled))
        return float(sum((ranks[k].mean() - ranks.mean()) ** 2 * k.sum() for k in kinds) / spread)

    def within_layers() -> NDArray[Any]:
        shuffled = labels.copy()
        for h in np.unique(layer):
            shuffled[layer == h] = rng.permutation(shuffled[layer == h])
        return shuffled

    draws = np.array([epsilon(within_layers()) for _ in range(N_DRAWS)])
    note = (
        "epsilon squared of per-firing cost, features drawn by role whatever their history; null: roles "
        "permuted within "
        f"layers; Kruskal-Wallis p {roles['p']:.3f}"
    )
    return claim(name, epsilon(labels), draws, int(roles["n"]), note)


def content_claims(tables: Tables) -> list[dict[str, Any]]:
    """What a class of features bears, beside features of the same mass in the other class (D24)."""
    table = tables["content"]
    rows = []
    if not len(table):
        name = "carriers of one content class bear more than sets of equal mass of the other"
        rows.append(untestable(name, float("nan"), 0, "no carriers, or no tokenizer to read the vocabulary with"))
    for record in table.to_dict("records") if len(table) else []:
        name = f"{record['content']} carriers bear more than sets of equal mass of the other class"
        n = int(record["n_carriers"])
        note = (
            f"nats, equal sets on both sides, {record['null_draws']} mass-matched draws of the other class; "
            f"all {n} carriers of this class cost {record['joint_load']:.3f}"
        )
        if record["null_draws"] == 0 or not np.isfinite(record["compared_load"]):
            reason = "no carriers of this class, or no equals in the other"
            rows.append(untestable(name, record["joint_load"], n, reason))
            continue
        verdict = "beyond" if record["p"] <= 0.05 else "within"
        values = (
            name,
            record["compared_load"],
            record["null_load_mean"],
            record["null_load_low"],
            record["null_load_high"],
            record["p"],
            n,
            verdict,
            note,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows

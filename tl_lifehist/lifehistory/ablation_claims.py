"""Claims on what features bear: joint loads, single features and content classes, each beside its null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.claims import NOT_TESTABLE, Claim, against_draws
from tl_lifehist.lifehistory.ablation_breakdown import compare_roles
from tl_lifehist.lifehistory.config import Verdicts
from tl_lifehist.lifehistory.control_kinds import label_of

Tables = Mapping[str, pd.DataFrame]
OTHERS = ("sum of layers", "sum of singles", "leading by mass", "leading by rate", "random direction")


def ablation_claims(tables: Tables) -> Iterator[Claim]:
    """What the carriers bear jointly, beside each kind of control (D18, D19)."""
    for record in tables["load_summary"].to_dict("records") if len(tables["load_summary"]) else []:
        subset = "; random subsets of equal size on both sides" if record["subset"] else ""
        note = (
            f"nats, joint ablation, {record['n_draws']} draws (least possible p {1 / (record['n_draws'] + 1):.2f}); "
            f"all carriers cost {record['delta_ce']:.3f} over a base of {record['base_ce']:.3f}; "
            f"{record['unmatched_share']:.0%} of carriers without an equal; balance (SMD) log rate "
            f"{record['smd_log_rate']:.2f}, log mass {record['smd_log_mass']:.2f}{subset}"
        )
        yield Claim(
            f"load.{record['kind']}",
            f"removing the carriers costs more than removing {label_of(record['kind'])}",
            record["carriers"] if record["n_draws"] else record["delta_ce"],
            record["control_mean"],
            record["low"],
            record["high"],
            record["p"],
            int(record["n_scored"]),
            record["verdict"],
            note,
        )
    parts = tables["ablation_parts"]
    if len(parts):
        cost, n = parts.set_index("part")["delta_ce"], int(parts["n_features"].iloc[0])
        for other in OTHERS:
            if other in cost:
                yield Claim(
                    f"load.joint_against.{other.replace(' ', '_')}",
                    f"joint load of the carriers against: {other}",
                    float(cost["joint"]),
                    null=float(cost[other]),
                    n=n,
                    note="one comparison, no draws",
                )
    for record in tables["ablation_regression"].to_dict("records") if len(tables["ablation_regression"]) else []:
        if record["term"] == "carriers":
            note = (
                f"nats per standard deviation; 95 % interval of the coefficient {record['low']:.3f} to "
                f"{record['high']:.3f}; null 0"
            )
            text = "being a carrier adds to the load of a random set once its mass and rate are known"
            claim = Claim("load.regression", text, record["coefficient"], null=0.0, n=int(record["n"]), note=note)
            yield claim.decided(record["low"] > 0)


def single_claim(tables: Tables, rng: np.random.Generator, verdicts: Verdicts) -> Claim:
    """Whether roles explain what a feature costs alone, beside roles shuffled within layers (D17)."""
    claim_id, text = "single.roles", "the cost of a single feature differs between root, mid and leaf"
    single = tables["single"]
    if len(single):
        single = single[single["sampled"] & single["role"].isin(["root", "mid", "leaf"])].dropna(subset=["per_firing"])
    roles = compare_roles(single)
    n = int(roles["n"])
    if not np.isfinite(roles["epsilon_squared"]):
        return Claim(claim_id, text, float("nan"), n=n, note="too few features of these roles")
    ranks, labels = single["per_firing"].rank().to_numpy(), single["role"].to_numpy()
    layer = single["hook_name"].to_numpy()
    spread = ((ranks - ranks.mean()) ** 2).sum()

    def epsilon(shuffled: NDArray[np.object_]) -> float:
        kinds = (shuffled == role for role in np.unique(shuffled))
        return float(sum((ranks[k].mean() - ranks.mean()) ** 2 * k.sum() for k in kinds) / spread)

    def within_layers() -> NDArray[np.object_]:
        shuffled = labels.copy()
        for h in np.unique(layer):
            shuffled[layer == h] = rng.permutation(shuffled[layer == h])
        return shuffled

    draws = np.array([epsilon(within_layers()) for _ in range(verdicts.null_draws)])
    note = (
        "epsilon squared of per-firing cost, features drawn by role whatever their history; null: roles "
        f"permuted within layers; Kruskal-Wallis p {roles['p']:.3f}"
    )
    return against_draws(Claim(claim_id, text, epsilon(labels), n=n, note=note), draws, level=verdicts.level)


def content_claims(tables: Tables, verdicts: Verdicts) -> Iterator[Claim]:
    """What a class of features bears, beside features of the same mass in the other class (D24)."""
    table = tables["content"]
    if not len(table):
        text = "carriers of one content class bear more than sets of equal mass of the other"
        yield Claim("content", text, float("nan"), note="no carriers, or no tokenizer to read the vocabulary with")
    for record in table.to_dict("records") if len(table) else []:
        n = int(record["n_carriers"])
        claim_id = f"content.{record['content']}"
        text = f"{record['content']} carriers bear more than sets of equal mass of the other class"
        if record["null_draws"] == 0 or not np.isfinite(record["compared_load"]):
            reason = "no carriers of this class, or no equals in the other"
            yield Claim(claim_id, text, record["joint_load"], n=n, verdict=NOT_TESTABLE, note=reason)
            continue
        note = (
            f"nats, equal sets on both sides, {record['null_draws']} mass-matched draws of the other class; "
            f"all {n} carriers of this class cost {record['joint_load']:.3f}"
        )
        bounds = {
            name: record[f"null_load_{part}"] for name, part in (("null", "mean"), ("low", "low"), ("high", "high"))
        }
        claim = Claim(claim_id, text, record["compared_load"], n=n, note=note)
        yield claim.decided(record["p"] <= verdicts.level, p=record["p"], **bounds)

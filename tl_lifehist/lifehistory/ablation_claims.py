"""Claims on what features bear: joint loads, single features and content classes, each beside its null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.claims import NAN, Claim, against_null
from tl_lifehist.lifehistory.ablation_breakdown import compare_roles
from tl_lifehist.lifehistory.config import Verdicts
from tl_lifehist.lifehistory.control_kinds import CONTROLS, label_of
from tl_lifehist.nulls import Null

Tables = Mapping[str, pd.DataFrame]
OTHERS = ("sum of layers", "sum of singles", "leading by mass", "leading by rate", "random direction")
NATS = "nats per position"


def tested_kinds() -> tuple[str, ...]:
    """Kinds of control sets whose claim is tested."""
    return tuple(name for name in CONTROLS if CONTROLS[name].tested)


def load_claims(tables: Tables) -> Iterator[Claim]:
    """What the carriers bear jointly, beside each kind of control (D18, D19)."""
    summary, tested = tables["load_summary"], tested_kinds()
    found = summary.to_dict("records") if len(summary) else [{"kind": kind} for kind in tested]
    for record in found:
        kind = str(record["kind"])
        claim = Claim(
            f"load.{kind}",
            f"removing the carriers costs more than removing {label_of(kind)}",
            headline=kind in tested,
            unit=NATS,
            of="carriers that have an equal",
        )
        if len(summary) == 0:
            yield claim.because("there are no carriers")
        else:
            yield _load(claim, record)


def _load(claim: Claim, record: Mapping[Any, Any]) -> Claim:
    unmatched, n = float(record["unmatched_share"]), int(record["n_equals"])
    note = (
        f"all carriers cost {record['delta_ce']:.3f} [{record['delta_low']:.3f}, {record['delta_high']:.3f}] over a "
        f"base of {record['base_ce']:.3f}, interval over documents; {unmatched:.0%} of them have no equal and are left "
        f'out on both sides; null: the label "carrier" exchanged among equals, {record["n_draws"]} draws (least '
        f"possible p {1 / (record['n_draws'] + 1):.3f}); largest difference within a layer (SMD): log rate "
        f"{record['smd_log_rate']:.2f}, log mass {record['smd_log_mass']:.2f}"
    )
    claim = replace(claim, n=n, note=note)
    if not record["n_draws"]:
        return replace(claim, observed=record["delta_ce"]).because(
            f"only {n} carriers have an equal, or they are no equals: carriers are the heavier features"
        )
    return replace(
        claim,
        observed=record["carriers"],
        null=record["control_mean"],
        effect=record["carriers"] - record["control_mean"],
        low=record["low"],
        high=record["high"],
        p=record["p"] if claim.headline else NAN,
        detectable=record["detectable"],
    )


def breakdown_claims(tables: Tables) -> Iterator[Claim]:
    """What the joint load is made of, described (C6, C7)."""
    parts = tables["ablation_parts"]
    if len(parts):
        cost, n = parts.set_index("part")["delta_ce"], int(parts["n_features"].iloc[0])
        for other in OTHERS:
            if other in cost:
                observed, null = float(cost["joint"]), float(cost[other])
                yield Claim(
                    f"load.joint_against.{other.replace(' ', '_')}",
                    f"joint load of the carriers beside: {other}",
                    observed=observed,
                    null=null,
                    effect=observed - null,
                    unit=NATS,
                    n=n,
                    of="carriers",
                    note="one comparison, no draws",
                )
    for record in tables["ablation_regression"].to_dict("records") if len(tables["ablation_regression"]) else []:
        if record["term"] == "carriers":
            yield Claim(
                "load.regression",
                "what being a carrier adds to the load of a random set once its mass and rate are known",
                observed=record["coefficient"],
                null=0.0,
                effect=record["coefficient"],
                low=record["low"],
                high=record["high"],
                unit="nats per standard deviation",
                n=int(record["n"]),
                of="random sets",
                note="interval: bootstrap over sets",
            )


def single_claim(tables: Tables, rng: np.random.Generator, verdicts: Verdicts) -> Claim:
    """How much roles explain of what a feature costs alone, beside roles shuffled within layers (D17)."""
    single = tables["single"]
    if len(single):
        single = single[single["sampled"] & single["role"].isin(["root", "mid", "leaf"])].dropna(subset=["per_firing"])
    roles = compare_roles(single, min_features=verdicts.min_role_features)
    claim = Claim(
        "single.roles",
        "how much the roles root, mid and leaf explain of the cost of a single feature",
        unit="epsilon squared",
        n=int(roles["n"]),
        of="features, drawn by role whatever their history",
    )
    if not np.isfinite(roles["epsilon_squared"]):
        return claim.because("too few features of these roles")
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

    null = Null(epsilon(labels), np.array([epsilon(within_layers()) for _ in range(verdicts.null_draws)]))
    note = (
        f"null: roles permuted within layers, p {null.p:.3f} ({null.n} draws); Kruskal-Wallis p {roles['p']:.3f}; "
        f'"no difference" needs a small upper end of the interval, not a large p'
    )
    return against_null(replace(claim, note=note), null)


def content_claims(tables: Tables) -> Iterator[Claim]:
    """What a class of features bears, beside features of the same mass in the other class (D24), described."""
    table = tables["content"]
    for record in table.to_dict("records") if len(table) else []:
        claim = Claim(
            f"content.{record['content']}",
            f"load of {record['content']} carriers beside features of equal mass of the other class",
            observed=record["joint_load"],
            unit=NATS,
            n=int(record["n_carriers"]),
            of="carriers of the class",
        )
        if record["null_draws"] == 0 or not np.isfinite(record["compared_load"]):
            yield claim.because("no carriers of this class, or no equals in the other")
            continue
        low, high = record["null_load_low"], record["null_load_high"]
        effect = record["compared_load"] - record["null_load_mean"]
        yield replace(
            claim,
            observed=record["compared_load"],
            null=record["null_load_mean"],
            effect=effect,
            low=record["compared_load"] - high,
            high=record["compared_load"] - low,
            note=f"null: the class exchanged among equals, {record['null_draws']} draws; all {claim.n} carriers of "
            f"this class cost {record['joint_load']:.3f}",
        )

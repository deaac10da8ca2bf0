"""Every claim beside its null: the `claims` table, and our figures beside the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.lifehistory.forecast import onset_step
from tl_lifehist.lifehistory.lineages import Carriers, Lineages
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.metrics import exceedance_p, interval

COLUMNS = ["claim", "observed", "null", "low", "high", "p", "n", "verdict", "note"]
N_DRAWS = 1000
Tables = Mapping[str, pd.DataFrame]


def claim(
    name: str, observed: float, draws: NDArray[Any], n: int, note: str, *, two_sided: bool = False
) -> dict[str, Any]:
    """One row: the observed value, the null's mean and 95 % interval, p and verdict.

    "beyond" means that the observed value lies outside the null on the side the claim names (on either side when
    `two_sided`), at p <= 0.05; "within" that it does not; "not testable" that there is no null or no value.
    """
    draws = np.asarray(draws, dtype=float)
    draws = draws[np.isfinite(draws)]
    if len(draws) == 0 or not np.isfinite(observed):
        return untestable(name, observed, n, note)
    p = exceedance_p(observed, draws)
    if two_sided:
        p = min(1.0, 2 * min(p, exceedance_p(-observed, -draws)))
    low, high = interval(draws)
    verdict = "beyond" if p <= 0.05 else "within"
    return dict(zip(COLUMNS, (name, observed, float(draws.mean()), low, high, p, n, verdict, note), strict=True))


def untestable(name: str, observed: float, n: int, note: str) -> dict[str, Any]:
    """A row that says why there is no verdict."""
    nan = float("nan")
    return dict(zip(COLUMNS, (name, observed, nan, nan, nan, nan, n, "not testable", note), strict=True))


def make_claims(
    lineages: Lineages,
    carriers: Carriers,
    profiles: Mapping[tuple[int, str], FeatureProfiles],
    tables: Tables,
    roles: Mapping[str, float],
    seed: int,
) -> pd.DataFrame:
    """All claims of a life-history run. `low` and `high` bound the null, not the observed value."""
    rng = np.random.default_rng(seed)
    rows = [
        *_carrier_claims(carriers, tables),
        _early_rate(lineages, rng),
        _present_at_onset(lineages, carriers, rng),
        *_persistence(tables),
        *_load(tables),
        _singles(tables, roles, rng),
        *_recruitment(tables),
        *_forecast(tables),
        *_direction(tables),
        _entropy(tables),
        *_content(tables),
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _carrier_claims(carriers: Carriers, tables: Tables) -> list[dict[str, Any]]:
    count, nulls = len(carriers), tables["nulls"]
    total = int(tables["features"].loc[tables["features"]["step"] == tables["features"]["step"].max()].shape[0])
    draws = {name: group["carriers"].to_numpy() for name, group in nulls.groupby("null")} if len(nulls) else {}
    share = f"{count} of {total} features alive at the end"
    unrelated = draws.get("unrelated", np.zeros(0))
    # a handful of shuffles cannot give a small p, but chance matches are counted, not estimated
    first = claim(
        "persistent carriers exceed chance matches",
        count,
        unrelated,
        total,
        f"{share}; null: rows shuffled, {len(unrelated)} draws",
    )
    if np.isfinite(first["p"]):
        first |= {"p": float("nan"), "verdict": "beyond" if count > unrelated.max() else "within"}
    frozen = claim(
        "persistent carriers differ from those of a model that never changes",
        count,
        draws.get("frozen", np.zeros(0)),
        total,
        (
            f"{share}; null: SAE noise alone, from re-match frequencies at the last checkpoint; fewer means "
            "that the model changed"
        ),
        two_sided=True,
    )
    return [first, frozen]


def _early_rate(lineages: Lineages, rng: np.random.Generator) -> dict[str, Any]:
    steps = np.array(lineages.steps)
    events = lineages.births()["count"].to_numpy() + lineages.deaths()["count"].to_numpy()
    per_transition = events.reshape(len(lineages.hook_names), -1).sum(axis=0)
    length = np.diff(steps)
    early = steps[1:] <= max(0.01 * steps[-1], steps[1])
    total = int(per_transition.sum())

    def ratio(counts: NDArray[Any]) -> Any:
        first = counts[..., early].sum(axis=-1) / length[early].sum()
        rest = counts[..., ~early].sum(axis=-1) / max(length[~early].sum(), 1)
        return first / np.maximum(rest, 1e-12)

    name = "births and deaths per step are faster in the first 1 % of training"
    if not (~early).any() or total == 0:
        return untestable(name, float("nan"), total, "all transitions are early, or there are no events")
    flat = rng.multinomial(total, np.full(len(length), 1 / len(length)), size=N_DRAWS)
    note = (
        f"ratio of event rates per step; null: the same events spread evenly over {len(length)} transitions "
        "of unequal length"
    )
    return claim(name, float(ratio(per_transition)), ratio(flat), total, note)


def _present_at_onset(lineages: Lineages, carriers: Carriers, rng: np.random.Generator) -> dict[str, Any]:
    onset = onset_step(lineages.steps)
    table = lineages.to_dataframe()
    alive = table.loc[table["step"] == lineages.steps[-1], "lineage"].to_numpy()
    there = set(table.loc[table["step"] == onset, "lineage"])
    name = "carriers are there early, more often than other features of the end"
    if len(carriers) == 0:
        return untestable(name, float("nan"), 0, "there are no carriers")
    present = np.array([lineage in there for lineage in alive])
    observed = float(np.mean([lineage in there for lineage in carriers.lineages]))
    draws = rng.hypergeometric(int(present.sum()), int((~present).sum()), len(carriers), size=N_DRAWS) / len(carriers)
    note = (
        f"share of carriers whose lineage exists at step {onset}; null: as many features alive at the end. A "
        "long lineage starts early by definition"
    )
    return claim(name, observed, draws, len(carriers), note)


def _persistence(tables: Tables) -> list[dict[str, Any]]:
    deaths = tables["events"][tables["events"]["kind"] == "death"]
    rows = []
    for (start, end), group in deaths.groupby(["step_from", "step_to"]):
        weight = group["n_alive"].to_numpy(dtype=float)
        rate, data, init = (
            float(np.average(group[c], weights=weight)) for c in ("match_rate", "floor_data", "floor_init")
        )
        known = np.isfinite(data) and np.isfinite(init)
        row = untestable(f"features change between steps {start} and {end}", 1 - rate, int(weight.sum()), "")
        if known:
            # the deaths that SAE noise alone makes: from same weights (low) to other weights (high)
            row |= {"null": 1 - (data + init) / 2, "low": min(1 - data, 1 - init), "high": max(1 - data, 1 - init)}
            row["verdict"] = "beyond" if 1 - rate > row["high"] else "within"
        row["note"] = (
            "share unmatched; null: unmatched within one checkpoint, data and init noise; corrected "
            f"persistence {rate / data:.2f} to {rate / init:.2f}"
        )
        rows.append(row)
    return rows


def _load(tables: Tables) -> list[dict[str, Any]]:
    rows = []
    for record in tables["load_summary"].to_dict("records") if len(tables["load_summary"]) else []:
        subset = "; random subsets of equal size on both sides" if record["subset"] else ""
        note = (
            f"nats, joint ablation, {record['n_draws']} draws; all carriers cost {record['delta_ce']:.3f} "
            "over a base of "
            f"{record['base_ce']:.3f}; {record['unmatched_share']:.0%} of carriers without an equal; "
            "balance (SMD) log rate "
            f"{record['smd_log_rate']:.2f}, log mass {record['smd_log_mass']:.2f}{subset}"
        )
        values = (
            f"removing the carriers costs more than {record['kind'].replace('_', ' ')}-matched controls",
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
    parts = tables["load_parts"]
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
    for record in tables["load_regression"].to_dict("records") if len(tables["load_regression"]) else []:
        if record["term"] == "carriers":
            outside = record["low"] > 0 or record["high"] < 0
            row = untestable(
                "being a carrier adds to the load of a random set once its mass and rate are known",
                record["coefficient"],
                int(record["n"]),
                "",
            )
            note = (
                f"nats a standard deviation; 95 % interval of the coefficient {record['low']:.3f} to "
                f"{record['high']:.3f}; null 0"
            )
            rows.append(row | {"null": 0.0, "verdict": "beyond" if outside else "within", "note": note})
    return rows


def _singles(tables: Tables, roles: Mapping[str, float], rng: np.random.Generator) -> dict[str, Any]:
    name = "the cost of a single feature differs between root, mid and leaf"
    single = tables["single"]
    single = (
        single[single["role"].isin(["root", "mid", "leaf"])].dropna(subset=["per_firing"]) if len(single) else single
    )
    if not np.isfinite(roles["epsilon_squared"]):
        return untestable(name, float("nan"), int(roles["n"]), "too few features of these roles")
    ranks, labels = single["per_firing"].rank().to_numpy(), single["role"].to_numpy()
    spread = ((ranks - ranks.mean()) ** 2).sum()

    def epsilon(order: NDArray[Any]) -> float:
        shuffled = ranks[order]
        means = [
            (shuffled[labels == role].mean() - ranks.mean()) ** 2 * (labels == role).sum() for role in np.unique(labels)
        ]
        return float(sum(means) / spread)

    draws = np.array([epsilon(rng.permutation(len(ranks))) for _ in range(N_DRAWS)])
    note = f"epsilon squared of per-firing cost; null: permuted roles; Kruskal-Wallis p {roles['p']:.3f}"
    return claim(name, epsilon(np.arange(len(ranks))), draws, int(roles["n"]), note)


def _recruitment(tables: Tables) -> list[dict[str, Any]]:
    dag = tables["dag"]
    rows = []
    for record in dag[dag["step"] == dag["step"].max()].to_dict("records"):
        name = f"carriers recruit the other features ({record['orientation']} orientation)"
        note = (
            f"{record['n_can_be_parents']} of {record['n_carriers']} carriers are rare enough to be parents "
            "at this lift; null: node sets of equal size and rates"
        )
        if not np.isfinite([record["recruited"], record["p"]]).all():
            rows.append(untestable(name, record["recruited"], int(record["n_nodes"]), note))
            continue
        p = record["p"]
        values = (
            name,
            record["recruited"],
            record["null_mean"],
            record["null_low"],
            record["null_high"],
            p,
            int(record["n_nodes"]),
            "beyond" if p <= 0.05 else "within",
            note,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _forecast(tables: Tables) -> list[dict[str, Any]]:
    table = tables["forecast"].set_index("predictor")
    main = table.iloc[0]
    n, note = (
        int(main["n"]),
        (
            f"{int(main['n_positive'])} positives at step {int(main['onset'])}; 95 % interval of the AUC "
            f"{main['low']:.2f} to {main['high']:.2f}"
        ),
    )
    if not np.isfinite(main["auc"]):
        return [untestable("carriers can be foretold at the onset (AUC)", float("nan"), n, str(main["reason"]))]
    rows = []
    for name, label in (
        ("label permutation", "carriers can be foretold at the onset (AUC)"),
        ("log firing rate", "the forecast beats the firing rate alone (AUC)"),
    ):
        if name in table.index:
            null = table.loc[name]
            outside = main["auc"] > null["high"] if name == "label permutation" else main["low"] > null["auc"]
            values = (
                label,
                main["auc"],
                null["auc"],
                null["low"],
                null["high"],
                float("nan"),
                n,
                "beyond" if outside else "within",
                f"{note}; null: {name}",
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _direction(tables: Tables) -> list[dict[str, Any]]:
    table = tables["direction"].dropna(subset=["s_fun", "s_dir"])
    early = table[table["step"] < table["step"].max()]
    early = early[early["n"] >= 10]
    if early.empty:
        return [
            untestable(
                "function comes before direction",
                float("nan"),
                0,
                "fewer than ten lineages reach the end from an earlier step",
            )
        ]
    row = early.iloc[0]
    note = (
        f"S_fun {row['s_fun']:.2f} [{row['s_fun_low']:.2f}, {row['s_fun_high']:.2f}], S_dir "
        f"{row['s_dir']:.2f} [{row['s_dir_low']:.2f}, {row['s_dir_high']:.2f}] at step {int(row['step'])}; "
        "null: partners shuffled within a layer. Only surviving lineages enter, and they were selected on S_fun"
    )
    outside = row["s_fun_low"] - row["s_dir_high"] > row["null_fun"] - row["null_dir"]
    result = untestable(
        "function comes before direction (S_fun - S_dir)", float(row["s_fun"] - row["s_dir"]), int(row["n"]), note
    )
    return [result | {"null": float(row["null_fun"] - row["null_dir"]), "verdict": "beyond" if outside else "within"}]


def _entropy(tables: Tables) -> dict[str, Any]:
    table = tables["survival_by_entropy"]
    name = "broad (high-entropy) features survive longer"
    if len(table) < 2 or not np.isfinite(table["survival"]).all():
        return untestable(
            name, float("nan"), int(table["n"].sum()) if len(table) else 0, "too few features alive at the onset"
        )
    low, high = table.iloc[0], table.iloc[-1]
    by_rate = float(high["survival_by_rate"] - low["survival_by_rate"])
    row = untestable(name, float(high["survival"] - low["survival"]), int(table["n"].sum()), "")
    note = (
        f"survival of the top minus the bottom entropy decile ({high['survival']:.2f}, "
        f"{low['survival']:.2f}); null: the same by firing rate"
    )
    outside = high["low"] - low["high"] > by_rate
    return row | {"null": by_rate, "verdict": "beyond" if outside else "within", "note": note}


def _content(tables: Tables) -> list[dict[str, Any]]:
    table = tables["content"]
    rows = []
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


def published_table(tables: Tables, lineages: Lineages, carriers: Carriers) -> pd.DataFrame:
    """Our figures beside those published for Pythia-160M and 410M: to compare, never to tune towards."""
    claims = tables["claims"].set_index("claim")["observed"]
    survival, forecast, dag = tables["survival_by_entropy"], tables["forecast"], tables["dag"]
    final = dag[(dag["step"] == dag["step"].max()) & (dag["orientation"] == "container")]
    recruited = float(final["recruited"].iloc[0])
    ends = survival["survival"] if len(survival) else pd.Series([np.nan])
    parts = tables["load_parts"].set_index("part")["delta_ce"] if len(tables["load_parts"]) else {}
    n_carriers, n_onset = len(carriers), int(forecast["n"].iloc[0])

    def found(start: str) -> float:
        rows = claims[claims.index.str.startswith(start)]
        return float(rows.iloc[0]) if len(rows) else float("nan")

    def text(value: float, unit: str = "") -> str:
        return "not available" if not np.isfinite(value) else f"{value:.2f}{unit}"

    joint = float(parts["joint"]) if len(parts) else float("nan")
    rows = [
        ("persistent carriers", str(n_carriers), len(lineages.summary()), "51", "49"),
        (
            "event rate, first 1 % against later",
            text(found("births and deaths per step"), "x"),
            len(lineages.summary()),
            "about 40x",
            "about 40x (model not said)",
        ),
        (
            "carriers already present at the onset",
            text(100 * found("carriers are there early"), " %"),
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
            f"epsilon squared {text(found('the cost of a single feature'))}",
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

"""Every claim beside its null: the `claims` table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.lifehistory.ablation_claims import ablation_claims, content_claims, single_claim
from tl_lifehist.lifehistory.forecast import onset_step
from tl_lifehist.lifehistory.lineages import Carriers, Lineages
from tl_lifehist.lifehistory.verdicts import COLUMNS, N_DRAWS, Tables, claim, untestable
from tl_lifehist.metrics import interval


def make_claims(
    lineages: Lineages,
    carriers: Carriers,
    tables: Tables,
    own_level: str,
    seed: int,
) -> pd.DataFrame:
    """All claims of a life-history run. `low` and `high` bound the null, not the observed value.

    Args:
        own_level: the level of SAE noise that the run's own way to initialise has, "data" or "init".
    """
    rng = np.random.default_rng(seed)
    rows = [
        *_carrier_claims(carriers, tables),
        _early_rate(lineages, rng),
        _present_at_onset(lineages, carriers),
        *_persistence(tables, own_level if own_level in ("data", "init") else "data", rng),
        *ablation_claims(tables),
        single_claim(tables, rng),
        *_recruitment(tables),
        *_forecast(tables),
        _direction(tables, own_level),
        _entropy(tables),
        *content_claims(tables),
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
    length = np.diff(steps)
    early = steps[1:] <= max(0.01 * steps[-1], steps[1])
    ends = lineages.summary()
    place = {step: i for i, step in enumerate(lineages.steps)}
    # what each lineage adds to the transitions: its birth (not at the first checkpoint) and its death
    events = np.zeros((len(ends), len(length)), dtype=np.int64)
    for row, (birth, death) in enumerate(zip(ends["birth"], ends["death"], strict=True)):
        for step in (birth, death):
            if np.isfinite(step) and place[int(step)] > 0:
                events[row, place[int(step)] - 1] += 1

    def ratio(counts: NDArray[Any]) -> float:
        later = counts[~early].sum() / max(length[~early].sum(), 1)
        return float(counts[early].sum() / length[early].sum() / later) if later > 0 else float("nan")

    name = "births and deaths per step are faster early in training"
    total, observed = int(events.sum()), ratio(events.sum(axis=0))
    if not np.isfinite(observed):
        return untestable(name, observed, total, "all transitions are early, or nothing is born or dies later")
    weights = rng.multinomial(len(ends), np.full(len(ends), 1 / len(ends)), size=N_DRAWS)
    low, high = interval(np.array([ratio(w @ events) for w in weights]))
    null = ratio(np.ones(len(length)))
    share = steps[1:][early][-1] / steps[-1]
    note = (
        f"ratio of event rates per step, 95 % interval {low:.1f} to {high:.1f} over lineages; the early part is "
        f"{share:.1%} of training; null: equal counts in {len(length)} transitions of unequal length"
    )
    return untestable(name, observed, total, note) | {"null": null, "verdict": "beyond" if low > null else "within"}


def _present_at_onset(lineages: Lineages, carriers: Carriers) -> dict[str, Any]:
    onset = onset_step(lineages.steps)
    table = lineages.to_dataframe()
    alive = table.loc[table["step"] == lineages.steps[-1], "lineage"].to_numpy()
    there = set(table.loc[table["step"] == onset, "lineage"])
    name = "carriers are there early, more often than other features of the end"
    if len(carriers) == 0:
        return untestable(name, float("nan"), 0, "there are no carriers")
    present = np.array([lineage in there for lineage in alive])
    observed = float(np.mean([lineage in there for lineage in carriers.lineages]))
    note = (
        f"share of carriers whose lineage exists at step {onset}; null: the same share of all features "
        "alive at the end. "
        f"A carrier spans {carriers.min_snapshots} checkpoints, so it starts early by definition: no verdict"
    )
    return untestable(name, observed, len(carriers), note) | {"null": float(present.mean())}


def _persistence(tables: Tables, level: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    deaths = tables["events"][tables["events"]["kind"] == "death"]
    rows = []
    for (start, end), group in deaths.groupby(["step_from", "step_to"]):
        name = f"features change between steps {start} and {end}"
        group = group[(group["n_alive"] > 0) & group[f"floor_{level}"].notna()]
        weight = group["n_alive"].to_numpy()
        if not len(group):
            rows.append(untestable(name, float("nan"), 0, "no alive features, or no re-match rate"))
            continue
        rate = float(np.average(group["match_rate"], weights=weight))
        matched = rng.binomial(weight, group[f"floor_{level}"].to_numpy(), size=(N_DRAWS, len(group))).sum(axis=1)
        floors = {key: float(np.average(group[f"floor_{key}"], weights=weight)) for key in ("data", "init")}
        corrected = [f"{rate / floor:.2f}" if floor > 0 else "-" for floor in floors.values()]
        note = (
            f"share unmatched; null: unmatched within one checkpoint at the run's own level ({level} noise), binomial; "
            f"re-match rates {floors['data']:.2f} (data), {floors['init']:.2f} (init); corrected persistence "
            f"{corrected[0]} to {corrected[1]}"
        )
        rows.append(claim(name, 1 - rate, 1 - matched / weight.sum(), int(weight.sum()), note))
    return rows


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
        return [untestable("carriers can be predicted at the onset (AUC)", float("nan"), n, str(main["reason"]))]
    rows = []
    for name, label in (
        ("label permutation", "carriers can be predicted at the onset (AUC)"),
        ("log firing rate", "the forecast beats the firing rate alone (AUC)"),
    ):
        if name in table.index:
            null = table.loc[name]
            paired = f"{null['gain_low']:.2f} to {null['gain_high']:.2f}"
            gain = "" if name == "label permutation" else f", paired 95 % interval of the gain {paired}"
            outside = main["auc"] > null["high"] if name == "label permutation" else null["gain_low"] > 0
            values = (
                label,
                main["auc"],
                null["auc"],
                null["low"],
                null["high"],
                float("nan"),
                n,
                "beyond" if outside else "within",
                f"{note}; null: {name}{gain}",
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _direction(tables: Tables, own_level: str) -> dict[str, Any]:
    name = "function comes before direction (S_fun - S_dir)"
    table = tables["direction"].dropna(subset=["s_fun", "s_dir"])
    early = table[(table["step"] < table["step"].max()) & (table["n"] >= 10)]
    if early.empty:
        return untestable(name, float("nan"), 0, "fewer than ten lineages reach the end from an earlier step")
    row = early.iloc[0]
    noise = tables["direction_noise"].set_index("level")
    level = own_level if own_level in noise.index else "data"
    null = float(noise.loc[level, "s_fun"] - noise.loc[level, "s_dir"])
    low = float(row["s_fun_low"] - row["s_dir_high"])
    note = (
        f"at step {int(row['step'])}: S_fun {row['s_fun']:.2f} [{row['s_fun_low']:.2f}, {row['s_fun_high']:.2f}], "
        f"S_dir {row['s_dir']:.2f} [{row['s_dir_low']:.2f}, {row['s_dir_high']:.2f}]; shuffled partners "
        f"{row['null_fun']:.2f} and {row['null_dir']:.2f}; null: two trainings of the last checkpoint's SAEs ({level} "
        "noise), which select on function as lineages do"
    )
    if not np.isfinite(null):
        return untestable(name, float(row["s_fun"] - row["s_dir"]), int(row["n"]), note)
    verdict = "beyond" if low > null else "within"
    return untestable(name, float(row["s_fun"] - row["s_dir"]), int(row["n"]), note) | {
        "null": null,
        "verdict": verdict,
    }


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

"""The claims of a life-history run, each beside its null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.claims import Claim, against_draws
from tl_lifehist.lifehistory.ablation_claims import ablation_claims, content_claims, single_claim
from tl_lifehist.lifehistory.config import Verdicts
from tl_lifehist.lifehistory.lineages import Carriers, Lineages
from tl_lifehist.metrics import interval

Tables = Mapping[str, pd.DataFrame]


def make_claims(
    lineages: Lineages, carriers: Carriers, tables: Tables, own_level: str, seed: int, *, verdicts: Verdicts
) -> list[Claim]:
    """All claims of a life-history run. `low` and `high` bound the null, not the observed value.

    Args:
        own_level: the level of SAE noise that the run's own way to initialise has, "data" or "init".
    """
    rng = np.random.default_rng(seed)
    return [
        *_carrier_claims(carriers, tables, verdicts),
        _early_rate(lineages, rng, verdicts),
        _present_at_onset(lineages, carriers, int(tables["forecast"]["onset"].iloc[0])),
        *_persistence(tables, own_level if own_level in ("data", "init") else "data", rng, verdicts),
        *ablation_claims(tables),
        single_claim(tables, rng, verdicts),
        *_recruitment(tables, verdicts),
        *_forecast(tables),
        _direction(tables, own_level, verdicts),
        _entropy(tables),
        *content_claims(tables, verdicts),
    ]


def _carrier_claims(carriers: Carriers, tables: Tables, verdicts: Verdicts) -> Iterator[Claim]:
    count, nulls = len(carriers), tables["nulls"]
    total = int(tables["features"].loc[tables["features"]["step"] == tables["features"]["step"].max()].shape[0])
    draws = {name: group["carriers"].to_numpy() for name, group in nulls.groupby("null")} if len(nulls) else {}
    share = f"{count} of {total} features alive at the end"
    unrelated = draws.get("unrelated", np.zeros(0))
    note = f"{share}; null: rows shuffled, {len(unrelated)} draws"
    chance = Claim("carriers.chance", "persistent carriers exceed chance matches", count, n=total, note=note)
    chance = against_draws(chance, unrelated)
    if np.isfinite(chance.p):
        # a handful of shuffles cannot give a small p, but chance matches are counted, not estimated
        chance = chance.decided(bool(count > unrelated.max()), p=float("nan"))
    yield chance
    yield against_draws(
        Claim(
            "carriers.frozen",
            "persistent carriers differ from those of a model that never changes",
            count,
            n=total,
            note=f"{share}; null: SAE noise alone, from re-match frequencies at the last checkpoint; fewer means "
            "that the model changed",
        ),
        draws.get("frozen", np.zeros(0)),
        two_sided=True,
        level=verdicts.level,
    )


def _early_rate(lineages: Lineages, rng: np.random.Generator, verdicts: Verdicts) -> Claim:
    steps = np.array(lineages.steps)
    length = np.diff(steps)
    early = steps[1:] <= max(verdicts.early_share * steps[-1], steps[1])
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

    observed = ratio(events.sum(axis=0))
    text = "births and deaths per step are faster early in training"
    claim = Claim("events.early_rate", text, observed, n=int(events.sum()))
    if not np.isfinite(observed):
        return _because(claim, "all transitions are early, or nothing is born or dies later")
    weights = rng.multinomial(len(ends), np.full(len(ends), 1 / len(ends)), size=verdicts.null_draws)
    low, high = interval(np.array([ratio(w @ events) for w in weights]))
    null = ratio(np.ones(len(length)))
    share = steps[1:][early][-1] / steps[-1]
    note = (
        f"ratio of event rates per step, 95 % interval {low:.1f} to {high:.1f} over lineages; the early part is "
        f"{share:.1%} of training; null: equal counts in {len(length)} transitions of unequal length"
    )
    return claim.decided(low > null, null=null, note=note)


def _present_at_onset(lineages: Lineages, carriers: Carriers, onset: int) -> Claim:
    table = lineages.to_dataframe()
    alive = table.loc[table["step"] == lineages.steps[-1], "lineage"].to_numpy()
    there = set(table.loc[table["step"] == onset, "lineage"])
    text = "carriers are there early, more often than other features of the end"
    claim = Claim("carriers.present_at_onset", text, float("nan"), n=len(carriers))
    if len(carriers) == 0:
        return _because(claim, "there are no carriers")
    observed = float(np.mean([lineage in there for lineage in carriers.lineages]))
    null = float(np.array([lineage in there for lineage in alive]).mean())
    note = (
        f"share of carriers whose lineage exists at step {onset}; null: the same share of all features "
        "alive at the end. "
        f"A carrier spans {carriers.min_snapshots} checkpoints, so it starts early by definition: no verdict"
    )
    return Claim(claim.id, text, observed, null=null, n=len(carriers), note=note)


def _persistence(tables: Tables, level: str, rng: np.random.Generator, verdicts: Verdicts) -> Iterator[Claim]:
    deaths = tables["events"][tables["events"]["kind"] == "death"]
    for (start, end), group in deaths.groupby(["step_from", "step_to"]):
        claim_id, text = f"features.change.{start}_{end}", f"features change between steps {start} and {end}"
        group = group[(group["n_alive"] > 0) & group[f"floor_{level}"].notna()]
        weight = group["n_alive"].to_numpy()
        if not len(group):
            yield Claim(claim_id, text, float("nan"), note="no alive features, or no re-match rate")
            continue
        rate = float(np.average(group["match_rate"], weights=weight))
        floor = group[f"floor_{level}"].to_numpy()
        matched = rng.binomial(weight, floor, size=(verdicts.null_draws, len(group))).sum(axis=1)
        floors = {key: float(np.average(group[f"floor_{key}"], weights=weight)) for key in ("data", "init")}
        corrected = [f"{rate / floor:.2f}" if floor > 0 else "-" for floor in floors.values()]
        note = (
            f"share unmatched; null: unmatched within one checkpoint at the run's own level ({level} noise), binomial; "
            f"re-match rates {floors['data']:.2f} (data), {floors['init']:.2f} (init); corrected persistence "
            f"{corrected[0]} to {corrected[1]}"
        )
        claim = Claim(claim_id, text, 1 - rate, n=int(weight.sum()), note=note)
        yield against_draws(claim, 1 - matched / weight.sum(), level=verdicts.level)


def _recruitment(tables: Tables, verdicts: Verdicts) -> Iterator[Claim]:
    dag = tables["dag"]
    for record in dag[dag["step"] == dag["step"].max()].to_dict("records"):
        kind = record["orientation"]
        claim = Claim(
            f"recruitment.{kind}",
            f"carriers recruit the other features ({kind} orientation)",
            record["recruited"],
            n=int(record["n_nodes"]),
            note=f"{record['n_can_be_parents']} of {record['n_carriers']} carriers are rare enough to be parents "
            "at this lift; null: node sets of equal size and rates",
        )
        if np.isfinite([record["recruited"], record["p"]]).all():
            bounds = {"null": record["null_mean"], "low": record["null_low"], "high": record["null_high"]}
            claim = claim.decided(record["p"] <= verdicts.level, p=record["p"], **bounds)
        yield claim


def _forecast(tables: Tables) -> Iterator[Claim]:
    table = tables["forecast"].set_index("predictor")
    main = table.iloc[0]
    n, name = int(main["n"]), "carriers can be predicted at the onset (AUC)"
    if not np.isfinite(main["auc"]):
        yield Claim("forecast.labels", name, float("nan"), n=n, note=str(main["reason"]))
        return
    note = (
        f"{int(main['n_positive'])} positives at step {int(main['onset'])}; 95 % interval of the AUC "
        f"{main['low']:.2f} to {main['high']:.2f}"
    )
    rivals = (
        ("forecast.labels", "label permutation", name),
        ("forecast.rate", "log firing rate", "the forecast beats the firing rate alone (AUC)"),
    )
    for claim_id, rival, text in rivals:
        if rival in table.index:
            null = table.loc[rival]
            permuted = rival == "label permutation"
            paired = f"{null['gain_low']:.2f} to {null['gain_high']:.2f}"
            gain = "" if permuted else f", paired 95 % interval of the gain {paired}"
            beyond = main["auc"] > null["high"] if permuted else null["gain_low"] > 0
            claim = Claim(claim_id, text, main["auc"], n=n, note=f"{note}; null: {rival}{gain}")
            yield claim.decided(bool(beyond), null=null["auc"], low=null["low"], high=null["high"])


def _direction(tables: Tables, own_level: str, verdicts: Verdicts) -> Claim:
    claim = Claim("direction.function_first", "function comes before direction (S_fun - S_dir)", float("nan"))
    table = tables["direction"].dropna(subset=["s_fun", "s_dir"])
    early = table[(table["step"] < table["step"].max()) & (table["n"] >= verdicts.min_lineages)]
    if early.empty:
        return _because(claim, f"fewer than {verdicts.min_lineages} lineages reach the end from an earlier step")
    row = early.iloc[0]
    noise = tables["direction_noise"].set_index("level")
    level = own_level if own_level in noise.index else "data"
    gap = (noise["s_fun"] - noise["s_dir"]).to_dict()
    null = float(gap.get(level, np.nan))
    low = float(row["s_fun_low"] - row["s_dir_high"])
    note = (
        f"at step {int(row['step'])}: S_fun {row['s_fun']:.2f} [{row['s_fun_low']:.2f}, {row['s_fun_high']:.2f}], "
        f"S_dir {row['s_dir']:.2f} [{row['s_dir_low']:.2f}, {row['s_dir_high']:.2f}]; shuffled partners "
        f"{row['null_fun']:.2f} and {row['null_dir']:.2f}; null: two trainings of the last checkpoint's SAEs ({level} "
        "noise), which select on function as lineages do"
    )
    claim = Claim(claim.id, claim.text, float(row["s_fun"] - row["s_dir"]), n=int(row["n"]), note=note)
    return claim.decided(low > null, null=null) if np.isfinite(null) else claim


def _entropy(tables: Tables) -> Claim:
    table = tables["survival_by_entropy"]
    claim_id, text = "survival.entropy", "broad (high-entropy) features survive longer"
    n = int(table["n"].sum()) if len(table) else 0
    if len(table) < 2 or not np.isfinite(table["survival"]).all():
        return Claim(claim_id, text, float("nan"), n=n, note="too few features alive at the onset")
    low, high = table.iloc[0], table.iloc[-1]
    by_rate = float(high["survival_by_rate"] - low["survival_by_rate"])
    note = (
        f"survival of the top minus the bottom entropy decile ({high['survival']:.2f}, "
        f"{low['survival']:.2f}); null: the same by firing rate"
    )
    claim = Claim(claim_id, text, float(high["survival"] - low["survival"]), null=by_rate, n=n, note=note)
    return claim.decided(bool(high["low"] - low["high"] > by_rate))


def _because(claim: Claim, note: str) -> Claim:
    return Claim(claim.id, claim.text, claim.observed, n=claim.n, note=note)

"""The claims of a life-history run: eight that are tested together, and figures that are described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from tl_lifehist.claims import NAN, Claim, against_null, against_zero, decide
from tl_lifehist.inference.documents import over_units
from tl_lifehist.lifehistory.ablation_claims import breakdown_claims, content_claims, load_claims, single_claim
from tl_lifehist.lifehistory.config import Verdicts
from tl_lifehist.lifehistory.lineages import Carriers, Lineages
from tl_lifehist.lifehistory.sentences import in_words
from tl_lifehist.nulls import Null

Tables = Mapping[str, pd.DataFrame]
FEW_HOOKS = "fewer than three hook points: their spread cannot be told"
SHARE = "share of the alive features"


def make_claims(
    lineages: Lineages,
    carriers: Carriers,
    tables: Tables,
    own_level: str,
    seed: int,
    *,
    verdicts: Verdicts,
    false_positives: Mapping[str, float] | None = None,
) -> list[Claim]:
    """All claims of a life-history run.

    Args:
        own_level: the level of SAE noise that the run's own way to initialise has, "data" or "init".
        false_positives: how often each test errs in planted worlds of the run's size, by id.
    """
    rng = np.random.default_rng(seed)
    level = own_level if own_level in ("data", "init") else "data"
    rows = [
        *load_claims(tables),
        *_recruitment(tables, verdicts),
        _forecast(tables),
        _survival(tables),
        _early(tables, verdicts),
        *_change(tables, level),
        _direction(tables, level, verdicts),
        *_carrier_counts(carriers, tables),
        _present_at_onset(lineages, carriers, int(tables["forecast"]["onset"].iloc[0])),
        *breakdown_claims(tables),
        single_claim(tables, rng, verdicts),
        *content_claims(tables),
    ]
    decided = decide(rows, level=verdicts.level, false_positives=false_positives)
    return [in_words(one) for one in sorted(decided, key=lambda one: not one.headline)]


def _carrier_counts(carriers: Carriers, tables: Tables) -> Iterator[Claim]:
    count, nulls = len(carriers), tables["nulls"]
    features = tables["features"]
    total = int((features["step"] == features["step"].max()).sum())
    draws = {str(name): group["carriers"].to_numpy() for name, group in nulls.groupby("null")} if len(nulls) else {}
    beside = {
        "chance": ("unrelated", "carriers beside chance matches (rows shuffled)"),
        "frozen": ("frozen", "carriers beside those of a model that never changes; fewer: the model changed"),
    }
    for name, (null, text) in beside.items():
        claim = Claim(
            f"carriers.{name}", text, observed=count, unit="carriers", n=total, of="features alive at the end"
        )
        found = draws.get(null, np.zeros(0))
        note = f"{len(found)} draws; {count} of {total} features alive at the end are carriers"
        yield against_null(replace(claim, note=note), Null(count, found))


def _present_at_onset(lineages: Lineages, carriers: Carriers, onset: int) -> Claim:
    table = lineages.to_dataframe()
    alive = table.loc[table["step"] == lineages.steps[-1], "lineage"].to_numpy()
    there = set(table.loc[table["step"] == onset, "lineage"])
    claim = Claim(
        "carriers.present_at_onset",
        "carriers that are there at the onset, beside all features of the end",
        unit="share",
        n=len(carriers),
        of="carriers",
    )
    if len(carriers) == 0:
        return claim.because("there are no carriers")
    observed = float(np.mean([lineage in there for lineage in carriers.lineages]))
    null = float(np.mean([lineage in there for lineage in alive]))
    note = (
        f"step {onset}; a carrier spans {carriers.min_snapshots} checkpoints, so it starts early by definition: "
        "no verdict"
    )
    return replace(claim, observed=observed, null=null, effect=observed - null, note=note)


def _early(tables: Tables, verdicts: Verdicts) -> Claim:
    """Do features come and go more in early transitions? Over hook points, whose SAEs are independent."""
    both = tables["events"][tables["events"]["kind"] == "both"]
    last = both["step_to"].max()
    early = both["step_to"] <= max(verdicts.early_share * last, both["step_to"].min())
    claim = Claim(
        "events.early",
        "features are born and die more in an early transition than in a later one",
        headline=True,
        unit=SHARE,
        of="hook points",
    )
    if early.all():
        return claim.because("all transitions are early")
    means = {
        when: both[inside].groupby("hook_name", sort=False)["fraction"].mean()
        for when, inside in (("early", early), ("later", ~early))
    }
    at = both[early]["step_to"].max()
    ratios = {}
    for name in ("per_step", "per_log_step"):
        rate = both.groupby([early.rename("early"), "step_from"])[name].sum().groupby("early").mean()
        ratios[name] = float(rate.get(True, NAN) / rate.get(False, NAN)) if rate.get(False, 0) > 0 else NAN
    note = (
        f"early: up to step {at}, {at / last:.1%} of training; births and deaths over the alive before and after, "
        f"mean over transitions; mean rate per step {ratios['per_step']:.1f} times the later one, which transitions of "
        f"unequal length give by themselves, per log-step {ratios['per_log_step']:.2f} times; Student's t over hook "
        "points"
    )
    tested = over_units((means["early"] - means["later"]).to_numpy())
    found = against_zero(replace(claim, note=note), tested, few=FEW_HOOKS)
    return replace(found, observed=float(means["early"].mean()), null=float(means["later"].mean()))


def _change(tables: Tables, level: str) -> Iterator[Claim]:
    """Do fewer features match over a transition than SAE noise alone leaves? Over hook points; each transition is
    described by itself.
    """
    deaths = tables["events"][tables["events"]["kind"] == "death"]
    known = deaths[(deaths["n_alive"] > 0) & deaths[f"floor_{level}"].notna()]
    known = known.assign(lost=known[f"floor_{level}"] - known["match_rate"])
    null = f"null: unmatched within one checkpoint ({level} noise)"
    claim = Claim(
        "features.change",
        "features change between checkpoints beyond the noise of SAE training",
        headline=True,
        unit=SHARE,
        of="hook points",
        note=f"{null}, mean over {known['step_from'].nunique()} transitions; Student's t over hook points",
    )
    if known.empty:
        why = "no SAE was trained a second time (SAEs that were given have no replicates), or nothing is alive"
        yield claim.because(why)
        return
    means = known.groupby("hook_name", sort=False)[["lost", "match_rate", f"floor_{level}"]].mean()
    found = against_zero(claim, over_units(means["lost"].to_numpy()), few=FEW_HOOKS)
    yield replace(found, observed=1 - float(means["match_rate"].mean()), null=1 - float(means[f"floor_{level}"].mean()))
    for (start, end), group in known.groupby(["step_from", "step_to"]):
        rate, floors = float(group["match_rate"].mean()), {k: group[f"floor_{k}"].mean() for k in ("data", "init")}
        corrected = " to ".join(f"{rate / f:.2f}" if f > 0 else "-" for f in floors.values())
        one = Claim(
            f"features.change.{start}_{end}",
            f"features unmatched between steps {start} and {end}, beside SAE noise",
            unit=SHARE,
            of="hook points",
            note=f"{null}; re-match rates {floors['data']:.2f} (data), {floors['init']:.2f} (init); corrected "
            f"persistence {corrected}",
        )
        found = against_zero(one, over_units(group["lost"].to_numpy()), few=FEW_HOOKS)
        yield replace(found, observed=1 - rate, null=1 - float(group[f"floor_{level}"].mean()))


def _recruitment(tables: Tables, verdicts: Verdicts) -> Iterator[Claim]:
    dag = tables["dag"]
    for record in dag[dag["step"] == dag["step"].max()].to_dict("records"):
        kind = record["orientation"]
        claim = Claim(
            f"recruitment.{kind}",
            f"carriers recruit another share of the features than others of their firing rates ({kind} orientation)",
            headline=kind == "container",
            observed=record["recruited"],
            null=record["null_mean"],
            unit="share of the other alive features",
            n=int(record["n_carriers"]),
            of=f"carriers, in a graph of {record['n_nodes']} features",
        )
        if not np.isfinite(record["recruited"]):
            yield claim.because("no carrier is a node of the graph")
            continue
        effect = record["recruited"] - record["null_mean"]
        note = (
            f"two-sided; {record['n_can_be_parents']} of {record['n_carriers']} carriers are rare enough to be parents "
            f"at this lift; {record['unmatched_share']:.0%} have no equal and stand in every draw; null: the label "
            f"exchanged among features of equal rate; with every degree kept and the edges drawn anew "
            f"{record['rewired_mean']:.2f}"
        )
        claim = replace(
            claim,
            effect=effect,
            low=effect + record["null_mean"] - record["null_high"],
            high=effect + record["null_mean"] - record["null_low"],
            detectable=2.8 * record["null_sd"],  # two-sided at 5 %, found four times out of five
            note=note,
        )
        if not np.isfinite(record["p"]):
            yield claim.because("too many carriers have no equal")
        else:
            yield replace(claim, p=record["p"] if claim.headline else NAN)


def _forecast(tables: Tables) -> Claim:
    table, gain = tables["forecast"].set_index("predictor"), tables["forecast_gain"].iloc[0]
    main = table.iloc[0]
    claim = Claim(
        "forecast.beyond_rate",
        "entropy, containment and strength at the onset tell later carriers beyond firing rate and layer",
        headline=True,
        unit="AUC",
        n=int(gain["n"]),
        of="features alive at the onset",
    )
    if not np.isfinite(gain["p"]):
        return claim.because(str(main["reason"]) or "no features of equal firing rate")
    beside = {name: table["auc"].get(name, NAN) for name in ("mass and layer", "decoder geometry")}
    left_out = table["auc"].get("leave one layer out", NAN)
    rate = float(table["auc"].get("rate and layer", NAN))
    note = (
        f"{int(gain['n_positive'])} positives at step {int(main['onset'])}; null: the measurements exchanged among "
        f"features of equal rate; the measurements alone {main['auc']:.3f} [{main['low']:.3f}, {main['high']:.3f}], "
        f"mass and layer {beside['mass and layer']:.3f}, decoder geometry {beside['decoder geometry']:.3f}, each layer "
        f"told by the others {left_out:.3f}, labels permuted {table['auc'].get('label permutation', NAN):.3f}; of all "
        f"carriers {main['recall_of_all']:.0%} are among as many highest scores"
    )
    return replace(
        claim,
        observed=rate + float(gain["gain"]),
        null=rate,
        effect=float(gain["gain"]),
        low=float(gain["low"]),
        high=float(gain["high"]),
        p=float(gain["p"]),
        detectable=2.49 * float(gain["high"] - gain["low"]) / 3.92,
        note=note,
    )


def _direction(tables: Tables, level: str, verdicts: Verdicts) -> Claim:
    """Is function nearer its end than direction, beyond what two SAE trainings of one model show? Over hook points."""
    claim = Claim(
        "direction.function_first",
        "function comes before direction",
        headline=True,
        unit="correlation less cosine",
        of="hook points",
    )
    table = tables["direction_by_hook"].dropna(subset=["s_fun", "s_dir_aligned"])
    total = table.groupby("step")["n"].sum()
    early = total[(total.index < tables["direction"]["step"].max()) & (total >= verdicts.min_lineages)]
    if early.empty:
        return claim.because(f"fewer than {verdicts.min_lineages} lineages reach the end from an earlier step")
    step = int(early.index[0])
    here = table[table["step"] == step].set_index("hook_name")
    noise = tables["direction_noise"]
    noise = noise[noise["level"] == level].set_index("hook_name")
    if noise.empty:
        return claim.because("no SAE of the last checkpoint was trained a second time")
    gap, floor = (t["s_fun"] - t["s_dir_aligned"] for t in (here, noise))
    raw = float((here["s_fun"] - here["s_dir"]).mean())
    note = (
        f"step {step}, {int(here['n'].sum())} lineages; directions after the rotation that brings the other features "
        f"nearest, raw directions {raw:.2f}; null: two trainings of the last checkpoint's SAEs ({level} noise), "
        "which select on function as lineages do; Student's t over hook points"
    )
    difference = (gap - floor).dropna()
    found = against_zero(replace(claim, note=note), over_units(difference.to_numpy()), few=FEW_HOOKS)
    return replace(found, observed=float(gap.mean()), null=float(floor.mean()))


def _survival(tables: Tables) -> Claim:
    one, table = tables["survival_at_rate"].iloc[0], tables["survival_by_entropy"]
    claim = Claim(
        "survival.entropy",
        "broad (high-entropy) features survive longer than others of their firing rate",
        headline=True,
        unit="share that survives",
        n=int(one["n"]),
        of="features alive at the onset",
    )
    if not np.isfinite(one["p"]):
        return claim.because("no features of equal firing rate of which some survive and some do not")
    deciles = table["survival"].to_numpy(dtype=float) if len(table) else np.full(1, np.nan)
    note = (
        f"{int(one['n_survived'])} reach the end; the broader half less the narrower half, entropy less a curve of the "
        f"firing rate; null: survival exchanged among features of equal rate; by entropy decile {deciles[0]:.0%} "
        f"(lowest), {np.nanmax(deciles):.0%} (highest of all), {deciles[-1]:.0%} (top)"
    )
    return replace(
        claim,
        observed=one["difference"],
        null=0.0,
        effect=one["difference"],
        low=one["low"],
        high=one["high"],
        p=one["p"],
        detectable=one["detectable"],
        note=note,
    )

"""Made-up tables of a life-history run: every table, plausible values, hostile token text. No model is involved."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tl_lifehist.claims import Claim, claims_table
from tl_lifehist.lifehistory.tables import TABLES
from tl_lifehist.store import Store
from tl_lifehist.tables import Table

STEPS = [0, 1000, 10000, 40000, 80000, 120000, 143000]
HOOKS = [f"blocks.{layer}.hook_resid_post" for layer in (2, 5, 8, 11)]
ROLES = np.array(["root", "mid", "leaf", "isolated"])
HOSTILE = "<script>alert('token')</script>"


def lineages_table(rng: np.random.Generator, n: int, steps: list[int] = STEPS) -> pd.DataFrame:
    rows = []
    for lineage in range(n):
        hook = HOOKS[lineage * len(HOOKS) // n]
        birth = int(min(rng.geometric(0.45) - 1, len(steps) - 1))
        length = int(rng.geometric(0.08)) if rng.random() < 0.3 else int(rng.geometric(0.6))
        for i in range(birth, min(birth + length, len(steps))):
            similarity = np.nan if i == birth else rng.uniform(0.5, 0.98)
            rows.append((lineage, hook, steps[i], lineage, similarity))
    return pd.DataFrame(rows, columns=["lineage", "hook_name", "step", "feature", "similarity"])


def features_table(rng: np.random.Generator, lineages: pd.DataFrame, steps: list[int]) -> pd.DataFrame:
    table = lineages.drop(columns="similarity")
    length = table.groupby("lineage")["step"].transform("size")
    at_end = table.groupby("lineage")["step"].transform("max") == steps[-1]
    n = len(table)
    rate = 10 ** (rng.normal(-2.2, 0.4, n) + 0.1 * length.to_numpy())
    return table.assign(
        firing_rate=rate.clip(1e-3, 0.5),
        count=(rate * 150_000).astype(int),
        entropy=rng.uniform(0.3, 0.9, n),
        vocabulary_entropy=rng.uniform(0.1, 0.7, n),
        strength=rng.uniform(0.05, 0.4, n),
        mass=rate * rng.uniform(0.5, 2, n),
        top_token_share=rng.uniform(0.01, 0.6, n),
        carrier=(length >= min(4, len(steps) - 1)).to_numpy() & at_end.to_numpy(),
        role_container=rng.choice(ROLES, n, p=[0.1, 0.2, 0.5, 0.2]),
        role_depth=rng.choice(ROLES, n),
        content=np.where(rng.random(n) < 0.2, "infrastructure", "legible"),
    )


def events_table(rng: np.random.Generator, steps: list[int]) -> pd.DataFrame:
    rows = []
    for hook in HOOKS:
        for start, end in itertools.pairwise(steps):
            counts = {"birth": int(rng.integers(60, 160)), "death": int(rng.integers(50, 150))}
            counts["both"] = counts["birth"] + counts["death"]
            for kind, count in counts.items():
                n_alive = 350
                match = 1 - count / n_alive if kind == "death" else np.nan
                data, init = (0.88, 0.63) if kind == "death" else (np.nan, np.nan)
                decades = np.log10(end + 1) - np.log10(start + 1)
                rows.append(
                    (kind, hook, start, end, count, n_alive, count / n_alive, count / (end - start), count / decades)
                    + (match, data, init, match / data, match / init, count / n_alive - (1 - data), "I")
                )
    names = (
        "kind hook_name step_from step_to count n_alive fraction per_step per_log_step match_rate floor_data floor_init"
    )
    names += " persistence_low persistence_high fraction_beyond_noise phase"
    return pd.DataFrame(rows, columns=names.split())


def carriers_table(rng: np.random.Generator, features: pd.DataFrame, steps: list[int]) -> pd.DataFrame:
    last = features[(features["step"] == steps[-1]) & features["carrier"]]
    births = features.groupby("lineage")["step"].agg(["min", "size"])
    return pd.DataFrame(
        {
            **{name: last[name].to_numpy() for name in ("lineage", "hook_name", "feature")},
            "birth": births.loc[last["lineage"], "min"].to_numpy(),
            "n_snapshots": births.loc[last["lineage"], "size"].to_numpy(),
            **{name: last[name].to_numpy() for name in ("firing_rate", "mass", "strength", "entropy")},
            "top_token_share": last["top_token_share"].to_numpy(),
            "role": last["role_container"].to_numpy(),
            "content": last["content"].to_numpy(),
            "seed_stable": rng.random(len(last)) < 0.7,
        }
    )


def contexts_table(rng: np.random.Generator, carriers: pd.DataFrame) -> pd.DataFrame:
    tokens = [HOSTILE, " the", "\n\n", "\ufffd", "\t", ".py", " said", "  ", "\u202eevil", "{"]
    before = "Once upon a time there was a little girl & her dog;\nthey said <b>hello</b> to"
    rows = []
    for hook, feature in zip(carriers["hook_name"], carriers["feature"], strict=True):
        for rank in range(5):
            token = tokens[int(rng.integers(len(tokens)))] if rank else tokens[feature % len(tokens)]
            activation = float(8 - rank + rng.random())
            rows.append(
                (hook, feature, rank, activation, int(rng.integers(400)), before, token, " the big \x00 house.\n")
            )
    names = ["hook_name", "feature", "rank", "activation", "document", "before", "token", "after"]
    return pd.DataFrame(rows, columns=names)


def edges_table(rng: np.random.Generator, features: pd.DataFrame, steps: list[int], n_edges: int) -> pd.DataFrame:
    frames = []
    for step in steps:
        here = features[features["step"] == step]
        for orientation in ("container", "depth"):
            weight = here["firing_rate"].to_numpy() ** 0.7
            source = here.iloc[rng.choice(len(here), n_edges, p=weight / weight.sum())]
            target = here.iloc[rng.choice(len(here), n_edges)]
            depth = {hook: i for i, hook in enumerate(HOOKS)}
            up = source["hook_name"].map(depth).to_numpy() < target["hook_name"].map(depth).to_numpy()
            frames.append(
                pd.DataFrame(
                    {
                        "step": step,
                        "orientation": orientation,
                        "source_hook": source["hook_name"].to_numpy()[up],
                        "source_feature": source["feature"].to_numpy()[up],
                        "target_hook": target["hook_name"].to_numpy()[up],
                        "target_feature": target["feature"].to_numpy()[up],
                        "containment": rng.uniform(0.8, 1, up.sum()),
                        "lift": rng.uniform(2, 40, up.sum()),
                        "overlap": rng.integers(50, 4000, up.sum()),
                    }
                ).drop_duplicates(["source_hook", "source_feature", "target_hook", "target_feature"])
            )
    return pd.concat(frames, ignore_index=True)


ERRS = {"load.count": 0.055, "load.mass": 0.04, "events.early": 0.05}


def dag_table(steps: list[int]) -> pd.DataFrame:
    rows = []
    for orientation, top in (("container", 0.62), ("depth", 0.4)):
        for i, step in enumerate(steps):
            share = top * (i + 1) / len(steps)
            null = 0.8 * share
            rows.append((step, orientation, 1400, 2300, 60, 240, 700, 400, 51, 38, share, share * 0.6, share + 0.02))
            rows[-1] += (null, null - 0.06, null + 0.06, 0.03, 0.1, null * 0.9, 0.01)
    names = "step orientation n_nodes n_edges n_root n_mid n_leaf n_isolated n_carriers n_can_be_parents recruited"
    more = "recruited_direct recruited_with_carriers null_mean null_low null_high"
    more += " null_sd unmatched_share rewired_mean p"
    return pd.DataFrame(rows, columns=[*names.split(), *more.split()])


def load_tables(rng: np.random.Generator, n_draws: int) -> dict[str, pd.DataFrame]:
    centre = {
        "count": 0.2,
        "count_root": 0.45,
        "count_mid": 0.25,
        "count_leaf": 0.1,
        "rate": 0.5,
        "mass": 0.8,
        "stable": 0.7,
    }
    draws, summary = [], []
    for kind, middle in centre.items():
        values = rng.normal(middle, 0.06, n_draws)
        fair = kind not in ("rate", "mass")
        if fair:
            draws.append(
                pd.DataFrame(
                    {
                        "kind": kind,
                        "draw": range(n_draws),
                        "delta_ce": values + 0.01,
                        "adjusted": values,
                        "delta_ce_carriers": 0.91,
                        "adjusted_carriers": 0.9,
                    }
                )
            )
        own = (n_draws, 48, 0.9, values.mean(), values.std(), 0.6, 0.8, 0.0099, 0.2, 0.02, 0.1, 0.05, "beyond")
        none = (0, 3, *(np.nan,) * 7, 0.42, 1.9, 2.3, "not testable")
        summary.append((kind, *(own if fair else none)))
    names = "kind n_draws n_equals carriers control_mean control_sd low high p detectable unmatched_share"
    names += " smd_log_rate smd_log_mass verdict"
    parts = [
        ("joint", 0.9, 51),
        *((hook, 0.1 * (i + 1), 12) for i, hook in enumerate(HOOKS)),
        ("sum of layers", 1.0, 51),
    ]
    parts += [("sum of singles", 0.6, 51), ("leading by rate", 0.7, 51), ("leading by mass", 0.85, 51)]
    parts += [("random direction", 0.05, 51)]
    return {
        "load": pd.concat(draws, ignore_index=True),
        "load_summary": pd.DataFrame(summary, columns=names.split()).assign(
            delta_ce=0.9,
            delta_low=0.8,
            delta_high=1.0,
            base_ce=2.9,
            n_scored=16_384,
        ),
        "ablation_regression": pd.DataFrame(
            [("mass", 0.2, 0.1, 0.3, 60), ("rate", 0.05, -0.05, 0.15, 60), ("carriers", 0.02, -0.01, 0.05, 60)],
            columns=["term", "coefficient", "low", "high", "n"],
        ),
        "ablation_parts": pd.DataFrame(parts, columns=["part", "delta_ce", "n_features"]),
    }


def single_table(rng: np.random.Generator, features: pd.DataFrame, steps: list[int]) -> pd.DataFrame:
    last = features[features["step"] == steps[-1]]
    cost = rng.lognormal(-4, 1, len(last))
    return pd.DataFrame(
        {
            "hook_name": last["hook_name"].to_numpy(),
            "feature": last["feature"].to_numpy(),
            "role": last["role_container"].to_numpy(),
            "sampled": True,
            "carrier": last["carrier"].to_numpy(),
            "content": last["content"].to_numpy(),
            "n_firings": last["count"].to_numpy(),
            "per_firing": cost - 0.01,
            "per_token": (cost - 0.01) * last["firing_rate"].to_numpy(),
        }
    )


def small_tables(rng: np.random.Generator, steps: list[int], n_carriers: int) -> dict[str, pd.DataFrame]:
    predictors = ["entropy, containment, strength", "log firing rate", "decoder geometry", "label permutations"]
    predictors += [f"leave out {hook}" for hook in HOOKS]
    auc = np.array([0.81, 0.76, 0.58, 0.5, 0.79, 0.8, 0.77, 0.78])
    progress = np.linspace(0, 1, len(steps))
    fun, direction = 0.2 + 0.8 * progress**0.5, 0.05 + 0.95 * progress**2
    survival = np.array([0.01, 0.02, 0.02, 0.05, 0.08, 0.1, 0.16, 0.22, 0.3, 0.43])
    rematch = [
        (step, hook, level, f"{level}{replicate}", int(rate * 350), 350, rate)
        for step in steps
        for hook in HOOKS
        for level, middle in (("data", 0.88), ("init", 0.63))
        for replicate in range(2)
        for rate in [float(rng.normal(middle, 0.02))]
    ]
    nulls = [("frozen", d, int(c)) for d, c in enumerate(rng.normal(n_carriers * 1.2, 6, 60))]
    nulls += [("unrelated", d, int(c)) for d, c in enumerate(rng.poisson(0.3, 20))]
    sweeps = [
        (parameter, value, quantity, float(rng.uniform(0, 1) if "fraction" in quantity else rng.integers(10, 90)))
        for parameter, values in {
            "min_similarity": ["0.3", "0.5", "0.7"],
            "min_rate": ["0.0001", "0.001", "0.01"],
        }.items()
        for value in values
        for quantity in ("carriers", "recruited fraction", "births")
    ]
    return {
        "forecast": pd.DataFrame(
            {
                "predictor": predictors,
                "auc": auc,
                "low": auc - 0.04,
                "high": auc + 0.04,
                "average_precision": auc - 0.4,
                "enrichment": auc * 11,
                "recall_at_k": auc - 0.3,
                "recall_top_decile": auc - 0.2,
                "recall_of_all": auc - 0.35,
                "n": 1400,
                "n_positive": 51,
                "gain_low": [np.nan, *(0.81 - auc[1:] - 0.04)],
                "gain_high": [np.nan, *(0.81 - auc[1:] + 0.04)],
                "onset": steps[1],
                "reason": "",
            }
        ),
        "forecast_gain": pd.DataFrame(
            [(0.05, 0.01, 0.09, 0.005, 1400, 51)], columns="gain low high p n n_positive".split()
        ),
        "direction_by_hook": pd.DataFrame(
            [
                (step, hook, f, d, d + 0.02, 75)
                for step, f, d in zip(steps, fun, direction, strict=True)
                for hook in HOOKS
            ],
            columns="step hook_name s_fun s_dir s_dir_aligned n".split(),
        ),
        "survival_at_rate": pd.DataFrame(
            [(0.04, -0.02, 0.1, 0.12, 0.09, 1380, 180)],
            columns="difference low high p detectable n n_survived".split(),
        ),
        "calibration": pd.DataFrame(
            [(name, 0.0, "share", 200, 200, rate, rate - 0.03, rate + 0.03) for name, rate in ERRS.items()],
            columns="id effect unit n_worlds n_tested rejected low high".split(),
        ),
        "direction": pd.DataFrame(
            {
                "step": steps,
                "s_fun": fun,
                "s_fun_low": fun - 0.04,
                "s_fun_high": fun + 0.04,
                "s_dir": direction,
                "s_dir_low": direction - 0.03,
                "s_dir_high": direction + 0.03,
                "s_dir_aligned": direction + 0.02,
                "null_fun": 0.02,
                "null_dir": 0.01,
                "n": 300,
            }
        ),
        "survival_by_entropy": pd.DataFrame(
            {
                "decile": range(1, 11),
                "entropy_low": np.linspace(0.1, 0.8, 10),
                "entropy_high": np.linspace(0.2, 0.9, 10),
                "n": 138,
                "survival": survival,
                "low": survival * 0.7,
                "high": survival * 1.3,
                "survival_by_rate": survival * 0.95,
            }
        ),
        "rematch": pd.DataFrame(rematch, columns="step hook_name level replicate matched n_alive rate".split()),
        "nulls": pd.DataFrame(nulls, columns=["null", "draw", "carriers"]),
        "direction_noise": pd.DataFrame(
            [
                (level, hook, f, d, d + 0.01, 75)
                for level, f, d in (("data", 0.9, 0.8), ("init", 0.7, 0.6))
                for hook in HOOKS
            ],
            columns="level hook_name s_fun s_dir s_dir_aligned n".split(),
        ),
        "kaplan_meier": pd.DataFrame(
            [("all", step, 300, 40 if step else 0, 1 / (1 + i)) for i, step in enumerate(steps)],
            columns=["hook_name", "step", "at_risk", "deaths", "survival"],
        ),
        "content": pd.DataFrame(
            {
                "content": ["infrastructure", "legible"],
                "n": [280, 1120],
                "n_carriers": [31, 20],
                "share_of_alive": [0.2, 0.8],
                "share_of_carriers": [0.61, 0.39],
                "joint_load": [0.71, 0.12],
                "compared_load": [0.7, 0.12],
                "null_load_mean": [0.4, 0.2],
                "null_load_low": [0.3, 0.12],
                "null_load_high": [0.5, 0.28],
                "null_draws": 19,
                "p": [0.05, 0.4],
                "share_of_descendants": [0.5, 0.5],
                "single_load": [0.3, 0.05],
                "n_single": [31, 20],
            }
        ),
        "sweeps": pd.DataFrame(sweeps, columns=["parameter", "value", "quantity", "result"]),
        "checkpoints": pd.DataFrame(
            [
                (step, hook, ce, 16_384, 0.1 + 0.02 * i, 350)
                for step, ce in zip(steps, np.linspace(10.8, 2.9, len(steps)), strict=True)
                for i, hook in enumerate(HOOKS)
            ],
            columns=["step", "hook_name", "base_ce", "n_scored", "fvu", "n_alive"],
        ),
        "published": pd.DataFrame(
            [
                ("persistent carriers", "137", 1400, "51", "49"),
                ("event rate, first 1 % against later", "44x (equal counts would give 40x)", 6, "about 40x", ""),
                ("forecast AUC", "0.81", 1400, "0.80 to 0.83", "0.80 to 0.83"),
                ("recruited fraction at the end", "62 %", 1300, "64 %", "53 %"),
            ],
            columns=["quantity", "ours", "n", "pythia_160m", "pythia_410m"],
        ),
        "claims": claims_table(
            [
                Claim(
                    "load.count",
                    "removing the carriers costs more than removing as many features of any kind",
                    headline=True,
                    verdict="beyond",
                    sentence="Removing the 51 carriers costs 0.7 [0.6, 0.8] nats more.",
                    observed=0.9,
                    null=0.2,
                    effect=0.7,
                    low=0.6,
                    high=0.8,
                    unit="nats per position",
                    p=0.005,
                    q=0.01,
                    n=51,
                    of="carriers that have an equal",
                    detectable=0.3,
                    false_positives=0.055,
                    note="199 draws",
                ),
                Claim(
                    "load.mass",
                    "removing the carriers costs more than removing features of equal mass",
                    headline=True,
                    sentence="Whether removing the carriers costs more cannot be tested here: 42 % have no equal.",
                    observed=0.9,
                    unit="nats per position",
                    of="carriers that have an equal",
                ).because("42 % have no equal"),
                Claim(
                    "events.early",
                    "features are born and die more in an early transition than in a later one",
                    headline=True,
                    verdict="within",
                    sentence="No sign that features are born and die more in early transitions: 0.05 [-0.02, 0.12].",
                    observed=0.5,
                    null=0.45,
                    effect=0.05,
                    low=-0.02,
                    high=0.12,
                    unit="share of the alive features",
                    p=0.31,
                    q=0.31,
                    n=4,
                    of="hook points",
                    detectable=0.09,
                    false_positives=0.05,
                ),
                Claim(
                    "carriers.frozen",
                    "carriers beside those of a model that never changes",
                    observed=137.0,
                    null=164.0,
                    effect=-27.0,
                    low=-40.0,
                    high=-13.0,
                    unit="carriers",
                    n=600,
                    of="features alive at the end",
                ),
            ]
        ),
    }


def plausible_tables(
    *, seed: int = 0, n: int = 1200, n_edges: int = 1500, n_draws: int = 100, steps: list[int] = STEPS
) -> dict[str, pd.DataFrame]:
    """Every table of a life-history run, by name, with every column that a run has."""
    rng = np.random.default_rng(seed)
    lineages = lineages_table(rng, n, steps)
    features = features_table(rng, lineages, steps)
    carriers = carriers_table(rng, features, steps)
    made = {
        "lineages": lineages,
        "features": features,
        "events": events_table(rng, steps),
        "carriers": carriers,
        "contexts": contexts_table(rng, carriers),
        "edges": edges_table(rng, features, steps, n_edges),
        "dag": dag_table(steps),
        "single": single_table(rng, features, steps),
        **load_tables(rng, n_draws),
        **small_tables(rng, steps, len(carriers)),
    }
    return in_order(made, TABLES)


def in_order(made: Mapping[str, pd.DataFrame], declared: Mapping[str, Table]) -> dict[str, pd.DataFrame]:
    """Tables and columns in the order in which a study declares them."""
    return {
        name: made[name][list(table.columns)] if len(made[name]) else pd.DataFrame(columns=list(table.columns))
        for name, table in declared.items()
    }


def study_record(steps: list[int] = STEPS) -> dict[str, Any]:
    return {
        "study": "life-history",
        "config": {"sae": {"d_sae": 3072, "k": 32, "init": "shared"}, "matching": {"min_similarity": 0.5}},
        "texts": {"train": {"key": "c0ffee", "sequences": 15_625, "positions": 2_000_000}},
        "reduced": {"training tokens": "2,000,000 of 50,000,000", "noise controls": "3 of 7 checkpoints"},
        "versions": {"tl_lifehist": "0.1.0", "torch": "2.9.0"},
        "seed": 0,
        "threads": 1,
        "fingerprints": {str(step): f"{step:064x}" for step in steps},
        "series": "EleutherAI/pythia-160m",
        "hook_names": HOOKS,
        "steps": steps,
    }


def write_run(folder: Path, tables: dict[str, pd.DataFrame], record: dict[str, Any] | None = None) -> Path:
    """A run folder as a study leaves it, less the stages before the last."""
    folder.mkdir(parents=True)
    Store(folder).write_record(study_record() if record is None else record)
    return write_tables(folder, tables)


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> Path:
    """Replace the tables of a run folder."""
    Store(folder).save("tables", tables, "made up", {})
    return folder

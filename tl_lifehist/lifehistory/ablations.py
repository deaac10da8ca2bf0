"""The units of the study that ablate features at the last checkpoint: joint loads, single features, content classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd

from tl_lifehist.interventions import FeatureAblation
from tl_lifehist.lifehistory.ablation_breakdown import ablation_parts, ablation_regression, single_ablation
from tl_lifehist.lifehistory.containment import containment_dag
from tl_lifehist.lifehistory.content import content_classes, vocabulary_classes
from tl_lifehist.lifehistory.contexts import top_contexts
from tl_lifehist.lifehistory.controls import MAX_UNMATCHED, draw_controls
from tl_lifehist.lifehistory.joint_ablation import joint_ablation
from tl_lifehist.lifehistory.study import SIZES, LifeHistoryStudy
from tl_lifehist.lifehistory.workspace import Workspace
from tl_lifehist.metrics import interval
from tl_lifehist.seeds import derive_seed


def _load_unit(folder: Path, work: Workspace, controls: tuple[str, ...], offset: int, **extra: Any) -> None:
    study = work.study
    if not len(work.carriers):
        return  # nothing to ablate: the claims say so
    load = joint_ablation(
        study.series.load(work.last),
        work.saes_of(work.last),
        work.carriers.at(work.last),
        work.final,
        study.load_text,
        controls=controls,
        n_draws=study.n_draws,
        seed=derive_seed(study.seed, 17, offset) % (1 << 31),
        **extra,
    )
    load.controls.to_parquet(folder / "load.parquet", index=False)
    load.balance.assign(
        delta_ce=load.delta_ce,
        delta_low=load.delta_ce_interval[0],
        delta_high=load.delta_ce_interval[1],
        base_ce=load.base_ce,
        n_scored=load.n_scored,
    ).to_parquet(folder / "load_summary.parquet", index=False)


def load_by_count(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Joint load against sets of equal count, overall and by role (D18, D19)."""
    work = Workspace(root, study)
    _load_unit(folder, work, ("count",), 0, graph=containment_dag(work.final))


def load_by_rate(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Joint load against rate-matched sets (D19)."""
    _load_unit(folder, Workspace(root, study), ("rate",), 1)


def load_by_mass(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Joint load against mass-matched sets, all and seed-stable ones only (D19, C1)."""
    work = Workspace(root, study)
    stable = json.loads((work.unit("analysis/noise_controls") / "stable.json").read_text())
    _load_unit(folder, work, ("mass",), 2, among={"stable": stable})


def singles(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Single-feature ablation of carriers and of features of each role; what the joint load is made of (D17, C6,
    C7).
    """
    work = Workspace(root, study)
    if not len(work.carriers):
        return
    model, saes = study.series.load(work.last), work.saes_of(work.last)
    carriers = work.carriers.at(work.last)
    roles = work.read("graphs", "roles")
    roles = roles[roles["step"] == work.last]
    rng = np.random.default_rng(derive_seed(study.seed, 19))
    marked = [(h, int(f)) for h, features in carriers.items() for f in features]
    chosen = {marked[i] for i in rng.permutation(len(marked))[: SIZES["single_carriers"]]}
    sampled: set[tuple[str, int]] = set()  # drawn without regard to history: only these compare the roles
    for _, group in roles.groupby("role_container"):
        picked = group.iloc[rng.permutation(len(group))[: SIZES["singles_per_role"]]]
        sampled |= set(zip(picked["hook_name"], picked["feature"].astype(int), strict=True))
    chosen |= sampled
    features = {h: sorted(f for name, f in chosen if name == h) for h in study.hook_names}
    table = single_ablation(model, saes, features, study.load_text)
    table = table.merge(roles[["hook_name", "feature", "role_container"]], on=["hook_name", "feature"], how="left")
    table = table.rename(columns={"role_container": "role"})
    table["sampled"] = [(h, f) in sampled for h, f in zip(table["hook_name"], table["feature"], strict=True)]
    table["carrier"] = [f in set(carriers[h]) for h, f in zip(table["hook_name"], table["feature"], strict=True)]
    table.to_parquet(folder / "single.parquet", index=False)
    # the sum of single costs is comparable only where every carrier was ablated alone
    of_carriers = table[table["carrier"]] if len(marked) <= SIZES["single_carriers"] else None
    parts = ablation_parts(model, saes, carriers, work.final, study.load_text, single=of_carriers, seed=study.seed)
    parts.to_parquet(folder / "ablation_parts.parquet", index=False)
    regression = ablation_regression(
        model, saes, carriers, work.final, study.load_text, n_sets=SIZES["regression_sets"], seed=study.seed
    )
    regression.to_parquet(folder / "ablation_regression.parquet", index=False)


def content(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Contexts of the carriers, and content classes with their load (D24)."""
    work = Workspace(root, study)
    assert study.test is not None
    tokenizer = study.series.tokenizer
    if tokenizer is None:
        return
    n_ids = int(study.test.ids.max()) + 1
    infrastructure = vocabulary_classes(tokenizer, n_ids)
    classes = {key: content_classes(profile, infrastructure) for key, profile in work.profiles.items()}
    rows = [
        (step, h, int(f), classes[step, h][f])
        for (step, h) in work.profiles
        for f in work.lineages.alive[step, h].tolist()
    ]
    pd.DataFrame(rows, columns=["step", "hook_name", "feature", "content"]).to_parquet(
        folder / "classes.parquet", index=False
    )
    carriers = work.carriers.at(work.last)
    contexts = [
        top_contexts(work.final[h], study.test, features, tokenizer, n=SIZES["contexts"])
        for h, features in carriers.items()
        if features
    ]
    if contexts:
        pd.concat(contexts, ignore_index=True).to_parquet(folder / "contexts.parquet", index=False)
    if len(work.carriers):
        at_end = {h: classes[work.last, h] for h in study.hook_names}
        content_load(work, at_end).to_parquet(folder / "content.parquet", index=False)


def content_load(work: Workspace, classes: Mapping[str, Any]) -> pd.DataFrame:
    """Each class's share of carriers, joint load and descendants, beside sets of equal mass from the other class."""
    from tl_lifehist.effects import scored_losses

    study, text = work.study, work.study.load_text
    model, saes = study.series.load(work.last), work.saes_of(work.last)
    carriers = work.carriers.at(work.last)
    total = sum(len(c) for c in carriers.values())
    base = scored_losses(model, text)
    graph = containment_dag(work.final)
    below = set().union(*(nx.descendants(graph, (h, f)) for h, c in carriers.items() for f in c if (h, f) in graph))
    below -= {(h, f) for h, c in carriers.items() for f in c}

    def cost(chosen: Mapping[str, list[int]]) -> float:
        return float((scored_losses(model, text, FeatureAblation(saes, chosen)) - base).mean())

    rows = []
    for name in ("infrastructure", "legible"):
        mine = {h: [f for f in c if classes[h][f] == name] for h, c in carriers.items()}
        others = {h: [int(f) for f in work.lineages.alive[work.last, h] if classes[h][f] != name] for h in carriers}
        count = sum(len(f) for f in mine.values())
        pairs: list[tuple[float, float]] = []
        if count:
            draws = draw_controls(
                work.final, mine, kind="mass", n_draws=SIZES["content_draws"], seed=study.seed, among=others
            )
            if np.mean([d.unmatched_share for d in draws]) <= MAX_UNMATCHED:
                # where the other class is smaller, each draw compares equal parts of both
                pairs = [(cost(d.carriers), cost(d.controls)) for d in draws if any(d.controls.values())]
        compared, null = (np.array(side) for side in zip(*pairs, strict=True)) if pairs else (np.zeros(0), np.zeros(0))
        low, high = interval(null)
        n_class = sum(int((classes[h][work.lineages.alive[work.last, h]] == name).sum()) for h in carriers)
        rows.append(
            {
                "content": name,
                "n": n_class,
                "n_carriers": count,
                "share_of_alive": n_class / max(sum(len(work.lineages.alive[work.last, h]) for h in carriers), 1),
                "share_of_carriers": count / total if total else float("nan"),
                "joint_load": cost(mine) if count else float("nan"),
                "compared_load": float(compared.mean()) if pairs else float("nan"),
                "null_load_mean": float(null.mean()) if pairs else float("nan"),
                "null_load_low": low,
                "null_load_high": high,
                "null_draws": len(pairs),
                "p": float((1 + (null >= compared).sum()) / (len(pairs) + 1)) if pairs else float("nan"),
                "share_of_descendants": sum(classes[h][f] == name for h, f in below) / len(below)
                if below
                else float("nan"),
            }
        )
    return pd.DataFrame(rows)

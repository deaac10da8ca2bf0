"""From profiles on disk to tables: the units of the study after the SAEs are trained. Each writes Parquet tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import torch

from tl_lifehist.dictionaries.protocol import decoder_directions
from tl_lifehist.dictionaries.sae import load_sae
from tl_lifehist.lifehistory import noise
from tl_lifehist.lifehistory.ablations import content, load_by_count, load_by_mass, load_by_rate, singles
from tl_lifehist.lifehistory.containment import containment_dag, feature_roles
from tl_lifehist.lifehistory.direction import function_and_direction
from tl_lifehist.lifehistory.forecast import predict_carriers
from tl_lifehist.lifehistory.lineages import trace_lineages
from tl_lifehist.lifehistory.matching import MIN_SIMILARITY, match_features
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.lifehistory.recruitment import can_be_parents, recruited_fraction, recruitment_null
from tl_lifehist.lifehistory.study import SIZES, LifeHistoryStudy
from tl_lifehist.lifehistory.survival import kaplan_meier, survival_by_entropy
from tl_lifehist.lifehistory.workspace import Workspace

ORIENTATIONS = ("container", "depth")
_RECRUITMENT = (
    "recruited",
    "recruited_direct",
    "recruited_with_carriers",
    "null_mean",
    "null_low",
    "null_high",
    "rewired_mean",
    "p",
)
FREQUENT_IDS = 50  # vocabulary ids left out in control C11


def lineages(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Match neighbouring checkpoints and chain the matches (D5 to D7)."""
    work = Workspace(root, study)
    traced = trace_lineages(work.profiles)
    traced.to_dataframe().to_parquet(folder / "lineages.parquet", index=False)
    alive = {f"{s}/{h}": features.tolist() for (s, h), features in traced.alive.items()}
    (folder / "alive.json").write_text(json.dumps(alive))


def noise_controls(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Re-match rates within checkpoints and the two nulls of the number of carriers (C1)."""
    work = Workspace(root, study)
    replicates = {(s, name): work.profiles_of(s, name) for s, name in study.replicates()}
    noise.rematch_table(work.profiles, replicates).to_parquet(folder / "rematch.parquet", index=False)
    own = [
        replicates[s, name] for s, name in study.replicates() if s == work.last and name.startswith(study.frozen_level)
    ]
    frequencies = {h: noise.rematch_frequencies(work.final[h], [r[h] for r in own]) for h in study.hook_names}
    trained = [s for s in study.series.steps if s > 0]
    wanted = work.carriers.min_snapshots
    frozen = noise.frozen_null(frequencies, n_snapshots=len(trained), min_snapshots=wanted, seed=study.seed)
    unrelated = noise.unrelated_null(
        work.profiles, min_snapshots=wanted, n_draws=SIZES["unrelated_draws"], seed=study.seed
    )
    rows = [
        (name, i, int(c))
        for name, null in (("frozen", frozen), ("unrelated", unrelated))
        for i, c in enumerate(null.draws)
    ]
    pd.DataFrame(rows, columns=["null", "draw", "carriers"]).to_parquet(folder / "nulls.parquet", index=False)
    direction_noise(work, replicates).to_parquet(folder / "direction_noise.parquet", index=False)
    stable = noise.seed_stable(
        work.final, [r for (s, name), r in replicates.items() if s == work.last and name.startswith("init")]
    )
    (folder / "stable.json").write_text(json.dumps(stable))


def direction_noise(work: Workspace, replicates: Mapping[tuple[int, str], Any]) -> pd.DataFrame:
    """S_fun and S_dir (D16) between two trainings of the last checkpoint's SAEs: level, s_fun, s_dir, n.

    The model does not change and pairs are selected by their match as lineages are, so the gap is that of tracing
    alone.
    """
    rows = []
    for (step, name), found in replicates.items():
        if step == work.last and name in ("data1", "init1"):
            function, direction = [], []
            for h in work.study.hook_names:
                match = match_features(work.final[h], found[h])
                saes = [load_sae(work.unit(f"saes/step{step}/{variant}") / h) for variant in ("base", name)]
                a, b = (decoder_directions(sae, match.pairs[:, i].tolist()) for i, sae in enumerate(saes))
                direction += torch.nn.functional.cosine_similarity(a, b).tolist()
                function += match.similarity.tolist()
            mean = (float(np.mean(v)) if v else float("nan") for v in (function, direction))
            rows.append((name.rstrip("1"), *mean, len(function)))
    return pd.DataFrame(rows, columns=["level", "s_fun", "s_dir", "n"])


def graphs(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Containment graphs in both orientations at every checkpoint, with their nulls (D12 to D15, C8)."""
    work = Workspace(root, study)
    edges, counts, roles = [], [], []
    for step in study.series.steps:
        profiles = {h: work.profiles[step, h] for h in study.hook_names}
        carriers = work.carriers.at(step)
        n_carriers = sum(len(c) for c in carriers.values())
        found: dict[str, dict[Any, str]] = {}
        for orientation in ORIENTATIONS:
            graph = containment_dag(profiles, orientation=orientation)
            found[orientation] = feature_roles(graph)
            edges += [
                (step, orientation, *a, *b, data["containment"], data["lift"], data["overlap"])
                for a, b, data in graph.edges(data=True)
            ]
            if step == work.last:
                readable = nx.relabel_nodes(graph, {node: f"{node[0]}/{node[1]}" for node in graph})
                nx.write_graphml(readable, folder / f"{orientation}.graphml")
            tally = pd.Series(list(found[orientation].values()), dtype=object).value_counts()
            row = {
                "step": step,
                "orientation": orientation,
                "n_nodes": graph.number_of_nodes(),
                "n_edges": graph.number_of_edges(),
                **{f"n_{role}": int(tally.get(role, 0)) for role in ("root", "mid", "leaf", "isolated")},
                "n_carriers": n_carriers,
                "n_can_be_parents": can_be_parents(profiles, carriers, min_lift=2.0) if n_carriers else 0,
            }
            measured = dict.fromkeys(_RECRUITMENT, float("nan"))
            if n_carriers:
                null = recruitment_null(graph, carriers, n_draws=study.n_draws, seed=study.seed)
                measured = {
                    "recruited": recruited_fraction(graph, carriers),
                    "recruited_direct": recruited_fraction(graph, carriers, direct=True),
                    "recruited_with_carriers": recruited_fraction(graph, carriers, count_carriers=True),
                    "null_mean": null.mean,
                    "null_low": null.low,
                    "null_high": null.high,
                    "rewired_mean": null.rewired_mean,
                    "p": null.p,
                }
            row |= measured
            counts.append(row)
        roles += [(step, *node, role, found["depth"][node]) for node, role in found["container"].items()]
    columns = [
        "step",
        "orientation",
        "source_hook",
        "source_feature",
        "target_hook",
        "target_feature",
        "containment",
        "lift",
        "overlap",
    ]
    pd.DataFrame(edges, columns=columns).to_parquet(folder / "edges.parquet", index=False)
    pd.DataFrame(counts).to_parquet(folder / "dag.parquet", index=False)
    names = ["step", "hook_name", "feature", "role_container", "role_depth"]
    pd.DataFrame(roles, columns=names).to_parquet(folder / "roles.parquet", index=False)


def forecasts(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """Forecast of carriers, function against direction, survival by entropy (D16, D21 to D23)."""
    work = Workspace(root, study)
    saes = work.saes()
    forecast = predict_carriers(
        work.profiles,
        work.lineages,
        work.carriers,
        saes=saes,
        n_permutations=SIZES["forecast_permutations"],
        seed=study.seed,
    )
    table = forecast.to_dataframe()
    table["onset"] = forecast.onset
    table["reason"] = forecast.reason or ""
    table.to_parquet(folder / "forecast.parquet", index=False)
    direction = function_and_direction(work.profiles, work.lineages, saes, seed=study.seed)
    direction.to_parquet(folder / "direction.parquet", index=False)
    kaplan_meier(work.lineages).to_parquet(folder / "kaplan_meier.parquet", index=False)
    survival_by_entropy(work.profiles, work.lineages).to_parquet(folder / "survival_by_entropy.parquet", index=False)


def sweeps(folder: Path, root: str, study: LifeHistoryStudy) -> None:
    """What the thresholds decide, and matches that must vanish (C3, C4, C11)."""
    work = Workspace(root, study)
    ids = next(iter(work.profiles.values())).token_ids
    assert ids is not None
    frequent = np.argsort(-np.bincount(ids), kind="stable")[:FREQUENT_IDS]
    rare = {key: p.select_rows(~np.isin(ids, frequent)) for key, p in work.profiles.items()}

    def carriers(profiles: Mapping[tuple[int, str], FeatureProfiles] = work.profiles, **knobs: Any) -> int:
        return len(trace_lineages(profiles, **knobs).carriers())

    rows: list[tuple[str, str, str, float]] = [
        ("all at their defaults", "", "carriers", carriers()),
        *(("min_similarity", str(v), "carriers", carriers(min_similarity=v)) for v in (0.3, 0.4, 0.6, 0.7)),
        *(("min_rate", f"{r:g}", "carriers", carriers(min_rate=r, min_count=n)) for r, n in ((1e-4, 5), (1e-2, 500))),
        ("method", "dense", "carriers", carriers(method="dense")),
        ("transformed band", "0.2", "carriers", carriers(transformed=0.2)),
        ("max_gap", "1", "carriers", carriers(max_gap=1)),
        (f"without the {FREQUENT_IDS} most frequent ids", "", "carriers", carriers(rare)),
    ]
    for name, values in (("min_containment", (0.5, 0.7, 0.8, 0.9, 0.95)), ("min_lift", (1.5, 2.0, 5.0))):
        found = [containment_dag(work.final, **{name: value}) for value in values]  # pyright: ignore[reportArgumentType]
        rows += [(name, str(v), "edges", g.number_of_edges()) for v, g in zip(values, found, strict=True)]
    order = np.random.default_rng(study.seed).permutation(len(study.series.steps))
    shuffled_steps = dict(zip(study.series.steps, np.array(study.series.steps)[order].tolist(), strict=True))
    mixed = {(s, h): work.profiles[shuffled_steps[s], h] for s, h in work.profiles}
    rows.append(("checkpoint order shuffled", "", "carriers", carriers(mixed)))
    first, last = study.hook_names[0], study.hook_names[-1]
    final = work.final
    shuffled = match_features(final[first], final[first].permuted(study.seed), min_similarity=MIN_SIMILARITY).rate
    rows.append(("rows shuffled", "", "match rate", shuffled))
    if first != last:
        rows.append(("another layer", "", "match rate", match_features(final[first], final[last]).rate))
    pd.DataFrame(rows, columns=["parameter", "value", "quantity", "result"]).to_parquet(
        folder / "sweeps.parquet", index=False
    )


STAGES = (
    ("lineages", (lineages,)),
    ("noise and graphs", (noise_controls, graphs)),
    # the longest first, so that no worker is left waiting for one
    ("controls", (singles, load_by_count, content, load_by_mass, sweeps, load_by_rate, forecasts)),
)

"""What the thresholds decide, and matches that must vanish (C3, C4, C11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tl_lifehist.lifehistory.config import Alive, CarrierRule, Containment, EqualFeatures, Matching, Sweeps
from tl_lifehist.lifehistory.controls import equals_of
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.lifehistory.lineages import trace_lineages
from tl_lifehist.lifehistory.matching import match_features
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.lifehistory.stages.graphs import contained
from tl_lifehist.lifehistory.stages.lineages import same_feature, tracing
from tl_lifehist.stages import Inputs, Outputs


def sweeps(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    alive: Alive,
    matching: Matching,
    rule: CarrierRule,
    containment: Containment,
    equals: EqualFeatures,
    sweep: Sweeps,
    seed: int,
) -> Outputs:
    """Table `sweeps`: parameter, value, quantity, result. Each row changes one setting of the study's own."""
    frequent_ids = sweep.frequent_ids
    history = History(inputs, steps, hook_names)
    profiles, final = history.profiles, history.final
    ids = inputs.text("test").row_tokens
    frequent = np.argsort(-np.bincount(ids), kind="stable")[:frequent_ids]
    rare = {key: p.select_rows(~np.isin(ids, frequent)) for key, p in profiles.items()}

    def carriers(of: Mapping[tuple[int, str], FeatureProfiles] = profiles, **changed: Any) -> int:
        return len(trace_lineages(of, **{**tracing(alive, matching), **changed}).carriers(**knobs(rule)))

    traced = trace_lineages(profiles, **tracing(alive, matching))
    lengths = range(1, sum(step > 0 for step in steps) + 1)
    marked = traced.carriers(**knobs(rule)).at(steps[-1])
    per_rate = alive.min_count / alive.min_rate if alive.min_rate > 0 else 0.0

    def with_equals(caliper: float) -> float:
        of = {"block": equals.block, "caliper": caliper, **knobs(alive, "min_rate", "min_count")}
        return 1 - equals_of(final, marked, kind="mass", **of).strata.unmatched_share

    rows: list[tuple[str, str, str, float]] = [
        ("all at their defaults", "", "carriers", carriers()),
        *(
            ("min_snapshots", str(n), "carriers", len(traced.carriers(**{**knobs(rule), "min_snapshots": n})))
            for n in lengths
        ),
        *(("min_similarity", str(v), "carriers", carriers(min_similarity=v)) for v in sweep.similarities),
        *(("min_rate", f"{r:g}", "carriers", carriers(min_rate=r, min_count=round(per_rate * r))) for r in sweep.rates),
        ("method", "dense", "carriers", carriers(method="dense")),
        ("transformed band", "0.2", "carriers", carriers(transformed=0.2)),
        ("max_gap", "1", "carriers", carriers(max_gap=1)),
        (f"without the {frequent_ids} most frequent ids", "", "carriers", carriers(rare)),
        *(("caliper", str(v), "carriers with an equal of mass", with_equals(v)) for v in sweep.calipers),
    ]
    for name, values in (("min_containment", sweep.containments), ("min_lift", sweep.lifts), ("max_p", sweep.edge_ps)):
        found = [contained(final, containment, alive, **{name: value}) for value in values]
        rows += [(name, f"{v:g}", "edges", g.number_of_edges()) for v, g in zip(values, found, strict=True)]
    order = np.random.default_rng(seed).permutation(len(steps))
    shuffled_steps = dict(zip(steps, np.array(steps)[order].tolist(), strict=True))
    mixed = {(s, h): profiles[shuffled_steps[s], h] for s, h in profiles}
    rows.append(("checkpoint order shuffled", "", "carriers", carriers(mixed)))
    first, last, same = hook_names[0], hook_names[-1], same_feature(alive, matching)
    shuffled = match_features(final[first], final[first].permuted(seed), **same).rate
    rows.append(("rows shuffled", "", "match rate", shuffled))
    moved = match_features(final[first], final[first].documents_permuted(seed), **same).rate
    rows.append(("documents shuffled", "", "match rate", moved))
    if first != last:
        rows.append(("another layer", "", "match rate", match_features(final[first], final[last], **same).rate))
    return {"sweeps": pd.DataFrame(rows, columns=["parameter", "value", "quantity", "result"])}

"""Contexts of the carriers, and content classes with their load (D24)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd

from tl_lifehist.inference.exchange import exchanged
from tl_lifehist.interventions import FeatureAblation
from tl_lifehist.lifehistory.config import Alive, CarrierRule, EqualFeatures
from tl_lifehist.lifehistory.content import content_classes, vocabulary_classes
from tl_lifehist.lifehistory.contexts import top_contexts
from tl_lifehist.lifehistory.controls import equals_of
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.many_losses import ManyLosses
from tl_lifehist.models import HookedModel
from tl_lifehist.nulls import Null
from tl_lifehist.stages import Inputs, Outputs
from tl_lifehist.tokens import TokenSet

CLASSES = ("infrastructure", "legible")


def content(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    alive: Alive,
    rule: CarrierRule,
    equals: EqualFeatures,
    contexts: int,
    window: int,
    content_draws: int,
    load_tokens: int,
    min_mass_share: float,
    vocabulary: str,
    seed: int,
) -> Outputs:
    """Tables `classes` of all alive features, `contexts` of the carriers and `content`; nothing without a tokenizer.

    Args:
        vocabulary: a hash of the tokenizer's, which decides the classes; empty where there is none.
    """
    history = History(inputs, steps, hook_names)
    test, tokenizer = inputs.text("test"), inputs.series.tokenizer
    if not vocabulary or tokenizer is None:
        return {}
    infrastructure = vocabulary_classes(tokenizer, int(test.ids.max()) + 1)
    classes = {
        key: content_classes(profile, infrastructure, min_mass_share=min_mass_share)
        for key, profile in history.profiles.items()
    }
    rows = [
        (step, h, int(f), classes[step, h][f])
        for (step, h) in history.profiles
        for f in history.lineages.alive[step, h].tolist()
    ]
    tables = {"classes": pd.DataFrame(rows, columns=["step", "hook_name", "feature", "content"])}
    carriers = history.carriers(rule)
    shown = [
        top_contexts(history.final[h], test, features, tokenizer, n=contexts, window=window)
        for h, features in carriers.at(history.last).items()
        if features
    ]
    if shown:
        tables["contexts"] = pd.concat(shown, ignore_index=True)
    if len(carriers):
        at_end = {h: classes[history.last, h] for h in hook_names}
        graph = history.graph(history.last)
        tables["content"] = content_load(
            inputs.model(history.last),
            history,
            rule,
            at_end,
            graph,
            test.head(load_tokens),
            max_unmatched=equals.max_unmatched,
            n_draws=content_draws,
            seed=seed,
            **knobs(equals, "block", "caliper"),
            **knobs(alive, "min_rate", "min_count"),
        )
    return tables


def content_load(
    model: HookedModel,
    history: History,
    rule: CarrierRule,
    classes: Mapping[str, Any],
    graph: nx.DiGraph,
    text: TokenSet,
    *,
    max_unmatched: float,
    n_draws: int,
    seed: int,
    **like: Any,
) -> pd.DataFrame:
    """Each class's share of carriers, joint load and descendants; the load beside sets in which the class is exchanged
    among features of equal mass.

    Args:
        like: keyword arguments of `equals_of`.
    """
    last = history.last
    saes, alive = history.saes_of(last), history.lineages.alive
    carriers = history.carriers(rule).at(last)
    total = sum(len(c) for c in carriers.values())
    losses = ManyLosses(model, text, list(carriers))
    below = set().union(*(nx.descendants(graph, (h, f)) for h, c in carriers.items() for f in c if (h, f) in graph))
    below -= {(h, f) for h, c in carriers.items() for f in c}

    def cost(chosen: Mapping[str, list[int]]) -> float:
        return float((losses.of(FeatureAblation(saes, chosen)) - losses.base).mean())

    rows = []
    for name in CLASSES:
        mine = {h: [f for f in c if classes[h][f] == name] for h, c in carriers.items()}
        others = {h: [int(f) for f in alive[last, h] if classes[h][f] != name] for h in carriers}
        count = sum(len(f) for f in mine.values())
        compared, null = float("nan"), np.zeros(0)
        if count:
            found = equals_of(history.final, mine, kind="mass", among=others, **like)
            if found.strata.marked.any() and found.strata.unmatched_share <= max_unmatched:
                beside = exchanged(
                    found.strata,
                    lambda marked, found=found: cost(found.chosen(marked)),
                    n_draws,
                    np.random.default_rng(seed),
                    measure=found.measure,
                )
                compared, null = beside.null.observed, beside.null.draws
        alone = Null(compared, null)
        n_class = sum(int((classes[h][alive[last, h]] == name).sum()) for h in carriers)
        rows.append(
            {
                "content": name,
                "n": n_class,
                "n_carriers": count,
                "share_of_alive": n_class / max(sum(len(alive[last, h]) for h in carriers), 1),
                "share_of_carriers": count / total if total else float("nan"),
                "joint_load": cost(mine) if count else float("nan"),
                "compared_load": compared,
                "null_load_mean": alone.mean,
                "null_load_low": alone.low,
                "null_load_high": alone.high,
                "null_draws": alone.n,
                "p": alone.p,
                "share_of_descendants": sum(classes[h][f] == name for h, f in below) / len(below)
                if below
                else float("nan"),
            }
        )
    return pd.DataFrame(rows)

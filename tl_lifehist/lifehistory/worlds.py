"""Worlds in which the tested claims of a life history are known to be false, or true by a named amount.

Each takes its sizes from a run (numbers of features, their rates and masses, hook points, the graph) and makes the
arrays that the claim's own procedure reads. What a world holds besides its effect is what could be taken for one:
carriers that are heavier or fire more often, costs that scatter widely, more features than one matching notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from tl_lifehist.inference.curves import beside_curve, spline_design
from tl_lifehist.inference.documents import over_units
from tl_lifehist.inference.exchange import exchanged, strata_of
from tl_lifehist.inference.worlds import World
from tl_lifehist.lifehistory.beyond_rate import score_null
from tl_lifehist.lifehistory.config import EqualFeatures
from tl_lifehist.lifehistory.controls import LEAST_EQUALS
from tl_lifehist.lifehistory.recruitment import recruitment_null
from tl_lifehist.lifehistory.survival import Cohort, survival_at_equal_rate
from tl_lifehist.runs import Run

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Tables = Mapping[str, pd.DataFrame]
SCATTER = 1.0  # standard deviation of the log cost of features of equal mass (ours)
PAIR_NOISE = 0.04  # standard deviation of a match rate between two pairs of SAEs of one kind (ours)
N_DRAWS = 199


def life_history_worlds(tables: Tables, *, equals: EqualFeatures, onset: int, n_draws: int = N_DRAWS) -> list[World]:
    """A world for each tested claim of a run.

    Args:
        tables: `features` (step, hook_name, feature, firing_rate, count, mass, entropy, strength, lineage, carrier) and
            `edges`.
        equals: the study's groups of equals.
        onset: the checkpoint that carriers are told from.
        n_draws: draws of each test.
    """
    features = tables["features"]
    last = features[features["step"] == features["step"].max()].reset_index(drop=True)
    first = features[features["step"] == onset].reset_index(drop=True)
    hooks = last["hook_name"].nunique()
    found = []
    if last["carrier"].any() and not last["carrier"].all():
        of = Ablated.of(last, equals, n_draws)
        found.append(World("load.count", "share that a carrier costs more", (0.25, 0.5, 1.0), of.by_count))
        found.append(World("load.mass", "share that a carrier costs more", (0.25, 0.5, 1.0), of.by_mass))
        graph = graph_of(last, tables["edges"])
        if graph.number_of_edges():
            draw = _recruiting(graph, last, equals, n_draws)
            found.append(
                World("recruitment.container", "log odds a standard deviation of reach", (0.5, 1.0, 2.0), draw)
            )
    if len(first):
        later = first["lineage"].isin(set(last.loc[last["carrier"], "lineage"])).to_numpy()
        if later.any() and not later.all():
            draw = _told(first, later, equals, n_draws)
            found.append(
                World("forecast.beyond_rate", "log odds a standard deviation of entropy", (0.5, 1.0, 2.0), draw)
            )
        reached = first["lineage"].isin(set(last["lineage"])).to_numpy()
        if reached.any() and not reached.all():
            draw = _surviving(first, reached, equals, n_draws)
            found.append(World("survival.entropy", "log odds a standard deviation of entropy", (0.5, 1.0, 2.0), draw))
    if hooks > 2:
        alive = features.groupby(["hook_name", "step"]).size().unstack(fill_value=0).to_numpy()
        found.append(World("events.early", "share of the alive", (0.1, 0.2, 0.4), _events(alive)))
        found.append(World("features.change", "share of the alive", (0.05, 0.1, 0.2), _matches(alive)))
        found.append(World("direction.function_first", "correlation less cosine", (0.05, 0.1, 0.2), _gaps(alive)))
    return found


def worlds_of_run(run: Run) -> list[World]:
    """The worlds of a finished run."""
    held, sets = run.study["config"]["equals"], run.study["config"]["control_sets"]
    tables = {name: run.table(name) for name in ("features", "edges")}
    onset = int(run.table("forecast")["onset"].iloc[0])
    return life_history_worlds(tables, equals=EqualFeatures(**held), onset=onset, n_draws=sets["n_draws"])


@dataclass(frozen=True, eq=False)
class Ablated:
    """Features whose joint cost is known: `[feature]` each.

    Attributes:
        layers: hook points.
        mass: masses.
        odds: log odds of being a carrier, a smooth curve of the mass.
        equals: groups of equals.
        n_draws: draws of each test.
    """

    layers: NDArray[np.generic]
    mass: Floats
    odds: Floats
    equals: EqualFeatures
    n_draws: int

    @classmethod
    def of(cls, last: pd.DataFrame, equals: EqualFeatures, n_draws: int) -> Ablated:
        """As many features as a run has, and carriers as much heavier than the others."""
        layers, mass = last["hook_name"].to_numpy(dtype=str), last["mass"].to_numpy(dtype=float)
        odds = log_odds(np.log10(np.maximum(mass, 1e-30)), layers, last["carrier"].to_numpy(dtype=bool))
        return cls(layers, mass, odds, equals, n_draws)

    def by_count(self, rng: np.random.Generator, effect: float) -> float:
        """Carriers are any features."""
        labels = rng.permutation(drawn(self.odds, rng))
        return self._p(labels, None, rng, effect)

    def by_mass(self, rng: np.random.Generator, effect: float) -> float:
        """Carriers are heavier, and cost follows mass."""
        return self._p(drawn(self.odds, rng), self.mass, rng, effect)

    def _p(self, labels: Bools, measure: Floats | None, rng: np.random.Generator, effect: float) -> float:
        value = None if measure is None else np.log10(np.maximum(measure, 1e-30))
        strata = strata_of(labels, self.layers, value, block=self.equals.block, caliper=self.equals.caliper)
        if strata.marked.sum() < LEAST_EQUALS or strata.unmatched_share > self.equals.max_unmatched:
            return float("nan")
        cost = self.mass * np.exp(SCATTER * rng.standard_normal(len(labels))) * np.where(labels, 1 + effect, 1.0)
        cost /= cost.sum()

        def joint(chosen: Bools) -> float:
            alone = float(chosen @ cost)
            return alone + 0.5 * alone**2  # what is removed together costs more than the sum

        return exchanged(strata, joint, self.n_draws, rng, measure=measure).null.p


def graph_of(last: pd.DataFrame, edges: pd.DataFrame) -> nx.DiGraph:
    """The container graph of the last checkpoint, from the tables of a run."""
    graph = nx.DiGraph(orientation="container")
    for h, f, count, rate in zip(last["hook_name"], last["feature"], last["count"], last["firing_rate"], strict=True):
        graph.add_node((h, int(f)), count=int(count), firing_rate=float(rate))
    step = last["step"].iloc[0]
    kept = edges[(edges["step"] == step) & (edges["orientation"] == "container")]
    columns = ("source_hook", "source_feature", "target_hook", "target_feature")
    graph.add_edges_from(
        ((a, int(i)), (b, int(j))) for a, i, b, j in zip(*(kept[name] for name in columns), strict=True)
    )
    return graph


def _recruiting(graph: nx.DiGraph, last: pd.DataFrame, equals: EqualFeatures, n_draws: int) -> Any:
    nodes = list(graph)
    log_rate = np.log10([graph.nodes[node]["firing_rate"] for node in nodes])
    layers = np.array([node[0] for node in nodes], dtype=str)
    odds = log_odds(log_rate, layers, last["carrier"].to_numpy(dtype=bool))
    reach = standardised(beside_curve(np.log1p([len(nx.descendants(graph, n)) for n in nodes]), log_rate, layers))

    def p(rng: np.random.Generator, effect: float) -> float:
        labels = drawn(odds + effect * reach, rng)
        carriers: dict[str, list[int]] = {}
        for (h, f), chosen in zip(nodes, labels, strict=True):
            if chosen:
                carriers.setdefault(h, []).append(f)
        return recruitment_null(
            graph,
            carriers,
            n_draws=n_draws,
            n_rewired=0,
            block=equals.rate_block,
            caliper=equals.caliper,
            max_unmatched=equals.max_unmatched,
            seed=int(rng.integers(1 << 31)),
        ).p

    return p


def _told(first: pd.DataFrame, later: Bools, equals: EqualFeatures, n_draws: int) -> Any:
    layers, log_rate = first["hook_name"].to_numpy(dtype=str), np.log10(first["firing_rate"].to_numpy(dtype=float))
    measures = first[["entropy", "strength", "top_token_share"]].to_numpy(dtype=float)
    odds, own = log_odds(log_rate, layers, later), standardised(beside_curve(measures[:, 0], log_rate, layers))

    def p(rng: np.random.Generator, effect: float) -> float:
        return score_null(
            measures,
            log_rate,
            layers,
            drawn(odds + effect * own, rng),
            block=equals.rate_block,
            caliper=equals.caliper,
            n_draws=n_draws,
            seed=int(rng.integers(1 << 31)),
        ).p

    return p


def _surviving(first: pd.DataFrame, reached: Bools, equals: EqualFeatures, n_draws: int) -> Any:
    layers, rate = first["hook_name"].to_numpy(dtype=str), first["firing_rate"].to_numpy(dtype=float)
    entropy = first["entropy"].to_numpy(dtype=float)
    odds, own = log_odds(np.log10(rate), layers, reached), standardised(beside_curve(entropy, np.log10(rate), layers))

    def p(rng: np.random.Generator, effect: float) -> float:
        cohort = Cohort(layers, entropy, rate, drawn(odds + effect * own, rng))
        return survival_at_equal_rate(
            cohort,
            block=equals.rate_block,
            caliper=equals.caliper,
            n_draws=n_draws,
            seed=int(rng.integers(1 << 31)),
        ).p

    return p


def _events(alive: NDArray[np.int64]) -> Callable[[np.random.Generator, float], float]:
    """Births and deaths of each hook point and transition, with a level of its own and noise of its SAEs."""
    before, after = np.maximum(alive[:, :-1], 1), np.maximum(alive[:, 1:], 1)

    def p(rng: np.random.Generator, effect: float) -> float:
        level = rng.uniform(0.2, 0.5, size=(len(alive), 1)) + PAIR_NOISE * rng.standard_normal(before.shape)
        level[:, 0] += effect
        n = before + after
        share = rng.binomial(n, np.clip(level, 0, 1)) / n
        return over_units(share[:, 0] - share[:, 1:].mean(axis=1)).p

    return p


def _matches(alive: NDArray[np.int64]) -> Callable[[np.random.Generator, float], float]:
    """Match rates of each transition and re-match rates within checkpoints, around one level a hook point."""
    n = np.maximum(alive[:, :-1], 1)

    def p(rng: np.random.Generator, effect: float) -> float:
        level = rng.uniform(0.5, 0.9, size=(len(alive), 1))
        rate, floor = (
            rng.binomial(n, np.clip(level - shift + PAIR_NOISE * rng.standard_normal(n.shape), 0, 1)) / n
            for shift in (effect, 0.0)
        )
        return over_units((floor - rate).mean(axis=1)).p

    return p


def _gaps(alive: NDArray[np.int64]) -> Callable[[np.random.Generator, float], float]:
    """Function less direction, of lineages and of a second training, around one level a hook point."""
    n = np.maximum(alive[:, -1], 1)

    def p(rng: np.random.Generator, effect: float) -> float:
        ours, noise = ((0.3 * rng.standard_normal(len(n)) / np.sqrt(n)) for _ in range(2))
        return over_units(ours - noise + PAIR_NOISE * rng.standard_normal(len(n)) + effect).p

    return p


def log_odds(value: Floats, layers: NDArray[np.generic], labels: Bools) -> Floats:
    """Log odds of a label as a smooth curve of a value, each layer with a level of its own."""
    if labels.all() or not labels.any():
        return np.full(len(labels), 0.0)
    design = spline_design(value, layers)
    return LogisticRegression(C=10.0, fit_intercept=False, max_iter=2000).fit(design, labels).decision_function(design)


def drawn(odds: Floats, rng: np.random.Generator) -> Bools:
    """Labels with these log odds."""
    return rng.random(len(odds)) < 1 / (1 + np.exp(-odds))


def standardised(values: Floats) -> Floats:
    """Of mean 0 and standard deviation 1; zeros where nothing varies."""
    spread = float(values.std())
    return (values - values.mean()) / spread if spread > 0 else np.zeros(len(values))

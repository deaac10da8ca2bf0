"""Control sets for the load of carriers: alive non-carriers of equal number, rate or mass (D19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.caliper import CALIPER, N_NEAREST, draw_within_caliper
from tl_lifehist.lifehistory.containment import feature_roles
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.metrics import standardised_difference

Chosen = dict[str, list[int]]
MAX_UNMATCHED = 0.1  # share of carriers without an equal, above which there is no fair control
MAX_SMD = 0.25  # of the matched quantity (ours): beyond it the controls are no equals


@dataclass(frozen=True)
class ControlDraw:
    """One control set and the carriers it stands against."""

    kind: str
    draw: int
    controls: Chosen
    carriers: Chosen
    unmatched_share: float
    subset: bool


def draw_controls(
    profiles: Mapping[str, FeatureProfiles],
    carriers: Mapping[str, Sequence[int]],
    *,
    kind: str,
    n_draws: int = 100,
    seed: int = 0,
    among: Mapping[str, Sequence[int]] | None = None,
    n_nearest: int = N_NEAREST,
    caliper: float = CALIPER,
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> list[ControlDraw]:
    """Control sets of alive non-carriers of the same hook points (D19).

    Args:
        kind: one of `CONTROLS`: "count" draws at random; "rate" and "mass", and others with a measure, draw, for each
            carrier, one without replacement among the `n_nearest` in the logarithm within `caliper`.
        among: candidates by hook point; all alive non-carriers by default.
        n_nearest: nearest candidates that one is drawn from.
        caliper: how far they may lie, in decades.
        min_rate: see `FeatureProfiles.alive`.
        min_count: see `FeatureProfiles.alive`.

    Where carriers are more than half as many as the candidates at a hook point, each draw takes a random half of the
    candidates' number from both sides (ours). A carrier without an equal is left out of that draw on both sides and
    counted as unmatched, as a share of those tried.

    Raises:
        InputError: an unknown kind.

    How it can mislead: control sets of one pool overlap, so their spread, and p with it, is too small when the pool is
    only a few times the carriers.
    """
    control = CONTROLS[kind]
    rng = np.random.default_rng(seed)
    pools: dict[str, NDArray[np.int64]] = {}
    for name, chosen in carriers.items():
        alive = np.flatnonzero(profiles[name].alive(min_rate=min_rate, min_count=min_count))
        pool = alive if among is None else np.intersect1d(alive, np.asarray(among.get(name, []), dtype=np.int64))
        pools[name] = np.setdiff1d(pool, np.asarray(chosen, dtype=np.int64))
    draws = []
    for draw in range(n_draws):
        controls: Chosen = {}
        against: Chosen = {}
        unmatched, tried, subset = 0, 0, False
        for name, chosen in carriers.items():
            wanted = np.asarray(chosen, dtype=np.int64)
            pool = pools[name]
            if len(pool) == 0:
                unmatched, tried = unmatched + len(wanted), tried + len(wanted)
                controls[name], against[name] = [], []
                continue
            if 2 * len(wanted) > len(pool):
                # draws of nearly the whole pool would hardly differ, and a null without spread rejects anything
                subset = True
                wanted = np.sort(rng.permutation(wanted)[: -(-len(pool) // 2)])
            tried += len(wanted)
            if control.measure is None:
                picked = rng.permutation(pool)[: len(wanted)]
                kept = wanted
            else:
                value = np.log10(np.maximum(control.values(profiles[name]), 1e-30))
                found = draw_within_caliper(value[wanted], value[pool], rng, n_nearest=n_nearest, caliper=caliper)
                kept, picked = wanted[found[0]], pool[found[1]]
                unmatched += len(wanted) - len(kept)
            controls[name], against[name] = sorted(picked.tolist()), sorted(kept.tolist())
        draws.append(ControlDraw(kind, draw, controls, against, unmatched / max(tried, 1), subset))
    return draws


def require_carriers(carriers: Mapping[str, Sequence[int]]) -> None:
    """Refuse an empty set: its load is 0 and says nothing."""
    if not any(len(c) for c in carriers.values()):
        raise InputError(
            "The carrier set is empty, so there is nothing to ablate: lower min_snapshots, or use more "
            "or longer-trained checkpoints."
        )


def with_role(graph: nx.DiGraph, role: str) -> Chosen:
    """The features of one role by hook point."""
    chosen: Chosen = {}
    for (name, feature), found in feature_roles(graph).items():
        chosen.setdefault(name, [])
        if found == role:
            chosen[name].append(int(feature))
    return chosen


def balance_of(draws: Sequence[ControlDraw], profiles: Mapping[str, FeatureProfiles]) -> dict[str, float]:
    """Standardised mean differences of log rate and log mass over all draws, carriers minus controls."""
    gaps = {}
    for name, attribute in (("smd_log_rate", "firing_rate"), ("smd_log_mass", "mass")):
        sides = [
            np.concatenate(
                [
                    np.log10(np.maximum(getattr(profiles[h], attribute)[f], 1e-30))
                    for d in draws
                    for h, f in side(d).items()
                ]
                or [np.zeros(0)]
            )
            for side in (lambda d: d.carriers, lambda d: d.controls)
        ]
        gaps[name] = standardised_difference(*sides) if all(len(s) for s in sides) else float("nan")
    return gaps

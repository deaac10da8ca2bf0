"""How often a test rejects in worlds whose truth is known."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

LEVEL = 0.05
COLUMNS = ["id", "effect", "unit", "n_worlds", "n_tested", "rejected", "low", "high"]


@dataclass(frozen=True)
class World:
    """Worlds for one claim.

    Attributes:
        id: of the claim.
        unit: of the effects.
        effects: named sizes at which power is measured.
        p: what the claim's procedure gives in one world, from a generator and an effect; NaN where it is not testable.
    """

    id: str
    unit: str
    effects: tuple[float, ...]
    p: Callable[[np.random.Generator, float], float]


def rejections(
    worlds: Iterable[World], *, n_worlds: int = 200, power: bool = False, level: float = LEVEL, seed: int = 0
) -> pd.DataFrame:
    """How often each claim's test rejects: id, effect (0: there is nothing, so this is the false-positive rate), unit,
    n_worlds, n_tested (not testable ones left out), rejected (share of these), low, high (Wilson, 95 %).

    Args:
        worlds: of each claim.
        n_worlds: worlds of each effect.
        power: also at each world's named effects.
        level: p at which a test rejects.
        seed: of the worlds.
    """
    rows: list[tuple[Any, ...]] = []
    for world in worlds:
        for effect in (0.0, *(world.effects if power else ())):
            rng = np.random.default_rng([seed, zlib.crc32(world.id.encode()), round(1000 * effect)])
            p = np.array([world.p(rng, effect) for _ in range(n_worlds)])
            tested = p[np.isfinite(p)]
            hits, n = int((tested <= level).sum()), len(tested)
            ends = binomtest(hits, n).proportion_ci(method="wilson") if n else None
            bounds = (ends.low, ends.high) if ends is not None else (float("nan"), float("nan"))
            rows.append((world.id, effect, world.unit, n_worlds, n, hits / n if n else float("nan"), *bounds))
    return pd.DataFrame(rows, columns=COLUMNS)


def false_positives(table: pd.DataFrame) -> Mapping[str, float]:
    """The share of rejections without effect, by claim."""
    nothing = table[table["effect"] == 0]
    return dict(zip(nothing["id"], nothing["rejected"], strict=True))

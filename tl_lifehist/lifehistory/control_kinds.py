"""The kinds of control sets that the carriers' joint load stands beside (D19)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tl_lifehist.registry import Registry


@dataclass(frozen=True)
class Control:
    """One kind of control sets.

    Attributes:
        name: what tables call it.
        label: what stands in its place in "removing the carriers costs more than removing ...".
        short: its name in figures.
        measure: of a feature, in which a control is near its carrier: the name of a property of `FeatureProfiles`, or a
            function of one that gives a positive number for each feature. None draws from all.
        by_role: also draw among roots, mids and leaves of the containment graph.
        among_stable: also draw among features that other initial weights find again.
    """

    name: str
    label: str
    short: str
    measure: str | Callable[[Any], Any] | None = None
    by_role: bool = False
    among_stable: bool = False

    @property
    def stream(self) -> int:
        """What tells its random draws from those of other kinds."""
        return {"count": 0, "rate": 1, "mass": 2}.get(self.name, zlib.crc32(self.name.encode()))

    def values(self, profile: Any) -> Any:
        """The measure of every feature of a profile."""
        return getattr(profile, self.measure) if isinstance(self.measure, str) else self.measure(profile)  # type: ignore[misc]


CONTROLS: Registry[Control] = Registry(
    "control",
    {
        "count": Control("count", "as many other features", "same count", by_role=True),
        "rate": Control("rate", "as many features of the same firing rates", "same firing rates", "firing_rate"),
        "mass": Control("mass", "as many features of the same masses", "same masses", "mass", among_stable=True),
    },
)
_PARTS = {
    "count_root": ("as many other roots", "same count, roots"),
    "count_mid": ("as many other mids", "same count, mids"),
    "count_leaf": ("as many other leaves", "same count, leaves"),
    "stable": ("as many seed-stable features of the same masses", "seed-stable, same masses"),
}


def label_of(kind: str) -> str:
    """What stands for a kind, or for a part of one, in a claim."""
    return _PARTS[kind][0] if kind in _PARTS else CONTROLS[kind].label


def short_label_of(kind: str) -> str:
    """The name of a kind, or of a part of one, in figures; the kind itself where it is not known here."""
    if kind in _PARTS:
        return _PARTS[kind][1]
    return CONTROLS[kind].short if kind in CONTROLS else kind

"""The kinds of control sets that the carriers' joint load stands beside (D19)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
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
        tested: it is among the headline claims; the others are described with fewer draws.
        by_role: also draw among roots, mids and leaves of the containment graph.
        among_stable: also draw among features that other initial weights find again.
    """

    name: str
    label: str
    short: str
    measure: str | Callable[[Any], Any] | None = None
    tested: bool = False
    by_role: bool = False
    among_stable: bool = False

    @property
    def stream(self) -> int:
        """What tells its random draws from those of other kinds."""
        return {"count": 0, "rate": 1, "mass": 2}.get(self.name, zlib.crc32(self.name.encode()))

    def of_features(self, profile: Any) -> NDArray[np.float64]:
        """The measure of every feature of a profile, `[feature]`.

        Raises:
            InputError: it gives something else than a positive number, or zero, for each feature.
        """
        found = getattr(profile, self.measure) if isinstance(self.measure, str) else self.measure(profile)  # type: ignore[misc]
        try:
            values = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise self._unusable(profile) from error
        alive = profile.count > 0
        if values.shape != (profile.n_features,) or not (np.isfinite(values[alive]) & (values[alive] >= 0)).all():
            raise self._unusable(profile)
        return np.where(alive, values, 0.0)

    def _unusable(self, profile: Any) -> InputError:
        return InputError(
            f"The measure of the control {self.name!r} must give one number for each of the {profile.n_features} "
            "features of a profile, none below 0."
        )


CONTROLS: Registry[Control] = Registry(
    "control",
    {
        "count": Control("count", "as many features of any kind", "same count", tested=True, by_role=True),
        "rate": Control("rate", "as many features of the same firing rates", "same firing rates", "firing_rate"),
        "mass": Control(
            "mass", "as many features of the same masses", "same masses", "mass", tested=True, among_stable=True
        ),
        "norm": Control("norm", "as many features that remove the same norm", "same removed norm", "removed_norm"),
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

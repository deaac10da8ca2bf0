"""What a smooth curve of one quantity explains of another, within layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import SplineTransformer

N_KNOTS = 5  # ours: quantiles of the quantity

Floats = NDArray[np.float64]


def spline_design(values: Floats, layers: NDArray[np.generic], *, n_knots: int = N_KNOTS) -> Floats:
    """A cubic spline of `values` with knots at its quantiles, and an indicator of each layer, `[row, column]`.

    The columns are not independent: fit them by least squares of least norm, or with a penalty.
    """
    indicators = (layers[:, None] == np.unique(layers)[None]).astype(float)
    if len(np.unique(values)) < 2:
        return indicators
    n_knots = min(n_knots, len(np.unique(np.quantile(values, np.linspace(0, 1, n_knots)))))
    if n_knots < 2:
        return np.concatenate([indicators, values[:, None]], axis=1)
    knots = np.unique(np.quantile(values, np.linspace(0, 1, n_knots)))[:, None]
    curve = SplineTransformer(degree=3, knots=knots, extrapolation="linear")  # type: ignore[arg-type]
    return np.concatenate([indicators, curve.fit_transform(values[:, None])], axis=1)


def beside_curve(quantity: Floats, values: Floats, layers: NDArray[np.generic]) -> Floats:
    """`quantity` less what a smooth curve of `values` explains of it, each layer with a level of its own."""
    if len(quantity) == 0:
        return quantity
    design = spline_design(values, layers)
    return quantity - design @ np.linalg.lstsq(design, quantity, rcond=None)[0]

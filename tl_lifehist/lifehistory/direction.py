"""Does a feature's function settle before its direction? (D16)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions, n_features
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.lineages import Lineages, Profiles
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.metrics import bootstrap_mean

BY_HOOK = ["step", "hook_name", "s_fun", "s_dir", "s_dir_aligned", "n"]
COLUMNS = [
    "step",
    "s_fun",
    "s_fun_low",
    "s_fun_high",
    "s_dir",
    "s_dir_low",
    "s_dir_high",
    "s_dir_aligned",
    "null_fun",
    "null_dir",
    "n",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]


def function_and_direction(
    profiles: Profiles, lineages: Lineages, saes: Any, *, n_draws: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """How alike each lineage is at a checkpoint c and at the end, in what it does and in where it points (D16).

    One row per checkpoint: `s_fun` is the mean Pearson of the two profiles, `s_dir` the mean cosine of what `decode`
    adds for the feature at c and at the end, both over the `n` lineages alive at both; `_low` and `_high` are 95 %
    intervals from `n_draws` bootstrap samples of lineages. `s_dir_aligned` is the mean cosine after the rotation that
    brings the other features of the layer nearest (`aligned_cosines`). `null_fun` and `null_dir` pair each lineage with
    another one of its layer: the mean over all such pairings, in closed form, which random shuffles only estimate. The
    last checkpoint is compared with itself and reads 1.

    How it can mislead: lineages were traced by the similarity of neighbouring profiles, so `s_fun` is high by
    selection, and `s_dir` is not selected at all. SAEs that start from one initialisation share directions whatever the
    model does (compare `init="independent"`), and the residual stream itself turns during training, which lowers
    `s_dir` without any feature having changed; a common turn is what `s_dir_aligned` leaves out.

    Args:
        profiles: `{(step, hook_name): FeatureProfiles}` that the lineages were traced in.
        saes: what `train_saes` returns: `saes.at(step)` gives the SAEs of a checkpoint by hook point.

    Raises:
        InputError: a profile is missing, or SAEs of another number of features than the profiles.
    """
    rows = []
    for step, parts in _compared(profiles, lineages, saes):
        s_fun = _mean_and_interval([p[0] for p in parts.values()], n_draws, seed)
        s_dir = _mean_and_interval([p[1] for p in parts.values()], n_draws, seed)
        sizes = np.array([len(p[0]) for p in parts.values()], dtype=float)
        aligned, null_fun, null_dir = (_pooled(np.array([p[i] for p in parts.values()]), sizes) for i in (2, 3, 4))
        rows.append((step, *s_fun, *s_dir, aligned, null_fun, null_dir, int(sizes.sum())))
    return pd.DataFrame(rows, columns=COLUMNS)


def direction_by_hook(profiles: Profiles, lineages: Lineages, saes: Any) -> pd.DataFrame:
    """`function_and_direction` for each hook point alone: step, hook_name, s_fun, s_dir, s_dir_aligned, n."""
    rows = [
        (step, h, float(fun.mean()), float(direction.mean()), aligned, len(fun))
        for step, parts in _compared(profiles, lineages, saes)
        for h, (fun, direction, aligned, *_) in parts.items()
    ]
    return pd.DataFrame(rows, columns=BY_HOOK)


def aligned_cosines(a: Floats, b: Floats, *, n_folds: int = 5, seed: int = 0) -> Floats:
    """Cosine of each row of `a` with its row of `b` after the rotation that brings the *other* rows nearest
    (orthogonal Procrustes), so that a turn of the whole basis is no change of direction.

    The rotation is fitted with the identity as one further row per dimension, so that it turns only what the rows show
    to be turned.

    Args:
        a: unit rows, `[feature, d_model]`.
        b: unit rows, paired with those of `a`.
        n_folds: parts of which each is turned by what the others say.
        seed: deals the rows into parts.
    """
    n, d = a.shape
    cosine = np.zeros(n)
    part = np.random.default_rng(seed).permutation(n) % min(n_folds, max(n, 1))
    for number in np.unique(part):
        left_out = part == number
        u, _, v = np.linalg.svd(a[~left_out].T @ b[~left_out] + np.eye(d))
        cosine[left_out] = ((a[left_out] @ (u @ v)) * b[left_out]).sum(axis=1)
    return cosine


def _compared(
    profiles: Profiles, lineages: Lineages, saes: Any
) -> Iterator[tuple[int, dict[str, tuple[Floats, Floats, float, float, float]]]]:
    """For each checkpoint and hook point: Pearson and cosine of each lineage, the mean aligned cosine, and the means
    over other pairings.
    """
    last = lineages.steps[-1]
    table = lineages.to_dataframe()[["lineage", "hook_name", "step", "feature"]]
    pairs = table.merge(table[table["step"] == last][["lineage", "feature"]], on="lineage", suffixes=("", "_end"))
    saes_end = saes.at(last)
    for step in lineages.steps:
        saes_now, found = saes.at(step), {}
        for name in lineages.hook_names:
            here = pairs[(pairs["step"] == step) & (pairs["hook_name"] == name)]
            if here.empty:
                continue
            now, end = here["feature"].to_numpy(), here["feature_end"].to_numpy()
            pearson, mean_pearson = _paired_pearson(_get(profiles, step, name), now, _get(profiles, last, name), end)
            a = _unit_rows(saes_now, name, now, profiles[step, name])
            b = _unit_rows(saes_end, name, end, profiles[last, name])
            cosine = (a * b).sum(axis=1)
            others = _other_pairs(float(a.mean(axis=0) @ b.mean(axis=0)), cosine)
            aligned = float(aligned_cosines(a, b).mean())
            found[name] = (pearson, cosine, aligned, _other_pairs(mean_pearson, pearson), others)
        yield step, found


def _get(profiles: Profiles, step: int, name: str) -> FeatureProfiles:
    if (step, name) not in profiles:
        raise InputError(f"There is no profile for step {step} at {name!r}: give the profiles the lineages are from.")
    return profiles[step, name]


def _paired_pearson(a: FeatureProfiles, now: Ints, b: FeatureProfiles, end: Ints) -> tuple[Floats, float]:
    """Pearson of each pair of columns, and its mean over all combinations of the two sides; constants count 0."""
    if a.n_rows != b.n_rows:
        raise InputError(f"The profiles cover {a.n_rows} and {b.n_rows} rows: compute both on the same tokens.")
    n = a.n_rows
    x, y = (sp.csc_array(p.acts[:, f], dtype=np.float64) for p, f in ((a, now), (b, end)))
    mean_x, mean_y = (np.asarray(m.sum(axis=0)).ravel() / n for m in (x, y))
    inverse_x, inverse_y = _inverse_norm(x, mean_x), _inverse_norm(y, mean_y)
    product = np.asarray(x.multiply(y).sum(axis=0)).ravel() - n * mean_x * mean_y
    pearson = np.clip(product * inverse_x * inverse_y, -1.0, 1.0)
    # The mean over all combinations is the product of the mean standardised profiles
    total_x = x @ inverse_x - mean_x @ inverse_x
    total_y = y @ inverse_y - mean_y @ inverse_y
    return pearson, float(total_x @ total_y) / len(now) ** 2


def _inverse_norm(matrix: sp.csc_array, mean: Floats) -> Floats:
    square = np.asarray(matrix.power(2).sum(axis=0)).ravel()
    centred = square - matrix.shape[0] * mean**2
    # What rounding leaves of a constant profile's variance is far below this share of its square
    varies = centred > 1e-10 * np.maximum(square, 1e-300)
    return np.where(varies, 1 / np.sqrt(np.where(varies, centred, 1.0)), 0.0)


def _unit_rows(saes: Mapping[str, Dictionary], name: str, features: Ints, profile: FeatureProfiles) -> Floats:
    if name not in saes or n_features(saes[name]) != profile.n_features:
        raise InputError(
            f"There is no SAE with {profile.n_features} features for {name!r} at step {profile.step}: "
            "give the SAEs that the profiles were computed with."
        )
    rows = decoder_directions(saes[name], features.tolist())
    return torch.nn.functional.normalize(rows.double(), dim=1).cpu().numpy()


def _other_pairs(mean_of_all: float, own: Floats) -> float:
    """The mean over all combinations without each lineage's own; NaN for a lineage that is alone in its layer."""
    n = len(own)
    return (mean_of_all * n**2 - float(own.sum())) / (n * (n - 1)) if n > 1 else float("nan")


def _mean_and_interval(parts: list[Floats], n_draws: int, seed: int) -> tuple[float, float, float]:
    if not parts:
        return float("nan"), float("nan"), float("nan")
    values = np.concatenate(parts)
    return float(values.mean()), *bootstrap_mean(values, np.arange(len(values)), n_draws=n_draws, seed=seed)


def _pooled(values: Floats, sizes: Floats) -> float:
    kept = np.isfinite(values)
    return float(np.average(values[kept], weights=sizes[kept])) if kept.any() else float("nan")

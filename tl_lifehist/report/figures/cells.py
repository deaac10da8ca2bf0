"""What figures and sections of a sufficiency run share: cells, names and colours of masks, spreads over cells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.palette import CONTROL, INK
from tl_lifehist.report.figures.style import plain, step_label, whiskers
from tl_lifehist.sufficiency.target_kinds import TARGETS

CELL = ["step", "hook_name", "method"]
NULLS = ("top_variance", "tau_ranked", "fisher_diagonal", "random")
SCORES = ["soft_mass", "nmse", "kl", "relative_kl", "lost_fraction", "accuracy_drop"]
LABELS = {
    "top_variance": "top variance",
    "tau_ranked": "tau-ranked",
    "fisher_diagonal": "Fisher diagonal",
    "soft_mass": "soft mass",
    "nmse": "NMSE",
    "kl": "KL",
    "relative_kl": "relative KL",
    "lost_fraction": "lost fraction",
    "accuracy_drop": "accuracy drop",
    "enrichment_tau": "enrichment, tau",
    "enrichment_omega": "enrichment, omega",
    "enrichment_curvature": "enrichment, curvature",
    "clean_entropy": "clean entropy",
    "identity": "not aligned",
    "procrustes": "Procrustes",
    "n_components": "components",
    "center_codes": "centred codes",
    "relative_to": "relative to",
}


def label(name: object) -> str:
    """A mask, null, method or quantity for a reader; escaped, for plotly and for HTML alike."""
    for registry in (TARGETS, METHODS):
        if name in registry:
            return plain(registry[str(name)].label)
    return LABELS.get(str(name)) or plain(name)


def colour_of(mask: str) -> str:
    """The colour of a target's mask; of the full and the empty one that of frames and of controls."""
    return TARGETS[mask].colour if mask in TARGETS else CONTROL if mask == "empty" else INK


def symbol_of(method: str) -> str:
    """The marker of a method."""
    return METHODS[method].symbol if method in METHODS else "circle"


def masks_in(values: Iterable[object]) -> list[str]:
    """Distinct masks: targets in the order of their registry, then full and empty, then others."""
    return in_order(values, (*TARGETS, "full", "empty"))


def in_order(values: Iterable[object], order: Collection[str]) -> list[str]:
    """Distinct values: those of `order` first and in that order, the others as they appear."""
    found = list(dict.fromkeys(str(value) for value in values if isinstance(value, str)))
    return [name for name in dict.fromkeys(order) if name in found] + [name for name in found if name not in order]


def sites_of(table: pd.DataFrame) -> list[str]:
    """Sites in order of appearance. Nothing is ever averaged over two of them."""
    return in_order(table["site"], ())


def at(table: pd.DataFrame, site: str) -> pd.DataFrame:
    """The rows of one site."""
    return table[table["site"] == site]


def flags(values: pd.Series) -> pd.Series:
    """Yes and no as bool; what is missing is no."""
    return values.astype("boolean").fillna(False).astype(bool)


def first_seed(table: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """The first row for each cell and `keys`, which is that of the study's first seed; others are for stability."""
    return table.drop_duplicates([*CELL, *keys])


def over_draws(nulls: pd.DataFrame, columns: Sequence[str] = SCORES) -> pd.DataFrame:
    """Control masks with one row for each cell, target and kind: the mean over their draws."""
    keys = [*CELL, "site", "layer", "target", "kind"]
    return nulls.groupby(keys, sort=False, dropna=False)[list(columns)].mean().reset_index()


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over the cells that have a value, and their number."""

    median: float
    low: float
    high: float
    n: int


def spread(values: pd.Series) -> Spread:
    """The spread of the values that are there; NaN and 0 cells where there is none."""
    found = pd.to_numeric(values, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    found = found[np.isfinite(found)]
    if not len(found):
        return Spread(np.nan, np.nan, np.nan, 0)
    low, median, high = (float(x) for x in np.quantile(found, [0.25, 0.5, 0.75]))
    return Spread(median, low, high, len(found))


@dataclass(frozen=True, eq=False)
class MaskRows:
    """The scores of one kind of mask at one site.

    Attributes:
        name: a target, "full", "empty", or a kind of control mask.
        label: for a reader, escaped.
        matched: the target whose soft mass the control masks have; empty for a mask of its own.
        scores: one row per cell.
    """

    name: str
    label: str
    matched: str
    scores: pd.DataFrame


def mask_rows(evaluation: pd.DataFrame, nulls: pd.DataFrame, site: str) -> list[MaskRows]:
    """Masks of one site, each target first, then full and empty, then control masks as heavy as the downstream mask's
    (or the first target's, where no downstream mask was fitted)."""
    here = first_seed(at(evaluation, site), "mask")
    rows = [MaskRows(name, label(name), "", here[here["mask"] == name]) for name in masks_in(here["mask"])]
    drawn = over_draws(at(nulls, site))
    targets = in_order(drawn["target"], ("downstream", *TARGETS))
    if targets:
        drawn = drawn[drawn["target"] == targets[0]]
        rows += [
            MaskRows(kind, label(kind), targets[0], drawn[drawn["kind"] == kind])
            for kind in in_order(drawn["kind"], NULLS)
        ]
    return rows


def beside_nulls(evaluation: pd.DataFrame, nulls: pd.DataFrame, site: str) -> pd.DataFrame:
    """Each target's mask over its controls, cell by cell.

    Returns:
        One row for each cell, target and control ("empty" and the kinds of `nulls`): target, kind, measure and ratio,
        the measure of the mask over that of its control. The measure is NMSE for the reconstruction mask and KL for
        the others. NaN where one of them is missing or the control's is zero.
    """
    here = first_seed(at(evaluation, site), "mask")
    masks = here[~here["mask"].isin(["full", "empty"])]
    empty = here[here["mask"] == "empty"]
    empties = [empty.assign(target=target, kind="empty") for target in in_order(masks["mask"], TARGETS)]
    controls = pd.concat([*empties, over_draws(at(nulls, site))], ignore_index=True) if len(masks) else nulls.iloc[:0]
    pairs = masks.rename(columns={"mask": "target"}).merge(controls, on=[*CELL, "target"], suffixes=("", "_null"))
    own = pairs["target"] == "reconstruction"
    top, bottom = (np.where(own, pairs[f"nmse{end}"], pairs[f"kl{end}"]).astype(float) for end in ("", "_null"))
    ratio = np.divide(top, bottom, out=np.full(len(pairs), np.nan), where=bottom > 0)
    measure = np.where(own, "NMSE", "KL")
    return pairs[[*CELL, "target", "kind"]].assign(measure=measure, ratio=ratio)


def median_line(
    fig: go.Figure,
    table: pd.DataFrame,
    column: str,
    name: str,
    colour: str,
    *,
    dash: str = "solid",
    symbol: str = "circle",
    row: int = 1,
) -> None:
    """Add medians by checkpoint as a line, with quartiles as whiskers."""
    if table.empty:
        return
    by_step = table.groupby("step")[column]
    low, middle, high = (by_step.quantile(q) for q in (0.25, 0.5, 0.75))
    fig.add_scatter(
        x=[step_label(step) for step in middle.index],
        y=middle,
        name=name,
        mode="lines+markers",
        line={"color": colour, "width": 2, "dash": dash},
        marker={"size": 6, "symbol": symbol},
        error_y=whiskers(middle, low, high, colour),
        hovertemplate=f"{name}, step %{{x}}: %{{y:.3g}}<extra></extra>",
        row=row,
        col=1,
    )

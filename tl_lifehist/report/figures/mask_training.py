"""Figures of masks over training: transfer to the end, anisotropy, senders and receivers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.palette import CONTROL, INK, MEASURED, SECOND, THIRD
from tl_lifehist.report.figures.cells import at, in_order, label, median_line
from tl_lifehist.report.figures.style import step_axis, step_label, styled, titles_below_legend

CONTROLS: dict[str, dict[str, Any]] = {
    "aligned": {"line": {"color": MEASURED, "width": 2.5}, "mode": "lines+markers", "marker": {"size": 6}},
    "procrustes": {"line": {"color": SECOND, "width": 2}, "mode": "lines"},
    "dictionary": {"line": {"color": THIRD, "width": 2}, "mode": "lines"},
    "shuffled": {"line": {"color": CONTROL, "width": 2, "dash": "dot"}, "mode": "lines"},
    "identity": {"line": {"color": INK, "width": 1.5, "dash": "longdash"}, "mode": "lines"},
}
OTHER: dict[str, Any] = {"line": {"color": INK, "width": 1.5, "dash": "dash"}, "mode": "lines"}


def transfer_curves(
    transfer: pd.DataFrame, site: str, quantity: str = "relative_kl", masks: tuple[str, str] = ("full", "empty")
) -> go.Figure:
    """How well a checkpoint's masked reconstruction, aligned to the final one, stands in for the final activation.

    One panel per method; x is the source checkpoint, y a median over layers (formula 16). In colour: the first of
    `masks` under each way of aligning. Grey dotted: the alignment fitted to shuffled rows. Grey dashed: the second of
    `masks`, aligned. Long dashes: no alignment at all.

    How it can mislead: an alignment with as many coefficients as it has rows to learn from can carry anything;
    the shuffled rows bound that. A curve that only follows the empty mask's says nothing of the components.

    Args:
        transfer: step, hook_name, site, method, mask, control, and `quantity`.
        site: the only one that is shown.
        quantity: "relative_kl", "kl" or "nmse".
        masks: the mask that is shown, and the one that is its null.
    """
    here = at(transfer, site)
    methods = in_order(here["method"], METHODS)
    cols = 2 if len(methods) > 1 else 1
    rows = max(-(-len(methods) // cols), 1)
    fig = make_subplots(
        rows=rows,
        cols=cols,
        shared_xaxes="all",  # pyright: ignore[reportArgumentType]
        shared_yaxes="all",  # pyright: ignore[reportArgumentType]
        subplot_titles=[label(m) for m in methods] or None,
        horizontal_spacing=0.05,
        vertical_spacing=0.14,
    )
    shown, null = masks
    lines = [(shown, control, CONTROLS.get(control, OTHER)) for control in in_order(here["control"], tuple(CONTROLS))]
    dashed = {"line": {"color": CONTROL, "width": 2, "dash": "dash"}, "mode": "lines"}
    for i, method in enumerate(methods):
        for mask, control, style in [*lines, (null, "aligned", dashed)]:
            chosen = (here["method"] == method) & (here["control"] == control) & (here["mask"] == mask)
            by_step = here[chosen].groupby("step")[quantity].median()
            name = label(control) if mask == shown else f"{label(mask)} mask, aligned"
            fig.add_scatter(
                x=[step_label(step) for step in by_step.index],
                y=by_step,
                name=name,
                legendgroup=name,
                showlegend=i == 0,
                cliponaxis=False,
                hovertemplate=f"{name}, step %{{x}}: %{{y:.3g}}<extra></extra>",
                row=i // cols + 1,
                col=i % cols + 1,
                **style,
            )
    step_axis(fig, list(here["step"]))
    fig.update_xaxes(title_text="source step", row=rows)
    fig.update_yaxes(title_text=f"transfer {label(quantity)}", rangemode="tozero", col=1)
    height = 130 + 190 * rows
    fig = styled(fig, height, title=f"Transfer {label(quantity)} at {site}", heading=site)
    return titles_below_legend(fig, 26, height)


def anisotropy(anisotropy: pd.DataFrame, site: str) -> go.Figure:
    """How few directions the readout depends on, over training at one site (formula 18).

    Above: participation ratios of the downstream and of the fixed head's gate Fisher. Below: the Gini coefficient of
    tau, and dotted the same under permuted labels. Lines are medians over layers and methods, whiskers quartiles.

    How it can mislead: a participation ratio estimated from few sequences is at most their number, and a Gini
    coefficient above its null at step 0 belongs to the architecture and the text, not to training.

    Args:
        anisotropy: step, site, participation_ratio, participation_fixed_head, gini_tau, gini_null.
        site: the only one that is shown.
    """
    here = at(anisotropy, site)
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07)
    for column, name, colour, dash, row in (
        ("participation_ratio", "downstream Fisher", MEASURED, "solid", 1),
        ("participation_fixed_head", "fixed head's Fisher", THIRD, "solid", 1),
        ("gini_tau", "Gini of tau", SECOND, "solid", 2),
        ("gini_null", "labels permuted", CONTROL, "dot", 2),
    ):
        median_line(fig, here, column, name, colour, dash=dash, row=row)
    step_axis(fig, list(here["step"]))
    fig.update_yaxes(title_text="participation ratio", rangemode="tozero", row=1)
    fig.update_yaxes(title_text="Gini of tau", rangemode="tozero", row=2)
    fig.update_xaxes(title_text="step", row=2)
    return styled(fig, 500, title=f"Anisotropy at {site}", heading=site)


def sender_receiver(anisotropy: pd.DataFrame, site: str) -> go.Figure:
    """Overlap of the fixed-head and the downstream mask over training at one site, with its null: a hypothesis.

    The published reading is that what an early readout finds and what later layers use come apart or together in
    training. Median over layers and methods, whiskers quartiles; dotted, random masks of the same soft masses.

    How it can mislead: two large masks overlap by their size; two optimisations of one model agree for many reasons.

    Args:
        anisotropy: step, site, mask_overlap, overlap_null.
        site: the only one that is shown.
    """
    here = at(anisotropy, site)
    fig = make_subplots(rows=1, cols=1)
    median_line(fig, here, "mask_overlap", "fixed head and downstream", MEASURED)
    median_line(fig, here, "overlap_null", "random, same masses", CONTROL, dash="dot")
    step_axis(fig, list(here["step"]))
    fig.update_yaxes(title_text="overlap of masks", rangemode="tozero")
    fig.update_xaxes(title_text="step")
    return styled(fig, 330, title=f"Senders and receivers at {site}", heading=site)

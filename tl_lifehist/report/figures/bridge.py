"""The figure of the bridge between the studies: carriers of a life history in downstream masks."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.palette import CARRIER, CONTROL, FAINT
from tl_lifehist.report.figures.cells import at, in_order
from tl_lifehist.report.figures.style import hook_labels, step_axis, step_label, styled, titles_below_legend

CAPTION = "Mean gate of the carriers over the mean gate of the alive features."


def carrier_masks(carriers: pd.DataFrame, site: str) -> go.Figure:
    """Do downstream masks over the SAE's features select the carriers: mean gate of carriers over that of the alive.

    `against` is drawn: the carriers that stand against the matched sets, which are all of them, or random halves where
    carriers are more than half of the candidates. One row of panels per hook point, with the SAE's error kept and
    without it. Grey: 95 % of sets matched by mass.

    How it can mislead: carriers are broad, and broad features are selected for their mass; only what lies above the
    grey band is more than that.

    Args:
        carriers: step, hook_name, site, keep_error, against, low, high, p.
        site: the only one that is shown.
    """
    here = at(carriers, site).sort_values("step", kind="stable")
    kept = sorted({bool(flag) for flag in here["keep_error"].dropna()}, reverse=True)
    hooks = in_order(here["hook_name"], ())
    labels = hook_labels(hooks)
    panels = [(flag, hook) for flag in kept for hook in hooks]
    rows = max(len(hooks), 1)
    titles = [f"error {'kept' if flag else 'dropped'}" for flag in kept]
    fig = make_subplots(
        rows=rows,
        cols=max(len(kept), 1),
        shared_xaxes=True,
        shared_yaxes=True,
        subplot_titles=titles or None,
        horizontal_spacing=0.05,
        vertical_spacing=0.12 / rows,
    )
    for i, (flag, hook) in enumerate(panels):
        own = here[(here["hook_name"] == hook) & (here["keep_error"].astype(bool) == flag)]
        x = [step_label(step) for step in own["step"]]
        common = {"x": x, "row": hooks.index(hook) + 1, "col": kept.index(flag) + 1}
        edge = {"mode": "lines", "line": {"width": 0, "color": CONTROL}, "hoverinfo": "skip"}
        fig.add_scatter(y=own["low"], showlegend=False, **edge, **common)
        fig.add_scatter(
            y=own["high"],
            fill="tonexty",
            fillcolor=FAINT,
            name="same mass, 95 %",
            legendgroup="null",
            showlegend=i == 0,
            **edge,
            **common,
        )
        fig.add_scatter(
            y=own["against"],
            mode="lines+markers",
            line={"color": CARRIER, "width": 2.5},
            name="carriers",
            legendgroup="carriers",
            showlegend=i == 0,
            customdata=own["p"],
            hovertemplate="step %{x}: %{y:.3g}, p = %{customdata:.2g}<extra></extra>",
            **common,
        )
    step_axis(fig, list(here["step"]))
    fig.update_yaxes(rangemode="tozero")
    for row, hook in enumerate(hooks, start=1):
        fig.update_yaxes(title_text=labels[hook], row=row, col=1)
    fig.update_xaxes(title_text="step", row=rows)
    height = 150 + 110 * rows
    fig = styled(fig, height, title=f"Carriers in downstream masks at {site}", heading=site, caption=CAPTION)
    return titles_below_legend(fig, 26, height)

"""Figures of the penalty sweep: what is lost against how much is kept, and when a small mask becomes sufficient."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.palette import CONTROL, FAINT, MEASURED, SECOND
from tl_lifehist.report.figures.cells import CELL, at, flags, in_order, label, median_line, symbol_of
from tl_lifehist.report.figures.style import SHARES, figure, hook_labels, step_axis, step_label, styled

SUFFICIENT = 0.1  # formula 18: a mask is sufficient where it loses at most this share of what mean ablation loses
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def frontier(frontier: pd.DataFrame, site: str, step: int | None = None) -> go.Figure:
    """Lost fraction against soft mass over the sweep of the penalty, at one site and checkpoint (formula 5).

    Thin: each layer and method. Thick: medians by penalty, the penalty of the study as a diamond. Dashed: masks of the
    same soft mass that take the components by variance. Dotted: the line of formula 18.

    How it can mislead: a curve that lies on the dashed one says that variance alone finds as good a mask. A
    curve that stays above the dotted line cannot be sufficient with this dictionary at any mass.

    Args:
        frontier: step, hook_name, site, method, penalty, soft_mass, lost_fraction, operating, variance_lost_fraction.
        site: the only one that is shown.
        step: the checkpoint; the last one by default.
    """
    here = at(frontier, site)
    last = step if step is not None or here.empty else int(here["step"].max())
    here = here[here["step"] == last].sort_values("penalty", kind="stable")
    labels = hook_labels(in_order(here["hook_name"], ()))
    heading = f"{site}, step {step_label(last or 0)}"
    fig = figure(420, title=f"Frontier at {heading}", heading=heading)
    for i, ((_, hook, method), cell) in enumerate(here.groupby(CELL, sort=False)):
        fig.add_scatter(
            x=cell["soft_mass"],
            y=cell["lost_fraction"],
            mode="lines",
            line={"color": MEASURED, "width": 1},
            opacity=0.3,
            name="each layer and method",
            legendgroup="cells",
            showlegend=i == 0,
            customdata=cell["penalty"],
            hovertemplate=f"{labels.get(str(hook), '')}, {label(method)}<br>penalty %{{customdata:.2g}}: mass "
            f"%{{x:.1%}}, "
            "lost %{y:.3f}<extra></extra>",
        )
    median = here.groupby("penalty")[["soft_mass", "lost_fraction", "variance_lost_fraction"]].median()
    fig.add_scatter(
        x=median["soft_mass"],
        y=median["variance_lost_fraction"],
        mode="lines",
        line={"color": CONTROL, "width": 2, "dash": "dash"},
        name="top variance, same mass",
        hovertemplate="top variance: mass %{x:.1%}, lost %{y:.3f}<extra></extra>",
    )
    fig.add_scatter(
        x=median["soft_mass"],
        y=median["lost_fraction"],
        mode="lines+markers",
        line={"color": MEASURED, "width": 2.5},
        marker={"size": 5},
        customdata=median.index,
        name="downstream, median",
        hovertemplate="penalty %{customdata:.2g}: mass %{x:.1%}, lost %{y:.3f}<extra></extra>",
    )
    chosen = median[median.index.isin(here.loc[flags(here["operating"]), "penalty"])]
    fig.add_scatter(
        x=chosen["soft_mass"],
        y=chosen["lost_fraction"],
        mode="markers",
        marker={"symbol": "diamond", "size": 13, "color": MEASURED},
        name="the study's penalty",
        hovertemplate="the study's penalty: mass %{x:.1%}, lost %{y:.3f}<extra></extra>",
    )
    fig.add_hline(y=SUFFICIENT, line={"color": CONTROL, "dash": "dot", "width": 1.5})  # pyright: ignore[reportArgumentType]
    fig.update_xaxes(title_text="soft mass", tickformat=SHARES, rangemode="tozero")
    return fig.update_yaxes(title_text="lost fraction", rangemode="tozero")


def onset(onset: pd.DataFrame, site: str) -> go.Figure:
    """When a small mask becomes sufficient: the least sufficient soft mass by checkpoint at one site (formula 18).

    Above: a point is one layer and method, the line the median over those that have an onset. In the middle: the share
    that has one. Below: what the full mask loses, with the dotted line that it must be under for an onset to exist.

    How it can mislead: a falling median may come from cells that enter, not from masks that shrink: read it beside the
    share. Where the full mask fails there is no onset, whatever the model does.

    Args:
        onset: step, hook_name, site, method, onset, full_lost_fraction.
        site: the only one that is shown.
    """
    here = at(onset, site).sort_values("step", kind="stable")
    fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.05, row_heights=[0.5, 0.2, 0.3])
    labels = hook_labels(in_order(here["hook_name"], ()))
    for method in in_order(here["method"], METHODS):
        own = here[(here["method"] == method) & here["onset"].notna()]
        fig.add_scatter(
            x=[step_label(step) for step in own["step"]],
            y=own["onset"],
            mode="markers",
            marker={"color": MEASURED, "size": 6, "opacity": 0.5, "symbol": symbol_of(method)},
            name=label(method),
            customdata=[labels[str(hook)] for hook in own["hook_name"]],
            hovertemplate=f"%{{customdata}}, {label(method)}, step %{{x}}: %{{y:.1%}}<extra></extra>",
            row=1,
            col=1,
        )
    by_step = here.groupby("step")
    x = [step_label(int(step)) for step in by_step["onset"].median().index]
    line = {"color": MEASURED, "width": 2.5}
    median = by_step["onset"].median()
    label_ = "step %{x}: %{y:.1%}<extra></extra>"
    fig.add_scatter(x=x, y=median, mode="lines", line=line, name="median", hovertemplate=label_, row=1, col=1)
    share = here["onset"].notna().groupby(here["step"]).mean().astype(float)
    fig.add_bar(x=x, y=share, marker={"color": FAINT}, showlegend=False, hovertemplate=label_, row=2, col=1)
    median_line(fig, here, "full_lost_fraction", "full mask", SECOND, row=3)
    fig.add_hline(y=SUFFICIENT, line={"color": CONTROL, "dash": "dot", "width": 1.5}, row=3, col=1)  # pyright: ignore[reportArgumentType]
    step_axis(fig, list(here["step"]))
    fig.update_yaxes(title_text="onset, soft mass", tickformat=SHARES, range=[0, 1.03], row=1)
    fig.update_yaxes(title_text="with onset", tickformat=SHARES, range=[0, 1.03], nticks=3, row=2)
    fig.update_yaxes(title_text="full mask loses", rangemode="tozero", row=3)
    fig.update_xaxes(title_text="step", row=3)
    return styled(fig, 560, title=f"Onset of sufficiency at {site}", heading=site)

"""The figure of correlations with training and with depth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.palette import CONTROL, MEASURED, SECOND
from tl_lifehist.report.figures.cells import at, flags, in_order, label
from tl_lifehist.report.figures.style import styled, titles_below_legend


def trajectories(trajectories: pd.DataFrame, site: str, mask: str = "downstream") -> go.Figure:
    """Spearman correlations with training progress and with depth for one mask at one site (formula 17).

    Filled where a trajectory is claimed. Blue: over all cells together; green: mean within strata; both with 95 %
    intervals. Grey: the pooled correlation of the empty mask (x) and of the full mask (square) in the same quantity, of
    the mask's KL in nats (diamond) and of the entropy of the clean predictions (triangle).

    How it can mislead: relative KL is divided by an entropy that itself moves in training. A coloured mark that lies on
    the grey ones belongs to the normaliser, not to the mask.

    Args:
        trajectories: site, mask, quantity, against, pooled and stratified with low and high, empty, full,
            absolute_kl, clean_entropy, claimed.
        site: the only one that is shown.
        mask: the only one that is shown.
    """
    here = at(trajectories, site)
    here = here[here["mask"] == mask]
    against = in_order(here["against"], ("checkpoint", "depth"))
    rows = max(len(against), 1)
    titles = [f"against {label(name)}" for name in against]
    fig = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=titles or None)
    longest = 1
    for row, name in enumerate(against, start=1):
        own = here[here["against"] == name]
        longest = max(longest, len(own))
        place = np.arange(len(own))
        claimed = flags(own["claimed"])
        legend = {"showlegend": row == 1, "row": row, "col": 1}
        for column, title, colour, shift in (
            ("pooled", "pooled", MEASURED, -0.14),
            ("stratified", "within strata", SECOND, 0.14),
        ):
            value, low, high = (own[c].to_numpy(dtype=float) for c in (column, f"{column}_low", f"{column}_high"))
            error = {"type": "data", "symmetric": False, "array": high - value, "arrayminus": value - low}
            symbols = ["circle" if yes else "circle-open" for yes in claimed]
            fig.add_scatter(
                x=value,
                y=place + shift,
                mode="markers",
                name=title,
                legendgroup=column,
                marker={"color": colour, "size": 10, "symbol": symbols},
                error_x=error | {"color": colour, "thickness": 1.5, "width": 3},
                customdata=["claimed" if yes else "not claimed" for yes in claimed],
                hovertemplate=f"{title}: %{{x:.2f}}, %{{customdata}}<extra></extra>",
                **legend,
            )
        for column, title, symbol in (
            ("empty", "empty mask", "x-thin-open"),
            ("full", "full mask", "square-open"),
            ("absolute_kl", "KL in nats", "diamond-open"),
            ("clean_entropy", "clean entropy", "triangle-up-open"),
        ):
            fig.add_scatter(
                x=own[column].astype(float),
                y=place + 0.36,
                mode="markers",
                name=title,
                legendgroup=column,
                marker={"color": CONTROL, "size": 8, "symbol": symbol, "line": {"width": 1.8, "color": CONTROL}},
                hovertemplate=f"{title}: %{{x:.2f}}<extra></extra>",
                **legend,
            )
        ticks = {"tickvals": list(place), "ticktext": [label(q) for q in own["quantity"]]}
        fig.update_yaxes(range=[len(own) - 0.4, -0.6], showgrid=False, row=row, **ticks)
    fig.add_vline(x=0, line={"color": CONTROL, "dash": "dot", "width": 1.5}, layer="below")  # pyright: ignore[reportArgumentType]
    fig.update_xaxes(range=[-1.08, 1.08], dtick=0.5)
    fig.update_xaxes(title_text="Spearman correlation", row=rows)
    heading = f"{site}, {label(mask)} mask"
    height = 150 + rows * (40 + 44 * longest)
    fig = styled(fig, height, title=f"Trajectories at {heading}", heading=heading)
    return titles_below_legend(fig, 26, height)

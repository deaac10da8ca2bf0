"""Figures of masks at one site: how small and how sufficient, every mask under every metric, checkpoint by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.palette import CONTROL, INK
from tl_lifehist.report.figures.cells import at, colour_of, first_seed, in_order, label, mask_rows, masks_in, spread
from tl_lifehist.report.figures.style import (
    SHARES,
    figure,
    share_label,
    short,
    step_axis,
    step_label,
    styled,
    told_apart,
    whiskers,
)
from tl_lifehist.sufficiency.target_kinds import TARGETS

METRICS = {
    "nmse": "NMSE",
    "relative_kl": "relative<br>KL",
    "lost_fraction": "lost<br>fraction",
    "accuracy_drop": "accuracy<br>drop, pp",
    "fixed_head_relative_kl": "fixed<br>head KL",
    "transfer_nmse": "transfer<br>NMSE",
    "transfer_relative_kl": "transfer<br>KL",
}
TINTS = [[0, "rgba(67, 137, 208, 0.06)"], [1, "rgba(67, 137, 208, 0.6)"]]  # text stays readable on all of it
GAP = 0.03  # between the columns of maps
SHADES = [[0, "rgba(67, 137, 208, 0.08)"], [1, "rgba(67, 137, 208, 1)"]]


def mask_summary(evaluation: pd.DataFrame, nulls: pd.DataFrame, site: str) -> go.Figure:
    """Soft mass, relative KL and lost fraction of every mask at one site, beside masks of equal mass (formulas 4, 9).

    A mark is the median over the cells (checkpoint, layer, method), a whisker the quartiles. Grey: the empty mask, and
    control masks as heavy as the downstream mask.

    How it can mislead: a small relative KL says nothing where the empty mask's is small too; the lost fraction says
    how much of what mean ablation costs is still lost.

    Args:
        evaluation: step, hook_name, site, method, mask, seed, and the scores.
        nulls: step, hook_name, site, layer, method, target, kind, and the scores.
        site: the only one that is shown.
    """
    rows = mask_rows(evaluation, nulls, site)
    columns = {"soft_mass": "soft mass", "relative_kl": "relative KL", "lost_fraction": "lost fraction"}
    fig = make_subplots(rows=1, cols=len(columns), shared_yaxes=True, horizontal_spacing=0.07)
    names = [f"{row.label},<br>same mass" if row.matched else row.label for row in rows]
    for i, (row, name) in enumerate(zip(rows, names, strict=True)):
        colour = CONTROL if row.matched else colour_of(row.name)
        for col, (column, title) in enumerate(columns.items(), start=1):
            found = spread(row.scores[column])
            fig.add_scatter(
                x=[found.median],
                y=[i],
                mode="markers",
                marker={"color": colour, "size": 9, "symbol": "circle-open" if row.matched else "circle"},
                error_x=whiskers([found.median], [found.low], [found.high], colour),
                hovertemplate=f"{name.replace('<br>', ' ')}: {title} %{{x:.3g}}<br>quartiles {short(found.low)} to "
                f"{short(found.high)}, {found.n} cells<extra></extra>",
                showlegend=False,
                row=1,
                col=col,
            )
    for col, (column, title) in enumerate(columns.items(), start=1):
        ends = [spread(row.scores[column]).high for row in rows]
        most = max((end for end in ends if end > 0), default=1.0)
        fig.update_xaxes(title_text=title, tickangle=0, range=[-0.06 * most, 1.08 * most], nticks=3, col=col)
    fig.update_xaxes(tickvals=[0, 0.5], tickformat=SHARES, range=[-0.06, 1.06], col=1)
    ticks = {"tickvals": list(range(len(names))), "ticktext": names}
    fig.update_yaxes(showgrid=False, zeroline=False, range=[len(names) - 0.4, -0.6])
    fig.update_yaxes(col=1, **ticks)
    fig = styled(fig, 90 + 34 * max(len(rows), 1), title=f"Masks at {site}", heading=site)
    return fig.update_layout(margin={"t": 10})


def cross_evaluation(evaluation: pd.DataFrame, site: str) -> go.Figure:
    """Every mask under every metric at one site: medians over cells (formulas 6 to 11, 16).

    Colour runs from the best to the worst mask of a column; less is better in each.

    How it can mislead: columns have different units, so colours compare within a column only. A mask that is good at
    what it was fitted for is no finding; the other columns are.

    Args:
        evaluation: step, hook_name, site, method, mask, seed, soft_mass, and the metrics.
        site: the only one that is shown.
    """
    here = first_seed(at(evaluation, site), "mask")
    masks = masks_in(here["mask"])
    cells = here.groupby("mask")[["soft_mass", *METRICS]].median().reindex(masks)
    values = cells[list(METRICS)].to_numpy(dtype=float)
    least, most = (getattr(pd.DataFrame(values), end)().to_numpy() for end in ("min", "max"))
    width = np.where(most > least, most - least, np.nan)
    share = np.nan_to_num((values - least) / width, nan=0.0)
    fig = figure(110 + 44 * max(len(masks), 1), title=f"Cross-evaluation at {site}", heading=site, least_width=440)
    fig.add_heatmap(
        z=np.where(np.isnan(values), np.nan, share),
        x=list(METRICS.values()),
        y=[f"{label(m)}<br><i>{share_label(v)}</i>" for m, v in zip(masks, cells["soft_mass"], strict=True)],
        text=[[short(value, 2 if abs(value) >= 1e-3 else 1) for value in row] for row in values],
        texttemplate="%{text}",
        textfont={"size": 11, "color": INK},
        customdata=values,
        colorscale=TINTS,
        zmin=0,
        zmax=1,
        showscale=False,
        xgap=2,
        ygap=2,
        hovertemplate="%{y}, %{x}: %{customdata:.4g}<extra></extra>",
    )
    fig.update_xaxes(type="category", side="top", showgrid=False, tickangle=0, tickfont={"size": 11})
    fig.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return fig.update_layout(margin={"t": 8})


def checkpoint_layer_maps(evaluation: pd.DataFrame, site: str) -> go.Figure:
    """Soft mass, relative KL and lost fraction of each mask by checkpoint and layer at one site; medians over methods.

    Relative KL is coloured by its logarithm. The empty mask's row is the null of the column in its middle.

    How it can mislead: the entropy that relative KL is divided by falls in training, so its map has a trend where the
    model's use of the site has none; compare with the empty mask's.

    Args:
        evaluation: step, hook_name, site, layer, method, mask, seed, soft_mass, relative_kl, lost_fraction.
        site: the only one that is shown.
    """
    here = first_seed(at(evaluation, site), "mask")
    masks = in_order(here["mask"][here["mask"] != "full"], (*TARGETS, "empty"))
    steps, layers = (sorted({int(x) for x in here[column].dropna()}) for column in ("step", "layer"))
    columns = {"soft_mass": "soft mass", "relative_kl": "relative KL", "lost_fraction": "lost fraction"}
    fig = make_subplots(
        rows=max(len(masks), 1),
        cols=len(columns),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=GAP,
        vertical_spacing=0.03,
    )
    for row, mask in enumerate(masks, start=1):
        own = here[here["mask"] == mask]
        for col, (column, title) in enumerate(columns.items(), start=1):
            grid = own.groupby(["layer", "step"])[column].median().unstack("step").reindex(index=layers, columns=steps)
            values = grid.to_numpy(dtype=float)
            fig.add_heatmap(
                z=np.log10(np.where(values > 0, values, np.nan)) if column == "relative_kl" else values,
                x=[step_label(step) for step in steps],
                y=[str(layer) for layer in layers],
                customdata=values,
                coloraxis=f"coloraxis{col if col > 1 else ''}",
                xgap=1,
                ygap=1,
                hovertemplate=f"{label(mask)}, {title}<br>step %{{x}}, block %{{y}}: "
                "%{customdata:.3g}<extra></extra>",
                row=row,
                col=col,
            )
        fig.update_yaxes(title_text=label(mask), row=row, col=1)
    fig.update_xaxes(showgrid=False)
    step_axis(fig, steps)
    fig.update_yaxes(type="category", showgrid=False)
    positive = here["relative_kl"].where(here["relative_kl"] > 0).dropna()
    decades = np.log10([positive.min(), positive.max()]) if len(positive) else np.array([-2.0, 0.0])
    width = (1 - GAP * (len(columns) - 1)) / len(columns)
    height = 120 + 92 * max(len(masks), 1)
    for col, title in enumerate(columns.values(), start=1):
        scale = {"cmin": 0, "cmax": 1}
        ticks = {"tickvals": [0, 0.5, 1]}
        if title == "relative KL":
            low, high = float(decades[0]), float(max(decades[1], decades[0] + 0.1))
            scale = {"cmin": low, "cmax": high}
            ticks = told_apart([low, high], lambda x: 10**x)
        bar = {
            "orientation": "h",
            "x": (col - 1) * (width + GAP) + width / 2,
            "xanchor": "center",
            "y": 1,
            "yanchor": "bottom",
            "ypad": 4,
        }
        bar |= {
            "len": width * 0.9,
            "thickness": 8,
            "outlinewidth": 0,
            "title": {"text": title, "side": "top", "font": {"size": 13}},
        }
        axis = {"colorscale": SHADES, "colorbar": bar | ticks, **scale}
        fig.update_layout({f"coloraxis{col if col > 1 else ''}": axis})
    fig = styled(fig, height, title=f"Masks by checkpoint and layer at {site}", heading=site)
    return fig.update_layout(margin={"t": 50})

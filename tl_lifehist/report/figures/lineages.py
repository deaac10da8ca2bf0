"""Figures of lineages: the raster, and the number of carriers beside its nulls."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.palette import CARRIER, CONTROL, FAINT
from tl_lifehist.report.figures.style import appearing, figure, hook_labels, plain, short, step_label, styled


def lineage_raster(lineages: pd.DataFrame, carriers: pd.DataFrame) -> go.Figure:
    """Every lineage as one row, by birth and then by length; a filled cell is a checkpoint at which it is alive (D7).

    One panel per hook point; checkpoints are equally spaced whatever their distance; carriers (D9) are coloured. Drawn
    as an image, so ten thousand lineages stay light.

    How it can mislead: a row that ends may be noise of SAE training, and equal spacing hides how unequal the
    transitions are. Beside a hundred rows a thin carrier may vanish: the count in the text is exact.

    Args:
        lineages: lineage, hook_name, step.
        carriers: lineage.
    """
    steps = sorted({int(step) for step in lineages["step"]})
    hooks = appearing(lineages["hook_name"])
    labels = hook_labels(hooks)
    titles = [labels[hook] for hook in hooks]
    fig = make_subplots(rows=1, cols=max(len(hooks), 1), subplot_titles=titles, horizontal_spacing=0.08)
    for column, hook in enumerate(hooks, start=1):
        here = lineages[lineages["hook_name"] == hook]
        cells, numbers = _cells(here, steps, carriers)
        fig.add_heatmap(
            z=cells,
            x=[step_label(step) for step in steps],
            customdata=np.broadcast_to(numbers[:, None], cells.shape),
            colorscale=[[0, "rgba(0,0,0,0)"], [0.5, CONTROL], [1, CARRIER]],
            zmin=0,
            zmax=2,
            showscale=False,
            xgap=1,
            hovertemplate="lineage %{customdata}<br>step %{x}<extra></extra>",
            row=1,
            col=column,
        )
    fig.update_xaxes(type="category", showgrid=False)
    fig.update_yaxes(autorange="reversed", showgrid=False, nticks=6)
    fig.update_yaxes(title_text="lineages, by birth", col=1)
    fig = styled(fig, 380, title="Lineages by checkpoint")
    return fig.update_layout(margin={"t": 30})


def _cells(here: pd.DataFrame, steps: list[int], carriers: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """One panel's cells (0 absent, 1 alive, 2 alive and a carrier) and the lineage of each row."""
    numbers, row = np.unique(here["lineage"].to_numpy(), return_inverse=True)
    column = np.searchsorted(steps, here["step"].to_numpy())
    cells = np.zeros((len(numbers), len(steps)), dtype=np.int8)
    cells[row, column] = 1 + np.isin(here["lineage"].to_numpy(), carriers["lineage"].to_numpy())
    birth = (cells > 0).argmax(axis=1)
    order = np.lexsort((-(cells > 0).sum(axis=1), birth))
    return cells[order], numbers[order]


def nulls(nulls: pd.DataFrame, n_carriers: int) -> go.Figure:
    """The number of carriers beside what two worlds without a history give (C1).

    *frozen*: one model repeated at every "checkpoint", so that only noise of SAE training breaks lineages.
    *unrelated*: profiles over permuted tokens, where nothing should match.

    How it can mislead: fewer carriers than *frozen* is what any training would give; the count says how much more
    than noise has changed, not that the carriers are special.

    Args:
        nulls: null, carriers (one row per draw).
        n_carriers: the run's own count.
    """
    fig = figure(300, title="Carriers beside their nulls")
    for name in appearing(nulls["null"]):
        values = nulls.loc[nulls["null"] == name, "carriers"]
        fig.add_box(
            x=values,
            name=f"{plain(name)}<br>{len(values)} draws",
            orientation="h",
            boxpoints="all",
            jitter=0.6,
            pointpos=0,
            showlegend=False,
            marker={"color": CONTROL, "size": 4, "opacity": 0.6},
            line={"color": CONTROL, "width": 1.2},
            fillcolor=FAINT,
            hovertemplate="%{x} carriers<extra></extra>",
        )
    fig.add_vline(
        x=n_carriers,
        line={"color": CARRIER, "width": 2.5},
        annotation={"text": f"this run: {short(n_carriers, 6)}", "font": {"color": CARRIER}},
        annotation_position="top",
    )
    fig.update_xaxes(title_text="carriers", rangemode="tozero")
    return fig.update_yaxes(showgrid=False, autorange="reversed")

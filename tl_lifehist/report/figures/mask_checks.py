"""Figures of what masks rest on: dictionaries and seeds."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.palette import CONTROL, FAINT, FOURTH, INK, MEASURED
from tl_lifehist.report.figures.cells import CELL, at, colour_of, in_order, label, median_line, symbol_of
from tl_lifehist.report.figures.frontier import DASHES
from tl_lifehist.report.figures.style import SHARES, figure, hook_labels, step_axis, step_label, styled
from tl_lifehist.sufficiency.target_kinds import TARGETS

FEW = 40  # pairs that can be told apart as points


def explained_variance(dictionaries: pd.DataFrame, checkpoints: pd.DataFrame, site: str) -> go.Figure:
    """What the dictionaries explain, by checkpoint and method, beside the share of variance of the farthest rows.

    Medians over layers, whiskers quartiles (formulas 1 and 6). Below: the share of the variance that the 0.1 % of rows
    farthest from the mean hold; each layer a thin line.

    How it can mislead: where a few massive activations hold most of the variance, a dictionary explains much by
    explaining those, and every NMSE is theirs.

    Args:
        dictionaries: step, site, method, explained_variance.
        checkpoints: step, hook_name, site, top_row_share.
        site: the only one that is shown.
    """
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.6, 0.4])
    here, rows = at(dictionaries, site), at(checkpoints, site).sort_values("step", kind="stable")
    for i, method in enumerate(in_order(here["method"], METHODS)):
        own = here[here["method"] == method]
        dash, symbol = DASHES[i % len(DASHES)], symbol_of(method)
        median_line(fig, own, "explained_variance", label(method), MEASURED, dash=dash, symbol=symbol)
    hooks = in_order(rows["hook_name"], ())
    labels = hook_labels(hooks)
    for hook in hooks:
        own = rows[rows["hook_name"] == hook]
        fig.add_scatter(
            x=[step_label(step) for step in own["step"]],
            y=own["top_row_share"].astype(float),
            mode="lines+markers",
            marker={"size": 4},
            line={"color": FOURTH, "width": 1.2},
            opacity=0.75,
            showlegend=False,
            hovertemplate=f"{labels[hook]}, step %{{x}}: %{{y:.1%}}<extra></extra>",
            row=2,
            col=1,
        )
    step_axis(fig, [*here["step"], *rows["step"]])
    fig.update_yaxes(title_text="explained", tickformat=SHARES, rangemode="tozero", row=1)
    fig.update_yaxes(title_text="farthest rows", tickformat=SHARES, rangemode="tozero", row=2)
    fig.update_xaxes(title_text="step", row=2)
    return styled(fig, 480, title=f"Dictionaries at {site}", heading=site)


def stability(stability: pd.DataFrame, site: str) -> go.Figure:
    """Overlap of masks that differ in their seed alone, by target, beside random masks of the same soft masses.

    Each point of a box is a pair of seeds in one cell. The last boxes: overlap of the dictionaries of two seeds, for
    methods that depend on where they start, beside random directions.

    How it can mislead: masks with other components can be equally sufficient. Low overlap says that the mask is not
    unique, not that it is wrong; high overlap of two large masks says nothing.

    Args:
        stability: site, target, seed_a, seed_b, overlap, overlap_null, dictionary_overlap, dictionary_null.
        site: the only one that is shown.
    """
    here = at(stability, site)
    targets = in_order(here["target"], TARGETS)
    names = [*(label(t) for t in targets), "dictionaries"]
    fig = figure(90 + 44 * len(names), title=f"Stability at {site}", heading=site)
    pairs = here.drop_duplicates([*CELL, "seed_a", "seed_b"])
    boxes = [(label(t), "overlap", colour_of(t), here.loc[here["target"] == t]) for t in targets]
    boxes += [(label(t), "overlap_null", CONTROL, here.loc[here["target"] == t]) for t in targets]
    boxes.append(("dictionaries", "dictionary_overlap", INK, pairs))
    boxes.append(("dictionaries", "dictionary_null", CONTROL, pairs))
    for name, column, colour, rows in boxes:
        values = rows[column].dropna()
        fig.add_box(
            x=values,
            y=[name] * len(values),
            orientation="h",
            offsetgroup="null" if column.endswith("_null") else "own",
            line={"color": colour, "width": 1.4},
            fillcolor=FAINT if column.endswith("_null") else "rgba(0,0,0,0)",
            boxpoints="all" if len(values) <= FEW else False,
            jitter=0.5,
            pointpos=0,
            marker={"color": colour, "size": 4, "opacity": 0.6},
            name=f"{name}, at random" if column.endswith("_null") else name,
            hoverinfo="x+name",
            showlegend=False,
        )
    square = {"color": FAINT, "size": 10, "symbol": "square", "line": {"color": CONTROL, "width": 1}}
    fig.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        marker=square,
        name="random masks of the same soft masses, random directions",
    )
    fig.update_yaxes(type="category", categoryorder="array", categoryarray=names, autorange="reversed", showgrid=False)
    fig.update_xaxes(title_text="overlap", range=[-0.03, 1.03])
    return fig.update_layout(boxmode="group", showlegend=True)

"""Figures of the containment graph: the graph itself at one checkpoint, and recruitment over checkpoints."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.palette import CARRIER, CONTROL, FAINT, FOLLOWER, MEASURED
from tl_lifehist.report.figures.style import SHARES, appearing, hook_labels, plain, step_label, styled

MAX_EDGES = 1200
Node = tuple[str, int]


def dag(
    edges: pd.DataFrame,
    features: pd.DataFrame,
    carriers: pd.DataFrame,
    *,
    step: int | None = None,
    orientation: str = "container",
    max_edges: int = MAX_EDGES,
) -> go.Figure:
    """The containment graph at one checkpoint: one column per hook point, by depth; size: log firing rate (D12, D13).

    Carriers and all that can be reached from them are coloured. At most `max_edges` edges are drawn, a random sample
    with a fixed seed; reach is computed on all of them. What is left out is said under the figure, and in full in
    `layout.meta["caption"]`. Features of a column are ordered so that few edges cross; height means nothing,
    nor does width where a column is crowded.

    How it can mislead: an edge says that one feature fires where another fires, not that one feeds the other, and
    broad features contain much by breadth alone.

    Args:
        edges: step, orientation, source_hook, source_feature, target_hook, target_feature.
        features: step, hook_name, feature, lineage, firing_rate.
        carriers: lineage.
        step: the checkpoint; the last one by default.
        orientation: "container" or "depth".
        max_edges: how many edges to draw at most.
    """
    step = int(features["step"].max()) if step is None and len(features) else step
    here = features[features["step"] == step].drop_duplicates(["hook_name", "feature"])
    pairs = edges[(edges["step"] == step) & (edges["orientation"] == orientation)]
    carried = here[here["lineage"].isin(carriers["lineage"])]
    chosen = set(zip(carried["hook_name"], carried["feature"], strict=True))
    reached = _reached(pairs, chosen)
    rate = dict(zip(zip(here["hook_name"], here["feature"], strict=True), here["firing_rate"], strict=True))
    drawn = pairs.sample(max_edges, random_state=0) if len(pairs) > max_edges else pairs
    sources, targets = _ends(drawn)
    drawn_ends = {*sources, *targets}
    nodes = [node for node in rate if node in drawn_ends]
    hooks = appearing(here["hook_name"])
    place = _places(nodes, hooks, sources, targets, rate)

    caption = f"Orientation: {orientation}. {len(drawn):,} of {len(pairs):,} edges drawn" + (
        " (a random sample)" if len(drawn) < len(pairs) else ""
    )
    caption += f", {len(nodes):,} of {len(here):,} alive features; those without a drawn edge are left out, "
    caption += f"{len(chosen - drawn_ends):,} of {len(chosen):,} carriers among them."
    fig = go.Figure()
    known = [(a, b) for a, b in zip(sources, targets, strict=True) if a in place and b in place]
    followed = [a in chosen or a in reached for a, _ in known]
    faint = float(np.clip(150 / max(len(known), 1), 0.15, 0.5))
    scale = float(np.clip((160 / max(len(nodes), 1)) ** 0.5, 0.45, 1))
    for hot, colour, width in ((False, CONTROL, 0.5), (True, FOLLOWER, 0.7)):
        ends = [pair for pair, f in zip(known, followed, strict=True) if f == hot]
        x, y = _segments(ends, place)
        line = {"color": colour, "width": width}
        fig.add_scatter(x=x, y=y, mode="lines", line=line, opacity=faint, hoverinfo="skip", showlegend=False)
    labels = hook_labels(hooks)
    for name, colour, members in (
        ("other features", CONTROL, [n for n in nodes if n not in chosen and n not in reached]),
        ("reached from a carrier", FOLLOWER, [n for n in nodes if n in reached and n not in chosen]),
        ("carriers", CARRIER, [n for n in nodes if n in chosen]),
    ):
        rates = np.array([rate[node] for node in members], dtype=float)
        fig.add_scatter(
            x=[place[node][0] for node in members],
            y=[place[node][1] for node in members],
            mode="markers",
            name=f"{name} ({len(members):,})",
            marker={"color": colour, "size": _sizes(rates) * scale, "line": {"width": 0}, "opacity": 0.9},
            text=[f"{labels[hook]} feature {feature}" for hook, feature in members],
            customdata=rates,
            hovertemplate="%{text}<br>fires on %{customdata:.2%}<extra></extra>",
        )
    ticks = {"tickvals": list(range(len(hooks))), "ticktext": [labels[hook] for hook in hooks]}
    fig.update_xaxes(showgrid=False, range=[-0.35, max(len(hooks) - 1, 0) + 0.35], **ticks)
    if len(drawn) < len(pairs):
        fig.update_xaxes(title_text=f"{len(drawn):,} of {len(pairs):,} edges drawn")
    fig.update_yaxes(visible=False)
    fig.update_layout(legend={"itemsizing": "constant"})
    title = f"Containment graph at step {step_label(step or 0)}, {orientation} orientation"
    return styled(fig, 560, title=title, caption=caption)


def _ends(pairs: pd.DataFrame) -> tuple[list[Node], list[Node]]:
    sources = zip(pairs["source_hook"], pairs["source_feature"].astype(int), strict=True)
    return list(sources), list(zip(pairs["target_hook"], pairs["target_feature"].astype(int), strict=True))


def _reached(pairs: pd.DataFrame, chosen: set[Node]) -> set[Node]:
    """What can be reached from the carriers, the carriers left out: their children and all below."""
    graph = nx.DiGraph(list(zip(*_ends(pairs), strict=True)))
    start = ("", -1)
    graph.add_edges_from((start, node) for node in chosen if node in graph)
    return (set(nx.descendants(graph, start)) if start in graph else set()) - chosen


def _places(
    nodes: list[Node], hooks: list[str], sources: list[Node], targets: list[Node], rate: dict[Node, float]
) -> dict[Node, tuple[float, float]]:
    """x by depth, spread where a column is crowded; y by rank in the column, after some rounds of ordering by the mean
    height of the neighbours."""
    index = {node: i for i, node in enumerate(sorted(nodes, key=lambda node: -rate[node]))}
    column = np.array([hooks.index(hook) for hook, _ in index], dtype=int)
    a = np.array([index[x] for x, y in zip(sources, targets, strict=True) if x in index and y in index], dtype=int)
    b = np.array([index[y] for x, y in zip(sources, targets, strict=True) if x in index and y in index], dtype=int)
    degree = np.bincount(a, minlength=len(index)) + np.bincount(b, minlength=len(index))
    height = np.zeros(len(index))

    def rank(score: np.ndarray) -> None:
        for c in range(len(hooks)):
            members = np.flatnonzero(column == c)
            height[members[np.argsort(score[members], kind="stable")]] = (np.arange(len(members)) + 0.5) / max(
                len(members), 1
            )

    rank(np.arange(len(index), dtype=float))
    for _ in range(6):
        near = np.bincount(a, height[b], minlength=len(index)) + np.bincount(b, height[a], minlength=len(index))
        rank(np.where(degree > 0, near / np.maximum(degree, 1), height))
    crowd = np.bincount(column, minlength=len(hooks))[column]
    fraction = np.modf(height * crowd * 0.618)[0]  # neighbours in height are far apart in width: golden ratio
    x = column + (fraction - 0.5) * np.clip((crowd - 30) / 200, 0, 0.6)
    return {node: (float(x[i]), 1 - float(height[i])) for node, i in index.items()}


def _segments(ends: list[tuple[Node, Node]], place: dict[Node, tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Line segments for one trace: start, end, gap."""
    points = np.full((len(ends), 3, 2), np.nan)
    for i, (a, b) in enumerate(ends):
        points[i, 0], points[i, 1] = place[a], place[b]
    flat = points.reshape(-1, 2).round(4)
    return flat[:, 0], flat[:, 1]


def _sizes(rates: np.ndarray) -> np.ndarray:
    """Marker sizes, before they are scaled to the crowd: from 4 at a rate of 0.01 % to 16 at 100 %."""
    decades = np.log10(np.clip(np.nan_to_num(rates, nan=1e-4), 1e-4, 1.0))
    return 16 + 3 * decades


def recruitment(dag: pd.DataFrame) -> go.Figure:
    """Share of the alive non-carriers that can be reached from a carrier, by checkpoint and orientation (D15).

    Beside it the null band: node sets of the same size and firing rates (C8), 95 %; and the mean after rewiring that
    keeps every degree.

    How it can mislead: broad sets reach much by breadth; inside the band the carriers recruit no more than their
    rates explain.

    Args:
        dag: step, orientation, recruited, recruited_direct, null_mean, null_low, null_high, rewired_mean.
    """
    orientations = appearing(dag["orientation"])
    rows = max(len(orientations), 1)
    fig = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    for row, orientation in enumerate(orientations, start=1):
        here = dag[dag["orientation"] == orientation].sort_values("step")
        common = {"x": [step_label(step) for step in here["step"]], "row": row, "col": 1}
        edge = {"width": 0, "color": CONTROL}
        fig.add_scatter(y=here["null_low"], mode="lines", line=edge, showlegend=False, hoverinfo="skip", **common)
        band = {"fill": "tonexty", "fillcolor": FAINT, "mode": "lines", "line": edge, "hoverinfo": "skip"}
        for column, name, style in (
            ("null_high", "same size and rates, 95 %", band),
            ("null_mean", "their mean", {"mode": "lines", "line": {"color": CONTROL, "width": 1.5, "dash": "dash"}}),
            ("rewired_mean", "rewired", {"mode": "lines", "line": {"color": CONTROL, "width": 1.5, "dash": "dot"}}),
            ("recruited_direct", "direct children only", {"mode": "lines", "line": {"color": MEASURED, "width": 1.5}}),
            ("recruited", "reached from carriers", {"mode": "lines+markers", "line": {"color": CARRIER, "width": 2.5}}),
        ):
            label = {"hovertemplate": f"{name}, step %{{x}}: %{{y:.1%}}<extra></extra>"} if style is not band else {}
            legend = {"legendgroup": column, "showlegend": row == 1}
            fig.add_scatter(y=here[column], name=name, **style, **label, **legend, **common)
        fig.update_yaxes(title_text=f"reached, {plain(orientation)}", row=row)
    fig.update_xaxes(type="category")
    fig.update_xaxes(title_text="step", row=rows)
    fig.update_yaxes(tickformat=SHARES, rangemode="tozero")
    return styled(fig, 120 + 210 * rows, title="Recruited fraction")

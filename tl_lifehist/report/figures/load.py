"""Figures of ablations: the carriers' joint load beside its controls, its parts, single features, content classes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tl_lifehist.lifehistory.control_kinds import short_label_of
from tl_lifehist.palette import CARRIER, CONTROL, FAINT, MEASURED, SECOND
from tl_lifehist.report.figures.style import appearing, figure, hook_labels, p_label, plain, short

LEGEND = "Orange: all carriers. Blue: the carriers of one hook point. Green: sums. Grey: other sets of equal size."


def load_against_controls(load: pd.DataFrame, load_summary: pd.DataFrame) -> go.Figure:
    """What ablating all carriers at once costs, beside control sets of each kind (D18, D19). In nats.

    A grey point is one set under exchange, a box their spread, the coloured mark the carriers that have an equal; of
    each what its total of the matched quantity explains is taken out. A kind that is not testable is faint and shows
    the cost of all carriers.

    How it can mislead: equal count is not equal mass, and carriers are broad by selection. Only the kinds matched in
    mass say something about history, and a faint row says nothing at all.

    Args:
        load: kind, adjusted (one row per draw).
        load_summary: kind, carriers, delta_ce, p, verdict.
    """
    kinds = appearing(load_summary["kind"])
    fig = figure(110 + 64 * max(len(kinds), 1), title="Joint load beside its controls")
    for _, row in load_summary.iterrows():
        draws = load[load["kind"] == row["kind"]]
        tested = row["verdict"] != "not testable"
        verdict = " · ".join(part for part in (p_label(row["p"]) if tested else "", str(row["verdict"])) if part)
        place = f"{plain(short_label_of(row['kind']))}<br><i>{plain(verdict)}</i>"
        carrier = float(row["carriers"] if tested else row["delta_ce"])
        fig.add_box(
            x=draws["adjusted"],
            name=place,  # also its place on the axis, which spares a name for every point
            orientation="h",
            boxpoints="all",
            jitter=0.7,
            pointpos=0,
            showlegend=False,
            marker={"color": CONTROL, "size": 4, "opacity": 0.5 if tested else 0.15},
            line={"color": CONTROL if tested else FAINT, "width": 1.2},
            fillcolor="rgba(0,0,0,0)",
            hovertemplate="set under exchange: %{x:.3g} nats<extra></extra>",
        )
        fig.add_scatter(
            x=[carrier],
            y=[place],
            mode="markers",
            marker={
                "symbol": "diamond" if tested else "diamond-open",
                "size": 12,
                "color": CARRIER,
                "opacity": 1 if tested else 0.45,
            },
            showlegend=False,
            hovertemplate="carriers: %{x:.3g} nats<extra></extra>",
        )
    for name, colour, symbol in (("sets under exchange", CONTROL, "circle"), ("carriers", CARRIER, "diamond")):
        fig.add_scatter(
            x=[None], y=[None], mode="markers", marker={"color": colour, "symbol": symbol, "size": 9}, name=name
        )
    fig.update_xaxes(title_text="added cross-entropy (nats)", rangemode="tozero")
    return fig.update_yaxes(autorange="reversed", showgrid=False)


def ablation_parts(ablation_parts: pd.DataFrame) -> go.Figure:
    """The joint load of the carriers beside its parts and beside other sets of equal size (C6, C7). In nats.

    Carriers in colour: together, at each hook point alone, and two sums. Grey: the leading features by firing rate
    and by mass, and a random direction of equal norm.

    How it can mislead: later layers repair earlier ones, so parts need not add up to the whole in either direction.

    Args:
        ablation_parts: part, delta_ce, n_features.
    """
    fig = figure(110 + 34 * max(len(ablation_parts), 1), title="Parts of the load", caption=LEGEND)
    parts = [str(part) for part in ablation_parts["part"]]
    names = {
        "joint": "all carriers together",
        "sum of layers": "sum over hook points",
        "sum of singles": "sum of singles",
    }
    others = ("leading by rate", "leading by mass", "random direction")
    labels = hook_labels([part for part in parts if part not in names and part not in others])
    colours = [
        CARRIER if p == "joint" else CONTROL if p in others else SECOND if p in names else MEASURED for p in parts
    ]
    values = ablation_parts["delta_ce"].to_numpy(dtype=float)
    fig.add_bar(
        x=values,
        y=[names.get(part, labels.get(part, part)) for part in parts],
        orientation="h",
        marker={"color": colours},
        text=[short(value) for value in values],
        textposition="outside",
        cliponaxis=False,
        customdata=ablation_parts["n_features"],
        hovertemplate="%{y}: %{x:.3g} nats (%{customdata} features)<extra></extra>",
    )
    fig.update_xaxes(title_text="added cross-entropy (nats)", range=_with_room(values))
    fig.update_layout(margin={"t": 10}, bargap=0.35)
    return fig.update_yaxes(autorange="reversed", showgrid=False)


def _with_room(values: np.ndarray) -> list[float] | None:
    """An axis range around zero and all values, with room for numbers outside the bars."""
    finite = values[np.isfinite(values)]
    if not len(finite) or not finite.any():
        return None
    low, high = min(0.0, float(finite.min())), max(0.0, float(finite.max()))
    room = 0.18 * (high - low)
    return [low - room if low < 0 else 0.0, high + room if high > 0 else 0.0]


def single_ablation(single: pd.DataFrame) -> go.Figure:
    """What one feature alone costs per firing, by its role in the graph (D17). Nats; carriers are drawn as points.

    How it can mislead: "no difference between roles" needs an effect size, and a feature that others stand in for
    costs little alone whatever its role.

    Args:
        single: role, carrier, per_firing.
    """
    fig = figure(350, title="Single-feature cost per firing")
    present = set(single["role"])
    for role in (r for r in ("root", "mid", "leaf", "isolated") if r in present):
        here = single[single["role"] == role]
        name = f"{role}<br>n = {len(here):,}"
        fig.add_box(
            y=here["per_firing"],
            x=[name] * len(here),
            name="all features",
            legendgroup="all",
            showlegend=False,
            boxpoints=False,
            line={"color": CONTROL, "width": 1.4},
            fillcolor=FAINT,
        )
        own = here.loc[here["carrier"].astype(bool), "per_firing"]
        fig.add_box(
            y=own,
            x=[name] * len(own),
            showlegend=False,
            boxpoints="all",
            jitter=0.6,
            pointpos=0,
            fillcolor="rgba(0,0,0,0)",
            line={"width": 0, "color": "rgba(0,0,0,0)"},
            marker={"color": CARRIER, "size": 5 if len(own) < 100 else 3, "opacity": 0.6},
            hovertemplate="carrier: %{y:.3g} nats<extra></extra>",
        )
    fig.add_scatter(x=[None], y=[None], mode="markers", marker={"color": CARRIER, "size": 7}, name="carriers")
    square = {"color": FAINT, "size": 10, "symbol": "square", "line": {"color": CONTROL, "width": 1}}
    fig.add_scatter(x=[None], y=[None], mode="markers", marker=square, name="all features tried")
    fig.update_xaxes(type="category")
    return fig.update_yaxes(title_text="nats per firing", zeroline=True, zerolinecolor=CONTROL)


def content_load(content: pd.DataFrame) -> go.Figure:
    """The joint load of each content class beside sets of equal mass from the other class (D24). In nats.

    How it can mislead: the classes follow the spelling of tokens, not what a feature means.

    Args:
        content: content, n, joint_load, null_load_mean, null_load_low, null_load_high.
    """
    fig = figure(110 + 60 * max(len(content), 1), title="Load by content class")
    names = [f"{plain(name)}<br>n = {int(n):,}" for name, n in zip(content["content"], content["n"], strict=True)]
    mean = content["null_load_mean"].to_numpy(dtype=float)
    error = {
        "type": "data",
        "symmetric": False,
        "array": content["null_load_high"].to_numpy(dtype=float) - mean,
        "arrayminus": mean - content["null_load_low"].to_numpy(dtype=float),
        "color": CONTROL,
    }
    marker = {"size": 9, "color": CONTROL}
    label = "%{x:.3g} nats<extra></extra>"
    common = {"y": names, "mode": "markers", "hovertemplate": label}
    fig.add_scatter(x=mean, error_x=error, marker=marker, name="equal mass, other class (95 %)", **common)
    diamond = {"size": 12, "color": MEASURED, "symbol": "diamond"}
    fig.add_scatter(x=content["joint_load"], marker=diamond, name="this class", **common)
    fig.update_xaxes(title_text="added cross-entropy (nats)", rangemode="tozero")
    return fig.update_yaxes(showgrid=False, type="category", range=[len(names) - 0.4, -0.6])

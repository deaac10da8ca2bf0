"""Figures of births, deaths and persistence, with the noise floors that both are read beside."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.palette import CONTROL, MEASURED, SECOND, THIRD, TINT
from tl_lifehist.report.figures.style import (
    SHARES,
    appearing,
    figure,
    hook_labels,
    plain,
    step_label,
    styled,
    transition_labels,
)


def event_rates(events: pd.DataFrame) -> go.Figure:
    """Births and deaths of each transition per step, per log-step and as a share of the alive (D8).

    All hook points together. Dotted in the same colour: the flat null (C5), the same total spread as equal counts
    over all transitions. Rates per step are on a log axis; a transition without events has no mark there.

    How it can mislead: later transitions are far longer, so equal counts alone give a steep fall per step. Only the
    distance from the dotted line says anything, and deaths include noise of SAE training.

    Args:
        events: kind, step_from, step_to, count, n_alive.
    """
    fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for kind, name, colour in (("birth", "births", MEASURED), ("death", "deaths", THIRD)):
        table = _pooled(events[events["kind"] == kind])
        decades = np.log10(table["step_to"] + 1) - np.log10(table["step_from"] + 1)
        flat = table["count"].mean() if len(table) else np.nan
        for row, length in enumerate((table["step_to"] - table["step_from"], decades, table["n_alive"]), start=1):
            common = {"x": transition_labels(table), "row": row, "col": 1, "legendgroup": kind, "showlegend": row == 1}
            rate = np.asarray(table["count"] / length, dtype=float)
            null = np.asarray(flat / length, dtype=float)
            positive = np.where(rate > 0, rate, np.nan) if row == 1 else rate
            line = {"color": colour, "width": 2}
            hover = {
                "customdata": table["count"],
                "hovertemplate": "%{x}: %{y:.3g} (%{customdata} events)<extra></extra>",
            }
            fig.add_scatter(
                y=positive, name=name, line=line, mode="lines+markers", marker={"size": 7}, **hover, **common
            )
            dots = {"color": colour, "width": 1.5, "dash": "dot"}
            fig.add_scatter(y=null, name=f"{name}, equal counts", line=dots, mode="lines", opacity=0.7, **common)
    fig.update_xaxes(type="category")
    fig.update_yaxes(title_text="per step", type="log", dtick=1, exponentformat="power", row=1)
    fig.update_yaxes(title_text="per decade of steps", rangemode="tozero", tickformat=",", row=2)
    fig.update_yaxes(title_text="share of alive", rangemode="tozero", tickformat=SHARES, row=3)
    fig.update_xaxes(title_text="transition", row=3)
    return styled(fig, 640, title="Births and deaths")


def _pooled(events: pd.DataFrame) -> pd.DataFrame:
    """Counts of all hook points together, one row per transition."""
    grouped = events.groupby(["step_from", "step_to"], sort=True)[["count", "n_alive"]].sum()
    return grouped.reset_index()


def persistence(events: pd.DataFrame) -> go.Figure:
    """Share of features matched across each transition beside both re-match floors, and corrected for that noise (C1).

    Above: all hook points together (thick), each hook point (thin), and what two SAEs of one and the same checkpoint
    reach, with another row order (`data`) and with another initialisation (`init`). Below: the range from
    match / floor_data to match / floor_init, at 1 where nothing was lost beyond noise.

    How it can mislead: without floors a match rate says nothing about the model. The range is no interval: it is two
    answers to the question which noise the run's SAEs share.

    Args:
        events: kind, hook_name, step_from, step_to, n_alive, match_rate, floor_data, floor_init, persistence_low,
            persistence_high. Rows of kind "death" are used.
    """
    deaths = events[events["kind"] == "death"]
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    hooks = appearing(deaths["hook_name"])
    labels = hook_labels(hooks)
    for i, hook in enumerate(hooks):
        here = deaths[deaths["hook_name"] == hook].sort_values("step_from")
        line = {"color": MEASURED, "width": 1}
        name = "each hook point"
        common = {"mode": "lines", "opacity": 0.55, "legendgroup": name, "showlegend": i == 0}
        x = transition_labels(here)
        label = f"{labels[hook]}, %{{x}}: %{{y:.1%}}<extra></extra>"
        fig.add_scatter(x=x, y=here["match_rate"], name=name, line=line, hovertemplate=label, row=1, col=1, **common)
    mean = _weighted(deaths, ["match_rate", "floor_data", "floor_init", "persistence_low", "persistence_high"])
    x = transition_labels(mean)
    for column, name, colour, dash in (
        ("match_rate", "matched", MEASURED, "solid"),
        ("floor_data", "floor: other row order", SECOND, "dash"),
        ("floor_init", "floor: other init", THIRD, "dash"),
    ):
        line = {"color": colour, "width": 2.5 if dash == "solid" else 2, "dash": dash}
        label = f"{name}, %{{x}}: %{{y:.1%}}<extra></extra>"
        fig.add_scatter(x=x, y=mean[column], name=name, line=line, hovertemplate=label, row=1, col=1)
    band = {"line": {"width": 1, "color": MEASURED}, "mode": "lines+markers", "marker": {"size": 5}}
    label = "%{x}: %{y:.2f}<extra></extra>"
    low = {"showlegend": False, "hovertemplate": label, "row": 2, "col": 1, **band}
    fig.add_scatter(x=x, y=mean["persistence_low"], **low)
    fig.add_scatter(
        x=x,
        y=mean["persistence_high"],
        fill="tonexty",
        fillcolor=TINT,
        name="corrected for noise",
        **low | {"showlegend": True},
    )
    fig.add_hline(y=1, line={"color": CONTROL, "dash": "dot", "width": 1.5}, row=2, col=1)  # pyright: ignore[reportArgumentType]
    fig.update_xaxes(type="category")
    fig.update_yaxes(title_text="matched", tickformat=SHARES, rangemode="tozero", row=1)
    fig.update_yaxes(title_text="match / floor", rangemode="tozero", row=2)
    fig.update_xaxes(title_text="transition", row=2)
    return styled(fig, 540, title="Persistence beside the re-match floors")


def _weighted(deaths: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Means over hook points weighted by the number of alive features, NaN left out, one row per transition."""
    keys = ["step_from", "step_to"]
    values = deaths[columns].astype(float)
    weight = values.notna().mul(deaths["n_alive"].astype(float), axis=0)
    keyed = [deaths[key] for key in keys]
    total = (values * weight).groupby(keyed).sum(min_count=1)
    return (total / weight.groupby(keyed).sum()).reset_index()


def rematch_floors(rematch: pd.DataFrame) -> go.Figure:
    """How far two SAEs of one and the same checkpoint agree: matched over alive, by checkpoint and level of noise (C1).

    A point is one hook point and replicate, a line the mean: `data`, the same initialisation and another row order;
    `init`, another initialisation and order.

    How it can mislead: few replicates make a floor look sharper than it is, and the level that fits a run depends on
    whether its checkpoints share their initialisation.

    Args:
        rematch: step, hook_name, level, rate.
    """
    fig = figure(360, title="Re-match within a checkpoint")
    steps = sorted({int(step) for step in rematch["step"]})
    labels = hook_labels(appearing(rematch["hook_name"]))
    known = {"data": ("other row order", SECOND), "init": ("other init", THIRD)}
    for level in appearing(rematch["level"]):
        name, colour = known.get(level, (plain(level), CONTROL))
        here = rematch[rematch["level"] == level]
        place = here["step"].map({step: i for i, step in enumerate(steps)}).astype(float)
        fig.add_scatter(
            x=place,
            y=here["rate"],
            mode="markers",
            marker={"color": colour, "size": 6, "opacity": 0.6},
            customdata=here["hook_name"].map(labels),
            hovertemplate=f"%{{customdata}}, {name}: %{{y:.1%}}<extra></extra>",
            showlegend=False,
        )
        mean = here.groupby("step")["rate"].mean()
        x = [steps.index(int(step)) for step in mean.index]
        fig.add_scatter(x=x, y=mean.to_numpy(), mode="lines", line={"color": colour, "width": 2}, name=name)
    fig.update_xaxes(tickvals=list(range(len(steps))), ticktext=[step_label(step) for step in steps], title_text="step")
    return fig.update_yaxes(title_text="matched", tickformat=SHARES, range=[0, 1.04])

"""Figures of what can be told early: the forecast of carriers, survival by entropy, function before direction."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tl_lifehist.palette import CONTROL, MEASURED, SECOND, SECOND_TINT, TINT
from tl_lifehist.report.figures.style import SHARES, figure, hook_labels, plain, step_label

HOOK_NAME = re.compile(r"blocks\.\d+\.[\w.]*\w")


def forecast(forecast: pd.DataFrame) -> go.Figure:
    """How well features alive at the onset are sorted into later carriers and others: AUC with 95 % interval (D21).

    The first row is the published set of predictors, the rest its baselines (C9). The line at 0.5 is chance. A row
    without an AUC had too few carriers and is faint.

    How it can mislead: entropy, strength and containment all move with the firing rate, so the distance from the
    log firing rate alone counts, not the distance from 0.5.

    Args:
        forecast: predictor, auc, low, high, average_precision, enrichment, n, n_positive.
    """
    names = _short_names([str(name) for name in forecast["predictor"]])
    fig = figure(110 + 38 * max(len(names), 1), title="Forecast of carriers")
    auc = forecast["auc"].to_numpy(dtype=float)
    missing = np.isnan(auc)
    more = forecast[["average_precision", "enrichment", "n", "n_positive"]].to_numpy()
    hover = (
        "%{y}: AUC %{x:.3f}<br>average precision %{customdata[0]:.3f}<br>enrichment %{customdata[1]:.3g}x"
        "<br>%{customdata[3]} carriers of %{customdata[2]} features<extra></extra>"
    )
    first = np.arange(len(names)) == 0
    for name, colour, chosen in (
        ("entropy, containment, strength" if names else "", MEASURED, first & ~missing),
        ("baselines", CONTROL, ~first & ~missing),
    ):
        error = {
            "type": "data",
            "symmetric": False,
            "array": (forecast["high"].to_numpy(dtype=float) - auc)[chosen],
            "arrayminus": (auc - forecast["low"].to_numpy(dtype=float))[chosen],
            "color": colour,
            "thickness": 1.5,
        }
        fig.add_scatter(
            x=auc[chosen],
            y=[n for n, c in zip(names, chosen, strict=True) if c],
            mode="markers",
            marker={"color": colour, "size": 10},
            error_x=error,
            customdata=more[chosen],
            hovertemplate=hover,
            name=name,
            showlegend=False,
        )
    empty = [n for n, m in zip(names, missing, strict=True) if m]
    fig.add_scatter(
        x=[0.5] * len(empty),
        y=empty,
        mode="text",
        text=["not testable"] * len(empty),
        textfont={"color": CONTROL},
        hoverinfo="skip",
        showlegend=False,
    )
    fig.add_vline(x=0.5, line={"color": CONTROL, "dash": "dot", "width": 1.5}, layer="below")  # pyright: ignore[reportArgumentType]
    lowest = np.nanmin(np.append(forecast["low"].to_numpy(dtype=float), 0.45))
    fig.update_xaxes(title_text="AUC", range=[max(0.0, float(lowest) - 0.03), 1.02])
    fig.update_layout(margin={"t": 10})
    rows = {"categoryorder": "array", "categoryarray": names[::-1]}
    return fig.update_yaxes(showgrid=False, type="category", range=[-0.6, len(names) - 0.4], **rows)


def _short_names(names: list[str]) -> list[str]:
    """`leave out block 2` for `leave out blocks.2.hook_resid_post`, in short lines: long names leave no room."""
    labels = hook_labels([found for name in names for found in HOOK_NAME.findall(name)])
    shorter = [plain(HOOK_NAME.sub(lambda match: labels[match[0]], name)) for name in names]
    return ["<br>".join(textwrap.wrap(name, 24)) or name for name in shorter]


def function_direction(direction: pd.DataFrame) -> go.Figure:
    """How like their final selves lineages already are: in their response (S_fun) and in their direction (S_dir) (D16).

    Bands are 95 % intervals; dotted in the same colour, what unrelated features give.

    How it can mislead: lineages are chained by function, so S_fun is high by selection, and with a shared
    initialisation of the SAEs directions start out alike.

    Args:
        direction: step, s_fun, s_fun_low, s_fun_high, s_dir, s_dir_low, s_dir_high, null_fun, null_dir.
    """
    fig = figure(380, title="Function and direction")
    table = direction.sort_values("step")
    x = [step_label(step) for step in table["step"]]
    for key, name, colour, tint in (
        ("fun", "function", MEASURED, TINT),
        ("dir", "direction", SECOND, SECOND_TINT),
    ):
        edge = {"mode": "lines", "line": {"width": 0, "color": colour}, "showlegend": False, "hoverinfo": "skip"}
        fig.add_scatter(x=x, y=table[f"s_{key}_low"], **edge)
        fig.add_scatter(x=x, y=table[f"s_{key}_high"], fill="tonexty", fillcolor=tint, **edge)
        label = f"{name}, step %{{x}}: %{{y:.3f}}<extra></extra>"
        fig.add_scatter(x=x, y=table[f"s_{key}"], name=name, line={"color": colour, "width": 2.5}, hovertemplate=label)
        dots = {"color": colour, "width": 1.5, "dash": "dot"}
        fig.add_scatter(x=x, y=table[f"null_{key}"], name=f"{name}, unrelated", line=dots, mode="lines", opacity=0.8)
    fig.update_xaxes(type="category", title_text="step")
    return fig.update_yaxes(title_text="similarity to the end", rangemode="tozero")


def survival(survival_by_entropy: pd.DataFrame) -> go.Figure:
    """Share of the features alive at the onset whose lineage reaches the end, by decile of activation entropy (D23).

    Intervals are 95 %. Beside it the same by decile of the firing rate, to which entropy is close.

    How it can mislead: where both lines agree, entropy adds nothing to the firing rate.

    Args:
        survival_by_entropy: decile, n, survival, low, high, survival_by_rate.
    """
    fig = figure(360, title="Survival by entropy")
    table = survival_by_entropy
    value = table["survival"].to_numpy(dtype=float)
    error = {
        "type": "data",
        "symmetric": False,
        "array": table["high"].to_numpy(dtype=float) - value,
        "arrayminus": value - table["low"].to_numpy(dtype=float),
        "color": MEASURED,
        "thickness": 1.2,
    }
    fig.add_bar(
        x=table["decile"],
        y=value,
        error_y=error,
        name="by entropy",
        marker={"color": "rgba(67, 137, 208, 0.55)"},
        customdata=table["n"],
        hovertemplate="decile %{x}: %{y:.1%} of %{customdata}<extra></extra>",
    )
    fig.add_scatter(
        x=table["decile"],
        y=table["survival_by_rate"],
        name="by firing rate",
        line={"color": CONTROL, "width": 2},
        marker={"size": 7},
        hovertemplate="decile %{x} of firing rate: %{y:.1%}<extra></extra>",
    )
    fig.update_xaxes(title_text="decile, low to high", dtick=1, showgrid=False)
    return fig.update_yaxes(title_text="reach the end", tickformat=SHARES, rangemode="tozero")

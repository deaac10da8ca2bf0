"""What all figures share: colours by meaning, a template that reads on light and on dark, and labels."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import SupportsFloat, SupportsInt

import pandas as pd
import plotly.graph_objects as go

# One meaning, one colour, in every figure. All read on white and on near-black.
CARRIER = "#d9622b"  # carriers
FOLLOWER = "#d9a13b"  # what carriers reach
MEASURED = "#3f87c9"  # what was measured
TINT = "rgba(63, 135, 201, 0.22)"  # the same, as an area
SECOND = "#2b9c7e"  # a second measured series
SECOND_TINT = "rgba(43, 156, 126, 0.22)"
THIRD = "#a06cc8"
CONTROL = "#8a919c"  # controls and nulls
FAINT = "rgba(138, 145, 156, 0.35)"  # what could not be tested, and crowds of faint things
GRID = "rgba(128, 136, 148, 0.25)"
INK = "#6d7480"

BLOCK = re.compile(r"blocks\.(\d+)\.(?:hook_)?(.+)")
TITLES = {"title": {"font": {"size": 13}}, "tickfont": {"size": 12}, "ticklabelstandoff": 4}

TEMPLATE = go.layout.Template(
    layout={
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": INK},
        "margin": {"l": 8, "r": 12, "t": 40, "b": 8},
        "xaxis": {"automargin": True, "gridcolor": GRID, "zeroline": False, "linecolor": GRID, "ticks": ""} | TITLES,
        "yaxis": {"automargin": True, "gridcolor": GRID, "zeroline": False, "linecolor": GRID, "ticks": ""} | TITLES,
        "legend": {"orientation": "h", "traceorder": "normal"}
        | {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"},
        "hoverlabel": {"align": "left"},
    }
)


def figure(height: int, *, title: str, caption: str = "") -> go.Figure:
    """An empty figure in the common style."""
    return styled(go.Figure(), height, title=title, caption=caption)


def styled(fig: go.Figure, height: int, *, title: str, caption: str = "") -> go.Figure:
    """Give a figure the common style. Title and caption are kept in `layout.meta`: the page prints them itself."""
    return fig.update_layout(template=TEMPLATE, height=height, meta={"title": title, "caption": caption})


def plain(text: object) -> str:
    """Text that plotly will not read as markup."""
    return html.escape(str(text), quote=False)


def step_label(step: SupportsInt) -> str:
    """1000 as 1k, 143000 as 143k, 1500 as 1.5k, 512 as 512, 1024 as 1,024: short, and different for different steps."""
    step = int(step)
    if step >= 1_000_000 and step % 100_000 == 0:
        return f"{step / 1e6:g}M"
    if step >= 1000 and step % 100 == 0:
        return f"{step / 1e3:g}k"
    return f"{step:,}"


def transition_labels(table: pd.DataFrame) -> list[str]:
    """`0→1k` for each row with step_from and step_to."""
    pairs = zip(table["step_from"], table["step_to"], strict=True)
    return [f"{step_label(start)}→{step_label(end)}" for start, end in pairs]


def hook_labels(hook_names: Sequence[str]) -> dict[str, str]:
    """`block 5` for `blocks.5.hook_resid_post` where all hook points are of one kind, else `5 resid_post`; escaped."""
    found = {name: BLOCK.fullmatch(name) for name in hook_names}
    kinds = {match[2] if match else None for match in found.values()}
    if len(kinds) == 1 and None not in kinds:
        return {name: f"block {match[1]}" for name, match in found.items() if match}
    return {name: plain(f"{match[1]} {match[2]}" if match else name) for name, match in found.items()}


def appearing(values: pd.Series) -> list[str]:
    """Distinct values in order of appearance."""
    return [str(value) for value in dict.fromkeys(values)]


def short(value: SupportsFloat, digits: int = 3) -> str:
    """A number for a label: three significant digits, an en dash where there is none."""
    value = float(value)
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}g}".replace("-", "−")


def p_label(p: SupportsFloat) -> str:
    """`p = 0.01`, `p < 0.001`, or nothing where there is none."""
    p = float(p)
    if math.isnan(p):
        return ""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"

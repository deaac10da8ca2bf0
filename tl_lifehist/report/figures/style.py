"""What all figures share: colours by meaning, a template that reads on light and on dark, and labels."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat, SupportsInt

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from tl_lifehist.hook_names import parse_hook_name
from tl_lifehist.palette import GRID, INK

PLOTLY_HEIGHT = 450  # of a figure that does not say
SHARES = "~%"  # an axis of shares: as many digits as its ticks need, so that no two of them read alike

# The buttons of a figure, all of them: plotly's own choice has some that send the figure's data elsewhere.
BUTTONS = [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]]
CONFIG = {
    "displaylogo": False,
    "modeBarButtons": BUTTONS,
    "plotlyServerURL": "",
    "showSendToCloud": False,
}
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


def figure(height: int, *, title: str, caption: str = "", heading: str = "", least_width: int = 0) -> go.Figure:
    """An empty figure in the common style."""
    return styled(go.Figure(), height, title=title, caption=caption, heading=heading, least_width=least_width)


def styled(
    fig: go.Figure, height: int, *, title: str, caption: str = "", heading: str = "", least_width: int = 0
) -> go.Figure:
    """Give a figure the common style. What a page needs besides is kept in `layout.meta`: the page prints it itself.

    Args:
        title: what a reader is told who cannot see the figure.
        caption: printed under it.
        heading: printed above it, where a section has several figures that must not be taken for each other.
        least_width: in pixels; on a narrower page the figure scrolls sideways by itself.
    """
    meta = {"title": title, "caption": caption, "heading": heading, "least_width": least_width}
    return fig.update_layout(template=TEMPLATE, height=height, meta=meta)


def in_style(fig: go.Figure) -> go.Figure:
    """A figure as it is where `styled` has seen it; any other of plotly's as a copy in the common style."""
    if isinstance(fig.layout.meta, dict) and "least_width" in fig.layout.meta:
        return fig
    return styled(go.Figure(fig), fig.layout.height or PLOTLY_HEIGHT, title=fig.layout.title.text or "figure")


def whiskers(value: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str) -> dict[str, Any]:
    """Error bars from `low` to `high` around `value`."""
    middle, below, above = (np.asarray(x, dtype=float) for x in (value, low, high))
    ends = {"type": "data", "symmetric": False, "array": above - middle, "arrayminus": middle - below}
    return ends | {"color": colour, "thickness": 1.5, "width": 3}


def step_axis(fig: go.Figure, steps: Sequence[SupportsInt]) -> go.Figure:
    """Checkpoints in order and equally spaced on every x axis of a figure."""
    names = [step_label(step) for step in sorted({int(step) for step in steps})]
    return fig.update_xaxes(type="category", categoryorder="array", categoryarray=names)


def log_axis(values: ArrayLike) -> dict[str, Any]:
    """An axis over the decades of the positive values, with at most seven ticks at 1, 2 and 5 or at powers of ten."""
    found = np.asarray(values, dtype=float)
    found = found[np.isfinite(found) & (found > 0)]
    if not len(found):
        return {"type": "log"}
    low, high = np.log10(found.min()) - 0.05, np.log10(found.max()) + 0.05
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [s * 10.0**d for d in decades for s in steps if low <= math.log10(s) + d <= high]
        if len(ticks) <= 7:
            break
    ticks = ticks[:: math.ceil(len(ticks) / 7) or 1] or [float(found.min()), float(found.max())]
    return {"type": "log", "range": [low, high], **told_apart(ticks)}


def told_apart(ticks: Sequence[float], scale: Callable[[float], float] = float) -> dict[str, list[Any]]:
    """Ticks with the fewest digits that tell their labels apart, each value once.

    Args:
        ticks: where they stand on the axis.
        scale: from there to what the label says.
    """
    places = list(dict.fromkeys(ticks))
    for digits in range(2, 16):
        labels = [short(scale(tick), digits) for tick in places]
        if len(set(labels)) == len(labels):
            break
    return {"tickvals": places, "ticktext": labels}


def titles_below_legend(fig: go.Figure, pixels: float, height: int) -> go.Figure:
    """Move panels and their titles down, so that a legend of any number of lines does not cover the titles."""
    share = 1 - pixels / height
    for axis in fig.select_yaxes():
        axis.domain = [end * share for end in axis.domain]
    for note in fig.select_annotations({"yref": "paper"}):
        note.y *= share
    return small_titles(fig)


def small_titles(fig: go.Figure) -> go.Figure:
    """Titles of panels no larger than those of axes."""
    return fig.update_annotations(font={"size": 13})


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
    places = {name: parse_hook_name(name) for name in hook_names}
    found = {name: (block, site.removeprefix("hook_")) for name, (block, site) in places.items()}
    if len({site for _, site in found.values()}) == 1 and all(block >= 0 for block, _ in found.values()):
        return {name: f"block {block}" for name, (block, _) in found.items()}
    return {name: plain(f"{block} {site}" if block >= 0 else name) for name, (block, site) in found.items()}


def appearing(values: pd.Series) -> list[str]:
    """Distinct values in order of appearance."""
    return [str(value) for value in dict.fromkeys(values)]


def short(value: SupportsFloat, digits: int = 3) -> str:
    """A number for a label: three significant digits, an en dash where there is none."""
    value = float(value)
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}g}".replace("-", "−")


def share_label(share: SupportsFloat) -> str:
    """A share for a label: `6.6 %`, `73 %`, an en dash where there is none."""
    percent = 100 * float(share)
    return "–" if math.isnan(percent) else f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def p_label(p: SupportsFloat) -> str:
    """`p = 0.01`, `p < 0.001`, or nothing where there is none."""
    p = float(p)
    if math.isnan(p):
        return ""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"

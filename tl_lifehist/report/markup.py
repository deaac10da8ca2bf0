"""Small pieces of HTML. Every text that comes from a table goes through `escape` or `visible` here."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

import numpy as np
import pandas as pd

VERDICTS = {"beyond": "beyond", "within": "within", "not testable": "untestable"}
SHOWN = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"}


def escape(text: object) -> str:
    """Text as HTML text, quotes included, so that it may stand in an attribute as well."""
    return html.escape(str(text), quote=True)


def number(value: Any, digits: int = 3) -> str:
    """A value of a table for a reader: grouped integers, `digits` significant digits, an en dash where there is none.

    Text stays as it is. The result is escaped.
    """
    if value is None or value is pd.NA or value is pd.NaT:
        return "–"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}".replace("-", "−")
    if not isinstance(value, (float, np.floating)):
        return escape(value) or "–"
    value = float(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def percent(value: SupportsFloat) -> str:
    """A share in per cent, an en dash where there is none."""
    value = float(value)
    return "–" if math.isnan(value) else f"{100 * value:.3g}\u00a0%"


def p_value(value: Any) -> str:
    """A p for a table; below a thousandth it says only that."""
    return "&lt; 0.001" if isinstance(value, (float, np.floating)) and value < 0.001 else number(value, 2)


def interval(low: Any, high: Any) -> str:
    """`0.1 to 0.3`, or nothing where both ends are missing."""
    ends = [number(low), number(high)]
    return "" if ends == ["–", "–"] else " to ".join(ends)


def absent(reason: str) -> str:
    """The line that stands where something was not computed."""
    return f'<p class="absent">Not computed: {escape(reason)}.</p>'


def section(key: str, title: str, body: str, *, level: int = 2) -> str:
    """A section that links can point to; `level` is that of its heading."""
    return f'<section id="{key}"><h{level}>{title}</h{level}>\n{body}\n</section>'


def badge(verdict: object) -> str:
    """The verdict in words, with a colour on top of the words."""
    return f'<span class="badge {VERDICTS.get(str(verdict), "untestable")}">{escape(verdict)}</span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table in a box that scrolls sideways. Cells are HTML already; all but the first `left` columns are numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{'' if i < left else ' class=number'}>{cell}</{tag}>" for i, cell in enumerate(cells))

    body = "\n".join(f"<tr>{line(cells, 'td')}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{line(head, "th")}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )


def frame(data: pd.DataFrame, names: Mapping[str, str], *, left: int = 1) -> str:
    """The columns `names` of a DataFrame as a table, with those headings."""
    columns = [data[name].tolist() for name in names]
    rows = ([number(cell) for cell in row] for row in zip(*columns, strict=True))
    return table([escape(heading) for heading in names.values()], rows, left=left)


def details(summary: str, body: str, *, kind: str = "", opened: bool = False) -> str:
    """A part that opens on a click. Both are HTML."""
    state = " open" if opened else ""
    return f'<details class="{kind}"{state}><summary>{summary}</summary>{body}</details>'


def definitions(entries: Iterable[tuple[str, str]]) -> str:
    """A list of terms and explanations. Both are HTML."""
    return "<dl>" + "".join(f"<dt>{term}</dt><dd>{text}</dd>" for term, text in entries) + "</dl>"


def visible(text: str, *, spaces: bool = False) -> str:
    """Token text: escaped, with line breaks, tabs, control and direction marks shown lightly instead of acted on.

    Args:
        text: any text; it may be hostile.
        spaces: also show single spaces, for a token whose spaces matter.
    """
    out = []
    for character in str(text):
        if character in SHOWN and (spaces or character != " "):
            out.append(f"<i>{SHOWN[character]}</i>" + ("<wbr>" if character == "\n" else ""))
        elif unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character != "\u200d":
            out.append(f"<i>U+{ord(character):04X}</i>")
        else:
            out.append(html.escape(character, quote=True))
    return "".join(out)

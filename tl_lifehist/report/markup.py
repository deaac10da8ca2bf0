"""Small pieces of HTML. Text is a `str` and HTML is `Markup`: what puts pieces together escapes the one and keeps the
other, so that no text of a run becomes markup by being forgotten.
"""

from __future__ import annotations

import html as html_of
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsFloat

import numpy as np
import pandas as pd
from markupsafe import EscapeFormatter, Markup
from typing_extensions import LiteralString  # noqa: UP035  (typing has it from Python 3.11 on)

VERDICTS = {"beyond": "beyond", "within": "within", "not testable": "untestable"}
SHOWN = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"}


def escape(text: object) -> Markup:
    """Text as HTML, quotes included, so that it may stand in an attribute as well. What is HTML stays as it is."""
    return text if isinstance(text, Markup) else Markup(html_of.escape(str(text), quote=True))  # noqa: S704


def html(template: LiteralString, *values: object) -> Markup:
    """HTML from a template of ours: everything filled in is escaped, unless it is HTML itself."""
    return Markup(EscapeFormatter(escape).vformat(template, values, {}))  # noqa: S704


def joined(separator: LiteralString, parts: Iterable[object]) -> Markup:
    """Parts in a row, each escaped unless it is HTML itself."""
    return Markup(separator.join(map(escape, parts)))  # noqa: S704


def number(value: Any, digits: int = 3) -> Markup:
    """A value of a table for a reader: grouped integers, `digits` significant digits, an en dash where there is none.

    Text stays as it is.
    """
    if value is None or value is pd.NA or value is pd.NaT:
        return escape("–")
    if isinstance(value, (bool, np.bool_)):
        return escape("yes" if value else "no")
    if isinstance(value, (int, np.integer)):
        return escape(f"{int(value):,}".replace("-", "−"))
    if not isinstance(value, (float, np.floating)):
        return escape(value) or escape("–")
    value = float(value)
    if not math.isfinite(value):
        return escape("–" if math.isnan(value) else ("∞" if value > 0 else "−∞"))
    if value == int(value) and abs(value) < 1e15:
        return escape(f"{int(value):,}".replace("-", "−"))
    if abs(value) >= 1000:
        return escape(f"{value:,.0f}".replace("-", "−"))
    return escape(f"{value:.{digits}g}".replace("-", "−"))


def percent(value: SupportsFloat) -> Markup:
    """A share in per cent, an en dash where there is none."""
    value = float(value)
    return escape("–" if math.isnan(value) else f"{100 * value:.3g}\u00a0%")


def p_value(value: Any) -> Markup:
    """A p for a table; below a thousandth it says only that."""
    return escape("< 0.001") if isinstance(value, (float, np.floating)) and value < 0.001 else number(value, 2)


def interval(low: Any, high: Any) -> Markup:
    """`0.1 to 0.3`, or nothing where both ends are missing."""
    ends = [number(low), number(high)]
    return Markup("") if ends == ["–", "–"] else joined(" to ", ends)


def absent(reason: str) -> Markup:
    """The line that stands where something was not computed."""
    return html('<p class="absent">Not computed: {}.</p>', reason)


def section(key: str, title: str, body: str, *, level: Literal[2, 3] = 2) -> Markup:
    """A section that links can point to; `level` is that of its heading."""
    return html('<section id="{0}"><h{3}>{1}</h{3}>\n{2}\n</section>', key, title, body, level)


def badge(verdict: object) -> Markup:
    """The verdict in words, with a colour on top of the words."""
    return html('<span class="badge {}">{}</span>', VERDICTS.get(str(verdict), "untestable"), verdict)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Markup:
    """A table in a box that scrolls sideways. All but the first `left` columns are numbers."""

    def line(cells: Sequence[str], tag: str) -> Markup:
        kinds = ("" if i < left else " class=number" for i in range(len(cells)))
        return joined("", (html("<{0}{1}>{2}</{0}>", tag, kind, cell) for kind, cell in zip(kinds, cells, strict=True)))

    body = joined("\n", (html("<tr>{}</tr>", line(cells, "td")) for cells in rows))
    return html(
        '<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>\n{}\n</tbody></table></div>',
        line(head, "th"),
        body,
    )


def frame(data: pd.DataFrame, names: Mapping[str, str], *, left: int = 1) -> Markup:
    """The columns `names` of a DataFrame as a table, with those headings."""
    columns = [data[name].tolist() for name in names]
    rows = ([number(cell) for cell in row] for row in zip(*columns, strict=True))
    return table(list(names.values()), rows, left=left)


def details(summary: str, body: str, *, kind: str = "", opened: bool = False) -> Markup:
    """A part that opens on a click."""
    state = " open" if opened else ""
    return html('<details class="{}"{}><summary>{}</summary>{}</details>', kind, state, summary, body)


def definitions(entries: Iterable[tuple[str, str]]) -> Markup:
    """A list of terms and explanations."""
    return html("<dl>{}</dl>", joined("", (html("<dt>{}</dt><dd>{}</dd>", *entry) for entry in entries)))


def visible(text: str, *, spaces: bool = False) -> Markup:
    """Token text: escaped, with line breaks, tabs, control and direction marks shown lightly instead of acted on.

    Args:
        text: any text; it may be hostile.
        spaces: also show single spaces, for a token whose spaces matter.
    """
    out: list[Markup] = []
    for character in str(text):
        if character in SHOWN and (spaces or character != " "):
            out.append(html("<i>{}</i>", SHOWN[character]))
            out += [Markup("<wbr>")] if character == "\n" else []
        elif unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character != "\u200d":
            out.append(html("<i>{}</i>", f"U+{ord(character):04X}"))
        else:
            out.append(escape(character))
    return joined("", out)

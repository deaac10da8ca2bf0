"""The report of one run or of several as one HTML file that opens offline: plotly.js inside, nothing fetched."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from tl_lifehist.errors import InputError
from tl_lifehist.report.figures.style import CONFIG
from tl_lifehist.report.markup import absent, definitions, details, escape, html, joined, section
from tl_lifehist.report.parts import Part, claims, head, heading, limits, parts_of, provenance
from tl_lifehist.report.sections import Content, Section, sections_of
from tl_lifehist.report.tables import RunTables, read_run


def write_report(run_path: str | Path, *others: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run, or one report of several runs, from their tables and their `study.json` alone.

    A run may be of either study; what is shown follows from its `study.json`. Every section states what is shown, its
    definition, its control and its sample size; a section whose table is missing or empty says so. All text from the
    runs is escaped, and the page can fetch nothing.

    Args:
        run_path: the folder of a run.
        others: folders of further runs, shown after it on the same page.
        out: the file to write. Default: `report.html` in the folder of the run, or in the folder that the folders of
            all the runs have in common.

    Returns:
        The path of the report. An older one is replaced whole.

    Raises:
        InputError: one of these is no folder of a finished run, or of an earlier version; one is given twice; a file is
            damaged; or the report cannot be written.

    How it can mislead: a page shows what was computed. What was reduced stands at its top, and what was not computed
    where it would have been. Runs on one page need not be of the same model or text: their heads say what they are.
    """
    paths = [Path(run_path), *(Path(other) for other in others)]
    folders = [path.resolve() for path in paths]
    for folder in folders:
        if folders.count(folder) > 1:
            raise InputError(f"The run {str(folder)!r} is given twice: name each run once.")
    runs = [read_run(path) for path in paths]
    if out is not None:
        target = Path(out)
    elif others:
        target = Path(os.path.commonpath([folder.parent for folder in folders])) / "report.html"
    else:
        target = paths[0] / "report.html"
    _replace(target, render(runs))
    return target


def _replace(target: Path, text: str) -> None:
    """Write a file whole or not at all."""
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".report-", suffix=".html")
    except OSError as error:
        raise InputError(f"The report cannot be written to {str(target.parent)!r} ({error.strerror}).") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"The report cannot be written to {str(target)!r} ({error.strerror}).") from error


def render(runs: Sequence[RunTables]) -> str:
    """The whole page."""
    parts = parts_of(runs)
    body = [head(parts), claims(parts), *map(_sections, parts), limits(parts), provenance(parts)]
    folder = files("tl_lifehist.report")
    css, script, page = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    return Template(page).substitute(
        title=escape(heading(parts)),
        css=css,
        script=script,
        config=json.dumps(CONFIG),
        body="\n".join(body),
        plotly=get_plotlyjs(),
    )


def contents(run: RunTables) -> Iterator[tuple[str, Section, Content | str]]:
    """Each section with its name, and with its content or the reason why it was not computed."""
    for name, it in sections_of(run.kind).items():
        yield name, it, it.content(run)


def _sections(part: Part) -> Markup:
    """The sections of one run, under its name where it is not alone."""
    level = 3 if part.name else 2
    body = joined(
        "\n",
        (
            section(part.key(name), it.title, _shown(part, content), level=level)
            for name, it, content in contents(part.run)
        ),
    )
    return (
        html('<div class="part" id="{}"><h2>{}</h2>\n{}\n</div>', part.anchor, part.name, body) if part.name else body
    )


def _shown(part: Part, content: Content | str) -> Markup:
    if isinstance(content, str):
        return absent(content)
    plots = joined("\n", (plot(part.key(name), fig) for name, fig in content.figures.items()))
    if any(fig["layout"]["meta"]["heading"] for fig in content.figures.values()):
        plots = html('<div class="pairs">{}</div>', plots)
    elif len(content.figures) > 2:
        plots = html('<div class="panels">{}</div>', plots)
    notes = definitions(
        [
            ("Definition", content.definition),
            ("Control", content.control),
            ("Sample", content.sample),
            ("Can mislead", content.misleads),
        ]
    )
    about = details("Definition, control, sample size", notes)
    text = joined("", (html("<p>{}</p>\n", paragraph) for paragraph in (content.text, *content.points)))
    return html("{}{}\n{}\n{}\n{}", text, content.table, plots, about, content.more)


def plot(name: str, fig: go.Figure) -> Markup:
    """A figure as a box and its data; the script of the page draws it."""
    layout = fig["layout"]
    meta = layout["meta"]
    # in a script element no character of HTML means anything but `<`, and JSON may write all three as escapes
    data = str(fig.to_json()).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    above = html('<p class="heading">{}</p>', meta["heading"]) if meta["heading"] else ""
    caption = html("<figcaption>{}</figcaption>", meta["caption"]) if meta["caption"] else ""
    width = f";min-width:{meta['least_width']}px" if meta["least_width"] else ""
    box = html(
        '<div class="plot" id="plot-{}" style="height:{}px{}" role="img" aria-label="{}"></div>'
        '<script type="application/json">{}</script>',
        name,
        layout["height"],
        width,
        meta["title"],
        Markup(data),  # noqa: S704
    )
    if width:
        box = html('<div class="scroll">{}</div>', box)
    return html("<figure>{}{}{}</figure>", above, box, caption)

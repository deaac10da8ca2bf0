"""The report of a run as one HTML file that opens offline: plotly.js inside, nothing fetched."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tl_lifehist.errors import InputError
from tl_lifehist.report.markup import absent, definitions, details, escape, section
from tl_lifehist.report.parts import claims, head, limits, provenance, published, text_of
from tl_lifehist.report.sections import SECTIONS, Content, Section
from tl_lifehist.report.tables import RunTables, read_run


def write_report(run_path: str | Path) -> Path:
    """Write `report.html` into a life-history run's folder, from its tables and its `study.json` alone.

    Every section states what is shown, its definition, its control and its sample size; a section whose table is
    missing or empty says so. All text from the run is escaped, and the page can fetch nothing.

    Returns:
        The path of the report. An older one is replaced whole.

    Raises:
        InputError: this is no run folder, a file of it cannot be read, or the folder cannot be written to.

    How it can mislead: a page shows what was computed. What was reduced stands at its top, and what was not computed
    where it would have been.
    """
    run = read_run(run_path)
    target = run.path / "report.html"
    text = render(run)
    try:
        handle, temporary = tempfile.mkstemp(dir=run.path, prefix=".report-", suffix=".html")
    except OSError as error:
        raise InputError(f"The report cannot be written to {str(run.path)!r} ({error.strerror}).") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"The report cannot be written to {str(target)!r} ({error.strerror}).") from error
    return target


def render(run: RunTables) -> str:
    """The whole page."""
    title = f"Life history of features: {text_of(run.study.get('series', run.path.name))}"
    parts = [head(run, title), claims(run), published(run)]
    parts += [section(it.key, it.title, _shown(content)) for it, content in contents(run)]
    parts += [limits(), provenance(run)]
    folder = files("tl_lifehist.report")
    css, script, page = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    return Template(page).substitute(
        title=escape(title), css=css, script=script, body="\n".join(parts), plotly=get_plotlyjs()
    )


def contents(run: RunTables) -> Iterator[tuple[Section, Content | str]]:
    """Each section with its content, or with the reason why it was not computed."""
    for it in SECTIONS:
        yield it, run.why_none(*it.needs) or it.build(run)


def _shown(content: Content | str) -> str:
    if isinstance(content, str):
        return absent(content)
    plots = "\n".join(plot(name, fig) for name, fig in content.figures.items())
    if len(content.figures) > 2:
        plots = f'<div class="panels">{plots}</div>'
    notes = definitions(
        [
            ("Definition", content.definition),
            ("Control", content.control),
            ("Sample", content.sample),
            ("Can mislead", content.misleads),
        ]
    )
    about = details("Definition, control, sample size", notes)
    return f"<p>{content.text}</p>\n{plots}\n{about}\n{content.more}"


def plot(name: str, fig: go.Figure) -> str:
    """A figure as a box and its data; the script of the page draws it."""
    layout = fig["layout"]
    meta = layout["meta"]
    data = str(fig.to_json()).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    caption = f"<figcaption>{escape(meta['caption'])}</figcaption>" if meta["caption"] else ""
    box = (
        f'<div class="plot" id="plot-{escape(name)}" style="height:{layout["height"]}px" role="img" '
        f'aria-label="{escape(meta["title"])}"></div>'
    )
    return f'<figure>{box}<script type="application/json">{data}</script>{caption}</figure>'

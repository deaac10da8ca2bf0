"""The parts of the page that hold no figure: its head, the claims, limits and provenance, for each run on the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tl_lifehist.report.figures.style import step_label
from tl_lifehist.report.kinds import KINDS, Kind
from tl_lifehist.report.markup import (
    absent,
    badge,
    definitions,
    details,
    escape,
    interval,
    number,
    p_value,
    section,
    table,
)
from tl_lifehist.report.tables import RunTables


@dataclass(frozen=True)
class Part:
    """One run on the page.

    Attributes:
        run: its tables.
        kind: what is said of runs of its study.
        name: how the page calls it, as HTML; empty where it is alone.
        anchor: where its sections begin; empty where it is alone.
    """

    run: RunTables
    kind: Kind
    name: str = ""
    anchor: str = ""

    def key(self, name: str) -> str:
        """An id that no other part of the page has."""
        return f"{self.anchor}-{name}" if self.anchor else name


def parts_of(runs: Sequence[RunTables]) -> list[Part]:
    """The runs with names and anchors: by study, and by folder where a study comes twice."""
    if len(runs) == 1:
        return [Part(runs[0], KINDS[runs[0].kind])]
    parts = []
    for i, run in enumerate(runs):
        before = [other.kind for other in runs[:i]].count(run.kind)
        twice = [other.kind for other in runs].count(run.kind) > 1
        name = f"{KINDS[run.kind].title} ({run.path.resolve().name})" if twice else KINDS[run.kind].title
        anchor = f"{run.kind}-{before + 1}" if before else run.kind
        parts.append(Part(run, KINDS[run.kind], escape(name), anchor))
    return parts


def heading(parts: Sequence[Part]) -> str:
    """The title of the page, as plain text."""
    kinds = dict.fromkeys(part.kind.title for part in parts)
    series = dict.fromkeys(text_of(part.run.study.get("series", part.run.path.name)) for part in parts)
    first, *others = kinds
    return f"{' and '.join([first, *(name[0].lower() + name[1:] for name in others)])}: {' and '.join(series)}"


def head(parts: Sequence[Part]) -> str:
    """Title, checkpoints, hook points and what was reduced in each run, and links to the sections."""
    runs = "".join(
        (f'<p class="run">{part.name}</p>' if part.name else "")
        + definitions(_about(part.run))
        + f'<div class="reduced">{_reduced(part.run.study.get("reduced"))}</div>'
        for part in parts
    )
    first, last = [("claims", "Claims")], [("limits", "Limits"), ("provenance", "Provenance")]
    own = [[(part.key(s.key), s.title) for s in part.kind.sections] for part in parts]
    if len(parts) == 1:
        links = _links([*first, *own[0], *last])
    else:
        links = f"<div>{_links([*first, *last])}</div>" + "".join(
            f'<div><a class="run" href="#{part.anchor}">{part.name}</a> {_links(sections)}</div>'
            for part, sections in zip(parts, own, strict=True)
        )
    return (
        f"<header><h1>{escape(heading(parts))}</h1>{runs}</header>\n"
        f'<nav aria-label="Sections" id="contents">{links}</nav>'
    )


def _links(entries: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<a href="#{key}">{name}</a> ' for key, name in entries)


def _about(run: RunTables) -> list[tuple[str, str]]:
    steps = [step_label(step) for step in run.steps]
    if len(steps) > 14:
        steps = [*steps[:7], "…", *steps[-6:]]
    hooks = ", ".join(f"<code>{escape(name)}</code>" for name in run.hook_names)
    entries = [
        (f"{len(run.steps)} checkpoints", "steps " + ", ".join(steps) if steps else "–"),
        (f"{len(run.hook_names)} hook points", hooks or "–"),
    ]
    integrity = str(run.study.get("integrity", ""))
    if integrity and not integrity.endswith("no fault found."):  # allowed by name, and to be read with everything
        entries.append(("weights", f"<strong>{escape(integrity)}</strong>"))
    return entries


def _reduced(reduced: object) -> str:
    if not isinstance(reduced, Mapping):
        return "<p>This run does not record what was reduced.</p>"
    if not reduced:
        return "<p>This run declares nothing as reduced; its settings stand at the end of the page.</p>"
    items = "".join(f"<li>{escape(name)}: {escape(text_of(value))}</li>" for name, value in reduced.items())
    return f"<p><strong>Reduced in this run.</strong> Its numbers depend on it.</p><ul>{items}</ul>"


def _of_each(parts: Sequence[Part], body: Callable[[Part], str]) -> str:
    """The same for every run, under its name where there are several."""
    return "\n".join((f"<h3>{part.name}</h3>" if part.name else "") + body(part) for part in parts)


def claims(parts: Sequence[Part]) -> str:
    """Every claim of every run beside its null, with a verdict in words."""
    text = (
        "<p><em>Beyond</em>: outside what the null gives, on the side that the claim names. <em>Within</em>: the null "
        "explains it. <em>Not testable</em>: this run has no fair null for it, and the note says why. The interval is "
        "the null's.</p>"
    )
    return section("claims", "Claims", text + _of_each(parts, lambda part: _claims(part.run)))


def _claims(run: RunTables) -> str:
    if reason := run.why_not("claims"):
        return absent(reason)
    rows = []
    for row in run.get("claims").to_dict("records"):
        note = row.get("note")
        small = f"<small>{escape(note)}</small>" if isinstance(note, str) and note else ""
        band = interval(row["low"], row["high"])
        null = number(row["null"]) + (f"<small>{band}</small>" if band else "")
        cells = [escape(row["claim"]) + small, badge(row["verdict"]), number(row["observed"]), null]
        rows.append([*cells, p_value(row["p"]), number(row["n"])])
    headings = ["claim", "verdict", "observed", "null <small>95 %</small>", "p", "n"]
    return table(headings, rows, left=2)


def limits(parts: Sequence[Part]) -> str:
    """What none of these results can tell."""
    return section(
        "limits",
        "Limits",
        _of_each(parts, lambda part: f"<ul>{''.join(f'<li>{limit}</li>' for limit in part.kind.limits)}</ul>"),
    )


def provenance(parts: Sequence[Part]) -> str:
    """How each run was made: versions, seed, threads, configuration, fingerprints of the weights."""
    return section("provenance", "Provenance", _of_each(parts, lambda part: _provenance(part.run.study)))


def _provenance(study: Mapping[str, Any]) -> str:
    entries = [
        (escape(key), escape(text_of(study[key])))
        for key in ("study", "series", "integrity", "seed", "threads")
        if key in study
    ]
    blocks = [definitions(entries)]
    for key, name in (("versions", "Versions"), ("config", "Configuration"), ("fingerprints", "Weight fingerprints")):
        if study.get(key):
            shown = escape(json.dumps(study[key], indent=1, ensure_ascii=False))
            blocks.append(details(name, f"<pre>{shown}</pre>"))
    return "".join(blocks)


def text_of(value: Any) -> str:
    """A value of study.json on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text_of(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(text_of(item) for item in value)
    return str(value)

"""The parts of the page that hold no figure: its head, the claims, the published figures, limits, provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tl_lifehist.report.figures.style import step_label
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
from tl_lifehist.report.sections import SECTIONS
from tl_lifehist.report.tables import RunTables

PUBLISHED_SOURCE = "Stecher, Radovanović, Sikimić, Kahle, arXiv 2605.18789 (2026)"
LIMITS = (
    "A death may be noise of SAE training: two SAEs of one checkpoint agree only in part. Read match rates beside "
    "their floors.",
    "A carrier has been selected for being stable under SAE training, and it is broad. That carriers bear more of "
    "the loss than random features follows from breadth alone; only controls matched in mass say more.",
    "“Not testable” is a result: where carriers have no equals, no fair control exists and no p is given.",
    "Features are the SAE's. Another width, sparsity, threshold or set of tokens gives other features and other "
    "counts.",
    "What lies in the reconstruction error, or fires too rarely to count as alive, is in none of these tables.",
    "A containment edge says that one feature fires where another fires, not that one causes or precedes the other.",
    (
        "Intervals are of one training run: over documents for the joint load, over lineages or features "
        "elsewhere. Nothing here says what another seed of the model would show."
    ),
)


def head(run: RunTables, title: str) -> str:
    """Title, checkpoints, hook points, what was reduced, and links to the sections."""
    steps = [step_label(step) for step in run.steps]
    if len(steps) > 14:
        steps = [*steps[:7], "…", *steps[-6:]]
    hooks = ", ".join(f"<code>{escape(name)}</code>" for name in run.hook_names)
    about = [
        (f"{len(run.steps)} checkpoints", "steps " + ", ".join(steps) if steps else "–"),
        (f"{len(run.hook_names)} hook points", hooks or "–"),
    ]
    links = [("claims", "Claims"), ("published", "Published figures"), *((s.key, s.title) for s in SECTIONS)]
    links += [("limits", "Limits"), ("provenance", "Provenance")]
    nav = "".join(f'<a href="#{key}">{name}</a> ' for key, name in links)
    return "\n".join(
        [
            f"<header><h1>{escape(title)}</h1>{definitions(about)}</header>",
            f'<div class="reduced">{_reduced(run.study.get("reduced"))}</div>',
            f'<nav aria-label="Sections">{nav}</nav>',
        ]
    )


def _reduced(reduced: object) -> str:
    if not isinstance(reduced, Mapping):
        return "<p>This run does not record what was reduced.</p>"
    if not reduced:
        return "<p>Nothing was reduced in this run.</p>"
    items = "".join(f"<li>{escape(name)}: {escape(text_of(value))}</li>" for name, value in reduced.items())
    return f"<p><strong>Reduced in this run.</strong> Its numbers depend on it.</p><ul>{items}</ul>"


def claims(run: RunTables) -> str:
    """Every claim beside its null, with a verdict in words."""
    if reason := run.why_not("claims"):
        return section("claims", "Claims", absent(reason))
    rows = []
    for row in run.get("claims").to_dict("records"):
        note = row.get("note")
        small = f"<small>{escape(note)}</small>" if isinstance(note, str) and note else ""
        band = interval(row["low"], row["high"])
        null = number(row["null"]) + (f"<small>{band}</small>" if band else "")
        cells = [escape(row["claim"]) + small, badge(row["verdict"]), number(row["observed"]), null]
        rows.append([*cells, p_value(row["p"]), number(row["n"])])
    headings = ["claim", "verdict", "observed", "null <small>95 %</small>", "p", "n"]
    text = (
        "<p><em>Beyond</em>: outside what the null gives, on the side that the claim names. <em>Within</em>: the null "
        "explains it. <em>Not testable</em>: this run has no fair null for it, and the note says why. The interval is "
        "the null's.</p>"
    )
    return section("claims", "Claims", text + table(headings, rows, left=2))


def published(run: RunTables) -> str:
    """This run's numbers beside the published ones."""
    title = "Beside the published figures"
    if reason := run.why_not("published"):
        return section("published", title, absent(reason))
    columns = ["quantity", "ours", "pythia_160m", "pythia_410m", "n"]
    rows = [[number(row[name]) for name in columns] for row in run.get("published").to_dict("records")]
    headings = ["quantity", "this run", "Pythia-160M", "Pythia-410M", "n of this run"]
    text = (
        f"<p>From {escape(PUBLISHED_SOURCE)}. Printed to compare, never to tune towards: counts depend on model, SAEs, "
        "tokens and thresholds together.</p>"
    )
    return section("published", title, text + table(headings, rows, left=4))


def limits() -> str:
    """What none of these results can tell."""
    return section("limits", "Limits", f"<ul>{''.join(f'<li>{limit}</li>' for limit in LIMITS)}</ul>")


def provenance(run: RunTables) -> str:
    """How the run was made: versions, seed, threads, configuration, fingerprints of the weights."""
    study = run.study
    entries = [
        (escape(key), escape(text_of(study[key]))) for key in ("study", "series", "seed", "threads") if key in study
    ]
    parts = [definitions(entries)]
    for key, name in (("versions", "Versions"), ("config", "Configuration"), ("fingerprints", "Weight fingerprints")):
        if study.get(key):
            parts.append(details(name, f"<pre>{escape(json.dumps(study[key], indent=1, ensure_ascii=False))}</pre>"))
    return section("provenance", "Provenance", "".join(parts))


def text_of(value: Any) -> str:
    """A value of study.json on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text_of(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(text_of(item) for item in value)
    return str(value)

"""The parts of the page that hold no figure: its head, the claims, limits and provenance, for each run on the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tl_lifehist.report.figures.style import step_label
from tl_lifehist.report.kinds import KINDS, Kind
from tl_lifehist.report.markup import (
    absent,
    badge,
    definitions,
    details,
    html,
    interval,
    joined,
    number,
    p_value,
    percent,
    section,
    table,
)
from tl_lifehist.report.sections import sections_of
from tl_lifehist.report.tables import RunTables


@dataclass(frozen=True)
class Part:
    """One run on the page.

    Attributes:
        run: its tables.
        kind: what is said of runs of its study.
        name: how the page calls it; empty where it is alone.
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
        parts.append(Part(run, KINDS[run.kind], name, anchor))
    return parts


def heading(parts: Sequence[Part]) -> str:
    """The title of the page, as plain text."""
    kinds = dict.fromkeys(part.kind.title for part in parts)
    series = dict.fromkeys(text_of(part.run.study.get("series", part.run.path.name)) for part in parts)
    first, *others = kinds
    return f"{' and '.join([first, *(name[0].lower() + name[1:] for name in others)])}: {' and '.join(series)}"


def head(parts: Sequence[Part]) -> Markup:
    """Title, checkpoints, hook points and what was reduced in each run, and links to the sections."""
    runs = joined(
        "",
        (
            (html('<p class="run">{}</p>', part.name) if part.name else "")
            + definitions(_about(part.run))
            + html('<div class="reduced">{}</div>', _reduced(part.run.study.get("reduced")))
            for part in parts
        ),
    )
    first, last = [("claims", "Claims")], [("limits", "Limits"), ("provenance", "Provenance")]
    own = [[(part.key(name), s.title) for name, s in sections_of(part.run.kind).items()] for part in parts]
    if len(parts) == 1:
        links = _links([*first, *own[0], *last])
    else:
        links = html("<div>{}</div>", _links([*first, *last])) + joined(
            "",
            (
                html('<div><a class="run" href="#{}">{}</a> {}</div>', part.anchor, part.name, _links(sections))
                for part, sections in zip(parts, own, strict=True)
            ),
        )
    return html(
        '<header><h1>{}</h1>{}</header>\n<nav aria-label="Sections" id="contents">{}</nav>',
        heading(parts),
        runs,
        links,
    )


def _links(entries: Sequence[tuple[str, str]]) -> Markup:
    return joined("", (html('<a href="#{}">{}</a> ', key, name) for key, name in entries))


def _about(run: RunTables) -> list[tuple[str, str]]:
    steps = [step_label(step) for step in run.steps]
    if len(steps) > 14:
        steps = [*steps[:7], "…", *steps[-6:]]
    hooks = joined(", ", (html("<code>{}</code>", name) for name in run.hook_names))
    entries = [
        (html("{} checkpoints", len(run.steps)), "steps " + joined(", ", steps) if steps else "–"),
        (html("{} hook points", len(run.hook_names)), hooks or "–"),
    ]
    texts = run.study.get("texts")
    if isinstance(texts, Mapping) and texts:
        entries.append(("texts", joined("; ", (_text(split, text) for split, text in texts.items()))))
    integrity = str(run.study.get("integrity", ""))
    if integrity and not integrity.endswith("no fault found."):  # allowed by name, and to be read with everything
        entries.append(("weights", html("<strong>{}</strong>", integrity)))
    return entries


def _text(split: object, text: Any) -> Markup:
    """`train: 512 sequences, 65,536 positions`."""
    held = text if isinstance(text, Mapping) else {}
    return html("{}: {} sequences, {} positions", split, number(held.get("sequences")), number(held.get("positions")))


def _reduced(reduced: object) -> Markup:
    if not isinstance(reduced, Mapping):
        return Markup("<p>This run does not record what was reduced.</p>")
    if not reduced:
        return Markup("<p>This run declares nothing as reduced; its settings stand at the end of the page.</p>")
    items = joined("", (html("<li>{}: {}</li>", name, text_of(value)) for name, value in reduced.items()))
    return html("<p><strong>Reduced in this run.</strong> Its numbers depend on it.</p><ul>{}</ul>", items)


def _of_each(parts: Sequence[Part], body: Callable[[Part], Markup]) -> Markup:
    """The same for every run, under its name where there are several."""
    return joined("\n", ((html("<h3>{}</h3>", part.name) if part.name else "") + body(part) for part in parts))


def claims(parts: Sequence[Part]) -> Markup:
    """The tested claims of every run, each beside its null, and what is described without a test."""
    text = Markup(
        "<p>The claims of a study are tested together (Benjamini-Hochberg: q). <em>Beyond</em>: outside what the null "
        "gives, on the side that the claim names. <em>Within</em>: the null explains it. <em>Not testable</em>: this "
        "run has no fair null for it, and the note says why. <em>Detectable</em>: the least effect that the test finds "
        "four times out of five at this n. <em>False positives</em>: how often this test calls nothing an effect, "
        "measured in planted worlds of this run’s size.</p>"
    )
    return section("claims", "Claims", text + _of_each(parts, _claims))


def _claims(part: Part) -> Markup:
    run = part.run
    if reason := run.why_not("claims"):
        return absent(reason)
    rows = run.get("claims").to_dict("records")
    tested = [_tested(part, row) for row in rows if row["headline"]]
    described = [_described(part, row) for row in rows if not row["headline"]]
    head = ["what was found", "verdict", Markup("effect <small>95 %</small>"), "null", "q", "n", "detectable"]
    beside = details(
        f"{len(described)} figures that are described without a test",
        table(["figure", "observed", "null", Markup("difference <small>95 %</small>"), "n"], described),
    )
    return table([*head, "false positives"], tested, left=2) + beside


def _named(part: Part, row: Mapping[Any, Any], text: str) -> Markup:
    place = part.key(f"claim-{row['id']}")
    note = html("<small>{}</small>", row["note"]) if row["note"] else ""
    return html('<a class="claim" id="{}" href="#{}" title="{}">{}</a>', place, place, row["id"], text) + note


def _tested(part: Part, row: Mapping[Any, Any]) -> list[Markup]:
    errs = row["false_positives"]
    return [
        _named(part, row, row["sentence"] or row["claim"]),
        badge(row["verdict"]),
        _effect(row) + html("<small>{}</small>", row["unit"]),
        number(row["null"]),
        p_value(row["q"]),
        number(row["n"]) + html("<small>{}</small>", row["of"]),
        number(row["detectable"]),
        percent(errs) if errs == errs else number(errs),
    ]


def _described(part: Part, row: Mapping[Any, Any]) -> list[Markup]:
    shown = number(row["observed"]) + html("<small>{}</small>", row["unit"])
    n = number(row["n"]) + html("<small>{}</small>", row["of"])
    return [_named(part, row, row["claim"]), shown, number(row["null"]), _effect(row), n]


def _effect(row: Mapping[Any, Any]) -> Markup:
    band = interval(row["low"], row["high"])
    return number(row["effect"]) + (html("<small>{}</small>", band) if band else Markup(""))


def limits(parts: Sequence[Part]) -> Markup:
    """What none of these results can tell."""
    return section(
        "limits",
        "Limits",
        _of_each(
            parts,
            lambda part: html("<ul>{}</ul>", joined("", (html("<li>{}</li>", limit) for limit in part.kind.limits))),
        ),
    )


def provenance(parts: Sequence[Part]) -> Markup:
    """How each run was made: versions, seed, threads, configuration, fingerprints of the weights."""
    return section("provenance", "Provenance", _of_each(parts, lambda part: _provenance(part.run.study)))


def _provenance(study: Mapping[str, Any]) -> Markup:
    entries = [
        (key, text_of(study[key])) for key in ("study", "series", "integrity", "seed", "threads") if key in study
    ]
    blocks = [definitions(entries)]
    if study.get("config"):
        blocks.append(details("Configuration", _configuration(study["config"])))
    for key, name in (("texts", "Texts"), ("versions", "Versions"), ("fingerprints", "Weight fingerprints")):
        if study.get(key):
            shown = json.dumps(study[key], indent=1, ensure_ascii=False)
            blocks.append(details(name, html("<pre>{}</pre>", shown)))
    return joined("", blocks)


def _configuration(config: Mapping[str, Any]) -> Markup:
    """Every setting beside the name of its section."""
    rows = []
    for section_name, values in config.items():
        settings = values if isinstance(values, Mapping) else {"": values}
        rows += [[section_name, key, text_of(value)] for key, value in settings.items()]
    return table(["section", "setting", "value"], rows, left=3)


def text_of(value: Any) -> str:
    """A value of study.json on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text_of(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(text_of(item) for item in value)
    return str(value)

"""Sections of lists: the carriers with their top contexts, and the sweeps of every threshold."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from tl_lifehist.report.figures.style import step_label
from tl_lifehist.report.markup import details, html, joined, number, percent, visible
from tl_lifehist.report.markup import table as html_table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.sections.names import hook_labels
from tl_lifehist.report.tables import RunTables

MAX_CARRIERS = 40
SWEPT = ["parameter", "value", "quantity", "result"]


def carriers(run: RunTables) -> Content:
    """The carriers of largest mass, each with its top contexts one click away."""
    table = run.get("carriers").sort_values("mass", ascending=False, kind="stable")
    contexts = run.get("contexts").sort_values("rank", kind="stable")
    by_feature = dict(iter(contexts.groupby(["hook_name", "feature"], sort=False)))
    labels = hook_labels(run.hook_names)
    shown = table.head(MAX_CARRIERS)
    entries = [
        details(
            _heading(row, labels),
            _contexts(by_feature.get((row["hook_name"], row["feature"]))),
            kind="carrier",
            opened=not i,
        )
        for i, row in enumerate(shown.to_dict("records"))
    ]
    left_out = (
        html(" The {} of largest mass are listed; the run's table has all.", len(shown))
        if len(shown) < len(table)
        else ""
    )
    stable = percent(float(table["seed_stable"].astype(float).mean()))
    return Content(
        text=html(
            "{:,} carriers, {} of them found again by an SAE of another initialisation.{} Open one to see "
            "where it fires most.",
            len(table),
            stable,
            left_out,
        ),
        definition="D9: stable in at least two thirds of the checkpoints after step 0 and alive at the last. "
        "Contexts: the positions of highest activation at the last checkpoint.",
        control="Seed-stable: an SAE of another initialisation has a matching feature (C1).",
        sample=html(
            "{:,} carriers; {} contexts each.",
            len(table),
            number(int(contexts.groupby(["hook_name", "feature"]).size().max())),
        )
        if len(contexts)
        else html("{:,} carriers; contexts were not computed.", len(table)),
        misleads=Markup(
            "Top contexts show the loudest firings only; most of a broad feature's mass may lie elsewhere."
        ),
        more=html('<div class="carriers">{}</div>', joined("", entries)),
    )


def _heading(row: Mapping[Hashable, Any], labels: Mapping[str, Markup]) -> Markup:
    place = labels.get(row["hook_name"]) or row["hook_name"]  # labels are escaped
    facts = [
        html("since step {}", step_label(row["birth"])),
        html("fires on {}", percent(row["firing_rate"])),
        html("mass {}", number(row["mass"])),
        *(row[name] for name in ("role", "content") if isinstance(row[name], str)),
        *(["seed-stable"] if row["seed_stable"] else []),
    ]
    return html(
        '<b>{} · {}</b> <span class="facts">{}</span>',
        place,
        number(row["feature"]).replace(",", ""),
        joined(" · ", facts),
    )


def _contexts(contexts: pd.DataFrame | None) -> Markup:
    if contexts is None:
        return Markup('<p class="absent">No contexts were computed.</p>')
    lines = (
        html(
            '<li><span class="activation" title="activation; document {}">{}</span><bdi>{}<mark>{}</mark>{}</bdi></li>',
            number(row["document"]),
            number(row["activation"]),
            visible(row["before"]),
            visible(row["token"], spaces=True),
            visible(row["after"]),
        )
        for row in contexts.to_dict("records")
    )
    return html('<ol class="contexts">{}</ol>', joined("", lines))


def sweeps(run: RunTables) -> Content:
    """What every threshold would have given."""
    table = run.get("sweeps")
    own = [html("{:,} carriers", len(run.get("carriers")))] if run.has("carriers") else []
    if run.has("edges"):
        edges = run.get("edges")
        at_end = edges[(edges["step"] == edges["step"].max()) & (edges["orientation"] == "container")]
        own.append(html("{:,} edges in the container orientation", len(at_end)))
    settings = html(" As it was set, the run has {}.", joined(" and ", own)) if own else ""
    before = table["parameter"].shift()
    shown = table.assign(
        parameter=table["parameter"].where(table["parameter"] != before, ""), value=table["value"].astype(str)
    )
    rows = [[row[0], row[1], row[2], number(row[3])] for row in shown[SWEPT].to_numpy()]
    return Content(
        text=html("{} settings, one varied at a time.{}", table["parameter"].nunique(), settings),
        definition="C4: the same quantity, computed again with another value of one parameter. C3, C11: with rows "
        "shuffled, with another layer, without the most frequent tokens.",
        control="This is a control: what holds at one threshold only is a property of the threshold.",
        sample=html("{:,} results.", len(table)),
        misleads="Varying one parameter at a time says nothing about combinations.",
        more=html_table(["varied", "value", "quantity", "result"], rows, left=3),
    )

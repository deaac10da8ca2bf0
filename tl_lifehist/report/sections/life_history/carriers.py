"""Sections of lists: the carriers with their top contexts, and the sweeps of every threshold."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from tl_lifehist.report.figures.style import hook_labels, step_label
from tl_lifehist.report.markup import details, escape, number, percent, visible
from tl_lifehist.report.markup import table as html_table
from tl_lifehist.report.sections.base import Content, Section
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
        f" The {len(shown)} of largest mass are listed; the run's table has all." if len(shown) < len(table) else ""
    )
    stable = percent(float(table["seed_stable"].astype(float).mean()))
    return Content(
        text=f"{len(table):,} carriers, {stable} of them found again by an SAE of another initialisation.{left_out} "
        "Open one to see where it fires most.",
        definition="D9: stable in at least two thirds of the checkpoints after step 0 and alive at the last. "
        "Contexts: the positions of highest activation at the last checkpoint.",
        control="Seed-stable: an SAE of another initialisation has a matching feature (C1).",
        sample=f"{len(table):,} carriers; {number(int(contexts.groupby(['hook_name', 'feature']).size().max()))} "
        "contexts each."
        if len(contexts)
        else f"{len(table):,} carriers; contexts were not computed.",
        misleads="Top contexts show the loudest firings only; most of a broad feature's mass may lie elsewhere.",
        more=f'<div class="carriers">{"".join(entries)}</div>',
    )


def _heading(row: Mapping[Hashable, Any], labels: dict[str, str]) -> str:
    place = labels.get(row["hook_name"]) or escape(row["hook_name"])  # labels are escaped
    facts = [
        f"since step {step_label(row['birth'])}",
        f"fires on {percent(row['firing_rate'])}",
        f"mass {number(row['mass'])}",
        *(escape(row[name]) for name in ("role", "content") if isinstance(row[name], str)),
        *(["seed-stable"] if row["seed_stable"] else []),
    ]
    return f'<b>{place} · {number(row["feature"]).replace(",", "")}</b> <span class="facts">{" · ".join(facts)}</span>'


def _contexts(contexts: pd.DataFrame | None) -> str:
    if contexts is None:
        return '<p class="absent">No contexts were computed.</p>'
    lines = (
        f'<li><span class="activation" title="activation; document {number(row["document"])}">'
        f"{number(row['activation'])}</span><bdi>{visible(row['before'])}"
        f"<mark>{visible(row['token'], spaces=True)}</mark>{visible(row['after'])}</bdi></li>"
        for row in contexts.to_dict("records")
    )
    return f'<ol class="contexts">{"".join(lines)}</ol>'


def sweeps(run: RunTables) -> Content:
    """What every threshold would have given."""
    table = run.get("sweeps")
    own = [f"{len(run.get('carriers')):,} carriers"] if run.has("carriers") else []
    if run.has("edges"):
        edges = run.get("edges")
        at_end = edges[(edges["step"] == edges["step"].max()) & (edges["orientation"] == "container")]
        own.append(f"{len(at_end):,} edges in the container orientation")
    settings = f" As it was set, the run has {' and '.join(own)}." if own else ""
    before = table["parameter"].shift()
    shown = table.assign(
        parameter=table["parameter"].where(table["parameter"] != before, ""), value=table["value"].astype(str)
    )
    rows = [[escape(row[0]), escape(row[1]), escape(row[2]), number(row[3])] for row in shown[SWEPT].to_numpy()]
    return Content(
        text=f"{table['parameter'].nunique()} settings, one varied at a time.{settings}",
        definition="C4: the same quantity, computed again with another value of one parameter. C3, C11: with rows "
        "shuffled, with another layer, without the most frequent tokens.",
        control="This is a control: what holds at one threshold only is a property of the threshold.",
        sample=f"{len(table):,} results.",
        misleads="Varying one parameter at a time says nothing about combinations.",
        more=html_table(["varied", "value", "quantity", "result"], rows, left=3),
    )


CARRIERS = Section("carriers", "The carriers and where they fire", ("carriers",), carriers)
SWEEPS = Section("sweeps", "Sweeps", ("sweeps",), sweeps)

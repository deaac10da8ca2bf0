"""Sections on ablations: joint load, its parts, single features, content classes."""

from __future__ import annotations

import math

from markupsafe import Markup

from tl_lifehist.lifehistory.control_kinds import short_label_of
from tl_lifehist.report import figures
from tl_lifehist.report.markup import (
    badge,
    details,
    frame,
    html,
    interval,
    joined,
    number,
    p_value,
    percent,
    table,
)
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.tables import RunTables


def load(run: RunTables) -> Content:
    """The carriers' joint load beside its controls."""
    summary = run.get("load_summary")
    counts = summary["verdict"].value_counts()
    verdicts = joined(", ", (html("{} {}", n, verdict) for verdict, n in counts.items()))
    cost = number(summary["delta_ce"].iloc[0])
    head = ["control set", "draws", "carriers with an equal", "their cost (nats)", "sets under exchange", "sd"]
    head += ["difference 95 %", "p", "without an equal", "SMD log rate", "SMD log mass", "verdict"]
    rows = [
        [
            short_label_of(row["kind"]),
            number(row["n_draws"]),
            number(row["n_equals"]),
            number(row["carriers"]),
            number(row["control_mean"]),
            number(row["control_sd"]),
            interval(row["low"], row["high"]),
            "–" if row["verdict"] == "not testable" else p_value(row["p"]),
            percent(row["unmatched_share"]),
            number(row["smd_log_rate"]),
            number(row["smd_log_mass"]),
            badge(row["verdict"]),
        ]
        for _, row in summary.iterrows()
    ]
    return Content(
        text=html(
            "Removing all carriers in one pass, at every hook point, costs {} nats. Against {} kinds of "
            "control sets the verdicts, each by itself, are: {}.",
            cost,
            len(summary),
            verdicts,
        ),
        definition="D18: mean cross-entropy with the features subtracted at all hook points, less that of the "
        "untouched model. D19: the label “carrier” exchanged among alive features of a hook point that are alike; the "
        "straight line of the cost on the sets’ total of the matched quantity is taken out; p = (1 + #{set ≥ "
        "carriers}) / (draws + 1).",
        control="Sets matched in count, in count and role, in firing rate, in mass, in removed norm (C6), and among "
        "seed-stable features. Carriers without an equal are left out on both sides; where more than half have none, "
        "or the rest differ in the matched quantity within a layer, the verdict is “not testable” and there is no p.",
        sample=html("{} draws of a tested kind; balance in the table below.", number(int(summary["n_draws"].max()))),
        misleads="Carriers are broad, and removing broad features costs more whatever their history. Zero ablation "
        "also moves the stream to where the model has never been.",
        figures={"load": figures.load_against_controls(run.get("load"), summary)},
        more=details("Balance and verdicts, kind by kind", table(head, rows)),
    )


def parts(run: RunTables) -> Content:
    """The joint load beside its parts, and what the load of random sets follows."""
    data = run.get("ablation_parts").set_index("part")["delta_ce"]
    text = html("All carriers together cost {} nats", number(data.get("joint", math.nan)))
    if "sum of layers" in data:
        text += html("; the hook points one by one add up to {}", number(data["sum of layers"]))
    if "sum of singles" in data:
        text += html("; the features one by one to {}", number(data["sum of singles"]))
    more = ""
    if run.has("ablation_regression"):
        names = {
            "term": "term",
            "coefficient": "nats per standard deviation",
            "low": "2.5 %",
            "high": "97.5 %",
            "n": "sets",
        }
        more = details("What the load of random sets follows", frame(run.get("ablation_regression"), names))
    return Content(
        text=html("{}.", text),
        definition="D18, for each set alone. C7: joint load against the sum over hook points and the sum over "
        "features.",
        control="C6: the leading features by rate and by mass, as many as there are carriers; a random direction of "
        "equal norm; and a regression of the load of random sets on their mass, rate and number of carriers.",
        sample="Number of features in each bar: point at it.",
        misleads="Later layers repair what earlier ones lost, and features stand in for each other: a small single "
        "cost does not make a feature useless, and the joint cost does not divide among its members.",
        figures={"ablation_parts": figures.ablation_parts(run.get("ablation_parts"))},
        more=more,
    )


def single(run: RunTables) -> Content:
    """Single-feature cost by role."""
    data = run.get("single")
    medians = data.groupby("role")["per_firing"].median()
    parts = [html("{} {}", role, number(medians[role])) for role in ("root", "mid", "leaf") if role in medians]
    return Content(
        text=html(
            "Median cost of one feature per firing, in nats: {}. Carriers are drawn as points.",
            joined(", ", parts) or "–",
        ),
        definition="D17: mean over the positions where the feature fires of the cross-entropy without it less that "
        "with it. D14: root, mid, leaf and isolated are roles in the containment graph.",
        control="Kruskal-Wallis over root, mid and leaf with its effect size: see the claims.",
        sample=html(
            "{:,} features that were ablated alone, {} firings.", len(data), number(int(data["n_firings"].sum()))
        ),
        misleads="“No difference” needs a small effect size, not only a large p. A feature that others stand in for "
        "costs little alone.",
        figures={"single": figures.single_ablation(data)},
    )


def content(run: RunTables) -> Content:
    """Content classes and their load."""
    data = run.get("content")
    names = {
        "content": "class",
        "n": "features",
        "share_of_carriers": "share of carriers",
        "joint_load": "joint load (nats)",
        "null_load_mean": "same mass, other class",
        "null_load_low": "2.5 %",
        "null_load_high": "97.5 %",
        "single_load": "single cost per token",
        "share_of_descendants": "share of descendants",
    }
    shares = joined(
        ", ",
        (
            html("{} {}", percent(share), name)
            for name, share in zip(data["content"], data["share_of_carriers"], strict=True)
        ),
    )
    return Content(
        text=html("By what they fire on, the carriers are {}.", shares),
        definition=Markup(
            "D24: <em>infrastructure</em> if at least half of a feature's mass lies on partial bytes, white "
            "space, control characters, markup or file extensions; else <em>legible</em>."
        ),
        control="Sets of equal mass from the other class.",
        sample=joined(
            ", ", (html("{} {}", number(n), name) for name, n in zip(data["content"], data["n"], strict=True))
        ),
        misleads="The classes follow the spelling of tokens, not what a feature means.",
        figures={"content": figures.content_load(data)},
        more=frame(data, names),
    )

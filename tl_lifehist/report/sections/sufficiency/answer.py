"""Sections that answer first: how small and how sufficient masks are, under every metric, by checkpoint and layer."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from tl_lifehist.report import figures
from tl_lifehist.report.figures.cells import (
    CELL,
    MaskRows,
    beside_nulls,
    first_seed,
    in_order,
    mask_rows,
    sites_of,
    spread,
)
from tl_lifehist.report.figures.frontier import SUFFICIENT
from tl_lifehist.report.figures.masks import METRICS
from tl_lifehist.report.markup import details, html, joined, number, percent, table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.sections.names import label
from tl_lifehist.report.sections.sufficiency.words import CELLS, by_site, cell, code, counted, middle, variance_held
from tl_lifehist.report.tables import RunTables
from tl_lifehist.sufficiency.target_kinds import TARGETS

HARDLY = 0.8  # ours: a mask whose KL is above this share of its null's hardly beats it
CHEAP = 0.1  # ours: a site whose empty mask has a relative KL below this is hardly needed


def answer(run: RunTables) -> Content:
    """Soft mass and what is lost, by site and target, with the nulls in the same breath."""
    evaluation, nulls = run.get("evaluation"), run.get("nulls")
    sites = sites_of(evaluation)
    rows = {site: mask_rows(evaluation, nulls, site) for site in sites}
    points = [_site(site, rows[site], beside_nulls(evaluation, nulls, site)) for site in sites]
    tables = joined(
        "",
        (
            details(
                html("Medians and quartiles at {}", code(site)),
                _table(rows[site]) + html("<p><small>NMSE:{}</small></p>", variance_held(run, site)),
                opened=True,
            )
            for site in sites
        ),
    )
    scored = first_seed(evaluation, "mask")
    lacking = scored[scored["lost_fraction"].isna() | scored["relative_kl"].isna()]
    without = html(
        " In {:,} of them a score has no reference (below 1e-8) and is left out.", len(lacking[CELL].drop_duplicates())
    )
    missing = "" if run.has("nulls") else " Masks of equal mass were not computed in this run."
    return Content(
        text=html(
            "How much of a dictionary a mask keeps, and what the model loses with it. Each site is told by "
            "itself: the same mask means different things at different places.{}",
            missing,
        ),
        points=points,
        definition=html(
            "Formula 4: soft mass, the mean gate. Formula 9: relative KL, KL over the entropy of the "
            "clean predictions; lost fraction, KL over that of mean ablation (z = 0) at the same site. "
            "Formula 10: fall of the top-1 accuracy in percentage points. “Hardly beats” (ours): a KL "
            "above {} times that of the null, in the median over cells.",
            number(HARDLY),
        ),
        control="The empty mask is the null of every downstream figure, the full mask its floor. Masks as heavy as the "
        "downstream mask: the leading components by variance, by tau and by the Fisher diagonal, and random ones.",
        sample=html(
            "{:,} cells.{} {} The study's first seed is used. Scored positions: {}.",
            len(scored[CELL].drop_duplicates()),
            without if len(lacking) else "",
            CELLS,
            number(evaluation["n_scored"].max()),
        ),
        misleads="A small mask that “preserves behaviour” at a site the model hardly needs shows nothing. A median "
        "hides cells in which the mask fails: see the maps below.",
        figures=by_site("answer", evaluation, lambda site: figures.mask_summary(evaluation, nulls, site)),
        more=tables,
    )


def _site(site: str, rows: list[MaskRows], ratios: pd.DataFrame) -> Markup:
    """One site in a paragraph: the downstream mask, what its nulls leave of it, and the other masks."""
    own = {row.name: row.scores for row in rows if not row.matched}
    said: list[str] = [html("<strong>{}</strong>:", code(site))]
    if "downstream" in own:
        mass, relative, lost = (spread(own["downstream"][c]) for c in ("soft_mass", "relative_kl", "lost_fraction"))
        said.append(
            html(
                "the downstream masks keep {} of the soft mass at a relative KL of {}, and lose {} of what mean "
                "ablation costs.",
                middle(mass, share=True),
                middle(relative),
                middle(lost),
            )
        )
    else:
        said.append("no downstream mask was fitted.")
    said += _verdicts(own, ratios[ratios["target"] == "downstream"])
    ends = [html("{} mask {}", name, _median(own[name], "relative_kl")) for name in ("empty", "full") if name in own]
    matched = [html("{} {}", label(row.name), _median(row.scores, "relative_kl")) for row in rows if row.matched]
    others = [name for name in in_order(own, TARGETS) if name not in ("downstream", "full", "empty")]
    fitted = [
        html(
            "{} {} and {}",
            label(name),
            percent(spread(own[name]["soft_mass"]).median),
            _median(own[name], "lost_fraction"),
        )
        for name in others
    ]
    said += [html("Relative KL beside it: {}.", joined(", ", ends))] if ends else []
    said += [html("Of masks of the same mass: {}.", joined(", ", matched))] if matched else []
    said += [html("Soft mass and lost fraction of the other masks: {}.", joined(", ", fitted))] if fitted else []
    return joined(" ", said)


def _median(scores: pd.DataFrame, column: str) -> Markup:
    return number(spread(scores[column]).median)


def _verdicts(own: dict[str, pd.DataFrame], ratios: pd.DataFrame) -> list[str]:
    """What the nulls leave of the downstream mask, in plain words."""
    said = []
    for kind, name in (("empty", "the empty mask"), ("top_variance", "the top-variance mask of the same mass")):
        found = ratios.loc[ratios["kind"] == kind, "ratio"].dropna()
        if found.empty:
            continue
        median, better = float(found.median()), int((found < HARDLY).sum())
        fact = html("its KL is {} times as large in the median, below {} times in ", number(median), number(HARDLY))
        fact += html("{}", counted(better, len(found)))
        if median >= 1:
            said.append(html("<strong>Here the downstream mask does not beat {}</strong>: {}.", name, fact))
        elif median >= HARDLY:
            said.append(html("<strong>Here the downstream mask hardly beats {}</strong>: {}.", name, fact))
        else:
            said.append(html("It beats {}: {}.", name, fact))
    empty = spread(own["empty"]["relative_kl"]).median if "empty" in own else float("nan")
    if empty < CHEAP:
        said.append(
            html(
                "Taking this site away costs {} of the entropy: where the model hardly needs a site, a small mask "
                "that preserves behaviour shows little.",
                percent(empty),
            )
        )
    full = spread(own["full"]["lost_fraction"]).median if "full" in own else float("nan")
    if full > SUFFICIENT:
        said.append(
            html(
                "Even the full mask loses {} of what mean ablation costs, in the median: the dictionary sets this "
                "floor, and no mask of it is sufficient by formula 18.",
                number(full),
            )
        )
    return said


def _table(rows: list[MaskRows]) -> Markup:
    columns = {"soft_mass": "soft mass", "relative_kl": "relative KL", "lost_fraction": "lost fraction"}
    columns |= {"kl": "KL, nats", "accuracy_drop": "accuracy drop, pp", "nmse": "NMSE"}
    lines = [
        [
            label(row.name) + (html("<small>same mass as {}</small>", label(row.matched)) if row.matched else ""),
            *(cell(row.scores[column], share=column == "soft_mass") for column in columns),
            number(len(row.scores)),
        ]
        for row in rows
    ]
    return table(["mask", *columns.values(), "cells"], lines)


def matrix(run: RunTables) -> Content:
    """Every mask under every metric."""
    evaluation = run.get("evaluation")
    here = first_seed(evaluation, "mask")
    points = []
    for site in sites_of(here):
        own = here[here["site"] == site]
        medians = own[~own["mask"].isin(["full", "empty"])].groupby("mask")[list(METRICS)].median()
        best = [
            html("{}: {}", METRICS[metric].replace("<br>", " "), _least(medians[metric]))
            for metric in METRICS
            if medians[metric].notna().any()
        ]
        points.append(
            html(
                "<strong>{}</strong>, least of the fitted masks: {}.{}",
                code(site),
                joined("; ", best) or "no values",
                variance_held(run, site),
            )
        )
    return Content(
        text="A mask that was fitted to one target, scored under all. Rows are masks (their soft mass below their "
        "name), columns metrics.",
        points=points,
        definition="Formula 6: NMSE. Formula 9: relative KL and lost fraction. Formula 10: accuracy drop. Formula 7: "
        "KL of the fixed head over its own entropy. Formula 16: NMSE and relative KL after transfer to the last "
        "checkpoint. All on the test split.",
        control="The full mask (all components) and the empty one (none) are the ends of each column.",
        sample=html("{:,} cells. {}", len(here[CELL].drop_duplicates()), CELLS),
        misleads="Masks differ in mass, and a larger mask scores better at everything: compare rows of like mass, and "
        "look at the frontier for the rest.",
        figures=by_site("matrix", here, lambda site: figures.cross_evaluation(evaluation, site)),
    )


def _least(medians: pd.Series) -> Markup:
    """The mask with the least median, or all that print the same number."""
    least = number(medians.min())
    names = [label(mask) for mask, value in medians.items() if number(value) == least]
    return html("{} {}", joined(" and ", names), least)


def maps(run: RunTables) -> Content:
    """Where and when masks are small and sufficient."""
    evaluation = run.get("evaluation")
    here = first_seed(evaluation, "mask")
    points = []
    for site in sites_of(here):
        own = here[(here["site"] == site) & (here["mask"] == "downstream")]
        found = own.groupby(["step", "layer"])[["soft_mass", "lost_fraction"]].median()
        lost = found["lost_fraction"].dropna()
        if lost.empty:
            points.append(html("<strong>{}</strong>: no downstream mask was scored.", code(site)))
            continue
        places = lost.index.to_list()
        (low_step, low_layer), (high_step, high_layer) = places[lost.argmin()], places[lost.argmax()]
        points.append(
            html(
                "<strong>{}</strong>: the downstream mask's lost fraction goes from {} (step {}, block {}) to {} "
                "(step {}, block {}); its soft mass from {} to {}.",
                code(site),
                number(lost.min()),
                number(low_step),
                number(low_layer),
                number(lost.max()),
                number(high_step),
                number(high_layer),
                percent(found["soft_mass"].min()),
                percent(found["soft_mass"].max()),
            )
        )
    return Content(
        text="One row of maps per mask; in a map, checkpoints from left to right and blocks from bottom to top.",
        points=points,
        definition="Formulas 4 and 9, medians over methods. Relative KL is coloured by its logarithm.",
        control=Markup(
            "The empty mask's row: its soft mass is 0 and its lost fraction 1, and its relative KL shows what the "
            "site is worth to the model at each place."
        ),
        sample=html(
            "{} checkpoints, {} hook points, {} methods.",
            here["step"].nunique(),
            here["hook_name"].nunique(),
            here["method"].nunique(),
        ),
        misleads="The entropy falls in training, so relative KL can rise where the KL does not. Each cell is one fit "
        "on one text.",
        figures=by_site("maps", here, lambda site: figures.checkpoint_layer_maps(evaluation, site)),
    )

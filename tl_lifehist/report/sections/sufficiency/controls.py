"""Sections that set masks beside what could stand in for them: masks of equal mass, rankings, the quadratic form."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from tl_lifehist.report import figures
from tl_lifehist.report.figures.cells import (
    CELL,
    NULLS,
    at,
    beside_nulls,
    first_seed,
    flags,
    in_order,
    masks_in,
    sites_of,
    spread,
)
from tl_lifehist.report.figures.mask_controls import SCORES
from tl_lifehist.report.figures.style import step_label
from tl_lifehist.report.markup import details, html, joined, number, percent, table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.sections.names import label
from tl_lifehist.report.sections.sufficiency.words import CELLS, by_site, cell, code, counted, listed, middle
from tl_lifehist.report.tables import RunTables
from tl_lifehist.sufficiency.target_kinds import TARGETS


def equal_mass(run: RunTables) -> Content:
    """Does the optimised mask beat masks that nobody optimised?"""
    evaluation, drawn = run.get("evaluation"), run.get("nulls")
    points, rows = [], []
    for site in sites_of(evaluation):
        ratios = beside_nulls(evaluation, drawn, site)
        for target in in_order(ratios["target"], ("downstream", *TARGETS)):
            for kind in in_order(ratios["kind"], ("empty", *NULLS)):
                own = ratios[(ratios["target"] == target) & (ratios["kind"] == kind)]
                found = own["ratio"].dropna()
                if len(found):
                    wins = percent(float((found < 1).mean()))
                    measure = own["measure"].iloc[0]
                    rows.append(
                        [code(site), label(target), label(kind), measure, cell(found), wins, number(len(found))]
                    )
        own = ratios[ratios["target"] == "downstream"]
        said = [
            html("{} in {}", label(kind), counted(int((own.loc[own["kind"] == kind, "ratio"] < 1).sum()), n))
            for kind in in_order(own["kind"], ("empty", *NULLS))
            if (n := int(own.loc[own["kind"] == kind, "ratio"].notna().sum()))
        ]
        points.append(
            html(
                "<strong>{}</strong>: the downstream mask has a lower KL than {}.", code(site), listed(said, "nothing")
            )
        )
    head = ["site", "mask for", "control", "measure", "mask / control", "mask better", "cells"]
    return Content(
        text="The downstream mask over control masks of the same soft mass, cell by cell; left of 1 the optimised mask "
        "is better. Controls of equal mass exist for the downstream mask alone: the other masks stand beside the empty "
        "mask here, and beside the empty and the full one under “How small, and how sufficient”.",
        points=points,
        definition=Markup(
            "Ratio of NMSE for the reconstruction mask (formula 6), of KL for the others (formula 8). Control masks "
            "are as heavy as the downstream mask: leading components by variance, by tau (formula 14), by the Fisher "
            "diagonal (formula 12), and random ones, whose draws are averaged. A ranking is the cheaper of two "
            "masks: hard gates, cut at the soft mass, and the downstream mask's own gates dealt out by rank. tau and "
            "curvature are ranked on the calibration text."
        ),
        control="These are controls. The rankings need one backward pass and no optimisation: where they do as well, "
        "the optimisation found nothing more.",
        sample=html("{} {:,} draws of a random mask.", CELLS, int(drawn["draw"].nunique())),
        misleads=Markup(
            "The fixed-head and the transfer mask were not fitted to the KL they are compared in, and "
            "beating the empty mask says little of any mask that keeps more than nothing. A ranking that is dealt the "
            "mask's own gates uses what the optimisation found of how many components to keep."
        ),
        figures=by_site("nulls", evaluation, lambda site: figures.mass_matched(evaluation, drawn, site)),
        more=details("Ratios by target and control", table(head, rows, left=4)),
    )


def enrichment(run: RunTables) -> Content:
    """What the masks hold more of than their mass."""
    evaluation, drawn = run.get("evaluation"), run.get("nulls")
    here = first_seed(evaluation, "mask")
    here = here[~here["mask"].isin(["full", "empty"])]
    targets = in_order(here["mask"], TARGETS)
    points, rows = [], []
    for site in sites_of(here):
        own = at(here, site)
        spreads = {
            name: [html("{} {}", label(t), number(spread(own.loc[own["mask"] == t, column]).median)) for t in targets]
            for column, name in SCORES.items()
        }
        said = [html("{}: {}", name, joined(", ", found)) for name, found in spreads.items()]
        random = at(drawn, site)
        random = spread(random.loc[random["kind"] == "random", "enrichment_tau"])
        null = html(" Random masks: tau {}, {:,} draws.", middle(random), random.n) if random.n else ""
        points.append(html("<strong>{}</strong>: {}.{}", code(site), joined("; ", said), null))
        rows += [
            [
                code(site),
                label(t),
                *(cell(own.loc[own["mask"] == t, c]) for c in SCORES),
                number((own["mask"] == t).sum()),
            ]
            for t in targets
        ]
    return Content(
        text="How much more sensitivity a mask holds than a constant mask of its mass; 1 is none.",
        points=points,
        definition="Formula 15: the share of a score that the gates keep over the soft mass, for tau = E[g²] and omega "
        "= (E[g])² of the gate gradients (formula 14) and for the diagonal of the gate Fisher (curvature, formula 12).",
        control="A constant mask has 1 exactly. Random masks of the same soft mass scatter around it.",
        sample=CELLS,
        misleads="At most 1 over the soft mass, so small masks alone can be much enriched. tau also counts what "
        "differs from sequence to sequence; omega only what all sequences share.",
        figures=by_site("enrichment", here, lambda site: figures.enrichment(evaluation, drawn, site)),
        more=details("Medians and quartiles", table(["site", "mask for", *SCORES.values(), "cells"], rows, left=2)),
    )


def ranks(run: RunTables) -> Content:
    """Which components the masks keep."""
    masks, components = run.get("masks"), run.get("components")
    last = int(masks["step"].max())
    own = first_seed(masks[masks["step"] == last], "target", "component")
    both = own.merge(components[[*CELL, "component", "variance", "tau"]], on=[*CELL, "component"])
    points = []
    for site in sites_of(both):
        here = at(both, site)
        said = []
        for target in in_order(here["target"], TARGETS):
            chosen = here[here["target"] == target]
            found = {
                name: spread(chosen.groupby(CELL)[["gate", name]].apply(_spearman, name))
                for name in ("variance", "tau")
            }
            said.append(
                html("{} {} and {}", label(target), number(found["variance"].median), number(found["tau"].median))
            )
        points.append(html("<strong>{}</strong>: {}.", code(site), listed(said)))
    return Content(
        text=html(
            "Spearman correlation of a component's gate with its variance and with its tau at step {}, "
            "medians over cells, by target.",
            step_label(last),
        ),
        points=points,
        definition="Formula 3: gates. Variance of a component: E||(u − ū) v||² over the total variance. Formula 14: "
        "tau.",
        control="A mask that is a ranking by variance has a correlation near 1 with it, whatever it was fitted for.",
        sample=html("{:,} cells, {:,} components.", len(own[CELL].drop_duplicates()), own["component"].nunique()),
        misleads="Masks are not unique: other components could be as sufficient.",
        figures=by_site("ranks", both, lambda site: figures.gates_by_rank(masks, components, site)),
    )


def _spearman(cell: pd.DataFrame, column: str) -> float:
    """NaN where one of the two is constant."""
    gates, scores = cell["gate"].rank(), cell[column].rank()
    return float(gates.corr(scores)) if gates.nunique() > 1 and scores.nunique() > 1 else float("nan")


def frontier(run: RunTables) -> Content:
    """What is lost against what is kept."""
    data = run.get("frontier")
    points = []
    for site in sites_of(data):
        here = at(data, site)
        last = int(here["step"].max())
        here = here[here["step"] == last]
        own = here[flags(here["operating"])]
        both = here[here["lost_fraction"].notna() & here["variance_lost_fraction"].notna()]
        better = int((both["lost_fraction"] < both["variance_lost_fraction"]).sum())
        points.append(
            html(
                "<strong>{}</strong>, step {}: at the study's penalty {} of the soft mass lose {}; the "
                "top-variance mask of that mass {}. Over the whole sweep the optimised mask loses less in {:,} of "
                "{:,} fits.",
                code(site),
                step_label(last),
                middle(spread(own["soft_mass"]), share=True),
                middle(spread(own["lost_fraction"])),
                middle(spread(own["variance_lost_fraction"])),
                better,
                len(both),
            )
        )
    swept = data["penalty"].nunique() > 1
    return Content(
        text="Downstream masks fitted with other penalties: every one is an answer to the same question at another "
        "penalty."
        if swept
        else "No other penalty was tried in this run, so each cell has one point and no curve.",
        points=points,
        definition=Markup(
            "Formula 5: the loss plus lambda times the sum of the gates, over a sweep. In the table penalty is "
            "lambda and penalty_total is lambda times the number of components, which the sweep sets; the diamond is "
            "the study's. Formula 9: lost fraction."
        ),
        control=Markup(
            "Masks of the same soft mass that take the leading components by variance (dashed): the cheaper of "
            "hard gates and of the mask's own gates dealt out by rank."
        ),
        sample=html(
            "{} penalties in {:,} cells; drawn are those of the last step.",
            data["penalty"].nunique(),
            len(data[CELL].drop_duplicates()),
        ),
        misleads="The operating point is a choice. Two studies with the same lambda but another scale of the loss "
        "stand at other points of the same curve.",
        figures=by_site("frontier", data, lambda site: figures.frontier(data, site)),
    )


def predicted(run: RunTables) -> Content:
    """The quadratic form against what was measured."""
    here = first_seed(run.get("evaluation"), "mask")
    valid = here[(here["kl"] > 0) & (here["predicted_kl"] > 0)]
    points = []
    for site in sites_of(here):
        own = at(valid, site)
        said = []
        for mask in masks_in(own["mask"]):
            rows = own[own["mask"] == mask]
            said.append(html("{} {}", label(mask), middle(spread(rows["predicted_kl"] / rows["kl"]))))
        points.append(
            html("<strong>{}</strong>, predicted over measured: {}.", code(site), listed(said, "not measured"))
        )
    return Content(
        text="If downstream loss is reconstruction error weighted by curvature, the curvature at the clean activation "
        "predicts the KL of any mask.",
        points=points,
        definition="Formulas 11 and 12: ½ (1 − z)ᵀ M (1 − z), M the gate Fisher, what the dictionary misses counted "
        "as one more component that every mask closes, against the KL of formula 8.",
        control=Markup("The line of equality. What the full mask costs is predicted like any other's."),
        sample=html("{:,} of {:,} masks have both and are positive.", len(valid), len(here)),
        misleads="An expansion: right near the clean activation, with no promise far from it. M is an estimate from "
        "labels drawn from the model.",
        figures=by_site("predicted", here, lambda site: figures.predicted_kl(here, site)),
    )

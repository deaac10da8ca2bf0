"""The section on the bridge between the studies: carriers of a life history in downstream masks."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from tl_lifehist.report import figures
from tl_lifehist.report.figures.cells import at, sites_of, spread
from tl_lifehist.report.figures.style import step_label
from tl_lifehist.report.markup import details, html, joined, number, p_value, percent, table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.sections.names import hook_labels
from tl_lifehist.report.sections.sufficiency.words import below, by_site, code, counts, middle
from tl_lifehist.report.tables import RunTables

LEVEL = 0.05  # of a mask's p, as in the claims
ENDS = ("empty", "full")  # masks beside which a lost fraction is read


def bridge(run: RunTables) -> Content:
    """Do downstream masks over SAE features select the carriers of a life history?"""
    data = run.get("carriers").sort_values("step", kind="stable")
    labels = hook_labels(run.hook_names)
    points = []
    for site in sites_of(data):
        own = at(data, site)
        tested = own[own["p"].notna()]
        above = int((tested["p"] <= LEVEL).sum())
        last = own[own["step"] == own["step"].max()]
        left = html(", and {:,} could not be tested", len(own) - len(tested)) if len(tested) < len(own) else ""
        points.append(
            html(
                "<strong>{}</strong>: carriers' gates are above 95\u00a0% of the sets matched by mass in {:,} of "
                "{:,} masks{}. At the last checkpoint their mean gate is {} times that of the alive features; {} "
                "for those that have equals, beside {} for the matched sets. The masks keep {} of the soft mass "
                "there{}.",
                code(site),
                above,
                len(tested),
                left,
                middle(spread(last["enrichment"])),
                middle(spread(last["against"])),
                middle(spread(last["null"])),
                middle(spread(last["soft_mass"]), share=True),
                _losses(last),
            )
        )
    head = ["step", "hook point", "error", "alive", "carriers", "soft mass", "all carriers", "those matched"]
    head += ["matched sets", "unmatched", "mass gap", "p", "relative KL"]
    head += ["lost fraction", *(html("{} mask", mask) for mask in ENDS)]
    rows = [
        [
            step_label(row["step"]),
            labels.get(row["hook_name"]) or row["hook_name"],
            "kept" if row["keep_error"] else "dropped",
            *(number(row[name]) for name in ("n_alive", "n_carriers")),
            percent(row["soft_mass"]),
            *(number(row[name]) for name in ("enrichment", "against")),
            number(row["null"]) + below(row["low"], row["high"]),
            percent(row["unmatched_share"]),
            number(row["mass_gap"]),
            p_value(row["p"]),
            *(number(row[name]) for name in ("relative_kl", "lost_fraction")),
            *(number(row[f"{mask}_lost_fraction"]) for mask in ENDS),
        ]
        for row in data.to_dict("records")
    ]
    return Content(
        text=Markup(
            "Downstream masks fitted over the alive features of the life history's SAEs: from which checkpoint on do "
            "they select the carriers?"
        ),
        points=points,
        definition=Markup(
            "Mean gate over the carriers of a layer over the mean gate over its alive features (ours); lambda is 0.1 "
            "over the number of alive features. With the SAE's error added back, and without. Mass gap: log mass of "
            "the carriers less that of their matched sets, in standard deviations. Formula 9: lost fraction, of the "
            "mask and of the empty and the full one."
        ),
        control="Sets matched by mass: the labels “carrier” exchanged among ten features of neighbouring mass (ours); "
        "the grey band holds 95 % of them. A mask is tested only where at most 10 % of the carriers have no other kind "
        "among their ten and the mass gap is at most 0.1 either way. The empty mask is the null of what a mask loses, "
        "the full mask its floor.",
        sample=html(
            "{:,} masks; {} carriers of {} alive features.",
            len(data),
            counts(data["n_carriers"]),
            counts(data["n_alive"]),
        ),
        misleads="Carriers are known from the end of training, so early checkpoints are read with hindsight. Mass "
        "explains much of any selection; only what lies above the band does not follow from it. The band takes the "
        "SAE as given: another training of it can turn the verdict, and of many masks some lie above by chance.",
        figures=by_site("bridge", data, lambda site: figures.carrier_masks(data, site)),
        more=details("All masks", table(head, rows, left=3)),
    )


def _losses(masks: pd.DataFrame) -> Markup:
    """What the masks lose beside the empty and the full one, apart by what becomes of the error."""
    said = []
    for kept, own in masks.groupby(masks["keep_error"].astype("boolean"), sort=True):
        ends = [
            html("{} mask {}", mask, number(spread(own[column]).median))
            for mask in ENDS
            if own[column := f"{mask}_lost_fraction"].notna().any()
        ]
        beside = html(" ({})", joined(", ", ends)) if ends else ""
        error = "kept" if kept else "dropped"
        said.append(html("{} with the error {}{}", number(spread(own["lost_fraction"]).median), error, beside))
    return html("; the lost fraction is {}", joined(" and ", said)) if said else Markup("")

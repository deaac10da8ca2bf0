"""The section on correlations with training and with depth."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from markupsafe import Markup

from tl_lifehist.report import figures
from tl_lifehist.report.figures.cells import flags, in_order, sites_of
from tl_lifehist.report.markup import details, html, interval, number, p_value, table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.sections.names import label
from tl_lifehist.report.sections.sufficiency.words import below, by_site, code, counts, listed
from tl_lifehist.report.tables import RunTables
from tl_lifehist.sufficiency.target_kinds import TARGETS


def trajectories(run: RunTables) -> Content:
    """Correlations with training and with depth."""
    data = run.get("trajectories")
    data = data.assign(claimed=flags(data["claimed"]))
    points = []
    for site in sites_of(data):
        own = data[(data["site"] == site) & (data["mask"] == "downstream") & (data["quantity"] == "relative_kl")]
        said = [_correlation(row) for row in own.to_dict("records")]
        n = int(data.loc[data["site"] == site, "claimed"].sum())
        points.append(
            html(
                "<strong>{}</strong>, relative KL of the downstream mask: {}. Claimed are {:,} of {:,} "
                "trajectories of this site.",
                code(site),
                listed(said, "not computed"),
                n,
                int((data["site"] == site).sum()),
            )
        )
    names = ["site", "mask", "quantity", "against", "pooled", "within strata", "empty", "full", "KL", "entropy", "p"]
    rows = [
        [
            *(code(row["site"]), label(row["mask"]), label(row["quantity"]), label(row["against"])),
            number(row["pooled"]) + below(row["pooled_low"], row["pooled_high"]),
            number(row["stratified"]) + below(row["stratified_low"], row["stratified_high"]),
            *(number(row[name]) for name in ("empty", "full", "absolute_kl", "clean_entropy")),
            p_value(row["p"]),
            number(bool(row["claimed"])),
            *(number(row[name]) for name in ("n_cells", "n_strata")),
        ]
        for row in data.to_dict("records")
    ]
    masks = [m for m in in_order(data["mask"], ("downstream", *TARGETS)) if m not in ("empty", "full")][:1]
    chosen = masks[0] if masks else "downstream"
    return Content(
        text="Does what a mask loses rise or fall in training, and with depth?",
        points=points,
        definition="Formula 17: Spearman correlation over cells with the rank of the checkpoint or the depth of the "
        "layer; pooled, and the mean within strata (within layer and method for checkpoints, within checkpoint and "
        "method for depth). Intervals: 95 %, by bootstrap.",
        control=Markup(
            "The same pooled correlation for the empty and the full mask, and that of the mask's KL in nats and of "
            "the entropy of the clean predictions. Claimed (ours): the pooled interval excludes 0, p is at most 0.05 "
            "(steps or layers in random order), the strata do not have the other sign, the empty mask does not show "
            "the same, and what the quantity is divided by does not either: neither the clean entropy, nor, for a "
            "lost fraction, the KL of mean ablation; a relative KL or a lost fraction also needs a KL in nats of the "
            "same sign."
        ),
        sample=html("{} cells, {} strata.", counts(data["n_cells"]), counts(data["n_strata"])),
        misleads="Cells of one model are not independent, and few checkpoints make any monotone series a correlation "
        "of 1. Targets are not merged into one score.",
        figures=by_site("trajectories", data, lambda site: figures.trajectories(data, site, chosen)),
        more=details("All trajectories", table([*names, "claimed", "cells", "strata"], rows, left=4)),
    )


def _correlation(row: Mapping[Hashable, Any]) -> Markup:
    def one(name: str) -> Markup:
        ends = interval(row[f"{name}_low"], row[f"{name}_high"])
        return number(row[name]) + (html(" ({})", ends) if ends else "")

    verdict = "claimed" if row["claimed"] else "not claimed"
    return html(
        "against {} {} pooled, {} within strata; empty mask {}, clean entropy {} ({})",
        label(row["against"]),
        one("pooled"),
        one("stratified"),
        number(row["empty"]),
        number(row["clean_entropy"]),
        verdict,
    )

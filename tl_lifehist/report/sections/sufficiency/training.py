"""Sections on training: onset, transfer, anisotropy, senders and receivers."""

from __future__ import annotations

from markupsafe import Markup

from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.report import figures
from tl_lifehist.report.figures.cells import CELL, at, in_order, sites_of, spread
from tl_lifehist.report.figures.style import step_label
from tl_lifehist.report.markup import details, html, joined, number, table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.sections.names import label
from tl_lifehist.report.sections.sufficiency.words import (
    by_site,
    cell,
    code,
    counted,
    counts,
    listed,
    middle,
    variance_held,
)
from tl_lifehist.report.tables import RunTables


def onset(run: RunTables) -> Content:
    """When a small mask becomes sufficient."""
    data = run.get("onset")
    points = []
    for site in sites_of(data):
        own = at(data, site)
        first = own.loc[own["onset"].notna(), "step"].min()
        last = own[own["step"] == own["step"].max()]
        start = html(", the first at step {}", step_label(first)) if first == first else ""
        found = int(last["onset"].notna().sum())
        mass = html(", with {} of the soft mass", middle(spread(last["onset"]), share=True)) if found else ""
        having = counted(int(own["onset"].notna().sum()), len(own))
        points.append(
            html(
                "<strong>{}</strong>: {} have an onset{}. At the last checkpoint {}{}; the full mask loses {} there.",
                code(site),
                having,
                start,
                counted(found, len(last)),
                mass,
                middle(spread(last["full_lost_fraction"])),
            )
        )
    return Content(
        text="The question of the title: when in training is a small part of the dictionary enough?",
        points=points,
        definition="Formula 18 (ours): the least soft mass on the frontier with a lost fraction of at most 0.1 that "
        "also beats the best mask of equal mass by variance. There is none where the full mask itself fails.",
        control=Markup(
            "The mask by variance is part of the definition. The full mask's loss, below, says where the "
            "dictionary makes an onset impossible."
        ),
        sample=html("{:,} cells, {} checkpoints.", len(data[CELL].drop_duplicates()), data["step"].nunique()),
        misleads="A median over cells with an onset changes when cells enter. The sweep is a grid: the least mass on "
        "it is no minimum. The 0.1 is a choice.",
        figures=by_site("onset", data, lambda site: figures.onset(data, site)),
    )


def transfer(run: RunTables) -> Content:
    """Does an early mask carry over to the end?"""
    data = run.get("transfer")
    points, rows = [], []
    for site in sites_of(data):
        own = at(data, site)
        full = own[own["mask"] == "full"]
        said = []
        for method in in_order(full["method"], METHODS):
            here = full[full["method"] == method]
            values = [
                html(
                    "{} {}", label(control), number(spread(here.loc[here["control"] == control, "relative_kl"]).median)
                )
                for control in ("aligned", "procrustes", "dictionary", "identity", "shuffled")
                if (here["control"] == control).any()
            ]
            said.append(html("{} {}", label(method), joined(", ", values)))
        points.append(
            html("<strong>{}</strong>, median relative KL of the full mask: {}.", code(site), listed(said))
            + variance_held(run, site, last=True)
        )
        groups = own.groupby(["method", "mask", "control"], sort=False)
        rows += [
            [code(site), label(m), label(mask), label(c), cell(g["nmse"]), cell(g["relative_kl"]), number(len(g))]
            for (m, mask, c), g in groups
        ]
    head = ["site", "method", "mask", "alignment", "NMSE", "relative KL", "cells"]
    charts = {}
    for quantity in ("relative_kl", "nmse"):
        charts |= by_site(
            f"transfer_{quantity}", data, lambda site, quantity=quantity: figures.transfer_curves(data, site, quantity)
        )
    return Content(
        text=Markup("An earlier checkpoint's reconstruction, mapped to the last checkpoint and injected there."),
        points=points,
        definition=Markup(
            "Formula 16: a ridge map from the activations of checkpoint t to those of the last one, applied to the "
            "masked reconstruction at t; NMSE against the last checkpoint's activations, and relative KL of the last "
            "model with it injected."
        ),
        control="Source rows shuffled; orthogonal Procrustes instead of ridge; least squares between dictionaries; no "
        "alignment; the empty mask. At the last checkpoint nothing has to be aligned.",
        sample=html(
            "{} source checkpoints, {} hook points, {} methods.",
            data["step"].nunique(),
            data["hook_name"].nunique(),
            data["method"].nunique(),
        ),
        misleads="A map learnt on enough rows repairs much of what differs. With all components SVD and ICA span the "
        "same space and must agree; differences to NMF and SemiNMF are differences of what those leave out.",
        figures=charts,
        more=details("By method, mask and alignment", table(head, rows, left=4)),
    )


def anisotropy(run: RunTables) -> Content:
    """How few directions matter, and since when."""
    data = run.get("anisotropy")
    points = []
    for site in sites_of(data):
        own = at(data, site)
        ends = [own[own["step"] == own["step"].min()], own[own["step"] == own["step"].max()]]
        first, last = ({c: spread(e[c]).median for c in ("participation_ratio", "gini_tau", "gini_null")} for e in ends)
        points.append(
            html(
                "<strong>{}</strong>: participation ratio of the downstream Fisher {} at step {} and {} at step "
                "{}; Gini of tau {} and {} (labels permuted: {} and {}).",
                code(site),
                number(first["participation_ratio"]),
                step_label(own["step"].min()),
                number(last["participation_ratio"]),
                step_label(own["step"].max()),
                number(first["gini_tau"]),
                number(last["gini_tau"]),
                number(first["gini_null"]),
                number(last["gini_null"]),
            )
        )
    start = "The first checkpoint, where nothing was learnt" if (data["step"] == 0).any() else "The first checkpoint"
    return Content(
        text="Whether sensitivity gathers in few components as training goes on.",
        points=points,
        definition="Formula 18: participation ratio (tr M)² / tr M² of the gate Fisher (formula 12), from 1 to the "
        "number of components; Gini coefficient of tau (formula 14), from 0 (equal) to 1.",
        control=html("{}, and tau under one draw of permuted labels.", start),
        sample=html(
            "{:,} cells, {} sequences in each Fisher.", len(data[CELL].drop_duplicates()), counts(data["n_sequences"])
        ),
        misleads="A Fisher estimated from n sequences has at most n directions. The participation ratio printed is "
        "corrected for that, and where sequences are few the correction is noisy. Unequal variances of the components "
        "alone make tau unequal: that is what the null shows, and one draw has no spread.",
        figures=by_site("anisotropy", data, lambda site: figures.anisotropy(data, site)),
    )


def senders(run: RunTables) -> Content:
    """A hypothesis, and printed as one."""
    data = run.get("anisotropy")
    points = []
    for site in sites_of(data):
        own = at(data, site)
        last = own[own["step"] == own["step"].max()]
        values = {c: spread(last[c]) for c in ("mask_overlap", "overlap_null", "participation_fixed_head")}
        points.append(
            html(
                "<strong>{}</strong>, last checkpoint: overlap of the fixed-head and the downstream mask {}, of "
                "random masks of the same masses {}; participation ratio of the fixed head's Fisher {}, of the "
                "downstream one {}; alignment of the two {}.",
                code(site),
                middle(values["mask_overlap"]),
                middle(values["overlap_null"]),
                middle(values["participation_fixed_head"]),
                middle(spread(last["participation_ratio"])),
                middle(spread(last["fisher_alignment"])),
            )
        )
    return Content(
        text=Markup(
            "<strong>A hypothesis</strong>, and no more: that early readouts and later layers come to use other "
            "components, so that what a layer sends is not what is received."
        ),
        points=points,
        definition="Formula 18: overlap of the two masks, the sum of the smaller gates over the sum of the larger "
        "(ours); participation ratios of both Fishers A and B, and their alignment tr(AB) / sqrt(tr A² tr B²) (ours).",
        control="Random masks of the same two soft masses; the first checkpoint.",
        sample=html("{:,} cells.", len(data[CELL].drop_duplicates())),
        misleads="Overlap grows with mass. Nothing here tests who sends or receives; a difference between two masks is "
        "all that is measured.",
        figures=by_site("senders", data, lambda site: figures.sender_receiver(data, site)),
    )

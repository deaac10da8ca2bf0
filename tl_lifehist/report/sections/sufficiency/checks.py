"""Sections on what the masks rest on: the checkpoints, the dictionaries and seeds."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.report import figures
from tl_lifehist.report.figures.cells import CELL, at, in_order, sites_of, spread
from tl_lifehist.report.markup import details, frame, html, number, table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.sections.names import label
from tl_lifehist.report.sections.sufficiency.words import by_site, cell, code, listed, middle, range_of, variance_held
from tl_lifehist.report.tables import RunTables
from tl_lifehist.sufficiency.target_kinds import TARGETS


def checkpoints(run: RunTables) -> Content:
    """The untouched model at each checkpoint, and what taking a site away costs it."""
    data = run.get("checkpoints")
    by_step = data.groupby("step", sort=True)
    shown = by_step[["clean_ce", "clean_entropy", "clean_accuracy"]].first()
    names = {"step": "step", "clean_ce": "cross-entropy, nats", "clean_entropy": "entropy, nats"}
    names["clean_accuracy"] = "top-1 accuracy"
    points = []
    for site in sites_of(data):
        own = at(data, site)
        shown[f"empty_{site}"] = [range_of(own.loc[own["step"] == step, "empty_relative_kl"]) for step in shown.index]
        names[f"empty_{site}"] = html("mean ablation, {}", site)
        points.append(
            html(
                "<strong>{}</strong>: mean ablation costs {} of the entropy in KL ({} nats) and {} percentage "
                "points of accuracy.",
                code(site),
                range_of(own["empty_relative_kl"]),
                range_of(own["empty_kl"]),
                range_of(own["empty_accuracy_drop"]),
            )
        )
    return Content(
        text=html("{} checkpoints, measured on the same tokens.", len(shown)),
        points=points,
        definition=Markup(
            "Mean cross-entropy and entropy of the untouched model's predictions, top-1 accuracy; mean ablation: the "
            "site replaced by its train mean at every valid position (z = 0), relative KL by formula 9, from the "
            "least layer to the greatest."
        ),
        control="Mean ablation is the null of every downstream figure.",
        sample=html(
            "{} scored positions in {} documents.", number(data["n_scored"].max()), number(data["n_documents"].max())
        ),
        misleads="Where mean ablation costs little, the model hardly needs the site and every mask looks sufficient.",
        table=frame(shown.reset_index(), names, left=0),
    )


def dictionaries(run: RunTables) -> Content:
    """What the dictionaries explain, and whether they converged."""
    data, rows_of = run.get("dictionaries"), run.get("checkpoints")
    converged = data["converged"].astype("boolean")
    stopped = int((~converged.fillna(True)).sum())
    points, rows = [], []
    for site in sites_of(data):
        own = at(data, site)
        said = [
            html("{} {}", label(m), middle(spread(own.loc[own["method"] == m, "explained_variance"]), share=True))
            for m in in_order(own["method"], METHODS)
        ]
        points.append(
            html("<strong>{}</strong>, explained variance: {}.{}", code(site), listed(said), variance_held(run, site))
        )
        for method in in_order(own["method"], METHODS):
            here = own[own["method"] == method]
            done = converged[here.index]
            rows.append(
                [
                    *(code(site), label(method), number(here["n_components"].max()), number(here["n_rows"].max())),
                    *(cell(here["explained_variance"], share=True), cell(here["test_nmse"])),
                    html("{:,} of {:,}", int(done.fillna(False).sum()), len(here)),
                    cell(here["n_iter"]),
                ]
            )
    warn = (
        html(" <strong>{:,} of {:,} stopped before they converged.</strong>", stopped, len(data))
        if stopped
        else " All of them converged."
        if converged.notna().all()
        else ""
    )
    head = ["site", "method", "components", "rows", "explained", "NMSE on test", "converged", "iterations"]
    return Content(
        text=html("{:,} dictionaries.{}", len(data), warn),
        points=points,
        definition="Formula 1: the full reconstruction; explained variance on the rows it was fitted to, NMSE (formula "
        "6) on the test split.",
        control="SVD explains the most that any dictionary of its size can on the rows it was fitted to; the test "
        "split shows what of it holds.",
        sample=html(
            "{} rows, {} components; cells as everywhere.",
            number(data["n_rows"].max()),
            number(data["n_components"].max()),
        ),
        misleads=Markup(
            "A few massive activations can hold most of a site's variance and decide every NMSE. A dictionary "
            "that did not converge is no worse a dictionary for masks, but another run of it may differ."
        ),
        figures=by_site("dictionaries", data, lambda site: figures.explained_variance(data, rows_of, site)),
        more=details("By method", table(head, rows, left=2)),
    )


def stability(run: RunTables) -> Content:
    """Is another seed's mask the same mask?"""
    data = run.get("stability")
    points = []
    for site in sites_of(data):
        own = at(data, site)
        said = []
        for target in in_order(own["target"], TARGETS):
            here = own[own["target"] == target]
            said.append(
                html(
                    "{} {} (random masks {})",
                    label(target),
                    number(spread(here["overlap"]).median),
                    number(spread(here["overlap_null"]).median),
                )
            )
        pairs = _pairs(own)
        drawn = [
            html(
                "{} {} (random directions {})",
                label(method),
                number(spread(here["dictionary_overlap"]).median),
                number(spread(here["dictionary_null"]).median),
            )
            for method in in_order(pairs["method"], METHODS)
            if (here := pairs[pairs["method"] == method])["dictionary_overlap"].notna().any()
        ]
        points.append(
            html(
                "<strong>{}</strong>: {}. Dictionaries: {}.",
                code(site),
                listed(said),
                listed(drawn, "SVD alone, or one seed"),
            )
        )
    return Content(
        text="Overlap of the masks that two seeds give, in the median over pairs and cells.",
        points=points,
        definition="Overlap of two masks over one dictionary: the sum of the smaller gates over the sum of the larger "
        "(ours). Of two dictionaries: mean absolute cosine of their directions under the best assignment (ours), for "
        "methods that depend on where they start: SVD does not. "
        "Gates: formula 3.",
        control="The same with the gates of one mask permuted, so with the same soft masses; for dictionaries, as many "
        "random directions.",
        sample=html("{:,} pairs of seeds in {:,} cells.", len(_pairs(data)), len(data[CELL].drop_duplicates())),
        misleads="Masks are not unique: two masks that share nothing can be equally sufficient.",
        figures=by_site("stability", data, lambda site: figures.stability(data, site)),
    )


def _pairs(data: pd.DataFrame) -> pd.DataFrame:
    return data.drop_duplicates([*CELL, "seed_a", "seed_b"])

"""Sections on structure and forecasts: the containment graph, recruitment, forecast, direction, survival."""

from __future__ import annotations

from markupsafe import Markup

from tl_lifehist.report import figures
from tl_lifehist.report.figures.style import step_label
from tl_lifehist.report.markup import details, frame, html, interval, joined, number, p_value, percent
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.tables import RunTables


def dag(run: RunTables) -> Content:
    """The graph at the last checkpoint, in both orientations."""
    edges, features, carriers = run.get("edges"), run.get("features"), run.get("carriers")
    last = int(features["step"].max())
    known = [o for o in ("container", "depth") if o in set(edges["orientation"])]
    drawn = {f"dag_{o}": figures.dag(edges, features, carriers, orientation=o) for o in known}
    counts = edges[edges["step"] == last].groupby("orientation").size()
    n = joined(", ", (html("{:,} edges in the {} orientation", counts.get(o, 0), o) for o in known))
    return Content(
        text=html(
            "At step {} there are {}. Carriers and what they reach are coloured; the size of a point follows "
            "the log of its firing rate; its place within the column means nothing.",
            step_label(last),
            n or "no edges",
        ),
        definition=Markup(
            "D12: feature i is contained in j if i fires (almost) only where j fires. D13: in the "
            "<em>container</em> orientation an edge goes from the broader feature to the narrower, in <em>depth</em> "
            "from the lower hook point to the higher one that contains it."
        ),
        control="A minimum lift and a Bonferroni-corrected hypergeometric p keep out what breadth alone gives; the "
        "next section has the null of the whole graph.",
        sample=html(
            "{:,} alive features at {} hook points.", (features["step"] == last).sum(), features["hook_name"].nunique()
        ),
        misleads="An edge says that one feature fires where another fires. It is no influence, and the direction is a "
        "convention. At most some of the edges are drawn; the line under the figure says how many.",
        figures=drawn,
    )


def recruitment(run: RunTables) -> Content:
    """The recruited fraction over the checkpoints."""
    table = run.get("dag")
    last = table[table["step"] == table["step"].max()]
    parts = [
        html(
            "{} in the {} orientation (null {} to {}, p = {})",
            percent(row["recruited"]),
            row["orientation"],
            percent(row["null_low"]),
            percent(row["null_high"]),
            p_value(row["p"]),
        )
        for _, row in last.iterrows()
    ]
    parents = joined(
        ", ",
        (html("{} ({})", number(row["n_can_be_parents"]), row["orientation"]) for _, row in last.iterrows()),
    )
    names = {"step": "step", "orientation": "orientation", "n_nodes": "features", "n_edges": "edges", "n_root": "roots"}
    names |= {"n_mid": "mids", "n_leaf": "leaves", "n_isolated": "isolated", "n_carriers": "carriers"}
    names |= {"n_can_be_parents": "can be parents", "recruited": "recruited", "recruited_direct": "direct only"}
    names |= {
        "recruited_with_carriers": "carriers counted in",
        "null_mean": "null mean",
        "rewired_mean": "rewired",
        "p": "p",
    }
    return Content(
        text=html(
            "Share of the alive non-carriers that can be reached from a carrier, at the last checkpoint: {}.",
            joined("; ", parts),
        ),
        definition="D15: alive non-carriers reachable from at least one carrier, over all alive non-carriers. Also: "
        "direct children only.",
        control="C8: node sets of the same size and firing rates (band, 95 %), and graphs rewired with every degree "
        "kept.",
        sample=html(
            "{} features at the last checkpoint; carriers that can be parents at all, given the minimum lift: {}.",
            number(int(last["n_nodes"].max())),
            parents,
        ),
        misleads="Broad sets reach much by breadth. Inside the band the carriers recruit no more than their rates "
        "explain.",
        figures={"recruitment": figures.recruitment(table)},
        more=details("Counts by checkpoint", frame(table, names, left=0)),
    )


def forecast(run: RunTables) -> Content:
    """The forecast beside its baselines."""
    table = run.get("forecast")
    first = table.iloc[0]
    text = (
        html(
            "At the onset, later carriers are told from the rest with an AUC of {} ({}), enrichment {}x.",
            number(first["auc"]),
            interval(first["low"], first["high"]) or "no interval",
            number(first["enrichment"]),
        )
        if first["auc"] == first["auc"]
        else html("There is no forecast: {}.", first.get("reason") or "too few later carriers at the onset")
    )
    names = {"predictor": "predictor", "auc": "AUC", "low": "2.5 %", "high": "97.5 %", "enrichment": "enrichment"}
    names |= {
        "average_precision": "average precision",
        "recall_at_k": "recall at K",
        "recall_top_decile": "recall in top 10 %",
        "recall_of_all": "recall of all carriers at K",
    }
    names |= {"n": "n", "n_positive": "carriers"}
    return Content(
        text=text,
        definition="D21: logistic regression on entropy, containment index and activation strength of the features "
        "alive at the onset; label: the lineage becomes a carrier. D22: enrichment is the precision at K over the "
        "base rate.",
        control=Markup(
            "C9: a smooth curve of the firing rate and the layer, the same of the mass, the log firing rate as a "
            "straight line, the decoder's geometry, permuted labels, each hook point told by the others. What the "
            "measurements add to rate and layer is a claim of its own."
        ),
        sample=html(
            "{} features, {} of them later carriers; 5 folds by lineage, repeated.",
            number(first["n"]),
            number(first["n_positive"]),
        ),
        misleads="Entropy, strength and containment move with the firing rate: the distance from that baseline "
        "counts, not the distance from 0.5. Carriers that do not exist at the onset cannot be found at all.",
        figures={"forecast": figures.forecast(table)},
        more=details("All measures", frame(table, names)),
    )


def direction(run: RunTables) -> Content:
    """Function against direction."""
    table = run.get("direction").sort_values("step")
    after = table[table["step"] > 0]
    row = (after if len(after) else table).iloc[0]
    return Content(
        text=html(
            "At step {} a lineage's response is like its final one to {} (Pearson), its direction to {} (cosine), and "
            "to {} once the turn that all directions share is taken out.",
            step_label(row["step"]),
            number(row["s_fun"]),
            number(row["s_dir"]),
            number(row["s_dir_aligned"]),
        ),
        definition=Markup(
            "D16: mean Pearson correlation of a lineage's profile with its last one (function), mean cosine "
            "of its decoder row with its last one (direction)."
        ),
        control="What unrelated lineages give (dotted).",
        sample=html("{} to {} lineages per checkpoint.", number(table["n"].min()), number(table["n"].max())),
        misleads="Lineages are chained by function, so function is high by selection. SAEs that share an "
        "initialisation have like directions from the start.",
        figures={"direction": figures.function_direction(table)},
    )


def survival(run: RunTables) -> Content:
    """Survival by entropy decile."""
    table = run.get("survival_by_entropy").sort_values("decile")
    low, high = table.iloc[0], table.iloc[-1]
    return Content(
        text=html(
            "{} of the features in the highest decile of entropy reach the end, {} in the lowest.",
            percent(high["survival"]),
            percent(low["survival"]),
        ),
        definition="D23: share of the features alive at the onset whose lineage reaches the last checkpoint, by "
        "decile of activation entropy (D10).",
        control="The same by decile of the firing rate, to which entropy is close.",
        sample=html("{} features alive at the onset.", number(int(table["n"].sum()))),
        misleads="Broad features match more easily, so part of their survival is stability under SAE training.",
        figures={"survival": figures.survival(table)},
    )

"""Sections on lineages: checkpoints, the raster, births and deaths, persistence, noise floors and nulls."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from tl_lifehist.report import figures
from tl_lifehist.report.markup import frame, html, interval, joined, number, percent
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.tables import RunTables


def checkpoints(run: RunTables) -> Content:
    """The base model at each checkpoint, how well its SAEs reconstruct, and how many features are alive."""
    table = run.get("checkpoints")
    by_step = table.groupby("step", sort=True)
    shown = by_step[["base_ce"]].first()
    shown["n_alive"] = by_step["n_alive"].sum()
    shown["fvu"] = [interval(low, high) for low, high in by_step["fvu"].agg(["min", "max"]).itertuples(index=False)]
    names = {"step": "step", "base_ce": "cross-entropy (nats)", "n_alive": "alive features"}
    names["fvu"] = "variance the SAEs leave"
    return Content(
        text=html("{} checkpoints, measured on the same tokens.", len(shown)),
        definition="Mean cross-entropy of the untouched model; alive features (D3) over all hook points; D1: the "
        "share of the variance that the SAEs leave, from the best hook point to the worst.",
        control="The weights of all checkpoints are compared by fingerprint before anything is trained (see "
        "provenance).",
        sample=html("{} checkpoints, {} scored positions.", len(shown), number(table["n_scored"].max())),
        misleads="What the SAEs leave has no history here. A checkpoint may be mislabelled and yet distinct from all "
        "others; no comparison can see that.",
        more=frame(shown.reset_index(), names, left=0),
    )


def raster(run: RunTables) -> Content:
    """Every lineage by checkpoint, carriers coloured."""
    lineages, carriers = run.get("lineages"), run.get("carriers")
    last = int(lineages["step"].max())
    alive = int((lineages["step"] == last).sum())
    share = percent(len(carriers) / alive) if alive else "–"
    panels = {
        f"lineages_{i}": figures.lineage_raster(lineages[lineages["hook_name"] == hook], carriers)
        for i, hook in enumerate(dict.fromkeys(lineages["hook_name"]))
    }
    n = lineages["lineage"].nunique()
    found = (
        html(
            "{:,} are persistent carriers (in colour), {} of the {:,} features alive at the end",
            len(carriers),
            share,
            alive,
        )
        if run.has("carriers")
        else "carriers were not computed"
    )
    return Content(
        text=html(
            "Each row is one lineage, sorted by birth and then by length; a filled cell is a checkpoint at "
            "which it is alive. Of {:,} lineages {}.",
            n,
            found,
        ),
        definition="D7: a lineage is a chain of features matched through consecutive checkpoints at one hook point. "
        "D9: a carrier is stable in at least two thirds of the checkpoints after step 0 and alive at the last one.",
        control="The count of carriers has two nulls, and deaths have noise floors: see the sections below.",
        sample=html("{:,} lineages, {} hook points, {} checkpoints.", n, len(panels), lineages["step"].nunique()),
        misleads="Columns are equally wide whatever the number of steps between them. Closely spaced checkpoints make "
        "carriers of almost everything, and a lineage may end by noise of SAE training.",
        figures=panels,
    )


def events(run: RunTables) -> Content:
    """Births and deaths by transition."""
    table = run.get("events")
    births, deaths = (int(table.loc[table["kind"] == kind, "count"].sum()) for kind in ("birth", "death"))
    transitions = len(table[["step_from", "step_to"]].drop_duplicates())
    return Content(
        text=html(
            "{:,} births and {:,} deaths over {} transitions. Dotted lines are what the same total would give "
            "if every transition had equal counts.",
            births,
            deaths,
            transitions,
        ),
        definition="D8: births and deaths in a transition over its length in steps, over its length in log10(step + "
        "1), and over the features alive after it (births) or before it (deaths).",
        control="C5, the flat null: equal counts in every transition. A rate that follows the dotted line says that "
        "intervals differ in length, not that anything sped up or slowed down.",
        sample=html(
            "{} transitions, {} hook points, {:,} events.", transitions, table["hook_name"].nunique(), births + deaths
        ),
        misleads="Rates per step fall by arithmetic where intervals grow. Deaths include noise of SAE training, "
        "which the next section bounds. The earliest transition may also be the learning-rate warm-up.",
        figures={"events": figures.event_rates(table)},
    )


def persistence(run: RunTables) -> Content:
    """Match rates beside their floors."""
    deaths = run.get("events").query("kind == 'death'")
    floors = deaths[["floor_data", "floor_init"]].notna().any()
    if floors.any():
        parts = [
            html("{} with {}", _range(deaths[column]), what)
            for column, what in (("floor_data", "another row order"), ("floor_init", "another initialisation"))
            if floors[column]
        ]
        noise = html("Two SAEs of one and the same checkpoint match {}.", joined(" and ", parts))
    else:
        noise = Markup("<strong>No floor was computed in this run, so loss and noise cannot be told apart.</strong>")
    return Content(
        text=html("{} of the alive features are matched across a transition. {}", _range(deaths["match_rate"]), noise),
        definition="D5, D6: alive features of neighbouring checkpoints matched by the Pearson correlation of their "
        "activations, accepted from the threshold on. Corrected: match / floor, as a range over both floors.",
        control="C1: the re-match rate of two SAEs trained on one checkpoint, at two levels of noise that are never "
        "mixed.",
        sample=html(
            "{} transitions by hook point, {} to {} alive features in each.",
            len(deaths),
            number(deaths["n_alive"].min()),
            number(deaths["n_alive"].max()),
        ),
        misleads="The corrected range is no confidence interval. Which end fits depends on whether the SAEs of "
        "neighbouring checkpoints share their initialisation.",
        figures={"persistence": figures.persistence(run.get("events"))},
    )


def _range(values: pd.Series) -> Markup:
    low, high = percent(values.min()), percent(values.max())
    return low if low == high else html("{} to {}", low, high)


def rematch(run: RunTables) -> Content:
    """The noise floors themselves."""
    table = run.get("rematch")
    levels = {"data": "another row order", "init": "another initialisation"}
    rates = table.groupby("level")["rate"].mean()
    parts = [html("{} with {}", percent(rates[level]), name) for level, name in levels.items() if level in rates]
    return Content(
        text=html("Two SAEs of one checkpoint agree, on average, on {}.", joined(" and ", parts) or "no level"),
        definition="C1: accepted matches over alive features between two SAEs trained on the same checkpoint.",
        control="This is the control of the match rates above.",
        sample=html(
            "{:,} pairs of SAEs at {} checkpoints, {} replicate(s) each.",
            len(table),
            table["step"].nunique(),
            table["replicate"].nunique(),
        ),
        misleads="The two levels are different kinds of noise. Dividing one kind of match rate by the other kind of "
        "floor gives a persistence that is too high or too low.",
        figures={"rematch": figures.rematch_floors(table)},
    )


def nulls(run: RunTables) -> Content:
    """Carriers beside the frozen and unrelated nulls."""
    table, n = run.get("nulls"), len(run.get("carriers"))
    parts = [
        html("{} on average under <em>{}</em>", number(round(float(group["carriers"].mean()), 1)), name)
        for name, group in table.groupby("null", sort=False)
    ]
    return Content(
        text=html("This run has {:,} carriers; there are {}.", n, joined(" and ", parts)),
        definition=Markup(
            "C1: the number of carriers (D9). <em>Frozen</em>: one model at every “checkpoint”, with the "
            "run's own way of initialising SAEs. <em>Unrelated</em>: tokens permuted within each profile."
        ),
        control="Frozen is what remains when nothing changes but the SAEs; unrelated is what chance matches give.",
        sample=joined(
            ", ",
            (html("{} draws of {}", len(group), name) for name, group in table.groupby("null", sort=False)),
        ),
        misleads=Markup(
            "More carriers than <em>unrelated</em> is no finding. Near <em>frozen</em>, the model changed no "
            "more than noise can show."
        ),
        figures={"nulls": figures.nulls(table, n)},
    )

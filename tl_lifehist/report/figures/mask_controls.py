"""Figures that set masks beside their controls: masks of equal mass, enrichment, ranks, and the quadratic forecast."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_lifehist.palette import CONTROL, FAINT
from tl_lifehist.report.figures.cells import (
    CELL,
    NULLS,
    at,
    beside_nulls,
    colour_of,
    first_seed,
    in_order,
    label,
    masks_in,
)
from tl_lifehist.report.figures.style import figure, log_axis, small_titles, styled
from tl_lifehist.sufficiency.target_kinds import TARGETS

SCORES = {"enrichment_tau": "tau", "enrichment_omega": "omega", "enrichment_curvature": "curvature"}
LINE = {"color": CONTROL, "dash": "dot", "width": 1.5}


def mass_matched(evaluation: pd.DataFrame, nulls: pd.DataFrame, site: str) -> go.Figure:
    """Each target's mask over the empty mask and over control masks of the same soft mass, cell by cell, at one site.

    Left of 1 the mask is better. NMSE for the reconstruction mask, KL for the others.

    How it can mislead: only the reconstruction and the downstream mask were fitted to what is compared here. Right of
    1 in the row of a ranking means that one backward pass does better than the optimisation.

    Args:
        evaluation: step, hook_name, site, method, mask, seed, nmse, kl.
        nulls: step, hook_name, site, layer, method, target, kind, and the scores.
        site: the only one that is shown.
    """
    ratios = beside_nulls(evaluation, nulls, site)
    pairs = [
        (target, kind, own["ratio"][own["ratio"] > 0])
        for target in in_order(ratios["target"], ("downstream", *TARGETS))
        for kind in in_order(ratios["kind"], ("empty", *NULLS))
        if len(own := ratios[(ratios["target"] == target) & (ratios["kind"] == kind)])
    ]
    fig = figure(80 + 36 * max(len(pairs), 1), title=f"Equal masses at {site}", heading=site)
    names = [f"{label(target)}<br><i>over {label(kind)}</i>" for target, kind, _ in pairs]
    for name, (target, _, values) in zip(names, pairs, strict=True):
        fig.add_box(
            x=values,
            y=[name] * len(values),
            orientation="h",
            name=name.replace("<br>", " "),
            boxpoints="outliers",
            marker={"color": colour_of(target), "size": 3},
            line={"color": colour_of(target), "width": 1.4},
            fillcolor="rgba(0,0,0,0)",
            hoverinfo="x+name",
            showlegend=False,
        )
    fig.add_vline(x=1, line=LINE, layer="below")  # pyright: ignore[reportArgumentType]
    fig.update_xaxes(title_text="mask / control, by cell", tickangle=0, **log_axis([*ratios["ratio"], 1.0]))
    fig.update_yaxes(showgrid=False, type="category", autorange="reversed", categoryorder="array", categoryarray=names)
    return fig.update_layout(margin={"t": 10})


def enrichment(evaluation: pd.DataFrame, nulls: pd.DataFrame, site: str) -> go.Figure:
    """How much more tau, omega and curvature the masks hold than masks that take no notice of them (formula 15).

    One box a target, over cells; the line at 1 is a constant mask; grey, random masks of the same soft mass, each draw.
    On a log axis: a cell with an enrichment of zero is left out.

    How it can mislead: an enrichment is at most 1 over the soft mass, so a small mask can have a large one and a large
    mask cannot. tau counts labels' noise as well as what is coherent.

    Args:
        evaluation: step, hook_name, site, method, mask, seed, enrichment_tau, enrichment_omega, enrichment_curvature.
        nulls: site, kind, enrichment_tau; other scores are drawn where they are there.
        site: the only one that is shown.
    """
    here = first_seed(at(evaluation, site), "mask")
    targets = in_order(here["mask"][~here["mask"].isin(["full", "empty"])], TARGETS)
    drawn = at(nulls, site)
    drawn = drawn[drawn["kind"] == "random"]
    rows = [label(t) for t in targets]
    fig = make_subplots(
        rows=len(SCORES), cols=1, shared_xaxes=True, vertical_spacing=0.07, subplot_titles=list(SCORES.values())
    )
    shown = [1.0]
    for row, (column, _) in enumerate(SCORES.items(), start=1):
        boxes = [(label(t), colour_of(t), here.loc[here["mask"] == t, column]) for t in targets]
        if column in drawn and len(drawn):
            boxes.append(("random", CONTROL, drawn[column]))
        for name, colour, values in boxes:
            own = values[values > 0]
            shown += list(own)
            fig.add_box(
                x=own,
                y=[name] * len(own),
                orientation="h",
                name=name,
                boxpoints="outliers",
                marker={"color": colour, "size": 3},
                line={"color": colour, "width": 1.4},
                fillcolor=FAINT if name == "random" else "rgba(0,0,0,0)",
                hoverinfo="x+name",
                showlegend=False,
                row=row,
                col=1,
            )
        fig.update_yaxes(categoryarray=[*rows, "random"] if column in drawn else rows, row=row)
    fig.add_vline(x=1, line=LINE, layer="below")  # pyright: ignore[reportArgumentType]
    fig.update_xaxes(tickangle=0, **log_axis(shown))
    fig.update_xaxes(title_text="enrichment", row=len(SCORES))
    fig.update_yaxes(type="category", categoryorder="array", autorange="reversed", showgrid=False)
    height = 110 + len(SCORES) * (30 + 24 * (len(rows) + 1))
    fig = styled(fig, height, title=f"Enrichment at {site}", heading=site)
    return small_titles(fig).update_layout(margin={"t": 24})


def gates_by_rank(masks: pd.DataFrame, components: pd.DataFrame, site: str, step: int | None = None) -> go.Figure:
    """Which components the masks keep: the mean gate by rank of variance, and by rank of tau, at one site and step.

    Mean over layers and methods; the last checkpoint by default. A mask that takes the components by variance falls
    from left to right in the upper panel.

    How it can mislead: masks are not unique, and ranks hide how unequal the variances are.

    Args:
        masks: step, hook_name, site, method, target, seed, component, gate.
        components: step, hook_name, site, method, component, variance, tau.
        site: the only one that is shown.
        step: the checkpoint.
    """
    own, parts = at(masks, site), at(components, site)
    last = step if step is not None or own.empty else int(own["step"].max())
    own = first_seed(own[own["step"] == last], "target", "component")
    parts = parts[parts["step"] == last]
    both = own.merge(parts[[*CELL, "component", "variance", "tau"]], on=[*CELL, "component"])
    fig = make_subplots(rows=2, cols=1, vertical_spacing=0.2)
    for row, column in enumerate(("variance", "tau"), start=1):
        ranks = both.groupby([*CELL, "target"])[column].rank(ascending=False, method="first")
        for target in in_order(both["target"], TARGETS):
            chosen = both["target"] == target
            mean = both.loc[chosen, "gate"].groupby(ranks[chosen]).mean()
            fig.add_scatter(
                x=mean.index,
                y=mean,
                name=label(target),
                mode="lines",
                line={"color": colour_of(target), "width": 2, "shape": "hvh"},
                legendgroup=label(target),
                showlegend=row == 1,
                hovertemplate=f"{label(target)}, rank %{{x}}: %{{y:.3f}}<extra></extra>",
                row=row,
                col=1,
            )
        fig.update_xaxes(title_text=f"component, by {column}, largest first", row=row)
        fig.update_yaxes(title_text="mean gate", range=[0, 1.03], row=row)
    return styled(fig, 480, title=f"Gates by rank at {site}", heading=site)


def predicted_kl(evaluation: pd.DataFrame, site: str) -> go.Figure:
    """KL that the gate Fisher predicts, ½ (1−z)ᵀ M (1−z), against the KL that was measured (formulas 11, 12).

    A point is one mask of one cell, on log axes; on the dotted line both agree.

    How it can mislead: the quadratic form is an expansion around the clean activation, and far from it it has no reason
    to hold.

    Args:
        evaluation: step, hook_name, site, method, mask, seed, kl, predicted_kl.
        site: the only one that is shown.
    """
    here = first_seed(at(evaluation, site), "mask")
    here = here[(here["kl"] > 0) & (here["predicted_kl"] > 0)]
    fig = figure(420, title=f"Predicted and measured KL at {site}", heading=site)
    if len(here):
        ends = here[["kl", "predicted_kl"]].to_numpy(dtype=float)
        line = [float(ends.min()), float(ends.max())]
        fig.add_scatter(x=line, y=line, mode="lines", line=LINE, name="equal", hoverinfo="skip", showlegend=False)
    for mask in masks_in(here["mask"]):
        own = here[here["mask"] == mask]
        fig.add_scatter(
            x=own["kl"].astype(float),
            y=own["predicted_kl"].astype(float),
            mode="markers",
            name=label(mask),
            marker={"color": colour_of(mask), "size": 6, "opacity": 0.65},
            hovertemplate=f"{label(mask)}: measured %{{x:.3g}}, predicted %{{y:.3g}} nats<extra></extra>",
        )
    axis = log_axis([*here["kl"], *here["predicted_kl"]])
    fig.update_xaxes(title_text="measured KL (nats)", tickangle=0, **axis)
    return fig.update_yaxes(title_text="predicted KL (nats)", **axis)

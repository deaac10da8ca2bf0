"""Figures of a sufficiency run hold what its tables say, of one site, one row per cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from figure_calls import MASKS
from plausible_masks import SITES

from tl_lifehist.report import figures
from tl_lifehist.report.figures.cells import beside_nulls, first_seed, spread
from tl_lifehist.report.figures.masks import METRICS
from tl_lifehist.report.figures.style import log_axis, share_label

Tables = dict[str, pd.DataFrame]
SITE, OTHER = SITES


def trace(fig: go.Figure, name: str) -> Any:
    return next(t for t in fig.data if t.name == name)


def numbers(values: Any) -> np.ndarray:
    return np.asarray(list(values), dtype=float)


def cells(values: list[float], column: str, **more: Any) -> pd.DataFrame:
    """One row per cell, in checkpoints 0, 1, 2, ..."""
    table = pd.DataFrame({"step": range(len(values)), column: values})
    return table.assign(hook_name=f"blocks.0.{SITE}", site=SITE, layer=0, method="svd", seed=0, **more)


@pytest.mark.parametrize("name", MASKS)
def test_a_figure_of_one_site_knows_nothing_of_the_other(name: str, mask_tables: Tables) -> None:
    alone = {key: t[t["site"] == SITE] if "site" in t else t for key, t in mask_tables.items()}
    assert MASKS[name](alone, SITE).to_json() == MASKS[name](mask_tables, SITE).to_json()
    assert MASKS[name](mask_tables, OTHER).to_json() != MASKS[name](mask_tables, SITE).to_json()


@pytest.mark.parametrize("name", MASKS)
def test_figures_say_their_site_above_themselves(name: str, mask_tables: Tables) -> None:
    assert SITE in MASKS[name](mask_tables, SITE).layout.meta["heading"]


def test_further_seeds_change_no_median(mask_tables: Tables) -> None:
    evaluation = mask_tables["evaluation"]
    more = evaluation.assign(seed=-1, relative_kl=1e9, soft_mass=1e9, lost_fraction=1e9)
    kept = first_seed(pd.concat([evaluation, more]), "mask")
    assert set(kept["seed"]) == {0}  # the first one, not the lowest
    assert len(kept) == evaluation.groupby(["step", "hook_name", "method", "mask"]).ngroups
    fig = figures.cross_evaluation(pd.concat([evaluation, more]), SITE)
    assert fig.to_json() == figures.cross_evaluation(evaluation, SITE).to_json()


def test_a_spread_leaves_out_what_is_missing_or_infinite() -> None:
    found = spread(pd.Series([4.0, np.nan, 1.0, np.inf, 2.0, 3.0]))
    assert (found.median, found.low, found.high, found.n) == (2.5, 1.75, 3.25, 4)
    assert spread(pd.Series([], dtype=float)).n == 0


def test_the_matrix_holds_medians_and_compares_within_a_column() -> None:
    low = cells([1.0, 2.0, 9.0], "nmse", mask="full")
    high = cells([4.0, 4.0, 4.0], "nmse", mask="empty")
    table = pd.concat([low, high], ignore_index=True).assign(soft_mass=0.066)
    for name in METRICS:
        table[name] = table["nmse"] if name == "nmse" else np.nan
    panel = figures.cross_evaluation(table, SITE).data[0]
    assert list(panel.y) == ["full<br><i>6.6 %</i>", "empty<br><i>6.6 %</i>"]
    assert np.asarray(panel.text)[:, 0].tolist() == ["2", "4"]
    assert np.asarray(panel.z)[:, 0].tolist() == [0.0, 1.0]
    assert np.asarray(panel.text)[:, 1].tolist() == ["–", "–"]


def test_the_summary_marks_medians_with_quartiles(mask_tables: Tables) -> None:
    fig = figures.mask_summary(mask_tables["evaluation"], mask_tables["nulls"], SITE)
    evaluation = mask_tables["evaluation"]
    own = evaluation[(evaluation["site"] == SITE) & (evaluation["seed"] == 0) & (evaluation["mask"] == "downstream")]
    rows = list(fig.layout.yaxis.ticktext)
    marks = [t for t in fig.data if t.y[0] == rows.index("downstream")]
    for mark, column in zip(marks, ("soft_mass", "relative_kl", "lost_fraction"), strict=True):
        quartiles = np.quantile(own[column], [0.25, 0.5, 0.75])
        assert mark.x[0] == pytest.approx(quartiles[1])
        assert mark.x[0] + mark.error_x.array[0] == pytest.approx(quartiles[2])
        assert mark.x[0] - mark.error_x.arrayminus[0] == pytest.approx(quartiles[0])
    assert rows[-4:] == [f"{n},<br>same mass" for n in ("top variance", "tau-ranked", "Fisher diagonal", "random")]


def test_controls_in_the_summary_are_those_of_the_downstream_masks_mass(mask_tables: Tables) -> None:
    nulls = mask_tables["nulls"]
    nulls.loc[nulls["target"] != "downstream", "relative_kl"] = 1e6
    fig = figures.mask_summary(mask_tables["evaluation"], nulls, SITE)
    assert max(float(t.x[0]) for t in fig.data) < 1e3


def test_a_mask_is_set_over_its_control_cell_by_cell_and_draws_are_averaged() -> None:
    evaluation = pd.concat(
        [
            cells([1.0, 3.0], "kl", mask="downstream", nmse=0.5),
            cells([8.0, 8.0], "kl", mask="reconstruction", nmse=0.2),
            cells([2.0, 4.0], "kl", mask="empty", nmse=1.0),
        ]
    )
    draws = [cells([1.0, 5.0], "kl", draw=0), cells([3.0, 7.0], "kl", draw=1)]
    nulls = pd.concat(draws).assign(target="downstream", kind="random", nmse=1.0)
    scores = ("soft_mass", "relative_kl", "lost_fraction", "accuracy_drop")
    evaluation, nulls = (t.assign(**dict.fromkeys(scores, 0.0)) for t in (evaluation, nulls))
    found = beside_nulls(evaluation, nulls, SITE)
    ratio = {key: group["ratio"].tolist() for key, group in found.groupby(["target", "kind"])}
    assert ratio == {
        ("downstream", "empty"): [0.5, 0.75],
        ("downstream", "random"): [0.5, 0.5],
        ("reconstruction", "empty"): [0.2, 0.2],  # by NMSE
    }


def test_a_control_that_loses_nothing_gives_no_ratio(mask_tables: Tables) -> None:
    mask_tables["nulls"]["kl"] = 0.0
    found = beside_nulls(mask_tables["evaluation"], mask_tables["nulls"], SITE)
    assert found.loc[(found["target"] == "downstream") & (found["kind"] == "random"), "ratio"].isna().all()


def test_maps_have_checkpoints_across_and_layers_upwards(mask_tables: Tables) -> None:
    evaluation = mask_tables["evaluation"]
    fig = figures.checkpoint_layer_maps(evaluation, SITE)
    panels = [t for t in fig.data if t.hovertemplate.startswith("downstream, lost fraction")]
    assert len(panels) == 1
    assert list(panels[0].x) == ["0", "512", "143k"]
    assert list(panels[0].y) == ["0", "4"]
    chosen = evaluation[(evaluation["site"] == SITE) & (evaluation["seed"] == 0) & (evaluation["mask"] == "downstream")]
    here = chosen[(chosen["step"] == 512) & (chosen["layer"] == 4)]
    assert np.asarray(panels[0].customdata, dtype=float)[1, 1] == pytest.approx(here["lost_fraction"].median())


def test_relative_kl_is_coloured_by_its_logarithm_and_shown_as_it_is(mask_tables: Tables) -> None:
    mask_tables["evaluation"]["relative_kl"] = 0.01
    fig = figures.checkpoint_layer_maps(mask_tables["evaluation"], SITE)
    panel = next(t for t in fig.data if "relative KL" in t.hovertemplate)
    assert np.asarray(panel.z, dtype=float) == pytest.approx(-2.0)
    assert np.asarray(panel.customdata, dtype=float) == pytest.approx(0.01)


def test_enrichment_has_the_line_at_one_and_the_random_draws(mask_tables: Tables) -> None:
    nulls = mask_tables["nulls"].drop(columns=["enrichment_omega", "enrichment_curvature"])
    fig = figures.enrichment(mask_tables["evaluation"], nulls, SITE)
    assert {shape.x0 for shape in fig.layout.shapes} == {1}
    drawn = nulls[(nulls["site"] == SITE) & (nulls["kind"] == "random")]
    assert sorted(numbers(trace(fig, "random").x)) == pytest.approx(sorted(drawn["enrichment_tau"]))
    assert len([t for t in fig.data if t.name == "random"]) == 1  # the table has no other score of them


def test_enrichment_of_random_masks_is_drawn_wherever_the_table_has_it(mask_tables: Tables) -> None:
    nulls = mask_tables["nulls"].assign(enrichment_omega=1.1, enrichment_curvature=0.9)
    fig = figures.enrichment(mask_tables["evaluation"], nulls, SITE)
    assert len([t for t in fig.data if t.name == "random"]) == 3


def test_gates_are_ranked_within_each_cell() -> None:
    masks = cells([0.2, 0.9, 0.5], "gate").assign(step=7, component=[0, 1, 2], target="downstream")
    components = cells([3.0, 2.0, 1.0], "variance").assign(step=7, component=[0, 1, 2], tau=[0.0, 5.0, 1.0])
    by_variance, by_tau = figures.gates_by_rank(masks, components, SITE).data
    assert numbers(by_variance.y) == pytest.approx([0.2, 0.9, 0.5])
    assert numbers(by_tau.y) == pytest.approx([0.9, 0.5, 0.2])


def test_prediction_and_measurement_share_one_axis_and_its_diagonal(mask_tables: Tables) -> None:
    evaluation = mask_tables["evaluation"]
    fig = figures.predicted_kl(evaluation, SITE)
    assert fig.layout.xaxis.range == fig.layout.yaxis.range
    assert list(trace(fig, "equal").x) == list(trace(fig, "equal").y)
    assert "full" not in {t.name for t in fig.data}  # predicted 0: no place on a log axis
    chosen = evaluation[(evaluation["site"] == SITE) & (evaluation["mask"] == "empty")]
    assert sorted(numbers(trace(fig, "empty").y)) == pytest.approx(sorted(chosen["predicted_kl"]))


def test_the_frontier_marks_the_studys_penalty_beside_top_variance() -> None:
    rows = []
    for method, shift in (("svd", 0.0), ("ica", 0.2)):
        for penalty, mass, lost, top in ((0.001, 0.6, 0.1, 0.2), (0.01, 0.2, 0.5, 0.4)):
            rows.append((5, method, penalty, mass, lost + shift, top, penalty == 0.01))
            rows.append((0, method, penalty, 0.9, 0.9, 0.9, penalty == 0.01))  # an earlier checkpoint
    names = ["step", "method", "penalty", "soft_mass", "lost_fraction", "variance_lost_fraction", "operating"]
    table = pd.DataFrame(rows, columns=names).assign(site=SITE, hook_name=f"blocks.0.{SITE}")
    fig = figures.frontier(table, SITE)
    chosen = trace(fig, "the study's penalty")
    assert (list(chosen.x), list(chosen.y)) == ([0.2], pytest.approx([0.6]))
    assert numbers(trace(fig, "downstream, median").y) == pytest.approx([0.2, 0.6])
    assert numbers(trace(fig, "top variance, same mass").y) == pytest.approx([0.2, 0.4])
    assert "step 5" in fig.layout.meta["heading"]
    assert numbers(trace(figures.frontier(table, SITE, step=0), "downstream, median").y) == pytest.approx([0.9, 0.9])


def test_the_onset_counts_cells_without_one_and_leaves_them_out_of_the_median() -> None:
    table = cells([0.2, np.nan, 0.6, 0.4], "onset", full_lost_fraction=[0.01, 0.5, 0.02, 0.03])
    table["step"] = [0, 0, 8, 8]
    fig = figures.onset(table, SITE)
    assert numbers(trace(fig, "median").y) == pytest.approx([0.2, 0.5])
    share = next(t for t in fig.data if t.type == "bar")
    assert (list(share.x), numbers(share.y).tolist()) == (["0", "8"], [0.5, 1.0])
    assert numbers(trace(fig, "full mask").y) == pytest.approx([0.255, 0.025])
    assert numbers(trace(fig, "SVD").y) == pytest.approx([0.2, 0.6, 0.4])


def test_transfer_has_one_panel_a_method_and_every_control_in_it(mask_tables: Tables) -> None:
    table = mask_tables["transfer"]
    fig = figures.transfer_curves(table, SITE)
    assert [note.text for note in fig.layout.annotations] == ["SVD", "NMF"]
    per_panel = [t.name for t in fig.data if t.xaxis in ("x", None)]
    assert per_panel == ["aligned", "Procrustes", "dictionary", "shuffled", "not aligned", "empty mask, aligned"]
    chosen = table[(table["site"] == SITE) & (table["method"] == "svd") & (table["mask"] == "full")]
    aligned = chosen[chosen["control"] == "aligned"].groupby("step")["relative_kl"].median()
    assert list(trace(fig, "aligned").x) == ["0", "512", "143k"]
    assert numbers(trace(fig, "aligned").y) == pytest.approx(aligned.to_numpy())
    empty = table[(table["site"] == SITE) & (table["method"] == "svd") & (table["mask"] == "empty")]
    null = empty[empty["control"] == "aligned"].groupby("step")["relative_kl"].median()
    assert numbers(trace(fig, "empty mask, aligned").y) == pytest.approx(null.to_numpy())


def test_claimed_trajectories_are_filled_and_stand_beside_the_empty_mask() -> None:
    table = pd.DataFrame({"quantity": ["relative_kl", "nmse"], "claimed": [True, False], "pooled": [0.7, -0.2]})
    table = table.assign(site=SITE, mask="downstream", against="depth", stratified=[np.nan, 0.1], empty=[0.6, 0.0])
    for name in (
        "full",
        "absolute_kl",
        "clean_entropy",
        "pooled_low",
        "pooled_high",
        "stratified_low",
        "stratified_high",
    ):
        table[name] = 0.5
    fig = figures.trajectories(table, SITE)
    pooled = trace(fig, "pooled")
    assert list(pooled.marker.symbol) == ["circle", "circle-open"]
    assert list(pooled.x) == [0.7, -0.2]
    assert list(trace(fig, "empty mask").x) == [0.6, 0.0]
    assert list(fig.layout.yaxis.ticktext) == ["relative KL", "NMSE"]


def test_the_share_of_the_largest_rows_is_one_line_a_layer(mask_tables: Tables) -> None:
    fig = figures.explained_variance(mask_tables["dictionaries"], mask_tables["checkpoints"], SITE)
    rows = mask_tables["checkpoints"]
    lines = [t for t in fig.data if t.yaxis == "y2"]
    assert len(lines) == 2
    first = rows[rows["hook_name"] == f"blocks.0.{SITE}"].sort_values("step")
    assert numbers(lines[0].y) == pytest.approx(first["top_row_share"].to_numpy())


def test_few_pairs_of_seeds_are_points_and_many_a_box(mask_tables: Tables) -> None:
    table = mask_tables["stability"]
    few = figures.stability(table, SITE)
    assert {box.boxpoints for box in few.data if box.type == "box"} == {"all"}
    many = figures.stability(pd.concat([table.assign(seed_b=b) for b in range(1, 9)]), SITE)
    assert {box.boxpoints for box in many.data if box.type == "box"} == {False}


def test_carriers_stand_in_a_panel_for_each_layer_with_and_without_the_error(mask_tables: Tables) -> None:
    table = mask_tables["carriers"]
    fig = figures.carrier_masks(table, SITE)
    lines = [t for t in fig.data if t.name == "carriers"]
    assert len(lines) == 4
    kept = table[(table["hook_name"] == f"blocks.0.{SITE}") & table["keep_error"]].sort_values("step")
    assert numbers(lines[0].y) == pytest.approx(kept["against"].to_numpy())
    assert [note.text for note in fig.layout.annotations] == ["error kept", "error dropped"]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.02, 3.0], ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]),
        ([1.0, 1.01], ["1"]),
        ([1e-6, 10.0], ["1e−06", "0.0001", "0.01", "1"]),
        ([3.2, 3.3], ["3.2", "3.3"]),
        ([0.0, -1.0, float("nan")], None),
    ],
)
def test_a_log_axis_has_a_few_round_ticks(values: list[float], ticks: list[str] | None) -> None:
    axis = log_axis(values)
    assert axis.get("ticktext") == ticks
    if ticks:
        low, high = axis["range"]
        assert low <= np.log10(min(values))
        assert np.log10(max(values)) <= high


def test_shares_are_short() -> None:
    assert [share_label(x) for x in (0.0, 0.066, 0.5, 1.0, float("nan"))] == ["0 %", "6.6 %", "50 %", "100 %", "–"]


def test_ratios_are_drawn_for_controls_that_exist_with_the_line_at_one(mask_tables: Tables) -> None:
    nulls = mask_tables["nulls"]
    fig = figures.mass_matched(mask_tables["evaluation"], nulls[nulls["target"] == "downstream"], SITE)
    rows = list(fig.layout.yaxis.categoryarray)
    own = [row for row in rows if row.startswith("downstream")]
    kinds = ("empty", "top variance", "tau-ranked", "Fisher diagonal", "random")
    assert own == [f"downstream<br><i>over {kind}</i>" for kind in kinds]
    assert len(rows) == len(own) + 3  # the others have the empty mask alone
    assert fig.layout.shapes[0].x0 == 1
    found = beside_nulls(mask_tables["evaluation"], nulls, SITE)
    wanted = found.loc[(found["target"] == "downstream") & (found["kind"] == "empty"), "ratio"]
    assert numbers(trace(fig, "downstream <i>over empty</i>").x) == pytest.approx(wanted.to_numpy())

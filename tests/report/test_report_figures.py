"""Figures take tables and return plotly figures that hold what the tables say."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from figure_calls import LIFE, MASKS
from hypothesis import given
from hypothesis import strategies as st
from plausible import HOOKS, plausible_tables
from plausible_masks import SITES

from tl_lifehist.report import figures
from tl_lifehist.report.figures.style import hook_labels, step_label

Tables = dict[str, pd.DataFrame]
FIGURES: dict[str, Callable[[Tables], go.Figure]] = LIFE | {
    name: lambda tables, make=make: make(tables, SITES[0]) for name, make in MASKS.items()
}


@pytest.fixture
def own_tables(name: str, request: pytest.FixtureRequest) -> Tables:
    """The tables that the figure under test is made of."""
    return request.getfixturevalue("tables" if name in LIFE else "mask_tables")


def trace(fig: go.Figure, name: str) -> go.Scatter:
    return next(t for t in fig.data if t.name == name)


def test_every_figure_is_tried() -> None:
    assert set(FIGURES) == set(figures.__all__)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_data_a_title_and_a_transparent_ground(name: str, own_tables: Tables) -> None:
    fig = FIGURES[name](own_tables)
    assert len(fig.data) > 0
    assert fig.layout.meta["title"]
    assert fig.layout.height > 200
    assert fig.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_empty_tables_is_an_empty_figure(name: str, own_tables: Tables) -> None:
    fig = FIGURES[name]({key: table.iloc[:0] for key, table in own_tables.items()})
    assert fig.to_json()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_copes_with_measures_that_are_missing(name: str, own_tables: Tables) -> None:
    for table in own_tables.values():
        for column in table.select_dtypes("float"):
            table[column] = np.nan
    assert FIGURES[name](own_tables).to_json()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_leaves_its_tables_alone(name: str, own_tables: Tables) -> None:
    before = {key: table.copy() for key, table in own_tables.items()}
    FIGURES[name](own_tables)
    for key, table in own_tables.items():
        pd.testing.assert_frame_equal(table, before[key])


def test_the_raster_sorts_lineages_by_birth_and_then_by_length_and_marks_carriers() -> None:
    alive = {10: [0, 100], 11: [0, 100, 500], 12: [100], 13: [100, 500], 14: [0]}
    rows = [(lineage, HOOKS[0], step) for lineage, steps in alive.items() for step in steps]
    lineages = pd.DataFrame(rows, columns=["lineage", "hook_name", "step"]).sample(frac=1, random_state=1)
    fig = figures.lineage_raster(lineages, pd.DataFrame({"lineage": [11]}))
    panel = fig.data[0]
    assert list(panel.x) == ["0", "100", "500"]
    assert [row[0] for row in np.asarray(panel.customdata)] == [11, 10, 14, 13, 12]
    assert np.asarray(panel.z).tolist() == [[2, 2, 2], [1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 1, 0]]


def test_the_raster_of_ten_thousand_lineages_stays_light() -> None:
    rng = np.random.default_rng(0)
    n = 10_000
    rows = pd.DataFrame({"lineage": np.repeat(np.arange(n), 3), "step": rng.integers(0, 12, 3 * n) * 1000})
    rows = rows.drop_duplicates().assign(hook_name=lambda t: [HOOKS[i % 4] for i in t["lineage"]])
    fig = figures.lineage_raster(rows, pd.DataFrame({"lineage": np.arange(50)}))
    assert len(fig.data) == 4
    assert len(fig.to_json()) < 700_000


def test_events_stand_beside_the_rates_of_equal_counts() -> None:
    rows = [
        (kind, HOOKS[0], start, end, count, 100)
        for kind in ("birth", "death")
        for start, end, count in ((0, 100, 30), (100, 1100, 10))
    ]
    events = pd.DataFrame(rows, columns=["kind", "hook_name", "step_from", "step_to", "count", "n_alive"])
    fig = figures.event_rates(events)
    assert list(trace(fig, "births").x) == ["0→100", "100→1.1k"]
    assert trace(fig, "births").y == pytest.approx([0.3, 0.01])
    assert trace(fig, "births, equal counts").y == pytest.approx([0.2, 0.02])


def test_a_transition_without_events_has_no_mark_on_the_log_axis(tables: Tables) -> None:
    events = tables["events"].assign(count=0)
    assert np.isnan(np.asarray(trace(figures.event_rates(events), "births").y, dtype=float)).all()


def test_match_rates_of_hook_points_are_weighted_by_their_features() -> None:
    columns = ["floor_data", "floor_init", "persistence_low", "persistence_high"]
    events = pd.DataFrame(
        {
            "kind": "death",
            "hook_name": HOOKS[:2],
            "step_from": 0,
            "step_to": 1000,
            "n_alive": [100, 300],
            "match_rate": [1.0, 0.0],
            **{name: [0.5, np.nan] for name in columns},
        }
    )
    fig = figures.persistence(events)
    assert trace(fig, "matched").y == pytest.approx([0.25])
    assert trace(fig, "floor: other init").y == pytest.approx([0.5])


def test_a_kind_that_is_not_testable_is_faint_and_has_no_p(tables: Tables) -> None:
    summary = tables["load_summary"]
    summary.loc[summary["kind"] == "mass", "p"] = 0.01  # must not be shown whatever the table says
    fig = figures.load_against_controls(tables["load"], summary)
    boxes = {box.name: box for box in fig.data if box.type == "box"}
    mass = next(name for name in boxes if name.startswith("same masses"))
    count = next(name for name in boxes if name.startswith("same count<"))
    assert mass == "same masses<br><i>not testable</i>"
    assert count == "same count<br><i>p = 0.0099 · beyond</i>"
    assert boxes[mass].marker.opacity < boxes[count].marker.opacity


def test_sets_and_carriers_are_shown_less_what_their_totals_explain(tables: Tables) -> None:
    fig = figures.load_against_controls(tables["load"], tables["load_summary"])
    box = next(box for box in fig.data if box.type == "box" and box.name.startswith("same count<"))
    count = tables["load"].query("kind == 'count'")
    assert list(box.x) == count["adjusted"].tolist()
    mark = next(t for t in fig.data if t.type == "scatter" and t.y and t.y[0] and t.y[0].startswith("same count<"))
    assert list(mark.x) == [0.9]


def _chain() -> Tables:
    """carrier -> a -> b, and x -> y beside them."""
    nodes = [(HOOKS[0], 1), (HOOKS[1], 2), (HOOKS[2], 3), (HOOKS[0], 4), (HOOKS[1], 5), (HOOKS[3], 6)]
    features = pd.DataFrame(nodes, columns=["hook_name", "feature"]).assign(step=7, firing_rate=0.1)
    features["lineage"] = features["feature"] * 10
    pairs = [(nodes[0], nodes[1]), (nodes[1], nodes[2]), (nodes[3], nodes[4])]
    edges = pd.DataFrame([(*a, *b) for a, b in pairs])
    edges.columns = ["source_hook", "source_feature", "target_hook", "target_feature"]
    edges = edges.assign(step=7, orientation="container")
    return {"features": features, "edges": edges, "carriers": pd.DataFrame({"lineage": [10]})}


def test_the_graph_colours_carriers_and_all_that_they_reach() -> None:
    t = _chain()
    fig = figures.dag(t["edges"], t["features"], t["carriers"])
    members = {x.name: list(x.text) for x in fig.data if x.name}
    assert members["carriers (1)"] == ["block 2 feature 1"]
    assert sorted(members["reached from a carrier (2)"]) == ["block 5 feature 2", "block 8 feature 3"]
    assert len(members["other features (2)"]) == 2
    assert (
        "3 of 3 edges drawn, 5 of 6 alive features; those without a drawn edge are left out, 0 of 1 carriers"
        in fig.layout.meta["caption"]
    )


def test_reach_is_computed_on_all_edges_and_the_cap_is_said() -> None:
    t = _chain()
    fig = figures.dag(t["edges"], t["features"], t["carriers"], max_edges=2)
    assert "2 of 3 edges drawn (a random sample)" in fig.layout.meta["caption"]
    assert fig.layout.xaxis.title.text == "2 of 3 edges drawn"
    followed = [x.name for x in fig.data if x.name and x.name.startswith("reached")]
    assert followed in (["reached from a carrier (2)"], ["reached from a carrier (1)"])  # those with a drawn edge


def test_a_graph_that_is_large_stays_light() -> None:
    t = plausible_tables(n=1500, n_edges=9000, n_draws=5, steps=[0, 1000])
    fig = figures.dag(t["edges"], t["features"], t["carriers"])
    assert len(fig.to_json()) < 600_000


def test_a_forecast_without_an_auc_says_so(tables: Tables) -> None:
    table = tables["forecast"]
    table.loc[1, ["auc", "low", "high"]] = math.nan
    texts = [t for t in figures.forecast(table).data if t.mode == "text"]
    assert list(texts[0].y) == ["log firing rate"]
    assert list(texts[0].text) == ["not testable"]


def test_the_nulls_stand_beside_the_run(tables: Tables) -> None:
    fig = figures.nulls(tables["nulls"], 137)
    assert fig.layout.shapes[0].x0 == 137
    assert [box.name for box in fig.data] == ["frozen<br>60 draws", "unrelated<br>20 draws"]


@pytest.mark.parametrize("name", FIGURES)
def test_hostile_names_are_no_markup_for_plotly(name: str, own_tables: Tables) -> None:
    evil = "<a href='javascript:alert(1)'>x</a>"
    kept = ["kind", "orientation", "role", "site"]
    for table in own_tables.values():
        for column in table.select_dtypes(["object", "string"]).columns.difference(kept):
            table[column] = evil
    assert evil not in str(FIGURES[name](own_tables).to_plotly_json())


@given(st.sets(st.integers(0, 5_000_000), min_size=2, max_size=2))
def test_different_steps_have_different_labels(steps: set[int]) -> None:
    a, b = steps
    assert step_label(a) != step_label(b)


@pytest.mark.parametrize(
    ("step", "label"), [(0, "0"), (512, "512"), (1000, "1k"), (1500, "1.5k"), (1430, "1,430"), (143000, "143k")]
)
def test_steps_are_short(step: int, label: str) -> None:
    assert step_label(step) == label


def test_hook_points_of_one_kind_are_named_by_their_block() -> None:
    assert list(hook_labels(HOOKS).values()) == ["block 2", "block 5", "block 8", "block 11"]
    mixed = ["blocks.0.hook_resid_post", "blocks.0.hook_mlp_out", "hook_embed"]
    assert list(hook_labels(mixed).values()) == ["0 resid_post", "0 mlp_out", "hook_embed"]
    assert hook_labels(["blocks.0.<b>", "x<i>"]) == {"blocks.0.<b>": "0 &lt;b&gt;", "x<i>": "x&lt;i&gt;"}
    assert hook_labels([]) == {}

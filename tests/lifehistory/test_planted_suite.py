"""The planted suite: what it says of itself is what its models, texts and SAEs do, and no study is told."""

from __future__ import annotations

import ast
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tl_lifehist as lh
from tl_lifehist.effects import scored_losses
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory import PlantedSuite, planted_suite
from tl_lifehist.lifehistory.forecast import roc_auc
from tl_lifehist.lifehistory.planted.recipe import LABEL_NOISE, N_IDS
from tl_lifehist.lifehistory.planted.world import draw_world

SMALL: dict[str, Any] = {"n_layers": 3, "n_features": 32}
FIRST, ONSET, LAST = 0, 128, 16384
WHO = ["hook_name", "latent"]


@pytest.fixture(scope="module")
def suite() -> PlantedSuite:
    return planted_suite(**SMALL, seed=1)


@pytest.fixture(scope="module")
def profiles(suite, saelens):
    return lh.activation_profiles(suite.series, suite.saes, suite.test)


def at_step(profiles, step: int):
    return {name: profile for (at, name), profile in profiles.items() if at == step}


# what the studies find is what was planted


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_lineages_births_deaths_and_carriers_come_back_exactly(noise, saelens):
    suite = planted_suite(**SMALL, seed=1, noise=noise)
    lineages = lh.trace_lineages(lh.activation_profiles(suite.series, suite.saes, suite.test))
    found, truth = lineages.to_dataframe(), suite.truth
    both = found.merge(truth.lineages, on=["hook_name", "step", "feature"], how="outer", validate="one_to_one")
    assert both[["lineage", "latent"]].notna().all(axis=None)
    pairs = both[["lineage", *WHO]].drop_duplicates()
    assert pairs["lineage"].is_unique
    assert not pairs.duplicated(WHO).any()
    ends = lineages.summary().merge(pairs, on=["lineage", "hook_name"]).merge(truth.features, on=WHO)
    assert len(ends) == len(truth.features)
    assert (ends["birth_x"] == ends["birth_y"]).all()
    assert ends["death_x"].fillna(-1).equals(ends["death_y"].fillna(-1))
    carriers = lineages.carriers()
    assert ends.loc[ends["carrier"], "lineage"].sort_values().tolist() == carriers.lineages.tolist()
    for step in suite.series.steps:
        assert carriers.at(step) == truth.carriers(step)
    similar = found["similarity"].dropna()
    assert (similar.min() > 0.9999) == (noise == 0)


def test_codes_come_back_exactly_and_dead_features_never_fire(suite, profiles):
    world = draw_world(suite.recipe)
    for index, step in enumerate(suite.series.steps):
        planted = world.codes(index)
        for layer, name in enumerate(suite.hook_names):
            found = profiles[step, name].acts.toarray()[:, world.place[index, layer]]
            np.testing.assert_allclose(found, planted[layer][:, suite.test.row_tokens].T, rtol=1e-4, atol=1e-5)
            assert ((found > 0) == (planted[layer][:, suite.test.row_tokens].T > 0)).all()
            assert (found[:, ~world.alive(index)[layer]] == 0).all()


def test_an_sae_gives_back_its_layer_and_nothing_else(suite, saelens):
    model, name = suite.series.load(LAST), suite.hook_names[1]
    x, sae = lh.collect_activations(model, name, suite.test[:2]), suite.saes[LAST, name]
    of_layer = lh.collect_activations(model, "blocks.1.hook_mlp_out", suite.test[:2])
    torch.testing.assert_close(sae.decode(sae.encode(x)), of_layer, rtol=1e-4, atol=1e-5)
    assert float((x - of_layer).abs().max()) >= 1


def test_directions_turn_and_features_change_their_place(suite, saelens):
    name, planted = suite.hook_names[0], suite.truth.lineages.query("hook_name == 'blocks.0.hook_resid_post'")
    where = planted.pivot(index="latent", columns="step", values="feature")[[FIRST, ONSET]].dropna().astype(int)
    assert (where[FIRST] != where[ONSET]).any()
    one, two = (suite.saes[step, name].W_dec[where[step].tolist()] for step in (FIRST, ONSET))
    cosine = (one * two).sum(dim=1)
    assert 0.5 < float(cosine.mean()) < 0.99


# what removing features costs


@pytest.mark.parametrize("step", [512, LAST])
def test_the_cost_of_removing_features_is_the_closed_form(suite, saelens, step):
    model, saes, truth = suite.series.load(step), suite.saes.at(step), suite.truth
    tokens = suite.test[:24]
    base = scored_losses(model, tokens).mean()
    carriers, alive = truth.carriers(step), truth.lineages.query("step == @step")
    heaviest = alive.merge(truth.features, on=WHO).sort_values("mass").iloc[-1]
    lightest = alive.merge(truth.features, on=WHO).sort_values("mass").iloc[0]
    chosen = [carriers, *({one["hook_name"]: [int(one["feature"])]} for one in (heaviest, lightest))]
    chosen.append({name: list(range(32)) for name in suite.hook_names})
    for features in chosen:
        cost = scored_losses(model, tokens, lh.FeatureAblation(saes, features)).mean() - base
        assert cost == pytest.approx(truth.ablation_cost(features, tokens, step=step), rel=1e-3, abs=1e-6)
        assert abs(cost) > 1e-3
    assert truth.ablation_cost({suite.hook_names[0]: []}, tokens, step=step) == 0


def test_the_model_predicts_successors_and_learns(suite):
    losses = {step: scored_losses(suite.series.load(step), suite.test).mean() for step in suite.series.steps}
    assert math.log(N_IDS) > losses[FIRST] > losses[512] > losses[LAST] + 0.5
    ids, world = suite.test.ids[:3], draw_world(suite.recipe)
    logits = suite.series.load(LAST)(ids)
    expected = torch.from_numpy(np.einsum("lf,lfv->v", world.reading, world.codes(world.last))).float()[ids]
    follows = torch.from_numpy(world.successor)[ids].unsqueeze(-1)
    torch.testing.assert_close(logits.gather(-1, follows).squeeze(-1), expected, rtol=1e-4, atol=1e-4)
    assert int((logits.scatter(-1, follows, 0.0) != 0).sum()) == 0


@pytest.mark.parametrize("load", ["history", "mass", "neither"])
def test_single_costs_are_as_the_load_says(load):
    features = planted_suite(seed=3, breadth="confounded", load=load).truth.features.dropna(subset="cost")
    target = 1.0 if load == "neither" else features["mass"]
    ratio = features["cost"] / target / (1 + 2 * features["carrier"] * (load == "history"))
    assert ratio.min() > 0
    assert ratio.max() / ratio.min() < 1.02


# who carries, and who contains whom


def test_shares_of_fates_are_those_asked_for():
    truth = planted_suite(seed=2, n_features=40, n_layers=2, late=0.5, dying=0.2).truth
    features, steps = truth.features, planted_suite().series.steps
    by_layer = features.groupby("hook_name")
    assert (by_layer["carrier"].sum() == 12).all()
    assert (by_layer["death"].count() == 8).all()
    assert (features.loc[features["carrier"], "birth"] <= 512).all()
    late = features[~features["carrier"] & features["death"].isna()]
    assert (late["birth"] > 512).all()
    assert len(late) == 40
    assert set(features["birth"]) <= set(steps)


def log_masses(breadth: str, seed: int = 0) -> list[tuple[Any, Any]]:
    """Log masses of carriers and of the others that live to the end, layer by layer."""
    features = planted_suite(seed=seed, breadth=breadth, containment="chance").truth.features
    features = features[features["death"].isna()].assign(log_mass=lambda t: np.log10(t["mass"]))
    both = (table.groupby("carrier")["log_mass"] for _, table in features.groupby("hook_name"))
    return [(one.get_group(True), one.get_group(False)) for one in both]


def test_carriers_are_no_heavier_heavier_or_all_heavier():
    def gap(breadth: str) -> float:
        return float(np.mean([c.mean() - o.mean() for seed in range(4) for c, o in log_masses(breadth, seed)]))

    assert abs(gap("independent")) < 0.06
    assert gap("confounded") > 0.1
    for carriers, others in log_masses("confounded"):  # but each has an equal, though others are few up there
        nearest = np.abs(carriers.to_numpy()[:, None] - others.to_numpy()).min(axis=1)
        assert (nearest < 0.25).mean() > 0.9
    for carriers, others in log_masses("disjoint"):
        assert carriers.min() > others.max() + 0.25


@pytest.mark.parametrize("forecastable", [True, False])
def test_strength_at_the_onset_tells_carriers_only_where_it_is_to(forecastable, saelens):
    found = planted_suite(seed=4, forecastable=forecastable)
    here = lh.activation_profiles(found.series, found.saes, found.test, steps=[ONSET])
    label, strength, rate = [], [], []
    for name in found.hook_names:
        profile = here[ONSET, name]
        features = found.truth.lineages.query("step == @ONSET and hook_name == @name")["feature"].to_numpy()
        label.append(np.isin(features, found.truth.carriers(ONSET)[name]))
        # within its layer: the norm of the stream that strengths are relative to grows with depth
        strength.append(np.log(profile.strength[features]) - np.log(profile.strength[features]).mean())
        rate.append(profile.firing_rate[features])
    labels = np.concatenate(label)
    auc = roc_auc(labels, np.concatenate(strength))
    assert auc > 0.85 if forecastable else 0.35 < auc < 0.65
    assert 0.35 < roc_auc(labels, np.concatenate(rate)) < 0.65


@pytest.mark.parametrize("containment", ["real", "carriers", "chance"])
def test_planted_containments_are_the_edges_of_the_graph(containment, saelens):
    found = planted_suite(seed=5, containment=containment)
    truth = found.truth
    graph = lh.containment_dag(lh.profile_saes(found.series.load(LAST), found.saes.at(LAST), found.test))
    here = truth.lineages.query("step == @LAST").set_index(WHO)["feature"]
    planted = {
        ((a, here[a, b]), (c, here[c, d]))
        for a, b, c, d in truth.containment.itertuples(index=False)
        if (a, b) in here.index and (c, d) in here.index
    }
    assert planted <= set(graph.edges)
    assert len(set(graph.edges) - planted) <= 2
    assert (len(planted) > 20) == (containment != "chance")
    carriers = {(h, f) for h, features in truth.carriers(LAST).items() for f in features}
    assert all(parent in carriers and child not in carriers for parent, child in planted) == (containment != "real")


# text


def test_texts_differ_and_their_documents_have_topics_of_their_own(suite):
    assert len({tokens.key for tokens in (suite.train, suite.calibration, suite.test)}) == 3
    world, tokens = draw_world(suite.recipe), suite.test
    assert tokens.n_valid == tokens.n_scored >= 8192
    topic, document = world.topic[tokens.row_tokens], tokens.row_documents
    counts = np.array([np.bincount(topic[document == d], minlength=64) for d in range(32)])
    assert counts.sum(axis=0).min() > 0  # every topic is somewhere
    shares = np.sort(counts / counts.sum(axis=1, keepdims=True), axis=1)
    assert shares[:, -4:].sum(axis=1).min() > 0.6  # a document has few topics
    assert len(np.unique(tokens.head(2000).row_documents)) >= 16
    follows = tokens.labels.numpy() == world.successor[tokens.ids.numpy()]
    assert follows.mean() == pytest.approx(1 - LABEL_NOISE, abs=0.02)
    assert (tokens.labels[:, :-1] == tokens.ids[:, 1:]).all()


def test_positions_of_one_document_are_correlated(suite):
    losses = scored_losses(suite.series.load(LAST), suite.test)
    documents = suite.test.row_documents
    shuffled = np.random.default_rng(0).permutation(documents)

    def between(labels: np.ndarray) -> float:
        return float(np.var([losses[labels == d].mean() for d in range(32)]))

    assert between(documents) > 2 * between(shuffled)


# the same again, elsewhere, and nobody is told


def test_a_seed_gives_the_same_again_and_another_seed_another(suite):
    before = torch.random.get_rng_state()
    again, other = planted_suite(**SMALL, seed=1), planted_suite(**SMALL, seed=2)
    for mine in (again, other):
        same = mine is again
        assert (mine.test.key == suite.test.key) == same
        assert (mine.series.identity(LAST) == suite.series.identity(LAST)) == same
        assert mine.truth.lineages.equals(suite.truth.lineages) == same
    assert torch.equal(before, torch.random.get_rng_state())


def test_saes_of_a_seed_are_the_same_and_leave_the_global_generator_alone(suite, saelens):
    before = torch.random.get_rng_state()
    one, two = (planted_suite(**SMALL, seed=1).saes for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    for key in one:
        assert all(torch.equal(a, b) for a, b in zip(one[key].parameters(), two[key].parameters(), strict=True))


def test_a_knob_leaves_alone_what_it_has_no_part_in(suite):
    other = planted_suite(**SMALL, seed=1, load="neither")
    assert other.test.key == suite.test.key
    assert other.truth.lineages.equals(suite.truth.lineages)
    assert other.series.identity(LAST) != suite.series.identity(LAST)


def test_a_worker_makes_the_models_for_itself(suite):
    draw_world.cache_clear()
    sent = pickle.dumps(suite.series)
    assert len(sent) < 2000
    assert suite.series.is_portable
    series = pickle.loads(sent)  # noqa: S301 - our own, of the line before
    assert series.identity(512) == suite.series.identity(512)
    assert series.verify(progress=False).ok
    assert series.shape.d_model == suite.series.shape.d_model == 10 + 3 * 32


def test_no_study_reads_the_truth():
    """Nothing of the package names the planted history but its own files."""
    root = Path(lh.__file__).parent
    for path in root.rglob("*.py"):
        if "planted" in path.parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        assert not [name for name in named if "planted" in name], path


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"breadth": "wide"}, "breadth='wide' is unknown"),
        ({"load": "much"}, "load='much' is unknown"),
        ({"containment": "some"}, "containment='some' is unknown"),
        ({"n_features": 4}, "n_features=4 must be at least 8"),
        ({"n_documents": 8}, "n_documents=8 must be at least 16"),
        ({"noise": float("nan")}, "noise=nan must be at least 0"),
        ({"steps": (0, 10)}, "at least three steps"),
        ({"steps": (0, 10, 5)}, "ascending"),
        ({"late": 0.8, "dying": 0.3}, "leave some of the 96 features of a layer to be carriers"),
        ({"late": -0.1}, "must be shares"),
    ],
)
def test_a_knob_out_of_its_range_is_refused(knobs, message):
    with pytest.raises(InputError, match=message):
        planted_suite(**knobs)


def test_the_truth_refuses_what_it_has_not(suite):
    for features, step, message in (
        ({"blocks.0.hook_mlp_out": [1]}, LAST, "has no SAE; the nearest are: blocks.0.hook_resid_post"),
        ({suite.hook_names[0]: [32]}, LAST, "outside 0 to 31"),
        ({suite.hook_names[0]: [1]}, 7, "step=7 is none of the history's"),
    ):
        with pytest.raises(InputError, match=message):
            suite.truth.ablation_cost(features, suite.test, step=step)

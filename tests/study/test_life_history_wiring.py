"""What each stage of a life history stores is what the public functions say of what the stages before it stored."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from small import HOOKS
from wired import SEED, STEPS, TRAINED, Case, given_study, renamed, same, text, trained_study

import tl_lifehist as lh
from tl_lifehist.activations import stream_activations
from tl_lifehist.checkpoints.integrity import fingerprint
from tl_lifehist.config import from_sections, options
from tl_lifehist.dictionaries.protocol import decoder_directions
from tl_lifehist.dictionaries.sae import TrainedSAE, init_seeds, train_at
from tl_lifehist.effects import scored_losses
from tl_lifehist.inference.exchange import without_slope
from tl_lifehist.inference.worlds import rejections
from tl_lifehist.lifehistory.config import LifeHistoryConfig
from tl_lifehist.lifehistory.content import vocabulary_classes
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.lifehistory.controls import equals_of
from tl_lifehist.lifehistory.direction import aligned_cosines, direction_by_hook
from tl_lifehist.lifehistory.forecast import onset_step, training_phase
from tl_lifehist.lifehistory.published import published_table
from tl_lifehist.lifehistory.recruitment import can_be_parents
from tl_lifehist.lifehistory.survival import onset_cohort, survival_at_equal_rate
from tl_lifehist.lifehistory.worlds import life_history_worlds
from tl_lifehist.metrics import fvu
from tl_lifehist.seeds import derive_seed
from tl_lifehist.stages import Inputs, Planned, plan
from tl_lifehist.store import Store

pytestmark = pytest.mark.usefixtures("saelens")
ORIENTATIONS = ("container", "depth")
MODEL = 1e-6  # what a model computed is the same up to the order of sums


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Case:
    study = trained_study()
    return Case(study, study.run(tmp_path_factory.mktemp("wiring") / "run"))


@pytest.fixture(scope="module")
def given_saes(trained: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return renamed(trained.run.path, tmp_path_factory.mktemp("given") / "saes")


@pytest.fixture(scope="module")
def given(given_saes: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    study = given_study(given_saes)
    return Case(study, study.run(tmp_path_factory.mktemp("given") / "run"))


@pytest.fixture(scope="module", params=["trained", "given"])
def case(request: pytest.FixtureRequest) -> Case:
    return request.getfixturevalue(request.param)


# ---------------------------------------------------------------------------------------------- checks and SAEs


def test_each_checkpoint_is_the_one_that_was_checked(trained):
    prints = {step: fingerprint(trained.model(step)) for step in STEPS}
    assert len({str(found) for found in prints.values()}) == len(STEPS)
    for step in STEPS:
        assert trained[f"check/step{step}"]["fingerprint"] == prints[step]
        assert trained.run.study["fingerprints"][str(step)] == prints[step]


def equal_weights(a: Any, b: Any) -> bool:
    return all(
        torch.equal(a[h].state_dict()[name], b[h].state_dict()[name]) for h in HOOKS for name in ("W_enc", "W_dec")
    )


def retrained(case: Case, step: int, *order: int, seed: int = SEED, start: int | None = None) -> dict[str, Any]:
    """The SAEs of a checkpoint from explicit seeds; `start` is the checkpoint whose weights training starts from."""
    sae, before = case.config.sae, None
    if start is not None:
        held = case[f"saes/step{start}"]
        before = {h: TrainedSAE(None, held[f"training/{h}"], None) for h in HOOKS}
    found = train_at(
        case.model(step),
        HOOKS,
        case.study.train,
        init_seeds=init_seeds(HOOKS, init=sae.init, seed=seed, step=step),
        order_seed=derive_seed(SEED, step, 7, *order),
        d_sae=sae.d_sae,
        k=sae.k,
        training_tokens=sae.training_tokens,
        start_from=before,
    )
    return {h: one.sae for h, one in found.items()}


def test_saes_are_those_of_the_public_function(trained):
    sae, first = trained.config.sae, STEPS[:2]
    expected = lh.train_saes(
        trained.study.series.subset(first),
        HOOKS,
        trained.study.train,
        d_sae=sae.d_sae,
        k=sae.k,
        training_tokens=sae.training_tokens,
        init=sae.init,
        seed=SEED,
    )
    for step in first:
        assert equal_weights(trained.saes(step), expected.at(step))
        for h, one in trained.saes(step).items():
            metadata = one.cfg.metadata
            assert (metadata.hook_name, metadata.checkpoint_step, metadata.model_name) == (h, step, "pocket")


def test_each_replicate_is_trained_from_what_its_name_says(trained):
    """`data1` starts where the run's own SAEs start, `warm2` from the run's own, `init1` from other weights."""
    assert equal_weights(trained.saes(128, "data1"), retrained(trained, 128, 1, 2, start=0))
    assert equal_weights(trained.saes(4096, "warm2"), retrained(trained, 4096, 2, 2, start=4096))
    other = derive_seed(SEED, 1, 13)
    assert equal_weights(trained.saes(128, "init1"), retrained(trained, 128, 1, 1, seed=other))
    assert set(trained.study.replicates()) == {
        *((step, name) for step in (128, 4096) for name in ("data1", "init1")),
        (4096, "warm1"),
        (4096, "warm2"),
    }


@pytest.mark.parametrize("init", ["shared", "independent"])
def test_trainings_share_what_they_should_and_nothing_else(trained, tmp_path, init: str):
    """A few batches, so that weights still lie near where they started."""
    few = text("train", 0, 8)
    study = trained_study(init=init, training_tokens=640, train=few, noise_steps=None)
    stages, store = {one.name: one for one in study.stages()}, Store(tmp_path)
    key = store.put_text(few)

    def trained_by(name: str) -> dict[str, Any]:
        stage = stages[name]
        inputs = Inputs(stage, store, study.series, {"train": key}, trained.model, {}, {})
        return dict(stage.fn(inputs, **stage.params))

    def expected(step: int, seed: int, *order: int) -> dict[str, Any]:
        found = train_at(
            trained.model(step),
            HOOKS,
            few,
            init_seeds=init_seeds(HOOKS, init=init, seed=seed, step=step),
            order_seed=derive_seed(SEED, step, 7, *order),
            d_sae=48,
            k=7,
            training_tokens=640,
        )
        return {h: one.sae for h, one in found.items()}

    own, later = trained_by("saes/step0"), trained_by("saes/step1024")
    data, again = trained_by("replicates/data1/step1024"), trained_by("replicates/init1/step1024")
    for found, wanted in (
        (own, expected(0, SEED)),
        (later, expected(1024, SEED)),
        (data, expected(1024, SEED, 1, 2)),
        (again, expected(1024, derive_seed(SEED, 1, 13), 1, 1)),
    ):
        assert set(found) == set(HOOKS)
        assert equal_weights(found, wanted)

    def near(a: dict[str, Any], b: dict[str, Any]) -> bool:
        cosine = [torch.cosine_similarity(a[h].W_dec, b[h].W_dec, dim=1).mean() for h in HOOKS]
        return bool(torch.stack(cosine).min() > 0.5)

    assert near(data, later)
    assert not near(again, later)
    assert near(own, later) == (init == "shared")


LEVELS = {"shared": "data", "independent": "init", "previous": "warm"}


@pytest.mark.parametrize("init", LEVELS)
def test_the_noise_is_of_the_runs_own_way_to_start(init: str):
    study = trained_study(init=init, n_frozen=3, noise_steps=(1024, 4096))
    level, stages = LEVELS[init], {one.name: one for one in study.stages()}
    wanted = {(step, name) for step in (1024, 4096) for name in ("data1", "init1")}
    wanted |= {(4096, f"{level}{i}") for i in (1, 2, 3)}
    assert set(stages["noise"].params["replicates"]) == wanted
    assert {name for name in stages if name.startswith("replicates/")} == {
        f"replicates/{name}/step{step}" for step, name in wanted
    }
    assert stages["noise"].params["frozen_level"] == stages["tables"].params["frozen_level"] == level
    starts = {name: one.params["start"] for name, one in stages.items() if one.texts == ("train",)}
    before = dict(zip(STEPS[1:], STEPS, strict=False))
    for name, start in starts.items():
        step = int(name.rpartition("step")[2])
        if init != "previous" or "init" in name:
            assert start is None
        else:
            assert start == (step if "warm" in name else before.get(step))
        assert stages[name].needs == (() if start is None else (f"saes/step{start}",))


def test_given_saes_are_taken_up_as_they_are(given, given_saes):
    def held(stage: str) -> dict[str, Any]:
        results = Store(given_saes).results(stage)
        return {h: results[h] for h in HOOKS}

    for step in given.steps:
        assert equal_weights(given.saes(step), held(f"saes/step{step}"))
    for name in ("data1", "init1", "init2"):
        assert equal_weights(given.saes(4096, name), held(f"replicates/{name}/step4096"))


def test_given_saes_are_known_by_their_weights(given):
    of_others = {"training_tokens": 600_000, "init": "shared"}  # nobody knows how they were trained

    def digests(saes: dict[tuple[int, str], Any]) -> dict[str, Any]:
        study = trained_study(series=given.study.series, saes=saes, noise_steps=None, **of_others)
        return {one.name: one.params for one in study.stages() if one.name.startswith("saes/")}

    held = dict(given.all_saes.items())
    known = digests(held)
    assert known == {one.name: one.params for one in given.study.stages() if one.name.startswith("saes/")}
    other = digests({**held, (1024, HOOKS[1]): held[4096, HOOKS[1]]})
    assert {name for name in known if known[name] != other[name]} == {"saes/step1024"}


# ---------------------------------------------------------------------------------------------------- profiles


def test_profiles_are_of_each_checkpoints_own_saes_on_the_test_text(case):
    threshold, held = case.config.alive.firing_threshold, dict(case.study.replicates())
    assert set(held) == {128, 4096}
    for step in case.steps:
        names = ["", *(name for at, name in case.study.replicates() if at == step)]
        assert set(case[f"profiles/step{step}"]) == {
            "checkpoint", *(f"{name}/{h}" if name else h for name in names for h in HOOKS)
        }  # fmt: skip
        saes = {name: case.saes(step, name) for name in names}
        codes: dict[tuple[str, str], list[torch.Tensor]] = {}
        norms: dict[str, list[torch.Tensor]] = {h: [] for h in HOOKS}
        for batch in stream_activations(case.model(step), HOOKS, case.test):
            for h, rows in batch.items():
                norms[h].append(rows.double().norm(dim=1))
                for name in names:
                    codes.setdefault((name, h), []).append(saes[name][h].encode(rows))
        for name in names:
            for h, profile in case.profiles_at(step, name).items():
                wanted = torch.cat(codes[name, h])
                wanted = torch.where(wanted > threshold, wanted, 0).numpy()
                np.testing.assert_allclose(profile.acts.toarray(), wanted, atol=1e-6)
                assert profile.residual_norm == pytest.approx(float(torch.cat(norms[h]).mean()))
                assert profile.decoder_norm == pytest.approx(decoder_directions(saes[name][h]).norm(dim=1).numpy())
                assert profile.firing_threshold == threshold


def test_a_checkpoints_record_is_of_the_scored_part_of_the_test_text(case):
    for step in case.steps:
        record = case[f"profiles/step{step}"]["checkpoint"]
        losses = scored_losses(case.model(step), case.scored)
        assert record["n_scored"] == len(losses) == case.scored.n_scored
        assert record["base_ce"] == pytest.approx(losses.mean())
        assert set(record["fvu"]) == set(HOOKS)
        for h, sae in case.saes(step).items():
            rows = lh.collect_activations(case.model(step), h, case.scored)
            assert record["fvu"][h] == pytest.approx(fvu(rows, sae.decode(sae.encode(rows))))


# ------------------------------------------------------------------------------------------ lineages and noise


def test_lineages_are_traced_by_the_studys_thresholds(case):
    same(case["lineages"]["lineages"], case.lineages.to_dataframe())
    alive = case["lineages"]["alive"]
    assert alive == {f"{s}/{h}": np.flatnonzero(p.alive(**case.alive)).tolist() for (s, h), p in case.profiles.items()}
    assert case.lineages.min_similarity == case.config.matching.min_similarity


def test_rematch_rates_are_of_replicates_within_one_checkpoint(case):
    rows = []
    for step, name in case.study.replicates():
        for h, other in case.profiles_at(step, name).items():
            match = lh.match_features(case.profiles[step, h], other, **case.alike)
            n_alive = len(match.pairs) + len(match.unmatched_a)
            rows.append((step, h, name.rstrip("0123456789"), name, len(match.pairs), n_alive, match.rate))
    columns = ["step", "hook_name", "level", "replicate", "matched", "n_alive", "rate"]
    same(case["noise"]["rematch"], pd.DataFrame(rows, columns=columns))


def replicates_at_end(case: Case, level: str) -> list[dict[str, lh.FeatureProfiles]]:
    names = [name for step, name in case.study.replicates() if step == case.last and name.rstrip("0123456789") == level]
    return [case.profiles_at(case.last, name) for name in names]


def test_the_nulls_of_the_number_of_carriers(case):
    own, noise = replicates_at_end(case, LEVELS[case.config.sae.init]), case.config.noise
    assert len(own) == 2
    frequencies = {
        h: lh.lifehistory.rematch_frequencies(case.final[h], [one[h] for one in own], **case.alike) for h in HOOKS
    }
    frozen = lh.lifehistory.frozen_null(
        frequencies,
        n_snapshots=3,
        min_snapshots=case.carriers.min_snapshots,
        n_draws=noise.frozen_draws,
        seed=case.seed,
    ).draws
    unrelated = lh.lifehistory.unrelated_null(
        case.profiles, **case.traced, **case.rule, n_draws=noise.unrelated_draws, seed=case.seed
    ).draws
    table = case["noise"]["nulls"]
    assert table["null"].unique().tolist() == ["frozen", "unrelated"]
    for name, draws in (("frozen", frozen), ("unrelated", unrelated)):
        found = table[table["null"] == name]
        assert found["draw"].tolist() == list(range(len(draws)))
        assert found["carriers"].tolist() == draws.tolist()


def test_the_null_of_unrelated_profiles_is_traced_and_chosen_as_the_carriers_are(trained):
    """At thresholds at which rows in random order match too; at the run's own nothing is left."""
    study = trained_study()
    (stage,) = [one for one in study.stages() if one.name == "noise"]
    store, texts = Store(trained.run.path), {"test": study.test.key}
    keys = {name: store.results(name).key for name in stage.needs}
    inputs = Inputs(stage, store, study.series, texts, trained.model, {}, keys)
    matching = replace(study.config.matching, min_similarity=0.01, transformed=0.005)
    rule = replace(study.config.rule, min_snapshots=2)
    table = stage.fn(inputs, **{**stage.params, "matching": matching, "rule": rule})["nulls"]
    traced = {**trained.traced, "min_similarity": 0.01, "transformed": 0.005}
    drawn = partial(lh.lifehistory.unrelated_null, trained.profiles, **traced, n_draws=2, seed=SEED)
    chosen = drawn(min_snapshots=2, consecutive=False, alive_at_end=False).draws.tolist()
    assert table.loc[table["null"] == "unrelated", "carriers"].tolist() == chosen
    assert chosen != drawn().draws.tolist()


def test_seed_stable_features_are_found_again_from_all_other_weights(case):
    others, stable = replicates_at_end(case, "init"), {}
    for h in HOOKS:
        found = [set(lh.match_features(case.final[h], one[h], **case.alike).pairs[:, 0].tolist()) for one in others]
        stable[h] = sorted(set.intersection(*found))
    assert case["noise"]["stable"] == stable
    assert all(stable.values())


def test_the_noise_of_directions_is_between_two_trainings(case):
    rows = []
    for name in ("data1", "init1"):
        for h in HOOKS:
            match = lh.match_features(case.final[h], case.profiles_at(case.last, name)[h], **case.alike)
            a = decoder_directions(case.saes(case.last)[h])[match.pairs[:, 0]].double()
            b = decoder_directions(case.saes(case.last, name)[h])[match.pairs[:, 1]].double()
            a, b = (torch.nn.functional.normalize(rows, dim=1).numpy() for rows in (a, b))
            means = (match.similarity.mean(), (a * b).sum(axis=1).mean(), aligned_cosines(a, b).mean())
            rows.append((name[:-1], h, *means, len(match.pairs)))
    columns = ["level", "hook_name", "s_fun", "s_dir", "s_dir_aligned", "n"]
    same(case["noise"]["direction_noise"], pd.DataFrame(rows, columns=columns), rtol=1e-5)


# ----------------------------------------------------------------------------------- graphs and what they recruit


def test_edges_and_roles_are_of_both_graphs_of_every_checkpoint(case):
    edges, roles = [], []
    for step in case.steps:
        found = {}
        for orientation in ORIENTATIONS:
            graph = case.graph(step, orientation=orientation)
            found[orientation] = lh.lifehistory.feature_roles(graph)
            for parent, child, data in graph.edges(data=True):
                measures = (data["containment"], data["lift"], data["overlap"])
                edges.append((step, orientation, *parent, *child, *measures))
            if step == case.last:
                stored = case["graphs"][f"graphs/{orientation}"]
                assert set(stored.edges) == {(f"{a[0]}/{a[1]}", f"{b[0]}/{b[1]}") for a, b in graph.edges}
                assert set(stored.nodes) == {f"{h}/{f}" for h, f in graph}
        roles += [(step, h, f, found["container"][h, f], found["depth"][h, f]) for h, f in found["container"]]
    names = ["step", "orientation", "source_hook", "source_feature", "target_hook", "target_feature"]
    same(case["graphs"]["edges"], pd.DataFrame(edges, columns=[*names, "containment", "lift", "overlap"]))
    columns = ["step", "hook_name", "feature", "role_container", "role_depth"]
    expected = pd.DataFrame(roles, columns=columns)
    same(case["graphs"]["roles"], expected)
    assert (expected["role_container"] != expected["role_depth"]).any()


def test_what_carriers_recruit_stands_beside_its_nulls(case):
    thresholds, equals, sets = case.config.containment, case.config.equals, case.config.control_sets
    rows = []
    for step in case.steps:
        carriers = case.carriers.at(step)
        n_carriers = sum(len(f) for f in carriers.values())
        least = {"min_rate": case.config.alive.min_rate, "min_firings": thresholds.min_firings}
        able = can_be_parents(case.profiles_at(step), carriers, thresholds.min_lift, **least)
        for orientation in ORIENTATIONS:
            graph = case.graph(step, orientation=orientation)
            roles = list(lh.lifehistory.feature_roles(graph).values())
            row = {"step": step, "orientation": orientation, "n_nodes": len(roles), "n_edges": graph.number_of_edges()}
            row |= {f"n_{role}": roles.count(role) for role in ("root", "mid", "leaf", "isolated")}
            row |= {"n_carriers": n_carriers, "n_can_be_parents": able}
            if any((h, f) in graph for h, features in carriers.items() for f in features):
                null = lh.lifehistory.recruitment_null(
                    graph,
                    carriers,
                    n_draws=sets.n_draws,
                    n_rewired=sets.n_rewired,
                    block=equals.rate_block,
                    caliper=equals.caliper,
                    max_unmatched=equals.max_unmatched,
                    seed=case.seed,
                )
                fraction = partial(lh.lifehistory.recruited_fraction, graph, carriers)
                row |= {"recruited": fraction(), "recruited_direct": fraction(direct=True)}
                row |= {"recruited_with_carriers": fraction(count_carriers=True), "null_mean": null.mean}
                row |= {"null_low": null.low, "null_high": null.high, "null_sd": null.draws.std()}
                row |= {"unmatched_share": null.unmatched_share, "rewired_mean": null.rewired_mean, "p": null.p}
            rows.append(row)
    same(case["recruitment"]["dag"], pd.DataFrame(rows))
    assert any("p" in row for row in rows)


# -------------------------------------------------------------------------------------------------- ablations


def test_single_features_are_drawn_by_role_and_among_the_carriers(case):
    sampling, roles = case.config.sampling, lh.lifehistory.feature_roles(case.graph(case.last))
    carriers = [(h, f) for h, features in case.carriers.at(case.last).items() for f in features]
    rng = np.random.default_rng(derive_seed(case.seed, 19))
    chosen = {carriers[i] for i in rng.permutation(len(carriers))[: sampling.single_carriers]}
    drawn = set()
    for role in sorted(set(roles.values())):
        nodes = [node for node, its in roles.items() if its == role]
        drawn |= {nodes[i] for i in rng.permutation(len(nodes))[: sampling.singles_per_role]}
    features = {h: sorted(f for name, f in chosen | drawn if name == h) for h in HOOKS}
    model, saes = case.model(case.last), case.saes(case.last)
    table = lh.lifehistory.single_ablation(model, saes, features, case.scored)
    nodes = list(zip(table["hook_name"], table["feature"], strict=True))
    table["role"] = [roles.get(node, np.nan) for node in nodes]
    table["sampled"] = [node in drawn for node in nodes]
    table["carrier"] = [node in set(carriers) for node in nodes]
    same(case["singles"]["single"], table, rtol=MODEL)
    assert 0 < table["carrier"].sum() < len(table)
    assert 0 < table["sampled"].sum() < len(table)


def test_the_parts_of_the_joint_load(case):
    carriers, held = case.carriers.at(case.last), case["singles"]
    every = sum(len(f) for f in carriers.values()) <= case.config.sampling.single_carriers
    single = held["single"]
    expected = lh.lifehistory.ablation_parts(
        case.model(case.last),
        case.saes(case.last),
        carriers,
        case.final,
        case.scored,
        single=single[single["carrier"]] if every else None,
        seed=case.seed,
    )
    same(held["ablation_parts"], expected, rtol=MODEL)
    cost = expected.set_index("part")["delta_ce"]
    assert cost["joint"] == pytest.approx(case.cost(carriers))
    for h in HOOKS:
        assert cost[h] == pytest.approx(case.cost({h: carriers[h]}))


def test_the_regression_of_loads(case):
    expected = lh.lifehistory.ablation_regression(
        case.model(case.last),
        case.saes(case.last),
        case.carriers.at(case.last),
        case.final,
        case.scored,
        n_sets=case.config.sampling.regression_sets,
        set_share=case.config.sampling.regression_share,
        n_bootstrap=case.config.verdicts.null_draws,
        **case.alive,
        seed=case.seed,
    )
    same(case["singles"]["ablation_regression"], expected, rtol=1e-5)


def test_the_joint_load_stands_beside_each_kind_of_controls(case):
    equals, carriers, sets = case.config.equals, case.carriers.at(case.last), case.config.control_sets
    streams = {"count": 0, "rate": 1, "mass": 2}
    described = {"count": {"graph": case.graph(case.last)}, "mass": {"among": {"stable": case["noise"]["stable"]}}}
    for kind in sets.controls:

        def beside(kinds: tuple[str, ...], n_draws: int, kind: str = kind, **more: Any) -> Any:
            return lh.joint_ablation(
                case.model(case.last),
                case.saes(case.last),
                carriers,
                case.final,
                case.scored,
                controls=kinds,
                n_draws=n_draws,
                block=equals.block,
                caliper=equals.caliper,
                max_unmatched=equals.max_unmatched,
                max_smd=equals.max_smd,
                max_p=case.config.verdicts.level,
                **case.alive,
                seed=derive_seed(case.seed, 17, CONTROLS[kind].stream) % 2**31,
                **more,
            )

        assert CONTROLS[kind].stream == streams.get(kind, CONTROLS[kind].stream)
        tested = kind in ("count", "mass")
        found = [beside((kind,), sets.n_draws if tested else sets.n_described)]
        if kind in described:
            found.append(beside((), sets.n_described, **described[kind]))
        assert found[0].delta_ce == pytest.approx(case.cost(carriers))
        draws = pd.concat([one.controls for one in found if len(one.controls)] or [found[0].controls])
        same(case[f"load/{kind}"]["load"], draws, rtol=MODEL)
        whole = {
            "delta_ce": found[0].delta_ce,
            "delta_low": found[0].delta_ce_interval[0],
            "delta_high": found[0].delta_ce_interval[1],
            "base_ce": case[f"profiles/step{case.last}"]["checkpoint"]["base_ce"],
            "n_scored": case.scored.n_scored,
        }
        balance = pd.concat([one.balance for one in found])
        same(case[f"load/{kind}"]["load_summary"], balance.assign(**whole), rtol=MODEL)
        parts = {"count": ["count", "count_root", "count_mid", "count_leaf"], "mass": ["mass", "stable"]}
        assert balance["kind"].tolist() == parts.get(kind, [kind])
        assert whole["delta_low"] < whole["delta_ce"] < whole["delta_high"]


# ---------------------------------------------------------------------------------------------------- content


def classes_of(case: Case) -> dict[tuple[int, str], Any]:
    n = int(case.test.ids.max()) + 1
    infrastructure = vocabulary_classes(case.study.series.tokenizer, n)
    share = case.config.verdicts.min_mass_share
    return {
        key: lh.lifehistory.content_classes(profile, infrastructure, min_mass_share=share)
        for key, profile in case.profiles.items()
    }


def test_content_classes_are_of_all_alive_features(case):
    found, classes = case["content"]["classes"], classes_of(case)
    rows = [(s, h, f, classes[s, h][f]) for (s, h), alive in case.lineages.alive.items() for f in alive.tolist()]
    same(found, pd.DataFrame(rows, columns=["step", "hook_name", "feature", "content"]))
    assert found["content"].nunique() == 2


def test_contexts_are_of_the_carriers_at_the_end(case):
    sampling, tokenizer = case.config.sampling, case.study.series.tokenizer
    shown = [
        lh.top_contexts(case.final[h], case.test, features, tokenizer, n=sampling.contexts, window=sampling.window)
        for h, features in case.carriers.at(case.last).items()
    ]
    same(case["content"]["contexts"], pd.concat(shown))


def test_a_classs_load_stands_beside_equal_masses_of_the_other(case):
    classes, carriers = classes_of(case), case.carriers.at(case.last)
    alive = {h: case.lineages.alive[case.last, h].tolist() for h in HOOKS}
    graph, marked = case.graph(case.last), {(h, f) for h, features in carriers.items() for f in features}
    below = {node for seed in marked if seed in graph for node in nx.descendants(graph, seed)} - marked
    rows, n_compared = [], 0
    for name in ("infrastructure", "legible"):

        def of(chosen: dict[str, list[int]], wanted: bool, name: str = name) -> dict[str, list[int]]:
            return {h: [f for f in fs if (classes[case.last, h][f] == name) == wanted] for h, fs in chosen.items()}

        mine, n = of(carriers, True), sum(map(len, of(alive, True).values()))
        count = sum(map(len, mine.values()))
        compared, null = np.nan, np.zeros(0)
        if count:
            like = {"block": case.config.equals.block, "caliper": case.config.equals.caliper, **case.alive}
            equals = equals_of(case.final, mine, kind="mass", among=of(alive, False), **like)
            sets = equals.strata.draws(case.config.sampling.content_draws, np.random.default_rng(case.seed))
            marked_here = equals.strata.marked
            if marked_here.any() and equals.strata.unmatched_share <= case.config.equals.max_unmatched:
                costs = np.array([case.cost(equals.chosen(drawn)) for drawn in sets])
                own = case.cost(equals.chosen(marked_here))
                beside = without_slope(own, costs, float(equals.measure[marked_here].sum()), sets @ equals.measure)
                compared, null = beside.observed, beside.draws
        low, high = np.quantile(null, [0.025, 0.975]) if len(null) else (np.nan, np.nan)
        n_compared += len(null)
        rows.append(
            {
                "content": name,
                "n": n,
                "n_carriers": count,
                "share_of_alive": n / sum(map(len, alive.values())),
                "share_of_carriers": count / len(marked),
                "joint_load": case.cost(mine) if count else np.nan,
                "compared_load": compared,
                "null_load_mean": null.mean() if len(null) else np.nan,
                "null_load_low": low,
                "null_load_high": high,
                "null_draws": len(null),
                "p": (1 + (null >= compared).sum()) / (len(null) + 1) if len(null) else np.nan,
                "share_of_descendants": sum(classes[case.last, h][f] == name for h, f in below) / len(below),
            }
        )
    same(case["content"]["content"], pd.DataFrame(rows), rtol=MODEL)
    assert n_compared > 0


# ----------------------------------------------------------------------------------------- sweeps and forecasts


def test_sweeps_change_one_setting_each(case):
    def count(of: Any = None, **changed: Any) -> int:
        traced = lh.trace_lineages(case.profiles if of is None else of, **{**case.traced, **changed})
        return len(traced.carriers(**case.rule))

    sweep, ids = case.config.sweep, case.test.row_tokens
    n = sweep.frequent_ids
    ranked = sorted(range(int(ids.max()) + 1), key=lambda i: -int((ids == i).sum()))
    rare = {key: profile.select_rows(~np.isin(ids, ranked[:n])) for key, profile in case.profiles.items()}
    order = [case.steps[i] for i in np.random.default_rng(case.seed).permutation(len(case.steps))]
    assert order != list(case.steps)
    mixed = {(s, h): case.profiles[other, h] for s, other in zip(case.steps, order, strict=True) for h in HOOKS}
    first, last = (case.final[h] for h in HOOKS)
    per_rate = case.config.alive.min_count / case.config.alive.min_rate
    carriers, block = case.carriers.at(case.last), case.config.equals.block
    documents = pd.factorize(case.test.row_documents, sort=True)[0]
    place = np.random.default_rng(case.seed).permutation(documents.max() + 1)
    moved = replace(first, acts=first.acts[np.argsort(place[documents], kind="stable")].tocsc())
    rows = [
        ("all at their defaults", "", "carriers", len(case.carriers)),
        *(
            ("min_snapshots", str(k), "carriers", len(case.lineages.carriers(**{**case.rule, "min_snapshots": k})))
            for k in range(1, 4)
        ),
        *(("min_similarity", str(v), "carriers", count(min_similarity=v)) for v in sweep.similarities),
        *(("min_rate", f"{r:g}", "carriers", count(min_rate=r, min_count=round(per_rate * r))) for r in sweep.rates),
        ("method", "dense", "carriers", count(method="dense")),
        ("transformed band", "0.2", "carriers", count(transformed=0.2)),
        ("max_gap", "1", "carriers", count(max_gap=1)),
        (f"without the {n} most frequent ids", "", "carriers", count(rare)),
        *(
            (
                "caliper",
                str(v),
                "carriers with an equal of mass",
                1
                - equals_of(
                    case.final, carriers, kind="mass", block=block, caliper=v, **case.alive
                ).strata.unmatched_share,
            )
            for v in sweep.calipers
        ),
        *(
            (name, f"{v:g}", "edges", case.graph(case.last, **{name: v}).number_of_edges())
            for name, values in (
                ("min_containment", sweep.containments),
                ("min_lift", sweep.lifts),
                ("max_p", sweep.edge_ps),
            )
            for v in values
        ),
        ("checkpoint order shuffled", "", "carriers", count(mixed)),
        ("rows shuffled", "", "match rate", lh.match_features(first, first.permuted(case.seed), **case.alike).rate),
        ("documents shuffled", "", "match rate", lh.match_features(first, moved, **case.alike).rate),
        ("another layer", "", "match rate", lh.match_features(first, last, **case.alike).rate),
    ]
    same(case["sweeps"]["sweeps"], pd.DataFrame(rows, columns=["parameter", "value", "quantity", "result"]))


def onset_of(case: Case) -> dict[str, Any]:
    return {"onset": case.config.forecast.onset, "onset_share": case.config.forecast.onset_share}


def test_the_forecast_is_from_the_onset_by_the_studys_settings(case):
    forecast = case.config.forecast
    found = lh.predict_carriers(
        case.profiles,
        case.lineages,
        case.carriers,
        saes=case.all_saes,
        **onset_of(case),
        min_lift=case.config.containment.min_lift,
        min_positives=forecast.min_positives,
        n_folds=forecast.n_folds,
        n_repeats=forecast.n_repeats,
        n_permutations=forecast.n_permutations,
        inverse_penalty=forecast.inverse_penalty,
        n_draws=case.config.control_sets.n_draws,
        n_bootstrap=case.config.verdicts.null_draws,
        block=case.config.equals.rate_block,
        caliper=case.config.equals.caliper,
        seed=case.seed,
    )
    assert found.gain is not None
    same(case["forecasts"]["forecast_gain"], pd.DataFrame([asdict(found.gain)]))
    same(case["forecasts"]["forecast"], found.to_dataframe().assign(onset=found.onset, reason=found.reason or ""))
    assert found.reason is None
    assert "decoder geometry" in set(found.baselines["predictor"])


def test_function_direction_and_survival(case):
    held, draws = case["forecasts"], case.config.verdicts.null_draws
    direction = lh.lifehistory.function_and_direction(
        case.profiles, case.lineages, case.all_saes, n_draws=draws, seed=case.seed
    )
    same(held["direction"], direction, rtol=MODEL)
    same(held["kaplan_meier"], lh.lifehistory.kaplan_meier(case.lineages))
    survival = lh.lifehistory.survival_by_entropy(
        case.profiles, case.lineages, n_groups=case.config.forecast.n_groups, **onset_of(case)
    )
    same(held["survival_by_entropy"], survival)
    by_hook = direction_by_hook(case.profiles, case.lineages, case.all_saes)
    same(held["direction_by_hook"], by_hook, rtol=MODEL)
    cohort = onset_cohort(case.profiles, case.lineages, **onset_of(case))
    equals = case.config.equals
    null = survival_at_equal_rate(
        cohort,
        block=equals.rate_block,
        caliper=equals.caliper,
        n_draws=draws,
        seed=derive_seed(case.seed, 23),
    )
    low, high = np.quantile(null.draws - null.draws.mean(), [0.025, 0.975])
    effect = null.observed - null.draws.mean()
    row = {"difference": effect, "low": effect - high, "high": effect - low, "p": null.p}
    row |= {"detectable": null.detectable, "n": len(cohort.rate), "n_survived": int(cohort.reached.sum())}
    same(held["survival_at_rate"], pd.DataFrame([row]), rtol=1e-9)


def test_the_tests_are_tried_in_worlds_of_this_run(case):
    tables = {name: case.run.table(name) for name in ("features", "edges")}
    onset = int(case.run.table("forecast")["onset"].iloc[0])
    n_draws, verdicts = case.config.control_sets.n_draws, case.config.verdicts
    worlds = life_history_worlds(tables, equals=case.config.equals, onset=onset, n_draws=n_draws)
    expected = rejections(worlds, n_worlds=verdicts.worlds, level=verdicts.level, seed=derive_seed(case.seed, 29))
    same(case["calibration"]["calibration"], expected)
    errs = dict(zip(expected["id"], expected["rejected"], strict=True))
    found = case.run.claims.set_index("id")["false_positives"].dropna().to_dict()
    made = set(case.run.claims["id"])
    assert found == {name: share for name, share in errs.items() if np.isfinite(share) and name in made}


# ------------------------------------------------------------------------------------------------------ tables

COPIED = {
    "lineages": ("lineages",),
    "noise": ("rematch", "nulls", "direction_noise"),
    "graphs": ("edges",),
    "recruitment": ("dag",),
    "singles": ("ablation_parts", "ablation_regression"),
    "content": ("contexts",),
    "sweeps": ("sweeps",),
    "forecasts": (
        *("forecast_gain", "direction", "direction_by_hook", "survival_by_entropy", "survival_at_rate"),
        "kaplan_meier",
    ),
    "calibration": ("calibration",),
}


def test_tables_of_stages_are_the_runs(case):
    made = {"claims", "published", "events", "features", "carriers", "checkpoints", "load", "load_summary", "single"}
    made |= {"forecast"}
    for stage, names in COPIED.items():
        for name in names:
            same(case.run.table(name), case[stage][name])
    for name in ("load", "load_summary"):
        kinds = case.config.control_sets.controls
        same(case.run.table(name), pd.concat([case[f"load/{kind}"][name] for kind in kinds]))
    forecast = case["forecasts"]["forecast"]
    recalled = forecast["recall_at_k"] * forecast["n_positive"] / len(case.carriers)
    same(case.run.table("forecast").drop(columns="recall_of_all"), forecast)
    same(case.run.table("forecast")[["recall_of_all"]], recalled.to_frame("recall_of_all"))
    copied = {name for names in COPIED.values() for name in names}
    assert set(case.run.tables) == {*made, *copied, "content"}


def test_the_table_of_features(case):
    lineage = case.lineages.to_dataframe().set_index(["step", "hook_name", "feature"])["lineage"]
    roles = case["graphs"]["roles"].set_index(["step", "hook_name", "feature"])
    classes, marked = classes_of(case), set(case.carriers.lineages.tolist())
    parts = []
    for (step, h), profile in case.profiles.items():
        alive = case.lineages.alive[step, h]
        keys = pd.MultiIndex.from_tuples([(step, h, f) for f in alive.tolist()])
        its = lineage.reindex(keys).to_numpy()
        parts.append(
            pd.DataFrame(
                {
                    "step": step,
                    "hook_name": h,
                    "feature": alive,
                    **{n: getattr(profile, n)[alive] for n in ("firing_rate", "count", "entropy", "strength", "mass")},
                    "vocabulary_entropy": profile.vocabulary_entropy[alive],
                    "top_token_share": profile.top_token_share()[alive],
                    "lineage": its,
                    "carrier": [number in marked for number in its],
                    "role_container": roles["role_container"].reindex(keys).to_numpy(),
                    "role_depth": roles["role_depth"].reindex(keys).to_numpy(),
                    "content": classes[step, h][alive],
                }
            )
        )
    same(case.run.table("features"), pd.concat(parts))


def test_the_table_of_carriers(case):
    rows, stable = [], case["noise"]["stable"]
    summary, lineages = case.lineages.summary().set_index("lineage"), case.lineages.to_dataframe()
    at_end = lineages[lineages["step"] == case.last].set_index(["hook_name", "feature"])["lineage"]
    roles, classes = lh.lifehistory.feature_roles(case.graph(case.last)), classes_of(case)
    for h, features in case.carriers.at(case.last).items():
        profile = case.final[h]
        for f in features:
            number = int(at_end[h, f])
            measures = (profile.firing_rate[f], profile.mass[f], profile.strength[f], profile.entropy[f])
            rows.append(
                (number, h, f, summary["birth"][number], summary["n_snapshots"][number], *measures)
                + (profile.top_token_share()[f], roles.get((h, f)), classes[case.last, h][f], f in stable[h])
            )
    names = ["lineage", "hook_name", "feature", "birth", "n_snapshots", "firing_rate", "mass", "strength", "entropy"]
    expected = pd.DataFrame(rows, columns=[*names, "top_token_share", "role", "content", "seed_stable"])
    same(case.run.table("carriers"), expected)
    assert 0 < expected["seed_stable"].sum() < len(expected)


def test_the_table_of_checkpoints(case):
    rows = []
    for step in case.steps:
        record = case[f"profiles/step{step}"]["checkpoint"]
        for h in HOOKS:
            n_alive = int(case.profiles[step, h].alive(**case.alive).sum())
            rows.append((step, h, record["base_ce"], record["n_scored"], record["fvu"][h], n_alive))
    expected = pd.DataFrame(rows, columns=["step", "hook_name", "base_ce", "n_scored", "fvu", "n_alive"])
    same(case.run.table("checkpoints"), expected)


def floor_of(case: Case, h: str, step: int, level: str) -> float:
    """Of the nearest checkpoint, in decades of steps, that was trained again; 4096 and 128 were."""
    nearest = min((128, 4096), key=lambda other: abs(np.log10(other + 1) - np.log10(step + 1)))
    table = case["noise"]["rematch"]
    rows = table[(table["step"] == nearest) & (table["hook_name"] == h) & (table["level"] == level)]
    return float(rows["rate"].mean())


def test_the_table_of_events(case):
    table, lineages = case.run.table("events"), case.lineages
    alike = ["hook_name", "step_from", "step_to", "count", "n_alive", "fraction", "per_step", "per_log_step"]
    births, deaths = lineages.births(), lineages.deaths()
    both = deaths.copy()
    for column in ("count", "n_alive", "per_step", "per_log_step"):
        both[column] = births[column] + deaths[column]
    both["fraction"] = both["count"] / both["n_alive"]
    for kind, expected in (("birth", births), ("death", deaths), ("both", both)):
        same(table.loc[table["kind"] == kind, alike], expected[alike])
    shares = {"onset_share": case.config.forecast.onset_share}
    shares["phase_two_share"] = case.config.verdicts.phase_two_share
    assert table["phase"].tolist() == [training_phase(s, case.last, **shares) for s in table["step_to"]]
    for row in table[table["kind"] == "death"].to_dict("records"):
        data, init = (floor_of(case, row["hook_name"], row["step_from"], level) for level in ("data", "init"))
        rate = 1 - row["count"] / len(lineages.alive[row["step_from"], row["hook_name"]])
        expected = {
            "match_rate": rate,
            "floor_data": data,
            "floor_init": init,
            "persistence_low": rate / data,
            "persistence_high": rate / init,
            "fraction_beyond_noise": data - rate,
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_single_features_and_classes_are_joined(case):
    classes = classes_of(case)
    single = case["singles"]["single"]
    of = [classes[case.last, h][f] for h, f in zip(single["hook_name"], single["feature"], strict=True)]
    known = [
        f in case.lineages.alive[case.last, h] for h, f in zip(single["hook_name"], single["feature"], strict=True)
    ]
    single["content"] = [one if alive else None for one, alive in zip(of, known, strict=True)]
    same(case.run.table("single"), single)
    content = case["content"]["content"]
    costs = {
        name: single.loc[single["carrier"] & (single["content"] == name), "per_token"] for name in content["content"]
    }
    content["single_load"] = [costs[name].mean() if len(costs[name]) else np.nan for name in content["content"]]
    content["n_single"] = [len(costs[name]) or np.nan for name in content["content"]]
    same(case.run.table("content"), content, rtol=1e-12)


# ------------------------------------------------------------------------------------------------------ claims


HEADLINES = (
    "load.count", "load.mass", "recruitment.container", "forecast.beyond_rate", "survival.entropy", "events.early",
    "features.change", "direction.function_first",
)  # fmt: skip
FIGURES = ("observed", "null", "effect", "low", "high", "p", "n", "detectable")


def says(case: Case, claim_id: str, **expected: Any) -> None:
    """The claim has these figures, and none where nothing is said; its verdict follows from q."""
    row = case.claim(claim_id)
    wanted = {**dict.fromkeys(("null", "effect", "low", "high", "p"), np.nan), **expected}
    found = {name: row[name] for name in wanted}
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-12, nan_ok=True), claim_id
    assert row["headline"] == (claim_id in HEADLINES)
    if claim_id not in HEADLINES:
        assert row["verdict"] == "descriptive"
        assert np.isnan([row["p"], row["q"]]).all()
    elif np.isnan(row["p"]):
        assert (row["verdict"], np.isnan(row["q"])) == ("not testable", True)
    else:
        assert row["verdict"] == ("beyond" if row["q"] <= case.config.verdicts.level else "within")


def beside(observed: float, draws: Any) -> dict[str, float]:
    """Effect of a value beside draws, with their spread around it."""
    draws = np.asarray(draws, dtype=float)
    low, high = np.quantile(draws - draws.mean(), [0.025, 0.975])
    effect = observed - draws.mean()
    return {"observed": observed, "null": draws.mean(), "effect": effect, "low": effect - high, "high": effect - low}


def test_every_claim_is_looked_at_here(case):
    untested = {f"load.{kind}" for kind in ("count", "mass")} - {
        f"load.{kind}" for kind in case.config.control_sets.controls
    }
    wanted = {*HEADLINES} - untested
    wanted |= {"carriers.chance", "carriers.frozen", "carriers.present_at_onset", "recruitment.depth"}
    wanted |= {f"features.change.{a}_{b}" for a, b in zip(case.steps, case.steps[1:], strict=False)}
    wanted |= {f"load.{kind}" for kind in case.run.table("load_summary")["kind"]}
    parts = set(case.run.table("ablation_parts")["part"]) - {"joint", *HOOKS}
    wanted |= {f"load.joint_against.{part.replace(' ', '_')}" for part in parts} | {"load.regression", "single.roles"}
    wanted |= {"content.infrastructure", "content.legible"}
    claims = case.run.claims
    assert set(claims["id"]) == wanted
    assert claims["claim"].is_unique
    tested = set(case.run.table("load_summary")["kind"]) & {"count", "mass"}
    headlines = [name for name in HEADLINES if not name.startswith("load.") or name[5:] in tested]
    assert claims.loc[claims["headline"], "id"].tolist() == [
        *(f"load.{kind}" for kind in case.run.table("load_summary")["kind"] if kind in tested),
        *(name for name in headlines if not name.startswith("load.")),
    ]
    assert (claims["sentence"] != "").tolist() == claims["headline"].tolist()


def test_headline_claims_are_controlled_together(case):
    claims = case.run.claims
    tested = claims[claims["p"].notna()]
    p = tested["p"].to_numpy()
    order = np.argsort(p)
    adjusted = np.minimum.accumulate((p[order] * len(p) / np.arange(1, len(p) + 1))[::-1])[::-1]
    np.testing.assert_allclose(tested["q"].to_numpy()[order], np.minimum(adjusted, 1))


def test_claims_on_the_number_of_carriers(case):
    nulls = case["noise"]["nulls"]
    n, count = sum(len(case.lineages.alive[case.last, h]) for h in HOOKS), len(case.carriers)
    for name, null in (("chance", "unrelated"), ("frozen", "frozen")):
        draws = nulls.loc[nulls["null"] == null, "carriers"]
        says(case, f"carriers.{name}", n=n, **beside(count, draws))


def test_the_claim_on_carriers_at_the_onset(case):
    onset = case.config.forecast.onset
    onset = onset_step(case.steps, onset_share=case.config.forecast.onset_share) if onset is None else onset
    table = case.lineages.to_dataframe()
    there, end = (set(table.loc[table["step"] == step, "lineage"]) for step in (onset, case.last))
    carriers = set(case.carriers.lineages.tolist())
    observed, null = len(carriers & there) / len(carriers), len(end & there) / len(end)
    figures = {"observed": observed, "null": null, "effect": observed - null}
    says(case, "carriers.present_at_onset", n=len(carriers), **figures)
    assert f"step {onset};" in case.claim("carriers.present_at_onset")["note"]


def test_the_claim_on_early_transitions(case):
    """Two hook points have no spread to test by; the figures are there."""
    both = case.run.table("events").query("kind == 'both'")
    early = both["step_to"] <= max(case.config.verdicts.early_share * case.last, case.steps[1])
    assert 0 < early.sum() < len(early)
    mean = {when: both[inside].groupby("hook_name")["fraction"].mean() for when, inside in ((1, early), (0, ~early))}
    observed, null = mean[1].mean(), mean[0].mean()
    says(case, "events.early", observed=observed, null=null, effect=observed - null, n=2)


def test_claims_on_change_between_checkpoints(case):
    level = "init" if case.config.sae.init == "independent" else "data"
    rates, floors = {}, {}
    for start, end in zip(case.steps, case.steps[1:], strict=False):
        deaths = case.lineages.deaths().query("step_from == @start").set_index("hook_name")
        rates[start] = {h: 1 - deaths["fraction"][h] for h in HOOKS}
        floors[start] = {h: floor_of(case, h, start, level) for h in HOOKS}
        rate, floor = (np.mean(list(of[start].values())) for of in (rates, floors))
        figures = {"observed": 1 - rate, "null": 1 - floor, "effect": floor - rate}
        says(case, f"features.change.{start}_{end}", n=2, **figures)
    rate, floor = (np.mean([list(one.values()) for one in of.values()]) for of in (rates, floors))
    says(case, "features.change", observed=1 - rate, null=1 - floor, effect=floor - rate, n=2)


def test_the_claim_on_roles_draws_from_the_studys_seed(case):
    verdicts, rng = case.config.verdicts, np.random.default_rng(case.seed)
    single = case.run.table("single")
    single = single[single["sampled"] & single["role"].isin(["root", "mid", "leaf"])].dropna(subset=["per_firing"])
    rank, layer = single["per_firing"].rank().to_numpy(), single["hook_name"].to_numpy()

    def epsilon(roles: Any) -> float:
        means = pd.Series(rank).groupby(roles).transform("mean").to_numpy()
        return float(np.square(means - rank.mean()).sum() / np.square(rank - rank.mean()).sum())

    draws = []
    for _ in range(verdicts.null_draws):
        roles = single["role"].to_numpy(dtype=object).copy()
        for h in sorted(HOOKS):
            roles[layer == h] = rng.permutation(roles[layer == h])
        draws.append(epsilon(roles))
    observed = epsilon(single["role"].to_numpy())
    assert observed == pytest.approx(lh.lifehistory.compare_roles(single)["epsilon_squared"])
    says(case, "single.roles", n=len(single), **beside(observed, draws))


def test_claims_on_loads_are_the_loads(case):
    summary = case.run.table("load_summary")
    for row in summary.to_dict("records"):
        claim_id, tested = f"load.{row['kind']}", row["kind"] in ("count", "mass")
        if row["n_draws"] == 0:
            says(case, claim_id, observed=row["delta_ce"], n=row["n_equals"])
            continue
        figures = {"observed": row["carriers"], "null": row["control_mean"], "low": row["low"], "high": row["high"]}
        figures |= {"effect": row["carriers"] - row["control_mean"], "p": row["p"] if tested else np.nan}
        says(case, claim_id, n=row["n_equals"], detectable=row["detectable"], **figures)
    cost = case.run.table("ablation_parts").set_index("part")["delta_ce"]
    n = sum(map(len, case.carriers.at(case.last).values()))
    for part in set(cost.index) - {"joint", *HOOKS}:
        name = f"load.joint_against.{part.replace(' ', '_')}"
        says(case, name, observed=cost["joint"], null=cost[part], effect=cost["joint"] - cost[part], n=n)
    line = case.run.table("ablation_regression").set_index("term").loc["carriers"]
    figures = {"observed": line["coefficient"], "effect": line["coefficient"], "low": line["low"], "high": line["high"]}
    says(case, "load.regression", null=0.0, n=case.config.sampling.regression_sets, **figures)


def test_claims_on_recruitment_are_of_the_last_checkpoint(case):
    dag = case.run.table("dag").query("step == @case.last").set_index("orientation")
    for orientation in ORIENTATIONS:
        row = dag.loc[orientation]
        effect, null = row["recruited"] - row["null_mean"], row["null_mean"]
        figures = {"observed": row["recruited"], "null": null, "effect": effect, "n": row["n_carriers"]}
        figures |= {"low": effect + null - row["null_high"], "high": effect + null - row["null_low"]}
        says(case, f"recruitment.{orientation}", p=row["p"] if orientation == "container" else np.nan, **figures)


def test_the_claim_on_the_forecast(case):
    table, gain = case.run.table("forecast").set_index("predictor"), case.run.table("forecast_gain").iloc[0]
    own, rate = table.loc["rate, layer, entropy, containment, strength", "auc"], table.loc["rate and layer", "auc"]
    assert gain["gain"] == pytest.approx(own - rate)
    figures = {"observed": own, "null": rate, "effect": gain["gain"], "low": gain["low"], "high": gain["high"]}
    says(case, "forecast.beyond_rate", p=gain["p"], n=gain["n"], **figures)


def test_the_claim_on_function_and_direction(case):
    table = case.run.table("direction_by_hook")
    total = table[table["step"] < case.last].groupby("step")["n"].sum()
    step = total[total >= case.config.verdicts.min_lineages].index[0]
    level = "init" if case.config.sae.init == "independent" else "data"
    noise = case.run.table("direction_noise")
    noise = noise[noise["level"] == level].set_index("hook_name")
    here = table[table["step"] == step].set_index("hook_name")
    gap, floor = (one["s_fun"] - one["s_dir_aligned"] for one in (here, noise))
    figures = {"observed": gap.mean(), "null": floor.mean(), "effect": (gap - floor).mean(), "n": 2}
    says(case, "direction.function_first", **figures)


def test_the_claim_on_survival(case):
    row = case.run.table("survival_at_rate").iloc[0]
    figures = {name: row[name] for name in ("low", "high", "p", "n", "detectable")}
    says(case, "survival.entropy", observed=row["difference"], null=0.0, effect=row["difference"], **figures)


def test_claims_on_content(case):
    for row in case.run.table("content").to_dict("records"):
        claim_id, n = f"content.{row['content']}", row["n_carriers"]
        if row["null_draws"] == 0:
            says(case, claim_id, observed=row["joint_load"], n=n)
            continue
        compared, null = row["compared_load"], row["null_load_mean"]
        bounds = {"low": compared - row["null_load_high"], "high": compared - row["null_load_low"]}
        says(case, claim_id, observed=compared, null=null, effect=compared - null, n=n, **bounds)


def test_published_figures_are_found_by_the_ids_of_claims(case):
    tables = {name: case.run.table(name) for name in case.run.tables if name != "published"}
    reworded = tables["claims"].assign(claim="something else", note="")
    share = case.config.verdicts.early_share
    changed = {**tables, "claims": reworded.iloc[::-1]}
    expected = published_table(changed, case.lineages, case.carriers, early_share=share)
    same(case.run.table("published"), expected)
    ours = expected["ours"].tolist()
    assert ours[0] == str(len(case.carriers))
    events = case.run.table("events").query("kind == 'both'")
    early = events["step_to"] <= max(case.config.verdicts.early_share * case.last, case.steps[1])
    rates = []
    for part in (events[early], events[~early]):
        transitions = part.drop_duplicates("step_from")
        rates.append(part["count"].sum() / (transitions["step_to"] - transitions["step_from"]).sum())
    assert ours[1] == f"{rates[0] / rates[1]:.2f}x"
    assert ours[2] == f"{100 * case.claim('carriers.present_at_onset')['observed']:.2f} %"
    assert ours[4] == f"{case.cost(case.carriers.at(case.last)):.2f}"
    assert ours[5] == f"epsilon squared {case.claim('single.roles')['observed']:.2f}"
    assert ours[8] == f"{100 * case.claim('recruitment.container')['observed']:.2f} %"


# ----------------------------------------------------------------------------------------------- configuration


def test_the_stored_configuration_is_whole(case):
    stored = case.run.study["config"]
    assert {(section, name) for section, values in stored.items() for name in values} == {
        (section, one.name) for section, one in options(LifeHistoryConfig)
    }
    assert from_sections(LifeHistoryConfig, stored) == case.config
    assert case.run.study["seed"] == case.seed
    assert case.run.study["hook_names"] == list(HOOKS)
    assert case.run.study["steps"] == list(case.steps)


def test_no_setting_of_the_trained_run_is_at_its_default():
    fields = {one.name: one.default for _, one in options(LifeHistoryConfig)}
    assert {name for name in fields if TRAINED.get(name, fields[name]) == fields[name]} == {"onset"}


TRAININGS = {
    *(f"saes/step{step}" for step in STEPS),
    *(f"replicates/{name}/step{step}" for name in ("data1", "init1") for step in (128, 4096)),
    *(f"replicates/warm{i}/step4096" for i in (1, 2)),
}
PROFILES = {f"profiles/step{step}" for step in STEPS}
LOADS = {"load/mass", "load/count", "load/norm"}
EQUALS = {"recruitment", "content", "sweeps", "forecasts", "calibration", *LOADS}  # a section stands whole
FORECAST = {"forecasts", "calibration"}
RULE = {"noise", "recruitment", "singles", "content", "sweeps", "forecasts", "calibration"}
# Every setting, another value, and the leftmost stages that it decides. What needs these follows; nothing else does.
DECIDES: dict[str, tuple[Any, set[str]]] = {
    "d_sae": (32, TRAININGS),
    "k": (6, TRAININGS),
    "training_tokens": (1900, TRAININGS),
    "init": ("shared", TRAININGS - {f"replicates/warm{i}/step4096" for i in (1, 2)}),
    "firing_threshold": (0.1, PROFILES),
    "min_rate": (0.004, {"lineages", "graphs", "sweeps"}),
    "min_count": (210, {"lineages", "graphs", "sweeps"}),
    "min_similarity": (0.5, {"lineages", "sweeps"}),
    "method": ("gated", {"lineages", "sweeps"}),
    "transformed": (None, {"lineages", "sweeps"}),
    "max_gap": (0, {"lineages", "sweeps"}),
    "min_snapshots": (2, RULE),
    "min_share": (0.5, RULE),
    "consecutive": (True, RULE),
    "alive_at_end": (True, RULE),
    "min_containment": (0.8, {"graphs", "sweeps", "forecasts"}),
    "min_firings": (100, {"graphs", "sweeps", "forecasts"}),
    "min_lift": (2.0, {"graphs", "sweeps", "forecasts"}),
    "max_p": (1e-5, {"graphs", "sweeps", "forecasts"}),
    "noise_steps": ((1024, 4096), {"profiles/step128", "profiles/step1024", "noise"}),
    "n_frozen": (3, {"profiles/step4096", "noise"}),
    "frozen_draws": (90, {"noise"}),
    "unrelated_draws": (4, {"noise"}),
    "controls": (("mass", "count", "norm", "rate"), {"tables"}),
    "n_draws": (5, {"recruitment", "forecasts", "calibration", "load/mass", "load/count"}),
    "n_described": (5, {*LOADS}),
    "n_rewired": (4, {"recruitment"}),
    "block": (5, EQUALS),
    "rate_block": (6, EQUALS),
    "caliper": (0.5, EQUALS),
    "max_unmatched": (0.2, EQUALS),
    "max_smd": (1.0, EQUALS),
    "load_tokens": (500, PROFILES),
    "singles_per_role": (4, {"singles"}),
    "single_carriers": (9, {"singles"}),
    "regression_sets": (8, {"singles"}),
    "regression_share": (0.3, {"singles"}),
    "content_draws": (5, {"content"}),
    "contexts": (3, {"content"}),
    "window": (8, {"content"}),
    "similarities": ((0.2,), {"sweeps"}),
    "rates": ((0.1,), {"sweeps"}),
    "containments": ((0.7,), {"sweeps"}),
    "lifts": ((4.0,), {"sweeps"}),
    "edge_ps": ((0.1,), {"sweeps"}),
    "calipers": ((1.0,), {"sweeps"}),
    "frequent_ids": (10, {"sweeps"}),
    "onset": (128, FORECAST),
    "onset_share": (0.1, FORECAST),
    "min_positives": (5, {"forecasts"}),
    "n_folds": (4, {"forecasts"}),
    "n_repeats": (4, {"forecasts"}),
    "n_permutations": (7, {"forecasts"}),
    "inverse_penalty": (0.4, {"forecasts"}),
    "n_groups": (5, {"forecasts"}),
    "level": (0.2, {*LOADS, "calibration"}),
    "null_draws": (130, {"forecasts", "singles"}),
    "early_share": (0.1, {"tables"}),
    "min_lineages": (5, {"tables"}),
    "min_mass_share": (0.4, {"content"}),
    "phase_two_share": (0.5, {"tables"}),
    "min_role_features": (4, {"tables"}),
    "worlds": (4, {"calibration"}),
}


def planned(**changes: Any) -> dict[str, Planned]:
    study = trained_study(**changes)
    keys = {split: tokens.key for split, tokens in study.texts().items()}
    return {one.stage.name: one for one in plan(study.stages(), None, study.series, keys, threads=1)}


def all_that_need(names: set[str], stages: dict[str, Planned]) -> set[str]:
    found = set(names)
    for name, one in stages.items():  # each stands after those that it needs
        if found & set(one.stage.needs):
            found.add(name)
    return found


@pytest.fixture(scope="module")
def unchanged() -> dict[str, Planned]:
    return planned()


def test_every_setting_is_in_the_table():
    assert set(DECIDES) == {one.name for _, one in options(LifeHistoryConfig)}


@pytest.mark.parametrize("name", DECIDES)
def test_a_setting_decides_its_stages_and_what_needs_them(unchanged, name: str):
    value, leftmost = DECIDES[name]
    changed = planned(**{name: value})
    kept = unchanged.keys() & changed.keys()
    differing = {one for one in kept if unchanged[one].key != changed[one].key}
    assert differing == all_that_need(leftmost, unchanged) & kept
    for one in leftmost & kept:
        assert unchanged[one].decided_by["params"] != changed[one].decided_by["params"]
    new = changed.keys() - unchanged.keys()
    assert bool(new) == (name in ("noise_steps", "n_frozen", "controls", "init"))


def test_the_seed_decides_all_that_draws(unchanged):
    changed = planned(seed=SEED + 1)
    differing = {name for name in unchanged if unchanged[name].key != changed[name].key}
    assert differing == all_that_need(TRAININGS, unchanged)
    own = {name for name in unchanged if unchanged[name].decided_by["params"] != changed[name].decided_by["params"]}
    assert own == {*TRAININGS, "noise", "recruitment", "singles", *LOADS, "content", "sweeps", "forecasts", "tables",
                   "calibration"}  # fmt: skip


def test_each_stage_names_the_checkpoints_and_texts_it_reads(unchanged):
    for name, one in unchanged.items():
        stage, step = one.stage, name.rpartition("/step")[2]
        if stage.group:
            assert stage.group == f"step{step}"
            assert stage.steps == (int(step),)
        else:
            ablates = name in ("singles", "content", *LOADS)
            assert stage.steps == ((4096,) if ablates else ())
        kind = name.partition("/")[0]
        wanted = {"check": (), "saes": ("train",), "replicates": ("train",)}.get(kind, ("test",))
        assert stage.texts == wanted


def test_every_control_kind_has_a_stream_of_its_own():
    streams = [CONTROLS[kind].stream for kind in CONTROLS]
    assert len(set(streams)) == len(streams)

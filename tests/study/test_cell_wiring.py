"""What a run's tables say is what the public functions say of the stored gates and fits on the same text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pandas as pd
import pytest
import torch
from small_masks import small_masks

import tl_lifehist as lh
from tl_lifehist.metrics import top_row_share
from tl_lifehist.seeds import derive_seed
from tl_lifehist.store import Store
from tl_lifehist.sufficiency.cell import Calibrated, Cell, calibrated_in
from tl_lifehist.sufficiency.cell_geometry import rank_components
from tl_lifehist.sufficiency.cell_versions import Version, versions_of
from tl_lifehist.sufficiency.fitted import Fitted
from tl_lifehist.sufficiency.nulls import rivals
from tl_lifehist.sufficiency.targets import Transfer
from tl_lifehist.suffix import ModelSuffix

HOOK, STEP = "blocks.1.hook_resid_post", 512
TARGETS = ("reconstruction", "fixed_head", "downstream", "transfer")
RANKED = ("top_variance", "tau_ranked", "fisher_diagonal")
N_RANDOM = 5


@dataclass(frozen=True, eq=False)
class Measured:
    """One cell of a run, its masks, its tables, and the evaluation of any gates by the public function."""

    study: lh.SufficiencyStudy
    cell: Cell
    masks: list[Calibrated]
    tables: dict[str, pd.DataFrame]

    @property
    def dictionary(self) -> Any:
        return self.cell.fitted.dictionaries["svd"]

    @property
    def fisher_seed(self) -> int:
        return derive_seed(self.cell.seed, STEP, 3)

    def gates(self, target: str, total: float | None = None) -> torch.Tensor:
        if target in ("empty", "full"):
            return torch.full_like(self.dictionary.code_mean, float(target == "full"))
        wanted = (target, self.cell.masks.penalty_total if total is None else total, self.cell.comparisons.seeds[0])
        (found,) = [m.gates for m in self.masks if (m.target, m.penalty_total, m.seed) == wanted]
        return found

    def evaluate(self, gates: torch.Tensor) -> lh.sufficiency.MaskEvaluation:
        cell = self.cell
        return lh.evaluate_mask(
            cell.model,
            self.dictionary,
            gates,
            cell.test,
            hook_name=HOOK,
            translator=cell.fitted.translator,
            transfer=Transfer(cell.final_model, cell.fitted.alignments["aligned"]),
            seed=cell.seed,
        )

    def scores(self, tokens: lh.TokenSet) -> lh.sufficiency.GateScores:
        return lh.gate_scores(self.cell.model, self.dictionary, tokens, hook_name=HOOK)

    def fisher(self, tokens: lh.TokenSet, **knobs: Any) -> lh.sufficiency.GateFisher:
        knobs = {"hook_name": HOOK, "seed": self.fisher_seed, **knobs}
        return lh.sufficiency.measure_gate_fisher(self.cell.model, self.dictionary, tokens, **knobs)

    def ranking(self, kind: str, tokens: lh.TokenSet) -> torch.Tensor:
        if kind == "top_variance":
            return self.dictionary.component_variance
        return self.scores(tokens).tau if kind == "tau_ranked" else self.fisher(tokens).matrix.diagonal()

    def rival_figures(self, gates: torch.Tensor, scores: torch.Tensor) -> list[lh.sufficiency.MaskEvaluation]:
        """The ranking as hard gates, and as the mask's own gates."""
        made = (
            lh.sufficiency.ranked_mask(scores, float(gates.double().mean())),
            lh.sufficiency.dealt_mask(gates, scores),
        )
        return [self.evaluate(one) for one in made]

    def row(self, table: str, **where: Any) -> pd.Series:
        found = self.tables[table]
        for column, value in where.items():
            found = found[found[column] == value]
        assert len(found) == 1
        return found.iloc[0]


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Measured:
    study = small_masks(
        hook_names=(HOOK,),
        methods=("svd",),
        close_ups=("svd",),
        n_components=8,
        mask_steps=80,
        penalty_total=0.5,
        sweep=(1.0,),
        n_random=N_RANDOM,
        ridge=0.05,
        seed=3,
    )
    store = Store(study.run(tmp_path_factory.mktemp("wiring") / "run").path)
    model, config = study.series.load(STEP), study.config
    cell = Cell(
        STEP,
        HOOK,
        model,
        study.series.load(study.last),
        study.calibration,
        study.test,
        Fitted.from_outputs(store.results(f"fits/step{STEP}"), ModelSuffix(model, HOOK)),
        config.masks,
        config.comparisons,
        study.close_ups,
        config.geometry,
        study.seed,
    )
    scored = store.results(f"scores/step{STEP}")
    masks = list(calibrated_in(store.results(f"masks/step{STEP}")["gates"]))
    return Measured(study, cell, masks, {name: scored[name] for name in scored})


def close(value: float, **knobs: float) -> Any:
    return pytest.approx(value, **{"rel": 2e-4, "abs": 1e-7, "nan_ok": True, **knobs})


@pytest.mark.parametrize("target", ["empty", "full", *TARGETS])
def test_a_masks_figures_are_those_of_its_gates_on_the_test_text(measured, target):
    row, found = measured.row("evaluation", mask=target), measured.evaluate(measured.gates(target))
    names = ("soft_mass", "nmse", "kl", "relative_kl", "lost_fraction", "accuracy_drop", "fixed_head_kl")
    names += ("fixed_head_relative_kl", "transfer_nmse", "transfer_kl", "transfer_relative_kl", "n_scored")
    for name in names:
        assert row[name] == close(getattr(found, name)), name
    assert (row["kl_low"], row["kl_high"]) == close(found.kl_interval)
    assert row["kl_low"] < row["kl"] < row["kl_high"]


@pytest.mark.parametrize("target", ["full", *TARGETS])
def test_enrichments_are_of_the_open_gates_by_scores_on_the_test_text(measured, target):
    row, gates = measured.row("evaluation", mask=target), measured.gates(target)
    scores = measured.scores(measured.cell.test)
    curvature = measured.fisher(measured.cell.test).matrix.diagonal()
    for name, values in (("tau", scores.tau), ("omega", scores.omega), ("curvature", curvature)):
        assert row[f"enrichment_{name}"] == close(lh.enrichment(gates, values)), name
        if target == "downstream":  # so that the closed part would be told apart
            assert abs(lh.enrichment(gates, values) - lh.enrichment(1 - gates, values)) > 0.01


@pytest.mark.parametrize("target", ["empty", "full", *TARGETS])
def test_the_predicted_kl_counts_the_dictionarys_own_error(measured, target):
    gates, text = measured.gates(target), measured.cell.test
    expected = lh.sufficiency.predicted_kl(gates, measured.fisher(text, error_component=True).matrix)
    assert measured.row("evaluation", mask=target)["predicted_kl"] == close(expected)
    assert expected != pytest.approx(lh.sufficiency.predicted_kl(gates, measured.fisher(text).matrix), rel=1e-3)


def test_components_are_scored_on_the_test_text(measured):
    table, test, other = measured.tables["components"], measured.cell.test, measured.cell.calibration
    for tokens, same in ((test, True), (other, False)):
        scores = measured.scores(tokens)
        columns = {"tau": scores.tau, "omega": scores.omega, "omega_debiased": scores.omega_debiased}
        columns["curvature"] = measured.fisher(tokens).matrix.diagonal()
        for name, values in columns.items():
            agree = table[name].to_numpy() == pytest.approx(values.numpy(), rel=1e-3, abs=1e-9)
            assert agree == same, name
    assert table["variance"].to_numpy() == pytest.approx(measured.dictionary.component_variance.numpy(), rel=1e-6)


@pytest.mark.parametrize("kind", RANKED)
def test_a_rankings_rival_is_the_cheaper_of_its_two_masks(measured, kind):
    """Ranked on the calibration text, scored on the test text."""
    own, row = measured.gates("downstream"), measured.row("nulls", kind=kind)
    hard, dealt = measured.rival_figures(own, measured.ranking(kind, measured.cell.calibration))
    assert hard.kl != pytest.approx(dealt.kl, rel=2e-3)
    cheaper = min((hard, dealt), key=lambda found: found.kl)
    for name in ("soft_mass", "kl", "relative_kl", "lost_fraction", "accuracy_drop", "nmse"):
        assert row[name] == close(getattr(cheaper, name)), name


@pytest.mark.parametrize("kind", RANKED[1:])
def test_rankings_do_not_see_the_test_text(measured, kind):
    cell = measured.cell
    ranking = rank_components(cell, measured.dictionary)
    torch.testing.assert_close(ranking[kind], measured.ranking(kind, cell.calibration), rtol=1e-3, atol=1e-9)
    seen = measured.ranking(kind, cell.test)
    assert not torch.equal(ranking[kind].argsort(), seen.argsort())
    assert set(ranking) == set(RANKED)


def test_the_frontiers_variance_mask_is_the_cheaper_of_its_two(measured):
    totals = (measured.cell.masks.penalty_total, *measured.cell.comparisons.sweep)
    assert sorted(measured.tables["frontier"]["penalty_total"]) == sorted(totals)
    apart = []
    for total in totals:
        row, gates = measured.row("frontier", penalty_total=total), measured.gates("downstream", total)
        rival = measured.rival_figures(gates, measured.dictionary.component_variance)
        lost = sorted(found.lost_fraction for found in rival)
        apart.append(lost[1] / lost[0])
        assert row["variance_lost_fraction"] == close(lost[0])
        own = measured.evaluate(gates)
        for name in ("soft_mass", "relative_kl", "lost_fraction", "accuracy_drop"):
            assert row[name] == close(getattr(own, name)), name
        assert row["penalty"] == close(total / len(gates))
        assert row["operating"] == (total == measured.cell.masks.penalty_total)
    assert max(apart) > 1.002


def test_each_participation_ratio_is_of_its_own_fisher(measured):
    cell, row = measured.cell, measured.tables["anisotropy"].iloc[0]
    test = cell.test
    acts = lh.collect_activations(cell.model, HOOK, test)[test.scored[test.valid]]
    own = measured.fisher(test).participation_ratio
    reader, seed = cell.fitted.translator, measured.fisher_seed
    fixed = lh.sufficiency.fixed_head_fisher(reader, measured.dictionary, acts, seed=seed)
    assert row["participation_ratio"] == close(own, rel=1e-3)
    assert row["participation_fixed_head"] == close(fixed.participation_ratio, rel=1e-3)
    assert own != pytest.approx(fixed.participation_ratio, rel=0.05)
    assert own != pytest.approx(measured.fisher(cell.calibration).participation_ratio, rel=0.05)


def random_gates(listed: list[Version]) -> list[torch.Tensor]:
    found = [v for v in listed if v.role == "null" and v.name == "random"]
    assert [v.draw for v in found] == list(range(N_RANDOM))
    return [v.gates for v in found]


def test_random_masks_are_different_orders_of_the_masks_own_gates(measured):
    own = measured.gates("downstream")
    ranking = rank_components(measured.cell, measured.dictionary)
    draws = random_gates(versions_of(measured.cell, "svd", measured.masks, ranking))
    for gates in draws:
        assert torch.equal(gates.sort().values, own.sort().values)
    for a, b in combinations([own, *draws], 2):
        assert not torch.equal(a, b)
    table = measured.tables["nulls"]
    random = table[table["kind"] == "random"].sort_values("draw")
    assert random["kl"].nunique() == N_RANDOM
    for gates, kl, mass in zip(draws, random["kl"], random["soft_mass"], strict=True):
        assert kl == close(measured.evaluate(gates).kl)
        assert mass == close(float(own.double().mean()))
    for other in (replace(measured.cell, step=STEP + 1), replace(measured.cell, hook_name="blocks.1.hook_mlp_out")):
        elsewhere = random_gates(versions_of(other, "svd", measured.masks, ranking))
        assert not all(map(torch.equal, draws, elsewhere))


def test_both_masks_of_a_rival_keep_the_soft_mass(measured):
    own = measured.masks[[m.target for m in measured.masks].index("downstream")].gates
    hard, dealt = rivals(own, measured.dictionary.component_variance)
    for gates in (hard, dealt):
        assert float(gates.mean()) == pytest.approx(float(own.mean()), abs=1e-6)
    assert int(((hard > 0) & (hard < 1)).sum()) <= 1


def test_alignments_have_the_studys_ridge(measured):
    cell = measured.cell
    train = measured.study.train
    acts = lh.collect_activations(cell.model, HOOK, train)
    final_acts = lh.collect_activations(cell.final_model, HOOK, train)
    ridge, own = measured.study.config.heads.ridge, cell.fitted.alignments
    assert own["aligned"].ridge == own["shuffled"].ridge == ridge
    expected = lh.align_checkpoints(acts, final_acts, ridge=ridge).weight
    plain = lh.align_checkpoints(acts, final_acts).weight
    torch.testing.assert_close(own["aligned"].weight, expected, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(expected, plain, rtol=1e-2, atol=1e-4)
    rows = lh.sufficiency.shuffled_rows(acts, seed=derive_seed(cell.seed, STEP, 1))
    expected = lh.align_checkpoints(rows, final_acts, ridge=ridge).weight
    torch.testing.assert_close(own["shuffled"].weight, expected, rtol=1e-3, atol=1e-5)


def test_a_checkpoints_row_is_of_its_clean_runs(measured):
    cell, row = measured.cell, measured.tables["checkpoints"].iloc[0]
    acts = lh.collect_activations(cell.model, HOOK, measured.study.train)
    empty = measured.evaluate(measured.gates("empty"))
    assert row["top_row_share"] == close(top_row_share(acts))
    assert row["n_rows"] == len(acts)
    wanted = {"clean_ce": empty.base_ce, "clean_entropy": empty.entropy, "clean_accuracy": empty.accuracy}
    wanted |= {"empty_kl": empty.kl, "empty_relative_kl": empty.relative_kl, "n_scored": empty.n_scored}
    for name, value in wanted.items():
        assert row[name] == close(value), name

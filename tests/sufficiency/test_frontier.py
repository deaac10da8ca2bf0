"""The sweep of penalties on a toy whose masks are known, and on the pocket model."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from sufficiency.toys import axis_dictionary, sign_toy

import tl_lifehist as lh
from tl_lifehist.errors import InputError
from tl_lifehist.sufficiency.fisher import closed_form_gates
from tl_lifehist.sufficiency.frontier import COLUMNS, contributed_variance, frontier
from tl_lifehist.sufficiency.targets import Reconstruction

STREAM = "blocks.2.hook_resid_post"


def swept(toy, **knobs) -> pd.DataFrame:
    everything = {"batch_size": len(toy.tokens), "steps": 400, **knobs}
    return frontier(toy.model, axis_dictionary(toy.acts), toy.tokens, toy.tokens, hook_name=toy.hook_name, **everything)


def test_a_row_a_price_in_the_order_that_was_given():
    table = swept(sign_toy(1.0), penalty_totals=(1.0, 0.02, 0.1), steps=20)
    assert list(table.columns) == COLUMNS
    assert table["penalty_total"].tolist() == [1.0, 0.02, 0.1]
    assert table["penalty"].tolist() == pytest.approx([1.0 / 20, 0.02 / 20, 0.1 / 20])


def test_h20_keeps_the_read_coordinates_where_the_price_allows():
    table = swept(sign_toy(1.0), penalty_totals=(0.02, 1e3)).set_index("penalty_total")
    kept, dropped = table.loc[0.02], table.loc[1e3]
    assert kept["soft_mass"] == pytest.approx(0.15, abs=2e-3)
    assert kept["lost_fraction"] < 1e-3
    # the three columns of most variance are not read: hard gates keep none that is
    assert kept["variance_lost_fraction"] == pytest.approx(1, abs=2e-3)
    assert kept["variance_lost_fraction"] < 1
    assert dropped["soft_mass"] < 1e-3
    assert dropped["lost_fraction"] == pytest.approx(1, abs=1e-3)
    assert (table["full_lost_fraction"] < 1e-12).all()
    assert lh.sufficiency.onset_of_sufficiency(table, full_lost_fraction=0.0) == pytest.approx(kept["soft_mass"])


def test_a_reconstruction_sweep_is_the_closed_form():
    toy = sign_toy(1.0)
    table = swept(toy, target=Reconstruction(), penalty_totals=(0.2,), steps=1500)
    shares = toy.scales.square() / toy.scales.square().sum()
    wanted = closed_form_gates(shares, penalty=0.01)
    assert table["soft_mass"][0] == pytest.approx(float(wanted.mean()), abs=5e-3)
    assert table["nmse"][0] == pytest.approx(float(((1 - wanted) ** 2 * shares).sum()), abs=1e-3)


def test_figures_are_those_of_single_masks(pocket_model, pocket_tokens):
    acts = lh.collect_activations(pocket_model, STREAM, pocket_tokens)
    dictionary = lh.decompose(acts, n_components=8)
    calibration, test = pocket_tokens[:8], pocket_tokens[8:]
    knobs = {"hook_name": STREAM, "steps": 15, "batch_size": 4}
    table = frontier(pocket_model, dictionary, calibration, test, penalty_totals=(0.03, 0.5), **knobs)
    alone = lh.calibrate_mask(pocket_model, dictionary, calibration, lh.Downstream(), penalty=0.5 / 8, **knobs)
    found = lh.evaluate_mask(pocket_model, dictionary, alone, test, hook_name=STREAM)
    for name in ("soft_mass", "nmse", "kl", "relative_kl", "lost_fraction", "accuracy_drop"):
        assert table[name][1] == pytest.approx(getattr(found, name), rel=1e-3, abs=1e-6)
    assert table["full_lost_fraction"][1] == pytest.approx(found.full.lost_fraction, rel=1e-5)
    heaviest = lh.sufficiency.ranked_mask(dictionary.component_variance, alone.soft_mass)
    beside = lh.evaluate_mask(pocket_model, dictionary, heaviest, test, hook_name=STREAM)
    assert table["variance_lost_fraction"][1] == pytest.approx(beside.lost_fraction, rel=1e-3)
    assert table["soft_mass"][0] > table["soft_mass"][1]


def test_an_sae_is_ranked_by_what_its_features_contribute(pocket_model, pocket_tokens, make_sae):
    acts = lh.collect_activations(pocket_model, STREAM, pocket_tokens)
    sae = make_sae(unit=False)  # its rows of W_dec are not what a unit of code adds
    found = contributed_variance(lh.with_reference(sae, acts, n_codes=len(acts)), STREAM)
    codes = sae.encode(acts)
    for feature in codes.var(dim=0).topk(3).indices.tolist():
        without = codes.clone()
        without[:, feature] = 0
        added = sae.decode(codes) - sae.decode(without)
        assert float(found[feature]) == pytest.approx(float(added.var(dim=0, correction=0).sum()), rel=1e-3)


@pytest.mark.parametrize("penalty_totals", [(), (0.1, 0.0), (-1.0,), (float("nan"),), (float("inf"),)])
def test_penalties_that_are_none_are_refused(penalty_totals):
    with pytest.raises(InputError, match="above 0"):
        swept(sign_toy(), penalty_totals=penalty_totals, steps=1)


def test_the_global_random_state_is_untouched():
    before = torch.random.get_rng_state()
    swept(sign_toy(), penalty_totals=(0.1,), steps=2, batch_size=3)
    assert torch.equal(before, torch.random.get_rng_state())

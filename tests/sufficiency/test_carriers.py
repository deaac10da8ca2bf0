"""Do masks pick the carriers? Planted gates with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import tl_lifehist as lh
from tl_lifehist.dictionaries.protocol import decoder_directions
from tl_lifehist.errors import InputError
from tl_lifehist.sufficiency.carriers import FeatureSubset, carrier_enrichment


def planted_profile(
    n_features: int = 120, n_rows: int = 4000, n_dead: int = 10, *, seed: int = 0
) -> lh.FeatureProfiles:
    """Features of log-spread strength that all fire at the same rate; the last ones never do."""
    rng = np.random.default_rng(seed)
    acts = (rng.random((n_rows, n_features)) < 0.1) * np.geomspace(0.5, 2.0, n_features)
    acts[:, n_features - n_dead :] = 0
    return lh.FeatureProfiles(step=7, hook_name="blocks.0.hook_resid_post", acts=sp.csc_array(acts))


def test_a_mask_of_nothing_but_carriers_is_beyond_its_matched_sets():
    profile = planted_profile()
    carriers = list(range(5, 105, 5))
    gates = torch.full((110,), 0.1)
    gates[carriers] = 0.9
    found = carrier_enrichment(gates, profile, carriers, n_sets=200)
    mean = (20 * 0.9 + 90 * 0.1) / 110
    assert found.enrichment == found.against == pytest.approx(0.9 / mean)
    # two carriers stand among each ten features of a stratum, the first and the last one aside
    assert found.null == pytest.approx(0.9 / mean * 2 / 10 + 0.1 / mean * 8 / 10, rel=0.15)
    assert found.p == pytest.approx(1 / 201)
    assert len(found.draws) == 200


def test_a_mask_that_follows_mass_alone_is_within_them():
    """Heavy features are kept and carriers are the heavy ones: 1 would be beaten, the matched sets are not."""
    profile = planted_profile()
    carriers = list(range(53, 110, 5))  # in the middle of each ten, as a stratum takes them
    gates = torch.linspace(0, 1, 110)
    found = carrier_enrichment(gates, profile, carriers, n_sets=200)
    assert found.enrichment > 1.2
    assert found.null == pytest.approx(found.against, rel=0.05)
    assert found.p > 0.05


def test_a_constant_mask_is_enriched_nowhere():
    found = carrier_enrichment(torch.full((110,), 0.3), planted_profile(), [3, 50, 80], n_sets=50)
    assert found.enrichment == pytest.approx(1)
    assert found.null == pytest.approx(1)
    assert found.p == 1


def test_carriers_that_are_heavier_than_their_equals_cannot_be_tested():
    profile = planted_profile()
    acts = profile.acts.toarray()
    acts[:, 0] *= 1000  # no other feature is nearly as heavy
    heavy = lh.FeatureProfiles(step=7, hook_name=profile.hook_name, acts=sp.csc_array(acts))
    found = carrier_enrichment(torch.rand(110), heavy, [0], n_sets=20)
    assert found.mass_gap > 0.1
    assert np.isnan(found.p)


def test_carriers_without_equals_cannot_be_tested():
    """All of the heaviest features are carriers, so among their neighbours in mass nobody is left to exchange with."""
    found = carrier_enrichment(torch.linspace(0, 1, 110), planted_profile(), list(range(66, 110)), n_sets=20)
    assert found.unmatched_share > 0.8
    assert np.isnan(found.p)
    alone = carrier_enrichment(torch.linspace(0, 1, 110), planted_profile(), list(range(110)), n_sets=20)
    assert alone.unmatched_share == 1
    assert np.isnan(alone.null)
    assert np.isnan(alone.against)


@pytest.mark.parametrize(("n_carriers", "follow_mass"), [(10, False), (40, False), (30, True)])
def test_it_rejects_as_often_as_it_says_where_carriers_are_chosen_by_mass_alone(n_carriers, follow_mass):
    profile, rng = planted_profile(), np.random.default_rng(0)
    mass = np.arange(110) / 110
    weight = np.exp(2 * mass) if follow_mass else np.ones(110)
    p = []
    for seed in range(150):
        carriers = rng.choice(110, n_carriers, replace=False, p=weight / weight.sum())
        gates = np.clip(mass + 0.3 * rng.standard_normal(110), 0, 1) if follow_mass else rng.random(110)
        found = carrier_enrichment(torch.tensor(gates), profile, carriers.tolist(), n_sets=200, seed=seed)
        p.append(found.p)
    known = np.array(p)[np.isfinite(p)]
    assert len(known) > 140
    assert np.mean(known <= 0.05) < 0.11  # three standard errors above
    assert 0.4 < known.mean() < 0.6


def test_bad_input_is_named():
    with pytest.raises(InputError, match="109 alive|110 alive"):
        carrier_enrichment(torch.ones(7), planted_profile(), [3])
    with pytest.raises(InputError, match="No carrier is alive"):
        carrier_enrichment(torch.ones(110), planted_profile(), [115])


@pytest.mark.parametrize("unit", [True, False])
def test_a_subset_of_features_is_a_dictionary(make_sae, unit):
    sae = make_sae(d_in=12, d_sae=20, k=4, unit=unit)
    chosen = [3, 17, 4, 9]
    subset = FeatureSubset(sae, chosen)
    x = torch.randn(30, 12, generator=torch.Generator().manual_seed(0))
    codes = sae.encode(x)
    others = codes.clone()
    others[:, chosen] = 0
    # what the chosen features add, whatever the rest does
    added = sae.decode(codes) - sae.decode(others)
    assert torch.allclose(subset.decode(subset.encode(x)) - subset.decode(torch.zeros(30, 4)), added, atol=1e-5)
    assert torch.allclose(decoder_directions(subset), decoder_directions(sae)[chosen], atol=1e-6)

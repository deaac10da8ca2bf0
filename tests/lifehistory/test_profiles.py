from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted import latent

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import FeatureProfiles, profile_saes


def profiles(codes: np.ndarray, **fields: object) -> FeatureProfiles:
    return FeatureProfiles(0, "h", sp.csr_array(codes), **fields)  # type: ignore[arg-type]


def test_codes_up_to_the_firing_threshold_do_not_fire():
    found = profiles(np.array([[1e-6, 2e-6, 0.0], [1.0, 0.0, 0.0]]))
    assert found.count.tolist() == [1, 1, 0]
    assert found.firing_rate.tolist() == [0.5, 0.5, 0.0]


def test_alive_asks_for_rate_and_count():
    codes = np.zeros((60_000, 3))
    codes[:59, 0] = 1  # 59 firings, but under 0.1 %
    codes[:60, 1] = 1
    codes[:49, 2] = 1
    assert profiles(codes).alive().tolist() == [False, True, False]
    assert profiles(codes).alive(min_rate=0.0, min_count=50).tolist() == [True, True, False]


def test_mass_and_strength_use_the_norm_of_what_a_feature_adds():
    codes = np.array([[2.0, 0.0], [4.0, 1.0]])
    found = profiles(codes, residual_norm=10.0, decoder_norm=np.array([1.0, 5.0]))
    np.testing.assert_allclose(found.mass, [3.0, 2.5])
    np.testing.assert_allclose(found.strength, [0.3, 0.5])


def test_strength_names_what_is_missing():
    with pytest.raises(InputError, match="residual_norm"):
        _ = profiles(np.ones((2, 1))).strength
    with pytest.raises(InputError, match="token_ids"):
        _ = profiles(np.ones((2, 1))).vocabulary_entropy


@given(st.integers(1, 40), st.integers(0, 10_000))
def test_entropy_of_an_even_spread_is_log_count_over_log_rows(n_firing: int, seed: int):
    codes = np.zeros((40, 1))
    codes[np.random.default_rng(seed).permutation(40)[:n_firing], 0] = 3.0
    assert profiles(codes).entropy[0] == pytest.approx(np.log(n_firing) / np.log(40), abs=1e-12)


def test_entropy_against_the_formula_and_nan_for_a_silent_feature():
    codes = latent(500, 4, seed=3)
    codes[:, 3] = 0
    share = codes[:, :3] / codes[:, :3].sum(axis=0)
    expected = -np.sum(np.where(share > 0, share * np.log(np.where(share > 0, share, 1)), 0), axis=0) / np.log(500)
    np.testing.assert_allclose(profiles(codes).entropy[:3], expected, rtol=1e-9)
    assert np.isnan(profiles(codes).entropy[3])


def test_vocabulary_entropy_and_top_share_count_ids_not_positions():
    codes = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    found = profiles(codes, token_ids=np.array([5, 5, 9, 9]))
    np.testing.assert_allclose(found.vocabulary_entropy, [1.0, 1.0])
    one_id = profiles(codes, token_ids=np.array([5, 9, 5, 9]))
    np.testing.assert_allclose(one_id.vocabulary_entropy, [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(one_id.top_token_share(), [0.5, 1.0])


@pytest.mark.parametrize(("codes", "message"), [([[np.nan]], "NaN"), ([[-1.0]], "negative")])
def test_codes_that_are_no_codes_are_refused(codes: list, message: str):
    with pytest.raises(InputError, match=message):
        profiles(np.array(codes))


def test_fields_of_another_length_are_refused():
    with pytest.raises(InputError, match="token_ids has 3"):
        profiles(np.ones((2, 1)), token_ids=np.zeros(3, dtype=int))


def test_profiles_of_a_model_are_the_codes_of_its_valid_rows(pocket_model, pocket_tokens, random_sae):
    hook = "blocks.1.hook_resid_post"
    found = profile_saes(pocket_model, {hook: random_sae}, pocket_tokens, step=7)[hook]
    _, cache = pocket_model.run_with_cache(pocket_tokens.ids)
    rows = cache[hook][pocket_tokens.valid]
    codes = random_sae.encode(rows)
    np.testing.assert_allclose(found.acts.toarray(), torch.where(codes > 1e-6, codes, 0).numpy(), atol=1e-5)
    assert found.step == 7
    assert found.residual_norm == pytest.approx(float(rows.norm(dim=1).mean()), rel=1e-5)
    assert found.token_ids is not None
    assert found.token_ids.tolist() == pocket_tokens.ids[pocket_tokens.valid].tolist()
    expected_norm = (random_sae.decode(torch.eye(64)) - random_sae.decode(torch.zeros(1, 64))).norm(dim=1)
    np.testing.assert_allclose(found.norm, expected_norm.numpy(), rtol=1e-4)


def test_an_sae_of_another_width_is_named(pocket_model, pocket_tokens, make_sae):
    with pytest.raises(InputError, match="width 48 but the model's are 96"):
        profile_saes(pocket_model, {"blocks.1.hook_resid_post": make_sae(d_in=48)}, pocket_tokens)

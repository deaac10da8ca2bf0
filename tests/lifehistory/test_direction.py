from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
import torch

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.direction import COLUMNS, function_and_direction
from tl_lifehist.lifehistory.lineages import Lineages, trace_lineages
from tl_lifehist.lifehistory.profiles import FeatureProfiles

HOOKS = ("h0", "h1")
N, WIDTH, D_MODEL = 2000, 6, 8


@dataclass
class Decoder:
    """A dictionary that scales its codes by 3, so that W_dec is not what decode adds."""

    W_dec: torch.Tensor

    def encode(self, x):
        return x @ self.W_dec.T

    def decode(self, codes):
        return 3 * codes @ self.W_dec + 1.0


@dataclass
class Series:
    saes: dict

    def at(self, step):
        return self.saes[step]


def turned(rows: np.ndarray, angle: float) -> np.ndarray:
    """Each row turned by `angle` in a plane of its own: towards an orthogonal direction of the same length."""
    rng = np.random.default_rng(1)
    other = rng.normal(size=rows.shape)
    other -= (other * rows).sum(1, keepdims=True) / (rows**2).sum(1, keepdims=True) * rows
    other *= np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(other, axis=1, keepdims=True)
    return np.cos(angle) * rows + np.sin(angle) * other


def world(angle: float, *, noise: float = 0.0, seed: int = 0):
    """The same features at both steps, permuted; profiles with added noise and decoder rows turned by `angle`."""
    rng = np.random.default_rng(seed)
    profiles, saes = {}, {0: {}, 100: {}}
    for hook in HOOKS:
        acts = (rng.random((N, WIDTH)) + 0.5) * (rng.random((N, WIDTH)) < 0.1)
        rows = rng.normal(size=(WIDTH, D_MODEL))
        order = rng.permutation(WIDTH)
        later = acts * np.exp(noise * rng.normal(size=acts.shape))
        profiles[0, hook] = FeatureProfiles(0, hook, acts)
        profiles[100, hook] = FeatureProfiles(100, hook, later[:, order])
        saes[0][hook] = Decoder(torch.tensor(rows))
        saes[100][hook] = Decoder(torch.tensor(turned(rows, angle)[order]))
    return profiles, trace_lineages(profiles), Series(saes)


@pytest.mark.parametrize("angle", [0.0, 0.3, 1.2, 2.5])
def test_identical_profiles_have_function_one_and_direction_the_cosine_of_the_angle(angle):
    table = function_and_direction(*world(angle))
    assert list(table.columns) == COLUMNS
    first, last = table.to_dict("records")
    assert (first["step"], first["n"], last["step"]) == (0, 2 * WIDTH, 100)
    assert first["s_fun"] == pytest.approx(1)
    assert first["s_dir"] == pytest.approx(np.cos(angle))
    assert (first["s_dir_low"], first["s_dir_high"]) == pytest.approx((np.cos(angle), np.cos(angle)))
    assert (last["s_fun"], last["s_dir"]) == pytest.approx((1, 1))


def test_function_is_the_mean_pearson_and_the_nulls_the_mean_over_wrong_partners():
    profiles, lineages, saes = world(0.8, noise=0.4)
    row = function_and_direction(profiles, lineages, saes).iloc[0]
    table = lineages.to_dataframe().pivot(index="lineage", columns="step", values="feature").astype(int)
    layer = lineages.summary().set_index("lineage")["hook_name"]
    own_fun, own_dir, other_fun, other_dir = [], [], [], []
    for hook in HOOKS:
        pairs = table[layer == hook]
        a, b = (profiles[s, hook].acts.toarray()[:, pairs[s]] for s in (0, 100))
        u, v = (saes.at(s)[hook].W_dec.numpy()[pairs[s]] for s in (0, 100))
        for i, j in [(i, i) for i in range(WIDTH)] + list(permutations(range(WIDTH), 2)):
            pearson = np.corrcoef(a[:, i], b[:, j])[0, 1]
            cosine = u[i] @ v[j] / np.linalg.norm(u[i]) / np.linalg.norm(v[j])
            (own_fun if i == j else other_fun).append(pearson)
            (own_dir if i == j else other_dir).append(cosine)
    assert row["s_fun"] == pytest.approx(np.mean(own_fun))
    assert 0.5 < row["s_fun"] < 0.99
    assert row["s_dir"] == pytest.approx(np.mean(own_dir))
    assert row["null_fun"] == pytest.approx(np.mean(other_fun), abs=1e-9)
    assert row["null_dir"] == pytest.approx(np.mean(other_dir), abs=1e-9)
    assert row["s_fun_low"] < row["s_fun"] < row["s_fun_high"]


def lineages_of(rows, alive) -> Lineages:
    import pandas as pd

    table = pd.DataFrame(rows, columns=["lineage", "hook_name", "step", "feature", "similarity"])
    return Lineages(table, (0, 100), ("h",), alive)


def test_only_lineages_alive_at_both_checkpoints_count_and_constant_profiles_count_zero():
    acts = np.zeros((100, 3))
    acts[:, 0], acts[:50, 1], acts[:60, 2] = 2.0, 1.0, 1.0
    profiles = {(s, "h"): FeatureProfiles(s, "h", acts) for s in (0, 100)}
    saes = Series({s: {"h": Decoder(torch.eye(3))} for s in (0, 100)})
    rows = [(0, "h", 0, 0, np.nan), (0, "h", 100, 0, 0.9), (1, "h", 0, 1, np.nan), (2, "h", 100, 2, np.nan)]
    alive = {(0, "h"): np.array([0, 1]), (100, "h"): np.array([0, 2])}
    first = function_and_direction(profiles, lineages_of(rows, alive), saes).iloc[0]
    assert (first["n"], first["s_fun"], first["s_dir"]) == (1, 0, 1)
    assert np.isnan(first["null_fun"])  # alone in its layer
    nobody = function_and_direction(profiles, lineages_of(rows[2:], alive), saes).iloc[0]
    assert nobody["n"] == 0
    assert np.isnan(nobody["s_fun"])


def test_the_intervals_repeat_with_their_seed_and_the_global_generators_are_left_alone():
    setting = world(0.5, noise=0.4)
    np.random.seed(5)  # noqa: NPY002
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    a, b, c = (function_and_direction(*setting, seed=s, n_draws=50) for s in (1, 1, 2))
    assert a.equals(b)
    assert not a.equals(c)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_bad_input_is_refused_in_a_sentence():
    profiles, lineages, saes = world(0.1)
    wide = Series({s: {h: Decoder(torch.ones(WIDTH + 1, D_MODEL)) for h in HOOKS} for s in (0, 100)})
    with pytest.raises(InputError, match=f"no SAE with {WIDTH} features"):
        function_and_direction(profiles, lineages, wide)
    with pytest.raises(InputError, match="no profile for step 100"):
        function_and_direction({k: p for k, p in profiles.items() if k[0] == 0}, lineages, saes)
    short = {k: FeatureProfiles(k[0], k[1], p.acts[: N - 1] if k[0] else p.acts) for k, p in profiles.items()}
    with pytest.raises(InputError, match="same tokens"):
        function_and_direction(short, lineages, saes)

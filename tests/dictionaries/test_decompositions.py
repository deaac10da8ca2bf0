"""What each method must find, and what none of them may depend on."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_parts import cosine_match, generator, parts, sources, spread
from torch import Tensor

from tl_lifehist.dictionaries import hals, nmf, semi_nmf
from tl_lifehist.dictionaries.decomposition import Decomposition, decompose, dictionary_overlap
from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.dictionaries.nnls import nnls
from tl_lifehist.dictionaries.rows import BLOCK
from tl_lifehist.metrics import nmse

shapes = st.tuples(st.integers(2, 9), st.integers(12, 60), st.integers(0, 10_000))


def full_nmse(found: Decomposition, x: Tensor) -> float:
    return nmse(x, found.decode(found.encode(x)), found.x_mean)


@given(shapes)
def test_svd_of_full_rank_is_exact(shape: tuple[int, int, int]):
    d, n, seed = shape
    x = spread(n, d, seed)
    found = decompose(x, n_components=d)
    assert full_nmse(found, x) <= 1e-12
    torch.testing.assert_close(found.W_dec @ found.W_dec.T, torch.eye(d, dtype=torch.float64))
    assert (found.method, found.converged, found.n_rows) == ("svd", True, n)


@given(shapes, st.integers(1, 8))
def test_svd_leaves_what_the_first_shares_leave(shape: tuple[int, int, int], k: int):
    d, n, seed = shape
    k = min(k, d)
    x = spread(n, d, seed)
    found = decompose(x, n_components=k)
    squares = torch.linalg.svdvals(x - x.mean(dim=0)).square()
    share = squares / squares.sum()
    assert full_nmse(found, x) == pytest.approx(1 - float(share[:k].sum()), abs=1e-10)
    torch.testing.assert_close(found.component_variance, share[:k], rtol=0, atol=1e-10)
    assert found.explained_variance == pytest.approx(float(share[:k].sum()), abs=1e-10)
    torch.testing.assert_close(found.code_mean, torch.zeros(k, dtype=torch.float64), rtol=0, atol=1e-10)


def test_svd_sees_small_variance_far_from_the_origin():
    x = spread(5000, 12, 4) * 0.01 + torch.linspace(-4000, 9000, 12, dtype=torch.float64)
    x = x.float()
    found = decompose(x, n_components=5)
    exact = decompose(x.double(), n_components=5)
    assert found.W_dec.dtype == torch.float32
    torch.testing.assert_close(found.component_variance.double(), exact.component_variance, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.W_dec.double(), exact.W_dec, rtol=0, atol=1e-3)
    assert found.explained_variance == pytest.approx(exact.explained_variance, abs=1e-5)


def test_blocks_of_drifting_rows_are_merged_exactly():
    x = spread(2 * BLOCK + 700, 6, 3) + torch.arange(2 * BLOCK + 700)[:, None] * torch.linspace(-1e-3, 2e-3, 6)
    found = decompose(x.split(1000), n_components=4)
    squares = torch.linalg.svdvals(x - x.mean(dim=0)).square()
    torch.testing.assert_close(found.component_variance, (squares / squares.sum())[:4], rtol=0, atol=1e-10)
    torch.testing.assert_close(found.x_mean, x.mean(dim=0))


@given(st.integers(3, 8), st.integers(0, 10_000), st.data())
@settings(max_examples=15)
def test_ica_spans_what_svd_spans(d: int, seed: int, data: st.DataObject):
    k = data.draw(st.integers(1, d))
    x = spread(200, d, seed)
    ica = decompose(x, method="ica", n_components=k, seed=seed, max_iter=50)
    svd = decompose(x, n_components=k)
    torch.testing.assert_close(ica.decode(ica.encode(x)), svd.decode(svd.encode(x)), rtol=0, atol=1e-8)
    assert ica.explained_variance == pytest.approx(svd.explained_variance, abs=1e-10)
    codes = ica.encode(x)
    whitened = codes.T @ codes / len(x)
    torch.testing.assert_close(whitened, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-7)
    assert ica.explained_variance == pytest.approx(float(ica.component_variance.sum()), abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ica_finds_planted_sources(dtype: torch.dtype):
    x, mixing = sources(20_000, 6, 9, seed=2)
    found = decompose(x.to(dtype), method="ica", n_components=6)
    assert found.converged
    assert float(cosine_match(found.W_dec, mixing).min()) > 0.995
    svd = decompose(x.to(dtype), n_components=6)
    assert float(cosine_match(svd.W_dec, mixing).min()) < 0.9  # the same planted directions are hidden from SVD


def test_ica_says_when_it_has_not_converged():
    x, _ = sources(2000, 4, 5)
    found = decompose(x, method="ica", n_components=4, max_iter=1)
    assert (found.converged, found.n_iter) == (False, 1)


@pytest.mark.parametrize("offset", ["minimum", "relu"])
def test_nmf_finds_planted_parts(offset: str):
    x, planted = parts(800, 5, 14, seed=3)
    found = decompose(x, method="nmf", n_components=5, offset=offset, max_iter=3000, tol=1e-9)
    assert full_nmse(found, x) < 1e-6
    assert float(cosine_match(found.W_dec, planted).min()) > 0.999
    torch.testing.assert_close(found.W_dec.norm(dim=1), torch.ones(5, dtype=torch.float64))


@given(st.integers(1, 5), st.integers(0, 10_000))
@settings(max_examples=15)
def test_nmf_codes_and_directions_are_not_negative(k: int, seed: int):
    x = spread(120, 7, seed)
    found = decompose(x, method="nmf", n_components=k, seed=seed)
    codes = found.encode(x)
    assert bool((codes >= 0).all())
    assert bool((found.W_dec >= 0).all())
    torch.testing.assert_close(found.b_dec, x.amin(dim=0))
    bound = 1 - decompose(x, n_components=min(k + 1, 7)).explained_variance  # k parts and a constant
    assert full_nmse(found, x) >= bound - 1e-9


def test_nmf_of_relu_ignores_what_is_negative():
    x = spread(500, 10, 1)
    found = decompose(x, method="nmf", n_components=6, offset="relu")
    assert found.offset == "relu"
    assert float(found.b_dec.abs().max()) == 0
    torch.testing.assert_close(found.encode(x), found.encode(x.relu()))
    against_relu = nmse(x.relu(), found.decode(found.encode(x)), x.relu().mean(dim=0))
    assert against_relu < 0.3
    assert found.explained_variance == pytest.approx(1 - full_nmse(found, x), abs=1e-10)


@given(st.integers(1, 6), st.integers(0, 10_000))
@settings(max_examples=15)
def test_semi_nmf_lies_between_its_bounds(k: int, seed: int):
    x = spread(150, 7, seed)
    found = decompose(x, method="semi_nmf", n_components=k, seed=seed)
    assert bool((found.encode(x) >= 0).all())
    best = 1 - decompose(x, n_components=k).explained_variance
    assert best - 1e-10 <= full_nmse(found, x) <= 1


def test_semi_nmf_comes_close_to_its_least_error():
    """Centred rows and k components: as good as an SVD of k - 1, whose codes only need a shift to be positive."""
    x = spread(600, 8, 5)
    found = decompose(x, method="semi_nmf", n_components=4, tol=1e-9, max_iter=2000)
    bounds = [1 - decompose(x, n_components=k).explained_variance for k in (4, 3)]
    assert bounds[0] <= full_nmse(found, x) <= bounds[1] + 0.01


def test_components_of_semi_nmf_do_not_cancel_each_other():
    """Its directions all but lie in k − 1 dimensions, where codes of any size give one and the same reconstruction."""
    x = spread(2000, 12, 2)
    found = decompose(x, method="semi_nmf", n_components=8, tol=1e-5)
    values = torch.linalg.eigvalsh(found.W_dec @ found.W_dec.T)
    assert float(values[0] / values[-1]) < 1e-4
    assert float(found.component_variance.sum()) < 1.5
    assert found.ridge == semi_nmf.RIDGE
    free = nnls(x - found.b_dec, found.W_dec)
    assert float(free.var(dim=0).sum()) > 20 * float(found.encode(x).var(dim=0).sum())


@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize("update", [nmf.non_negative, semi_nmf.least_squares])
@pytest.mark.parametrize("seed", range(4))
def test_no_pass_raises_the_error(update: hals.Update, seed: int, ridge: float):
    x = spread(300, 9, seed)
    x = x - (x.amin(dim=0) if update is nmf.non_negative else x.mean(dim=0))
    start = torch.rand(4, 9, generator=generator(seed), dtype=torch.float64)
    ended = hals.alternate(lambda: x.split(70), start, update, ridge=ridge, max_iter=60, tol=0.0)
    falls = -np.diff(ended.errors)
    assert len(ended.errors) > 10
    assert falls.min() >= -1e-9 * ended.errors[0]
    assert ended.errors[-1] < ended.errors[0]


@pytest.mark.parametrize("method", ["nmf", "semi_nmf"])
def test_the_error_of_a_fit_is_that_of_encode(method: str):
    x = spread(400, 8, 6)
    found = decompose(x, method=method, n_components=4)
    assert found.explained_variance == pytest.approx(1 - full_nmse(found, x), abs=1e-9)
    codes = found.encode(x)
    torch.testing.assert_close(found.code_mean, codes.mean(dim=0))
    share = (
        codes.var(dim=0, unbiased=False)
        * found.W_dec.square().sum(dim=1)
        / (x - x.mean(dim=0)).square().sum(dim=1).mean()
    )
    torch.testing.assert_close(found.component_variance, share)
    hurried = decompose(x, method=method, n_components=4, max_iter=1)
    assert (hurried.converged, hurried.n_iter) == (False, 1)


@pytest.mark.parametrize("method", METHODS)
def test_components_come_in_order_of_their_variance(method: str):
    found = decompose(spread(300, 10, 7), method=method, n_components=6)
    assert bool((found.component_variance.diff() <= 0).all())
    assert found.component_variance.shape == (6,)


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_decides_everything(method: str):
    x = spread(5000, 8, 8)
    torch.rand(3), np.random.rand(3)  # noqa: NPY002 - the global state is what must not matter
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = decompose(x, method=method, n_components=4, seed=5, max_iter=40)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    torch.rand(7)
    again = decompose(x, method=method, n_components=4, seed=5, max_iter=40)
    other = decompose(x, method=method, n_components=4, seed=6, max_iter=40)
    for name in ("W_dec", "b_dec", "code_mean", "code_sample"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(first.code_sample, other.code_sample)
    if method != "svd":
        assert not torch.equal(first.W_dec, other.W_dec)
    assert first.seed == 5


@pytest.mark.parametrize("method", METHODS)
def test_scaling_the_activations_scales_the_reconstruction(method: str):
    x = spread(300, 8, 9)
    plain = decompose(x, method=method, n_components=4)
    scaled = decompose(2.0 * x, method=method, n_components=4)
    assert scaled.explained_variance == pytest.approx(plain.explained_variance, abs=1e-6)
    assert dictionary_overlap(plain, scaled) == pytest.approx(1, abs=1e-6)


def test_an_overlap_of_dictionaries_is_blind_to_sign_order_and_length():
    found = decompose(spread(300, 8, 9), n_components=5)
    order = torch.tensor([3, 0, 4, 1, 2])
    turned = replace(found, W_dec=-2.5 * found.W_dec[order])
    assert dictionary_overlap(found, turned) == pytest.approx(1)
    other = replace(found, W_dec=torch.randn(5, 8, generator=generator(0), dtype=torch.float64))
    unit = [torch.nn.functional.normalize(one.W_dec, dim=1) for one in (found, other)]
    cosine = (unit[0] @ unit[1].T).abs().numpy()
    best = max(cosine[range(5), list(p)].mean() for p in itertools.permutations(range(5)))
    assert dictionary_overlap(found, other) == pytest.approx(best)
    assert dictionary_overlap(found, other) == dictionary_overlap(other, found) < 1
    axes = torch.eye(8, dtype=torch.float64)
    first, second = replace(found, W_dec=axes[:5]), replace(found, W_dec=axes[[0, 1, 6, 7, 5]])
    assert dictionary_overlap(first, second) == pytest.approx(0.4)
    fewer = replace(decompose(spread(300, 8, 9), n_components=2), W_dec=axes[[1, 7]])
    assert dictionary_overlap(first, fewer) == pytest.approx(0.5)

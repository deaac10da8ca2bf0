from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted_parts import generator
from scipy.optimize import nnls as scipy_nnls

from tl_lifehist.dictionaries.nnls import nnls, sweep, violation


def problem(n_rows: int, k: int, d: int, seed: int, *, positive: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator(seed)
    directions = torch.randn(k, d, generator=g, dtype=torch.float64)
    rows = torch.randn(n_rows, d, generator=g, dtype=torch.float64) + 0.5
    return rows, directions.abs() + 0.3 if positive else directions


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 15), st.integers(0, 10_000), st.booleans())
def test_no_row_can_do_better(n_rows: int, k: int, d: int, seed: int, positive: bool):
    rows, directions = problem(n_rows, k, d, seed, positive=positive)
    codes = nnls(rows, directions)
    assert codes.shape == (n_rows, k)
    assert bool((codes >= 0).all())
    for row, code in zip(rows.numpy(), codes, strict=True):
        best = scipy_nnls(directions.numpy().T, row)[1]
        found = np.linalg.norm(row - code.numpy() @ directions.numpy())
        assert found <= best + 1e-7 * np.linalg.norm(row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_correlated_directions_meet_the_optimality_conditions(dtype: torch.dtype):
    g = generator(3)
    directions = torch.rand(60, 80, generator=g, dtype=torch.float64) ** 2 + 2  # almost one direction: hard to separate
    planted = torch.rand(3000, 60, generator=g, dtype=torch.float64) * (torch.rand(3000, 60, generator=g) < 0.5)
    rows = planted @ directions + torch.randn(3000, 80, generator=g, dtype=torch.float64)
    codes = nnls(rows.to(dtype), directions.to(dtype))
    assert codes.dtype == dtype
    rows, directions = rows.to(dtype).double(), directions.to(dtype).double()
    norm = directions.norm(dim=1)
    unit = directions / norm[:, None]
    worst = violation((codes.double() * norm).T, unit @ unit.T, unit @ rows.T).max()
    assert float(worst) < (1e-6 if dtype == torch.float32 else 1e-11)
    for row, code in list(zip(rows.numpy(), codes.double().numpy(), strict=True))[:20]:
        expected = scipy_nnls(directions.numpy().T, row)[0]
        np.testing.assert_allclose(code, expected, atol=(1e-5 if dtype == torch.float32 else 1e-7) * expected.max())


@given(st.integers(1, 10), st.integers(1, 8), st.integers(0, 10_000), st.sampled_from([1e-3, 0.1, 2.0]))
def test_a_ridge_prices_the_energy_of_a_component(k: int, d: int, seed: int, ridge: float):
    rows, directions = problem(6, k, d, seed)
    prices = torch.diag(ridge**0.5 * directions.norm(dim=1))
    padded = torch.cat([rows, torch.zeros(6, k, dtype=torch.float64)], dim=1)
    expected = nnls(padded, torch.cat([directions, prices], dim=1))
    torch.testing.assert_close(nnls(rows, directions, ridge=ridge), expected, rtol=1e-6, atol=1e-8)
    alone = nnls(rows, directions[:1], ridge=ridge) * (1 + ridge)
    torch.testing.assert_close(alone, nnls(rows, directions[:1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_codes_of_a_row_are_its_own(dtype: torch.dtype):
    rows, directions = problem(4200, 20, 24, 1, positive=True)
    rows, directions = rows.to(dtype), directions.to(dtype)
    together = nnls(rows, directions)
    for chosen in (slice(17, 18), slice(100, 131), slice(2040, 2060), slice(4199, 4200)):
        torch.testing.assert_close(nnls(rows[chosen], directions), together[chosen], rtol=1e-6, atol=1e-7)


def test_dependent_absent_and_single_directions():
    rows, directions = problem(50, 4, 6, 2)
    doubled = torch.cat([directions, directions[:1], torch.zeros(1, 6, dtype=torch.float64)])
    codes = nnls(rows, doubled)
    assert float(codes[:, 5].abs().max()) == 0
    once = nnls(rows, directions)
    torch.testing.assert_close(codes @ doubled, once @ directions, rtol=0, atol=1e-6)
    single = nnls(rows, directions[:1])
    expected = (rows @ directions[0] / directions[0].square().sum()).clamp_min(0)
    torch.testing.assert_close(single[:, 0], expected)
    assert nnls(rows[:0], directions).shape == (0, 4)
    assert float(nnls(torch.zeros(2, 6, dtype=torch.float64), directions).abs().max()) == 0


def test_a_sweep_leaves_the_number_of_threads():
    rows, directions = problem(5, 3, 4, 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sweep(torch.ones(3, 5, dtype=torch.float64), directions @ directions.T, directions @ rows.T)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_a_sweep_never_raises_the_error(seed: int, k: int):
    rows, directions = problem(10, k, 9, seed)
    gram, target = directions @ directions.T, directions @ rows.T
    codes = torch.rand(k, 10, generator=generator(seed), dtype=torch.float64)
    before = (rows - codes.T @ directions).square().sum(dim=1)
    for _ in range(4):
        sweep(codes, gram, target)
        after = (rows - codes.T @ directions).square().sum(dim=1)
        assert bool((codes >= 0).all())
        assert bool((after <= before + 1e-9 * before).all())
        before = after

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.errors import InputError
from tl_lifehist.sufficiency.nulls import as_gates, dealt_mask, permuted_mask, ranked_mask

gates_of = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1))
scores_of = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6))


class Mask:
    def __init__(self, gates: torch.Tensor) -> None:
        self.gates = gates


@given(gates=gates_of, seed=st.integers(0, 1000))
def test_a_permuted_mask_holds_the_same_gates(gates: np.ndarray, seed: int):
    found = permuted_mask(torch.from_numpy(gates), seed=seed)
    assert found.dtype == torch.float64
    assert torch.equal(found.sort().values, torch.from_numpy(gates).sort().values)


def test_permuting_deals_every_gate_to_every_component():
    gates = torch.tensor([1.0, 0.5, 0.0, 0.0])
    draws = torch.stack([permuted_mask(gates, seed=s) for s in range(4000)])
    assert draws.mean(dim=0).tolist() == pytest.approx([0.375] * 4, abs=0.03)
    assert torch.equal(permuted_mask(gates, seed=3), permuted_mask(gates, seed=3))


def test_permuting_takes_a_mask_and_leaves_it_and_the_global_generators_alone():
    gates = torch.tensor([0.9, 0.1, 0.4], requires_grad=True)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    found = permuted_mask(Mask(gates), seed=1)
    assert not found.requires_grad
    assert gates.tolist() == pytest.approx([0.9, 0.1, 0.4])
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


@given(scores=scores_of, soft_mass=st.floats(0, 1))
def test_a_ranked_mask_has_the_soft_mass_asked_for_on_the_highest_scores(scores: np.ndarray, soft_mass: float):
    found = ranked_mask(torch.from_numpy(scores), soft_mass)
    assert float(found.mean()) == pytest.approx(soft_mass, abs=1e-12)
    assert bool(((found >= 0) & (found <= 1)).all())
    assert int(((found > 0) & (found < 1)).sum()) <= 1
    in_order = found.numpy()[np.argsort(-scores, kind="stable")]
    assert (np.diff(in_order) <= 0).all()


@given(scores=hnp.arrays(np.float64, st.integers(2, 30), elements=st.floats(0, 100)), gates=gates_of)
def test_no_mask_of_the_same_mass_holds_more_of_the_scores(scores: np.ndarray, gates: np.ndarray):
    n = min(len(scores), len(gates))
    scores, gates = scores[:n], gates[:n]
    best = ranked_mask(torch.from_numpy(scores), float(gates.mean())).numpy()
    assert best @ scores >= gates @ scores - 1e-9


def test_the_border_gate_holds_the_remainder():
    scores = torch.tensor([0.1, 7.0, 3.0, 5.0])
    assert ranked_mask(scores, 0.55).tolist() == pytest.approx([0, 1, 0.2, 1])
    assert ranked_mask(scores, 0.5).tolist() == [0, 1, 0, 1]
    assert ranked_mask(scores, 0.0).tolist() == [0] * 4
    assert ranked_mask(scores, 1.0).tolist() == [1] * 4
    assert ranked_mask(torch.ones(4), 0.5).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_types_are_raised_and_float64_stays(dtype: torch.dtype):
    expected = torch.promote_types(dtype, torch.float32)
    assert ranked_mask(torch.rand(5).to(dtype), 0.3).dtype == expected
    assert permuted_mask(torch.full((5,), 0.5, dtype=dtype)).dtype == expected


@pytest.mark.parametrize("soft_mass", [-0.01, 1.01, float("nan")])
def test_a_soft_mass_is_a_mean_of_gates(soft_mass: float):
    with pytest.raises(InputError, match="between 0 and 1"):
        ranked_mask(torch.ones(3), soft_mass)


def test_scores_must_be_numbers():
    for scores in (torch.tensor([1.0, float("nan")]), torch.zeros(0)):
        with pytest.raises(InputError, match="Scores to rank by"):
            ranked_mask(scores, 0.5)


def test_gates_must_be_gates():
    for bad in ([0.5, 1.5], [-0.1], [float("nan")]):
        with pytest.raises(InputError, match="between 0 and 1"):
            as_gates(bad)
    for bad in (torch.zeros(2, 2), []):
        with pytest.raises(InputError, match="one value for each component"):
            as_gates(bad)
    assert as_gates([0, 1]).dtype == torch.float32


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30), st.integers(0, 100))
def test_dealt_gates_follow_the_scores_and_keep_their_values(values, seed):
    gates = torch.tensor(values)
    scores = torch.randn(len(values), generator=torch.Generator().manual_seed(seed))
    dealt = dealt_mask(gates, scores)
    assert torch.equal(dealt.sort().values, gates.sort().values)
    order = scores.argsort(descending=True)
    assert bool((dealt[order].diff() <= 0).all())


def test_dealt_gates_need_a_score_each():
    with pytest.raises(InputError, match="scores for 3 gates"):
        dealt_mask(torch.tensor([0.1, 0.2, 0.3]), torch.ones(2))

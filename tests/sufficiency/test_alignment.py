from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sufficiency.toys import LinearDictionary, axis_dictionary, random_dictionary, sign_toy
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.metrics import nmse
from tl_lifehist.sufficiency.alignment import align_checkpoints, align_dictionaries, shuffled_rows, transfer_nmse


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(rows: int = 300, d_source: int = 6, d_final: int = 9, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Source rows away from the origin, and an affine image of them."""
    source = normal(rows, d_source, seed=seed) * torch.linspace(0.1, 5, d_source, dtype=torch.float64) - 4
    return source, source @ normal(d_source, d_final, seed=seed + 1) + 7


def principal(acts: Tensor, n_components: int) -> LinearDictionary:
    directions = torch.linalg.svd(acts - acts.mean(0), full_matrices=False).Vh[:n_components]
    return LinearDictionary(directions.T.contiguous(), directions, acts)


def rotation(d: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(d, d, seed=seed)).Q


@pytest.mark.parametrize(("d_source", "d_final"), [(6, 9), (9, 6), (5, 5)])
def test_an_affine_relation_is_found_exactly(d_source: int, d_final: int):
    source, final = moved(d_source=d_source, d_final=d_final)
    alignment = align_checkpoints(source[:200], final[:200], ridge=0)
    assert alignment.weight.shape == (d_source, d_final)
    assert transfer_nmse(alignment, source[200:], final[200:]) < 1e-12
    assert (alignment.kind, alignment.ridge, alignment.n_rows) == ("ridge", 0, 200)
    assert torch.allclose(alignment.mean_final, final[:200].mean(0))


def test_the_default_penalty_costs_little_and_a_large_one_gives_the_mean():
    source, final = moved()
    assert 0 < transfer_nmse(align_checkpoints(source, final), source, final) < 1e-3
    heavy = align_checkpoints(source, final, ridge=1e9)
    assert transfer_nmse(heavy, source, final) == pytest.approx(1, abs=1e-6)
    assert torch.allclose(heavy(source), final.mean(0).expand_as(final), atol=1e-4)


@pytest.mark.parametrize("ridge", [1e-3, 0.3, 20.0])
def test_the_penalty_is_relative_to_the_mean_variance_of_the_source(ridge: float):
    source, final = moved()
    final = final + normal(*final.shape, seed=5)
    x, y = source - source.mean(0), final - final.mean(0)
    covariance = x.T @ x / len(x)
    expected = torch.linalg.inv(covariance + ridge * covariance.trace() / 6 * torch.eye(6).double()) @ x.T @ y / len(x)
    alignment = align_checkpoints(source, final, ridge=ridge)
    assert torch.allclose(alignment.weight, expected, rtol=1e-9)
    assert torch.allclose(alignment(source.mean(0, keepdim=True)), final.mean(0), rtol=1e-9)


@given(scale=st.sampled_from([1e-3, 7.0, 1e4]), shift=st.floats(-50, 50), seed=st.integers(0, 50))
def test_scale_and_shift_of_the_source_do_not_change_what_is_transferred(scale: float, shift: float, seed: int):
    source, final = moved(60, seed=seed)
    noisy = final + normal(*final.shape, seed=seed + 9)
    base = align_checkpoints(source, noisy, ridge=0.1)
    other = align_checkpoints(source * scale + shift, noisy, ridge=0.1)
    assert torch.allclose(base(source), other(source * scale + shift), rtol=1e-6, atol=1e-6)


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch):
    source, final = moved()
    whole = align_checkpoints(source, final)
    monkeypatch.setattr("tl_lifehist.sufficiency.alignment._BLOCK", 7)
    assert torch.allclose(align_checkpoints(source, final).weight, whole.weight, rtol=1e-10)


def test_least_squares_without_a_unique_answer_takes_the_smallest():
    """The last two columns are the first, and one never varies."""
    source, final = moved(d_source=4)
    wide = torch.cat([source, source[:, :2], torch.full((len(source), 1), 3.0)], dim=1)
    alignment = align_checkpoints(wide[:200], final[:200], ridge=0)
    assert transfer_nmse(alignment, wide[200:], final[200:]) < 1e-12
    assert torch.allclose(alignment.weight[:2], alignment.weight[4:6])
    assert alignment.weight[6].abs().max() < 1e-10


def test_least_squares_survives_a_badly_conditioned_source():
    """Directions a millionfold apart: in their covariance the small one is lost to rounding."""
    source, final = moved(d_source=3)
    scaled = source * torch.tensor([1e4, 1.0, 1e-4], dtype=torch.float64)
    assert transfer_nmse(align_checkpoints(scaled[:200], final[:200], ridge=0), scaled[200:], final[200:]) < 1e-12


def test_a_source_that_never_varies_transfers_the_mean():
    final = normal(40, 3)
    alignment = align_checkpoints(torch.ones(40, 5).double(), final)
    assert transfer_nmse(alignment, torch.ones(40, 5).double(), final) == pytest.approx(1)
    assert not alignment.weight.any()


@pytest.mark.parametrize(("n_train", "d"), [(400, 12), (1500, 30)])
def test_shuffled_rows_transfer_a_little_worse_than_the_mean(n_train: int, d: int):
    source, final = moved(n_train + 4000, d_source=d, d_final=25)
    found = []
    for seed in range(12):
        alignment = align_checkpoints(shuffled_rows(source[:n_train], seed), final[:n_train], ridge=0)
        found.append(transfer_nmse(alignment, source[n_train:], final[n_train:]) - 1)
    assert np.mean(found) == pytest.approx((d + 1) / n_train, rel=0.2)


def test_shuffling_keeps_the_rows_the_seed_decides_and_the_global_generator_stays():
    acts, state = normal(50, 3), torch.get_rng_state()
    found = shuffled_rows(acts, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found.sort(dim=0).values, acts.sort(dim=0).values)
    assert torch.equal(found, shuffled_rows(acts, seed=4))
    assert not torch.equal(found, shuffled_rows(acts, seed=5))
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, acts.tolist()))


def test_procrustes_finds_a_rotation_and_nothing_else():
    source, _ = moved()
    final = source @ rotation(6) + 2
    alignment = align_checkpoints(source, final, kind="procrustes")
    assert torch.allclose(alignment.weight, rotation(6), atol=1e-10)
    assert transfer_nmse(alignment, source, final) < 1e-20
    doubled = align_checkpoints(source, 2 * final, kind="procrustes")
    assert torch.allclose(doubled.weight.T @ doubled.weight, torch.eye(6).double(), atol=1e-12)
    assert transfer_nmse(doubled, source, 2 * final) == pytest.approx(0.25)
    assert (alignment.kind, alignment.ridge) == ("procrustes", 0)


@given(seed=st.integers(0, 200))
def test_no_rotation_beats_procrustes_and_no_map_least_squares(seed: int):
    source, final = normal(40, 4, seed=seed), normal(40, 4, seed=seed + 1) + 0.5 * normal(40, 4, seed=seed)
    rotated = align_checkpoints(source, final, kind="procrustes")
    best = transfer_nmse(rotated, source, final)
    assert transfer_nmse(align_checkpoints(source, final, ridge=0), source, final) <= best + 1e-12
    x, y = source - source.mean(0), final - final.mean(0)
    assert nmse(y, x @ rotation(4, seed), torch.zeros(4).double()) >= best - 1e-12


def test_the_identity_moves_nothing_and_is_exact_at_the_final_checkpoint():
    source, _ = moved()
    alignment = align_checkpoints(source, source, kind="identity")
    assert torch.equal(alignment(source), source)
    assert transfer_nmse(alignment, source, source) == 0
    shifted = align_checkpoints(source, source + 1, kind="identity")
    assert torch.equal(shifted(source), source)


def test_transfer_of_a_masked_reconstruction_is_measured_about_the_final_mean_of_the_fit():
    source, final = moved()
    alignment = align_checkpoints(source[:150], final[:150], ridge=0)
    rows = source[150:].clone()
    rows[:, 3:] = source[:150, 3:].mean(0)
    expected = (final[150:] - alignment.bias - rows @ alignment.weight).square().sum()
    expected = expected / (final[150:] - final[:150].mean(0)).square().sum()
    assert transfer_nmse(alignment, rows, final[150:]) == pytest.approx(float(expected))
    mean = source[:150].mean(0).expand_as(rows)
    assert transfer_nmse(alignment, mean, final[150:]) == pytest.approx(1, abs=1e-12)


def test_gradients_flow_to_the_rows():
    source, final = moved()
    alignment = align_checkpoints(source, final)
    rows = source[:5].clone().requires_grad_()
    alignment(rows).sum().backward()
    assert torch.allclose(rows.grad, alignment.weight.sum(1).expand(5, -1))
    assert not alignment.weight.requires_grad


@pytest.mark.parametrize(
    ("given_", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
@pytest.mark.parametrize("kind", ["ridge", "procrustes", "identity"])
def test_half_types_are_raised_and_float64_stays(given_: torch.dtype, expected: torch.dtype, kind: str):
    source, final = normal(30, 4).to(given_), normal(30, 4, seed=1).to(given_)
    alignment = align_checkpoints(source, final, kind=kind)
    assert alignment.weight.dtype == alignment.bias.dtype == alignment(source).dtype == expected


# dictionaries


def test_one_dictionary_at_both_ends_gives_the_projection_on_its_span():
    source, _ = moved(d_source=8)
    dictionary = principal(source, 5)
    alignment = align_dictionaries(dictionary, dictionary, source, source)
    assert torch.allclose(alignment(source), dictionary.decode(dictionary.encode(source)))
    missed = nmse(source, dictionary.decode(dictionary.encode(source)), source.mean(0))
    assert transfer_nmse(alignment, source, source) == pytest.approx(missed)
    assert (alignment.kind, alignment.n_rows) == ("dictionary", 300)


def test_turned_directions_are_found_through_their_codes():
    """The final checkpoint holds the same codes along other directions, of another width."""
    toy = sign_toy()
    source = toy.acts
    turn = normal(20, 24, seed=3)
    final = (source - source.mean(0)) @ turn + 5
    dictionary = axis_dictionary(source)
    other = LinearDictionary(torch.linalg.pinv(turn), turn, final)
    alignment = align_dictionaries(dictionary, other, source, final)
    assert torch.allclose(alignment.weight, turn, atol=1e-8)
    assert transfer_nmse(alignment, source, final) < 1e-12


@given(
    order=st.permutations(range(6)),
    scale=hnp.arrays(np.float64, 6, elements=st.sampled_from([-3.0, -0.5, 0.2, 1.0, 8.0])),
    seed=st.integers(0, 30),
)
def test_order_signs_and_scales_of_components_do_not_matter(order: list[int], scale: np.ndarray, seed: int):
    source, final = moved(80, seed=seed)
    a, b = random_dictionary(source, 6, seed=seed), random_dictionary(final, 7, seed=seed + 1)
    factor = torch.from_numpy(scale)
    changed = LinearDictionary((a.W_enc * factor)[:, order], (a.W_dec / factor[:, None])[order], source)
    base, other = align_dictionaries(a, b, source, final), align_dictionaries(changed, b, source, final)
    assert torch.allclose(base.weight, other.weight, rtol=1e-6, atol=1e-8)
    assert torch.allclose(base.bias, other.bias, rtol=1e-6, atol=1e-7)
    back = align_dictionaries(b, a, final, source), align_dictionaries(b, changed, final, source)
    assert torch.allclose(back[0].weight, back[1].weight, rtol=1e-6, atol=1e-8)


def test_a_component_without_a_partner_and_one_that_is_never_used_add_nothing():
    source = sign_toy().acts
    final = source.clone()
    fewer = axis_dictionary(final, [0, 1, 2])
    alignment = align_dictionaries(axis_dictionary(source), fewer, source, final)
    expected = torch.diag(torch.tensor([1.0] * 3 + [0.0] * 17).double())
    assert torch.allclose(alignment.weight, expected, atol=1e-10)
    still = source.clone()
    still[:, 4] = 1.0
    alignment = align_dictionaries(axis_dictionary(still), axis_dictionary(final), still, final)
    assert torch.isfinite(alignment.weight).all()
    assert alignment.weight[4].abs().max() < 1e-10
    assert torch.allclose(alignment.weight[5:, 5:], torch.eye(15).double(), atol=1e-10)


def test_two_components_along_one_direction_do_not_blow_the_map_up():
    """Rounding tells the two directions apart and the codes differ: solved exactly, A would reach a millionfold."""
    source, final = moved(d_source=4, d_final=4)
    dictionary = random_dictionary(source, 4)
    dictionary.W_dec[1] = dictionary.W_dec[0] * (1 + 1e-7 * normal(4))
    alignment = align_dictionaries(dictionary, principal(final, 4), source, final)
    assert alignment.weight.abs().max() < 100


def test_unrelated_codes_transfer_the_mean():
    source = normal(4000, 5)
    final = normal(4000, 5, seed=1)
    alignment = align_dictionaries(principal(source, 5), principal(final, 5), source, final)
    assert transfer_nmse(alignment, source, final) == pytest.approx(1, abs=0.01)


def test_a_noisy_match_is_shrunk_by_its_correlation():
    source = normal(5000, 1)
    final = 2 * source + 3 * normal(5000, 1, seed=1)
    alignment = align_dictionaries(axis_dictionary(source), axis_dictionary(final), source, final)
    assert float(alignment.weight) == pytest.approx(float(align_checkpoints(source, final, ridge=0).weight))


# what is refused


def test_the_two_ends_must_be_the_same_rows():
    source, final = moved()
    message = "300 source rows and 299 final rows: take both activations from the same TokenSet"
    dictionary, other = principal(source, 3), principal(final, 3)
    with pytest.raises(InputError, match=message):
        align_checkpoints(source, final[1:])
    with pytest.raises(InputError, match=message):
        align_dictionaries(dictionary, other, source, final[1:])
    with pytest.raises(InputError, match=message):
        transfer_nmse(align_checkpoints(source, final), source, final[1:])
    with pytest.raises(InputError, match="no rows"):
        align_checkpoints(source[:0], final[:0])


def test_widths_must_fit():
    source, final = moved()
    for kind in ("procrustes", "identity"):
        with pytest.raises(InputError, match=f"kind='{kind}' needs activations of one width, not 6 and 9"):
            align_checkpoints(source, final, kind=kind)
    alignment = align_checkpoints(source, final)
    with pytest.raises(InputError, match="rows are 5 wide but the alignment takes activations of width 6"):
        alignment(source[:, :5])
    with pytest.raises(InputError, match="8 wide but the alignment gives 9"):
        transfer_nmse(alignment, source, final[:, :8])


def test_what_else_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch):
    source, final = moved()
    with pytest.raises(InputError, match="kind='affine' is unknown"):
        align_checkpoints(source, final, kind="affine")
    for ridge in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="ridge="):
            align_checkpoints(source, final, ridge=ridge)
    broken = final.clone()
    broken[3, 2] = float("nan")
    with pytest.raises(InputError, match="final activations hold NaN"):
        align_checkpoints(source, broken)
    monkeypatch.setattr("tl_lifehist.sufficiency.alignment.MAX_COMPONENTS", 4)
    with pytest.raises(InputError, match="has 5 components and at most 4"):
        align_dictionaries(principal(source, 3), principal(final, 5), source, final)

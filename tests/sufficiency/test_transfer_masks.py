"""Masks calibrated for transfer, where the answer is known, and masks in another basis of the same components."""

from __future__ import annotations

import pytest
import torch
from sufficiency.toys import LinearDictionary, axis_dictionary, random_dictionary, sign_toy

import tl_lifehist as lh

ALL = 10_000  # sequences per step: more than any toy has


def transferred(toy, loss: str, penalty: float, **knobs) -> torch.Tensor:
    """Gates of a mask whose final checkpoint is the source itself, with nothing to align."""
    alignment = lh.align_checkpoints(toy.acts, toy.acts, kind="identity")
    target = lh.Transfer(toy.model, alignment, loss=loss)
    return lh.calibrate_mask(
        toy.model,
        axis_dictionary(toy.acts),
        toy.tokens,
        target,
        hook_name=toy.hook_name,
        penalty=penalty,
        batch_size=ALL,
        **knobs,
    ).gates


@pytest.mark.parametrize("penalty", [1e-2, 4e-2])
def test_transfer_to_itself_by_nmse_is_reconstruction(penalty):
    toy = sign_toy(1.0)
    rho = toy.scales.square() / toy.scales.square().sum()
    optimum = (1 - penalty / (2 * rho)).clamp_min(0)
    assert (transferred(toy, "nmse", penalty) - optimum).abs().max() < 0.02


def test_transfer_to_itself_by_kl_keeps_what_the_head_reads():
    gates = transferred(sign_toy(1.0), "kl", 1e-3, steps=400)
    assert set((gates > 0.5).nonzero().flatten().tolist()) == {5, 11, 17}


def test_full_masks_of_svd_and_ica_transfer_alike():
    """Both span the k leading directions, so their full reconstructions are the same rows."""
    generator = torch.Generator().manual_seed(0)
    sources = torch.rand(2000, 8, generator=generator, dtype=torch.float64) - 0.5
    mixing = torch.randn(8, 8, generator=generator, dtype=torch.float64) * 0.8 ** torch.arange(8).double()
    acts = sources @ mixing + 2
    final = torch.tanh(acts @ torch.randn(8, 10, generator=generator, dtype=torch.float64))
    alignment = lh.align_checkpoints(acts[:1000], final[:1000])
    found = []
    for method in ("svd", "ica"):
        dictionary = lh.decompose(acts[:1000], method=method, n_components=5)
        rows = dictionary.decode(dictionary.encode(acts[1000:]))
        found.append(lh.sufficiency.transfer_nmse(alignment, rows, final[1000:]))
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    # what the other three directions hold is missing from both
    assert found[0] > lh.sufficiency.transfer_nmse(alignment, acts[1000:], final[1000:]) + 1e-3


@pytest.mark.parametrize("target", [lh.Downstream(), lh.Reconstruction()], ids=lambda target: target.name)
def test_order_sign_and_scale_of_the_components_do_not_matter(target):
    toy = sign_toy(1.0)
    plain = random_dictionary(toy.acts, 20)
    generator = torch.Generator().manual_seed(4)
    order = torch.randperm(20, generator=generator)
    factor = torch.randn(20, generator=generator, dtype=torch.float64).sign() * torch.linspace(0.2, 7, 20).double()
    other = LinearDictionary(plain.W_enc[:, order] * factor, plain.W_dec[order] / factor[:, None], toy.acts)
    gates = [
        lh.calibrate_mask(
            toy.model,
            dictionary,
            toy.tokens,
            target,
            hook_name=toy.hook_name,
            penalty=1e-2,
            steps=300,
            batch_size=ALL,
        ).gates
        for dictionary in (plain, other)
    ]
    assert gates[0].max() - gates[0].min() > 0.5
    assert torch.allclose(gates[1], gates[0][order], atol=1e-3)


def test_the_final_model_is_left_without_gradients(pocket_series, pocket_model, pocket_tokens):
    name, batch = "blocks.2.hook_resid_post", pocket_tokens[:3]
    source = pocket_series.load(512)
    acts = lh.collect_activations(source, name, batch)
    alignment = lh.align_checkpoints(acts, lh.collect_activations(pocket_model, name, batch))
    asked = [p.requires_grad for p in pocket_model.parameters()]
    pocket_model.requires_grad_(True)
    try:
        lh.calibrate_mask(
            source,
            random_dictionary(acts, 6),
            batch,
            lh.Transfer(pocket_model, alignment, loss="kl"),
            hook_name=name,
            steps=2,
        )
        left = [key for key, p in pocket_model.named_parameters() if p.grad is not None]
        kept = all(p.requires_grad for p in pocket_model.parameters())
    finally:
        for parameter, before in zip(pocket_model.parameters(), asked, strict=True):
            parameter.requires_grad_(before)
            parameter.grad = None
    assert left == []
    assert kept
    assert all(p.grad is None for p in source.parameters())

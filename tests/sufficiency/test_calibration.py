"""Masks with a known optimum, and masks that must not depend on how they are computed."""

from __future__ import annotations

import math

import pytest
import torch
from sufficiency.toys import AttentionToy, axis_dictionary, causal_tokens, padded, random_dictionary, sign_toy

import tl_lifehist as lh
from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.sufficiency.calibration import MaskTask, calibrate_mask, calibrate_masks
from tl_lifehist.sufficiency.clean import CleanRun
from tl_lifehist.sufficiency.gates import temperature
from tl_lifehist.sufficiency.objectives import injected_losses, readout_losses
from tl_lifehist.sufficiency.targets import Downstream, FixedHead, Reconstruction
from tl_lifehist.sufficiency.translator import Translator, fit_translator

ALL = 10_000  # sequences per step: more than any toy has


def calibrated(toy, target, **knobs):
    return calibrate_mask(
        toy.model, axis_dictionary(toy.acts), toy.tokens, target, hook_name=toy.hook_name, batch_size=ALL, **knobs
    )


@pytest.mark.parametrize(("relative_to", "optimum"), [("entropy", 0.99419), ("mean_ablation", 0.99749)])
def test_h20_downstream_mask_keeps_what_the_head_reads(relative_to, optimum):
    toy = sign_toy(1.0)
    gates = calibrated(toy, Downstream(relative_to=relative_to), penalty=1e-3).gates
    read = torch.zeros(20, dtype=torch.bool)
    read[[5, 11, 17]] = True
    assert gates[read].min() > 0.99
    assert gates[~read].max() < 1e-3
    assert (gates[read] - optimum).abs().max() < 2.5e-3


def test_h20_weak_head_has_a_closed_form():
    toy = sign_toy(0.01)
    gates = calibrated(toy, Downstream(relative_to="mean_ablation"), penalty=0.1, steps=300).gates
    assert torch.allclose(gates[[5, 11, 17]], torch.tensor(0.85).double(), atol=0.005)
    evaluation = lh.evaluate_mask(toy.model, axis_dictionary(toy.acts), gates, toy.tokens, hook_name=toy.hook_name)
    assert evaluation.lost_fraction == pytest.approx(0.0225, abs=2e-4)


@pytest.mark.parametrize("penalty", [1e-2, 4e-2])
def test_reconstruction_mask_reaches_the_closed_form(penalty):
    toy = sign_toy(1.0)
    rho = toy.scales.square() / toy.scales.square().sum()
    optimum = (1 - penalty / (2 * rho)).clamp_min(0)
    mask = calibrated(toy, Reconstruction(), penalty=penalty)
    nmse = float(((1 - mask.gates).square() * rho).sum())
    best = float(((1 - optimum).square() * rho).sum())
    assert (mask.gates - optimum).abs().max() < 0.02
    assert mask.soft_mass == pytest.approx(float(optimum.mean()), abs=0.005)
    assert nmse + penalty * float(mask.gates.sum()) == pytest.approx(best + penalty * float(optimum.sum()), abs=1e-4)
    if penalty == 1e-2:
        assert float(optimum.mean()) == pytest.approx(0.660214, abs=1e-6)
        assert best == pytest.approx(0.0318424, abs=1e-6)
        assert int((optimum == 0).sum()) == 2


def test_other_read_coordinates_are_found_too():
    toy = sign_toy(1.4, read=(2, 9), d_model=13, base=0.8, order=16, offset=-1.5)
    gates = calibrated(toy, Downstream(), penalty=2e-3).gates
    assert set((gates > 0.5).nonzero().flatten().tolist()) == {2, 9}


def test_fixed_head_and_downstream_part_ways():
    toy = sign_toy(1.0)
    head = toy.reading_head(range(10))
    translator = Translator(torch.eye(20).double(), torch.zeros(20).double(), head)
    fixed = calibrated(toy, FixedHead(translator), penalty=1e-3, steps=400).gates
    downstream = calibrated(toy, Downstream(), penalty=1e-3, steps=400).gates
    assert set((fixed > 0.5).nonzero().flatten().tolist()) == set(range(10))
    assert set((downstream > 0.5).nonzero().flatten().tolist()) == {5, 11, 17}


def test_a_fixed_heads_loss_is_relative_to_its_own_predictions():
    """Ten signs are read where the model reads three, so the two entropies differ."""
    toy = sign_toy(1.0)
    head = toy.reading_head(range(10), c=2.0)
    translator = Translator(torch.eye(20).double(), torch.zeros(20).double(), head)
    clean = CleanRun(toy.model, toy.hook_name, toy.tokens, ALL)
    basis = MaskBasis.of(axis_dictionary(toy.acts), toy.hook_name)
    logs = head(toy.acts).log_softmax(-1)
    entropy = float(-(logs.exp() * logs).sum(-1).mean())
    assert FixedHead(translator).objective(clean, basis).reference == pytest.approx(entropy, rel=1e-9)
    assert entropy < 0.7 * clean.entropy
    assert Downstream().objective(clean, basis).reference == clean.entropy
    mean = head(toy.acts.mean(0)).log_softmax(-1)
    ablated = float((logs.exp() * (logs - mean)).sum(-1).mean())
    relative = FixedHead(translator, "mean_ablation").objective(clean, basis)
    assert relative.reference == pytest.approx(ablated, rel=1e-9)
    # so the empty mask's loss is the one over the other
    loss = readout_losses([FixedHead(translator).objective(clean, basis)], [torch.zeros(20).double()], torch.arange(32))
    assert float(loss[0]) == pytest.approx(ablated / entropy, rel=1e-9)


def test_an_exact_translator_makes_both_targets_one(pocket_model, pocket_tokens):
    """At the last layer the model's own suffix is a fixed head, so both losses and both masks agree."""
    name, tokens = "blocks.3.hook_resid_post", pocket_tokens[:4]
    acts = lh.collect_activations(pocket_model, name, tokens)
    dictionary = random_dictionary(acts, 12)
    clean = CleanRun(pocket_model, name, tokens, 4)
    exact = Translator(torch.eye(96), torch.zeros(96), clean.suffix.head)
    masks = calibrate_masks(
        pocket_model,
        [MaskTask(dictionary, FixedHead(exact)), MaskTask(dictionary, Downstream())],
        tokens,
        hook_name=name,
        steps=25,
    )
    assert torch.allclose(masks[0].gates, masks[1].gates, atol=1e-4)
    assert masks[0].history["loss"].to_numpy() == pytest.approx(masks[1].history["loss"].to_numpy(), abs=1e-5)


@pytest.mark.parametrize("target", [Reconstruction(), Downstream(), Downstream("mean_ablation"), "fixed"])
@pytest.mark.parametrize(("center_codes", "keep_error"), [(True, False), (False, False), (True, True)])
def test_gradient_against_central_differences(target, center_codes, keep_error):
    toy = AttentionToy()
    tokens = causal_tokens(torch.randint(0, 7, (5, 6), generator=torch.Generator().manual_seed(3)))
    dictionary = random_dictionary(lh.collect_activations(toy, "hook_embed", tokens) * 1.3 + 0.2, 4)
    if target == "fixed":
        weight = torch.randn(5, 5, generator=torch.Generator().manual_seed(1)).double()
        target = FixedHead(Translator(weight, weight[0], lambda rows: rows @ toy.head.detach()))
    clean = CleanRun(toy, "hook_embed", tokens, 3)
    basis = MaskBasis.of(dictionary, "hook_embed", center_codes=center_codes, keep_error=keep_error)
    objective = target.objective(clean, basis)
    every = torch.arange(5)

    def loss(alpha):
        gates = torch.sigmoid(alpha / 0.7)
        if isinstance(target, Reconstruction):
            return objective(gates)
        joint = injected_losses if isinstance(target, Downstream) else readout_losses
        return joint([objective], [gates], every)[0]

    alpha = torch.tensor([0.3, -0.8, 1.1, 0.05], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(alpha), alpha)
    for i in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[i] = 1e-5
        with torch.no_grad():
            measured = (loss(alpha + step) - loss(alpha - step)) / 2e-5
        assert float(slope[i]) == pytest.approx(float(measured), rel=1e-5, abs=1e-9)


def test_masks_calibrated_together_equal_masks_calibrated_alone(pocket_model, pocket_tokens):
    name = "blocks.1.hook_mlp_out"
    acts = lh.collect_activations(pocket_model, name, pocket_tokens)
    tasks = [
        MaskTask(random_dictionary(acts, 9, seed=1), Downstream(), penalty=1e-2),
        MaskTask(random_dictionary(acts, 5, seed=2), Downstream("mean_ablation"), penalty=3e-2),
        MaskTask(random_dictionary(acts, 9, seed=1), Downstream(), penalty=1e-2, seed=1),
        MaskTask(random_dictionary(acts, 9, seed=1), Reconstruction(), penalty=1e-2),
    ]
    together = calibrate_masks(pocket_model, tasks, pocket_tokens, hook_name=name, steps=12, batch_size=3)
    for task, mask in zip(tasks, together, strict=True):
        alone = calibrate_masks(pocket_model, [task], pocket_tokens, hook_name=name, steps=12, batch_size=3)[0]
        assert torch.allclose(alone.gates, mask.gates, atol=2e-4)
    assert not torch.allclose(together[0].gates, together[2].gates, atol=1e-6)


@pytest.mark.parametrize(("n_left", "n_right"), [(4, 0), (0, 4), (2, 3)])
def test_padding_leaves_the_mask_unchanged(n_left, n_right):
    toy = AttentionToy()
    tokens = causal_tokens(torch.randint(0, 7, (6, 5), generator=torch.Generator().manual_seed(9)))
    dictionary = random_dictionary(lh.collect_activations(toy, "hook_mid", tokens), 4)
    wide = padded(tokens, n_left, n_right)
    for target in (Downstream(), Reconstruction()):
        masks = [
            calibrate_mask(toy, dictionary, t, target, hook_name="hook_mid", steps=30, batch_size=2, penalty=0.02)
            for t in (tokens, wide)
        ]
        assert torch.allclose(masks[0].gates, masks[1].gates, atol=1e-9)


def test_the_model_and_the_global_generator_are_left_as_they_were(pocket_model, pocket_tokens):
    name = "blocks.2.hook_resid_post"
    acts = lh.collect_activations(pocket_model, name, pocket_tokens[:3])
    asked = [p.requires_grad for p in pocket_model.parameters()]
    state = torch.random.get_rng_state()
    translator = fit_translator(pocket_model, name, pocket_tokens[:3], steps=3)
    calibrate_mask(
        pocket_model, random_dictionary(acts, 6), pocket_tokens[:3], FixedHead(translator), hook_name=name, steps=3
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [p.requires_grad for p in pocket_model.parameters()] == asked
    assert all(p.grad is None for p in pocket_model.parameters())


def test_a_mask_is_hooks(pocket_model, pocket_tokens):
    name, batch = "blocks.2.hook_mlp_out", pocket_tokens[:2]
    acts = lh.collect_activations(pocket_model, name, batch)
    mask = calibrate_mask(
        pocket_model, random_dictionary(acts, 6), batch, Downstream(), hook_name=name, steps=5, penalty=1e-2
    )
    plain = lh.MaskedReconstruction(name, mask.dictionary, mask.gates)
    with torch.no_grad(), pocket_model.hooks(fwd_hooks=mask.fwd_hooks(batch.valid)):
        ours = pocket_model(batch.ids)
    with torch.no_grad(), pocket_model.hooks(fwd_hooks=plain.fwd_hooks(batch.valid)):
        assert torch.equal(ours, pocket_model(batch.ids))


def test_the_temperature_falls_and_is_held():
    assert temperature(0, 1000) == 1.0
    assert temperature(375, 1000) == pytest.approx(math.sqrt(0.1))
    assert temperature(750, 1000) == temperature(999, 1000) == pytest.approx(0.1)


def test_bad_input(pocket_model, pocket_tokens):
    name = "blocks.2.hook_mlp_out"
    acts = lh.collect_activations(pocket_model, name, pocket_tokens[:2])
    dictionary = random_dictionary(acts, 4)

    def run(relative_to="entropy", **knobs):
        target = Downstream(relative_to)
        return calibrate_mask(pocket_model, dictionary, pocket_tokens[:2], target, hook_name=name, **knobs)

    with pytest.raises(lh.InputError, match="steps=0 must be at least 1"):
        run(steps=0)
    with pytest.raises(lh.InputError, match="negative"):
        run(penalty=-1.0)
    with pytest.raises(lh.InputError, match="relative_to"):
        run("entropie", steps=1)
    unlabelled = lh.TokenSet(pocket_tokens.ids, pocket_tokens.valid, torch.full_like(pocket_tokens.labels, -100))
    with pytest.raises(lh.InputError, match="scored"):
        calibrate_mask(pocket_model, dictionary, unlabelled, Downstream(), hook_name=name, steps=1)


def test_gradients_switched_off_by_the_caller_do_not_matter(pocket_model, pocket_tokens):
    """`torch.set_grad_enabled(False)` is the first line of many notebooks."""
    name = "blocks.2.hook_mlp_out"
    acts = lh.collect_activations(pocket_model, name, pocket_tokens[:2])
    with torch.no_grad():
        translator = fit_translator(pocket_model, name, pocket_tokens[:2], steps=2)
        for target in (Reconstruction(), Downstream(), FixedHead(translator)):
            calibrate_mask(pocket_model, random_dictionary(acts, 4), pocket_tokens[:2], target, hook_name=name, steps=2)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": -1}, "batch_size=-1"),
        ({"penalty": math.inf}, "penalty=inf"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"target": Downstream}, "is no target"),
        ({"target": "downstream"}, "is no target"),
        ({"hook_name": "blocks.1.hook_mlp_in"}, "cannot be used"),
    ],
)
def test_mistakes_are_named(pocket_model, pocket_tokens, knobs, message):
    acts = lh.collect_activations(pocket_model, "blocks.1.hook_mlp_out", pocket_tokens[:2])
    settings = {"hook_name": "blocks.1.hook_mlp_out", "target": Downstream(), "steps": 1, **knobs}
    with pytest.raises(lh.InputError, match=message):
        calibrate_mask(pocket_model, random_dictionary(acts, 4), pocket_tokens[:2], settings.pop("target"), **settings)


def test_an_sae_in_half_precision_is_gated_in_float32(make_sae, pocket_model, pocket_tokens):
    name = "blocks.2.hook_resid_post"
    acts = lh.collect_activations(pocket_model, name, pocket_tokens[:2])
    sae = make_sae(d_in=96, d_sae=32, k=6)
    sae.b_dec.data = acts.mean(0)
    half = lh.with_reference(sae.to(torch.bfloat16), acts)
    mask = calibrate_mask(pocket_model, half, pocket_tokens[:2], Downstream(), hook_name=name, steps=2)
    assert mask.gates.dtype == torch.float32


@pytest.mark.parametrize("center_codes", [True, False])
def test_open_gates_with_the_error_kept_give_the_activation_back(make_sae, pocket_model, pocket_tokens, center_codes):
    name = "blocks.2.hook_resid_post"
    acts = lh.collect_activations(pocket_model, name, pocket_tokens[:2])
    sae = lh.with_reference(make_sae(d_in=96, d_sae=32, k=6), acts)
    knobs = {"hook_name": name, "center_codes": center_codes, "keep_error": True}
    found = lh.evaluate_mask(pocket_model, sae, torch.ones(32), pocket_tokens[:2], **knobs)
    assert found.kl < 1e-6
    assert found.nmse < 1e-10


def test_a_mask_is_evaluated_as_it_was_calibrated(make_sae, pocket_model, pocket_tokens):
    name, tokens = "blocks.2.hook_resid_post", pocket_tokens[:2]
    sae = lh.with_reference(make_sae(d_in=96, d_sae=32, k=6), lh.collect_activations(pocket_model, name, tokens))
    knobs = {"hook_name": name, "steps": 2, "keep_error": True}
    mask = calibrate_mask(pocket_model, sae, tokens, Downstream(), **knobs)
    own = lh.evaluate_mask(pocket_model, sae, mask, tokens, hook_name=name)
    asked = lh.evaluate_mask(pocket_model, sae, mask.gates, tokens, hook_name=name, keep_error=True)
    assert own.kl == asked.kl
    with pytest.raises(lh.InputError, match="was calibrated at"):
        lh.evaluate_mask(pocket_model, sae, mask, tokens, hook_name="blocks.1.hook_resid_post")
    as_list = lh.evaluate_mask(pocket_model, sae, mask.gates.tolist(), tokens, hook_name=name, keep_error=True)
    assert as_list.kl == pytest.approx(own.kl)

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import AxisDictionary, LinearToy, RepairToy, TwiceToy

import tl_lifehist as lh
from tl_lifehist.errors import InputError
from tl_lifehist.tokens import TokenSet

HOOK = "blocks.1.hook_resid_post"


def all_tokens(ids: torch.Tensor) -> TokenSet:
    return TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids.roll(-1, dims=1))


def state_of(model) -> tuple:
    hooks = sum(len(point.fwd_hooks) for point in model.hook_dict.values())
    return hooks, model.training, [(p.requires_grad, p.dtype) for p in model.parameters()]


@given(st.integers(0, 10_000), st.sets(st.integers(0, 4), min_size=1))
def test_the_effect_on_a_linear_model_is_the_closed_form(seed: int, features: set[int]):
    model = LinearToy(seed=seed % 50)
    ids = torch.randint(7, (3, 4), generator=torch.Generator().manual_seed(seed))
    dictionary = AxisDictionary(5, scale=2.5)
    ablation = lh.FeatureAblation({"hook_embed": dictionary}, {"hook_embed": sorted(features)})
    with torch.no_grad():
        clean = model(ids)
        with model.hooks(fwd_hooks=ablation.fwd_hooks()):
            changed = model(ids)
        x = model.embed[ids]
        removed = torch.zeros_like(x)
        chosen = sorted(features)
        removed[..., chosen] = x[..., chosen].clamp_min(0)
        expected = clean - (removed + removed @ model.first) @ model.head
    torch.testing.assert_close(changed, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("unit", [True, False])
def test_a_topk_sae_loses_what_decode_added_whatever_its_row_norms(make_sae, pocket_model, pocket_tokens, unit: bool):
    sae = make_sae(unit=unit)
    features = [1, 5, 17, 40]
    ablation = lh.FeatureAblation({HOOK: sae}, {HOOK: features})
    caught = {}

    def keep(value, hook):
        caught["x"] = value

    with torch.no_grad(), pocket_model.hooks(fwd_hooks=[*ablation.fwd_hooks(pocket_tokens.valid), (HOOK, keep)]):
        pocket_model(pocket_tokens.ids)
    _, cache = pocket_model.run_with_cache(pocket_tokens.ids)
    x = cache[HOOK]
    codes = sae.encode(x)
    without = codes.clone()
    without[..., features] = 0
    contribution = sae.decode(codes) - sae.decode(without)
    expected = torch.where(pocket_tokens.valid[..., None], x - contribution, x)
    torch.testing.assert_close(caught["x"], expected, rtol=1e-4, atol=1e-4)
    assert float(contribution.norm()) > 1
    if not unit:
        naive = codes[..., features] @ sae.W_dec[features]
        assert float((naive - contribution).norm() / contribution.norm()) > 0.3


def test_ablating_nothing_changes_nothing(pocket_model, pocket_tokens, random_sae):
    ablation = lh.FeatureAblation({HOOK: random_sae}, {HOOK: []})
    effect = lh.ablation_effect(pocket_model, ablation, pocket_tokens)
    assert effect.delta_ce == 0
    assert effect.kl == 0
    assert effect.accuracy_drop == 0
    substitute = lh.FeatureAblation({HOOK: random_sae}, {HOOK: []}, form="substitute")
    assert lh.ablation_effect(pocket_model, substitute, pocket_tokens).delta_ce == 0


def test_the_substitute_form_injects_the_reconstruction_without_the_features(pocket_model, pocket_tokens, random_sae):
    substitute = lh.FeatureAblation({HOOK: random_sae}, {HOOK: [3, 9]}, form="substitute")
    caught = {}
    with (
        torch.no_grad(),
        pocket_model.hooks(fwd_hooks=[*substitute.fwd_hooks(), (HOOK, lambda value, hook: caught.update(x=value))]),
    ):
        pocket_model(pocket_tokens.ids)
    _, cache = pocket_model.run_with_cache(pocket_tokens.ids)
    codes = random_sae.encode(cache[HOOK])
    codes[..., [3, 9]] = 0
    torch.testing.assert_close(caught["x"], random_sae.decode(codes), rtol=1e-4, atol=1e-4)


def test_mean_and_resample_use_the_reference(pocket_model, pocket_tokens, random_sae):
    acts = lh.collect_activations(pocket_model, HOOK, pocket_tokens)
    referenced = lh.with_reference(random_sae, acts, n_codes=50, seed=3)
    codes = random_sae.encode(acts)
    torch.testing.assert_close(referenced.code_mean, codes.mean(dim=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(referenced.x_mean, acts.mean(dim=0), rtol=1e-4, atol=1e-5)
    assert referenced.code_sample.shape == (50, 64)
    ablation = lh.FeatureAblation({HOOK: referenced}, {HOOK: [2]}, mode="mean")
    ((_, hook_fn),) = ablation.fwd_hooks()
    changed = hook_fn(acts[None], hook=None)[0]
    expected = acts + (codes[:, 2].mean() - codes[:, [2]]) @ lh.dictionaries.decoder_directions(random_sae, [2])
    torch.testing.assert_close(changed, expected, rtol=1e-4, atol=1e-4)
    resampled = lh.FeatureAblation({HOOK: referenced}, {HOOK: [2]}, mode="resample", seed=5)
    one_hook = resampled.fwd_hooks()[0][1]
    first, second = one_hook(acts[None], hook=None), one_hook(acts[None], hook=None)
    third = resampled.fwd_hooks()[0][1](acts[None], hook=None)
    assert torch.equal(first, second)  # a hook keeps no state
    assert torch.equal(first, third)
    assert not torch.equal(first[0], acts)
    with pytest.raises(InputError, match=r"mode='mean' needs a reference at .*with_reference"):
        lh.FeatureAblation({HOOK: random_sae}, {HOOK: [2]}, mode="mean")


def test_the_stream_that_a_later_layer_sees_is_the_ablated_one(pocket_model, pocket_tokens, make_sae):
    first, second = "blocks.0.hook_resid_post", "blocks.2.hook_resid_post"
    saes = {first: make_sae(seed=1), second: make_sae(seed=2)}
    joint = lh.FeatureAblation(saes, {first: list(range(30)), second: [4]})
    caught = {}

    def after_first(value, hook):
        caught["before second"] = value.clone()

    hooks = dict(joint.fwd_hooks(pocket_tokens.valid))
    with (
        torch.no_grad(),
        pocket_model.hooks(
            fwd_hooks=[
                (first, hooks[first]),
                (second, after_first),
                (second, hooks[second]),
                (second, lambda value, hook: caught.update(after=value)),
            ]
        ),
    ):
        pocket_model(pocket_tokens.ids)
    codes = saes[second].encode(caught["before second"])
    removed = codes[..., [4]] @ lh.dictionaries.decoder_directions(saes[second], [4])
    expected = torch.where(pocket_tokens.valid[..., None], caught["before second"] - removed, caught["before second"])
    torch.testing.assert_close(caught["after"], expected, rtol=1e-4, atol=1e-4)


def test_joint_cost_is_not_the_sum_where_one_layer_repairs_the_other():
    model, ids = RepairToy(), torch.tensor([[0, 1, 0, 1]])
    tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids)
    dictionaries = {"hook_a": AxisDictionary(2), "hook_b": AxisDictionary(2)}

    def cost(features):
        return lh.ablation_effect(model, lh.FeatureAblation(dictionaries, features), tokens).delta_ce

    assert cost({"hook_a": [0]}) == 0
    assert cost({"hook_b": [0]}) == 0
    both = cost({"hook_a": [0], "hook_b": [0]})
    # half of the positions lose a margin of 3: log(1 + e^0) - log(1 + e^-3)
    assert both == pytest.approx((math.log(2) - math.log1p(math.exp(-3))) / 2, abs=1e-9)


@given(st.integers(0, 1000))
def test_gates_of_one_inject_the_reconstruction_and_zero_is_the_mean(seed: int):
    generator = torch.Generator().manual_seed(seed)
    acts = torch.rand(40, 5, generator=generator, dtype=torch.float64) + 0.1
    referenced = lh.with_reference(AxisDictionary(5), acts)
    rows = acts[:6].reshape(2, 3, 5)

    def apply(gates, **knobs):
        return lh.MaskedReconstruction("h", referenced, gates, **knobs).fwd_hooks()[0][1](rows, hook=None)

    one, zero, half = (torch.full((5,), v, dtype=torch.float64) for v in (1.0, 0.0, 0.5))
    torch.testing.assert_close(apply(one), rows)
    torch.testing.assert_close(apply(zero), acts.mean(dim=0).expand_as(rows))
    torch.testing.assert_close(apply(half), acts.mean(dim=0) + 0.5 * (rows - acts.mean(dim=0)))
    torch.testing.assert_close(apply(half, center_codes=False), 0.5 * rows)
    torch.testing.assert_close(apply(half, center_codes=False, keep_error=True), 0.5 * rows)


def test_gradients_reach_the_gates_through_the_model():
    model = LinearToy()
    acts = model.embed.detach()[torch.arange(7)]
    gates = torch.full((5,), 0.7, dtype=torch.float64, requires_grad=True)
    mask = lh.MaskedReconstruction("hook_embed", lh.with_reference(AxisDictionary(5), acts), gates)
    with model.hooks(fwd_hooks=mask.fwd_hooks()):
        model(torch.tensor([[1, 2]])).sum().backward()
    assert gates.grad is not None
    assert float(gates.grad.abs().sum()) > 0


def test_positions_that_are_not_valid_stay_bit_by_bit(pocket_model, pocket_tokens, random_sae):
    valid = pocket_tokens.valid.clone()
    valid[:, 60:] = False
    ablation = lh.FeatureAblation({HOOK: random_sae}, {HOOK: list(range(32))})
    with torch.no_grad():
        clean = pocket_model(pocket_tokens.ids)
        with pocket_model.hooks(fwd_hooks=ablation.fwd_hooks(valid)):
            changed = pocket_model(pocket_tokens.ids)
        valid[:, :] = False
        valid[:, 60] = True
        with pocket_model.hooks(fwd_hooks=ablation.fwd_hooks(valid)):
            late = pocket_model(pocket_tokens.ids)
    assert not torch.equal(clean, changed)
    assert torch.equal(clean[:, :60], late[:, :60])  # an edit never reaches back in time
    assert not torch.equal(clean[:, 60:], late[:, 60:])


def test_no_trace_is_left_even_when_a_hook_raises(pocket_model, pocket_tokens, random_sae):
    before = state_of(pocket_model)
    ablation = lh.FeatureAblation({HOOK: random_sae}, {HOOK: [1]})

    def fail(value, hook):
        raise RuntimeError("in the middle")

    with (
        pytest.raises(RuntimeError, match="in the middle"),
        pocket_model.hooks(fwd_hooks=[*ablation.fwd_hooks(), ("blocks.2.hook_resid_post", fail)]),
    ):
        pocket_model(pocket_tokens.ids)
    lh.ablation_effect(pocket_model, ablation, pocket_tokens)
    lh.collect_activations(pocket_model, HOOK, pocket_tokens)
    assert state_of(pocket_model) == before


def test_a_hook_point_that_fires_twice_is_refused():
    ids = torch.tensor([[0, 1, 2]])
    ablation = lh.FeatureAblation({"hook_twice": AxisDictionary(3, dtype=torch.float32)}, {"hook_twice": [0]})
    with pytest.raises(InputError, match="fired 2 times"):
        lh.ablation_effect(TwiceToy(), ablation, all_tokens(ids))


def test_effect_by_document_averages_to_the_whole(pocket_model, pocket_tokens, random_sae):
    ablation = lh.FeatureAblation({HOOK: random_sae}, {HOOK: list(range(20))})
    effect = lh.ablation_effect(pocket_model, ablation, pocket_tokens, batch_size=5)
    table = effect.by_document
    assert (table["delta_ce"] * table["n"]).sum() / table["n"].sum() == pytest.approx(effect.delta_ce)
    assert table["n"].sum() == effect.n_scored == pocket_tokens.n_scored
    assert effect.delta_ce_interval[0] <= effect.delta_ce <= effect.delta_ce_interval[1]
    assert effect.kl > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda sae: lh.FeatureAblation({HOOK: sae}, {"blocks.2.hook_resid_post": [0]}), "no dictionary for"),
        (lambda sae: lh.FeatureAblation({HOOK: sae}, {HOOK: [64]}), "outside 0 to 63"),
        (lambda sae: lh.FeatureAblation({HOOK: sae}, {HOOK: [3, 3]}), "named twice"),
        (lambda sae: lh.FeatureAblation({HOOK: sae}, {HOOK: [3]}, mode="median"), "mode='median'"),
        (lambda sae: lh.FeatureAblation({HOOK: sae}, {HOOK: [3]}, form="add"), "form='add'"),
        (lambda sae: lh.MaskedReconstruction(HOOK, sae, torch.ones(64)), "needs a reference"),
        (lambda sae: lh.MaskedReconstruction(HOOK, sae, torch.ones(3), center_codes=False), "64 components"),
        (lambda sae: lh.MaskedReconstruction(HOOK, sae, torch.full((64,), 1.5), center_codes=False), "between 0 and 1"),
    ],
)
def test_bad_interventions_are_named(random_sae, make, message: str):
    with pytest.raises(InputError, match=message):
        make(random_sae)


def test_wrong_width_unknown_hook_and_training_mode_are_named(pocket_series, pocket_tokens, make_sae, random_sae):
    model = pocket_series.load(0)
    narrow = lh.FeatureAblation({HOOK: make_sae(d_in=48)}, {HOOK: [1]})
    with pytest.raises(InputError, match="width 48"):
        lh.ablation_effect(model, narrow, pocket_tokens)
    nowhere = lh.FeatureAblation({"blocks.1.hook_resid_pots": random_sae}, {"blocks.1.hook_resid_pots": [1]})
    with pytest.raises(InputError, match=r"no hook point 'blocks.1.hook_resid_pots'.*blocks.1.hook_resid_post"):
        lh.ablation_effect(model, nowhere, pocket_tokens)
    model.train()
    with pytest.raises(InputError, match="training mode"):
        lh.ablation_effect(model, lh.FeatureAblation({HOOK: random_sae}, {HOOK: [1]}), pocket_tokens)


def test_a_dictionary_whose_decode_is_not_affine_is_refused():
    class Squared(AxisDictionary):
        def decode(self, codes):
            return (codes**2) @ self.W_dec

    with pytest.raises(InputError, match="not affine"):
        lh.FeatureAblation({"h": Squared(4)}, {"h": [0, 1]})


def test_a_diverged_sae_is_no_set_of_dead_features(make_sae, pocket_model, pocket_tokens):
    sae = make_sae()
    sae.W_enc.data[:, 3] = float("nan")
    with pytest.raises(InputError, match="NaN or infinite codes"):
        lh.ablation_effect(pocket_model, lh.FeatureAblation({HOOK: sae}, {HOOK: [1]}), pocket_tokens)
    with pytest.raises(InputError, match="Step 7: An SAE gives NaN"):
        lh.profile_saes(pocket_model, {HOOK: sae}, pocket_tokens, step=7)


def test_half_precision_activations_come_back_in_half_precision(make_sae):
    sae = make_sae()
    rows = torch.randn(1, 4, 96, generator=torch.Generator().manual_seed(0))
    ((_, hook_fn),) = lh.FeatureAblation({HOOK: sae}, {HOOK: list(range(20))}).fwd_hooks()
    half = hook_fn(rows.bfloat16(), hook=None)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), hook_fn(rows.bfloat16().float(), hook=None), rtol=0.02, atol=0.02)


def test_dropout_left_in_training_mode_is_refused(pocket_series, pocket_tokens, random_sae):
    model = pocket_series.load(0)
    model.register_module("noise", torch.nn.Dropout(0.5))
    model.eval()
    lh.collect_activations(model, HOOK, pocket_tokens)
    model.noise.train()
    with pytest.raises(InputError, match="training mode"):
        lh.collect_activations(model, HOOK, pocket_tokens)


def test_layer_norm_saes_are_refused(make_sae):
    from sae_lens.saes.topk_sae import TopKSAE, TopKSAEConfig

    sae = TopKSAE(TopKSAEConfig(d_in=96, d_sae=64, k=8, normalize_activations="layer_norm"))
    with pytest.raises(InputError, match="rescales each input by itself"):
        lh.FeatureAblation({HOOK: sae}, {HOOK: [0]})

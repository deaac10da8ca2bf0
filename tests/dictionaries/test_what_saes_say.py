"""What an SAE says of itself, where it reads and what kind it is, is kept in training and believed afterwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import tl_lifehist as lh
from tl_lifehist.dictionaries import sae as saes_module
from tl_lifehist.dictionaries.declared import declared_hook_name
from tl_lifehist.errors import InputError
from tl_lifehist.hook_names import same_place
from tl_lifehist.lifehistory.given import GivenSAEs

pytestmark = pytest.mark.usefixtures("saelens")

FIRST, SECOND = "blocks.0.hook_resid_post", "blocks.2.hook_resid_post"


@pytest.fixture(scope="module")
def series(pocket_series):
    return lh.CheckpointSeries.from_models({step: pocket_series.load(step) for step in (0, 4096)})


def says(sae, hook_name):
    sae = copy.deepcopy(sae)
    sae.cfg.metadata.hook_name = hook_name
    return sae


def test_a_configuration_is_left_alone_and_each_sae_keeps_the_name_of_its_own_hook_point(series):
    from sae_lens.saes.topk_sae import TopKTrainingSAEConfig

    config = TopKTrainingSAEConfig(d_in=1, d_sae=32, k=4)
    config.metadata.hook_name = "mine"
    before = copy.deepcopy(config.to_dict())
    tokens = lh.TokenSet.pocket("train")[:20]
    saes = lh.train_saes(series, [FIRST, SECOND], tokens, config=config, training_tokens=512)
    assert config.to_dict() == before
    assert {key: saes[key].cfg.metadata.hook_name for key in saes} == {
        (step, name): name for step in (0, 4096) for name in (FIRST, SECOND)
    }
    assert {key: saes[key].cfg.metadata.checkpoint_step for key in saes} == {key: key[0] for key in saes}


def test_names_of_one_place_are_told_from_names_of_others():
    assert same_place("blocks.0.hook_resid_post", "blocks.1.hook_resid_pre")
    assert same_place("blocks.0.hook_out", "model.layers.0")
    assert same_place("blocks.3.mlp.hook_out", "transformer.h.3.mlp")
    assert same_place("blocks.3.hook_mlp_out", "the reference")  # of nothing that is a hook point
    assert not same_place("blocks.0.hook_resid_pre", "blocks.0.hook_resid_post")
    assert not same_place("blocks.0.hook_resid_post", "blocks.2.hook_resid_post")
    assert not same_place("blocks.3.hook_mlp_out", "model.layers.3")
    assert not same_place("hook_embed", "blocks.0.hook_resid_post")


def test_an_sae_at_another_hook_point_than_its_own_is_refused_unless_told(series, random_sae, pocket_tokens):
    model, sae = series[4096], says(random_sae, FIRST)
    refused = pytest.raises(InputError, match=r"given for 'blocks\.2\.hook_resid_post' says that it reads 'blocks\.0")
    with refused:
        lh.profile_saes(model, {SECOND: sae}, pocket_tokens)
    with refused:
        lh.ablation_effect(model, lh.FeatureAblation({SECOND: sae}, {SECOND: [3]}), pocket_tokens)
    with refused:
        lh.compare_saes(sae, sae, model, SECOND, pocket_tokens)
    dictionary = lh.with_reference(sae, lh.collect_activations(model, SECOND, pocket_tokens))
    with refused:
        lh.MaskedReconstruction(SECOND, dictionary, torch.ones(64))
    with refused:
        lh.gate_scores(model, dictionary, pocket_tokens, hook_name=SECOND)
    with refused:
        lh.evaluate_mask(model, dictionary, torch.ones(64), pocket_tokens, hook_name=SECOND)
    with refused:
        lh.calibrate_mask(model, dictionary, pocket_tokens, lh.Reconstruction(), hook_name=SECOND, steps=1)
    with refused:
        GivenSAEs.of({(step, SECOND): sae for step in (0, 4096)}, (0, 4096), [SECOND])
    sae.cfg.metadata.hook_name = SECOND  # as the error says
    assert lh.profile_saes(model, {SECOND: sae}, pocket_tokens)[SECOND].n_features == 64
    assert lh.profile_saes(model, {SECOND: says(random_sae, "blocks.3.hook_resid_pre")}, pocket_tokens)


def test_a_hook_point_that_is_named_for_a_life_is_believed(series, random_sae, pocket_tokens):
    class AtSecond(dict):
        steps, hook_names = (0, 4096), (SECOND,)

    saes = AtSecond({(step, SECOND): says(random_sae, SECOND) for step in (0, 4096)})
    elsewhere = says(random_sae, FIRST)
    firing = lh.profile_saes(series[4096], {SECOND: saes[0, SECOND]}, pocket_tokens)[SECOND].count.argmax()
    life = lh.life_of(elsewhere, int(firing), series, saes, pocket_tokens, hook_name=SECOND)
    assert life.hook_name == SECOND
    assert declared_hook_name(elsewhere) == FIRST  # its own word is as it was
    with pytest.raises(InputError, match="pass hook_name="):
        lh.life_of(elsewhere, 0, series, saes, pocket_tokens)


def transcoder(kind, d_out=96):
    import sae_lens.saes.transcoder as module

    cls = getattr(module, kind)
    config = getattr(module, f"{kind}Config")(d_in=96, d_sae=64, d_out=d_out, apply_b_dec_to_input=False)
    config.metadata.hook_name, config.metadata.hook_name_out = "blocks.1.hook_resid_mid", "blocks.1.hook_mlp_out"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(config).requires_grad_(False).eval()


@pytest.mark.parametrize("kind", ["Transcoder", "SkipTranscoder", "JumpReLUTranscoder", "JumpReLUSkipTranscoder"])
def test_a_transcoder_is_refused_by_name_where_something_is_changed(series, kind):
    sae = transcoder(kind)
    sae.cfg.metadata.hook_name = FIRST
    named = pytest.raises(InputError, match=rf"it is a {sae.cfg.architecture()}, which writes at blocks\.1\.hook_mlp")
    with named:
        lh.FeatureAblation({FIRST: sae}, {FIRST: [3]})
    with named:
        lh.MaskedReconstruction(FIRST, lh.with_reference(sae, torch.randn(9, 96)), torch.ones(64))
    with named:
        GivenSAEs.of({(step, FIRST): sae for step in (0, 4096)}, (0, 4096), [FIRST])


@pytest.mark.parametrize("kind", ["layer_norm", "constant_norm_rescale", "transcoder"])
def test_profiles_and_matches_need_no_contribution(series, random_sae, pocket_tokens, kind):
    sae: Any
    if kind == "transcoder":
        sae = says(transcoder("JumpReLUTranscoder", d_out=32), FIRST)
    else:
        from sae_lens.saes.topk_sae import TopKSAE, TopKSAEConfig

        normalize: Any = kind
        sae = TopKSAE(TopKSAEConfig(d_in=96, d_sae=64, k=8, normalize_activations=normalize)).eval()
        sae.load_state_dict(random_sae.state_dict())
        sae.requires_grad_(False)
    profile = lh.profile_saes(series[4096], {FIRST: sae}, pocket_tokens)[FIRST]
    rows = lh.collect_activations(series[4096], FIRST, pocket_tokens)
    assert profile.acts.toarray() == pytest.approx(sae.encode(rows).numpy(), abs=1e-5)
    assert lh.match_features(profile, profile, min_rate=0, min_count=5).rate == 1
    assert torch.isnan(torch.from_numpy(profile.mass)).all()
    with pytest.raises(InputError, match="no contribution of their own, for it (rescales each input|is a jumprelu_tr)"):
        lh.FeatureAblation({FIRST: sae}, {FIRST: [3]})
    with pytest.raises(InputError, match="no contribution of their own"):
        GivenSAEs.of({(step, FIRST): sae for step in (0, 4096)}, (0, 4096), [FIRST])


def test_saes_of_half_precision_are_known_by_their_weights(random_sae):
    given = GivenSAEs.of({(0, FIRST): copy.deepcopy(random_sae).to(torch.bfloat16)}, (0,), [FIRST])
    other = copy.deepcopy(random_sae).to(torch.bfloat16)
    other.b_dec.data[0] += 1
    digests = {given.digest(0, ""), GivenSAEs.of({(0, FIRST): other}, (0,), [FIRST]).digest(0, "")}
    assert len(digests) == 2


def test_a_kind_with_negative_codes_is_refused_before_a_study():
    from sae_lens.saes.abstopk_sae import AbsTopKSAE, AbsTopKSAEConfig

    sae = AbsTopKSAE(AbsTopKSAEConfig(d_in=96, d_sae=64, k=4))
    with pytest.raises(InputError, match="is an abstopk, whose codes are negative at times"):
        GivenSAEs.of({(step, FIRST): sae for step in (0, 4096)}, (0, 4096), [FIRST])


@pytest.mark.parametrize("kind", ["expected_average_only_in", "covariance_whitening"])
def test_an_sae_of_scaled_activations_without_its_scale_is_refused(series, random_sae, pocket_tokens, kind):
    sae = says(random_sae, FIRST)
    sae.cfg.normalize_activations = kind
    with pytest.raises(InputError, match=f"scaled activations .normalize_activations='{kind}'. and the scale is not"):
        lh.profile_saes(series[4096], {FIRST: sae}, pocket_tokens)


def test_what_cannot_be_ablated_is_refused_before_it_is_trained(series):
    from sae_lens.saes.standard_sae import StandardTrainingSAEConfig

    tokens, told = lh.TokenSet.pocket("train")[:20], []
    for kind in ("layer_norm", "constant_norm_rescale"):
        config = StandardTrainingSAEConfig(d_in=96, d_sae=32)
        config.normalize_activations = kind  # type: ignore[assignment]
        with pytest.raises(InputError, match=f"normalize_activations='{kind}' rescales each input by itself"):
            saes_module.train_at(
                series[0], [FIRST], tokens, init_seeds={FIRST: 0}, order_seed=0, config=config, progress=told.append
            )
    assert not told  # of no batch

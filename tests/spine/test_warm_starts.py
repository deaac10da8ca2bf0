"""`init="previous"`: an SAE of every training kind goes on as what it was, through the files of a study too."""

from __future__ import annotations

import pytest
import torch
from spine.toys import LinearToy

from tl_lifehist.dictionaries import sae as saes_module
from tl_lifehist.dictionaries.sae import TrainedSAE, train_at
from tl_lifehist.formats import read_output, write_output
from tl_lifehist.tokens import TokenSet

pytestmark = pytest.mark.usefixtures("saelens")

HOOK = "hook_mid"
KINDS = {
    "standard": {"l1_coefficient": 0.01},
    "topk": {"k": 3},
    "abstopk": {"k": 3},
    "batchtopk": {"k": 3},
    "matryoshka_batchtopk": {"k": 3, "matryoshka_widths": [8, 16]},
    "gated": {"l1_coefficient": 0.01},
    "jumprelu": {"l0_coefficient": 0.01},
    "matching_pursuit": {"max_iterations": 3, "decoder_init_norm": 1.0},
}
NORMALIZATIONS = ("none", "expected_average_only_in", "covariance_whitening")


@pytest.fixture(scope="module")
def model():
    return LinearToy(d_vocab=40, d_model=12, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokens():
    ids = torch.randint(0, 40, (40, 16), generator=torch.Generator().manual_seed(0))
    return TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids)


def trained(model, tokens, kind, normalization, *, lr, start_from=None, subtract=True):
    from sae_lens.config import LoggingConfig, SAETrainerConfig
    from sae_lens.registry import get_sae_training_class

    common = {"d_in": 12, "d_sae": 16, "normalize_activations": normalization, "apply_b_dec_to_input": subtract}
    own = {**KINDS[kind], **({"topk_threshold_lr": min(lr, 0.01)} if "batch" in kind else {})}
    config = get_sae_training_class(kind)[1](**common, **own)
    trainer = SAETrainerConfig(20 * 32, 32, lr=lr, lr_end=lr, logger=LoggingConfig(log_to_wandb=False))
    passed = {"init_seeds": {HOOK: 0}, "order_seed": 0, "config": config, "trainer": trainer}
    return train_at(model, [HOOK], tokens, start_from=start_from, **passed)


def through_files(one: TrainedSAE, folder) -> dict[str, TrainedSAE]:
    kind = write_output(folder, "training", dict(one.state))
    return {HOOK: TrainedSAE(None, read_output(folder, "training", kind), None)}


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_training_that_changes_nothing_gives_back_what_it_started_from(model, tokens, tmp_path, kind, normalization):
    if (kind, normalization) == ("matching_pursuit", "covariance_whitening"):
        pytest.skip("SAELens refuses it")
    first = trained(model, tokens, kind, normalization, lr=3e-3)[HOOK]
    again = trained(model, tokens, kind, normalization, lr=1e-12, start_from=through_files(first, tmp_path))[HOOK]
    rows = saes_module.stream_activations(model, [HOOK], tokens[:4])
    x = next(iter(rows))[HOOK]
    assert float((first.sae.encode(x) != 0).float().sum(1).mean()) > 0.5
    torch.testing.assert_close(again.sae.encode(x), first.sae.encode(x), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(again.sae(x), first.sae(x), atol=1e-4, rtol=1e-3)
    assert set(again.state) == set(first.state)


@pytest.mark.parametrize("kind", ["gated", "standard", "topk"])
@pytest.mark.parametrize("subtract", [True, False])
def test_a_whitened_sae_does_to_activations_of_another_checkpoint_what_it_did(model, tokens, kind, subtract):
    from sae_lens.registry import get_sae_training_class

    first = trained(model, tokens, kind, "covariance_whitening", lr=3e-3, subtract=subtract)[HOOK]
    other = LinearToy(d_vocab=40, d_model=12, seed=7, dtype=torch.float32)  # whitened in quite another way
    now = saes_module._whitenings(other, [HOOK], tokens, {HOOK: _Config}, 0)[HOOK]
    sae = get_sae_training_class(kind)[0](
        get_sae_training_class(kind)[1](
            d_in=12,
            d_sae=16,
            normalize_activations="covariance_whitening",
            apply_b_dec_to_input=subtract,
            **KINDS[kind],
        )
    )
    if kind == "topk":
        sae.cfg.rescale_acts_by_decoder_norm = False  # or the choice of the k largest is another space's
        fitted = dict(first.state)
        length = fitted["W_dec"].norm(dim=1)
        fitted |= {"W_enc": fitted["W_enc"] * length, "b_enc": fitted["b_enc"] * length}
        fitted |= {"W_dec": fitted["W_dec"] / length[:, None]}
        first = TrainedSAE(first.sae, fitted, first.config)
    settings = dict(vars(sae.cfg))
    saes_module._start_from(sae, first.state, now)
    assert vars(sae.cfg) == settings
    x = next(iter(saes_module.stream_activations(other, [HOOK], tokens[:4])))[HOOK]
    whitened = (x - now.mean.float()) @ now.matrix.float()
    torch.testing.assert_close(sae.encode(whitened), first.sae.encode(x), atol=1e-3, rtol=1e-3)
    back = sae.decode(sae.encode(whitened)) @ now.inverse_matrix.float() + now.mean.float()
    torch.testing.assert_close(back, first.sae.decode(first.sae.encode(x)), atol=2e-3, rtol=1e-3)


class _Config:
    d_in, normalize_activations = 12, "covariance_whitening"

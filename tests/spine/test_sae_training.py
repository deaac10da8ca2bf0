from __future__ import annotations

import numpy as np
import pytest
import torch

import tl_lifehist as lh
from tl_lifehist.dictionaries import sae as saes_module
from tl_lifehist.errors import InputError

pytestmark = pytest.mark.usefixtures("saelens")

HOOKS = ["blocks.0.hook_resid_post", "blocks.2.hook_resid_post"]
SMALL = {"d_sae": 48, "k": 6, "training_tokens": 3000}


@pytest.fixture(scope="module")
def series(pocket_series):
    return lh.CheckpointSeries.from_models({step: pocket_series.load(step) for step in (0, 4096)})


@pytest.fixture(scope="module")
def tokens():
    return lh.TokenSet.pocket("train")[:60]


@pytest.fixture(scope="module")
def trained(series, tokens, tmp_path_factory):
    out = tmp_path_factory.mktemp("saes")
    return lh.train_saes(series, HOOKS, tokens, out=out, **SMALL), out


def weights(sae) -> dict[str, torch.Tensor]:
    return dict(sae.state_dict())


def same(a, b) -> bool:
    return all(torch.equal(weights(a)[name], weights(b)[name]) for name in weights(a))


def test_they_are_plain_inference_saes_in_depth_order(trained):
    from sae_lens import SAE

    saes, _ = trained
    assert saes.steps == (0, 4096)
    assert list(saes.at(4096)) == HOOKS
    for key in saes:
        assert isinstance(saes[key], SAE)
        assert saes[key].cfg.normalize_activations == "none"  # takes raw activations
        assert not any(p.requires_grad for p in saes[key].parameters())
        torch.testing.assert_close(saes[key].W_dec.norm(dim=1), torch.ones(48), rtol=1e-5, atol=1e-5)
    assert saes[0, HOOKS[0]].cfg.metadata.hook_name == HOOKS[0]


def test_training_explains_most_of_the_variance(trained, series, tokens):
    saes, _ = trained
    rows = lh.collect_activations(series[4096], HOOKS[0], tokens[:20])
    error = (rows - saes[4096, HOOKS[0]](rows)).square().sum() / (rows - rows.mean(0)).square().sum()
    assert float(error) < 0.7


def test_the_folders_open_in_saelens_and_here(trained):
    from sae_lens import SAE

    saes, out = trained
    opened = SAE.load_from_disk(out / "step4096" / HOOKS[1])
    assert same(opened, saes[4096, HOOKS[1]])
    loaded = lh.dictionaries.load_saes(out)
    assert loaded.steps == saes.steps
    assert loaded.hook_names == saes.hook_names
    assert all(same(loaded[key], saes[key]) for key in saes)


def test_one_seed_gives_one_result_and_leaves_the_global_state_alone(trained, series, tokens):
    saes, _ = trained
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    again = lh.train_saes(series, HOOKS, tokens, **SMALL)
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002
    assert all(same(again[key], saes[key]) for key in saes)
    other = lh.train_saes(series.subset([4096]), HOOKS, tokens, seed=1, **SMALL)
    assert not same(other[4096, HOOKS[0]], saes[4096, HOOKS[0]])


def test_each_way_to_initialise_starts_where_it_says(series, tokens):
    shared, independent = (
        [saes_module.init_seeds(HOOKS, init=init, seed=0, step=s) for s in (0, 10)]
        for init in ("shared", "independent")
    )
    assert shared[0] == shared[1]
    assert independent[0] != independent[1]
    assert len(set(shared[0].values())) == 2
    # a learning rate of nothing shows where each training starts
    from sae_lens.config import LoggingConfig, SAETrainerConfig

    still = SAETrainerConfig(512, 256, lr=1e-12, lr_end=1e-12, logger=LoggingConfig(log_to_wandb=False))
    found = {
        init: lh.train_saes(series, HOOKS, tokens, d_sae=48, k=6, init=init, trainer=still)
        for init in ("shared", "independent", "previous")
    }

    def direction(init, step):
        return found[init][step, HOOKS[0]].W_dec

    torch.testing.assert_close(direction("shared", 0), direction("shared", 4096), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(direction("independent", 0), direction("independent", 4096), atol=1e-2)
    torch.testing.assert_close(direction("previous", 0), direction("previous", 4096), atol=1e-5, rtol=1e-4)


def test_a_warm_start_goes_on_from_the_trained_weights(series, tokens):
    from sae_lens.config import LoggingConfig, SAETrainerConfig

    model = series[4096]
    seeds = saes_module.init_seeds(HOOKS, init="shared", seed=0, step=0)
    first = saes_module.train_at(model, HOOKS, tokens, init_seeds=seeds, order_seed=0, **SMALL)
    still = SAETrainerConfig(512, 256, lr=1e-12, lr_end=1e-12, logger=LoggingConfig(log_to_wandb=False))
    second = saes_module.train_at(
        model, HOOKS, tokens, init_seeds=seeds, order_seed=0, d_sae=48, k=6, trainer=still, start_from=first
    )
    rows = lh.collect_activations(model, HOOKS[0], tokens[:5])
    torch.testing.assert_close(second[HOOKS[0]].sae(rows), first[HOOKS[0]].sae(rows), rtol=1e-2, atol=1e-2)


def test_batches_hold_the_same_rows_at_every_hook_point_and_all_rows_once_an_epoch(series, tokens):
    model = series[4096]
    part = tokens[:8]
    rows = {name: lh.collect_activations(model, name, part) for name in HOOKS}
    batches = saes_module.activation_batches(model, HOOKS, part, batch_rows=127, seed=3, buffer_rows=300)
    index = []
    for _, batch in zip(range(8), batches, strict=False):
        where = {name: torch.cdist(batch[name], rows[name]).argmin(dim=1) for name in HOOKS}
        assert torch.equal(where[HOOKS[0]], where[HOOKS[1]])
        index += where[HOOKS[0]].tolist()
    assert len(index) == 8 * 127
    assert len(set(index)) > 0.95 * len(index)  # a few rows are carried into the next epoch
    assert index != sorted(index)


def test_any_saelens_configuration_is_accepted(series, tokens):
    from sae_lens.saes.standard_sae import StandardTrainingSAEConfig

    config = StandardTrainingSAEConfig(d_in=1, d_sae=32, l1_coefficient=0.1)
    found = lh.train_saes(series.subset([4096]), HOOKS[:1], tokens, config=config, training_tokens=1500)
    sae = found[4096, HOOKS[0]]
    assert sae.cfg.architecture() == "standard"
    assert sae.W_dec.shape == (32, 96)


def test_bad_input_is_named(series, tokens, tmp_path):
    with pytest.raises(InputError, match="init='warm' is unknown"):
        lh.train_saes(series, HOOKS, tokens, init="warm")
    with pytest.raises(InputError, match=r"training positions for 384 features"):
        lh.train_saes(series, HOOKS, tokens[:2], training_tokens=1000)
    with pytest.raises(InputError, match="k=99 active features"):
        lh.train_saes(series, HOOKS, tokens, d_sae=48, k=99, training_tokens=1000)
    with pytest.raises(InputError, match="no hook point 'nowhere'"):
        lh.train_saes(series, ["nowhere"], tokens, training_tokens=1000)
    with pytest.raises(InputError, match="holds no cfg.json"):
        lh.load_sae(tmp_path)
    with pytest.raises(InputError, match="holds no step folders"):
        lh.dictionaries.load_saes(tmp_path)


def test_without_saelens_the_extra_is_named(monkeypatch, series, tokens):
    import sys

    monkeypatch.setitem(sys.modules, "sae_lens", None)
    with pytest.raises(InputError, match=r"tl_lifehist\[sae\]"):
        lh.train_saes(series, HOOKS, tokens, training_tokens=1000)

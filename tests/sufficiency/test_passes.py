"""One clean pass for many hook points leaves what a pass of its own leaves for each, bit for bit."""

from __future__ import annotations

import pytest
import torch
from spine.toys import LinearToy, TwiceToy

import tl_lifehist as lh
from tl_lifehist.sufficiency.calibration import MaskTask, calibrate_masks, calibrate_on
from tl_lifehist.sufficiency.clean import CleanRun
from tl_lifehist.sufficiency.massive import without_massive
from tl_lifehist.sufficiency.passes import LatestPass, at_once, clean_prefixes, prefix_without_massive, train_rows
from tl_lifehist.sufficiency.targets import Downstream
from tl_lifehist.sufficiency.translator import fit_translator, scored_rows, translator_of
from tl_lifehist.suffix import ModelSuffix, run_prefixes

HOOKS = (
    *("blocks.0.hook_resid_pre", "blocks.1.hook_attn_out", "blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"),
    *("blocks.3.hook_mlp_out", "blocks.3.hook_resid_post"),
)


@pytest.fixture
def sequences_seen(pocket_model):
    """How many sequences the first block has worked on."""
    seen = [0]
    handle = pocket_model.blocks[0].attn.register_forward_hook(
        lambda module, args, kwargs, result: seen.__setitem__(0, seen[0] + len(kwargs.get("hidden_states", *args[:1]))),
        with_kwargs=True,
    )
    yield seen
    handle.remove()


def test_train_rows_are_those_of_separate_passes(pocket_model, pocket_tokens, sequences_seen):
    tokens = pocket_tokens[:9]
    train_rows(pocket_model, HOOKS, tokens[:2])  # the first time, each hook point is checked
    sequences_seen[0] = 0
    found = train_rows(pocket_model, HOOKS, tokens, batch_size=4)
    assert sequences_seen == [9]
    for name in HOOKS:
        acts, final = scored_rows(ModelSuffix(pocket_model, name), tokens, 4)
        assert torch.equal(found[name].acts, lh.collect_activations(pocket_model, name, tokens))
        assert torch.equal(found[name].scored_acts, acts)
        assert torch.equal(found[name].final, final)


def test_prefixes_are_those_of_separate_passes(pocket_model, pocket_tokens, sequences_seen):
    tokens = pocket_tokens[:7]
    clean_prefixes(pocket_model, HOOKS, tokens[:2])  # the first time, each hook point is checked
    sequences_seen[0] = 0
    found = clean_prefixes(pocket_model, HOOKS, tokens, batch_size=3)
    assert sequences_seen == [7]
    for name, prefix in found.items():
        suffix = ModelSuffix(pocket_model, name)
        alone = suffix.run_prefix_all(tokens, 3)
        for part in ("value", "start", "last"):
            assert torch.equal(getattr(prefix, part), getattr(alone, part)), (name, part)
        rows, fresh = 0.7 * prefix.acts, ModelSuffix(pocket_model, name)  # that no pass has shown a block's output
        assert torch.equal(fresh.run_suffix(prefix, rows), suffix.run_suffix(alone, rows))
        assert torch.equal(ModelSuffix(pocket_model, name).head(prefix.final), suffix.head(alone.final))
    assert all(prefix.last is found[HOOKS[0]].last for prefix in found.values())


def test_a_model_without_blocks_has_its_hook_points_in_one_pass_too():
    model, tokens = LinearToy(), lh.TokenSet(*random_ids())
    found = clean_prefixes(model, ("hook_embed", "hook_mid"), tokens, batch_size=2)
    for name, prefix in found.items():
        alone = ModelSuffix(model, name).run_prefix_all(tokens, 2)
        assert prefix.start is None
        assert torch.equal(prefix.value, alone.value)
        assert torch.equal(prefix.last, alone.last)


def random_ids() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 7, (5, 6), generator=torch.Generator().manual_seed(0))
    return ids, torch.ones_like(ids, dtype=torch.bool), ids


def test_every_hook_point_of_a_pass_fires_once_and_belongs_to_one_model():
    ids = torch.zeros(1, 3, dtype=torch.long)
    batch, twice = lh.TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids), TwiceToy()
    with pytest.raises(lh.InputError, match="fired 2 times"):
        run_prefixes([ModelSuffix(twice, "hook_twice")], batch)
    several = [ModelSuffix(LinearToy(), "hook_embed"), ModelSuffix(LinearToy(), "hook_mid")]
    for suffixes in ([], several):
        with pytest.raises(lh.InputError, match="A pass is one model's"):
            run_prefixes(suffixes, batch)


def test_massive_rows_are_left_out_of_what_a_pass_left(pocket_model, pocket_tokens):
    tokens, name, share = pocket_tokens[:6], "blocks.1.hook_resid_post", 0.05
    chosen = without_massive(pocket_model, name, tokens, share)
    rows = train_rows(pocket_model, (name,), tokens)[name].without_massive(share)
    prefix = prefix_without_massive(clean_prefixes(pocket_model, (name,), tokens)[name], share)
    acts, final = scored_rows(ModelSuffix(pocket_model, name), chosen, 4)
    assert chosen.n_valid < tokens.n_valid
    assert torch.equal(rows.tokens.valid, chosen.valid)
    assert torch.equal(prefix.batch.valid, chosen.valid)
    assert torch.equal(rows.acts, lh.collect_activations(pocket_model, name, chosen))
    assert torch.equal(rows.scored_acts, acts)
    assert torch.equal(rows.final, final)
    assert torch.equal(prefix.acts, rows.acts)
    assert torch.equal(rows.kept, chosen.valid[tokens.valid])


def test_a_translator_of_shared_rows_is_the_fitted_one(pocket_model, pocket_tokens):
    tokens, name = pocket_tokens[:6], "blocks.1.hook_mlp_out"
    rows = train_rows(pocket_model, (name, "blocks.2.hook_resid_post"), tokens)[name]
    made = translator_of(ModelSuffix(pocket_model, name), rows.scored_acts, rows.final, steps=6, seed=2)
    fitted = fit_translator(pocket_model, name, tokens, steps=6, seed=2)
    assert torch.equal(made.weight, fitted.weight)
    assert torch.equal(made.bias, fitted.bias)
    again = type(made).from_tensors(made.to_tensors(), made.head)
    assert torch.equal(again.weight, made.weight)
    assert again.history.equals(made.history)
    with pytest.raises(lh.InputError, match="no rows"):
        translator_of(ModelSuffix(pocket_model, name), rows.acts[:0], rows.final[:0])


def test_masks_on_a_shared_pass_are_those_on_their_own(pocket_model, pocket_tokens):
    tokens, name = pocket_tokens[:6], "blocks.1.hook_mlp_out"
    acts = lh.collect_activations(pocket_model, name, tokens)
    tasks = [MaskTask(lh.decompose(acts, n_components=5), Downstream("mean_ablation"), 0.02)]
    shared = clean_prefixes(pocket_model, ("blocks.0.hook_mlp_out", name), tokens)[name]
    clean = CleanRun(pocket_model, name, tokens, 16, given=shared)
    own = calibrate_masks(pocket_model, tasks, tokens, hook_name=name, steps=5, batch_size=4)
    made = calibrate_on(clean, tasks, steps=5, batch_size=4)
    assert torch.equal(own[0].gates, made[0].gates)
    assert own[0].history.equals(made[0].history)


def test_passes_are_split_and_the_latest_is_kept():
    assert list(at_once(HOOKS, None)) == [HOOKS]
    assert list(at_once(HOOKS, 4)) == [HOOKS[:4], HOOKS[4:]]
    made: list[str] = []
    passes = LatestPass()
    for key in ("a", "a", "b", "a"):
        assert passes.get(key, lambda key=key: made.append(key) or key) == key
    assert made == ["a", "b", "a"]

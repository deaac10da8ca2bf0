"""Every documented family runs in every precision, and a bridge that is not the model is refused when it is loaded."""

from __future__ import annotations

import re

import pytest
import torch
from checkpoints.families import CAUSAL, FAMILIES, SIZES, build

from tl_lifehist.checkpoints import boot
from tl_lifehist.checkpoints.agreement import probe, require_agreement
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError


def olmo3():
    from transformers import Olmo3Config, Olmo3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Olmo3Config(
            **SIZES, **CAUSAL, layer_types=["sliding_attention", "full_attention"] * 1 + ["full_attention"]
        )
        return Olmo3ForCausalLM(config).eval()


@torch.no_grad()
@pytest.mark.parametrize("family", [*FAMILIES, "OLMo 3"])
def test_half_precision_runs_as_it_does_in_transformers(family, tmp_path, ids):
    model = olmo3() if family == "OLMo 3" else build(family, 0)
    model.save_pretrained(tmp_path / "step0")
    for dtype in (torch.bfloat16, torch.float16):
        bridge = CheckpointSeries.from_directory(tmp_path, device="cpu", dtype=dtype).load(0)
        expected = type(model).from_pretrained(tmp_path / "step0", dtype=dtype, attn_implementation="eager").eval()(ids)
        found = bridge(ids)
        assert found.dtype == dtype
        off = (found - expected.logits).float()
        assert float(off.square().mean().sqrt()) < 8 * torch.finfo(dtype).eps * float(expected.logits.float().std())
        names = ["blocks.1.hook_resid_post", "blocks.1.hook_mlp_out"]
        seen = {}
        with bridge.hooks(
            fwd_hooks=[(name, lambda value, hook, seen=seen: seen.update({hook.name: value.dtype})) for name in names]
        ):
            bridge(ids)
        assert set(seen.values()) == {dtype}


def test_other_number_types_are_refused_at_once(tmp_path):
    for dtype in (torch.int8, torch.float8_e4m3fn):
        with pytest.raises(
            InputError, match=rf"not loaded as {dtype}: give dtype= one of torch\.float64, torch\.float32"
        ):
            CheckpointSeries.from_directory(tmp_path, dtype=dtype)


@torch.no_grad()
def test_a_model_that_takes_no_mask_is_compared_without(run_folder, monkeypatch):
    from transformers import GPTNeoXForCausalLM

    forward = GPTNeoXForCausalLM.forward

    def bare(self, input_ids):
        return forward(self, input_ids)

    with monkeypatch.context() as patch:
        patch.setattr(GPTNeoXForCausalLM, "forward", bare)
        found = probe(GPTNeoXForCausalLM.from_pretrained(run_folder / "step1").eval(), 1)
    assert found.mask is None
    require_agreement(CheckpointSeries.from_directory(run_folder, device="cpu").load(1), found, 1, "GPTNeoXForCausalLM")


@pytest.fixture
def wrong(monkeypatch):
    """An adapter that makes of one block something a little else."""
    made = boot.bridge_of

    def spoil(change):
        def bridge(*args):
            model = made(*args)
            change(model)
            return model

        monkeypatch.setattr(boot, "bridge_of", bridge)

    return spoil


def test_a_bridge_that_is_a_few_percent_off_is_named_with_its_size(run_folder, wrong):
    def scale(model):
        for parameter in model.blocks[1].mlp.parameters():
            parameter.data *= 1.1

    series = CheckpointSeries.from_directory(run_folder, device="cpu")
    assert series.verify().ok
    wrong(scale)
    named = r"bridge of GPTNeoXForCausalLM is not the model: on 12 token ids .* up to [0-9.e-]+, ([0-9.]+)% of their"
    with pytest.raises(InputError, match=named) as caught:
        series.load(1)
    found = re.search(named, str(caught.value))
    assert found is not None
    assert 0.1 < float(found[1]) < 20
    report = series.verify()
    assert report.missing == series.steps
    assert "is not the model" in report.reasons[0]


def test_a_bridge_that_is_wrong_under_a_mask_alone_is_named(run_folder, wrong):
    def blind(model):
        forward = model.forward
        object.__setattr__(
            model,
            "forward",
            lambda ids, attention_mask=None, **more: forward(ids if attention_mask is None else ids.flip(0, 1), **more),
        )

    wrong(blind)
    with pytest.raises(InputError, match="the last of them padding its logits differ"):
        CheckpointSeries.from_directory(run_folder, device="cpu").load(1)


def test_a_bridge_that_does_not_run_is_named_when_it_is_loaded(tmp_path, monkeypatch):
    build("OLMo", 0).save_pretrained(tmp_path / "step0")
    monkeypatch.setattr(boot, "keep_dtype", lambda bridge: None)
    with pytest.raises(
        InputError, match="runs in transformers and its bridge does not in bfloat16 .*load it with another"
    ):
        CheckpointSeries.from_directory(tmp_path, device="cpu", dtype=torch.bfloat16).load(0)

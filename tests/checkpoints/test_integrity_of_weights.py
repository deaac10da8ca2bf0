from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from tl_lifehist.checkpoints.boot import LoadOptions, boot_folder
from tl_lifehist.checkpoints.integrity import Duplicate, compare_fingerprints, fingerprint
from tl_lifehist.errors import InputError

GROUPS = ["embedding", "block 0", "block 1", "block 2", "head", "rest"]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("bridge")
    tiny_model(0).save_pretrained(folder)
    return boot_folder(folder, 0, name="tiny", options=LoadOptions())


@pytest.fixture
def altered(bridge):
    """A copy of the bridge in which some parameters were moved."""

    def build(*parts: str, by: float = 1e-3):
        model = copy.deepcopy(bridge)
        touched = 0
        for name, parameter in model.named_parameters():
            if any(part in name for part in parts):
                parameter.data.add_(by)
                touched += 1
        assert touched or not parts
        return model

    return build


def hand_written():
    from transformer_lens import HookedRootModule
    from transformer_lens.hook_points import HookPoint

    class Model(HookedRootModule):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(11, 4)  # no name that says so: the module's type does
            self.middle = HookPoint()
            self.lm_head = nn.Linear(4, 11)
            self.scale = nn.Parameter(torch.ones(4))
            self.register_buffer("seen", torch.zeros(1))
            self.setup()

        def forward(self, ids):
            return self.lm_head(self.middle(self.tokens(ids)) * self.scale)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model()


def test_a_bridge_is_grouped_by_embedding_blocks_head_and_rest(bridge):
    prints = fingerprint(bridge)
    assert list(prints) == GROUPS
    assert [group for group in prints if prints[group].startswith("weak-")] == ["rest"]  # the final norm, never trained
    assert prints == fingerprint(bridge)


@pytest.mark.parametrize(
    ("part", "group"),
    [
        ("embed_in", "embedding"),
        ("layers.1.", "block 1"),
        ("lm_head._original_component.weight", "head"),
        ("final_layer_norm", "rest"),
    ],
)
def test_moving_a_parameter_changes_its_group_and_no_other(bridge, altered, part, group):
    before, after = fingerprint(bridge), fingerprint(altered(part))
    assert [name for name in before if before[name] != after[name]] == [group]


@pytest.mark.parametrize("entry", [0, -1])
def test_a_single_bit_in_a_single_entry_shows(bridge, altered, entry):
    model = altered()
    weight = next(p for name, p in model.named_parameters() if "layers.2." in name and ".mlp." in name)
    weight.data.view(-1).view(torch.int32)[entry] ^= 1
    assert fingerprint(model)["block 2"] != fingerprint(bridge)["block 2"]


def test_a_hooked_transformer_is_grouped_the_same_way():
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
    except ImportError:
        pytest.skip("TransformerLens 4 has no HookedTransformer.")

    sizes = {"n_layers": 2, "d_model": 8, "n_ctx": 8, "d_head": 4, "d_vocab": 11, "d_mlp": 16}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.9 says so of every HookedTransformer
        model = HookedTransformer(HookedTransformerConfig(**sizes, act_fn="gelu", seed=0, device="cpu"))
    before = fingerprint(model)
    assert list(before) == ["embedding", "block 0", "block 1", "head", "rest"]
    model.unembed.W_U.data.add_(1)
    model.pos_embed.W_pos.data.add_(1)
    after = fingerprint(model)
    assert [name for name in before if before[name] != after[name]] == ["embedding", "head"]


def test_a_hand_written_model_is_grouped_and_its_buffers_do_not_count():
    model = hand_written()
    before = fingerprint(model)
    assert list(before) == ["embedding", "head", "rest"]
    model.seen.add_(1)
    assert fingerprint(model) == before
    model.tokens.weight.data[3, 2] += 1
    assert fingerprint(model)["embedding"] != before["embedding"]


def test_half_precision_weights_can_be_fingerprinted():
    model = hand_written()
    prints = [fingerprint(copy.deepcopy(model).to(dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    assert len({found["embedding"] for found in prints}) == 3


def test_what_has_no_parameters_is_refused():
    with pytest.raises(InputError, match="Identity has no parameters"):
        fingerprint(nn.Identity())


def test_identical_steps_are_one_whole_duplicate(bridge, altered):
    other = fingerprint(altered("embed_in", "layers", "lm_head"))
    report = compare_fingerprints({0: fingerprint(bridge), 1: fingerprint(altered()), 2: other})
    assert report.duplicates == (Duplicate(0, 1, tuple(GROUPS), whole=True),)
    assert not report.ok
    assert "Steps 0 and 1 are identical." in str(report)


def test_a_shard_of_another_step_is_a_partial_duplicate(bridge, altered):
    shard = fingerprint(altered("layers.2.", "lm_head"))  # keeps the embedding and blocks 0 and 1
    third = fingerprint(altered("embed_in", "layers", "lm_head", by=1.0))
    report = compare_fingerprints({0: fingerprint(bridge), 5: third, 7: shard})
    assert report.duplicates == (Duplicate(0, 7, ("embedding", "block 0", "block 1"), whole=False),)
    assert "Steps 0 and 7 share the weights of embedding, block 0, block 1." in str(report)


def test_norms_and_zero_biases_that_stay_where_they_began_are_no_duplicate(bridge, altered):
    report = compare_fingerprints({0: fingerprint(bridge), 1: fingerprint(altered("embed_in", "layers", "lm_head"))})
    assert fingerprint(bridge)["rest"] == fingerprint(altered("lm_head"))["rest"]
    assert report.ok
    assert str(report) == "2 checkpoints: no fault found."


def test_a_part_that_is_the_same_at_every_step_is_frozen_rather_than_copied(bridge, altered):
    prints = {0: fingerprint(bridge), 1: fingerprint(altered("layers", "lm_head"))}
    both = compare_fingerprints(prints)
    assert [d.groups for d in both.duplicates] == [("embedding",)]  # two steps cannot tell
    report = compare_fingerprints({**prints, 2: fingerprint(altered("layers", "lm_head", by=1.0))})
    assert report.ok
    assert report.frozen == ("embedding",)
    assert "The same at every step: embedding" in str(report)


def test_a_series_of_nothing_but_copies_is_reported_and_not_called_frozen(bridge):
    report = compare_fingerprints({step: fingerprint(bridge) for step in range(8)})
    assert len(report.duplicates) == 28
    assert all(found.whole for found in report.duplicates)
    assert report.frozen == ()
    assert "... and 8 more pairs of steps." in str(report)


def test_missing_steps_keep_their_reasons(bridge):
    report = compare_fingerprints({0: fingerprint(bridge)}, {9: "not there", 4: "cut short"})
    assert report.steps == (0, 4, 9)
    assert report.missing == (4, 9)
    assert not report.ok
    assert "Step 4 is missing: cut short" in str(report)

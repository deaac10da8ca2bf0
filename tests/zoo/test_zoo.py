"""Every architecture of the zoo through everything that replaces activations: right, or an error that says why."""

from __future__ import annotations

import warnings

import pytest
import torch
from zoo.architectures import ZOO, LastPosition
from zoo.walk import SECOND, TOLERANCE, WALK, Site, error, hook_names_of, tokens_of

import tl_lifehist as lh

# what cannot be right, by the words of the error: all of it, or where a gradient is needed
NOISE, BATCH, TWICE = "noise or keeps a state", "other sequences of its batch", "fired 2 times"
REFUSED = {
    "the stack run twice": (TWICE, set(WALK)),
    "noise in evaluation mode": (NOISE, set(WALK)),
    "noise in the head alone": (NOISE, set(WALK) - {"collect"}),
    "a state kept between passes": (NOISE, set(WALK)),
    "experts with a capacity that the batch shares": (BATCH, set(WALK)),
    "activations normalised over the batch": (BATCH, set(WALK)),
    "blocks that work in place": ("no gradient", {"calibration", "gate scores"}),
    "blocks computed again in the backward pass": ("no gradient", {"calibration", "gate scores"}),
    "a forward without gradients": ("no gradient", {"calibration", "gate scores", "translator"}),
    "a forward that takes gradients of its own weights": ("no gradient", {"calibration", "gate scores"}),
}
# run whole, with a warning, at the first hook point, at the second
WHOLE = {
    "norm inside the block behind hook_resid_post": (True, True),
    "U-net skips from early to late blocks": (True, False),
    "embedding added in the head": (True, True),
    "bigram logits added to the model's": (True, True),
    "block(mask, x)": (True, False),
    "two residual streams, block(x, y) -> (x, y)": (True, True),
    "streams stacked in one tensor, mixed between blocks": (True, True),
    "head that reads the mean of all layers": (True, True),
    "each block reads the mean of all before it": (True, True),
    "head that reads the position before as well": (True, True),
    "bidirectional, with a pooler of the first position in the head": (True, True),
    "an embedding of its own added after each block": (True, True),
    "per-layer inputs given to each block": (True, True),
    "the last block run twice": (True, True),
    "blocks run in another order": (True, True),
    "blocks that hold hook points and are never called": (True, True),
    "a later block reads what an earlier one has kept": (False, True),
    "later blocks attend to the keys of an earlier one": (True, True),
    "a flag that stays set where a pass is ended early": (True, True),
    "a flag that stays set where a pass is ended early, read behind the hook point": (True, True),
    "TransformerLens' HookedEncoder": (True, True),
}
OF_TRANSFORMER_LENS_3 = [name for name in ZOO if name.startswith("TransformerLens'")]


@pytest.mark.parametrize("name", list(ZOO))
def test_right_or_refused(name):
    if name in OF_TRANSFORMER_LENS_3:
        pytest.importorskip("transformer_lens.HookedTransformer", reason="transformer-lens 4 has it no more")
    words, refused = REFUSED.get(name, ("", set()))
    for i, hook_name in enumerate(hook_names_of(name)):
        site = Site(ZOO[name](), hook_name)
        told = []
        for way in SECOND if i else WALK:
            walk = WALK[way]
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                warnings.filterwarnings("ignore", message=".*an interval over documents needs")  # these texts are short
                if way in refused:
                    with pytest.raises(lh.InputError, match=words):
                        walk(site)
                else:
                    assert error(walk(site)) < TOLERANCE, (way, hook_name)
            told += [str(one.message) for one in caught]
        assert len(told) == WHOLE.get(name, (False, False))[i], told
        assert all(hook_name in one and "the whole model is run" in one for one in told)


def test_the_zoo_is_large_and_its_lists_are_of_it():
    assert len(ZOO) >= 40
    assert {*REFUSED, *WHOLE} <= {*ZOO}


def test_logits_of_another_shape_are_named():
    model = LastPosition()
    with pytest.raises(lh.InputError, match=r"gives \(4, 11\) for ids \(4, 9\)"):
        lh.collect_activations(model, "blocks.1.hook_mlp_out", tokens_of())

"""An interval over documents is NaN, with a warning at the caller's own line, where the documents are too few."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import tl_lifehist as lh

HOOK = "blocks.2.hook_mlp_out"


@pytest.fixture(scope="module")
def dictionary(pocket_model):
    return lh.decompose(lh.collect_activations(pocket_model, HOOK, lh.TokenSet.pocket("train")[::60]), n_components=8)


@pytest.fixture(scope="module")
def measured(pocket_model, dictionary):
    """What gives an interval over the documents of a text, by name."""
    masked = lh.MaskedReconstruction(HOOK, dictionary, torch.full((8,), 0.5))
    return {
        "delta_ce_interval": lambda text: lh.ablation_effect(pocket_model, masked, text).delta_ce_interval,
        "kl_interval": lambda text: (
            lh.evaluate_mask(pocket_model, dictionary, torch.full((8,), 0.5), text, hook_name=HOOK).kl_interval
        ),
    }


@pytest.mark.parametrize("name", ["delta_ce_interval", "kl_interval"])
def test_sixteen_windows_of_one_document_have_no_interval(measured, name: str):
    text = lh.TokenSet.pocket("test")[:16]
    assert len(set(text.scored_documents)) == 1
    with pytest.warns(UserWarning, match=f"{name} is NaN: the scored positions lie in 1 document") as caught:
        found = measured[name](text)
    assert all(math.isnan(end) for end in found)
    assert [one.filename for one in caught] == [__file__]  # not a line of the package


@pytest.mark.parametrize("name", ["delta_ce_interval", "kl_interval"])
def test_windows_of_many_documents_have_one_and_no_warning(measured, name: str):
    text = lh.TokenSet.pocket("test")[::60]
    assert len(set(text.scored_documents)) >= 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = measured[name](text)
    assert low < high

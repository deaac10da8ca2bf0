"""A series of processed and unprocessed checkpoints, or of two architectures, is found by verify()."""

from __future__ import annotations

import pytest
import torch
from spine.toys import LinearToy

import tl_lifehist as lh
from tl_lifehist.checkpoints.integrity import fingerprint
from tl_lifehist.checkpoints.nature import compare_natures, nature
from tl_lifehist.errors import InputError
from tl_lifehist.preflight import watch_checks
from tl_lifehist.store import Store


@pytest.fixture(scope="module")
def processed(pocket_series):
    model = pocket_series.load(1024)
    model.enable_compatibility_mode()
    return model


def test_processed_weights_among_unprocessed_are_found(pocket_series, processed):
    plain = {step: pocket_series.load(step) for step in (0, 256, 4096)}
    assert lh.CheckpointSeries.from_models(plain).verify().ok
    report = lh.CheckpointSeries.from_models({**plain, 1024: processed}).verify()
    assert not report.ok
    assert any("embedding" in said and "centred at step 1024" in said for said in report.mixed)
    assert any("norms" in said and "all ones at step" in said for said in report.mixed)
    assert "compatibility mode at step 1024" in str(report)


def test_processed_weights_show_without_the_models_word(processed):
    processed.compatibility_mode, before = False, processed.compatibility_mode
    try:
        found = nature(processed)
    finally:
        processed.compatibility_mode = before
    assert (found["embedding"], found["norms"]) == ("centred", "all ones")


def test_norms_are_all_ones_before_training_too():
    kinds = {0: {"norms": "all ones"}, 1: {"norms": "all ones"}, 2: {"norms": "trained"}}
    assert compare_natures(kinds) == ()
    kinds[3] = {"norms": "all ones"}
    assert compare_natures(kinds) == (
        "The norms is not the same at every step: all ones at steps 0, 1, 3; trained at step 2.",
    )


def test_two_architectures_and_two_precisions_are_found():
    one, two = LinearToy(), LinearToy(d_model=6)
    report = lh.CheckpointSeries.from_models({0: one, 1: two}).verify()
    assert not report.ok
    assert "The architecture is not the same at every step: LinearToy with 3 parameters" in str(report)
    mixed = lh.CheckpointSeries.from_models({0: one, 1: LinearToy(seed=1, dtype=torch.float32)}).verify().mixed
    assert mixed == ("The precision is not the same at every step: float64 at step 0; float32 at step 1.",)


def test_a_study_of_a_mixed_series_stops_at_its_checks(pocket_series, processed, tmp_path):
    models = {0: pocket_series.load(0), 1024: processed}
    series = lh.CheckpointSeries.from_models({**models, 4096: pocket_series.load(4096)})  # whose check is to come
    checked, earlier = Store(tmp_path / "now"), Store(tmp_path / "earlier")
    for step, model in models.items():
        found = {"fingerprint": fingerprint(model), "nature": nature(model)}
        checked.save(f"check/step{step}", found, "key", {})
        earlier.save(f"check/step{step}", {"fingerprint": found["fingerprint"]}, "key", {})
    seen = watch_checks(checked, series, allow_duplicates=True)
    seen("check/step0")
    with pytest.raises(InputError, match="The checkpoints are not of one kind: .*The embedding is not the same"):
        seen("check/step1024")
    seen = watch_checks(earlier, series, allow_duplicates=True)  # which says nothing of kinds
    for step in models:
        seen(f"check/step{step}")

"""Earlier runs that enter a study: only what their last start wanted, whole, and as they themselves counted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tl_lifehist as lh
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.config import LifeHistoryConfig, SAETraining
from tl_lifehist.store import Store
from tl_lifehist.sufficiency.carriers import carrier_enrichment
from tl_lifehist.sufficiency.given import GivenHistory
from tl_lifehist.sufficiency.stages.feature_masks import Site

pytestmark = pytest.mark.usefixtures("saelens")
HOOK, STEPS, LAST = "blocks.1.hook_resid_post", (512, 4096), 4096
TRAINING: dict[str, Any] = {"d_sae": 96, "k": 6, "training_tokens": 2000, "init": "independent"}
SIZES: dict[str, Any] = {
    "n_draws": 3, "load_tokens": 200, "n_permutations": 5, "n_repeats": 2, "frozen_draws": 20, "null_draws": 50,
    "n_rewired": 2, "singles_per_role": 2, "single_carriers": 3, "regression_sets": 8, "content_draws": 3,
    "n_frozen": 2, "min_count": 5, "min_similarity": 0.3,
}  # fmt: skip


def study(**changes: Any) -> lh.LifeHistoryStudy:
    texts = {"train": lh.TokenSet.pocket("train")[::30], "test": lh.TokenSet.pocket("test")[::50]}
    series = lh.CheckpointSeries.pocket().subset(STEPS)
    return lh.LifeHistoryStudy(series, (HOOK,), **texts, **{**SIZES, **changes})


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return study(**TRAINING).run(tmp_path_factory.mktemp("earlier") / "run").path


@pytest.fixture
def earlier(original: Path, tmp_path: Path) -> Path:
    """A copy of the run to change."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def start_otherwise(run: Path, stage: str) -> None:
    """As if the run had been started again with other settings and stopped before it came to the stage."""
    store = Store(run)
    plan = store.plan
    store.write_plan({**plan, stage: {**plan[stage], "threads": 99}})


# ------------------------------------------------------------------------------ life_history= of a sufficiency study

FILES = [
    f"stages/saes/step{LAST}/{HOOK}/sae_weights.safetensors",
    f"stages/profiles/step{LAST}/{HOOK}.npz",
    "stages/lineages/alive.json",
    "tables/features.parquet",
]


@pytest.mark.parametrize("file", FILES)
def test_one_wrong_bit_of_a_life_history_is_refused_by_name(earlier, file: str):
    history = GivenHistory(earlier)
    before = history.digest(LAST)
    assert history.digest(LAST) == before
    flip_a_bit(earlier / file)
    with pytest.raises(InputError, match=rf"{Path(file).name} is damaged.*start that run's own command again"):
        history.digest(LAST)


@pytest.mark.parametrize("file", [FILES[0], FILES[1], FILES[3]])
def test_features_are_not_read_from_a_damaged_life_history(earlier, file: str):
    lh.lifehistory.stored_features(earlier, LAST, HOOK)
    flip_a_bit(earlier / file)
    with pytest.raises(InputError, match=rf"{Path(file).name} is damaged"):
        lh.lifehistory.stored_features(earlier, LAST, HOOK)


@pytest.mark.parametrize("stage", ["tables", "lineages", f"saes/step{LAST}"])
def test_what_a_life_history_holds_of_an_earlier_start_is_refused(earlier, stage: str):
    start_otherwise(earlier, stage)
    with pytest.raises(InputError, match=rf"{stage} is stale \(threads: 1 → 99\)"):
        GivenHistory(earlier).digest(LAST)


def test_masks_are_over_the_features_that_the_run_itself_counts_as_alive(original):
    site = Site.read(str(original), LAST, HOOK)
    assert site is not None
    alive = site.subset.features.tolist()
    assert alive == np.flatnonzero(site.profile.alive(min_count=SIZES["min_count"])).tolist()
    by_default = set(np.flatnonzero(site.profile.alive()).tolist())
    assert set(site.carriers) - by_default, "no carrier fires rarely enough to tell the thresholds apart"
    assert set(site.carriers) <= set(alive)
    gates = torch.ones(len(alive))
    gates[[alive.index(feature) for feature in set(site.carriers) - by_default]] = 0.0
    found = carrier_enrichment(gates, site.profile, site.carriers, alive=alive, n_sets=20)
    kept = len(set(site.carriers) & by_default) / len(site.carriers)
    assert found.enrichment == pytest.approx(kept / float(gates.mean()))
    with pytest.raises(InputError, match=f"{len(alive)},.* gates for {len(by_default)} alive features"):
        carrier_enrichment(gates, site.profile, site.carriers, n_sets=20)


# ------------------------------------------------------------------------------------------------- saes= of a run


def test_an_earlier_run_says_how_its_saes_were_trained(original):
    taken = study(saes=original)
    assert taken.config.sae == SAETraining(**TRAINING)
    assert taken.frozen_level == "init"
    assert set(taken.replicates()) == set(study(**TRAINING).replicates())
    assert study(saes=original, config=LifeHistoryConfig(sae=SAETraining(**TRAINING))).config == taken.config
    assert study(saes=original, load_tokens=2000).warnings() == []


def test_other_saes_tell_their_own_size(original):
    saes = lh.dictionaries.load_saes(original / "stages" / "saes")
    taken = study(saes=saes)
    assert taken.config.sae == SAETraining(d_sae=96, k=6)
    own = {one.name: one.cost for one in study(d_sae=96, k=6).stages()}
    for one in taken.stages():
        if not one.name.startswith(("saes/", "profiles/")):  # which have replicates of their own
            assert one.cost == own[one.name], one.name


@pytest.mark.parametrize("changes", [{"training_tokens": 999}, {"k": 32}, {"init": "shared"}, {"d_sae": 48}])
def test_settings_of_training_beside_given_saes_are_refused(original, changes: dict[str, Any]):
    ((name, value),) = changes.items()
    with pytest.raises(InputError, match=rf"{name}={value!r} is a setting of training.*leave it out"):
        study(saes=original, **changes)


def test_a_section_of_training_beside_given_saes_is_refused(original):
    saes = lh.dictionaries.load_saes(original / "stages" / "saes")
    with pytest.raises(InputError, match="init='previous' is a setting of training"):
        study(saes=saes, config=LifeHistoryConfig(sae=SAETraining(init="previous")))


def test_replicates_of_an_earlier_start_stay_out(earlier):
    start_otherwise(earlier, f"replicates/init2/step{LAST}")
    left = earlier / "stages" / "replicates" / "data9"
    shutil.copytree(earlier / "stages" / "replicates" / "data1", left)
    expected = set(study(**TRAINING).replicates()) - {(LAST, "init2")}
    assert set(study(saes=earlier).replicates()) == expected


@pytest.mark.parametrize("stage", [f"saes/step{LAST}", f"replicates/init1/step{LAST}"])
def test_damaged_saes_are_refused(earlier, stage: str):
    flip_a_bit(earlier / "stages" / stage / HOOK / "sae_weights.safetensors")
    with pytest.raises(InputError, match=rf"{stage} is damaged \({HOOK}/sae_weights.safetensors is damaged\)"):
        study(saes=earlier)


def test_saes_that_are_missing_or_of_an_earlier_start_are_named(earlier):
    start_otherwise(earlier, "saes/step512")
    with pytest.raises(InputError, match=r"saes/step512 is stale .*start that run's own command again"):
        study(saes=earlier)
    shutil.rmtree(earlier / "stages" / "saes" / "step512")
    with pytest.raises(InputError, match=r"saes/step512 is missing: start that run's own command again"):
        study(saes=earlier)


def test_saes_of_another_kind_of_run_are_refused(earlier):
    store = Store(earlier)
    store.write_record({**store.record, "study": "sufficiency"})
    with pytest.raises(InputError, match="a run of another study, 'sufficiency'"):
        study(saes=earlier)

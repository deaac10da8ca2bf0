"""A change computes what depends on it and nothing else; SAEs that one has enter a study."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from small import HOOKS, small_study

import tl_lifehist as lh
from tl_lifehist.dry_run import plan_study
from tl_lifehist.errors import InputError
from tl_lifehist.execute import units_of
from tl_lifehist.runs import run_status
from tl_lifehist.store import Store

pytestmark = pytest.mark.usefixtures("saelens")
SIZES: dict[str, Any] = {"training_tokens": 2000, "d_sae": 48, "k": 6, "n_draws": 3, "load_tokens": 250}
STEPS = (0, 512, 4096)
LOADED: list[int] = []  # by the original run


def study(**changes: Any) -> lh.LifeHistoryStudy:
    return small_study(series=lh.CheckpointSeries.pocket().subset(STEPS), **{**SIZES, **changes})


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Iterator[Path]:
    load = lh.CheckpointSeries.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lh.CheckpointSeries, "load", lambda self, step: LOADED.append(step) or load(self, step))
        path = study().run(tmp_path_factory.mktemp("changes") / "run").path
    yield path
    LOADED.clear()


@pytest.fixture
def finished(original: Path, tmp_path: Path) -> Path:
    """A copy of the finished run to change."""
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def trainings(monkeypatch) -> Iterator[list[int]]:
    from tl_lifehist.lifehistory.stages import saes

    count: list[int] = []
    train_at = saes.train_at
    monkeypatch.setattr(saes, "train_at", lambda *a, **k: count.append(1) or train_at(*a, **k))
    return count


def computed(path: Path, before: dict[str, int]) -> set[str]:
    return {name for name, stamp in stamps(path).items() if before.get(name) != stamp}


def stamps(path: Path) -> dict[str, int]:
    return {n: (Store(path).folder(n) / "manifest.json").stat().st_mtime_ns for n in Store(path).stages()}


LOADS = {"load/count", "load/rate", "load/mass", "load/norm"}
TESTED = {"load/count", "load/mass"}
CHANGES: list[tuple[dict[str, Any], set[str], str]] = [
    ({"n_draws": 4}, {"recruitment", "forecasts", "calibration", *TESTED, "tables"}, "n_draws: 3 → 4"),
    (
        {"min_similarity": 0.6},
        {"lineages", "noise", "recruitment", "singles", *LOADS, "content", "sweeps", "forecasts", "calibration"}
        | {"tables"},
        "matching.min_similarity: 0.5 → 0.6",
    ),
    ({"n_permutations": 6}, {"forecasts", "tables"}, "forecast.n_permutations: 5 → 6"),
    ({"level": 0.01}, {*LOADS, "calibration", "tables"}, "level: 0.05 → 0.01"),
    ({"controls": ("count", "mass")}, {"tables"}, 'controls: ["count", "rate", "mass", "norm"] → ["count", "mass"]'),
    ({"contexts": 2}, {"content", "tables"}, "contexts: 5 → 2"),
    ({"reduced": {"everything": "much"}}, set(), ""),
    ({}, set(), ""),
]


@pytest.mark.parametrize(("change", "expected", "why"), CHANGES, ids=[",".join(c[0]) or "nothing" for c in CHANGES])
def test_a_change_computes_only_what_depends_on_it(finished, trainings, change: dict[str, Any], expected, why: str):
    before, lines = stamps(finished), []
    study(**change).run(finished, say=lines.append)
    assert computed(finished, before) == expected
    assert trainings == []
    assert lines[0].startswith("used again: ")
    assert len(lines) == 1 if not expected else any(why in line for line in lines[1:])
    assert set(run_status(finished)["state"]) == {"done"}


def test_a_changed_sae_trains_again_and_says_why(finished, trainings):
    plan = plan_study(study(k=5), finished)
    assert {one.stage.name for one in plan.stages if one.done} == {f"check/step{s}" for s in STEPS}
    assert any("sae.k: 6 → 5" in one.why for one in plan.stages)
    assert trainings == []


def test_one_more_checkpoint_trains_only_its_own(finished, trainings):
    series = lh.CheckpointSeries.pocket().subset([*STEPS[:2], 1024, STEPS[2]])
    small_study(series=series, **SIZES, noise_steps=(0, 512, 4096)).run(finished)
    assert len(trainings) == 1


@pytest.mark.parametrize("what", ["sae_weights.safetensors", "profile", "lineages.parquet", "tables"])
def test_damage_is_found_named_and_computed_again(original, finished, trainings, what: str):
    store = Store(finished)
    path = {
        "sae_weights.safetensors": store.folder("saes/step512") / HOOKS[0] / "sae_weights.safetensors",
        "profile": store.folder("profiles/step512") / f"{HOOKS[0]}.npz",
        "lineages.parquet": store.folder("lineages") / "lineages.parquet",
        "tables": store.folder("tables") / "events.parquet",
    }[what]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    status = run_status(finished).set_index("stage")
    (stage,) = status.index[status["state"] == "damaged"]
    assert path.name in status.loc[stage, "why"]
    lines: list[str] = []
    run = study().run(finished, say=lines.append)
    assert any("damaged" in line and stage in line and path.name in line for line in lines)
    assert len(trainings) == (what == "sae_weights.safetensors")
    for name in run.tables:
        pd.testing.assert_frame_equal(run.table(name), Store(original).table(name), check_exact=True)


def test_what_travels_to_a_worker_is_small(original):
    plan = plan_study(study())
    units = units_of(plan.stages, str(original), study().series, {"train": "x", "test": "y"}, 1)
    sizes = [len(pickle.dumps(unit)) for unit in units]
    assert max(sizes) < 100_000
    assert len(units) == len(STEPS) + 14  # one for each checkpoint, and the analyses


def test_a_checkpoint_is_loaded_once_for_all_its_saes(original):
    """And the last one once more, for the ablations, which need what comes between."""
    assert sorted(LOADED[: len(STEPS)]) == list(STEPS)
    assert set(LOADED[len(STEPS) :]) == {STEPS[-1]}


def test_given_saes_enter_as_the_first_stages_output(original, tmp_path, trainings):
    saes = lh.dictionaries.load_saes(original / "stages" / "saes")
    alone = study(saes={key: saes[key] for key in saes}, training_tokens=600_000).run(tmp_path / "mapping")
    assert trainings == []
    for name in ("lineages", "features", "dag", "load", "forecast"):
        expected = Store(original).table(name)
        if name == "load":  # without replicates nothing is seed-stable
            expected = expected[expected["kind"] != "stable"].reset_index(drop=True)
        pd.testing.assert_frame_equal(alone.table(name), expected, check_exact=True)
    claims = alone.claims.set_index("id")
    # nobody knows how these were trained, so what needs the noise of their training is not testable
    for name in ("direction.function_first", "features.change"):
        assert claims["verdict"][name] == "not testable"
        assert "trained a second time" in claims["sentence"][name]
    assert claims["effect"][["carriers.frozen"]].isna().all()
    assert "<html" in alone.report().read_text()


def test_saes_of_an_earlier_run_bring_their_replicates(original, tmp_path, trainings):
    run = study(saes=original, min_similarity=0.6).run(tmp_path / "run")
    assert trainings == []
    changed = study(min_similarity=0.6).run(Path(shutil.copytree(original, tmp_path / "other")))
    for name in run.tables:
        pd.testing.assert_frame_equal(run.table(name), changed.table(name), check_exact=True, obj=name)


def test_given_saes_that_do_not_fit_are_refused(original):
    saes = lh.dictionaries.load_saes(original / "stages" / "saes")
    some = {key: saes[key] for key in saes if key != (512, HOOKS[1])}
    with pytest.raises(InputError, match=r"none for step 512 at 'blocks\.3\.hook_resid_post' \(1 are missing\)"):
        study(saes=some)
    with pytest.raises(InputError, match="holds no step folders with SAEs"):
        study(saes=original / "tables")


def test_settings_are_checked_by_name():
    with pytest.raises(InputError, match=r"'min_similarty' is no setting; the nearest are: min_similarity"):
        study(min_similarty=0.5)
    with pytest.raises(InputError, match="n_draws=0 must be at least 1"):
        study(n_draws=0)
    with pytest.raises(InputError, match="controls="):
        study(controls=("age",))
    from tl_lifehist.lifehistory.config import LifeHistoryConfig, SAETraining

    nested = study(config=LifeHistoryConfig(sae=SAETraining(init="independent")))
    assert nested.config.sae.init == "independent"
    assert nested.config.sae.d_sae == SIZES["d_sae"]


def test_the_global_state_is_left_alone(original):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    study().run(original)
    assert torch.equal(torch.get_rng_state(), before)

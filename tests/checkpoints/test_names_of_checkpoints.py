"""Checkpoints as people name them, on disk and on the hub, and one run of several."""

from __future__ import annotations

import shutil

import pytest

from tl_lifehist.checkpoints.revisions import find_places, match_names, parse_revision, select_steps
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError

SPELLINGS = {
    "step_60": 60,
    "step-00100": 100,
    "steps": None,
    "global_step100": 100,
    "globalstep-100": 100,
    "iter_0000100": 100,
    "checkpoint_100": 100,
    "checkpoint=100": 100,
    "model_step100": 100,
    "model-step-100": 100,
    "ckpt_000": 0,
    "epoch=0-step=100": 100,
    "step100-tokens4B": 100,
    "model_100": None,
    "restep_100": None,
    "step_100_old": None,
    "step100.bak": None,
    "v100": None,
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_says_its_step_or_nothing(name):
    found = parse_revision(name)
    assert (None if found is None else found.step) == SPELLINGS[name]


def test_stages_and_seeds_are_read_in_their_other_spellings():
    smollm3 = parse_revision("stage1-step-40000")
    assert smollm3 is not None
    assert (smollm3.stage, smollm3.step) == (1, 40000)
    for name, run in {"step1250-seed-large-aux-2": "seed large-aux-2", "seed3_step1250": "seed 3"}.items():
        found = parse_revision(name)
        assert found is not None
        assert (found.step, found.run) == (1250, run)


@pytest.mark.parametrize("form", ["step_{}", "global_step{}", "iter_{:07d}", "step-{:05d}", "model_step{}", "{}"])
def test_folders_and_branches_of_each_spelling_load(hub, run_folder, tmp_path, form, tiny_model, ids):
    folder = tmp_path / "theirs"
    for step in (1, 1000):
        shutil.copytree(run_folder / f"step{step}", folder / form.format(step))
    (folder / "logs").mkdir()
    on_disk = CheckpointSeries.from_directory(folder, device="cpu")
    assert on_disk.steps == (1, 1000)
    hub.server.repos["tiny/theirs"] = {"main": folder / form.format(1000)} | {
        form.format(step): folder / form.format(step) for step in (1, 1000)
    }
    on_hub = CheckpointSeries.from_hub("tiny/theirs", cache_dir=hub.cache, device="cpu")
    assert on_hub.steps == (1, 1000)
    assert on_hub.plan()["revision"].tolist() == [form.format(1), form.format(1000)]


def test_bare_numbers_are_steps_only_where_no_name_says_more(run_folder, tmp_path):
    shutil.copytree(run_folder / "step1", tmp_path / "theirs" / "2024" / "step1")
    assert CheckpointSeries.from_directory(tmp_path / "theirs").steps == (1,)
    assert select_steps(["main", "100", "20"]) == {20: "20", 100: "100"}
    assert select_steps(["step5", "100"]) == {5: "step5"}


def test_a_pattern_covers_branches_folders_and_files(hub, run_folder, tmp_path):
    folder = tmp_path / "theirs"
    for step in (1, 1000):
        shutil.copytree(run_folder / f"step{step}", folder / "out" / f"phase1_{step}-x{step}")
    series = CheckpointSeries.from_directory(folder, pattern="out/phase1_{step}-*", device="cpu")
    assert series.steps == (1, 1000)
    branches = {f"phase1_{step}-x{step}": folder / "out" / f"phase1_{step}-x{step}" for step in (1, 1000)}
    hub.server.repos["tiny/phases"] = {"main": folder, "phase2_1-x1": run_folder / "step1", **branches}
    found = CheckpointSeries.from_hub("tiny/phases", pattern="phase1_{step}-*", cache_dir=hub.cache, device="cpu")
    assert found.plan()["revision"].tolist() == ["phase1_1-x1", "phase1_1000-x1000"]
    assert found.load(1) is not None
    inside = CheckpointSeries.from_hub("tiny/phases", pattern="out/phase1_{step}-*", cache_dir=hub.cache)
    assert inside.plan()["revision"].tolist() == ["out/phase1_1-x1", "out/phase1_1000-x1000"]
    with pytest.raises(
        InputError, match=r"two checkpoints of step 1 that look like 'phase\*_\{step\}-\*', phase1_1-x1"
    ):
        CheckpointSeries.from_hub("tiny/phases", pattern="phase*_{step}-*", cache_dir=hub.cache)
    with pytest.raises(
        InputError, match=r"no branch and no folder that looks like 'p\{step\}'; its branches are main, ph"
    ):
        CheckpointSeries.from_hub("tiny/phases", pattern="p{step}", cache_dir=hub.cache)
    with pytest.raises(InputError, match=r"holds nothing that looks like 'p\{step\}'; there are out"):
        CheckpointSeries.from_directory(folder, pattern="p{step}")
    assert match_names("a.{step}", ["a.7", "ab7", "a.7/x"]) == {7: "a.7"}


def test_names_that_say_nothing_are_shown_with_the_option_to_give(hub, run_folder, tmp_path):
    shutil.copytree(run_folder / "step1", tmp_path / "theirs" / "phase1_55500")
    with pytest.raises(InputError, match=r"are looked for; there are phase1_55500: say how they look with pattern="):
        CheckpointSeries.from_directory(tmp_path / "theirs")
    hub.server.repos["tiny/odd"] = {"main": tmp_path / "theirs", "phase1_55500": run_folder / "step1"}
    with pytest.raises(InputError, match=r"hold no checkpoint.*there are main, phase1_55500, phase1_55500: say how"):
        CheckpointSeries.from_hub("tiny/odd", cache_dir=hub.cache)


def test_sibling_runs_are_never_one_history():
    ingredients = ["stage2-ingredient1-step1000-tokens3B", "stage2-ingredient2-step2000-tokens5B"]
    with pytest.raises(InputError, match=r"of 2 training runs \(ingredient 1, ingredient 2\).*ingredient= or pattern="):
        select_steps(ingredients)
    assert select_steps(ingredients, ingredient=2) == {2000: ingredients[1]}
    assert select_steps(ingredients, wanted=[2000]) == {2000: ingredients[1]}
    seeds = ["step0-seed-default", "step1250-seed-default", "step2500-seed-large-aux-2"]
    with pytest.raises(InputError, match=r"\(seed default, seed large-aux-2\).*pattern='step\{step\}-seed-default'"):
        select_steps(seeds)
    assert match_names("step{step}-seed-default", seeds) == {0: seeds[0], 1250: seeds[1]}
    assert select_steps(["step0", "step5", "step9-seed-1"]) == {0: "step0", 5: "step5"}
    folders = ["a/step1/model.safetensors", "b/step2/model.safetensors"]
    with pytest.raises(InputError, match=r"2 training runs \(a, b\), a/step1 and b/step2.*pattern='a/step\{step\}'"):
        find_places(folders)
    assert find_places([*folders, "step7/model.safetensors"]) == {7: "step7"}
    assert find_places(["x/run-1/step3/pt/model.safetensors", "x/run-1/step40/pt/model.safetensors"]) == {
        3: "x/run-1/step3/pt",
        40: "x/run-1/step40/pt",
    }


def test_sibling_branches_on_the_hub_are_refused_until_one_is_named(published):
    repo = "allenai/OLMo-2-0425-1B"
    branches = published.server.repos[repo]
    later = {"stage2-ingredient2-step2000-tokens5B": branches["stage2-ingredient2-step1000-tokens3B"]}
    published.server.repos["tiny/two"] = {**branches, **later}
    with pytest.raises(InputError, match="2 training runs"):
        CheckpointSeries.from_hub("tiny/two", stage=2, cache_dir=published.cache)
    asked = CheckpointSeries.from_hub("tiny/two", [2000], stage=2, cache_dir=published.cache)
    assert asked.steps == (2000,)
    assert CheckpointSeries.from_hub("tiny/two", stage=2, ingredient=2, cache_dir=published.cache).steps == (1000, 2000)

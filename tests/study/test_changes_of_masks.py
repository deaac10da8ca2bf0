"""A checkpoint is loaded and reads its train text once; a change computes what depends on it and nothing else."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from small_masks import HOOKS, small_masks

import tl_lifehist as lh
from tl_lifehist.execute import units_of
from tl_lifehist.runs import Run
from tl_lifehist.store import Store
from tl_lifehist.study import plan_of

STEPS = (0, 512, 4096)
LOADS = {0: 1, 512: 1, 4096: 2}  # the last one also to tell the shape of models that come from a user's own loader
QUICK: dict[str, Any] = {"methods": ("svd", "ica"), "close_ups": ("svd",), "mask_steps": 3, "translator_steps": 2}
CHECKS = 12  # sequences on which it is checked, once a model, what is assumed of it


class Counting:
    """A series that counts loads, and the train sequences that each checkpoint is run on."""

    def __init__(self, train: lh.TokenSet) -> None:
        self.train = {tuple(row) for row in train.ids.tolist()}
        self.loads: Counter[int] = Counter()
        self.read: Counter[int] = Counter()
        self.series = lh.CheckpointSeries.from_loader(STEPS, self.load, name="counted")

    def load(self, step: int) -> Any:
        self.loads[step] += 1
        model = lh.CheckpointSeries.pocket().load(step)

        def see(module: Any, args: tuple[Any, ...]) -> None:
            self.read[step] += sum(tuple(row) in self.train for row in args[0].tolist())

        model.register_forward_pre_hook(see)
        return model


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> tuple[Counting, Run, int]:
    train = small_masks().train
    assert len({tuple(row) for row in train.ids.tolist()}) == len(train)
    counting = Counting(train)
    run = small_masks(series=counting.series, **QUICK).run(tmp_path_factory.mktemp("counted") / "run")
    return counting, run, len(train)


def test_a_checkpoint_is_loaded_once_and_reads_the_train_text_once(counted):
    """For the dictionaries of all methods and seeds, fixed heads and alignments, at all hook points."""
    counting, _, n = counted
    assert counting.loads == LOADS
    assert set(counting.read) == set(STEPS)
    assert all(n <= read <= n + CHECKS < 2 * n for read in counting.read.values())


def test_hook_points_may_be_read_a_few_at_a_time(counted, tmp_path):
    _, run, n = counted
    counting = Counting(small_masks().train)
    split = small_masks(series=counting.series, hooks_per_pass=1, **QUICK).run(tmp_path / "run")
    assert counting.loads == LOADS
    assert 0 <= counting.read[0] - 2 * len(HOOKS) * n <= CHECKS  # once for the fits, once for those of further seeds
    assert 0 <= counting.read[4096] - len(HOOKS) * n <= CHECKS
    for name in run.tables:
        pd.testing.assert_frame_equal(run.table(name), split.table(name), check_exact=True, obj=name)


def of_each(*kinds: str) -> set[str]:
    return {f"{kind}/step{step}" for kind in kinds for step in STEPS} | {"tables"}


CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({"n_random": 3}, of_each("scores")),
    ({"fisher_rows": 50}, of_each("scores")),
    ({"penalty_total": 0.3}, of_each("masks", "scores")),
    ({"sweep": (0.5,)}, of_each("masks", "scores")),
    ({"seeds": (0, 2)}, of_each("refits", "masks", "scores")),
    ({"translator_steps": 3}, of_each("fits", "refits", "masks", "scores")),
    ({"leave_out_massive": 0.01}, of_each("fits", "refits", "masks", "scores")),
    ({"level": 0.01}, {"tables"}),
    ({"max_lost": 0.2}, {"tables"}),
    ({"hooks_per_pass": 1}, set()),
    ({"reduced": {"everything": "much"}}, set()),
    ({"test": lh.TokenSet.pocket("test")[7::60][:6]}, of_each("scores")),
    ({"calibration": lh.TokenSet.pocket("calibration")[7::60][:6]}, of_each("masks", "scores")),
    ({}, set()),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=[",".join(c) or "nothing" for c, _ in CHANGES])
def test_a_change_makes_stale_what_depends_on_it(counted, change: dict[str, Any], expected: set[str]):
    counting, run, _ = counted
    study = small_masks(series=counting.series, **{**QUICK, **change})
    planned = plan_of(study, Store(run.path), threads=1)
    assert {one.stage.name for one in planned if not one.done} == expected
    assert {one.state for one in planned} <= {"done", "stale"}


def test_what_a_change_leaves_is_used_again(counted, tmp_path):
    counting, run, _ = counted
    before = stamps(run.path)
    again = small_masks(series=counting.series, **{**QUICK, "level": 0.2}).run(run.path)
    after = stamps(run.path)
    assert {name for name in after if before[name] != after[name]} == {"tables"}
    assert again.claims["id"].is_unique
    small_masks(series=counting.series, **QUICK).run(run.path)


def stamps(path: Path) -> dict[str, int]:
    return {n: (Store(path).folder(n) / "manifest.json").stat().st_mtime_ns for n in Store(path).stages()}


def test_a_unit_is_small_and_the_others_wait_for_the_last_checkpoints_fits_alone():
    study = small_masks(series=lh.CheckpointSeries.pocket().subset(STEPS))
    planned = plan_of(study, None, threads=1)
    units = units_of(planned, "run", study.series, {}, 1)
    assert all(len(pickle.dumps(unit)) < 100_000 for unit in units)
    names = [[one.stage.name for one in unit.planned] for unit in units]
    assert names[0] == ["check/step4096", "fits/step4096"]
    assert names[1] == [f"{kind}/step0" for kind in ("check", "fits", "refits", "masks", "scores")]
    assert names[3] == [f"{kind}/step4096" for kind in ("refits", "masks", "scores")]
    assert names[4] == ["tables"]

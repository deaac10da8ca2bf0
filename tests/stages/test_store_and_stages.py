"""Stages over a store, with stages that need no model: what a change makes stale, and what damage costs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

import tl_lifehist as lh
from tl_lifehist.checkpoints.pocket import pocket_path
from tl_lifehist.errors import InputError
from tl_lifehist.execute import execute, limited_threads, run_unit, units_of
from tl_lifehist.lifehistory.control_kinds import CONTROLS, Control
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.preflight import check_stages
from tl_lifehist.stages import Inputs, Stage, differences, params_of, plain, plan, state_of
from tl_lifehist.store import Store, clear_disk_errors


@pytest.fixture
def series(pocket_series) -> lh.CheckpointSeries:
    return pocket_series


def numbers(inputs: Inputs, *, n: int) -> dict[str, Any]:
    return {"table": pd.DataFrame({"x": np.arange(n)}), "deep/array": {"y": np.ones(n)}}


def total(inputs: Inputs, *, scale: float) -> dict[str, Any]:
    return {"sum": {"value": float(inputs["numbers"]["table"]["x"].sum() * scale)}}


def tables(inputs: Inputs) -> dict[str, Any]:
    return {"claims": pd.DataFrame({"value": [inputs["total"]["sum"]["value"]]})}


def three(n: int = 4, scale: float = 1.0) -> list[Stage]:
    return [
        Stage("numbers", numbers, {"n": n}),
        Stage("total", total, {"scale": scale}, needs=("numbers",)),
        Stage("tables", tables, needs=("total",)),
    ]


def run(path: Path, stages: list[Stage], series: Any, **knobs: Any) -> dict[str, tuple[str, str]]:
    store = Store(path)
    with store.held():
        planned = plan(stages, store, series, {}, threads=1)
        execute(planned, store, series, {}, threads=1, progress=False, **knobs)
    return {one.stage.name: (one.state, one.why) for one in planned}


def test_a_change_makes_stale_what_lies_to_its_right_and_says_why(tmp_path, series):
    assert {state for state, _ in run(tmp_path, three(), series).values()} == {"missing"}
    assert {state for state, _ in run(tmp_path, three(), series).values()} == {"done"}
    changed = run(tmp_path, three(scale=2.0), series)
    assert changed == {
        "numbers": ("done", ""),
        "total": ("stale", "scale: 1.0 → 2.0"),
        "tables": ("stale", "follows total"),
    }
    assert Store(tmp_path).table("claims")["value"].tolist() == [12.0]
    assert run(tmp_path, three(n=5, scale=2.0), series)["numbers"] == ("stale", "n: 4 → 5")


@pytest.mark.parametrize("kind", ["parquet", "npz", "manifest", "removed", "emptied"])
def test_damage_is_found_named_and_computed_again(tmp_path, series, kind: str):
    run(tmp_path, three(), series)
    before = Store(tmp_path).table("claims")
    folder = Store(tmp_path).folder("numbers")
    path = {"npz": folder / "deep/array.npz", "manifest": folder / "manifest.json"}.get(kind, folder / "table.parquet")
    if kind == "removed":
        path.unlink()
    elif kind == "emptied":
        path.write_bytes(b"")
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    state, why = run(tmp_path, three(), series)["numbers"]
    assert state in ("damaged", "stale")
    assert path.name in why or kind == "manifest"
    assert {state for state, _ in run(tmp_path, three(), series).values()} == {"done"}
    pd.testing.assert_frame_equal(Store(tmp_path).table("claims"), before)


def test_a_changed_byte_of_a_table_is_not_read_as_a_number(tmp_path, series):
    run(tmp_path, three(), series)
    path = tmp_path / "tables" / "claims.parquet"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"claims\.parquet is damaged"):
        Store(tmp_path).table("claims")


def test_every_kind_of_output_comes_back(tmp_path):
    graph = nx.DiGraph()
    graph.add_edge(("a", 1), ("b", 2), lift=2.0)
    values = {
        "frame": pd.DataFrame({"a": [1, 2], "b": ["x", None]}),
        "deep/tensors": {"w": torch.arange(6.0).reshape(2, 3).t()},
        "arrays": {"v": np.array(2.5), "w": np.arange(3)},
        "graph": graph,
        "record": {"a": [1, None, "ü"]},
        "nothing": {},
    }
    store = Store(tmp_path)
    store.save("one", values, "key", {})
    found = store.results("one")
    assert set(found) == set(values)
    pd.testing.assert_frame_equal(found["frame"], values["frame"])
    assert torch.equal(found["deep/tensors"]["w"], values["deep/tensors"]["w"])
    assert float(found["arrays"]["v"]) == 2.5
    assert list(found["graph"].edges) == [("a/1", "b/2")]
    assert found["record"] == values["record"]
    assert found["nothing"] == {}
    assert store.damage("one") is None
    with pytest.raises(InputError, match=r"the nearest are: frame"):
        found["fram"]


def undeclared(inputs: Inputs) -> dict[str, Any]:
    return {"x": inputs["numbers"]["table"]}


def test_a_stage_reads_only_what_it_says_it_needs(tmp_path, series):
    stages = [three()[0], Stage("other", undeclared)]
    with pytest.raises(InputError, match=r"reads 'numbers', but its needs are \[\]"):
        run(tmp_path, stages, series)
    assert run(tmp_path, stages[:1], series)["numbers"][0] == "done"


def pid(inputs: Inputs, *, step: int) -> dict[str, Any]:
    return {"pid": id(inputs.model(step)), "shared": inputs.shared("x", lambda: os.urandom(4).hex())}


def grouped(steps: tuple[int, ...]) -> list[Stage]:
    return [
        Stage(f"{name}/{step}", pid, {"step": step}, steps=(step,), group=f"step{step}")
        for step in steps
        for name in ("a", "b")
    ]


def test_a_group_shares_its_model_and_its_passes(tmp_path, pocket_series):
    count: list[int] = []

    def load(step: int) -> Any:
        count.append(step)
        return pocket_series.load(step)

    series = lh.CheckpointSeries.from_loader([512, 4096], load)
    run(tmp_path, grouped((512, 4096)), series)
    assert count == [512, 4096]
    store = Store(tmp_path)
    for what in ("pid", "shared"):
        assert store.results("a/512")[what] == store.results("b/512")[what]
    assert store.results("a/512")["shared"] != store.results("a/4096")["shared"]


def test_an_executor_gives_the_same_and_what_is_sent_is_small(tmp_path, series):
    run(tmp_path / "here", three(), series)
    with ThreadPoolExecutor(2) as pool:
        run(tmp_path / "there", three(), series, executor=pool)
    for name in ("numbers", "total", "tables"):
        a, b = (Store(tmp_path / where).manifest(name) for where in ("here", "there"))
        assert (a.key, a.files) == (b.key, b.files)
    planned = plan(three(), None, series, {}, threads=1)
    for unit in units_of(planned, str(tmp_path), series, {}, 1):
        assert len(pickle.dumps(unit)) < 10_000


def failing(inputs: Inputs) -> dict[str, Any]:
    raise InputError("this fails")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_keeps_what_is_finished(tmp_path, series, workers: int):
    stages = [three()[0], Stage("bad", failing, needs=("numbers",))]
    with ThreadPoolExecutor(2) as pool, pytest.raises(InputError, match="this fails"):
        run(tmp_path, stages, series, executor=pool if workers else None)
    assert Store(tmp_path).stages() == ["numbers"]
    assert not list(tmp_path.rglob(".partial-*"))


def test_a_folder_is_held_by_one_and_old_ones_are_refused(tmp_path):
    store = Store(tmp_path / "run")
    with store.held(), pytest.raises(InputError, match="Another process is working"), Store(store.path).held():
        pass
    (store.path / "study.json").write_text(json.dumps({"study": "life-history"}))
    with pytest.raises(InputError, match="earlier version"):
        _ = store.record
    (store.path / "study.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        _ = store.record


def test_texts_are_stored_once_under_a_key_that_covers_shapes(tmp_path):
    ids = torch.arange(12).reshape(3, 4)
    one = lh.TokenSet(ids, ids > 0, ids)
    other = lh.TokenSet(ids.reshape(4, 3), ids.reshape(4, 3) > 0, ids.reshape(4, 3), documents=torch.zeros(4, 3).long())
    same = lh.TokenSet(ids.reshape(3, 4).clone(), ids > 0, ids)
    assert one.key == same.key != other.key
    store = Store(tmp_path)
    path = store.path / "texts" / f"{store.put_text(one)}.safetensors"
    written = path.stat().st_mtime_ns
    assert store.text(store.put_text(same)).key == one.key
    assert path.stat().st_mtime_ns == written
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    store.put_text(one)
    assert store.text(one.key).key == one.key


class Job:
    """No future: it only answers done() and result()."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def result(self) -> Any:
        return self._future.result()


class Cluster:
    def __init__(self) -> None:
        self.pool, self.submitted = ThreadPoolExecutor(1), 0

    def submit(self, fn: Any, *args: Any) -> Job:
        self.submitted += 1
        return Job(self.pool.submit(fn, *args))


def test_jobs_that_are_no_futures_are_polled_and_each_is_sent_once(tmp_path, series):
    cluster = Cluster()
    run(tmp_path, three(), series, executor=cluster)
    run(tmp_path, three(), series, executor=cluster)
    assert cluster.submitted == 3


def test_stages_are_listed_while_another_process_writes_and_moves(tmp_path):
    store, stop = Store(tmp_path / "run"), threading.Event()
    (store.path / "stages").mkdir(parents=True)

    def write() -> None:
        while not stop.is_set():
            store.save("deep/one", {"numbers": {"x": np.arange(3)}}, "key", {})

    with ThreadPoolExecutor(1) as executor:
        writing = executor.submit(write)
        try:
            seen = [store.stages() for _ in range(400)]
        finally:
            stop.set()
        writing.result()
    assert {name for names in seen for name in names} == {"deep/one"}


def test_an_orphan_that_was_quicker_is_accepted(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save("a", {"x": 1}, "key", {})
    monkeypatch.setattr(Path, "exists", lambda self: False)  # it comes between the look and the move
    store.save("a", {"x": 2}, "key", {})
    with pytest.raises(OSError, match="not empty"):
        store.save("a", {"x": 2}, "another", {})
    monkeypatch.undo()
    assert store.results("a")["x"] == 1
    assert not list(tmp_path.rglob(".partial-*"))


def test_threads_are_set_and_put_back():
    before, inside = torch.get_num_threads(), []

    @limited_threads(3)
    def work() -> None:
        inside.append(torch.get_num_threads())
        raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert inside == [3]
    assert torch.get_num_threads() == before


def test_full_disk_and_read_only_folder_are_named(tmp_path):
    for number, message in ((errno.ENOSPC, "is full"), (errno.EROFS, "cannot be written")):
        with pytest.raises(InputError, match=message), clear_disk_errors(tmp_path):
            raise OSError(number, "x")
    with pytest.raises(FileNotFoundError), clear_disk_errors(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "ours to mend")


def profile() -> FeatureProfiles:
    rng = np.random.default_rng(0)
    codes = rng.random((30, 4)) * (rng.random((30, 4)) < 0.3)
    return FeatureProfiles(5, "h", sp.csr_array(codes.astype(np.float32)), 2.5, decoder_norm=np.arange(4) + 1.0)


def test_profiles_come_back_as_they_were(tmp_path):
    own = profile()
    Store(tmp_path).save("one", {"h": own.to_arrays()}, "key", {})
    again = FeatureProfiles.from_arrays(Store(tmp_path).results("one")["h"], step=5, hook_name="h")
    assert (again.acts != own.acts).nnz == 0
    assert again.residual_norm == 2.5
    np.testing.assert_array_equal(again.norm, own.norm)


@pytest.mark.parametrize("name", ["indices", "indptr", "shape"])
def test_a_profile_whose_indices_lead_nowhere_is_refused_before_compiled_code_sees_it(name: str):
    arrays = profile().to_arrays()
    arrays[name] = arrays[name].copy()
    arrays[name][-1] = {"indices": 30, "indptr": 99, "shape": 3}[name]
    with pytest.raises(InputError, match="stored profile of step 5 at 'h' is damaged"):
        FeatureProfiles.from_arrays(arrays, step=5, hook_name="h")


def test_every_difference_is_named_by_its_path():
    before, now = {"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 2, "c": [1]}, "e": 3}
    assert list(differences(before, now)) == [("a.b", 1, 2), ("d", 2, None), ("e", None, 3)]


def test_only_plain_values_can_be_parameters():
    with pytest.raises(TypeError, match="cannot be a parameter"):
        plain({"x": np.array([1])})


def takes(inputs: Inputs, *, n: int, other: int = 3) -> dict[str, Any]:
    return {}


def test_parameters_of_a_stage_are_what_its_function_names():
    assert params_of(takes, {"n": 1, "unused": 2}) == {"n": 1}
    assert params_of(takes, {"n": 1, "other": 2}) == {"n": 1, "other": 2}
    with pytest.raises(KeyError):
        params_of(takes, {"other": 2})


def test_no_flipped_bit_of_a_manifest_leaves_a_stage_done(tmp_path, series):
    run(tmp_path, three(), series)
    path = Store(tmp_path).folder("numbers") / "manifest.json"
    whole = path.read_bytes()
    planned = plan(three(), Store(tmp_path), series, {}, threads=1)[0]
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):
            if json.loads(damaged) == json.loads(whole):  # white space
                continue
        assert state_of("numbers", planned.decided_by, Store(tmp_path))[0] in ("damaged", "stale"), place


def test_outputs_of_another_start_are_not_read_and_not_written_under_a_new_one(tmp_path, series):
    """As when a worker outlives the run that sent it."""
    store = Store(tmp_path)
    old = plan(three(n=1), store, series, {}, threads=1)
    units = units_of(old, str(tmp_path), series, {}, 1)
    new = plan(three(n=2), store, series, {}, threads=1)
    with store.held():
        store.write_record({"study": "x"})
        store.write_plan({one.stage.name: one.decided_by for one in new})
        with pytest.raises(InputError, match="started with other settings meanwhile"):
            run_unit(units[0])
        assert store.stages() == []
        store.save("numbers", {"table": pd.DataFrame({"x": [0]})}, old[0].key, old[0].decided_by)
        with pytest.raises(InputError, match="not those that 'total' was planned for"):
            run_unit(units_of(new, str(tmp_path), series, {}, 1)[1])


def test_tables_of_an_earlier_configuration_are_refused(tmp_path, series):
    run(tmp_path, three(), series)
    store = Store(tmp_path)
    for stages, fresh in ((three(), True), (three(scale=3.0), False)):
        store.write_record({"study": "x"})
        planned = plan(stages, store, series, {}, threads=1)
        store.write_plan({one.stage.name: one.decided_by for one in planned})
        if fresh:
            assert len(store.table("claims")) == 1
        else:
            with pytest.raises(
                InputError, match="of earlier settings.*with the new settings to finish it, or with the earlier ones"
            ):
                store.table("claims")


def test_units_run_in_an_order_that_their_needs_allow(tmp_path, series):
    stages = [
        Stage("numbers", numbers, {"n": 3}, group="g"),
        Stage("middle", again, {"of": "numbers"}, needs=("numbers",), group="h"),
        Stage("last", again, {"of": "middle"}, needs=("middle",), group="g"),
    ]
    run(tmp_path, stages, series)
    assert Store(tmp_path).stages() == ["last", "middle", "numbers"]


def again(inputs: Inputs, *, of: str) -> dict[str, Any]:
    return {"table": inputs[of]["table"]}


def test_a_kill_in_the_middle_of_a_replacement_loses_nothing(tmp_path):
    store = Store(tmp_path)
    store.save("deep/a", {"x": 1}, "key", {})
    folder = store.folder("deep/a")
    os.replace(folder, folder.parent / f".before-12345678-{folder.name}")
    (folder.parent / ".partial-a-12345678").mkdir()
    with store.held():
        assert store.results("deep/a")["x"] == 1
    assert [path.name for path in folder.parent.iterdir()] == ["a"]


def ablated(inputs: Inputs, *, step: int, number: int) -> dict[str, Any]:
    model, tokens = inputs.model(step), lh.TokenSet.pocket("test")[:4]
    hooks = [("blocks.1.hook_resid_post", lambda value, hook: value * 0)] if number % 2 else []
    total = 0.0
    for _ in range(4):
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            total += float(model(tokens.ids).double().sum())
    return {"sum": total}


def test_threads_of_one_process_do_not_see_each_others_hooks(tmp_path, series):
    stages = [Stage(f"s{i}", ablated, {"step": 4096, "number": i}, steps=(4096,)) for i in range(6)]
    run(tmp_path / "here", stages, series)
    with ThreadPoolExecutor(3) as pool:
        run(tmp_path / "there", stages, series, executor=pool)
    for stage in stages:
        here, there = (Store(tmp_path / where).results(stage.name)["sum"] for where in ("here", "there"))
        assert there == pytest.approx(here, rel=1e-9)


def test_a_loader_that_gives_other_weights_is_noticed(tmp_path, pocket_series):
    steps = {512: 512, 4096: 4096}
    series = lh.CheckpointSeries.from_loader([512, 4096], lambda step: pocket_series.load(steps[step]))
    checks = check_stages(series, ["blocks.1.hook_resid_post"])
    run(tmp_path, checks, series)
    steps[512] = 0
    with pytest.raises(InputError, match="weights at step 512 are not those"):
        run(tmp_path, [*checks, *grouped((512,))], series)


def test_what_is_loaded_and_how_decides(tmp_path):
    folder = shutil.copytree(pocket_path(), tmp_path / "series")
    known = [lh.CheckpointSeries.from_directory(folder).identity(512)]
    known.append(lh.CheckpointSeries.from_directory(folder, dtype=torch.bfloat16).identity(512))
    home = folder / "step512" if (folder / "step512" / "config.json").exists() else folder
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.1}))
    known.append(lh.CheckpointSeries.from_directory(folder).identity(512))
    assert len(set(known)) == 3


def test_the_code_of_an_added_entry_decides_what_names_it(series):
    def key() -> str:
        return plan([Stage("x", takes, {"n": 1, "other": "mine"})], None, series, {}, threads=1)[0].key

    plain_key = key()
    keys = []
    for label in ("as many a", "as many b"):
        CONTROLS.register("mine", Control("mine", label, "short", entropy))
        keys.append(key())
        CONTROLS.unregister("mine")
    assert len({plain_key, *keys}) == 3


def entropy(profile: Any) -> Any:
    return profile.entropy


def test_folders_of_other_versions_are_told_apart(tmp_path):
    (tmp_path / "units").mkdir()
    with pytest.raises(InputError, match="earlier version"):
        _ = Store(tmp_path).record
    (tmp_path / "units").rmdir()
    (tmp_path / "study.json").write_text(json.dumps({"study": "x", "format": 99}))
    with pytest.raises(InputError, match="later version"):
        _ = Store(tmp_path).record
    Store(tmp_path).write_record({"study": "x"})
    (tmp_path / "plan.json").write_text('{"numbers": {}}')
    with pytest.raises(InputError, match=r"plan\.json is missing or damaged"):
        _ = Store(tmp_path).plan

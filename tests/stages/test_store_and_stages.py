"""Stages over a store, with stages that need no model: what a change makes stale, and what damage costs."""

from __future__ import annotations

import errno
import json
import os
import pickle
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
from tl_lifehist.errors import InputError
from tl_lifehist.execute import execute, limited_threads, units_of
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.stages import Inputs, Stage, differences, params_of, plain, plan
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

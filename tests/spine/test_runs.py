from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.runs import RunFolder, Unit, clear_disk_errors, limited_threads, load_profile, run_unit, save_profile


def write(folder: Path, text: str) -> None:
    (folder / "result").write_text(f"{text} {torch.get_num_threads()}")


def fail(folder: Path) -> None:
    (folder / "half").write_text("")
    raise InputError("in the middle")


class Job:
    """No future: it only answers done() and result()."""

    def __init__(self, future) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def result(self):
        return self._future.result()


class Cluster:
    def __init__(self) -> None:
        self.pool, self.submitted = ThreadPoolExecutor(1), 0

    def submit(self, fn, *args) -> Job:
        self.submitted += 1
        return Job(self.pool.submit(fn, *args))


@pytest.mark.parametrize("executor", [None, Cluster()])
def test_units_are_computed_once_wherever_they_run(tmp_path, executor):
    folder = RunFolder(tmp_path / "run")
    units = [Unit(f"group/{i}", write, (str(i),)) for i in range(3)]
    with folder.held({"study": "x"}):
        folder.run(units, threads=1, executor=executor)
        made = folder.unit("group/1").stat().st_ctime_ns
        folder.run(units, threads=1, executor=executor)
    assert (folder.unit("group/2") / "result").read_text() == "2 1"
    assert folder.unit("group/1").stat().st_ctime_ns == made
    if executor is not None:
        assert executor.submitted == 3


@pytest.mark.parametrize("executor", [None, Cluster()])
def test_a_unit_that_fails_leaves_nothing_and_the_others_stay(tmp_path, executor):
    folder = RunFolder(tmp_path / "run")
    with folder.held({}), pytest.raises(InputError, match="in the middle"):
        folder.run([Unit("a", write, ("a",)), Unit("b", fail)], threads=1, executor=executor)
    assert [p.name for p in (tmp_path / "run" / "units").iterdir()] == ["a"]


def test_a_run_that_failed_at_once_does_not_claim_its_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.held({"study": "x"}), pytest.raises(InputError, match="in the middle"):
        folder.run([Unit("check/a", write, ("a",)), Unit("cells/a/b", fail)], threads=1)
    (tmp_path / "run" / "units" / "cells" / ".partial-c").mkdir()  # as a killed worker leaves it
    (tmp_path / "run" / "units" / "cells" / ".partial-c" / "half").touch()
    with folder.held({"study": "y"}):
        folder.run([Unit("cells/a/b", write, ("b",))], threads=1)
    with pytest.raises(InputError, match="another configuration"), folder.held({"study": "x"}):
        pass


def test_an_orphan_that_was_quicker_is_accepted(tmp_path):
    def race(folder: Path) -> None:
        final = folder.parent / "a"
        final.mkdir()
        (final / "result").write_text("the orphan's")

    run_unit(str(tmp_path), "a", 1, race, ())
    assert (tmp_path / "units" / "a" / "result").read_text() == "the orphan's"
    assert [p.name for p in (tmp_path / "units").iterdir()] == ["a"]


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
    import errno

    for number, message in ((errno.ENOSPC, "is full"), (errno.EROFS, "cannot be written")):
        with pytest.raises(InputError, match=message), clear_disk_errors(tmp_path):
            raise OSError(number, "x")
    with pytest.raises(FileNotFoundError), clear_disk_errors(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "ours to mend")


def test_tables_and_profiles_come_back_without_pickles(tmp_path):
    folder = RunFolder(tmp_path / "run")
    table = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
    with folder.held({}):
        folder.write_table("t", table)
    pd.testing.assert_frame_equal(folder.table("t"), table, check_dtype=False)
    codes = np.random.default_rng(0).random((30, 4)) * (np.random.default_rng(1).random((30, 4)) < 0.3)
    profile = FeatureProfiles(5, "h", sp.csr_array(codes.astype(np.float32)), 2.5, decoder_norm=np.arange(4) + 1.0)
    save_profile(profile, tmp_path / "p.npz")
    again = load_profile(tmp_path / "p.npz", step=5, hook_name="h")
    assert (again.acts != profile.acts).nnz == 0
    assert again.residual_norm == 2.5
    np.testing.assert_array_equal(again.norm, profile.norm)

"""Two runs side by side: what differs in their settings first, then p, n and intervals of every claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import tl_lifehist as lh
from tl_lifehist.cli import app
from tl_lifehist.comparison import settings_that_differ
from tl_lifehist.errors import InputError
from tl_lifehist.runs import Run
from tl_lifehist.store import Store

ROWS = {
    "load.mass": {"observed": 0.41, "null": 0.2, "low": 0.11, "high": 0.29, "p": 0.013, "n": 57, "verdict": "beyond"},
    "load.rate": {"observed": 0.41, "null": 0.4, "low": 0.31, "high": 0.49, "p": 0.41, "n": 57, "verdict": "within"},
    "content": {"observed": 0.1, "null": 0.1, "low": 0.0, "high": 0.2, "p": 0.6, "n": 9, "verdict": "not testable"},
}


def made(folder: Path, ids: tuple[str, ...] = tuple(ROWS), more: Any = None, **record: Any) -> Run:
    claims = pd.DataFrame([{"id": i, "claim": f"the claim {i}", **ROWS[i], **(more or {})} for i in ids])
    known = {"study": "life-history", "series": "pocket", "steps": [0, 4096], "hook_names": ["blocks.1.hook_mlp_out"]}
    known |= {"seed": 0, "config": {"sae": {"k": 8}, "matching": {"min_similarity": 0.5}}}
    known |= {"texts": {"test": {"key": "a", "sequences": 4, "positions": 500}}, "fingerprints": {"0": {"all": "x"}}}
    folder.mkdir()
    Store(folder).write_record({**known, **record})
    Store(folder).save("tables", {"claims": claims}, "made up", {})
    return Run(folder)


def test_every_figure_that_a_run_has_stands_beside_the_others(tmp_path: Path):
    a = made(tmp_path / "a")
    b = made(tmp_path / "b", ("load.mass", "load.rate"), {"q": 0.02, "of": "documents"})
    both = lh.compare_runs(a, b).set_index("id")
    assert list(both.index) == list(ROWS)  # those of the first run, in its order
    for name in ("observed", "null", "low", "high", "p", "n", "verdict"):
        assert both.loc["load.mass", f"{name}_a"] == both.loc["load.mass", f"{name}_b"] == ROWS["load.mass"][name]
    assert both.loc["load.rate", "q_b"] == 0.02
    assert pd.isna(both.loc["load.rate", "q_a"])
    assert pd.isna(both.loc["content", "p_b"])
    assert "detectable_a" not in both


def test_settings_texts_and_weights_that_differ_are_named_and_no_others(tmp_path: Path):
    a = made(tmp_path / "a")
    assert settings_that_differ(a, made(tmp_path / "same", integrity="other words")).empty
    config = {"sae": {"k": 16}, "matching": {"min_similarity": 0.5}}
    texts = {"test": {"key": "b", "sequences": 4, "positions": 510}}
    b = made(tmp_path / "b", config=config, seed=1, texts=texts, fingerprints={"0": {"all": "y"}})
    found = settings_that_differ(a, b).set_index("setting")
    assert sorted(found.index) == ["sae.k", "seed", "texts.test", "weights"]
    assert found.loc["sae.k"].tolist() == [8, 16]
    assert "510 positions" in found.loc["texts.test", "b"]
    assert "steps 0" in found.loc["weights", "b"]


def test_few_claims_in_common_are_warned_of(tmp_path: Path):
    a, b = made(tmp_path / "a", ("load.mass", "load.rate")), made(tmp_path / "b", ("content",))
    with pytest.warns(UserWarning, match="Only 0 of 3 claims are in both runs"):
        lh.compare_runs(a, b)
    with pytest.raises(InputError, match="compare two of the same study"):
        lh.compare_runs(a, made(tmp_path / "other", study="sufficiency"))


def test_the_command_shows_settings_first_then_p_n_and_intervals(tmp_path: Path):
    made(tmp_path / "a")
    made(tmp_path / "b", ("load.mass",), {"q": 0.02, "of": "documents"}, config={"sae": {"k": 16}})
    shown = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")]).output
    order = ["Settings that differ", "sae.k", "Only 1 of 3 claims are in both runs", "the claim load.mass"]
    places = [shown.index(words) for words in order]
    assert places == sorted(places)
    for words in ("0.013", "0.11 to 0.29", "57 documents", "0.02", "not in this run", "not testable"):
        assert words in shown
    same = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "a")]).output
    assert "No setting, text or version differs." in same
    assert "3 of 3 claims are in both runs." in same


def test_a_run_says_what_it_is(tmp_path: Path):
    assert repr(made(tmp_path / "a")) == f"Run({str(tmp_path / 'a')!r}: life-history of pocket, 1 tables)"
    assert repr(Run(tmp_path / "nowhere")) == f"Run({str(tmp_path / 'nowhere')!r}: no finished run)"

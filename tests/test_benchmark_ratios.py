"""Two ratios of the benchmarks at small sizes, far enough from their usual values (1.0 and 6) to hold on a busy
machine.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.usefixtures("saelens")
def test_a_further_set_costs_about_a_bare_pass_beside_its_encoding(benchmark):
    row = benchmark("joint_ablation").measure(6000, repeats=3)
    assert row["difference"] == 0
    assert row["hooks_median"] < 1e-5
    assert row["share"] < 1.6, row


def test_matching_is_faster_than_dense_products(benchmark):
    row = benchmark("matching").measure(1024, 20_000, 32)
    assert row["same"]
    assert row["ratio"] > 2, row

"""A study runs without the report: importing one loads no plotly."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["tl_lifehist.lifehistory.study", "tl_lifehist.sufficiency.study", "tl_lifehist.runs"]
)
def test_a_study_loads_neither_plotly_nor_the_report(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('plotly', 'tl_lifehist.report') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

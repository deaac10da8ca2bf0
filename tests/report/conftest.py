"""Made-up runs for the report. The checks in a real browser are collected where a Chromium is installed."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pandas as pd
import pytest
from browser import find_chromium
from plausible import plausible_tables, write_run

collect_ignore = [] if find_chromium() else ["test_report_in_browser.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: opens the report in a real, headless Chromium")


@pytest.fixture(scope="session")
def _tables() -> dict[str, pd.DataFrame]:
    return plausible_tables(n=240, n_edges=200, n_draws=20)


@pytest.fixture
def tables(_tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Every table of a small run, free to change."""
    return copy.deepcopy(_tables)


@pytest.fixture(scope="session")
def _run(tmp_path_factory: pytest.TempPathFactory, _tables: dict[str, pd.DataFrame]) -> Path:
    return write_run(tmp_path_factory.mktemp("report") / "run", _tables)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, _run: Path) -> Path:
    """The report of that run, written once."""
    from tl_lifehist.report import write_report

    return write_report(shutil.copytree(_run, tmp_path_factory.mktemp("written") / "run"))


@pytest.fixture
def run(_run: Path, tmp_path: Path) -> Path:
    """A whole run folder, free to change."""
    return Path(shutil.copytree(_run, tmp_path / "run"))

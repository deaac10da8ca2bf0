"""Made-up runs for the report. The checks in a real browser are collected where a Chromium is installed."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pandas as pd
import pytest
from browser import find_chromium
from plausible import plausible_tables, write_run
from plausible_masks import mask_record, plausible_mask_tables

IN_A_BROWSER = ["test_report_in_browser.py", "test_no_way_out.py", "test_axes_in_browser.py"]
collect_ignore = [] if find_chromium() else IN_A_BROWSER


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


@pytest.fixture(scope="session")
def _mask_tables() -> dict[str, pd.DataFrame]:
    return plausible_mask_tables(steps=[0, 512, 143000], layers=(0, 4), methods=("svd", "nmf"))


@pytest.fixture
def mask_tables(_mask_tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Every table of a small sufficiency run, free to change."""
    return copy.deepcopy(_mask_tables)


@pytest.fixture(scope="session")
def _mask_run(tmp_path_factory: pytest.TempPathFactory, _mask_tables: dict[str, pd.DataFrame]) -> Path:
    record = mask_record([0, 512, 143000], (0, 4))
    return write_run(tmp_path_factory.mktemp("masks") / "run", _mask_tables, record)


@pytest.fixture
def mask_run(_mask_run: Path, tmp_path: Path) -> Path:
    """A whole sufficiency run folder, free to change."""
    return Path(shutil.copytree(_mask_run, tmp_path / "masks"))


@pytest.fixture(scope="session")
def mask_report(tmp_path_factory: pytest.TempPathFactory, _mask_run: Path) -> Path:
    """The report of that run, written once."""
    from tl_lifehist.report import write_report

    return write_report(shutil.copytree(_mask_run, tmp_path_factory.mktemp("written") / "run"))


@pytest.fixture(scope="session")
def both_report(tmp_path_factory: pytest.TempPathFactory, _run: Path, _mask_run: Path) -> Path:
    """One page of both runs, written once."""
    from tl_lifehist.report import write_report

    folder = tmp_path_factory.mktemp("both")
    runs = [shutil.copytree(source, folder / name) for source, name in ((_run, "life"), (_mask_run, "masks"))]
    return write_report(*runs)

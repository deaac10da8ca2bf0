"""Figures as files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tl_lifehist.errors import InputError
from tl_lifehist.report import save_figures


def test_every_figure_becomes_a_page_that_opens_offline(run: Path, tmp_path: Path) -> None:
    written = save_figures(run, tmp_path / "figures", "html")
    assert {path.name for path in written} >= {"lineages_0.html", "events.html", "dag_container.html", "load.html"}
    assert all(path.is_file() for path in written)
    assert (tmp_path / "figures" / "plotly.min.js").is_file()
    assert "cdn" not in written[0].read_text(encoding="utf-8")


def test_a_drawing_without_kaleido_names_what_is_missing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"plotly\[kaleido\]"):
        save_figures(run, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_an_unknown_format_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises((InputError, TypeError)):  # TypeError where the shapes and types are checked, as in these tests
        save_figures(run, tmp_path, "docx")  # pyright: ignore[reportArgumentType]

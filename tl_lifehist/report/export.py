"""The figures of a run as files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from plotly.io import write_images

from tl_lifehist.errors import InputError, one_of
from tl_lifehist.report.figures.style import CONFIG
from tl_lifehist.report.page import contents
from tl_lifehist.report.tables import read_run

WIDTH = 900


def save_figures(
    run_path: str | Path, folder: str | Path, format: Literal["svg", "png", "pdf", "html"] = "svg"
) -> list[Path]:
    """Write every figure of the report into `folder`, one file each.

    `html` needs nothing more and shares one plotly.min.js in the folder; the other formats are drawn by kaleido, which
    needs a Chrome or Chromium.

    Raises:
        InputError: this is no run folder, the format is unknown, or what draws it is not installed.

    How it can mislead: a figure on its own has lost its definition, control and sample size; keep its section of the
    report beside it.
    """
    one_of("format", format, ("svg", "png", "pdf", "html"))
    if format != "html" and importlib.util.find_spec("kaleido") is None:
        raise InputError(f"Files in {format} need kaleido: pip install 'plotly[kaleido]', or ask for format='html'.")
    run = read_run(run_path)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    figures = {
        target / f"{name}.{format}": fig
        for _, _, content in contents(run)
        if not isinstance(content, str)
        for name, fig in content.figures.items()
    }
    if format == "html":
        for path, fig in figures.items():
            fig.write_html(path, include_plotlyjs="directory", config=CONFIG)
        return list(figures)
    for fig in figures.values():
        fig.update_layout(width=WIDTH)
    try:
        write_images(list(figures.values()), list(figures))
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"kaleido could not draw the figures ({error}): it needs a Chrome or Chromium.") from error
    return list(figures)

"""Rows of a benchmark as JSON, with the command and the versions that gave them."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch


def write_rows(path: str | None, name: str, rows: list[dict[str, Any]]) -> None:
    """Write `rows` to `path`; without one, to `{name}.json` in the folder that the variable BENCH_OUT names, if any."""
    folder = os.environ.get("BENCH_OUT")
    if path is None and not folder:
        return
    target = Path(path) if path is not None else Path(str(folder)) / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "benchmark": name,
        "command": " ".join(["python", *sys.argv]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    target.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")

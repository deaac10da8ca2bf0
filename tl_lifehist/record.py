"""`study.json`, the record of a run, and the folders that hold runs. Imports nothing heavy, so that a command can
answer at once where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tl_lifehist.errors import InputError

FORMAT = 2  # of the folder; 1 had units/ and no manifests
RECORD = "study.json"
_EARLIER = (
    "{} holds a run of an earlier version of tl_lifehist: give another folder; its SAEs can be used again, with saes=."
)


def read_record(folder: str | Path) -> dict[str, Any]:
    """`study.json` of a run folder.

    Raises:
        InputError: there is none, it cannot be read, or it is of another version of the package.
    """
    path = Path(folder) / RECORD
    if (path.parent / "units").is_dir():
        raise InputError(_EARLIER.format(path.parent))
    if not path.is_file():
        raise InputError(_none_in(path.parent))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(found, dict) and isinstance(found.get("study"), str)
    except (OSError, ValueError):
        known = False
    if not known:
        raise InputError(
            f"{path} is damaged: delete it and start the run's own command again; finished stages are kept."
        )
    version = found.get("format", 1)
    if version != FORMAT:
        later = f"{path.parent} holds a run of a later version of tl_lifehist: install that, or give another folder."
        raise InputError(later if isinstance(version, int) and version > FORMAT else _EARLIER.format(path.parent))
    return found


def runs_in(folder: str | Path) -> list[Path]:
    """The folder itself where it is a run's, else the run folders right within it, life histories first: what
    `tl-lifehist demo` makes is such a folder. The folder itself where there is none.
    """
    path = Path(folder)
    if (path / RECORD).is_file() or not path.is_dir():
        return [path]
    within = sorted(one.parent for one in path.glob(f"*/{RECORD}"))
    return sorted(within, key=lambda one: read_record(one)["study"] != "life-history") or [path]


def require_history(folder: str | Path, series: str, steps: Sequence[int]) -> dict[str, Any]:
    """The record of a life-history run of the same series that has one of these checkpoints.

    Raises:
        InputError: it is no run, or one of another study or series, or has none of the checkpoints.
    """
    known = read_record(folder)
    if known["study"] != "life-history" or known.get("series") != series:
        raise InputError(f"{folder} holds no life-history run of the series {series!r}: give one of the same.")
    if not set(steps) & set(known["steps"]):
        raise InputError(f"{folder} has the checkpoints {known['steps']}, none of this study's.")
    return known


def _none_in(folder: Path) -> str:
    within = [path for path in runs_in(folder) if path != folder]
    if not within:
        return f"{folder} holds no {RECORD}: give the folder of a run."
    return f"{folder} holds the runs {' and '.join(map(str, within))}: name one of them."

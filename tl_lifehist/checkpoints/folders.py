"""Where the checkpoints of a local folder lie, by their names. No weights are read and nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path

from tl_lifehist.checkpoints import revisions
from tl_lifehist.errors import InputError


def places_in(
    root: Path,
    *,
    pattern: str | None = None,
    subfolder: str | None = None,
    stage: int | None = None,
    ingredient: int | None = None,
) -> dict[int, str]:
    """The path within `root` of each step: what looks like `pattern` or `subfolder`; without them, the sub-folders
    whose names are checkpoints', or else whatever lies deeper and does, or single files.

    Raises:
        InputError: no such folder, or nothing in it that is a checkpoint.
    """
    where = f"The sub-folders of {root}"
    try:
        names = [entry.name for entry in root.iterdir() if entry.is_dir()]
        looks = pattern if pattern is not None else subfolder
        if looks is not None:
            files = _files(root)
            places = revisions.match_template(looks, files, where)
            if not places:
                there = sorted({file.partition("/")[0] for file in files})
                raise InputError(f"{root} holds nothing that looks like {looks!r}; there are {revisions.some(there)}.")
            return places
        if revisions.sort_revisions(names):
            places = revisions.select_steps(names, stage=stage, ingredient=ingredient, where=where)
            return {step: _innermost(root, folder) for step, folder in places.items()}
        return revisions.find_places(_files(root), stage=stage, ingredient=ingredient, where=where)
    except OSError as error:
        raise InputError(f"{root} is not a folder that can be read ({error.strerror}): check the path.") from error


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _innermost(root: Path, folder: str) -> str:
    """The one place below an otherwise empty sub-folder that holds weights, `ckpt-10/pt`; else the sub-folder."""
    files = _files(root / folder)
    found = {str(Path(folder, file).parent) for file in files if revisions.is_weights(Path(file).name)}
    nested = all("/" in file for file in files)
    return found.pop() if nested and len(found) == 1 else folder

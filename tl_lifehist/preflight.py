"""What every study does before it computes: name its text, fingerprint its checkpoints, refuse what would mislead."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tl_lifehist.checkpoints.integrity import compare_fingerprints, fingerprint
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.checkpoints.shape import ModelShape
from tl_lifehist.errors import InputError
from tl_lifehist.models import require_hooks
from tl_lifehist.runs import Executor, RunFolder, Unit
from tl_lifehist.tokens import TokenSet


def token_fingerprint(tokens: TokenSet) -> str:
    """A hash of ids and masks, so that a run folder knows its text."""
    digest = hashlib.sha256()
    for tensor in tokens.tensors():
        digest.update(b"none" if tensor is None else tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def run_fingerprint(run: str | Path) -> str:
    """A hash of what a run was, so that one built on it knows it wherever its folder lies."""
    study = RunFolder(run).study()
    return hashlib.sha256(json.dumps(study, sort_keys=True).encode()).hexdigest()[:16]


def text_of(series: CheckpointSeries, tokens: TokenSet | None, split: str) -> TokenSet:
    """The given tokens, or the pocket suite's own text.

    Raises:
        InputError: no tokens for another series, or none with a valid position.
    """
    if tokens is None:
        if series.name != "pocket":
            raise InputError(
                f"Give {split}=TokenSet.from_texts(texts, tokenizer): only the pocket suite has text of its own."
            )
        tokens = TokenSet.pocket(split)
    if tokens.n_valid == 0:
        raise InputError(f"The {split} tokens have no valid position.")
    return tokens


def require_portable(series: CheckpointSeries, executor: Executor | None) -> None:
    """Refuse to send models in memory to workers."""
    if executor is not None and not series.is_portable:
        raise InputError(
            "Models in memory, or from a closure, cannot be sent to workers: use executor=None, or a series from a "
            "directory, the hub, or a module-level loader."
        )


def check_checkpoints(
    folder: RunFolder,
    series: CheckpointSeries,
    hook_names: Sequence[str],
    compute: Callable[[str, Sequence[Unit]], None],
    *,
    allow_duplicates: bool,
) -> None:
    """Look up the hook points in every checkpoint and fingerprint it, anew at every start since weights may have
    changed since the run began, and store what was found.

    Raises:
        InputError: an unknown hook point, weights other than the run was begun with, or checkpoints that are identical,
            whole or in part, and were not allowed to be.
    """
    shutil.rmtree(folder.unit("check"), ignore_errors=True)
    units = [Unit(f"check/step{s}", check_unit, (series.kept(), s, tuple(hook_names)), (s,)) for s in series.steps]
    compute("checking checkpoints", units)
    prints = {
        step: json.loads((folder.unit(f"check/step{step}") / "fingerprint.json").read_text()) for step in series.steps
    }
    study, found = folder.study(), {str(step): groups for step, groups in prints.items()}
    changed = [step for step, groups in study.get("fingerprints", found).items() if found.get(step) != groups]
    if changed:
        raise InputError(
            f"The weights at step {', '.join(changed)} are not those that {folder.path} was begun with: "
            "give another folder, or bring the checkpoints back."
        )
    report = compare_fingerprints(prints)
    folder.write_study({**study, "fingerprints": found, "integrity": str(report)})
    if (report.duplicates or report.frozen) and not allow_duplicates:
        raise InputError(
            f"Checkpoints hold identical weights, which would look like perfect persistence: {report} "
            "Leave them out with series.subset([...]), or pass allow_duplicates=True (--allow-duplicates)."
        )


def check_unit(folder: Path, series: CheckpointSeries, step: int, hook_names: Sequence[str]) -> None:
    """Hash one checkpoint by parameter group; refuse hook points that it does not have."""
    model = series.load(step)
    require_hooks(model, hook_names)
    (folder / "fingerprint.json").write_text(json.dumps(fingerprint(model)))


def drop_after(series: CheckpointSeries, units: Sequence[Unit]) -> Callable[[Unit], None] | None:
    """For a series that is not to be kept: drops a checkpoint from the hub's cache once every one of the units that
    load it is done. None for any other.
    """
    if series.keep:
        return None
    left = Counter(step for unit in units for step in unit.steps)

    def done(unit: Unit) -> None:
        left.subtract(unit.steps)
        for step in unit.steps:
            if left[step] == 0:
                series.discard(step)

    return done


def require_layers(hook_names: Sequence[str], shape: ModelShape) -> None:
    """Refuse hook points of blocks that a model of this shape does not have; no weights are needed for it."""
    for name in hook_names:
        found = re.match(r"blocks\.(-?\d+)\.", name)
        if found and not 0 <= int(found[1]) < shape.n_layers:
            raise InputError(
                f"The model has {shape.n_layers} blocks, 0 to {shape.n_layers - 1}, and no hook point {name!r}: "
                "choose other layers."
            )

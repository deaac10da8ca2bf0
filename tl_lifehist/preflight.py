"""What every study asks of its text and its checkpoints: that they are there, and what they say they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from tl_lifehist.checkpoints.integrity import compare_fingerprints, fingerprint
from tl_lifehist.checkpoints.nature import nature
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.checkpoints.shape import ModelShape
from tl_lifehist.errors import InputError
from tl_lifehist.execute import Executor
from tl_lifehist.hook_names import parse_hook_name
from tl_lifehist.models import require_hooks
from tl_lifehist.stages import Cost, Inputs, Outputs, Stage
from tl_lifehist.store import Store
from tl_lifehist.tokens import TokenSet

_REMEDY = "Leave them out with series.subset([...]), or pass allow_duplicates=True (--allow-duplicates)."


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
    if not isinstance(tokens, TokenSet):
        raise InputError(f"{split} is a {type(tokens).__name__}: give a TokenSet.from_texts(texts, tokenizer).")
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


def require_layers(hook_names: Sequence[str], shape: ModelShape) -> None:
    """Refuse hook points of blocks that a model of this shape does not have; no weights are needed for it."""
    for name in hook_names:
        block, _ = parse_hook_name(name)
        if not -1 <= block < shape.n_layers:
            raise InputError(
                f"The model has {shape.n_layers} blocks, 0 to {shape.n_layers - 1}, and no hook point {name!r}: "
                "choose other layers."
            )


def check_stages(series: CheckpointSeries, hook_names: Sequence[str]) -> list[Stage]:
    """One stage per checkpoint: its hook points are looked up and its weights fingerprinted, by the unit that loads it
    anyway, as the first thing it does.
    """
    return [
        Stage(
            f"check/step{step}",
            check,
            {"step": step, "hook_names": tuple(hook_names)},
            steps=(step,),
            group=f"step{step}",
            title="checking the checkpoints",
            cost=Cost(positions=8.0),
        )
        for step in series.steps
    ]


def check(inputs: Inputs, *, step: int, hook_names: tuple[str, ...]) -> Outputs:
    """Hash one checkpoint by parameter group, and say of what kind it is; refuse hook points that it does not have."""
    model = inputs.model(step)
    require_hooks(model, hook_names)
    return {"fingerprint": fingerprint(model), "nature": nature(model)}


def require_different(series: CheckpointSeries) -> None:
    """Refuse checkpoints that can be seen to be identical before any is loaded.

    Raises:
        InputError: two steps of the same weights.
    """
    known = {step: series.identity(step) for step in series.steps}
    for a, b in combinations(series.steps, 2):
        if known[a] and known[a] == known[b]:
            raise InputError(
                f"Checkpoints hold identical weights, which would look like perfect persistence: steps {a} and {b}. "
                f"{_REMEDY}"
            )


def watch_checks(store: Store, series: CheckpointSeries, *, allow_duplicates: bool) -> Callable[[str], None]:
    """What a study calls with each finished stage: compares the fingerprints that are there, and keeps them with what
    they say in `study.json` once all are.

    Raises:
        InputError: checkpoints that are identical, whole or in part, and were not allowed to be; checkpoints of
            several kinds.
    """
    prints: dict[int, dict[str, str]] = {}
    natures: dict[int, dict[str, str]] = {}

    def seen(stage: str) -> None:
        kind, _, step = stage.partition("/step")
        if kind != "check":
            return
        found = store.results(stage)
        prints[int(step)] = found["fingerprint"]
        if "nature" in found:  # a check of an earlier version has none
            natures[int(step)] = found["nature"]
        report = compare_fingerprints(prints, natures=natures)
        whole = len(prints) == len(series)
        if whole:
            fingerprints = {str(step): prints[step] for step in sorted(prints)}
            store.write_record({**store.record, "fingerprints": fingerprints, "integrity": str(report)})
        if report.mixed:
            raise InputError(
                f"The checkpoints are not of one kind: {' '.join(report.mixed)} Give a series of one kind."
            )
        if (report.duplicates or (whole and report.frozen)) and not allow_duplicates:
            raise InputError(
                f"Checkpoints hold identical weights, which would look like perfect persistence: {report} {_REMEDY}"
            )

    return seen

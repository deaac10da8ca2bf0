"""What every study asks of its text and its checkpoints: that they are there, and what they say they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations

from tl_lifehist.checkpoints.integrity import compare_fingerprints, fingerprint
from tl_lifehist.checkpoints.nature import nature
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError
from tl_lifehist.execute import Executor
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


def require_apart(texts: Mapping[str, TokenSet]) -> None:
    """Refuse a split all of whose windows are in another one: what is measured would have been fitted on.

    Raises:
        InputError: names both splits.
    """
    for a, b in permutations(texts, 2):
        if shared_windows(texts[a], texts[b]) == len(texts[a]):
            raise InputError(
                f"{' and '.join(dict.fromkeys((a, b)))} must be different texts: every window of {a} is also in {b}."
            )


def overlaps(texts: Mapping[str, TokenSet]) -> list[str]:
    """A sentence for each split of which some windows are in one before it."""
    found = []
    for a, b in combinations(texts, 2):
        if n := shared_windows(texts[b], texts[a]):
            found.append(f"{n:,} of the {len(texts[b]):,} windows of {b} are also in {a}: use texts that share none.")
    return found


def shared_windows(a: TokenSet, b: TokenSet) -> int:
    """How many windows of `a` are windows of `b`, token by token."""
    windows = {row.tobytes() for row in b.ids.cpu().numpy()} if a.ids.shape[1] == b.ids.shape[1] else set()
    return sum(row.tobytes() in windows for row in a.ids.cpu().numpy())


def require_scored_text(tokens: TokenSet, split: str) -> None:
    """Refuse a text on which nothing is scored."""
    if tokens.n_scored == 0:
        raise InputError(f"No position of the {split} tokens is scored: they need labels at valid positions.")


def require_portable(series: CheckpointSeries, executor: Executor | None) -> None:
    """Refuse to send models in memory to workers."""
    if executor is not None and not series.is_portable:
        raise InputError(
            "Models in memory, or from a closure, cannot be sent to workers: use executor=None, or a series from a "
            "directory, the hub, or a module-level loader."
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

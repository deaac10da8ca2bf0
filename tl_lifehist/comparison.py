"""Two runs side by side: the settings that differ, and every claim of either."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tl_lifehist.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from tl_lifehist.runs import Run

FEW_IN_COMMON = 0.5  # share of all claims below which two runs hardly answer the same questions (ours)
FIGURES = (
    "observed",
    "null",
    "effect",
    "low",
    "high",
    "unit",
    "p",
    "q",
    "n",
    "of",
    "verdict",
)  # of those that a run has
# what differs between any two runs and decides nothing, or is spoken of by itself
_LEFT_OUT = ("format", "integrity", "fingerprints", "texts")


def compare_runs(a: Run, b: Run) -> pd.DataFrame:
    """The claims of two runs of one study side by side.

    One row a claim, those of `a` first: id, claim, then for each figure that one of the runs has (observed, null, low,
    high, p, n, verdict and further ones) its value in `a` and in `b`, as observed_a and observed_b. A claim that one
    run does not make is missing there. `settings_that_differ` is what to read first.

    Raises:
        InputError: runs of two kinds of study, which have no claim in common; a run that is not finished.

    How it can mislead: two runs that differ in model, text and SAE size differ for all of these reasons at once. Two
    verdicts that differ need not be two effects that differ: compare the intervals. Runs with less than half of their
    claims in common are warned of, since then little is compared.
    """
    import pandas as pd

    require_one_study(a, b)
    left, right = a.claims, b.claims
    texts = pd.concat([left, right]).drop_duplicates("id").set_index("id")["claim"]
    sides = [one.set_index("id").reindex(texts.index) for one in (left, right)]
    both = texts.reset_index()
    for name in (name for name in FIGURES if name in left or name in right):
        for side, end in zip(sides, ("a", "b"), strict=True):
            both[f"{name}_{end}"] = side[name].to_numpy() if name in side else None
    if few := few_in_common(left, right):
        warnings.warn(few, UserWarning, stacklevel=2)
    return both


def few_in_common(left: pd.DataFrame, right: pd.DataFrame) -> str:
    """A sentence where two tables of claims have less than half of their claims in common; else empty."""
    own, other = set(left["id"]), set(right["id"])
    shared, known = len(own & other), len(own | other)
    if shared >= FEW_IN_COMMON * known:
        return ""
    return f"Only {shared} of {known} claims are in both runs: little of what they say can be compared."


def settings_that_differ(a: Run, b: Run) -> pd.DataFrame:
    """Series, checkpoints, hook points, texts, weights, versions, seed and every setting in which two runs differ:
    setting, a, b. Empty where nothing does.

    How it can mislead: weights are compared at the checkpoints of both, and only where both runs recorded them.
    """
    import pandas as pd

    return pd.DataFrame(list(_differing(a.study, b.study)), columns=["setting", "a", "b"])


def require_one_study(a: Run, b: Run) -> None:
    """Refuse two kinds of study."""
    kinds = [run.study["study"] for run in (a, b)]
    if kinds[0] != kinds[1]:
        raise InputError(f"{a.path} is a {kinds[0]} run and {b.path} a {kinds[1]} run: compare two of the same study.")


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    from tl_lifehist.stages import differences

    own, other = ({key: value for key, value in one.items() if key not in _LEFT_OUT} for one in (a, b))
    for path, before, now in differences(own, other):
        yield path.removeprefix("config."), before, now
    texts = [one.get("texts", {}) for one in (a, b)]
    for split in dict.fromkeys((*texts[0], *texts[1])):
        if texts[0].get(split) != texts[1].get(split):
            yield f"texts.{split}", _text(texts[0].get(split)), _text(texts[1].get(split))
    prints = [one.get("fingerprints", {}) for one in (a, b)]
    others = [step for step in prints[0] if step in prints[1] and prints[0][step] != prints[1][step]]
    if others:
        yield "weights", "", f"others at steps {', '.join(others)}"


def _text(held: Any) -> str:
    return f"{held['sequences']} sequences, {held['positions']} positions, {held['key']}" if held else "none"

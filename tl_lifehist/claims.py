"""One claim beside its null, as a row of the `claims` table that every study ends in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from tl_lifehist.errors import InputError
from tl_lifehist.inference.documents import Tested
from tl_lifehist.nulls import Null

LEVEL = 0.05  # ours
MAX_HEADLINES = 8  # ours: with more, what is found costs too much power
BEYOND, WITHIN, NOT_TESTABLE, DESCRIPTIVE = "beyond", "within", "not testable", "descriptive"
NAN = float("nan")


@dataclass(frozen=True)
class Claim:
    """What a run says, and what it would say if there were nothing.

    A *headline* claim is tested, together with the study's other ones; all others are descriptive, with an interval and
    without a verdict.

    Attributes:
        id: what the claim is called wherever it is looked up or compared; it stays when the text is reworded.
        text: the claim, for people.
        headline: it is tested.
        verdict: "beyond" (outside the null on the side the claim names), "within", "not testable" or "descriptive".
        sentence: what was found, in plain words.
        observed: the figure.
        null: the same figure under the null, on average.
        effect: observed less null.
        low: lower end of the effect's 95 % interval.
        high: its upper end.
        unit: of observed, null, effect, low, high and detectable.
        p: how often the null gives as much.
        q: the same once the study's headline claims are controlled together (Benjamini-Hochberg).
        n: sample size.
        of: what n counts.
        detectable: the least effect that this test finds four times out of five at this n.
        false_positives: how often this test calls nothing an effect, measured in planted worlds of the run's size.
        note: null, sample and procedure in words.
    """

    id: str
    text: str
    headline: bool = False
    verdict: str = DESCRIPTIVE
    sentence: str = ""
    observed: float = NAN
    null: float = NAN
    effect: float = NAN
    low: float = NAN
    high: float = NAN
    unit: str = ""
    p: float = NAN
    q: float = NAN
    n: int = 0
    of: str = ""
    detectable: float = NAN
    false_positives: float = NAN
    note: str = ""

    def decided(self, beyond: bool, **changes: Any) -> Claim:
        """The claim as a tested one of its own, with its verdict."""
        found = replace(self, headline=True, verdict=BEYOND if beyond else WITHIN, **changes)
        return replace(found, effect=found.observed - found.null, sentence=found.text)

    def because(self, note: str) -> Claim:
        """The claim left untested, with the reason."""
        verdict = NOT_TESTABLE if self.headline else DESCRIPTIVE
        return replace(self, verdict=verdict, p=NAN, note="; ".join(filter(None, (note, self.note))))


def against_null(claim: Claim, null: Null, *, two_sided: bool = False) -> Claim:
    """The claim beside draws of its null: effect with the interval that shifts the null by it, and for a headline p.

    Without draws or a value it stays untested.
    """
    p = null.p_two_sided if two_sided else null.p
    if not np.isfinite(p):
        return replace(claim, observed=null.observed).because("nothing to draw a null from")
    low, high = null.shifted
    return replace(
        claim,
        observed=null.observed,
        null=null.mean,
        effect=null.observed - null.mean,
        low=low,
        high=high,
        p=p if claim.headline else NAN,
        detectable=null.detectable,
    )


def against_zero(claim: Claim, tested: Tested, *, few: str) -> Claim:
    """The claim whose effect is a mean over units.

    Args:
        few: why there is no test where there is none.
    """
    found = replace(claim, effect=tested.mean, low=tested.low, high=tested.high, n=tested.n)
    if not np.isfinite(tested.p):
        return found.because(few)
    return replace(found, p=tested.p if claim.headline else NAN, detectable=tested.detectable)


def decide(
    claims: Iterable[Claim], *, level: float = LEVEL, false_positives: Mapping[str, float] | None = None
) -> list[Claim]:
    """The claims with q and verdict: the headline claims that have a p are controlled together.

    Args:
        level: q at which a claim is beyond its null.
        false_positives: how often each test erred in planted worlds, by id.

    Raises:
        InputError: more than eight headline claims.
    """
    rows, measured = list(claims), false_positives or {}
    tested = [i for i, one in enumerate(rows) if one.headline and np.isfinite(one.p)]
    if sum(one.headline for one in rows) > MAX_HEADLINES:
        raise InputError(f"A study has at most {MAX_HEADLINES} headline claims: leave the others descriptive.")
    adjusted = false_discovery_control([rows[i].p for i in tested]) if tested else []
    for i, q in zip(tested, adjusted, strict=True):
        rows[i] = replace(rows[i], q=float(q), verdict=BEYOND if q <= level else WITHIN)
    return [replace(one, false_positives=measured.get(one.id, NAN)) if one.headline else one for one in rows]


def claims_table(claims: Iterable[Claim]) -> pd.DataFrame:
    """The claims as a table, one row each; the column of the text is called `claim`.

    Raises:
        InputError: two claims of one id.
    """
    rows = list(claims)
    ids = [one.id for one in rows]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise InputError(f"Claims need ids of their own; these stand twice: {', '.join(twice)}.")
    columns = ["claim" if f.name == "text" else f.name for f in fields(Claim)]
    return pd.DataFrame([astuple(one) for one in rows], columns=columns)


def sentence(claim: Claim, found: str, idea: str) -> Claim:
    """The claim with its sentence.

    Args:
        found: what is said where the claim holds, with places for `{effect}` and `{n}`.
        idea: the claim as a clause, for "no sign that ..." and "whether ...".
    """
    figures = f"{claim.effect:.2g} [{claim.low:.2g}, {claim.high:.2g}]"
    if claim.verdict == BEYOND:
        return replace(claim, sentence=found.format(effect=figures, n=claim.n))
    if claim.verdict == WITHIN and claim.p <= LEVEL:
        others = f"p {claim.p:.3f} is not enough beside the other claims (q {claim.q:.3f})"
        return replace(claim, sentence=f"Not certain that {idea}: {figures} {claim.unit}; {others}.")
    if claim.verdict == WITHIN:
        room = (
            f"; {claim.detectable:.2g} would be found four times out of five" if np.isfinite(claim.detectable) else ""
        )
        return replace(claim, sentence=f"No sign that {idea}: {figures} {claim.unit}{room}.")
    return replace(claim, sentence=f"Whether {idea} cannot be tested here: {claim.note.split('; ')[0]}.")

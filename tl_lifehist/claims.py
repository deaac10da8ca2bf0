"""One claim beside its null, as a row of the `claims` table that every study ends in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
from tl_lifehist.nulls import Null

LEVEL = 0.05  # ours
BEYOND, WITHIN, NOT_TESTABLE = "beyond", "within", "not testable"
NAN = float("nan")


@dataclass(frozen=True)
class Claim:
    """What a run says, and what it would say if there were nothing.

    Attributes:
        id: what the claim is called wherever it is looked up or compared; it stays when the text is reworded.
        text: the claim, for people.
        observed: the figure.
        null: the same figure under the null, on average.
        low: lower end of the null's central 95 %.
        high: its upper end.
        p: how often the null gives as much.
        n: sample size.
        verdict: "beyond" (outside the null on the side the claim names), "within" or "not testable".
        note: unit, null and sample in words.
    """

    id: str
    text: str
    observed: float
    null: float = NAN
    low: float = NAN
    high: float = NAN
    p: float = NAN
    n: int = 0
    verdict: str = NOT_TESTABLE
    note: str = ""

    def decided(self, beyond: bool, **changes: Any) -> Claim:
        """The claim with a verdict, and with other values where some are given."""
        return replace(self, verdict=BEYOND if beyond else WITHIN, **changes)


def against_draws(claim: Claim, draws: NDArray[Any], *, two_sided: bool = False, level: float = LEVEL) -> Claim:
    """The claim beside draws of its null: mean, 95 % interval, p and verdict.

    "beyond" means that the observed value lies outside the null on the side the claim names (on either side when
    `two_sided`), at p <= `level`; without draws or a value the claim stays "not testable".
    """
    null = Null(claim.observed, draws)
    p = null.p_two_sided if two_sided else null.p
    if not np.isfinite(p):
        return claim
    return claim.decided(p <= level, null=null.mean, low=null.low, high=null.high, p=p)


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

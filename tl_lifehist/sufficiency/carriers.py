"""Where the two studies meet: do sufficient masks over SAE features pick the persistent carriers?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.nulls import Null

N_SETS = 1000  # matched sets
STRATUM = 10  # features of neighbouring mass among which the labels "carrier" are exchanged (ours)
MAX_UNMATCHED = 0.1  # of the carriers (D19)
MAX_GAP = 0.1  # of log mass, in standard deviations (ours): gates follow mass, so a gap of D19's 0.25 rejects falsely


class FeatureSubset:
    """Some features of a dictionary as a dictionary of their own; the others count as its error."""

    def __init__(self, dictionary: Dictionary, features: Sequence[int]) -> None:
        self.dictionary = dictionary
        self.features = torch.as_tensor(list(features), dtype=torch.long)
        self.W_dec = decoder_directions(dictionary, self.features)
        zero = torch.zeros(1, dictionary.W_dec.shape[0]).to(dictionary.W_dec)
        self.b_dec = dictionary.decode(zero).squeeze(0).detach()

    def encode(self, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row feature"]:
        """Codes of these features alone."""
        return self.dictionary.encode(x)[:, self.features]

    def decode(self, codes: Float[Tensor, "row feature"]) -> Float[Tensor, "row d_model"]:
        """The reconstruction by these features alone."""
        return self.b_dec + codes @ self.W_dec


@dataclass(frozen=True)
class CarrierEnrichment:
    """How much of a mask the carriers take.

    Attributes:
        enrichment: mean gate over the carriers / mean gate over all alive features: 1 where the mask ignores them.
        against: the same for the carriers that have a non-carrier among the ten features of neighbouring mass.
        draws: the same with the labels "carrier" exchanged among those ten, a value a set.
        low: 2.5 % of the draws.
        high: 97.5 % of the draws.
        p: one-sided, how often a set takes as much of the mask as the carriers. NaN where more than 10 % of the
            carriers have no equal, or the carriers' log mass differs from the sets' by more than 0.1 standard
            deviations: then there is no fair null.
        unmatched_share: carriers without an equal among the non-carriers.
        mass_gap: mean log mass of the carriers less that of the sets, in standard deviations over the alive features.

    How it can mislead: carriers are heavy features, and heavy features are kept by any mask: 1 is no null, the matched
    sets are. The features are taken as given: another SAE of the same activations can give another verdict.
    """

    enrichment: float
    against: float
    draws: np.ndarray
    low: float
    high: float
    p: float
    unmatched_share: float
    mass_gap: float

    @property
    def null(self) -> float:
        """Mean over the matched sets."""
        return Null(self.against, self.draws).mean


def carrier_enrichment(
    gates: Float[Tensor, " alive"],
    profile: FeatureProfiles,
    carriers: Sequence[int],
    *,
    alive: Sequence[int] | None = None,
    n_sets: int = N_SETS,
    stratum: int = STRATUM,
    max_unmatched: float = MAX_UNMATCHED,
    max_gap: float = MAX_GAP,
    seed: int = 0,
) -> CarrierEnrichment:
    """Mean gate over the carriers beside that of features of equal mass (ours): the labels "carrier" are exchanged
    among ten features of neighbouring mass. Were carriers chosen by mass alone, p would be uniform; sets of
    non-carriers alone (D19) lack the carriers' own scatter and reject two to four times too often.

    Args:
        gates: one for each alive feature of the profile, in order.
        profile: the SAE's features on a text.
        carriers: features of the SAE.
        alive: the features that are gated, ascending; by default those of `profile.alive()`.
        n_sets: matched sets.
        stratum: features of neighbouring mass among which labels are exchanged (ours: ten).
        max_unmatched: share of the carriers without an equal above which there is no p (D19: 0.1).
        max_gap: of log mass, in standard deviations, above which there is no p (ours: 0.1).
        seed: of the sets.

    Raises:
        InputError: another number of gates than alive features, or no carrier among them.
    """
    gated = np.flatnonzero(profile.alive()) if alive is None else np.asarray(alive, dtype=np.int64)
    if gates.shape != (len(gated),):
        raise InputError(f"There are {tuple(gates.shape)} gates for {len(gated)} alive features: give one for each.")
    chosen = sorted(set(map(int, carriers)) & set(gated.tolist()))
    if not chosen:
        raise InputError("No carrier is alive here: give the carriers of the same SAE and step.")
    gate = np.full(profile.acts.shape[1], np.nan)
    gate[gated] = gates.detach().double().cpu().numpy()
    whole = float(np.nanmean(gate))
    log_mass = np.log10(np.maximum(profile.mass, 1e-30))
    carrier = np.isin(np.arange(len(gate)), chosen)
    by_mass = np.array_split(gated[np.argsort(log_mass[gated], kind="stable")], max(1, len(gated) // stratum))
    strata = [s for s in by_mass if 0 < carrier[s].sum() < len(s)]  # the others have nothing to exchange
    n = int(sum(carrier[s].sum() for s in strata))
    rng = np.random.default_rng(seed)
    total, mass, mass_of_sets = np.zeros(n_sets if strata else 0), 0.0, 0.0
    for s in strata:
        count = int(carrier[s].sum())
        drawn = rng.random((n_sets, len(s))).argsort(axis=1)[:, :count]
        total += gate[s][drawn].sum(axis=1)
        mass += log_mass[s][carrier[s]].sum()
        mass_of_sets += count * log_mass[s].mean()
    draws = total / max(n, 1) / whole
    against = float(np.mean(np.concatenate([gate[s][carrier[s]] for s in strata]))) / whole if strata else float("nan")
    unmatched = 1 - n / len(chosen)
    scale = float(log_mass[gated].std()) or 1.0
    gap = (mass - mass_of_sets) / n / scale if n else float("nan")
    testable = unmatched <= max_unmatched and abs(gap) <= max_gap
    null = Null(against, draws, rounding=1e-12)
    return CarrierEnrichment(
        enrichment=float(gate[chosen].mean()) / whole,
        against=against,
        draws=draws,
        low=null.low,
        high=null.high,
        p=null.p if testable else float("nan"),
        unmatched_share=unmatched,
        mass_gap=float(gap),
    )

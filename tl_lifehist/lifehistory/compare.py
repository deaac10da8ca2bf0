"""Two SAEs beside their noise floors, and one feature of somebody's SAE traced back through training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from tl_lifehist.dictionaries.declared import declared_hook_name, why_no_contribution
from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions, n_features
from tl_lifehist.dictionaries.sae import train_at
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.contexts import top_contexts
from tl_lifehist.lifehistory.lineages import trace_lineages
from tl_lifehist.lifehistory.matching import MIN_SIMILARITY, FeatureMatch, match_features, similarities
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles, profile_saes
from tl_lifehist.models import HookedModel
from tl_lifehist.seeds import derive_seed
from tl_lifehist.tokens import TokenSet


@dataclass(frozen=True, eq=False)
class SAEComparison:
    """The match of two SAEs beside what two trainings of one SAE would give.

    Attributes:
        match: the one-to-one match.
        rate: accepted pairs over the alive features of a.
        floor_data: the same for two trainings from the same initial weights with the rows in another order.
        floor_init: the same for two trainings from different initial weights.
        n_alive: alive features of a.
        floor_n_alive: alive features of the SAE that the floors start from.

    How it can mislead: the floors are of SAEs trained here, briefly, with a's width and mean number of active features;
    SAEs trained for longer, or of another architecture, can be more or less reproducible.
    """

    match: FeatureMatch
    rate: float
    floor_data: float
    floor_init: float
    n_alive: int
    floor_n_alive: int


def compare_saes(
    sae_a: Dictionary,
    sae_b: Dictionary,
    model: HookedModel,
    hook_name: str,
    tokens: TokenSet,
    *,
    train_tokens: TokenSet | None = None,
    training_tokens: int = 150_000,
    min_similarity: float = MIN_SIMILARITY,
    method: str = "gated",
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
    seed: int = 0,
) -> SAEComparison:
    """Match any two SAEs of one hook point, beside both noise floors (C1).

    Args:
        tokens: text the profiles are taken on.
        train_tokens: text the three floor SAEs are trained on; `tokens` by default.
        training_tokens: rows each of them sees.
        min_similarity: see `match_features`, as for the three that follow.
        method: how the match is assigned.
        min_rate: of an alive feature.
        min_count: of an alive feature.

    Raises:
        InputError: an SAE of another width, an unknown hook point, fewer tokens than features.
    """
    profiles = [profile_saes(model, {hook_name: sae}, tokens)[hook_name] for sae in (sae_a, sae_b)]

    def matched(a: FeatureProfiles, b: FeatureProfiles) -> FeatureMatch:
        return match_features(
            a, b, min_similarity=min_similarity, method=method, min_rate=min_rate, min_count=min_count
        )

    match = matched(*profiles)
    active = max(1, min(round(profiles[0].acts.nnz / profiles[0].n_rows), n_features(sae_a)))
    trained = []
    for init, order in ((0, 0), (0, 1), (1, 2)):
        one = train_at(
            model,
            [hook_name],
            tokens if train_tokens is None else train_tokens,
            init_seeds={hook_name: derive_seed(seed, init, 23)},
            order_seed=derive_seed(seed, order, 29),
            d_sae=n_features(sae_a),
            k=active,
            training_tokens=training_tokens,
        )
        trained.append(profile_saes(model, {hook_name: one[hook_name].sae}, tokens)[hook_name])
    floor = [matched(trained[0], other) for other in trained[1:]]
    return SAEComparison(
        match=match,
        rate=match.rate,
        floor_data=floor[0].rate,
        floor_init=floor[1].rate,
        n_alive=len(match.pairs) + len(match.unmatched_a),
        floor_n_alive=len(floor[0].pairs) + len(floor[0].unmatched_a),
    )


@dataclass(frozen=True, eq=False)
class LifeOfFeature:
    """One feature of somebody's SAE, traced back through the checkpoints.

    Attributes:
        hook_name: where the SAE reads.
        feature: the feature's index in that SAE.
        birth: first step of its lineage; None when no feature of the last checkpoint matches it.
        history: one row per step: step, in_lineage, feature (the lineage's, else the most similar one), similarity (of
            its
            profile to the given feature's), cosine (of the decoder directions), null_similarity (highest similarity of
            the given feature's profile, with rows shuffled, to any feature).
        contexts: the feature's strongest contexts; empty without a tokenizer.
        neuronpedia: its Neuronpedia id where the SAE's metadata holds one, else None.

    How it can mislead: a birth is the first checkpoint of a chain of matches, so one missed match (SAE noise) makes a
    feature look young. Read `similarity` at the steps before.
    """

    hook_name: str
    feature: int
    birth: int | None
    history: pd.DataFrame
    contexts: pd.DataFrame
    neuronpedia: str | None


def life_of(
    sae: Dictionary,
    feature: int,
    series: Mapping[int, HookedModel],
    saes: Any,
    tokens: TokenSet,
    *,
    hook_name: str | None = None,
    min_similarity: float = MIN_SIMILARITY,
    method: str = "gated",
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
    seed: int = 0,
) -> LifeOfFeature:
    """Trace one feature of an SAE of the finished model back through the series.

    Args:
        sae: the SAE, for the last checkpoint's model.
        series: the checkpoints.
        saes: SAEs at each checkpoint (`train_saes`); the feature is matched to those of the last one and then followed
            along their lineages.
        tokens: text for the profiles.
        hook_name: where `sae` is to read; by default what its metadata says.
        min_similarity: see `match_features`, as for the three that follow.
        method: how the match is assigned.
        min_rate: of an alive feature.
        min_count: of an alive feature.

    Raises:
        InputError: no such feature, a hook point without SAEs, or a feature that never fires on this text.
    """
    metadata = getattr(getattr(sae, "cfg", None), "metadata", None)
    told = hook_name is not None
    hook_name = hook_name or declared_hook_name(sae)
    if hook_name is None or hook_name not in saes.hook_names:
        raise InputError(
            f"The SAE's hook point is {hook_name!r}, and the series has SAEs at {list(saes.hook_names)}: "
            "pass hook_name=."
        )
    if not 0 <= feature < n_features(sae):
        raise InputError(f"Feature {feature} lies outside 0 to {n_features(sae) - 1}, the SAE's features.")
    steps = list(saes.steps)
    here = _Placed(sae) if told else sae
    given = profile_saes(series[steps[-1]], {hook_name: here}, tokens, step=steps[-1])[hook_name]
    if given.count[feature] == 0:
        raise InputError(
            f"Feature {feature} never fires on these {given.n_rows} positions: use more text, or text "
            "that holds what it is about."
        )
    own: dict[tuple[int, str], FeatureProfiles] = {}
    for step in steps:
        own[step, hook_name] = profile_saes(series[step], {hook_name: saes[step, hook_name]}, tokens, step=step)[
            hook_name
        ]
    chosen = np.array([feature])
    column = {step: _similarity(given, chosen, own[step, hook_name]) for step in steps}
    shuffled = {step: _similarity(given.permuted(seed), chosen, own[step, hook_name]) for step in steps}
    lineages = trace_lineages(
        own, min_similarity=min_similarity, method=method, min_rate=min_rate, min_count=min_count
    ).to_dataframe()
    last, best = steps[-1], int(np.argmax(column[steps[-1]]))
    mine = lineages.iloc[:0]
    if column[last][best] >= min_similarity:
        numbers = lineages.loc[(lineages["step"] == last) & (lineages["feature"] == best), "lineage"]
        mine = lineages[lineages["lineage"].isin(numbers)]
    along = dict(zip(mine["step"].tolist(), mine["feature"].tolist(), strict=True))
    direction = _direction(sae, feature)
    rows = []
    for step in steps:
        partner = int(along.get(step, int(np.argmax(column[step]))))
        other = _direction(saes[step, hook_name], partner)
        cosine = float(torch.nn.functional.cosine_similarity(direction, other))
        rows.append(
            (step, step in along, partner, float(column[step][partner]), cosine, float(shuffled[step].max(initial=0)))
        )
    names = ["step", "in_lineage", "feature", "similarity", "cosine", "null_similarity"]
    tokenizer = getattr(series, "tokenizer", None)
    contexts = pd.DataFrame() if tokenizer is None else top_contexts(given, tokens, [feature], tokenizer)
    known = getattr(metadata, "neuronpedia_id", None)
    return LifeOfFeature(
        hook_name,
        feature,
        min(along) if along else None,
        pd.DataFrame(rows, columns=names),
        contexts,
        f"{known}/{feature}" if known else None,
    )


class _Placed:
    """An SAE without its word on where it reads: the caller has named the hook point."""

    def __init__(self, sae: Any) -> None:
        self.W_dec, self.encode, self.decode = sae.W_dec, sae.encode, sae.decode
        self.cfg: Any = copy.copy(getattr(sae, "cfg", None))
        if getattr(self.cfg, "metadata", None) is not None:
            self.cfg.metadata = copy.copy(self.cfg.metadata)
            self.cfg.metadata.hook_name = None


def _direction(sae: Dictionary, feature: int) -> Float[torch.Tensor, "one d_model"]:
    """Of what the feature adds; for one that adds another length to each row, of its decoder's row."""
    if why_no_contribution(sae) is None:
        return decoder_directions(sae, [feature]).double()
    return sae.W_dec[[feature]].detach().double()


def _similarity(given: FeatureProfiles, chosen: np.ndarray, other: FeatureProfiles) -> np.ndarray:
    """Pearson of one feature with every feature of another SAE; 0 where they are not positively correlated."""
    return similarities(given, other, chosen, np.arange(other.n_features), min_similarity=1e-6).toarray().ravel()

"""Can a feature's first measurements tell whether it will be a persistent carrier? (D20 to D22, C9)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions
from tl_lifehist.errors import InputError
from tl_lifehist.inference.exchange import CALIPER
from tl_lifehist.lifehistory.beyond_rate import Gain, curve_columns, score_null
from tl_lifehist.lifehistory.containment import MIN_LIFT, containment_index
from tl_lifehist.lifehistory.lineages import Carriers, Lineages, Profiles
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.lifehistory.recruitment import RATE_BLOCK
from tl_lifehist.metrics import interval

ONSET, PHASE_TWO = 0.007, 0.28
MIN_POSITIVES = 10
N_FOLDS = 5
N_BOOTSTRAP = 1000
PREDICTORS = ["entropy", "containment", "strength"]
GEOMETRY = ["nearest_cosine", "mean_cosine", "crowding"]
NAME = "entropy, containment, strength"
RATE, MASS = "rate and layer", "mass and layer"
BESIDE_RATE = f"rate, layer, {NAME}"
COLUMNS = ["auc", "low", "high", "average_precision", "enrichment", "recall_at_k", "recall_top_decile"]

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]


def training_phase(step: int, last_step: int, *, onset_share: float = ONSET, phase_two_share: float = PHASE_TWO) -> str:
    """The phase of training (D20, ours but for the first bound): I up to 0.7 %, II up to 28 %, III after that.

    Fractions are rounded to a tenth of a percent, so that step 1,000 of 143,000 (0.699 %) closes phase I.
    """
    fraction = round(step / last_step, 3)
    return "I" if fraction <= onset_share else "II" if fraction <= phase_two_share else "III"


def onset_step(steps: Sequence[int], *, onset_share: float = ONSET) -> int:
    """The first checkpoint at or after 0.7 % of the last, rounded as in `training_phase`: 1,000 for Pythia (D21)."""
    last = max(steps)
    return min(step for step in steps if last == 0 or round(step / last, 3) >= onset_share)


def roc_auc(labels: Bools, scores: Floats) -> float:
    """P(a positive scores above a negative) + P(they are equal) / 2; NaN without both classes."""
    return float(roc_auc_score(labels, scores)) if labels.any() and not labels.all() else float("nan")


def _auc(labels: Bools, level: Ints, weights: Floats) -> float:
    """The same from the ranks of the distinct scores, each row counted `weights` times: without sorting anew, a sample
    of a bootstrap costs an eightieth.
    """
    positive = np.bincount(level, weights=weights * labels)
    negative = np.bincount(level, weights=weights * ~labels)
    pairs = positive.sum() * negative.sum()
    return float((positive * (np.cumsum(negative) - negative / 2)).sum() / pairs) if pairs else float("nan")


def precision_at(labels: Bools, scores: Floats, k: int) -> float:
    """Expected share of positives among the `k` highest scores, rows tied at the border counting in part."""
    border = np.sort(scores)[-k]
    above, at = scores > border, scores == border
    return float((labels[above].sum() + labels[at].mean() * (k - above.sum())) / k)


def _at_onset(profiles: Mapping[str, FeatureProfiles] | Profiles, onset_share: float) -> dict[str, FeatureProfiles]:
    by_step: dict[int | None, dict[str, FeatureProfiles]] = {}
    for key, profile in profiles.items():
        step, name = (None, key) if isinstance(key, str) else key
        by_step.setdefault(step, {})[name] = profile
    steps = [step for step in by_step if step is not None]
    return by_step[onset_step(steps, onset_share=onset_share) if steps else None] if by_step else {}


@dataclass(frozen=True, eq=False)
class Forecast:
    """How well the first measurements of features tell the later carriers.

    Attributes:
        auc: area under the ROC curve of the mean out-of-fold scores.
        auc_interval: its 95 % interval over lineages, the scores held fixed.
        average_precision: of the same scores.
        enrichment: precision at K over the base rate, K = `n_positive` (D22).
        recall_at_k: share of the carriers among the K highest scores (with this K it equals the precision).
        recall_top_decile: share of the carriers among the highest tenth.
        n: features alive at the onset, one per lineage.
        n_positive: those whose lineage becomes a carrier.
        onset: the checkpoint the measurements are from.
        baselines: one row a baseline, with the columns of `to_dataframe`; gain_low and gain_high bound our AUC minus
            the baseline's (paired).
        gain: what the measurements add to a smooth curve of the firing rate and the layer; None where the figures are
            NaN.
        reason: why the figures are NaN; None when they are not.
        table: one row per lineage: hook_name, feature, lineage, label, score (mean out-of-fold probability).
    """

    auc: float
    auc_interval: tuple[float, float]
    average_precision: float
    enrichment: float
    recall_at_k: float
    recall_top_decile: float
    n: int
    n_positive: int
    onset: int
    baselines: pd.DataFrame
    gain: Gain | None
    reason: str | None
    table: pd.DataFrame
    _model: Any = field(repr=False)

    def to_dataframe(self) -> pd.DataFrame:
        """One row a predictor, ours first: predictor, the figures (`COLUMNS`), n, n_positive."""
        values = (self.average_precision, self.enrichment, self.recall_at_k, self.recall_top_decile)
        own = (NAME, self.auc, *self.auc_interval, *values, self.n, self.n_positive)
        first = pd.DataFrame([own], columns=["predictor", *COLUMNS, "n", "n_positive"])
        return pd.concat([first, self.baselines], ignore_index=True) if len(self.baselines) else first

    def predict(
        self,
        profiles: Mapping[str, FeatureProfiles] | Profiles,
        *,
        min_rate: float = MIN_RATE,
        min_count: int = MIN_COUNT,
        min_lift: float = MIN_LIFT,
        onset_share: float = ONSET,
    ) -> pd.DataFrame:
        """Scores of another model's alive features by the classifier fitted on all lineages: hook_name, feature, score.

        Args:
            profiles: `{hook_name: FeatureProfiles}` at its onset, or `{(step, hook_name): ...}`, of which the onset is
                taken by the rule of `onset_step`.
            min_rate: see `FeatureProfiles.alive`.
            min_count: see `FeatureProfiles.alive`.
            min_lift: see `containment_index`; what the classifier was fitted with.
            onset_share: see `onset_step`.

        How it can mislead: the scores rank; as probabilities they are off, since the classes were balanced.

        Raises:
            InputError: the forecast has no classifier (`reason`), or profiles without `residual_norm`.
        """
        if self._model is None:
            raise InputError(f"This forecast has no classifier to predict with: {self.reason}")
        at_onset = _at_onset(profiles, onset_share)
        alive = {h: np.flatnonzero(p.alive(min_rate=min_rate, min_count=min_count)) for h, p in at_onset.items()}
        table = _measure(at_onset, alive, None, min_lift)
        score = self._model.predict_proba(table[PREDICTORS].to_numpy())[:, 1] if len(table) else np.zeros(0)
        return table[["hook_name", "feature"]].assign(score=score)


def predict_carriers(
    profiles: Profiles,
    lineages: Lineages,
    carriers: Carriers,
    *,
    onset: int | None = None,
    onset_share: float = ONSET,
    saes: Any | None = None,
    min_lift: float = MIN_LIFT,
    min_positives: int = MIN_POSITIVES,
    n_folds: int = N_FOLDS,
    n_repeats: int = 20,
    n_permutations: int = 200,
    n_bootstrap: int = N_BOOTSTRAP,
    inverse_penalty: float = 1.0,
    n_draws: int = 199,
    block: int = RATE_BLOCK,
    caliper: float = CALIPER,
    seed: int = 0,
) -> Forecast:
    """Predict from entropy, containment index and strength at the onset which features become carriers (D21).

    Logistic regression (standardised, L2, C = `inverse_penalty`, balanced classes); stratified `n_folds` folds x
    `n_repeats`, by lineage.

    Baselines: a smooth curve of the log firing rate and the layer; the same of the log mass; the former with our
    measurements added, whose `gain` over it is what they tell beyond the rate; the log firing rate as a straight line;
    decoder geometry (largest cosine to another alive
    decoder row of the layer, cosine with their mean direction, mean square cosine; needs `saes`); labels permuted (one
    repeat a draw; mean and central 95 %); each layer scored by a classifier trained on the others.

    Args:
        profiles: `{(step, hook_name): FeatureProfiles}`, with `residual_norm`.
        lineages: from `trace_lineages` on the same profiles.
        carriers: from `lineages.carriers()`.
        onset: the checkpoint to measure at; None is the first at or after `onset_share` of training.
        onset_share: see `onset_step`.
        saes: `saes.at(step)` gives the SAEs by hook point; without it the geometry baseline is left out.
        min_lift: see `containment_index`.
        min_positives: least number of features of either class (ours).
        n_folds: stratified folds.
        n_repeats: how often the folds are drawn anew.
        n_permutations: draws of permuted labels.
        n_bootstrap: samples of lineages for the intervals.
        inverse_penalty: scikit-learn's C.
        n_draws: draws of the null of the gain.
        block: see `beyond_rate.score_null`.
        caliper: see `beyond_rate.score_null`.

    With fewer than `min_positives` positives or negatives, or an onset at the last checkpoint, the figures are NaN and
    `reason` says why.

    How it can mislead: entropy nearly is log firing rate, and broad features are matched more easily, so a high AUC
    may say "frequent features persist" and no more: the rate baseline decides. The interval holds the fitted scores
    fixed and takes lineages as independent, so it is too narrow.

    Raises:
        InputError: an onset without profiles, or profiles without `residual_norm`.
    """
    onset = onset_step(lineages.steps, onset_share=onset_share) if onset is None else onset
    if onset not in lineages.steps or any((onset, h) not in profiles for h in lineages.hook_names):
        raise InputError(f"There are no profiles at the onset {onset}; the checkpoints are {list(lineages.steps)}.")
    at_onset = {h: profiles[onset, h] for h in lineages.hook_names}
    alive = {h: np.asarray(lineages.alive[onset, h]) for h in lineages.hook_names}
    table = _measure(at_onset, alive, None if saes is None else saes.at(onset), min_lift)
    here = lineages.to_dataframe().query("step == @onset")[["hook_name", "feature", "lineage"]]
    table = table.merge(here, on=["hook_name", "feature"], how="left", validate="one_to_one")
    table["label"] = table["lineage"].isin(carriers.lineages)
    labels = table["label"].to_numpy(dtype=bool)
    scarce = min(labels.sum(), (~labels).sum())
    reason = None
    if onset == lineages.steps[-1]:
        reason = f"The onset {onset} is the last checkpoint, so nothing is left to forecast."
    elif scarce < min_positives:
        which = "become carriers" if labels.sum() <= (~labels).sum() else "do not become carriers"
        reason = f"Of {len(labels)} features alive at step {onset} only {scarce} {which}: {min_positives} are needed."
    score, model, rows, added = np.full(len(labels), np.nan), None, [], None
    own = dict.fromkeys(COLUMNS, float("nan"))
    if reason is None:
        fit = Classifier(n_folds, inverse_penalty)
        predictors = table[PREDICTORS].to_numpy()
        score, model = fit.out_of_fold(predictors, labels, n_repeats, seed), fit(predictors, labels)
        own = _figures(labels, score, n_bootstrap, seed)
        others = {
            name: fit.out_of_fold(x, labels, n_repeats, seed) for name, x in _baselines(table, saes is not None).items()
        }
        for name, other in others.items():
            gain = _gain(labels, score, other, n_bootstrap, seed)
            rows.append((name, {**_figures(labels, other, n_bootstrap, seed), **gain}))
        null = score_null(
            predictors,
            table["log_rate"].to_numpy() / np.log(10),
            table["hook_name"].to_numpy(dtype=str),
            labels,
            block=block,
            caliper=caliper,
            n_draws=n_draws,
            inverse_penalty=inverse_penalty,
            seed=seed,
        )
        nested = _gain(labels, others[BESIDE_RATE], others[RATE], n_bootstrap, seed)
        difference = roc_auc(labels, others[BESIDE_RATE]) - roc_auc(labels, others[RATE])
        added = Gain(difference, nested["gain_low"], nested["gain_high"], null.p, len(labels), int(labels.sum()))
        rows.append(("label permutation", _permuted(fit, predictors, labels, n_permutations, seed)))
        rows.append(("leave one layer out", _figures(labels, _left_out(fit, table, labels), n_bootstrap, seed)))
    baselines = pd.DataFrame(
        [{"predictor": name, **row, "n": len(labels), "n_positive": int(labels.sum())} for name, row in rows],
        columns=["predictor", *COLUMNS, "gain_low", "gain_high", "n", "n_positive"],
    )
    return Forecast(
        auc=own["auc"],
        auc_interval=(own["low"], own["high"]),
        **{name: own[name] for name in COLUMNS[3:]},
        n=len(labels),
        n_positive=int(labels.sum()),
        onset=onset,
        baselines=baselines,
        gain=added,
        reason=reason,
        table=table[["hook_name", "feature", "lineage", "label"]].assign(score=score),
        _model=model,
    )


def _baselines(table: pd.DataFrame, geometry: bool) -> dict[str, Floats]:
    """What each baseline is fitted to, `[feature, column]`."""
    by_rate = curve_columns(table, "log_rate")
    known = {
        RATE: by_rate,
        MASS: curve_columns(table, "log_mass"),
        BESIDE_RATE: np.concatenate([by_rate, table[PREDICTORS].to_numpy()], axis=1),
        "log firing rate": table[["log_rate"]].to_numpy(),
    }
    return {**known, "decoder geometry": table[GEOMETRY].to_numpy()} if geometry else known


def _measure(
    profiles: Mapping[str, FeatureProfiles],
    alive: Mapping[str, Ints],
    saes: Mapping[str, Dictionary] | None,
    min_lift: float,
) -> pd.DataFrame:
    index = containment_index(profiles, min_lift=min_lift, alive=alive)
    parts = []
    for name, profile in profiles.items():
        chosen = alive[name]
        columns = {
            "hook_name": name,
            "feature": chosen,
            "entropy": profile.entropy[chosen],
            "containment": index[name][chosen],
            "strength": profile.strength[chosen],
            "log_rate": np.log(profile.firing_rate[chosen]),
            "log_mass": np.log(np.maximum(profile.mass[chosen], 1e-30)),
        }
        geometry = {} if saes is None else dict(zip(GEOMETRY, _geometry(saes[name], chosen), strict=True))
        parts.append(pd.DataFrame({**columns, **geometry}))
    return pd.concat(parts, ignore_index=True)


def _geometry(sae: Dictionary, features: Ints) -> tuple[Floats, Floats, Floats]:
    """Of each feature: largest cosine to another, cosine with the mean direction, mean square cosine to the others."""
    if len(features) < 2:
        return np.zeros(len(features)), np.zeros(len(features)), np.zeros(len(features))
    rows = torch.nn.functional.normalize(decoder_directions(sae, features.tolist()).float(), dim=1)
    mean = torch.nn.functional.normalize(rows.mean(dim=0), dim=0)
    nearest, crowding = [], []
    for start, block in zip(range(0, len(rows), 1024), rows.split(1024), strict=True):
        cosine = block @ rows.T
        own = torch.arange(len(block), device=rows.device)
        cosine[own, start + own] = 0
        crowding.append(cosine.square().sum(dim=1) / (len(rows) - 1))
        cosine[own, start + own] = -1
        nearest.append(cosine.amax(dim=1))
    values = torch.cat(nearest), rows @ mean, torch.cat(crowding)
    nearest_cosine, mean_cosine, mean_square = (v.double().cpu().numpy() for v in values)
    return nearest_cosine, mean_cosine, mean_square


@dataclass(frozen=True)
class Classifier:
    """How every classifier of a forecast is fitted."""

    n_folds: int
    inverse_penalty: float

    def __call__(self, x: Floats, labels: Bools) -> Any:
        regression = LogisticRegression(C=self.inverse_penalty, class_weight="balanced", max_iter=1000)
        return make_pipeline(StandardScaler(), regression).fit(x, labels)

    def out_of_fold(self, x: Floats, labels: Bools, n_repeats: int, seed: int) -> Floats:
        """Mean over the repeats of each row's probability under the classifier of the folds that leave it out."""
        total = np.zeros(len(labels))
        for repeat in range(n_repeats):
            state = int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0])
            folds = StratifiedKFold(self.n_folds, shuffle=True, random_state=state)
            for train, test in folds.split(x, labels):
                total[test] += self(x[train], labels[train]).predict_proba(x[test])[:, 1]
        return total / n_repeats


def _figures(labels: Bools, score: Floats, n_bootstrap: int, seed: int) -> dict[str, float]:
    """The columns of a forecast's row, without an interval where `n_bootstrap` is 0; rows without a score are left
    out.
    """
    kept = np.isfinite(score)
    labels, score = labels[kept], score[kept]
    if not labels.any() or labels.all():
        return dict.fromkeys(COLUMNS, float("nan"))
    generator, level = np.random.default_rng(seed), np.unique(score, return_inverse=True)[1]
    draws = np.zeros(n_bootstrap)
    for draw in range(n_bootstrap):
        weight = np.bincount(generator.integers(0, len(score), len(score)), minlength=len(score)).astype(float)
        draws[draw] = _auc(labels, level, weight)
    low, high = interval(draws)
    k, tenth = int(labels.sum()), max(1, round(len(labels) / 10))
    precision = precision_at(labels, score, k)
    return {
        "auc": roc_auc(labels, score),
        "low": low,
        "high": high,
        "average_precision": float(average_precision_score(labels, score)),
        "enrichment": precision / float(labels.mean()),
        "recall_at_k": precision,
        "recall_top_decile": precision_at(labels, score, tenth) * tenth / k,
    }


def _gain(labels: Bools, score: Floats, other: Floats, n_bootstrap: int, seed: int) -> dict[str, float]:
    """95 % interval of our AUC minus the baseline's, resampling lineages for both at once."""
    generator = np.random.default_rng(seed)
    ours, theirs = (np.unique(s, return_inverse=True)[1] for s in (score, other))
    draws = np.zeros(n_bootstrap)
    for draw in range(n_bootstrap):
        weight = np.bincount(generator.integers(0, len(score), len(score)), minlength=len(score)).astype(float)
        draws[draw] = _auc(labels, ours, weight) - _auc(labels, theirs, weight)
    low, high = interval(draws)
    return {"gain_low": low, "gain_high": high}


def _permuted(fit: Classifier, x: Floats, labels: Bools, n_permutations: int, seed: int) -> dict[str, float]:
    """Mean figures under permuted labels, and the central 95 % of their AUC."""
    generator = np.random.default_rng(seed)
    rows = []
    for draw in range(n_permutations):
        shuffled = generator.permutation(labels)
        score = fit.out_of_fold(x, shuffled, 1, seed + draw)
        rows.append(_figures(shuffled, score, 0, seed))
    if not rows:
        return dict.fromkeys(COLUMNS, float("nan"))
    low, high = interval(np.array([row["auc"] for row in rows]))
    means = {name: float(np.mean([row[name] for row in rows])) for name in COLUMNS}
    return {**means, "low": low, "high": high}


def _left_out(fit: Classifier, table: pd.DataFrame, labels: Bools) -> Floats:
    """Each layer's scores by a classifier of the other layers; NaN where these lack one of the classes."""
    x, layer = table[PREDICTORS].to_numpy(), table["hook_name"].to_numpy()
    score = np.full(len(labels), np.nan)
    for name in pd.unique(layer):
        train = layer != name
        if labels[train].any() and not labels[train].all():
            score[~train] = fit(x[train], labels[train]).predict_proba(x[~train])[:, 1]
    return score

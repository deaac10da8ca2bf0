"""Activation profiles: what each feature does on the evaluation tokens, kept sparse (D2 to D4, D10, D11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from tl_lifehist.activations import BATCH_SIZE, NonFiniteActivations, stream_activations
from tl_lifehist.dictionaries.declared import why_no_contribution
from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions, n_features, require_width
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel
from tl_lifehist.tokens import TokenSet, require_valid

FIRING_THRESHOLD = 1e-6
MIN_RATE = 1e-3
MIN_COUNT = 50

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class FeatureProfiles:
    """The codes of all features of one SAE on the evaluation tokens.

    Attributes:
        step: the checkpoint.
        hook_name: where the SAE reads.
        acts: codes, sparse `[row, feature]`, not negative; rows are the valid positions in order. Feature indices are
            the SAE's own everywhere. Values up to `firing_threshold` count as not firing and are dropped (D2).
        residual_norm: mean norm of the activations at the hook point; needed by `strength`.
        token_ids: vocabulary id of each row; needed by `vocabulary_entropy` and by content classes.
        documents: document of each row.
        decoder_norm: norm of what one unit of each feature adds; None means unit directions, as in a SAELens
            inference SAE. NaN, and `mass` and `strength` with it, where features add nothing of their own (a
            transcoder, an SAE that normalises each input by itself).
        firing_threshold: the largest code that is no firing (D2).

    How it can mislead: all later steps see features only through these tokens. A feature for something that the text
    does not contain is dead here, whatever it does elsewhere.
    """

    step: int
    hook_name: str
    acts: Any
    residual_norm: float | None = None
    token_ids: NDArray[np.integer] | None = None
    documents: NDArray[np.integer] | None = None
    decoder_norm: NDArray[np.floating] | None = None
    firing_threshold: float = FIRING_THRESHOLD

    def __post_init__(self) -> None:
        matrix = sp.csc_array(self.acts)
        if matrix.dtype not in (np.float32, np.float64):
            matrix = matrix.astype(np.float32)
        if matrix.nnz and not np.isfinite(matrix.data).all():
            raise InputError(f"The codes at step {self.step}, {self.hook_name!r} hold NaN or infinite values.")
        if matrix.nnz and matrix.data.min() < 0:
            raise InputError(
                f"The codes at step {self.step}, {self.hook_name!r} hold negative values: profiles need codes >= 0."
            )
        if matrix.nnz and matrix.data.min() <= self.firing_threshold:
            matrix = matrix.copy()
            matrix.data[matrix.data <= self.firing_threshold] = 0
            matrix.eliminate_zeros()
        matrix.sort_indices()
        for name, length in (
            ("token_ids", matrix.shape[0]),
            ("documents", matrix.shape[0]),
            ("decoder_norm", matrix.shape[1]),
        ):
            value = getattr(self, name)
            if value is not None and len(value) != length:
                raise InputError(
                    f"{name} has {len(value)} entries for profiles of shape {matrix.shape}: expected {length}."
                )
        object.__setattr__(self, "acts", matrix)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Plain arrays, as a file holds them: data, indices, indptr, shape, residual_norm, decoder_norm,
        firing_threshold. Token ids and documents are the text's.
        """
        return {
            "data": self.acts.data,
            "indices": self.acts.indices.astype(np.int32),
            "indptr": self.acts.indptr.astype(np.int64),
            "shape": np.array(self.acts.shape, dtype=np.int64),
            "residual_norm": np.array(np.nan if self.residual_norm is None else self.residual_norm),
            "decoder_norm": self.norm,
            "firing_threshold": np.array(self.firing_threshold),
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], *, step: int, hook_name: str, **text: Any
    ) -> FeatureProfiles:
        """The counterpart of `to_arrays`; `text` gives token_ids and documents.

        Raises:
            InputError: indices that no matrix of this shape has.
        """
        shape, indptr, indices = tuple(map(int, arrays["shape"])), arrays["indptr"], arrays["indices"]
        whole = len(shape) == 2 and len(indptr) == shape[1] + 1 and indptr[0] == 0 and (np.diff(indptr) >= 0).all()
        inside = len(indices) == len(arrays["data"]) == indptr[-1] and (
            len(indices) == 0 or (indices.min() >= 0 and indices.max() < shape[0])
        )
        if not (whole and inside):
            raise InputError(f"The stored profile of step {step} at {hook_name!r} is damaged: make it again.")
        acts = sp.csc_array((arrays["data"], indices, indptr), shape=(shape[0], shape[1]))
        norm = float(arrays["residual_norm"])
        return cls(
            step,
            hook_name,
            acts,
            None if np.isnan(norm) else norm,
            decoder_norm=arrays["decoder_norm"],
            firing_threshold=float(arrays["firing_threshold"]),
            **text,
        )

    @property
    def n_rows(self) -> int:
        """Evaluation positions."""
        return self.acts.shape[0]

    @property
    def n_features(self) -> int:
        return self.acts.shape[1]

    @cached_property
    def count(self) -> NDArray[np.int64]:
        """Firings of each feature, |T_f| (D2)."""
        return np.diff(self.acts.indptr).astype(np.int64)

    @cached_property
    def firing_rate(self) -> Floats:
        """|T_f| / N."""
        return self.count / max(self.n_rows, 1)

    @cached_property
    def code_sum(self) -> Floats:
        """Sum of each feature's codes."""
        # in float64 throughout: a sparse sum keeps float32 inside, and a constant profile would get a variance
        return np.bincount(column_of(self.acts), weights=self.acts.data, minlength=self.n_features).astype(np.float64)

    @property
    def norm(self) -> Floats:
        """Norm of each feature's direction; 1 where `decoder_norm` is not given."""
        return (
            np.ones(self.n_features) if self.decoder_norm is None else np.asarray(self.decoder_norm, dtype=np.float64)
        )

    @property
    def mass(self) -> Floats:
        """Total mass, sum_t a_f ||d_f|| / N (D11)."""
        return self.code_sum * self.norm / max(self.n_rows, 1)

    @cached_property
    def removed_norm(self) -> Floats:
        """Root mean square of a_f ||d_f|| over the positions: the norm that an ablation of the feature removes (C6)."""
        square = np.bincount(
            column_of(self.acts), weights=self.acts.data.astype(np.float64) ** 2, minlength=self.n_features
        )
        return np.sqrt(square / max(self.n_rows, 1)) * self.norm

    @property
    def strength(self) -> Floats:
        """Mean of a_f ||d_f|| where the feature fires, over the mean activation norm (D11); NaN where it never
        fires.
        """
        if self.residual_norm is None:
            raise InputError(
                f"strength needs residual_norm, which the profiles at {self.hook_name!r} lack: pass the "
                "mean activation norm."
            )
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.code_sum * self.norm / self.count / self.residual_norm

    def alive(self, *, min_rate: float = MIN_RATE, min_count: int = MIN_COUNT) -> Bools:
        """Which features fire often enough to be matched and counted, `[feature]` (D3; both thresholds are ours)."""
        return (self.firing_rate >= min_rate) & (self.count >= min_count)

    @cached_property
    def entropy(self) -> Floats:
        """How evenly each feature's code is spread over the positions, in [0, 1] (D10, ours); NaN where it never fires.

        How it can mislead: it is close to the logarithm of the firing rate; show that baseline beside it.
        """
        return _column_entropy(self.acts, np.log(max(self.n_rows, 2)))

    @cached_property
    def vocabulary_entropy(self) -> Floats:
        """D10 over vocabulary ids instead of positions, over the log of the number of ids that occur."""
        by_token = self.by_token()
        return _column_entropy(by_token, np.log(max(len(np.unique(self._tokens())), 2)))

    def by_token(self) -> sp.csc_array:
        """Each feature's code summed by vocabulary id, `[id, feature]`."""
        ids = self._tokens()
        gather = sp.csr_array(
            (np.ones(len(ids)), (ids, np.arange(len(ids)))), shape=(int(ids.max(initial=-1)) + 1, len(ids))
        )
        return sp.csc_array(gather @ self.acts)

    def top_token_share(self) -> Floats:
        """Share of each feature's mass on its most frequent vocabulary id (C11); NaN where it never fires."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.by_token().max(axis=0).todense()).ravel() / self.code_sum

    def _tokens(self) -> NDArray[np.integer]:
        if self.token_ids is None:
            raise InputError(
                f"This needs token_ids, which the profiles at {self.hook_name!r} lack: pass the id of each row."
            )
        return np.asarray(self.token_ids)

    def permuted(self, seed: int) -> FeatureProfiles:
        """The same codes with the rows shuffled: what is left of any match is chance (C3)."""
        order = np.random.default_rng(seed).permutation(self.n_rows)
        return replace(self, acts=sp.csr_array(self.acts)[order], token_ids=None, documents=None)

    def documents_permuted(self, seed: int) -> FeatureProfiles:
        """The same codes with whole documents in another order, the rows of each as they were (C3)."""
        if self.documents is None:
            raise InputError(
                f"This needs documents, which the profiles at {self.hook_name!r} lack: pass the document of each row."
            )
        _, number = np.unique(self.documents, return_inverse=True)
        place = np.random.default_rng(seed).permutation(int(number.max(initial=-1)) + 1)
        order = np.argsort(place[number], kind="stable")
        return replace(self, acts=sp.csr_array(self.acts)[order], token_ids=None, documents=None)

    def select_rows(self, keep: Bools) -> FeatureProfiles:
        """The profiles over some of the rows: some documents, or without frequent tokens (C3, C11)."""
        ids, documents = (None if v is None else np.asarray(v)[keep] for v in (self.token_ids, self.documents))
        acts = sp.csr_array(self.acts)[np.flatnonzero(keep)]
        return replace(self, acts=acts, token_ids=ids, documents=documents)


def column_of(matrix: sp.csc_array) -> NDArray[np.integer]:
    """The column of each stored entry."""
    return np.repeat(np.arange(matrix.shape[1]), np.diff(matrix.indptr))


def _column_entropy(matrix: sp.csc_array, scale: float) -> Floats:
    column = column_of(matrix)
    data = matrix.data.astype(np.float64)
    total = np.bincount(column, weights=data, minlength=matrix.shape[1])
    # -sum q log q with q = a / total is log(total) - sum(a log a) / total, which needs one pass
    weighted = np.bincount(column, weights=data * np.log(np.where(data > 0, data, 1.0)), minlength=matrix.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (np.log(total) - weighted / total) / scale
    return np.where(total > 0, np.clip(value, 0, None), np.nan)


def profile_saes(
    model: HookedModel,
    saes: Mapping[str, Dictionary],
    tokens: TokenSet,
    *,
    step: int = 0,
    firing_threshold: float = FIRING_THRESHOLD,
    batch_size: int = BATCH_SIZE,
) -> dict[str, FeatureProfiles]:
    """Profiles of every SAE at one checkpoint, from one forward pass: `{hook_name: FeatureProfiles}`.

    Memory follows the number of firings, not tokens times features.

    Args:
        step: the checkpoint that the model is.
        firing_threshold: the largest code that is no firing (D2).
        batch_size: sequences in one pass.

    Raises:
        InputError: an unknown hook point, an SAE of another width or hook point, activations that are NaN (with step,
            hook point and position), no valid position.
    """
    passed = {"step": step, "firing_threshold": firing_threshold, "batch_size": batch_size}
    return profile_replicates(model, {"": saes}, tokens, **passed)[""]


@torch.no_grad()
def profile_replicates(
    model: HookedModel,
    saes: Mapping[str, Mapping[str, Dictionary]],
    tokens: TokenSet,
    *,
    step: int = 0,
    firing_threshold: float = FIRING_THRESHOLD,
    batch_size: int = BATCH_SIZE,
) -> dict[str, dict[str, FeatureProfiles]]:
    """As `profile_saes`, for several SAEs of each hook point: `{replicate: {hook_name: FeatureProfiles}}`. One forward
    pass serves all.

    Raises:
        InputError: as `profile_saes`.
    """
    require_valid(tokens)
    hook_names = list(dict.fromkeys(h for at in saes.values() for h in at))
    parts: dict[tuple[str, str], list[Any]] = {(name, h): [] for name, at in saes.items() for h in at}
    norms = dict.fromkeys(hook_names, 0.0)
    try:
        for batch in stream_activations(model, hook_names, tokens, batch_size=batch_size):
            for h, rows in batch.items():
                norms[h] += float(rows.double().norm(dim=1).sum())
                for name, at in saes.items():
                    if h in at:
                        require_width(at[h], rows.shape[1], h)
                        parts[name, h].append(_sparse_codes(at[h], rows, firing_threshold))
    except NonFiniteActivations as error:
        raise NonFiniteActivations(f"Step {step}: {error}") from error
    return {
        name: {
            h: FeatureProfiles(
                step=step,
                hook_name=h,
                acts=sp.vstack(parts[name, h], format="csc"),
                residual_norm=norms[h] / tokens.n_valid,
                token_ids=tokens.row_tokens,
                documents=tokens.row_documents,
                decoder_norm=_direction_norms(sae),
                firing_threshold=firing_threshold,
            )
            for h, sae in at.items()
        }
        for name, at in saes.items()
    }


def _direction_norms(sae: Dictionary) -> Floats:
    if why_no_contribution(sae) is not None:  # its codes are as good as any: profiles and matches need no more
        return np.full(n_features(sae), np.nan)
    return decoder_directions(sae).double().norm(dim=1).cpu().numpy()


def _sparse_codes(sae: Dictionary, rows: torch.Tensor, threshold: float) -> sp.csr_array:
    codes = sae.encode(rows.to(sae.W_dec))
    if not bool(torch.isfinite(codes).all()):
        raise NonFiniteActivations(
            "An SAE gives NaN or infinite codes for finite activations: train it again, with a lower lr."
        )
    row, feature = (codes.abs() > threshold).nonzero(as_tuple=True)
    data = codes[row, feature].float().cpu().numpy()
    return sp.csr_array((data, (row.cpu().numpy(), feature.cpu().numpy())), shape=tuple(codes.shape))


def activation_profiles(
    series: Mapping[int, HookedModel],
    saes: Any,
    tokens: TokenSet,
    *,
    steps: Iterable[int] | None = None,
    firing_threshold: float = FIRING_THRESHOLD,
    batch_size: int = BATCH_SIZE,
) -> dict[tuple[int, str], FeatureProfiles]:
    """Profiles at every checkpoint and hook point: `{(step, hook_name): FeatureProfiles}` (D4).

    Args:
        series: a `CheckpointSeries`, or any mapping of step to hooked model.
        saes: what `train_saes` returns: `saes.at(step)` gives the SAEs of a checkpoint by hook point.
        tokens: the evaluation tokens, the same for every checkpoint.
        steps: some of the checkpoints; all by default.
        firing_threshold: the largest code that is no firing (D2).
        batch_size: sequences in one pass.
    """
    profiles: dict[tuple[int, str], FeatureProfiles] = {}
    for step in list(series if steps is None else steps):
        at_step = profile_saes(
            series[step], saes.at(step), tokens, step=step, firing_threshold=firing_threshold, batch_size=batch_size
        )
        profiles.update({(step, name): profile for name, profile in at_step.items()})
    return profiles

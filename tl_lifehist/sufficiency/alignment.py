"""Transfer between checkpoints: an affine map from a source checkpoint's activations to the final ones (formula 16).

Controls, each an ordinary alignment: rows that do not belong together (`shuffled_rows`), a rotation only
(`kind="procrustes"`), no map at all (`kind="identity"`, the only one that is exact where source and final are one
checkpoint).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions, n_features
from tl_lifehist.errors import InputError, one_of
from tl_lifehist.metrics import nmse

RIDGE = 1e-3
KINDS = ("ridge", "procrustes", "identity", "dictionary")
MAX_COMPONENTS = 4096  # of a dictionary to be matched by assignment, whose cost is square in them
_RCOND = 1e-6  # directions that differ by less are one: what separates them is rounding in float32
_BLOCK = 8192  # rows raised to float64 at a time


@dataclass(frozen=True, eq=False)
class Alignment:
    """`alignment(x) = c + x A`: rows of the source checkpoint, as the final checkpoint would hold them.

    Attributes:
        weight: A.
        bias: c.
        mean_final: mean of the final activations over the rows of the fit, which a transfer is measured about.
        kind: "ridge", "procrustes", "identity" or "dictionary".
        ridge: the penalty used; 0 where there is none.
        n_rows: rows of the fit.
    """

    weight: Float[Tensor, "d_source d_final"]
    bias: Float[Tensor, " d_final"]
    mean_final: Float[Tensor, " d_final"]
    kind: str
    ridge: float
    n_rows: int

    def __call__(self, rows: Float[Tensor, "row d_source"]) -> Float[Tensor, "row d_final"]:
        """c + rows A, on the rows' device, at least in float32. Gradients flow to `rows`."""
        if rows.shape[1] != len(self.weight):
            raise InputError(
                f"The rows are {rows.shape[1]} wide but the alignment takes activations of width {len(self.weight)}: "
                "give it rows of the source checkpoint's hook point."
            )
        dtype = torch.promote_types(rows.dtype, self.weight.dtype)
        return self.bias.to(rows.device, dtype) + rows.to(dtype) @ self.weight.to(rows.device, dtype)

    def to_tensors(self) -> dict[str, Tensor]:
        """All of it as tensors by name, on the CPU: what a file holds. An identity is not written out."""
        about = torch.tensor([KINDS.index(self.kind), self.ridge, self.n_rows], dtype=torch.float64)
        map_ = {} if self.kind == "identity" else {"weight": self.weight.cpu(), "bias": self.bias.cpu()}
        return {"mean_final": self.mean_final.cpu(), "about": about, **map_}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Alignment:
        """The counterpart of `to_tensors`."""
        kind, ridge, n_rows = tensors["about"].tolist()
        mean = tensors["mean_final"]
        weight, bias = tensors.get("weight", torch.eye(len(mean)).to(mean)), tensors.get("bias", torch.zeros_like(mean))
        return cls(weight, bias, mean, KINDS[int(kind)], ridge, int(n_rows))


@torch.no_grad()
def align_checkpoints(
    acts_source: Float[Tensor, "row_source d_source"],
    acts_final: Float[Tensor, "row_final d_final"],
    *,
    ridge: float = RIDGE,
    kind: str = "ridge",
) -> Alignment:
    """The affine map that best takes a source checkpoint's activations to the final one's (formula 16 of the
    sufficiency methods).

    A minimises mean ||y - x A||² + ridge s ||A||² over the centred rows x and y, with s the mean over dimensions of the
    source's variance, so that the penalty does not depend on the scale of the activations (ours); c = mean y - (mean x)
    A, so the mean is never shrunk. `ridge=0` is least squares, with the smallest A where that is not unique. The fit is
    in float64 whatever is given.

    Args:
        acts_source: activations of the source checkpoint, train split.
        acts_final: those of the final checkpoint at the same rows. It may be of another width.
        ridge: relative penalty (ours: 1e-3). Read by `kind="ridge"` only.
        kind: "ridge"; "procrustes", the best orthogonal A about the means, without a scale; "identity", A = I and
            c = 0.

    How it can mislead: the map is learned, so a good transfer shows that the final activation can be read off the
    source linearly, not that the source uses the same directions. With few rows for the width it fits noise: score it
    on other rows, beside the map of `shuffled_rows`. A few massive rows can decide it.

    Raises:
        InputError: row counts that differ, no rows, values that are not finite, an unknown kind, a negative ridge, or
            two widths where the kind needs one.
    """
    one_of("kind", kind, ("ridge", "procrustes", "identity"))
    if not (ridge >= 0 and math.isfinite(ridge)):
        raise InputError(f"ridge={ridge} must be 0 or a positive number.")
    _require_pairs(acts_source, acts_final)
    if kind != "ridge" and acts_source.shape[1] != acts_final.shape[1]:
        raise InputError(
            f"kind={kind!r} needs activations of one width, not {acts_source.shape[1]} and {acts_final.shape[1]}: "
            'use kind="ridge".'
        )
    if kind == "identity":
        weight = torch.eye(acts_source.shape[1], dtype=torch.float64)
    elif kind == "ridge" and ridge == 0:
        # on the rows themselves: their covariance has the square of their condition number
        x, y = (acts.cpu().double() - _mean(acts) for acts in (acts_source, acts_final))
        weight = torch.linalg.lstsq(x, y, driver="gelsd").solution
    else:
        within, across = _products(acts_source, acts_final)
        if kind == "procrustes":
            left, _, right = torch.linalg.svd(across, full_matrices=False)
            weight = left @ right
        else:
            penalty = ridge * within.diagonal().mean()
            # a source that never varies predicts nothing, and leaves nothing to invert
            weight = torch.zeros_like(across)
            if penalty > 0:
                weight = torch.linalg.solve(within + penalty * torch.eye(len(within)).to(within), across)
    return _alignment(acts_source, acts_final, weight, kind, float(ridge) if kind == "ridge" else 0.0)


@torch.no_grad()
def align_dictionaries(
    dictionary_source: Dictionary,
    dictionary_final: Dictionary,
    acts_source: Float[Tensor, "row_source d_source"],
    acts_final: Float[Tensor, "row_final d_final"],
) -> Alignment:
    """The affine map given by the two dictionaries alone: least squares between matched directions (formula 16,
    `align="dictionary"`; the construction is ours).

    Components are matched one to one by the greatest total |r|, r the correlation of their codes over the same rows. A
    solves s_i v_i A = r_i s'_j v'_j in least squares, with i matched to j, v and v' what one unit of a code adds, s and
    s' the standard deviations of the codes, and 0 on the right where i has no partner; of all solutions the smallest,
    so that what lies outside the source dictionary goes to the mean. c takes mean to mean. Nothing depends on the
    order, the signs or the scales of the components.

    How it can mislead: it is worth no more than the matches. Dictionaries whose components are free to rotate into one
    another (directions of equal variance) match badly although they span the same space.

    Raises:
        InputError: row counts that differ, no rows, values that are not finite, a `decode` that is not affine, or more
            than 4,096 components.
    """
    _require_pairs(acts_source, acts_final)
    largest = max(n_features(dictionary_source), n_features(dictionary_final))
    if largest > MAX_COMPONENTS:
        raise InputError(
            f"A dictionary has {largest} components and at most {MAX_COMPONENTS} can be matched: use align_checkpoints."
        )
    codes, final_codes = _centred_codes(dictionary_source, acts_source), _centred_codes(dictionary_final, acts_final)
    scale, final_scale = codes.square().mean(dim=0).sqrt(), final_codes.square().mean(dim=0).sqrt()
    covariance = codes.T @ final_codes / len(codes)
    spread = torch.outer(scale, final_scale)
    # a code that never varies has no correlation: 0 keeps it assignable and adds nothing
    r = torch.where(spread > 0, covariance / spread.clamp_min(torch.finfo(spread.dtype).tiny), 0.0)
    i, j = (torch.as_tensor(index) for index in linear_sum_assignment(r.abs().numpy(), maximize=True))
    final_directions = decoder_directions(dictionary_final).cpu().double()
    directions = scale[:, None] * decoder_directions(dictionary_source).cpu().double()
    wanted = torch.zeros(len(directions), final_directions.shape[1], dtype=torch.float64)
    wanted[i] = (r[i, j] * final_scale[j])[:, None] * final_directions[j]
    weight = torch.linalg.lstsq(directions, wanted, rcond=_RCOND, driver="gelsd").solution
    return _alignment(acts_source, acts_final, weight, "dictionary")


def shuffled_rows(acts: Float[Tensor, "row d_model"], seed: int = 0) -> Float[Tensor, "row d_model"]:
    """The rows in random order. An alignment of shuffled source rows is the null of a transfer: its NMSE on other rows
    is about 1 + (d + 1) / n, for width d and n rows of the fit.
    """
    order = torch.randperm(len(acts), generator=torch.Generator().manual_seed(seed))
    return acts[order.to(acts.device)]


@torch.no_grad()
def transfer_nmse(
    alignment: Alignment, rows: Float[Tensor, "row_source d_source"], acts_final: Float[Tensor, "row_final d_final"]
) -> float:
    """NMSE at the final checkpoint of `c + rows A` (formulas 6 and 16), about the final mean of the fit: 1 is what that
    mean scores.

    Args:
        rows: masked reconstructions of the source checkpoint, or its activations themselves.
        acts_final: the final checkpoint's activations at the same rows.

    Raises:
        InputError: row counts that differ, values that are not finite, or another width.
    """
    _require_pairs(rows, acts_final)
    if acts_final.shape[1] != len(alignment.bias):
        raise InputError(
            f"The final activations are {acts_final.shape[1]} wide but the alignment gives {len(alignment.bias)}: "
            "take them from the hook point that it was fitted to."
        )
    moved = alignment(rows)
    return nmse(acts_final.to(moved), moved, alignment.mean_final.to(moved))


def _require_pairs(acts_source: Tensor, acts_final: Tensor) -> None:
    if len(acts_source) != len(acts_final):
        raise InputError(
            f"There are {len(acts_source)} source rows and {len(acts_final)} final rows: "
            "take both activations from the same TokenSet."
        )
    if len(acts_source) == 0:
        raise InputError("There are no rows to align: give activations of at least one position.")
    for name, acts in (("source", acts_source), ("final", acts_final)):
        if not bool(torch.isfinite(acts).all()):
            raise InputError(f"The {name} activations hold NaN or infinite values: check the checkpoint.")


def _mean(acts: Tensor) -> Float[Tensor, " d_model"]:
    return acts.mean(dim=0, dtype=torch.float64).cpu()


def _products(source: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over rows of x^T x and x^T y of the centred rows, in float64, a block of rows at a time."""
    mean_source, mean_final = _mean(source), _mean(final)
    within = torch.zeros(len(mean_source), len(mean_source), dtype=torch.float64)
    across = torch.zeros(len(mean_source), len(mean_final), dtype=torch.float64)
    for x, y in zip(source.split(_BLOCK), final.split(_BLOCK), strict=True):
        centred = x.cpu().double() - mean_source
        within += centred.T @ centred
        across += centred.T @ (y.cpu().double() - mean_final)
    return within / len(source), across / len(source)


def _centred_codes(dictionary: Dictionary, acts: Tensor) -> Float[Tensor, "row component"]:
    parts = [dictionary.encode(rows.to(dictionary.W_dec)).cpu().double() for rows in acts.split(_BLOCK)]
    codes = torch.cat(parts)
    return codes - codes.mean(dim=0)


def _alignment(source: Tensor, final: Tensor, weight: Tensor, kind: str, ridge: float = 0.0) -> Alignment:
    """The result in the precision of what was given, at least float32; c takes mean to mean, but for the identity."""
    mean_final = _mean(final)
    bias = torch.zeros_like(mean_final) if kind == "identity" else mean_final - _mean(source) @ weight
    dtype = torch.promote_types(torch.promote_types(source.dtype, final.dtype), torch.float32)
    return Alignment(weight.to(dtype), bias.to(dtype), mean_final.to(dtype), kind, ridge, len(source))

"""`decompose`: activations to an SVD, ICA, NMF or SemiNMF dictionary that carries its own reference."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from tl_lifehist.dictionaries.methods import METHODS, FitOptions
from tl_lifehist.dictionaries.nnls import nnls
from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions, require_width
from tl_lifehist.dictionaries.rows import Activations, Moments, Rows, moments
from tl_lifehist.dictionaries.svd import Fit
from tl_lifehist.errors import InputError, one_of

N_COMPONENTS = 100
N_CODES = 4096  # rows whose codes are kept for resampling
_FORMAT = "tl_lifehist.decomposition.2"  # 1 kept what is no tensor in the file's metadata


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition:
    """A dictionary fitted to activations, with its reference (formula 1 of the sufficiency methods): H~ = b + U V.

    Attributes:
        method: "svd", "ica", "nmf", "semi_nmf", or one of your own in `METHODS`.
        W_dec: directions V, ordered by `component_variance`; unit rows for SVD, NMF and SemiNMF.
        b_dec: the base b: the mean of the fit rows, for NMF each feature's minimum, or 0 with `offset="relu"`.
        W_enc: codes are `(x - b_dec) @ W_enc`; None where they are non-negative least squares with V fixed.
        x_mean: mean of the fit rows.
        code_mean: mean code of the fit rows, ū.
        code_sample: codes of a seeded sample of at most 4,096 fit rows, for resampling.
        component_variance: E||(u_i − ū_i) v_i||² over the total variance; for SVD the explained shares rho_i.
        explained_variance: 1 − NMSE (formula 6) of H~ on the fit rows.
        converged: whether the iteration met its tolerance.
        n_iter: passes of the iteration over all rows.
        n_rows: rows of the fit.
        seed: of the fit.
        offset: what is subtracted before coding: "mean" or "minimum"; "relu": nothing, negative entries are set to 0.
        ridge: sum_i u_i² ||v_i||² times this is added to the error that the codes of SemiNMF minimise (ours).

    How it can mislead: a direction is a component of these rows under this method's constraints, no more; the variances
    of components that are not orthogonal do not add up to `explained_variance`.
    """

    method: str
    W_dec: Float[Tensor, "component d_model"]
    b_dec: Float[Tensor, " d_model"]
    W_enc: Float[Tensor, "d_model component"] | None
    x_mean: Float[Tensor, " d_model"]
    code_mean: Float[Tensor, " component"]
    code_sample: Float[Tensor, "sample component"]
    component_variance: Float[Tensor, " component"]
    explained_variance: float
    converged: bool
    n_iter: int
    n_rows: int
    seed: int
    offset: str
    ridge: float = 0.0

    def __repr__(self) -> str:
        return (
            f"Decomposition({self.method!r}: {len(self.W_dec)} components of width {self.W_dec.shape[1]}, "
            f"{self.explained_variance:.1%} of the variance of {self.n_rows:,} rows, converged={self.converged})"
        )

    @torch.no_grad()
    def encode(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch component"]:
        """The codes U of activations, in the dictionary's dtype and on its device; no gradient flows through them.

        The codes of a row are those of the row alone: they do not depend on what else is in the batch.
        """
        require_width(self, x.shape[-1], "this decomposition")
        rows = x.to(self.W_dec)
        if self.offset == "relu":
            rows = rows.relu()
        if self.W_enc is not None:
            return (rows - self.b_dec) @ self.W_enc
        codes = nnls((rows - self.b_dec).reshape(-1, x.shape[-1]), self.W_dec, ridge=self.ridge)
        return codes.reshape(*x.shape[:-1], len(self.W_dec))

    def decode(self, codes: Float[Tensor, "*batch component"]) -> Float[Tensor, "*batch d_model"]:
        """The reconstruction `b_dec + codes @ W_dec`."""
        return self.b_dec + codes @ self.W_dec

    def to(self, device_or_dtype: Any) -> Decomposition:
        """The same decomposition with all tensors on a device or in a floating dtype."""
        return replace(self, **{name: tensor.to(device_or_dtype) for name, tensor in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to_tensors(self) -> dict[str, Tensor]:
        """All of it as tensors by name, on the CPU: what a file holds. What is no tensor is JSON in `about`."""
        tensors = self._tensors()
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in tensors and f.name != "W_enc"}
        about = torch.frombuffer(bytearray(json.dumps({"format": _FORMAT, **rest}).encode()), dtype=torch.uint8)
        return {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()} | {"about": about}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Decomposition:
        """The counterpart of `to_tensors`.

        Raises:
            InputError: tensors that are no decomposition, or do not belong together.
        """
        try:
            about = json.loads(bytes(tensors["about"].tolist()))
            if about.pop("format") != _FORMAT:
                raise ValueError("another format")
            found = cls(**{"W_enc": None, **{name: t for name, t in tensors.items() if name != "about"}, **about})
            k, d_model = found.W_dec.shape
            shapes = {"b_dec": (d_model,), "x_mean": (d_model,), "code_mean": (k,), "component_variance": (k,)}
            shapes |= {"W_enc": (d_model, k), "code_sample": (len(found.code_sample), k)}
            if any(tensor.shape != shapes.get(name, tensor.shape) for name, tensor in found._tensors().items()):
                raise ValueError("shapes that do not belong together")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"These tensors hold no decomposition of this version ({error}).") from error
        return found

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, which `load_decomposition` reads."""
        save_file(self.to_tensors(), path)


def load_decomposition(path: str | Path) -> Decomposition:
    """The counterpart of `Decomposition.save`, on the CPU.

    Raises:
        InputError: no such file, or one that is damaged or was not written by `Decomposition.save`.
    """
    if not Path(path).is_file():
        raise InputError(f"There is no decomposition at {path}: give the file that Decomposition.save wrote.")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path} is damaged: save the decomposition again.") from error
    try:
        return Decomposition.from_tensors(tensors)
    except InputError as error:
        raise InputError(f"{path} holds no decomposition of this version: save it again.") from error


@torch.no_grad()
def decompose(
    acts: Activations,
    *,
    method: str = "svd",
    n_components: int | None = None,
    seed: int = 0,
    offset: str = "minimum",
    max_iter: int | None = None,
    tol: float | None = None,
) -> Decomposition:
    """Fit a dictionary to activations (formula 1 of the sufficiency methods): H~ = b + U V.

    Args:
        acts: `[row, d_model]`, or batches of such rows: a list, or a function that returns a fresh iterator. Batches
            stream: beyond one block, SVD keeps `d_model x d_model` numbers, the others also the codes of all rows. A
            plain generator can be read once, which is enough for "svd" alone.
        method: a name in `METHODS`. "svd": centred, V = right singular vectors. "ica": FastICA, V = mixing^T, codes of
            unit variance. "nmf": U, V >= 0 after subtracting each feature's minimum. "semi_nmf": H − mean ~ U V with
            U >= 0 and V free.
        n_components: k; by default the smaller of 100 and d_model.
        seed: of the start of the iterations and of the sampled codes.
        offset: for "nmf": "minimum" (b = minimum of each feature), or "relu" (b = 0, U V approximates relu(H)).
        max_iter: passes at most; by default 2,000 for "ica" and 500 for "nmf" and "semi_nmf" (ours).
        tol: when to stop: for "ica" at the largest change 1 − |cos| of a component (by default 1e-4), for "nmf" and
            "semi_nmf" at the relative change of the error in a pass (by default 1e-3; ours).

    Returns:
        A `Decomposition` with its reference; look at `.converged`.

    How it can mislead: NMF and SemiNMF depend on their start, and ICA on the sample, so compare seeds
    (`dictionary_overlap`). SemiNMF has no constraint on V: its least error is that of an SVD with k or k − 1 components
    whose codes are shifted to be positive, so a low error is no evidence of parts; a ridge of 0.001 (ours) keeps its
    components from cancelling each other. With `offset="relu"` negative
    activations are lost and the explained variance may be below 0. A few massive rows can decide all four.

    Raises:
        InputError: an unknown method or offset, more components than can be had from these rows, NaN or infinite rows,
            constant activations, activations whose sizes are too far apart for their arithmetic, batches that cannot be
            read again.
    """
    one_of("method", method, METHODS)
    one_of("offset", offset, ("minimum", "relu"))
    chosen, rows = METHODS[method], Rows(acts)
    if rows.once and not chosen.one_pass:
        raise InputError(
            f'A generator can be read once and "{method}" reads the rows many times: '
            "pass a function that returns a fresh iterator, a list of batches, or a tensor."
        )
    found = moments(rows, n_sample=N_CODES if chosen.linear else 2 * N_CODES, seed=seed, exact=chosen.exact)
    if bool((found.maximum <= found.minimum).all()):
        raise InputError("The activations are constant, so there is nothing to decompose: choose another hook point.")
    if not 0 < found.variance < math.inf:
        raise InputError(
            f"The variance of the activations is {found.variance:.1e} in {found.mean.dtype} arithmetic, where their "
            "sizes are too far apart: pass them in float64."
        )
    k = count_components(n_components, method, n_rows=found.n_rows, d_model=len(found.mean))
    fit = chosen.fit(rows, found, k, FitOptions(seed, offset, max_iter, tol))
    base = offset if chosen.shifted else "mean"
    made = _with_reference(fit, rows, found, method=method, seed=seed, offset=base)
    return _multiplied(made, rows.exponent or 0)


def _multiplied(made: Decomposition, exponent: int) -> Decomposition:
    """The decomposition of activations 2^exponent times as large; the length is that of the codes where directions are
    unit vectors, and of the directions otherwise.

    Raises:
        InputError: sizes that the arithmetic does not reach.
    """
    if not exponent:
        return made

    def scaled(tensor: Tensor, by: int) -> Tensor:
        return torch.ldexp(tensor.double(), torch.tensor(by)).to(tensor.dtype)

    unit = bool(((made.W_dec.double().norm(dim=1) - 1).abs() < 1e-4).all()) or made.W_enc is None
    names = ("code_mean", "code_sample") if unit else ("W_dec",)
    found = {name: scaled(getattr(made, name), exponent) for name in ("b_dec", "x_mean", *names)}
    if not unit and made.W_enc is not None:
        found["W_enc"] = scaled(made.W_enc, -exponent)
    if not all(bool(torch.isfinite(one).all()) for one in found.values()):
        raise InputError(f"Activations of about 2^{exponent} are beyond {made.W_dec.dtype}: pass them in float64.")
    return replace(made, **found)


def count_components(wanted: int | None, method: str, *, n_rows: int, d_model: int) -> int:
    """How many components a dictionary gets; refuses what the method or the rows cannot give."""
    k = min(N_COMPONENTS, d_model) if wanted is None else wanted
    if k < 1:
        raise InputError(f"n_components={k}: ask for at least one component.")
    if METHODS[method].linear and k > d_model:
        raise InputError(
            f'Activations of width {d_model} have no {k} components under "{method}": use at most {d_model}.'
        )
    if n_rows < k:
        raise InputError(f"{n_rows} rows are fewer than {k} components: pass more rows or set n_components.")
    return k


def _with_reference(fit: Fit, rows: Rows, found: Moments, *, method: str, seed: int, offset: str) -> Decomposition:
    """Measure the fit on its rows, order it by variance, and give it its mean, mean code and sample of codes."""
    if fit.W_enc is None:
        norm = fit.W_dec.norm(dim=1, keepdim=True)
        fit = replace(fit, W_dec=fit.W_dec / torch.where(norm > 0, norm, torch.ones_like(norm)))
    bare = Decomposition(
        method=method,
        W_dec=fit.W_dec,
        b_dec=fit.b_dec,
        W_enc=fit.W_enc,
        x_mean=found.mean,
        code_mean=fit.W_dec.new_zeros(len(fit.W_dec)),
        code_sample=fit.W_dec.new_zeros(0, len(fit.W_dec)),
        component_variance=fit.W_dec.new_zeros(len(fit.W_dec)),
        explained_variance=float("nan"),
        converged=fit.converged,
        n_iter=fit.n_iter,
        n_rows=found.n_rows,
        seed=seed,
        offset=offset,
        ridge=fit.ridge,
    )
    if fit.W_enc is not None:  # the codes are linear, so the covariance says all
        mean = torch.zeros(len(fit.W_dec), dtype=torch.float64)
        encoder = fit.W_enc.cpu().double()
        variance = ((found.covariance @ encoder) * encoder).sum(dim=0)
        left = 1 - float((found.covariance @ encoder * fit.W_dec.cpu().double().T).sum()) / found.variance
    else:
        mean, variance, left = _moments_of_codes(bare, rows, found)
    share = variance * fit.W_dec.cpu().double().square().sum(dim=1) / found.variance
    order = share.argsort(descending=True, stable=True)
    on = order.to(fit.W_dec.device)
    ordered = replace(
        bare,
        W_dec=fit.W_dec[on],
        W_enc=None if fit.W_enc is None else fit.W_enc[:, on].contiguous(),
        code_mean=mean[order].to(fit.W_dec),
        component_variance=share[order].to(fit.W_dec),
        explained_variance=1 - left,
    )
    return replace(ordered, code_sample=ordered.encode(found.sample[:N_CODES]))


def _moments_of_codes(bare: Decomposition, rows: Rows, found: Moments) -> tuple[Tensor, Tensor, float]:
    total = torch.zeros(len(bare.W_dec), dtype=torch.float64)
    square, error = total.clone(), 0.0
    for block in rows:
        codes = bare.encode(block)
        error += float((block - bare.decode(codes)).square().sum(dtype=torch.float64))
        total += codes.sum(dim=0, dtype=torch.float64).cpu()
        square += codes.double().square().sum(dim=0).cpu()
    mean = total / found.n_rows
    return mean, (square / found.n_rows - mean.square()).clamp_min(0), error / found.n_rows / found.variance


def dictionary_overlap(a: Dictionary, b: Dictionary) -> float:
    """Mean absolute cosine between the directions of two dictionaries under the best one-to-one assignment, in [0, 1].

    The smaller of the two is matched in full. A direction of length 0 counts as 0.

    How it can mislead: in d dimensions random directions overlap too (about sqrt(2 log k / d) for the best of k), and
    two dictionaries of as many components as dimensions may span the same space with an overlap far below 1.

    Raises:
        InputError: dictionaries of different widths.
    """
    first, second = (decoder_directions(dictionary).double().cpu() for dictionary in (a, b))
    if first.shape[1] != second.shape[1]:
        raise InputError(
            f"The dictionaries are {first.shape[1]} and {second.shape[1]} wide: compare those of one hook point."
        )
    unit = [torch.nn.functional.normalize(directions, dim=1) for directions in (first, second)]
    cosine = (unit[0] @ unit[1].T).abs().clamp_max(1).numpy()
    return float(cosine[linear_sum_assignment(cosine, maximize=True)].mean())

"""Activations as rows in blocks of one size, read as often as a method needs, and their moments in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.errors import InputError

BLOCK = (
    4096  # rows held and multiplied at a time, whatever the batches of the source: streamed sums equal one-shot sums
)
_USUAL = 16  # rows that differ by 2^-16 to 2^16 leave float32 room for sixth powers; others are scaled first
_PANEL = 128  # columns of a panel of the covariance: only panels on and above the diagonal are computed

Activations = Tensor | Iterable[Tensor] | Callable[[], Iterable[Tensor]]


class Rows:
    """Activation rows in blocks of `BLOCK`, at least in float32.

    Args:
        acts: a tensor `[row, d_model]`; or batches of such rows: a list, anything else that can be iterated again, or a
            function that returns a fresh iterator. A generator can be read once, which is enough for "svd" alone.

    Attributes:
        n_rows: known after the first pass.
        exponent: rows of very large or small size are divided by 2 to this power, exactly; 0 for all others. Known
            after the first block.

    Raises:
        InputError: batches that are no matrices or differ in width, no row at all, a NaN or infinite row, a source that
            gives other rows on a later pass.
    """

    def __init__(self, acts: Activations) -> None:
        self._acts = acts
        self.once = isinstance(acts, Iterator)
        self.n_rows: int | None = None
        self.exponent: int | None = None

    def __iter__(self) -> Iterator[Float[Tensor, "row d_model"]]:
        count, width = 0, None
        for block in self._blocks():
            if len(block) == 0:
                continue
            if width not in (None, block.shape[1]):
                raise InputError(f"The batches are {width} and {block.shape[1]} wide: pass rows of one hook point.")
            width = block.shape[1]
            if self.n_rows is None:
                _require_finite(block, count)
            count += len(block)
            block = block.detach().to(torch.promote_types(block.dtype, torch.float32))
            if self.exponent is None:
                self.exponent = _exponent(block)
            yield _divided(block, self.exponent) if self.exponent else block
        if count == 0:
            raise InputError("There are no activation rows to decompose.")
        if self.n_rows not in (None, count):
            raise InputError(
                f"The source of activations gave {self.n_rows} rows and then {count}: pass a tensor, a list of batches "
                "or a function that returns the same batches at every call."
            )
        self.n_rows = count

    def _blocks(self) -> Iterator[Tensor]:
        if isinstance(self._acts, Tensor):
            yield from _matrix(self._acts).split(BLOCK)
            return
        waiting: list[Tensor] = []
        for batch in self._acts() if callable(self._acts) else self._acts:
            waiting.append(_matrix(batch))
            if sum(map(len, waiting)) >= BLOCK:
                *full, rest = _joined(waiting).split(BLOCK)
                yield from full
                waiting = [rest]
        if sum(map(len, waiting)):
            yield from _joined(waiting).split(BLOCK)


def _matrix(batch: object) -> Tensor:
    if not isinstance(batch, Tensor) or batch.ndim != 2:
        found = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
        raise InputError(f"Activations must be matrices [row, d_model], not {found}: flatten sequences into rows.")
    return batch


def _joined(batches: list[Tensor]) -> Tensor:
    widths = sorted({batch.shape[1] for batch in batches})
    if len(widths) > 1:
        raise InputError(f"The batches are {widths[0]} and {widths[1]} wide: pass rows of one hook point.")
    return torch.cat(batches)


def _exponent(block: Float[Tensor, "row d_model"]) -> int:
    """That of the rows' spread, or of their size where they do not differ, if it is an unusual one."""
    values = block.double()
    sizes = float((values - values[0]).abs().max()), float(values.abs().max())
    size = next((size for size in sizes if size > 0), 1.0)
    exponent = math.frexp(size)[1]
    return exponent if abs(exponent) > _USUAL else 0


def _divided(block: Float[Tensor, "row d_model"], exponent: int) -> Float[Tensor, "row d_model"]:
    return torch.ldexp(block.double(), torch.tensor(-exponent)).to(block.dtype)


def _require_finite(block: Tensor, start: int) -> None:
    if bool(torch.isfinite(block.sum())):  # a finite sum has finite terms: one cheap pass in the usual case
        return
    finite = torch.isfinite(block).all(dim=1)
    if not bool(finite.all()):
        row = start + int((~finite).nonzero()[0])
        raise InputError(f"Row {row} of the activations is NaN or infinite: check the checkpoint and load in float32.")


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean, extremes and covariance (over n, float64, on the CPU) of the rows, and a seeded sample of them."""

    n_rows: int
    mean: Float[Tensor, " d_model"]
    minimum: Float[Tensor, " d_model"]
    maximum: Float[Tensor, " d_model"]
    covariance: Float[Tensor, "d_model d_model"]
    sample: Float[Tensor, "sample d_model"]

    @property
    def variance(self) -> float:
        """Total variance: mean squared distance of a row from the mean."""
        return float(self.covariance.trace())


def moments(rows: Rows, *, n_sample: int, seed: int, exact: bool = False) -> Moments:
    """One pass over the rows, in memory `d_model x d_model`.

    Every block is centred by its own mean before it is squared and blocks are merged in float64, so that float32 rows
    far from the origin lose nothing; `exact` also multiplies in float64, which directions of tiny variance need.
    The sample is that of the smallest of one random key per row: it does not depend on the number of rows to come.
    """
    rng = np.random.default_rng(seed)
    count, mean, square = 0, torch.zeros(()), torch.zeros(())
    minimum, maximum = None, None
    kept: list[tuple[np.ndarray, np.ndarray, Tensor]] = []
    cut = 1.0
    for block in rows:
        lowest, highest = torch.aminmax(block, dim=0)
        minimum = lowest if minimum is None else torch.minimum(minimum, lowest)
        maximum = highest if maximum is None else torch.maximum(maximum, highest)
        block_mean = block.mean(dim=0, dtype=torch.float64)
        center = block_mean.to(torch.float64 if exact else block.dtype)
        rest, block_mean = (block_mean - center).cpu(), block_mean.cpu()  # the centre is the mean but for its rounding
        centred = block.to(center) - center
        total = count + len(block)
        gap = block_mean - mean
        square = square + _upper_gram(centred) - len(block) * torch.outer(rest, rest)
        square = square + (count * len(block) / total) * torch.outer(gap, gap)
        mean = mean + gap * (len(block) / total)
        keys = rng.random(len(block))
        chosen = np.flatnonzero(keys < cut)
        kept.append((keys[chosen], count + chosen, block[torch.from_numpy(chosen).to(block.device)]))
        if sum(len(part[0]) for part in kept) > 2 * n_sample:
            kept = [_smallest(kept, n_sample)]
            cut = float(kept[0][0].max())
        count = total
    assert minimum is not None  # rows without a block raise
    assert maximum is not None
    upper = torch.triu(square) / count
    sample = _smallest(kept, n_sample)[2]
    return Moments(count, mean.to(minimum), minimum, maximum, upper + torch.triu(upper, 1).T, sample)


def _upper_gram(x: Float[Tensor, "row d_model"]) -> Float[Tensor, "d_model d_model"]:
    """`x.T @ x` on and above the diagonal (below it: whatever), float64, at little more than half the products."""
    gram = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for start in range(0, x.shape[1], _PANEL):
        panel = slice(start, start + _PANEL)
        gram[panel, start:] = (x[:, panel].T @ x[:, start:]).cpu().double()
    return gram


def _smallest(
    kept: list[tuple[np.ndarray, np.ndarray, Tensor]], n_sample: int
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """The entries with the `n_sample` smallest keys, in the order of their rows."""
    keys, index = (np.concatenate([part[i] for part in kept]) for i in (0, 1))
    chosen = np.sort(np.argsort(keys, kind="stable")[:n_sample])
    rows = torch.cat([part[2] for part in kept])
    return keys[chosen], index[chosen], rows[torch.from_numpy(chosen).to(rows.device)]

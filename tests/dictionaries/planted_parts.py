"""Activations whose components are known."""

from __future__ import annotations

import torch
from torch import Tensor


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spread(n_rows: int, d_model: int, seed: int = 0, *, rank: int | None = None) -> Tensor:
    """Correlated Gaussian rows about a mean, of full rank unless `rank` is given."""
    g = generator(seed)
    rank = d_model if rank is None else rank
    mixing = torch.randn(rank, d_model, generator=g, dtype=torch.float64)
    mean = 3 * torch.randn(d_model, generator=g, dtype=torch.float64)
    return torch.randn(n_rows, rank, generator=g, dtype=torch.float64) @ mixing + mean


def sources(n_rows: int, n_sources: int, d_model: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows mixed from independent Laplace and uniform sources, and the mixing directions `[source, d_model]`."""
    g = generator(seed)
    uniform = torch.rand(n_rows, n_sources, generator=g, dtype=torch.float64) - 0.5
    laplace = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp_max(0.5 - 1e-12))
    codes = torch.where(torch.arange(n_sources) % 2 == 0, laplace, uniform)
    mixing = torch.randn(n_sources, d_model, generator=g, dtype=torch.float64)
    return codes @ mixing + torch.randn(d_model, generator=g, dtype=torch.float64), mixing


def parts(n_rows: int, n_parts: int, d_model: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """An exact non-negative product whose minimum is 0, sparse enough to be unique, and its parts."""
    g = generator(seed)
    directions = torch.rand(n_parts, d_model, generator=g, dtype=torch.float64)
    directions *= torch.rand(n_parts, d_model, generator=g) < 0.4
    for i in range(n_parts):  # a feature of its own for every part
        directions[:, i] = 0
        directions[i, i] = 1
    codes = torch.rand(n_rows, n_parts, generator=g, dtype=torch.float64)
    codes *= torch.rand(n_rows, n_parts, generator=g) < 0.4
    codes[0] = 0
    for i in range(n_parts):  # a row of its own for every part
        codes[i + 1] = 0
        codes[i + 1, i] = 1
    return codes @ directions, directions


def cosine_match(found: Tensor, planted: Tensor) -> Tensor:
    """For each planted direction its largest absolute cosine with a found one."""
    unit = [torch.nn.functional.normalize(x.double(), dim=1) for x in (planted, found)]
    return (unit[0] @ unit[1].T).abs().amax(dim=1)

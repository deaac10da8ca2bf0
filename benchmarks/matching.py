"""Gated sparse matching against dense Pearson and scipy's assignment, side by side on one planted world.

python benchmarks/matching.py                 # 4,096 features, 100,000 tokens
python benchmarks/matching.py --features 8192 --tokens 200000
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from rows import write_rows
from scipy.optimize import linear_sum_assignment

import tl_lifehist as lh


def world(n_tokens: int, n_features: int, n_active: int) -> tuple[lh.FeatureProfiles, lh.FeatureProfiles]:
    """Power-law firing rates; the second SAE is a permutation of the first with 30 % of its firings elsewhere."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, n_features + 1) ** 0.7
    share /= share.sum()
    first, other = (rng.choice(n_features, (n_tokens, n_active), p=share) for _ in range(2))
    second = np.where(rng.random(first.shape) < 0.3, other, first)
    place = rng.permutation(n_features)
    codes = rng.random(first.shape, dtype=np.float32)
    row = np.repeat(np.arange(n_tokens), n_active)
    shape = (n_tokens, n_features)
    a = sp.csr_array((codes.ravel(), (row, first.ravel())), shape=shape)
    b = sp.csr_array((codes.ravel(), (row, place[second].ravel())), shape=shape)
    return lh.FeatureProfiles(0, "h", a), lh.FeatureProfiles(1, "h", b)


def dense(a: lh.FeatureProfiles, b: lh.FeatureProfiles) -> set[tuple[int, int]]:
    """What one would write: blocked float32 products on all cores, then an assignment of what passes the threshold."""
    kept = [np.flatnonzero(p.alive()) for p in (a, b)]
    left, right = (sp.csr_array(p.acts[:, k]) for p, k in zip((a, b), kept, strict=True))
    product = torch.zeros(left.shape[1], right.shape[1])
    sums = [np.zeros(m.shape[1]) for m in (left, right)]
    squares = [np.zeros(m.shape[1]) for m in (left, right)]
    for start in range(0, a.n_rows, 8192):
        blocks = [torch.from_numpy(m[start : start + 8192].toarray()) for m in (left, right)]
        product += blocks[0].T @ blocks[1]
        for i, block in enumerate(blocks):
            sums[i] += block.double().sum(0).numpy()
            squares[i] += block.double().square().sum(0).numpy()
    mean = [s / a.n_rows for s in sums]
    scale = [np.sqrt(q - a.n_rows * m**2) for q, m in zip(squares, mean, strict=True)]
    pearson = (product.double().numpy() - a.n_rows * np.outer(*mean)) / np.outer(*scale)
    gated = np.where(pearson >= 0.5, pearson, 0)
    rows, columns = linear_sum_assignment(gated, maximize=True)
    real = gated[rows, columns] > 0
    return set(zip(kept[0][rows[real]].tolist(), kept[1][columns[real]].tolist(), strict=True))


def measure(n_features: int, n_tokens: int, n_active: int) -> dict[str, Any]:
    """CPU seconds over all threads and growth of the peak memory in GB, ours first; whether the pairs are the same."""
    a, b = world(n_tokens, n_features, n_active)

    def cost(function: Callable[[], Any]) -> tuple[Any, float, float]:
        before, started = peak(), time.process_time()
        found = function()
        return found, time.process_time() - started, peak() - before

    match, ours, ours_peak = cost(lambda: lh.match_features(a, b))
    reference, theirs, theirs_peak = cost(lambda: dense(a, b))
    return {
        "features": n_features,
        "tokens": n_tokens,
        "active": n_active,
        "ours": ours,
        "reference": theirs,
        "ratio": theirs / ours,
        "ours_peak": ours_peak,
        "reference_peak": theirs_peak,
        "pairs": len(match.pairs),
        "same": {tuple(pair) for pair in match.pairs.tolist()} == reference,
    }


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--active", type=int, default=32)
    parser.add_argument("--json", help="also write the row there")
    args = parser.parse_args()
    row = measure(args.features, args.tokens, args.active)
    print(f"{args.features} x {args.features} features, {args.tokens} tokens, {args.active} active")
    print(f"ours      {row['ours']:8.1f} s   peak + {row['ours_peak']:.2f} GB   {row['pairs']} pairs")
    print(f"reference {row['reference']:8.1f} s   peak + {row['reference_peak']:.2f} GB")
    print(f"ratio     {row['ratio']:8.1f}     same accepted pairs: {row['same']}")
    write_rows(args.json, "matching", [row])


if __name__ == "__main__":
    main()

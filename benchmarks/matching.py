"""Gated sparse matching against dense Pearson and scipy's assignment, side by side on one planted world.

python benchmarks/matching.py                 # 4,096 features, 100,000 tokens
python benchmarks/matching.py --features 8192 --tokens 200000
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import scipy.sparse as sp
import torch
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--active", type=int, default=32)
    args = parser.parse_args()
    a, b = world(args.tokens, args.features, args.active)

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6

    before, started = peak(), time.perf_counter()
    match = lh.match_features(a, b)
    ours, ours_peak = time.perf_counter() - started, peak() - before
    before, started = peak(), time.perf_counter()
    reference = dense(a, b)
    theirs, theirs_peak = time.perf_counter() - started, peak() - before
    same = {tuple(pair) for pair in match.pairs.tolist()} == reference
    print(f"{args.features} x {args.features} features, {args.tokens} tokens, {args.active} active")
    print(f"ours      {ours:8.1f} s   peak + {ours_peak:.2f} GB   {len(match.pairs)} pairs")
    print(f"reference {theirs:8.1f} s   peak + {theirs_peak:.2f} GB   {len(reference)} pairs")
    print(f"ratio     {theirs / ours:8.1f}     same accepted pairs: {same}")


if __name__ == "__main__":
    main()

"""SVD, ICA, NMF and SemiNMF against what one would otherwise write, side by side on the same rows.

    OMP_NUM_THREADS=2 .venv/bin/python benchmarks/decompositions.py              # 32,768 synthetic rows of width 576
    OMP_NUM_THREADS=2 .venv/bin/python benchmarks/decompositions.py --smollm2    # activations, after `make smollm2`

References: `torch.linalg.svd` of the rows; scikit-learn's FastICA; scikit-learn's NMF (coordinate descent, on the same
shifted rows, all its iterations: its own tolerance stops it far too early) and textbook HALS; the multiplicative
SemiNMF of Ding, Li and Jordan from k-means; and HALS and SemiNMF of the package `overcomplete` at its own settings,
where it is installed. All in float32 on all cores. NMSE is that of the fit rows: ours as `encode` and `decode` give it,
the reference's as it stopped.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF, FastICA
from torch import Tensor

import tl_lifehist as lh
from tl_lifehist.metrics import nmse

TOL = 1e-4  # relative change of the error at which the references stop: scikit-learn's value


def synthetic(n_rows: int, d_model: int) -> Tensor:
    """Rows as in a residual stream: sparse non-negative sources of falling strength, noise, and a mean."""
    g = torch.Generator().manual_seed(0)
    n_sources = 2 * d_model
    strength = torch.arange(1, n_sources + 1) ** -0.7
    sources = torch.rand(n_rows, n_sources, generator=g).log().neg() ** 1.5
    sources *= torch.rand(n_rows, n_sources, generator=g) < 0.1
    directions = torch.randn(n_sources, d_model, generator=g) / d_model**0.5
    noise = 0.02 * torch.randn(n_rows, d_model, generator=g)
    return (sources * strength) @ directions + noise + torch.randn(d_model, generator=g)


def smollm2(n_rows: int, hook_name: str) -> Tensor:
    """Activations of SmolLM2-135M on the pocket suite's train text."""
    from smollm2_life_history import load_smollm2

    model, tokenizer = load_smollm2()
    texts = [text for _, text in lh.checkpoints.pocket_texts("train")]
    tokens = lh.TokenSet.from_texts(texts, tokenizer, keep_partial=False).head(n_rows)
    return lh.collect_activations(model, hook_name, tokens)[:n_rows]


def textbook_hals(x: Tensor, k: int, *, max_iter: int, tol: float) -> tuple[Tensor, Tensor, int]:
    """Cichocki and Phan 2009: one sweep of each factor in turn, from random factors, components in contiguous rows."""
    g = torch.Generator().manual_seed(0)
    scale = (x.mean() / k).sqrt()
    codes, parts = (scale * torch.randn(k, n, generator=g).abs() for n in x.shape)
    size, errors = float(x.double().square().sum()), [float("inf")]
    while len(errors) <= max_iter:
        for factor, other, rows in ((codes, parts, x.T), (parts, codes, x)):
            product, gram = other @ rows, other @ other.T
            for j in range(k):
                step = (product[j] - gram[j] @ factor) / gram[j, j].clamp_min(1e-12)
                factor[j] = (factor[j] + step).clamp_min(1e-12)
        error = size - 2 * float((product * parts).double().sum()) + float((gram * (parts @ parts.T)).double().sum())
        errors.append(error)
        if errors[-2] - error < tol * error:
            break
    return codes.T, parts, len(errors) - 1


def ding_li_jordan(x: Tensor, k: int, *, max_iter: int, tol: float) -> tuple[Tensor, Tensor, int]:
    """SemiNMF by multiplicative updates, from the clusters of k-means plus 0.2."""
    labels = torch.from_numpy(KMeans(k, n_init=1, random_state=0).fit_predict(x.numpy())).long()
    codes = torch.nn.functional.one_hot(labels, k).float() + 0.2
    size, errors = float(x.double().square().sum()), [float("inf")]
    while len(errors) <= max_iter:
        square, product = codes.T @ codes, codes.T @ x
        directions = (torch.linalg.pinv(square.double(), hermitian=True) @ product.double()).float()
        error = size - float((directions * product).double().sum())
        errors.append(error)
        if errors[-2] - error < tol * error:
            break
        towards, gram = x @ directions.T, directions @ directions.T
        above = towards.clamp_min(0) + codes @ (-gram).clamp_min(0)
        below = (-towards).clamp_min(0) + codes @ gram.clamp_min(0)
        codes *= (above / below.clamp_min(1e-12)).sqrt()
    return codes, directions, len(errors) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32_768)
    parser.add_argument("--d_model", type=int, default=576)
    parser.add_argument("--components", type=int, default=100)
    parser.add_argument("--smollm2", metavar="HOOK_NAME", nargs="?", const="blocks.14.hook_resid_post")
    parser.add_argument("--methods", nargs="+", default=["svd", "ica", "nmf", "semi_nmf"])
    parser.add_argument("--iterations", type=int, default=200, help="limit of every reference (scikit-learn's default)")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, where other work shares the cores")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    x = smollm2(args.rows, args.smollm2) if args.smollm2 else synthetic(args.rows, args.d_model)
    k, limit, mean = args.components, args.iterations, x.mean(dim=0)
    print(f"{len(x)} x {x.shape[1]} rows, {k} components, {torch.get_num_threads()} threads")
    print(f"{'':34s}{'ours':>9s}{'reference':>11s}{'ratio':>8s}   check", flush=True)

    def timed(work: Callable[[], Any]) -> tuple[float, Any]:
        started = clock()
        result = work()
        return clock() - started, result

    def row(name: str, ours: float, reference: float, check: str) -> None:
        print(f"{name:34s}{ours:8.2f}s{reference:10.2f}s{reference / ours:8.1f}   {check}", flush=True)

    def fit(method: str, repeat: int = 1) -> tuple[float, lh.dictionaries.Decomposition, float]:
        took, found = min(
            (timed(lambda: lh.decompose(x, method=method, n_components=k)) for _ in range(repeat)), key=first
        )
        return took, found, nmse(x, found.decode(found.encode(x)), mean)

    def both(ours: float, theirs: float) -> str:
        return f"NMSE {ours:.4f} and {theirs:.4f}"

    if "svd" in args.methods:
        ours, found, error = fit("svd", repeat=5)
        theirs, (_, _, axes) = min(
            (timed(lambda: torch.linalg.svd(x - mean, full_matrices=False)) for _ in range(5)), key=first
        )
        cosine = (axes[:k] * found.W_dec).sum(dim=1).abs().min()
        row("svd / torch.linalg.svd", ours, theirs, f"same directions to |cos| {cosine:.6f}, NMSE {error:.4f}")
    if "ica" in args.methods:
        ours, found, error = fit("ica")
        for n_iter in sorted({limit, 2000}):
            sklearn = FastICA(k, whiten="unit-variance", random_state=0, max_iter=n_iter)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "did not converge": printed below
                theirs, codes = timed(lambda model=sklearn: model.fit_transform(x.numpy()))
            mixing = torch.from_numpy(sklearn.mixing_.T).float()
            again = torch.from_numpy(sklearn.inverse_transform(codes)).float()
            unit = [torch.nn.functional.normalize(v, dim=1) for v in (mixing, found.W_dec)]
            cosine = (unit[0] @ unit[1].T).abs().amax(dim=1)
            shared = f"mixing |cos|: mean {cosine.mean():.4f}, {int((cosine > 0.99).sum())} of {k} above 0.99"
            steps = f"iterations {found.n_iter} (converged: {found.converged}) and {sklearn.n_iter_}"
            check = f"{both(error, nmse(x, again, mean))}; {shared}; {steps}"
            row(f"ica / FastICA, at most {n_iter}", ours, theirs, check)
            if sklearn.n_iter_ < n_iter:
                break
    shifted = x - x.amin(dim=0)
    if "nmf" in args.methods:
        ours, found, error = fit("nmf")
        theirs, (codes, parts, n_iter) = timed(lambda: textbook_hals(shifted, k, max_iter=limit, tol=TOL))
        check = f"{both(error, nmse(shifted, codes @ parts, shifted.mean(dim=0)))}; passes {found.n_iter} and {n_iter}"
        row("nmf / textbook HALS", ours, theirs, check)
        sklearn = NMF(k, init="nndsvda", solver="cd", max_iter=limit, tol=0, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs, codes = timed(lambda: sklearn.fit_transform(shifted.numpy()))
        again = torch.from_numpy(codes @ sklearn.components_)
        check = f"{both(error, nmse(shifted, again, shifted.mean(dim=0)))}; passes {found.n_iter} and {sklearn.n_iter_}"
        row("nmf / scikit-learn NMF", ours, theirs, check)
        if package := overcomplete():
            theirs, (codes, parts) = timed(lambda: package.NMF(k, solver="hals").fit(shifted))
            check = both(error, nmse(shifted, codes @ parts, shifted.mean(dim=0)))
            row("nmf / overcomplete HALS", ours, theirs, check)
    if "semi_nmf" in args.methods:
        ours, found, error = fit("semi_nmf")
        theirs, (codes, directions, n_iter) = timed(lambda: ding_li_jordan(x - mean, k, max_iter=limit, tol=TOL))
        check = f"{both(error, nmse(x - mean, codes @ directions, 0 * mean))}; passes {found.n_iter} and {n_iter}"
        row("semi_nmf / Ding, Li and Jordan", ours, theirs, check)
        if package := overcomplete():
            theirs, (codes, directions) = timed(lambda: package.SemiNMF(k).fit(x - mean))
            check = both(error, nmse(x - mean, codes @ directions, 0 * mean))
            row("semi_nmf / overcomplete", ours, theirs, check)


def overcomplete() -> Any:
    """The optimisers of that package, or None. It is no dependency of this project: pip install overcomplete."""
    try:
        return importlib.import_module("overcomplete.optimization")
    except ImportError:
        return None


def first(pair: tuple[float, Any]) -> float:
    return pair[0]


if __name__ == "__main__":
    main()

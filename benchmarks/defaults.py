"""Which of our defaults decide a downstream mask: one of them changed at a time, on the pocket model.

The published text names neither the site nor the penalty, the reference or the number of components. This prints what
each does to soft mass, relative KL and lost fraction at both sites, beside the empty and the full mask, with the spread
over three seeds for scale.

    python benchmarks/defaults.py
    python benchmarks/defaults.py --steps 1000 --layer 2
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import tl_lifehist as lh

CHANGES: dict[str, list[dict[str, Any]]] = {
    "seed": [{"seed": 1}, {"seed": 2}],
    "penalty_total (lambda k)": [{"penalty_total": 0.03}, {"penalty_total": 0.3}],
    "relative to": [{"relative_to": "mean_ablation"}, {"relative_to": "nats"}],
    "components": [{"k": 24}, {"k": 96}],
    "method": [{"method": "ica"}, {"method": "nmf"}, {"method": "semi_nmf"}],
    "steps": [{"steps": 0.5}, {"steps": 2}],
    "sequences per step": [{"batch_size": 4}, {"batch_size": 16}],
    "learning rate": [{"learning_rate": 0.02}, {"learning_rate": 0.1}],
    "codes": [{"center_codes": False}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=int, default=4096, help="checkpoint")
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps of a mask")
    args = parser.parse_args()
    model = lh.CheckpointSeries.pocket().load(args.step)
    train, calibration, test = (
        lh.TokenSet.pocket(split).subsample(n) for split, n in (("train", 128), ("calibration", 64), ("test", 48))
    )
    for site in ("hook_mlp_out", "hook_resid_post"):
        name = f"blocks.{args.layer}.{site}"
        acts = lh.collect_activations(model, name, train)
        print(
            f"\n{name}, step {args.step}: {len(acts)} rows, {calibration.n_scored} and {test.n_scored} scored positions"
        )
        print(f"{'changed':34s} {'soft mass':>9s} {'relative KL':>11s} {'lost':>6s} {'empty KL':>9s} {'full KL':>8s}")
        fitted: dict[tuple[str, int], Any] = {}
        for title, changes in {"nothing": [{}], **CHANGES}.items():
            for change in changes:
                found, mass = measure(model, name, acts, calibration, test, args.steps, fitted, **change)
                label = title if not change else f"{title}: {next(iter(change.values()))}"
                print(
                    f"{label:34s} {mass:9.3f} {found.relative_kl:11.4f} {found.lost_fraction:6.3f} "
                    f"{found.empty.relative_kl:9.3f} {found.full.relative_kl:8.4f}",
                    flush=True,
                )


def measure(
    model: Any,
    hook_name: str,
    acts: torch.Tensor,
    calibration: Any,
    test: Any,
    n_steps: int,
    fitted: dict[tuple[str, int], Any],
    *,
    method: str = "svd",
    k: int = 48,
    penalty_total: float = 0.1,
    relative_to: str = "entropy",
    steps: float = 1.0,
    batch_size: int = 8,
    learning_rate: float = 0.05,
    seed: int = 0,
    center_codes: bool = True,
) -> tuple[Any, float]:
    if (method, k) not in fitted:
        fitted[method, k] = lh.decompose(acts, method=method, n_components=k)
    dictionary = fitted[method, k]
    mask = lh.calibrate_mask(
        model,
        dictionary,
        calibration,
        lh.Downstream(relative_to),
        hook_name=hook_name,
        penalty=penalty_total / k,
        steps=round(steps * n_steps),
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        center_codes=center_codes,
    )
    found = lh.evaluate_mask(model, dictionary, mask, test, hook_name=hook_name, center_codes=center_codes)
    return found, mask.soft_mass


if __name__ == "__main__":
    main()

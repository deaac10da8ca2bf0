"""Worlds with known answers: firing sets, permutations between checkpoints, births and deaths at known places."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from tl_lifehist.lifehistory.profiles import FeatureProfiles

HOOK = "blocks.0.hook_resid_post"


def latent(n_rows: int, n_latents: int, *, rate: float = 0.1, seed: int = 0) -> np.ndarray:
    """Independent non-negative codes, `[row, latent]`, each firing on about `rate` of the rows."""
    rng = np.random.default_rng(seed)
    return (rng.random((n_rows, n_latents)) + 0.1) * (rng.random((n_rows, n_latents)) < rate)


def snapshot(
    codes: np.ndarray, present: list[int], *, step: int, width: int, seed: int, hook_name: str = HOOK, **fields: object
) -> tuple[FeatureProfiles, dict[int, int]]:
    """Profiles in which each present latent sits at a random feature: the profiles, and `{latent: feature}`."""
    place = np.random.default_rng(seed).permutation(width)[: len(present)]
    acts = np.zeros((len(codes), width))
    acts[:, place] = codes[:, present]
    profile = FeatureProfiles(step, hook_name, sp.csr_array(acts), 1.0, **fields)  # type: ignore[arg-type]
    return profile, dict(zip(present, place.tolist(), strict=True))

"""A study small enough for tests, importable by the processes that tests start and kill."""

from __future__ import annotations

import sys
from typing import Any

HOOKS = ("blocks.0.hook_resid_post", "blocks.3.hook_resid_post")
FEW = {  # parts whose number says nothing in a test
    "worlds": 5,
    "n_described": 3,
    "n_permutations": 5,
    "n_repeats": 2,
    "frozen_draws": 20,
    "n_rewired": 2,
    "singles_per_role": 4,
    "single_carriers": 5,
    "regression_sets": 8,
    "content_draws": 3,
}


def small_study(**changes: Any) -> Any:
    import tl_lifehist as lh

    settings: dict[str, Any] = {
        "train": lh.TokenSet.pocket("train")[::12],
        "test": lh.TokenSet.pocket("test")[::6],
        "d_sae": 64,
        "k": 8,
        "training_tokens": 6000,
        "n_draws": 5,
        "load_tokens": 500,
        **FEW,
    }
    series = changes.pop("series", None) or lh.CheckpointSeries.pocket().subset([0, 128, 1024, 4096])
    return lh.LifeHistoryStudy(series, HOOKS, **{**settings, **changes})


if __name__ == "__main__":
    small_study().run(sys.argv[1])

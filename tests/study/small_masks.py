"""A sufficiency study small enough for tests, importable by the processes that tests start and kill."""

from __future__ import annotations

import sys
from typing import Any

HOOKS = ("blocks.1.hook_mlp_out", "blocks.1.hook_resid_post")


def small_masks(**changes: Any) -> Any:
    import tl_lifehist as lh

    settings: dict[str, Any] = {
        "train": lh.TokenSet.pocket("train")[::90],
        "calibration": lh.TokenSet.pocket("calibration")[::60][:6],
        "test": lh.TokenSet.pocket("test")[::60][:6],
        "methods": ("svd", "semi_nmf"),
        "close_ups": ("svd", "semi_nmf"),
        "n_components": 6,
        "mask_steps": 8,
        "batch_size": 4,
        "translator_steps": 5,
        "sweep": (1.0,),
        "seeds": (0, 1),
        "n_random": 2,
    }
    series = changes.pop("series", None) or lh.CheckpointSeries.pocket().subset([512, 4096])
    return lh.SufficiencyStudy(series, changes.pop("hook_names", HOOKS), **{**settings, **changes})


if __name__ == "__main__":
    small_masks().run(sys.argv[1])

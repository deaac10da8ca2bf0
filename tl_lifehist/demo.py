"""Both studies on the pocket suite, at reduced sizes that the report names, or at full size."""

from __future__ import annotations

from pathlib import Path

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.lifehistory.study import LifeHistoryStudy
from tl_lifehist.sufficiency.study import SufficiencyStudy, default_steps
from tl_lifehist.tokens import TokenSet

STEPS = (0, 32, 128, 512, 2048, 4096)
ROWS, POSITIONS, SCORED, DESCRIBED = 45_000, 20_000, 2_000, 19

MASK_STEPS = (0, 512, 4096)
MASK_LAYERS = (1, 3)
SEQUENCES = {"train": 64, "calibration": 32, "test": 16}
COMPONENTS, DESCENT, BATCH, TRANSLATOR, SWEEP, RANDOM = 48, 100, 2, 100, (0.01, 1.0), 2


def life_history_demo(*, full: bool, seed: int) -> LifeHistoryStudy:
    """The life history of the pocket suite's features."""
    series, train, test = CheckpointSeries.pocket(), TokenSet.pocket("train"), TokenSet.pocket("test")
    hook_names = tuple(f"blocks.{i}.hook_resid_post" for i in range(4))
    if full:
        return LifeHistoryStudy(series, hook_names, train=train, test=test, k=16, seed=seed)
    reduced = {
        "checkpoints": f"{len(STEPS)} of {len(series.steps)}",
        "training rows of each SAE": f"{ROWS:,} of 600,000",
        "positions of the profiles": f"about {POSITIONS:,} of {test.n_valid:,}",
        "positions scored in ablations": f"about {SCORED:,} of 16,384",
        "draws of controls that are only described": f"{DESCRIBED} of 39",
    }
    return LifeHistoryStudy(
        series.subset(STEPS),
        hook_names,
        train=train,
        test=test.subsample(len(test) * POSITIONS // test.n_valid),
        k=16,
        training_tokens=ROWS,
        load_tokens=SCORED,
        n_described=DESCRIBED,
        seed=seed,
        reduced=reduced,
    )


def sufficiency_demo(life_history: Path, *, full: bool, seed: int) -> SufficiencyStudy:
    """Sufficient masks on the pocket suite, and over the SAEs of its life history."""
    series = CheckpointSeries.pocket()
    if full:
        return SufficiencyStudy(series.subset(default_steps(series.steps)), life_history=life_history, seed=seed)
    reduced = {
        "checkpoints": f"{len(MASK_STEPS)} of {len(series.steps)}",
        "layers": f"{len(MASK_LAYERS)} of 4, both sites",
        "sequences (train, calibration, test)": f"{', '.join(map(str, SEQUENCES.values()))} of 512, 256, 256",
        "components of a dictionary": f"{COMPONENTS} of 96",
        "steps of a mask": f"{DESCENT} of 1,000, each on {BATCH} sequences instead of 16",
        "steps of a fixed head": f"{TRANSLATOR} of 400",
        "further penalties on the frontier": f"{len(SWEEP)} of 4",
        "seeds": "2 of 3",
        "random masks of equal soft mass": f"{RANDOM} of 20",
    }
    return SufficiencyStudy(
        series.subset(MASK_STEPS),
        tuple(f"blocks.{layer}.{site}" for layer in MASK_LAYERS for site in ("hook_mlp_out", "hook_resid_post")),
        n_components=COMPONENTS,
        mask_steps=DESCENT,
        batch_size=BATCH,
        translator_steps=TRANSLATOR,
        sweep=SWEEP,
        seeds=(seed, seed + 1),
        n_random=RANDOM,
        life_history=life_history,
        seed=seed,
        reduced=reduced,
        train=TokenSet.pocket("train").subsample(SEQUENCES["train"]),
        calibration=TokenSet.pocket("calibration").subsample(SEQUENCES["calibration"]),
        test=TokenSet.pocket("test").subsample(SEQUENCES["test"]),
    )

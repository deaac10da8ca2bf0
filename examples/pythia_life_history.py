"""The life history of Pythia's features at the published study's setting.

Without arguments it is a quick one of the pocket model. Says first what it will download, compute and store; with
--dry-run it stops there, and no weights have been fetched.

    python examples/pythia_life_history.py
    python examples/pythia_life_history.py --model EleutherAI/pythia-160m --texts pile.jsonl --dry-run
    python examples/pythia_life_history.py --model EleutherAI/pythia-160m --texts pile.jsonl --out runs/pythia-160m
    python examples/pythia_life_history.py --model EleutherAI/pythia-410m --texts pile.jsonl --out runs/pythia-410m

The steps and the number of layers are the paper's; which layers, SAE width, training length and text are ours. The same
command takes an interrupted run up again.

How its numbers can mislead: counts of features are those of these SAEs on this text, so "51 carriers" is not to be
expected from other SAEs; compare the claims, each beside its null. Quick mode shows the way and no result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tl_lifehist as lh
from tl_lifehist.console import open_texts

PAPER = {"steps": [0, 1000, 10_000, 40_000, 80_000, 120_000, 143_000], "rows": 600_000, "draws": 100, "scored": 16_384}
QUICK = {"steps": [0, 512, 4096], "rows": 10_000, "draws": 9, "scored": 500}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="pocket", help='"pocket", or a hub repository such as EleutherAI/pythia-160m'
    )
    parser.add_argument(
        "--texts", type=Path, help='.jsonl with a text field, or .txt; needed for every model but "pocket"'
    )
    parser.add_argument("--steps", type=int, nargs="+", help="checkpoints; the paper's seven by default")
    parser.add_argument("--dry-run", action="store_true", help="say what it takes, and stop")
    parser.add_argument("--out", type=Path, help="run folder; named after the model by default")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    pocket = args.model == "pocket"
    sizes = QUICK if pocket else PAPER
    steps = args.steps or sizes["steps"]
    series = lh.CheckpointSeries.pocket() if pocket else lh.CheckpointSeries.from_hub(args.model, steps)
    train, test = open_texts(series, args.texts, ("train", "test"), context_size=128)
    study = lh.LifeHistoryStudy(
        series.subset(steps),
        lh.lifehistory.depth_hook_names(series.shape.n_layers)[-2 if pocket else 0 :],
        train=train,
        test=test[::6] if pocket else test,
        d_sae=96 if pocket else None,
        k=8 if pocket else 32,
        training_tokens=sizes["rows"],
        n_draws=sizes["draws"],
        load_tokens=sizes["scored"],
        seed=args.seed,
    )
    out = args.out or Path(f"{args.model.rpartition('/')[2]}-life-history")
    print(lh.plan_study(study, out))
    if args.dry_run:
        return

    run = study.run(out)
    carriers = run.table("carriers")
    print(f"\n{len(carriers)} persistent carriers; published: 51 of Pythia-160M, with other SAEs on other text")
    claims = run.claims[run.claims["headline"]]
    for verdict, found in zip(claims["verdict"], claims["sentence"], strict=True):
        print(f"{verdict}: {found}")
    print(f"\nreport: {run.report()}")


if __name__ == "__main__":
    try:
        main()
    except lh.InputError as error:
        raise SystemExit(f"pythia_life_history: {error}") from None

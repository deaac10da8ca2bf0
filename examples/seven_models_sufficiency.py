"""Functional sufficiency in seven models: one run folder each, and one table over them.

Without arguments it is a quick study of the pocket model. Each model's run says first what it will download, compute
and store. What is finished is not computed again, so the same command goes on after an interruption, and a model that
fails does not keep the others from running.

    python examples/seven_models_sufficiency.py
    python examples/seven_models_sufficiency.py --models all --texts english.jsonl --french french.jsonl --dry-run
    python examples/seven_models_sufficiency.py --models all --texts english.jsonl --french french.jsonl --discard
    python examples/seven_models_sufficiency.py --models EuroBERT/EuroBERT-210m --texts english.jsonl

Which seven models the paper means is an inference from its summaries; layers, checkpoints and text are ours.

How its numbers can mislead: medians over cells hide that the two sites differ fifty-fold in what they cost, so the
table keeps them apart, and a small mask at a site whose empty mask costs little shows nothing: read the columns
together. Models differ in tokenizer, text and objective at once, so no row is a control for another.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

import tl_lifehist as lh
from tl_lifehist.console import open_texts
from tl_lifehist.runs import Run

SEVEN = (
    "EleutherAI/pythia-160m",
    "EleutherAI/pythia-410m",
    "EleutherAI/pythia-1b",
    "allenai/OLMo-1B-hf",
    "EuroBERT/EuroBERT-210m",
    "EuroBERT/EuroBERT-610m",
    "almanach/moderncamembert-base-ckpts",
)
MASKED, FRENCH = ("EuroBERT/", "almanach/"), ("almanach/",)
SPLITS = {"train": 512, "calibration": 256, "test": 256}  # sequences


def study_of(model: str, texts: Path | None, french: Path | None, seed: int) -> lh.SufficiencyStudy:
    """The study of one model at its default settings; a quick one of the pocket model."""
    if model == "pocket":
        series = lh.CheckpointSeries.pocket().subset([0, 4096])
        train, calibration, test = (lh.TokenSet.pocket(split)[::60][:n] for split, n in SPLITS.items())
        hook_names = [f"blocks.2.{site}" for site in ("hook_mlp_out", "hook_resid_post")]
        quick = {"n_components": 16, "mask_steps": 150, "batch_size": 2, "translator_steps": 30, "n_random": 3}
        quick |= {"methods": ("svd", "semi_nmf"), "sweep": (), "seeds": (0,)}
        return lh.SufficiencyStudy(
            series, hook_names, train=train, calibration=calibration, test=test, seed=seed, **quick
        )
    series = lh.CheckpointSeries.from_hub(model)
    series = series.subset(lh.sufficiency.default_steps(series.steps))
    path = french if model.startswith(FRENCH) else texts
    if path is None:
        raise lh.InputError("Text is needed in the model's language: give --texts, and --french for ModernCamemBERT.")
    splits = open_texts(series, path, tuple(SPLITS), context_size=128, masked=model.startswith(MASKED))
    train, calibration, test = (tokens.subsample(n) for tokens, n in zip(splits, SPLITS.values(), strict=True))
    return lh.SufficiencyStudy(series, train=train, calibration=calibration, test=test, seed=seed)


def summary(model: str, run: Run) -> pd.DataFrame:
    """Medians over cells by site and method, of the downstream mask and of what it stands between."""
    table = run.table("evaluation")
    table["soft mass"] = table["soft_mass"].where(table["mask"] == "downstream")
    for mask in ("downstream", "empty", "full"):
        table[f"KL/entropy, {mask}"] = table["relative_kl"].where(table["mask"] == mask)
    columns = ["soft mass", *(f"KL/entropy, {mask}" for mask in ("downstream", "empty", "full"))]
    found = table.groupby(["site", "method"])[columns].median().reset_index()
    found.insert(0, "model", model)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["pocket"], help='"pocket", "all", or hub repositories')
    parser.add_argument(
        "--texts", type=Path, help=".jsonl with a text field, or .txt with documents separated by blank lines"
    )
    parser.add_argument("--french", type=Path, help="the same in French, for ModernCamemBERT")
    parser.add_argument("--out", type=Path, default=Path("seven_models"), help="one run folder per model goes in here")
    parser.add_argument("--dry-run", action="store_true", help="say what each model takes, and stop")
    parser.add_argument(
        "--discard", action="store_true", help="drop a model's checkpoints from the cache when it is done"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rows, failed = [], []
    for model in SEVEN if args.models == ["all"] else args.models:
        print(f"\n=== {model}")
        out = args.out / model.replace("/", "--")
        try:
            if (out / "tables" / "claims.parquet").exists():
                run = lh.load_run(out)  # finished in an earlier call
            else:
                study = study_of(model, args.texts, args.french, args.seed)
                print(lh.plan_study(study, out))
                if args.dry_run:
                    continue
                run = study.run(out)
                if args.discard:
                    freed = sum(study.series.discard(step) for step in study.series.steps)
                    print(f"{freed / 1e9:.1f} GB of the cache freed")
        except lh.InputError as error:
            failed.append(f"{model}: {error}")
            print(failed[-1])
            continue
        rows.append(summary(model, run))
        print(f"report: {run.report()}")

    if rows:
        table = pd.concat(rows, ignore_index=True)
        args.out.mkdir(parents=True, exist_ok=True)
        table.to_csv(args.out / "models.csv", index=False)
        print(f"\nMedians over cells\n{table.round(4).to_string(index=False)}")
    if failed:
        raise SystemExit("\nNot done:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()

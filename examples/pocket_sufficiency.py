"""Sufficient masks over training, piece by piece: what a small part of an activation keeps, at three checkpoints.

Shows what `SufficiencyStudy` does in one call as the separate functions it is made of, for those who want only some
of them: a decomposition, masks for four targets, their scores beside the empty and the full mask and beside the
leading components by variance, gate scores, the frontier, and the onset of sufficiency. Writes one figure,
sufficiency/frontier.html.

    python examples/pocket_sufficiency.py
    python examples/pocket_sufficiency.py --model EleutherAI/pythia-160m --steps 0 1000 10000 143000 --layer 6 \
        --components 100 --train 512 --calibration 256 --test 256 --mask-steps 1000 --batch 16

How its numbers can mislead: the sizes are tiny and the masks have hardly come to rest. Both sites are printed because
they say different things: at the MLP's output the empty mask costs little, so a mask that loses little there shows
little. Read `lost_fraction` and the empty mask's row first. The study adds what is left out here: intervals, other
decompositions and seeds, matched nulls, trajectories and their tests, for which three checkpoints are too few.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

import tl_lifehist as lh
from tl_lifehist.report import figures

COLUMNS = ["soft_mass", "nmse", "relative_kl", "lost_fraction", "accuracy_drop", "transfer_nmse"]


def tokens_of(split: str, tokenizer, n_sequences: int) -> lh.TokenSet:
    """Put your own texts here: one string a document."""
    texts = [text for _, text in lh.checkpoints.pocket_texts(split)]
    tokens = lh.TokenSet.from_texts(texts, tokenizer, keep_partial=False)
    return tokens[:: max(1, len(tokens) // n_sequences)][:n_sequences]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket", help='"pocket", or a hub repository with checkpoints')
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 512, 4096])
    parser.add_argument("--layer", type=int, default=2)
    parser.add_argument("--sites", nargs="+", default=["hook_mlp_out", "hook_resid_post"])
    parser.add_argument("--method", default="svd", help="svd, ica, nmf or semi_nmf")
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--penalty-total", type=float, default=0.1, help="lambda times the number of components")
    parser.add_argument("--mask-steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=2, help="sequences per step")
    parser.add_argument("--train", type=int, default=96, help="sequences")
    parser.add_argument("--calibration", type=int, default=32)
    parser.add_argument("--test", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("sufficiency"))
    args = parser.parse_args()

    pocket = args.model == "pocket"
    series = lh.CheckpointSeries.pocket() if pocket else lh.CheckpointSeries.from_hub(args.model, args.steps)
    series = series.subset(args.steps)
    train = tokens_of("train", series.tokenizer, args.train)
    calibration = tokens_of("calibration", series.tokenizer, args.calibration)
    test = tokens_of("test", series.tokenizer, args.test)
    end = series.steps[-1]
    final_model = series.load(end)
    descent = {"steps": args.mask_steps, "batch_size": args.batch}

    sweeps = []
    for site in args.sites:
        name = f"blocks.{args.layer}.{site}"
        final_acts = lh.collect_activations(final_model, name, train)
        print(f"\n== {name}")
        for step in series.steps:
            model = final_model if step == end else series.load(step)
            acts = lh.collect_activations(model, name, train)
            dictionary = lh.decompose(acts, method=args.method, n_components=args.components, seed=args.seed)
            translator = lh.fit_translator(model, name, train, steps=60, seed=args.seed)
            transfer = lh.Transfer(final_model, lh.align_checkpoints(acts, final_acts))

            # Four targets, one penalty, one descent.
            targets = (lh.Reconstruction(), lh.FixedHead(translator), lh.Downstream(), transfer)
            penalty = args.penalty_total / len(dictionary.W_dec)
            masks = lh.calibrate_masks(
                model,
                [lh.MaskTask(dictionary, target, penalty, args.seed) for target in targets],
                calibration,
                hook_name=name,
                **descent,
            )
            gates = {mask.target: mask.gates for mask in masks}
            downstream = next(mask for mask in masks if mask.target == "downstream")
            gates["top variance"] = lh.sufficiency.ranked_mask(dictionary.component_variance, downstream.soft_mass)
            scored = lh.evaluate_masks(model, dictionary, gates, test, hook_name=name, transfer=transfer)
            scored = {"empty": scored["downstream"].empty, **scored, "full": scored["downstream"].full}
            table = pd.DataFrame({mask: [getattr(e, c) for c in COLUMNS] for mask, e in scored.items()}, COLUMNS).T
            print(f"\nstep {step}: {dictionary.explained_variance:.0%} of the variance in {len(dictionary.W_dec)}")
            print(table.round(3).to_string())

            # Which components does the mask take? Those whose gate the loss pulls at, more than shuffled gates do?
            tau = lh.gate_scores(model, dictionary, test, hook_name=name).tau
            chance = pd.Series(
                [lh.enrichment(lh.sufficiency.permuted_mask(downstream, seed=i), tau) for i in range(100)]
            )
            low, high = chance.quantile([0.025, 0.975])
            print(f"tau enrichment {lh.enrichment(downstream, tau):.2f}; shuffled gates {low:.2f} to {high:.2f}")

            sweep = lh.frontier(
                model,
                dictionary,
                calibration,
                test,
                hook_name=name,
                penalty_totals=(0.01, 0.03, 0.3),
                seed=args.seed,
                **descent,
            )
            onset = lh.sufficiency.onset_of_sufficiency(
                sweep, full_lost_fraction=float(sweep["full_lost_fraction"].iloc[0])
            )
            why = "no mask of the sweep, or not even the full one, is enough" if pd.isna(onset) else f"{onset:.2f}"
            print(f"onset of sufficiency (soft mass): {why}")
            keys = {"step": step, "hook_name": name, "site": site, "layer": args.layer, "method": args.method}
            sweeps.append(sweep.assign(**keys, operating=False))

    args.out.mkdir(parents=True, exist_ok=True)
    figure = figures.frontier(pd.concat(sweeps, ignore_index=True), args.sites[0], end)
    figure.write_html(args.out / "frontier.html")
    print(f"\n{test.n_scored} scored positions, seed {args.seed}; figure: {args.out / 'frontier.html'}")


if __name__ == "__main__":
    main()

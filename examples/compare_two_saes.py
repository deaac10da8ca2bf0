"""How many features do two SAEs of one hook point share, and how many could they share at best?

Shows `compare_saes` on two folders in SAELens' format. Without folders, two SAEs are trained here, the second from
other initial weights, on other text and twice as long, and written to compare_two_saes/.

    python examples/compare_two_saes.py
    python examples/compare_two_saes.py --a my_saes/first --b my_saes/second --model EleutherAI/pythia-160m \
        --step 143000 --hook-name blocks.5.hook_resid_post --rows 2000000

How its numbers can mislead: a match rate of 60 % sounds like disagreement, yet two trainings of the same SAE may agree
no better. Read the rate between its two floors: other row order only, and other initial weights too. The floors are
of SAEs trained here for --rows activations; SAEs that were trained for longer agree more, or less. The rate counts
a's features, so it depends on which one is called a: a small SAE can be found whole in a large one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import tl_lifehist as lh
from tl_lifehist.checkpoints.pocket import pocket_texts


def tokens_of(split: str, tokenizer) -> lh.TokenSet:
    """Put your own texts here: one string a document."""
    texts = [text for _, text in pocket_texts(split)]
    return lh.TokenSet.from_texts(texts, tokenizer, keep_partial=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a", type=Path, help="folder with cfg.json and sae_weights.safetensors")
    parser.add_argument("--b", type=Path)
    parser.add_argument("--model", default="pocket", help='"pocket", or a hub repository with checkpoints')
    parser.add_argument("--step", type=int, default=4096)
    parser.add_argument("--hook-name", default="blocks.2.hook_resid_post")
    parser.add_argument("--rows", type=int, default=50_000, help="activations each floor SAE is trained on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if (args.a is None) != (args.b is None):
        parser.error("give both --a and --b, or neither")

    pocket = args.model == "pocket"
    series = lh.CheckpointSeries.pocket() if pocket else lh.CheckpointSeries.from_hub(args.model, [args.step])
    model = series.load(args.step)
    train, test = tokens_of("train", series.tokenizer), tokens_of("test", series.tokenizer)[::3]

    if args.a is None:
        out, half = Path("compare_two_saes"), len(train) // 2
        plan = [("first", train[:half], args.rows), ("second", train[half:], 2 * args.rows)]
        for number, (name, text, rows) in enumerate(plan):
            seed = args.seed + number
            saes = lh.train_saes(
                {args.step: model}, [args.hook_name], text, d_sae=192, k=12, training_tokens=rows, seed=seed
            )
            saes.save(out / name)
        args.a, args.b = (out / name / f"step{args.step}" / args.hook_name for name in ("first", "second"))

    sae_a, sae_b = lh.load_sae(args.a), lh.load_sae(args.b)
    found = lh.compare_saes(
        sae_a, sae_b, model, args.hook_name, test, train_tokens=train, training_tokens=args.rows, seed=args.seed
    )

    match = found.match
    low, middle, high = np.quantile(match.similarity, [0.1, 0.5, 0.9])
    print(f"a: {args.a}\nb: {args.b}\n")
    print(f"{len(match.pairs)} pairs; only in a: {len(match.unmatched_a)}, only in b: {len(match.unmatched_b)}")
    print(f"similarity of the pairs: median {middle:.2f} (80 % between {low:.2f} and {high:.2f})")
    directions = [lh.dictionaries.decoder_directions(sae, match.pairs[:, i]) for i, sae in enumerate((sae_a, sae_b))]
    unit = [rows / rows.norm(dim=1, keepdim=True) for rows in directions]
    print(f"cosine of their directions: median {float((unit[0] * unit[1]).sum(dim=1).median()):.2f}")
    print(f"\nmatched {found.rate:.0%} of a's {found.n_alive} alive features; at best expected, between")
    print(f"  {found.floor_init:.0%}  two trainings from other initial weights ({found.floor_n_alive} alive)")
    print(f"  {found.floor_data:.0%}  two trainings that differ in the order of the rows only")
    print(f"{test.n_valid} positions, seed {args.seed}")


if __name__ == "__main__":
    main()

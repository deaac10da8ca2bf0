"""Trace one feature of an SAE you already have back through the training of its model.

Shows `life_of`: the feature is matched to SAEs trained at each checkpoint and followed along their lineage. Without
--sae, an SAE is trained here from a seed of its own, to stand for somebody else's.

    python examples/life_of_a_feature.py
    python examples/life_of_a_feature.py --sae my_sae --feature 1234 --model EleutherAI/pythia-160m \
        --steps 0 1000 10000 40000 143000 --hook-name blocks.5.hook_resid_post --d-sae 3072 --k 32 --rows 2000000

How its numbers can mislead: the birth is where the chain of matches begins, and a single match missed by chance makes
a feature look young: read `similarity` at the steps before it, beside `null_similarity` (the same feature with its
positions shuffled). A similar profile is not the same direction: `cosine` says how far the direction has come. And a
feature of the step-0 model can be similar already, because a random network tells tokens apart.
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
    parser.add_argument("--sae", type=Path, help="folder in SAELens' format; its SAE reads the last of the steps")
    parser.add_argument("--feature", type=int, help="by default the heaviest of the features that fire rarely")
    parser.add_argument("--model", default="pocket", help='"pocket", or a hub repository with checkpoints')
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 64, 256, 1024, 4096])
    parser.add_argument("--hook-name", default="blocks.2.hook_resid_post")
    parser.add_argument("--d-sae", type=int, default=192)
    parser.add_argument("--k", type=int, default=12)
    parser.add_argument("--rows", type=int, default=50_000, help="activations each SAE is trained on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    pocket = args.model == "pocket"
    series = lh.CheckpointSeries.pocket() if pocket else lh.CheckpointSeries.from_hub(args.model)
    series = series.subset(args.steps)
    train, test = tokens_of("train", series.tokenizer), tokens_of("test", series.tokenizer)[::3]
    hook_names, end = [args.hook_name], series.steps[-1]
    sizes = {"d_sae": args.d_sae, "k": args.k, "training_tokens": args.rows}

    if args.sae is None:
        sae = lh.train_saes(series.subset([end]), hook_names, train, seed=args.seed + 1, **sizes)[end, args.hook_name]
    else:
        sae = lh.load_sae(args.sae)
    if args.feature is None:
        profile = lh.profile_saes(series.load(end), {args.hook_name: sae}, test, step=end)[args.hook_name]
        rare = np.flatnonzero(profile.alive() & (profile.firing_rate < 0.05))
        args.feature = int(rare[np.argmax(profile.mass[rare])])

    saes = lh.train_saes(series, hook_names, train, seed=args.seed, **sizes)
    life = lh.life_of(sae, args.feature, series, saes, test, hook_name=args.hook_name, seed=args.seed)

    print(f"feature {life.feature} at {life.hook_name}: {life.neuronpedia or 'not on Neuronpedia'}")
    print("\nwhere it fires most strongly:")
    for row in life.contexts.itertuples():
        print(f"  {row.activation:6.2f}  {row.before!r} >>{row.token!r}<< {row.after!r}")
    print(f"\n{life.history.round(2).to_string(index=False)}")
    born = "no feature of the last checkpoint matches it" if life.birth is None else f"born by step {life.birth}"
    ends = life.history.iloc[-1]
    print(f"\n{born}; similarity at step {int(ends.step)} {ends.similarity:.2f}, shuffled {ends.null_similarity:.2f}")
    print(f"{test.n_valid} positions, seed {args.seed}")


if __name__ == "__main__":
    main()

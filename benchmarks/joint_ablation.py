"""Joint ablation of a set of features at four layers: ours, plain hooks, a bare forward pass and the SAEs' encoding.

Ours is one further set of an analysis that draws many (`ManyLosses`): the clean pass below the first layer and the
reference losses are stored by the first. Times are CPU seconds, the best of several turns taken in turn; `share` is
(ours - encoding) over the bare forward pass, which is to stay at 1.35 or below.

Ours must give the losses of a whole pass with the same hooks. Plain hooks add and subtract in another order, and where
two codes are nearly tied, TopK then picks the other at a later layer: so their median and mean are compared.

    python benchmarks/joint_ablation.py                    # the pocket model, 50,000 tokens, 384 features a layer
    python benchmarks/joint_ablation.py --tokens 12000 --json rows.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rows import write_rows

import tl_lifehist as lh
from tl_lifehist.effects import scored_losses
from tl_lifehist.many_losses import ManyLosses

MOST = 1.35


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=384)
    parser.add_argument("--active", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="also write the rows there")
    args = parser.parse_args()
    row = measure(args.tokens, args.features, args.active, args.repeats)
    print(
        f"{row['tokens']} tokens, 4 layers of {args.features} features: bare forward {row['bare']:.2f} s, encoding "
        f"{row['encoding']:.2f} s, plain hooks {row['hooks']:.2f} s, ours {row['ours']:.2f} s"
    )
    print(
        f"(ours - encoding) / bare forward  {row['share']:.2f}   plain hooks / ours  {row['ratio']:.2f}   "
        f"difference of a loss: whole pass {row['difference']:.1e} at most, plain hooks {row['hooks_median']:.1e} in "
        f"the median, {row['hooks_mean']:.1e} of the mean"
    )
    write_rows(args.json, "joint_ablation", [row])
    if max(row["difference"], row["hooks_median"]) > 1e-5 or row["hooks_mean"] > 1e-3:
        raise SystemExit("The losses differ.")
    if row["share"] > MOST:
        raise SystemExit(f"More than {MOST} times the bare forward pass.")


def measure(n_tokens: int, n_features: int = 384, n_active: int = 16, repeats: int = 3) -> dict[str, Any]:
    """CPU seconds of each way, and how far their losses are apart."""
    model, text = lh.CheckpointSeries.pocket().load(4096), lh.TokenSet.pocket("test").head(n_tokens)
    names = [f"blocks.{i}.hook_resid_post" for i in range(4)]
    acts = {name: lh.collect_activations(model, name, text) for name in names}
    saes = {name: random_sae(rows.shape[1], n_features, n_active, i) for i, (name, rows) in enumerate(acts.items())}
    chosen = {name: list(range(0, n_features, 4)) for name in names}
    many = ManyLosses(model, text, names)

    @torch.no_grad()
    def encoding() -> None:
        for name in names:
            for rows in acts[name].split(2048):
                saes[name].encode(rows)

    ways: dict[str, Callable[[], Any]] = {
        "bare": lambda: scored_losses(model, text),
        "encoding": encoding,
        "hooks": lambda: hooked_losses(model, saes, chosen, text),
        "ours": lambda: many.of(lh.FeatureAblation(saes, chosen)),
    }
    ours, plain = ways["ours"](), ways["hooks"]()
    off = float(np.abs(ours - scored_losses(model, text, lh.FeatureAblation(saes, chosen))).max())
    times = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, way in ways.items():
            started = time.process_time()
            way()
            times[name] = min(times[name], time.process_time() - started)
    return {
        "tokens": text.n_valid,
        **times,
        "share": (times["ours"] - times["encoding"]) / times["bare"],
        "ratio": times["hooks"] / times["ours"],
        "difference": off,
        "hooks_median": float(np.median(np.abs(ours - plain))),
        "hooks_mean": abs(float(ours.mean() - plain.mean())),
    }


@torch.no_grad()
def hooked_losses(model: Any, saes: Any, chosen: Any, text: lh.TokenSet) -> Any:
    """What one would write: encode, decode with and without the features, add the difference; one whole pass."""
    losses = []
    for batch in text.batches(16):

        def removing(name: str, valid: torch.Tensor = batch.valid) -> Callable[..., torch.Tensor]:
            def hook(value: torch.Tensor, hook: Any) -> torch.Tensor:
                codes = saes[name].encode(value)
                without = codes.clone()
                without[..., chosen[name]] = 0
                changed = value - saes[name].decode(codes) + saes[name].decode(without)
                return torch.where(valid.unsqueeze(-1), changed, value)

            return hook

        with model.hooks(fwd_hooks=[(name, removing(name)) for name in saes]):
            logits = model(batch.ids)[batch.scored]
        losses.append(torch.nn.functional.cross_entropy(logits, batch.labels[batch.scored], reduction="none"))
    return torch.cat(losses).double().numpy()


def random_sae(d_in: int, d_sae: int, k: int, seed: int) -> Any:
    from sae_lens.saes.topk_sae import TopKSAE, TopKSAEConfig

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sae = TopKSAE(TopKSAEConfig(d_in=d_in, d_sae=d_sae, k=k, rescale_acts_by_decoder_norm=False))
        sae.W_dec.data = torch.nn.functional.normalize(torch.randn(d_sae, d_in), dim=1)
        sae.W_enc.data = sae.W_dec.data.T.contiguous()
    return sae.requires_grad_(False).eval()


if __name__ == "__main__":
    main()

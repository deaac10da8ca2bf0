"""From your own training loop to a life history: snapshots, a check of the weights, the study and its claims.

Shows where `SnapshotCallback` goes in a plain PyTorch loop (with the Hugging Face Trainer it is one of `callbacks`),
and that the folders it writes are all the study needs. A toy GPT-NeoX is trained here for a few seconds.

    python examples/your_training_run.py
    python examples/your_training_run.py --checkpoints runs/mine --d-sae 3072 --k 32 --rows 600000 --n-draws 100
    python examples/your_training_run.py --model EleutherAI/pythia-160m --steps 0 1000 10000 40000 143000 \
        --d-sae 3072 --k 32 --rows 600000 --n-draws 100 --out runs/pythia

How its numbers can mislead: a model trained for seconds has hardly learned more than which tokens are frequent, so
its features say nothing about language models; the run shows the way, not a result. At these sizes several claims are
"not testable", and a "within" is what few draws and few features give as well as what no effect gives.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import tl_lifehist as lh
from tl_lifehist.checkpoints.pocket import pocket_texts


def tokens_of(split: str, tokenizer) -> lh.TokenSet:
    """Put your own texts here: one string a document."""
    texts = [text for _, text in pocket_texts(split)]
    return lh.TokenSet.from_texts(texts, tokenizer, context_size=64, keep_partial=False)


def train_a_toy(folder: Path, n_steps: int, seed: int) -> None:
    """Your own training: the three lines with `snapshot` are all that is added to it."""
    tokenizer = lh.CheckpointSeries.pocket().tokenizer
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        max_position_embeddings=64,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = GPTNeoXForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = tokens_of("train", tokenizer).ids
    snapshot = lh.SnapshotCallback(folder, schedule=[0, 10, 40, n_steps], tokenizer=tokenizer)
    for step in range(n_steps):
        snapshot(model, step)  # before update number `step`, so the weights have seen that many
        batch = ids[torch.randint(len(ids), (16,))]
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    snapshot.finish(model, n_steps)
    print(f"trained {n_steps} steps to a loss of {loss.item():.2f} nats, snapshots {snapshot.written}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, help="folder of step0, step1000, ...; by default a toy is trained")
    parser.add_argument("--model", help="a hub repository with checkpoints, instead of a folder")
    parser.add_argument("--steps", type=int, nargs="+", help="some of the checkpoints; all by default")
    parser.add_argument("--d-sae", type=int, default=96)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--rows", type=int, default=10_000, help="activations each SAE is trained on")
    parser.add_argument("--load-tokens", type=int, default=1_000, help="positions on which ablations are scored")
    parser.add_argument("--n-draws", type=int, default=19)
    parser.add_argument("--out", type=Path, help="run folder to keep; by default a temporary one")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        if args.model:
            series = lh.CheckpointSeries.from_hub(args.model, args.steps)
        else:
            folder = args.checkpoints or Path(temporary) / "checkpoints"
            if args.checkpoints is None:
                train_a_toy(folder, 160, args.seed)
            series = lh.CheckpointSeries.from_directory(folder)
        series = series.subset(args.steps or series.steps)
        print(series.verify())  # a checkpoint that is a copy of another one would look like perfect persistence

        n_layers = series.load(series.steps[-1]).cfg.n_layers
        study = lh.LifeHistoryStudy(
            series,
            lh.lifehistory.depth_hook_names(n_layers),
            train=tokens_of("train", series.tokenizer),
            test=tokens_of("test", series.tokenizer)[::8],
            d_sae=args.d_sae,
            k=args.k,
            training_tokens=args.rows,
            n_draws=args.n_draws,
            load_tokens=args.load_tokens,
            seed=args.seed,
        )
        run = study.run(args.out or Path(temporary) / "run")
        claims = run.claims[run.claims["headline"]]
        print()
        for verdict, found in zip(claims["verdict"], claims["sentence"], strict=True):
            print(f"{verdict}: {found}")
        print(f"\n{study.test.n_valid} positions, seed {args.seed}")
        print(f"report: {run.report()}" if args.out else "pass --out to keep the run and its report.html")


if __name__ == "__main__":
    main()

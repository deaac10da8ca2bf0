"""Train the pocket suite that ships with tl_lifehist, from real text to checkpoints.

    apt-get install python3.11-doc bible-kjv      # Debian's packages hold the text
    python examples/train_pocket_suite.py --out pocket

The text is free to ship: the Python documentation sources and the standard library's own source (PSF licence), and
the King James Bible (public domain). Documents are dealt into three disjoint splits by a hash of their name. The
model is a small GPT-NeoX, Pythia's architecture; every checkpoint is written by `save_pretrained`, so loading it goes
through the code that loads Pythia. About half an hour on two cores.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import hashlib
import json
import math
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

STEPS = (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
CONTEXT = 128
BOS = "<|endoftext|>"
HELD_OUT = {"calibration": 0.03, "test": 0.03}  # share of documents
SHIPPED_TOKENS = {"train": 240_000, "calibration": 72_000, "test": 72_000}
SHIPPED_CHARACTERS = 6_000  # of each document, so that a slice holds many documents


def python_docs(folder: Path) -> Iterator[tuple[str, str]]:
    """Each section file of the Python documentation, as its reStructuredText source."""
    for path in sorted(folder.rglob("*.rst.txt")):
        yield f"python-docs/{path.relative_to(folder)}", path.read_text(encoding="utf-8", errors="replace")


def standard_library() -> Iterator[tuple[str, str]]:
    """Each module of the standard library, tests and generated tables left out."""
    folder = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "test", "tests", "idlelib", "encodings", "lib2to3", "pydoc_data"}
    for path in sorted(folder.rglob("*.py")):
        if not skipped & set(path.relative_to(folder).parts):
            yield f"stdlib/{path.relative_to(folder)}", path.read_text(encoding="utf-8", errors="replace")


def bible() -> Iterator[tuple[str, str]]:
    """Each chapter of the King James Version, from the `bible` command of Debian's bible-kjv."""
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    chapters: dict[str, list[str]] = {}
    for line in text.splitlines():
        found = re.match(r"(\w+?)(\d+):(\d+) (.*)", line)
        if found:
            book, chapter, _, verse = found.groups()
            chapters.setdefault(f"{book} {chapter}", []).append(verse)
    for name, verses in chapters.items():
        yield f"bible-kjv/{name}", "\n".join(verses)


def split_of(name: str) -> str:
    """The split a document belongs to: a function of its name alone."""
    draw = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
    for split, share in HELD_OUT.items():
        if draw < share:
            return split
        draw -= share
    return "train"


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, special_tokens=[BOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=BOS, unk_token=BOS)


def windows(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Full windows of BOS and 127 tokens of one document."""
    rows = []
    for encoded in tokenizer(texts, add_special_tokens=False)["input_ids"]:
        n = len(encoded) // (CONTEXT - 1)
        body = np.asarray(encoded[: n * (CONTEXT - 1)], dtype=np.int64).reshape(n, CONTEXT - 1)
        rows.append(np.concatenate([np.zeros((n, 1), np.int64), body], axis=1))
    return torch.from_numpy(np.concatenate(rows))


def ship_texts(documents: dict[str, list[tuple[str, str]]], tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write each split's slice: documents in a seeded order, source after source, until the tokens suffice."""
    (out / "texts").mkdir(parents=True, exist_ok=True)
    for split, wanted in SHIPPED_TOKENS.items():
        order = np.random.default_rng(0).permutation(len(documents[split]))
        kept, tokens = [], 0
        for i in order:
            name, text = documents[split][int(i)]
            text = text[:SHIPPED_CHARACTERS]
            n = len(tokenizer(text, add_special_tokens=False)["input_ids"])
            if n >= CONTEXT:
                kept.append({"document": name, "text": text})
                tokens += n
            if tokens >= wanted:
                break
        body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
        with gzip.GzipFile(out / "texts" / f"{split}.jsonl.gz", "wb", mtime=0) as file:
            file.write(body.encode("utf-8"))
        print(f"{split}: {len(kept)} documents, {tokens} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python-docs", type=Path, default=Path("/usr/share/doc/python3.11/html/_sources"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    documents: dict[str, list[tuple[str, str]]] = {"train": [], "calibration": [], "test": []}
    sources = (python_docs(args.python_docs), standard_library(), bible())
    for name, text in (document for source in sources for document in source):
        documents[split_of(name)].append((name, text))
    print({split: (len(d), sum(len(text) for _, text in d)) for split, d in documents.items()})

    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer([text for _, text in documents["train"]])
    tokenizer.save_pretrained(args.out)
    ship_texts(documents, tokenizer, args.out)

    train = windows([text for _, text in documents["train"]], tokenizer)
    held_out = windows([text for _, text in documents["test"]], tokenizer)[::8][:256]
    print(f"{len(train)} training windows", flush=True)
    torch.manual_seed(args.seed)
    config = GPTNeoXConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=384,
        max_position_embeddings=CONTEXT,
        rotary_pct=0.25,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPTNeoXForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up, last = 100, STEPS[-1]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min((s + 1) / warm_up, 0.1 + 0.45 * (1 + math.cos(math.pi * max(0, s - warm_up) / (last - warm_up)))),
    )
    rows = torch.from_numpy(np.random.default_rng(args.seed).permutation(len(train)))
    history, start = [], time.perf_counter()
    for step in range(last + 1):
        if step in STEPS:
            model.eval()
            with torch.no_grad():
                loss = float(np.mean([float(model(ids, labels=ids).loss) for ids in held_out.split(32)]))
            history.append({"step": step, "tokens": step * args.batch * CONTEXT, "test_loss": round(loss, 4)})
            print(history[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
            copy.deepcopy(model).half().save_pretrained(args.out / f"step{step}")
            (args.out / f"step{step}" / "generation_config.json").unlink(missing_ok=True)
            model.train()
        if step == last:
            break
        batch = rows[(torch.arange(args.batch) + step * args.batch) % len(rows)]
        ids = train[batch]
        model(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    (args.out / "history.json").write_text(json.dumps(history, indent=1) + "\n")
    files = sorted(path for path in args.out.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(args.out)}" for p in files]
    (args.out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB in {len(files)} files")


if __name__ == "__main__":
    sys.exit(main())

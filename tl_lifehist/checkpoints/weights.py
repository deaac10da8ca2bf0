"""The files a checkpoint is made of, and whether they are whole: all there and not cut short."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tl_lifehist.checkpoints.revisions import is_composer_name, is_state_file, some
from tl_lifehist.errors import InputError

COMPOSER_FILES = "ep*-ba*-rank0.pt"
ADAPTER = "adapter_config.json"  # of a LoRA adapter and its like, which is no model without the one it was trained on
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)

_PLAIN = (".pt", ".pth", ".ckpt", ".safetensors", ".bin")  # a single one in a folder is taken for a state dict
_STATES = (
    "optimizer.pt",
    "scheduler.pt",
    "training_args.bin",
    "scaler.pt",
    "adapter_model.safetensors",
    "adapter_model.bin",
)

SAMPLE = 2**20  # bytes read at each place of a large file
_REMEDY = "fetch or write this checkpoint again, or leave the step out"


def is_composer(path: Path) -> bool:
    """Whether a weight file is one that Composer wrote."""
    return is_composer_name(path.name)


def sampled_digest(files: Iterable[Path]) -> str:
    """A hash of the files' sizes and of bytes at their beginning, middle and end.

    Training changes every matrix, so that this tells two checkpoints apart without reading tens of gigabytes. A file
    that is not there counts as empty: what is wrong with it shows when it is loaded.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size if path.is_file() else 0
        digest.update(f"{path.name} {size}\n".encode())
        if size:
            with path.open("rb") as file:
                for start in sorted({0, max(0, size // 2 - SAMPLE // 2), max(0, size - SAMPLE)}):
                    file.seek(start)
                    digest.update(file.read(SAMPLE))
    return digest.hexdigest()[:16]


def weight_files(place: Path, step: int) -> list[Path]:
    """The files that hold the weights, in the order transformers looks for them. They need not exist.

    `place` is a folder, or a file of weights. Empty when the folder holds no weights at all. Raises InputError for an
    index that cannot be read or that points out of the folder, and for several Composer files in one folder.
    """
    if is_state_file(place.name) and not place.is_dir():
        return [place]
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (place / single).is_file():
            return [place / single]
        index = place / f"{single}.index.json"
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
                outside = [name for name in names if Path(name).name != name]
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(
                    f"Step {step}: {index} is not an index of weight files ({error}): {_REMEDY}."
                ) from error
            if outside:
                raise InputError(f"Step {step}: {index} points out of its folder, to {outside[0]!r}: do not load this.")
            return [place / name for name in names]
    composer = sorted(filter(is_composer, place.glob(COMPOSER_FILES)))
    if len(composer) > 1:
        names = ", ".join(path.name for path in composer[:3])
        raise InputError(
            f"Step {step}: {place} holds several Composer files ({names}): leave one, or name their steps."
        )
    if composer:
        return composer
    plain = [path for path in place.glob("*") if path.is_file() and path.suffix in _PLAIN and path.name not in _STATES]
    plain = [path for path in plain if not path.name.startswith("adapter_")]
    return plain if len(plain) == 1 and not _in_parts(plain[0].name) else []


def check_weights(place: Path, step: int, config: Path | None = None) -> None:
    """Refuse a checkpoint that is not whole, before anything is loaded from it.

    A safetensors file says how long it must be, so one that was cut short is found without reading it. Pickled files
    say nothing of the kind; damage to those shows on loading.

    Args:
        place: the folder with the weights, or a file of them.
        step: named in errors.
        config: the folder with config.json where it is another.
    """
    if not place.exists():
        kind = "file" if is_state_file(place.name) else "folder"
        raise InputError(f"Step {step}: the {kind} {place} is missing: {_REMEDY}.")
    home = config or place
    if (place / ADAPTER).is_file() and not weight_files(place, step):
        raise InputError(
            f"Step {step}: {place} holds an adapter of {_base_of(place / ADAPTER)} and no model: merge the two with "
            "peft, PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained(...), and give what that "
            "writes."
        )
    if not (home / "config.json").is_file():
        raise InputError(
            f"Step {step}: {home} has no config.json, so it is not a checkpoint: {_REMEDY}; "
            "where the configuration lies elsewhere, say so with config_from=."
        )
    files = weight_files(place, step)
    if not files:
        there = sorted(path.name for path in place.iterdir() if path.suffix in (*_PLAIN, ".distcp") or path.is_dir())
        raise InputError(
            f"Step {step}: {place} holds no weights (model.safetensors or pytorch_model.bin): {_how(there)}."
        )
    for path in files:
        if not path.is_file():
            raise InputError(f"Step {step}: the weight file {path} is missing: {_REMEDY}.")
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt"):
                    pass
            except (SafetensorError, OSError) as error:
                raise InputError(f"Step {step}: {path} is truncated or damaged ({error}): {_REMEDY}.") from error


def _how(there: list[str]) -> str:
    """What to do with a folder that holds none of the files that are read."""
    if any(_in_parts(name) for name in there):
        return (
            f"{some(there)} are parts that DeepSpeed or Megatron wrote: join them (zero_to_fp32.py, or your trainer's "
            "converter) and write the model with save_pretrained"
        )
    if not there:
        return _REMEDY
    return f"it holds {some(there)}: write the model there with save_pretrained, or read it in a loader of your own"


def _in_parts(name: str) -> bool:
    return any(part in name for part in ("mp_rank_", "zero_pp_rank_", "model_optim_rng", "layer_", ".distcp", "__0_"))


def _base_of(config: Path) -> str:
    try:
        return str(json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"] or "a model")
    except (OSError, ValueError, KeyError, TypeError):
        return "a model"

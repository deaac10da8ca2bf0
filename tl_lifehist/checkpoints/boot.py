"""A folder with a checkpoint becomes a hooked model, the same way for every family and every layout."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - only its error, which torch.load raises
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from tl_lifehist.checkpoints.weights import TOKENIZER_FILES, check_weights
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel

# What reading damaged, foreign or hostile files raises. Anything else is a fault of ours and is left to show itself.
_UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError, SafetensorError)


@dataclass(frozen=True)
class LoadOptions:
    """How checkpoints are loaded; the same for every step of a series."""

    device: str | None = None  # None: the first GPU if there is one, else the CPU
    dtype: torch.dtype = torch.float32  # of the weights once loaded, whatever the file holds
    trust_remote_code: bool = False  # run Python code that comes with the checkpoint

    @property
    def place(self) -> str:
        """The device in the end."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")


def boot_folder(folder: Path, step: int, *, name: str, tokenizer: Any = None, options: LoadOptions) -> HookedModel:
    """The checkpoint in `folder` as a TransformerBridge.

    In evaluation mode, every parameter frozen, weights as trained: no LayerNorm folding, no centring, which would
    change what an SAE or a decomposition sees. Attention is eager, as TransformerLens' hooks need it. The global
    random state is left alone.

    Args:
        folder: config.json and the weights, as `save_pretrained` writes them.
        step: named in errors.
        name: recorded as `model.cfg.model_name`.
        tokenizer: given to the bridge as a copy; None leaves the bridge without one.

    Raises:
        InputError: files missing, truncated or unreadable, a weight that the file does not hold, an architecture that
            TransformerLens does not know.

    How it can mislead: float32 weights loaded from a half precision file carry that file's rounding.
    """
    check_weights(folder, step)
    # Building modules draws random numbers even where the weights then come from a file.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        hf_model = _load_pretrained(folder, step, options)
        try:
            bridge = _bridge(hf_model, name, copy.deepcopy(tokenizer), options.place)
        except (ValueError, NotImplementedError, AttributeError) as error:
            kind = type(hf_model).__name__
            raise InputError(
                f"Step {step}: TransformerLens cannot wrap {kind} ({_gist(error)}): "
                "wrap the model yourself and use CheckpointSeries.from_loader."
            ) from error
    bridge.eval()
    bridge.requires_grad_(False)
    return bridge


def load_tokenizer(folder: Path, options: LoadOptions) -> Any:
    """The tokenizer in `folder`, or None where there is none. Reads local files only."""
    if not any((folder / file).is_file() for file in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=options.trust_remote_code
        )
    except _UNREADABLE as error:
        raise InputError(
            f"The tokenizer in {folder} could not be loaded ({_gist(error)}): "
            "write it there again with save_pretrained."
        ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No "Loading weights" bar, one for each of a hundred checkpoints; the setting is restored."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    hub_hidden = are_progress_bars_disabled()
    _switch(logging.disable_progress_bar)
    try:
        yield
    finally:
        _switch(logging.enable_progress_bar)
        if hub_hidden:  # transformers' switch moves the hub's as well
            _switch(disable_progress_bars)


def _switch(turn: Callable[[], object]) -> None:
    # The hub's own switch warns when HF_HUB_DISABLE_PROGRESS_BARS has settled the matter; the setting is kept then.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        turn()


def _load_pretrained(folder: Path, step: int, options: LoadOptions) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    try:
        config = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=options.trust_remote_code
        )
        masked = any("ForMaskedLM" in name for name in config.architectures or [])
        auto: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
        model, info = auto.from_pretrained(
            str(folder),
            config=config,
            dtype=options.dtype,
            attn_implementation="eager",
            local_files_only=True,
            weights_only=True,
            trust_remote_code=options.trust_remote_code,
            output_loading_info=True,
        )
    except _UNREADABLE as error:
        raise InputError(
            f"Step {step}: the checkpoint in {folder} could not be read ({_gist(error)}): "
            "fetch or write it again, or leave the step out."
        ) from error
    # transformers fills what the file does not hold with random numbers and only logs it.
    if info["missing_keys"]:
        absent = ", ".join(sorted(info["missing_keys"])[:3])
        raise InputError(
            f"Step {step}: the weights in {folder} lack {len(info['missing_keys'])} of the model's parameters "
            f"({absent}): "
            "fetch or write this checkpoint again, or leave the step out."
        )
    return model.to(options.place)


def _bridge(hf_model: Any, name: str, tokenizer: Any, device: str) -> Any:
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformer_lens.model_bridge.sources.transformers import determine_architecture_from_hf_config

    if tokenizer is not None:
        return TransformerBridge.boot_transformers(name, hf_model=hf_model, tokenizer=tokenizer, device=device)
    # boot_transformers asks the hub for a tokenizer when it is given none.
    architecture = determine_architecture_from_hf_config(hf_model.config)
    return build_bridge_from_module(hf_model, architecture, hf_config=copy.deepcopy(hf_model.config), model_name=name)


def _gist(error: BaseException) -> str:
    # The first sentence: some of these messages go on to list everything there is.
    first = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]
    return textwrap.shorten(first, 200, placeholder=" ...").rstrip(".:")

"""A checkpoint on disk becomes a hooked model, the same way for every family and every layout."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - only its error, which torch.load raises
import re
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from tl_lifehist.checkpoints.agreement import TOLERANCE, keep_dtype, probe, require_agreement
from tl_lifehist.checkpoints.composer import read_composer
from tl_lifehist.checkpoints.revisions import is_weights
from tl_lifehist.checkpoints.state_dicts import read_state
from tl_lifehist.checkpoints.weights import TOKENIZER_FILES, check_weights, is_composer, weight_files
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel

# What reading damaged, foreign or hostile files raises. Anything else is a fault of ours and is left to show itself.
_UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError, SafetensorError)

# Masks and rotary frequencies that older versions of transformers stored beside the weights. Nothing was trained in
# them, and the model makes them anew.
_CONSTANT = re.compile(r"(attn|attention)\.(masked_)?bias$|inv_freq$")


@dataclass(frozen=True)
class LoadOptions:
    """How checkpoints are loaded; the same for every step of a series."""

    device: str | None = None  # None: the first GPU if there is one, else the CPU
    dtype: torch.dtype = torch.float32  # of the weights once loaded, whatever the file holds
    trust_remote_code: bool = False  # run Python code that comes with the checkpoint

    def __post_init__(self) -> None:
        if self.dtype not in TOLERANCE:
            known = ", ".join(str(dtype) for dtype in TOLERANCE)
            raise InputError(f"Models are not loaded as {self.dtype}: give dtype= one of {known}.")

    @property
    def place(self) -> str:
        """The device in the end."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")


def boot_folder(
    place: Path, step: int, *, name: str, tokenizer: Any = None, config: Path | None = None, options: LoadOptions
) -> HookedModel:
    """The checkpoint at `place` as a TransformerBridge.

    In evaluation mode, every parameter frozen, weights as trained: no LayerNorm folding, no centring, which would
    change what an SAE or a decomposition sees. Attention is eager, as TransformerLens' hooks need it. The global
    random state is left alone.

    Args:
        place: the folder of config.json and the weights, as `save_pretrained` writes them, or a file of weights:
            Composer's, or a plain state dict.
        step: named in errors.
        name: recorded as `model.cfg.model_name`.
        tokenizer: given to the bridge as a copy; None leaves the bridge without one.
        config: the folder of config.json where it does not lie with the weights.

    Raises:
        InputError: files missing, truncated or unreadable, a weight that the file does not hold or that the model does
            not have, weights that are not finite, an architecture that TransformerLens does not know, a bridge that
            does not run or whose logits are not the Hugging Face model's.

    How it can mislead: float32 weights loaded from a half precision file carry that file's rounding.
    """
    home = config if config is not None and not (place / "config.json").is_file() else place
    check_weights(place, step, home)
    # Building modules draws random numbers even where the weights then come from a file.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        hf_model = _load_pretrained(place, home, step, options)
        expected = probe(hf_model, step)
        try:
            bridge = bridge_of(hf_model, name, copy.deepcopy(tokenizer), options.place)
        except (ValueError, NotImplementedError, AttributeError) as error:
            kind = type(hf_model).__name__
            raise InputError(
                f"Step {step}: TransformerLens cannot wrap {kind} ({gist(error)}): "
                "wrap the model yourself and use CheckpointSeries.from_loader."
            ) from error
    bridge.eval()
    bridge.requires_grad_(False)
    keep_dtype(bridge)
    require_agreement(bridge, expected, step, type(hf_model).__name__)
    return bridge


def unusable() -> tuple[type[Exception], ...]:
    """What a foreign or hostile configuration can raise besides: it goes through code that takes a number to be one."""
    from huggingface_hub.errors import StrictDataclassError

    return (*_UNREADABLE, TypeError, AttributeError, ArithmeticError, AssertionError, StrictDataclassError)


def is_masked(config: Any) -> bool:
    """Whether a configuration is of a masked language model."""
    return any("ForMaskedLM" in name for name in config.architectures or [])


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
            f"The tokenizer in {folder} could not be loaded ({gist(error)}): write it there again with save_pretrained."
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


def _load_pretrained(place: Path, home: Path, step: int, options: LoadOptions) -> Any:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(
            str(home), local_files_only=True, trust_remote_code=options.trust_remote_code
        )
        require_one_stack(config, step)
        common = {
            "config": config,
            "dtype": options.dtype,
            "attn_implementation": "eager",
            "output_loading_info": True,
        }
        files = weight_files(place, step)
        if is_composer(files[0]) or not _is_transformers_own(place, files[0]):
            cls: Any = _native_class(config, step)
            read = read_composer if is_composer(files[0]) else partial(read_state, names=_names_of(cls, config))
            model, info = cls.from_pretrained(None, state_dict=read(files[0], step), **common)
        else:
            masked = is_masked(config)
            cls = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
            with _with_config(place, home) as folder:
                model, info = cls.from_pretrained(
                    str(folder),
                    local_files_only=True,
                    weights_only=True,
                    trust_remote_code=options.trust_remote_code,
                    **common,
                )
    except InputError:
        raise
    except unusable() as error:
        raise InputError(
            f"Step {step}: the checkpoint in {place} could not be read ({gist(error)}): "
            "fetch or write it again, or leave the step out."
        ) from error
    # transformers fills what the file does not hold with random numbers, drops what the model does not have, and only
    # logs it.
    unknown = [name for name in info["unexpected_keys"] if not _CONSTANT.search(name)]
    for names, what in (
        (info["missing_keys"], "lack {} of the model's parameters"),
        (unknown, "hold {} that the model does not have"),
    ):
        if names:
            raise InputError(
                f"Step {step}: the weights in {place} {what.format(len(names))} ({', '.join(sorted(names)[:3])}): "
                "fetch or write this checkpoint again, or leave the step out."
            )
    return model.eval().to(options.place)


def require_one_stack(config: Any, step: int | None = None) -> None:
    """Refuse an encoder-decoder model by its name.

    Raises:
        InputError: the configuration is of one.
    """
    if getattr(config, "is_encoder_decoder", False):
        named = str((config.architectures or [config.model_type])[0])
        raise InputError(
            f"{'' if step is None else f'Step {step}: '}{named} is an encoder-decoder model, whose logits are of "
            "another text than its input: give a causal or a masked language model, or a hooked model of one half "
            "through CheckpointSeries.from_loader."
        )


def _is_transformers_own(place: Path, file: Path) -> bool:
    return place.is_dir() and is_weights(file.name)


def _names_of(cls: Any, config: Any) -> set[str]:
    with torch.device("meta"):
        return set(cls(copy.deepcopy(config)).state_dict())


@contextmanager
def _with_config(place: Path, home: Path) -> Iterator[Path]:
    """A folder that holds the weights and the configuration: their own, or one of links to both.

    transformers is given the configuration as an object and still looks for its file beside the weights of a model
    that generates.
    """
    if home == place:
        yield place
        return
    with tempfile.TemporaryDirectory() as made:
        for path in (*place.iterdir(), home / "config.json"):
            Path(made, path.name).symlink_to(path.resolve())
        yield Path(made)


def _native_class(config: Any, step: int) -> Any:
    import transformers

    named = str((config.architectures or [""])[0])
    if not named or named.endswith("LMHeadModel"):  # as GPT-2's is called
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return type(transformers.AutoModelForCausalLM.from_config(config))
    known = named.endswith(("ForMaskedLM", "ForCausalLM"))  # the name is a file's, and transformers holds much else
    cls = getattr(transformers, named, None) if known else None
    if cls is None:
        raise InputError(f"Step {step}: the configuration names {named}, which transformers does not have.")
    return cls


def bridge_of(hf_model: Any, name: str, tokenizer: Any, device: str) -> Any:
    """A model of transformers with TransformerLens' hooks; nothing is asked of the hub."""
    from transformer_lens.model_bridge import TransformerBridge

    from tl_lifehist.checkpoints.adapters import register

    register()  # what was added since
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformer_lens.model_bridge.sources.transformers import determine_architecture_from_hf_config

    if tokenizer is not None:
        return TransformerBridge.boot_transformers(name, hf_model=hf_model, tokenizer=tokenizer, device=device)
    # boot_transformers asks the hub for a tokenizer when it is given none.
    architecture = determine_architecture_from_hf_config(hf_model.config)
    return build_bridge_from_module(hf_model, architecture, hf_config=copy.deepcopy(hf_model.config), model_name=name)


def gist(error: BaseException) -> str:
    """The first sentence of an error, for one of ours."""
    # The first sentence: some of these messages go on to list everything there is.
    first = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]
    return textwrap.shorten(first, 200, placeholder=" ...").rstrip(".:")

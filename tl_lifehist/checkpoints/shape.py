"""How large a model is and which hook points it has, from its configuration: no weights are fetched or loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tl_lifehist.checkpoints.boot import (
    LoadOptions,
    bridge_of,
    gist,
    is_masked,
    quiet_transformers,
    require_one_stack,
    unusable,
)
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel


@dataclass(frozen=True)
class ModelShape:
    """Blocks, width, vocabulary and parameters of a model, and whether it is a masked language model (None: it does not
    say).
    """

    n_layers: int
    d_model: int
    d_vocab: int
    n_parameters: int
    masked: bool | None = None


def shape_of_folders(homes: Iterable[Path], options: LoadOptions) -> ModelShape:
    """The shape that the first config.json among the folders describes.

    Raises:
        InputError: none of them has one, or it is not one that transformers understands.
    """
    config, model = _unfilled(homes, options)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelShape(config.num_hidden_layers, config.hidden_size, config.vocab_size, n_parameters, is_masked(config))


def unfilled_of_folders(homes: Iterable[Path], options: LoadOptions) -> HookedModel | None:
    """The hooked model that the first config.json among the folders describes, with parameters that take no memory and
    hold nothing; None where TransformerLens cannot wrap it so.

    Raises:
        InputError: as `shape_of_folders`.
    """
    _, model = _unfilled(homes, options)
    try:
        with quiet_transformers(), torch.random.fork_rng(devices=[]):
            return bridge_of(model, "unfilled", None, "meta").eval()
    except (ValueError, NotImplementedError, AttributeError, RuntimeError):
        return None  # what loads the checkpoint says what is wrong


def _unfilled(homes: Iterable[Path], options: LoadOptions) -> tuple[Any, Any]:
    """The configuration, and a model of it that holds no weights."""
    import transformers

    searched = list(homes)
    home = next((home for home in searched if (home / "config.json").is_file()), None)
    if home is None:
        raise InputError(
            f"{searched[0]} has no config.json: where the configuration lies elsewhere, say so with config_from=."
        )
    code = options.trust_remote_code
    try:
        config = transformers.AutoConfig.from_pretrained(str(home), local_files_only=True, trust_remote_code=code)
        require_one_stack(config)
        kind = transformers.AutoModelForMaskedLM if is_masked(config) else transformers.AutoModelForCausalLM
        with torch.device("meta"), torch.random.fork_rng(devices=[]):  # no memory: only the sizes of its tensors
            return config, kind.from_config(config, trust_remote_code=code, attn_implementation="eager")
    except InputError:
        raise
    except unusable() as error:
        raise InputError(
            f"{home / 'config.json'} could not be used ({gist(error)}): fetch or write it again."
        ) from error


def shape_of_model(model: Any) -> ModelShape:
    """The shape of a model in memory, as TransformerLens' `cfg` tells it.

    Raises:
        InputError: a model without `cfg`.
    """
    cfg = getattr(model, "cfg", None)
    if cfg is None:
        raise InputError(f"{type(model).__name__} has no cfg that tells its number of blocks: name the hook points.")
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelShape(int(cfg.n_layers), int(cfg.d_model), int(cfg.d_vocab), n_parameters)

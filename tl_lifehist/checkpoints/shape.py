"""How large a model is, read from its configuration: no weights are fetched or loaded for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tl_lifehist.checkpoints.boot import LoadOptions, gist, is_masked, require_one_stack, unusable
from tl_lifehist.errors import InputError


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
        masked = is_masked(config)
        kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
        with torch.device("meta"), torch.random.fork_rng(devices=[]):  # no memory: only the sizes of its tensors
            model = kind.from_config(config, trust_remote_code=code)
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        return ModelShape(config.num_hidden_layers, config.hidden_size, config.vocab_size, n_parameters, masked)
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

"""The models of a planted history, made from its recipe whenever one is asked for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.checkpoints.integrity import fingerprint
from tl_lifehist.checkpoints.sources import Source
from tl_lifehist.lifehistory.planted.recipe import N_IDS, Recipe
from tl_lifehist.lifehistory.planted.world import World, draw_world
from tl_lifehist.models import HookedModel

BITS = N_IDS.bit_length() - 1


@dataclass(frozen=True)
class PlantedSource(Source):
    """Pickles as its recipe, so that workers make the models for themselves."""

    recipe: Recipe
    name: ClassVar[str] = "planted"
    tokenizer: ClassVar[Any] = None

    def load(self, step: int) -> HookedModel:
        """The model of a step."""
        from tl_lifehist.lifehistory.planted.model import PlantedModel

        world = draw_world(self.recipe)
        index = self.recipe.steps.index(step)
        codes, read = world.codes(index), [torch.zeros(BITS)]
        written = []
        for layer, directions in enumerate(layer_directions(world, index)):
            written.append(torch.from_numpy(codes[layer].T).float() @ directions)
            read.append(torch.from_numpy(world.reading[layer]).float() @ directions)
        return PlantedModel(_codes_of_ids(), torch.from_numpy(world.successor), written, torch.cat(read))

    def identity(self, step: int) -> str:
        """A hash of the parameters."""
        return hashlib.sha256(json.dumps(fingerprint(self.load(step))).encode()).hexdigest()[:16]


def layer_directions(world: World, index: int) -> list[Float[Tensor, "feature dim"]]:
    """The direction of each feature in the space of its layer."""
    return [torch.from_numpy(turn).float() for turn in world.turn[index]]


def stream_directions(world: World, index: int, layer: int) -> Float[Tensor, "feature d_model"]:
    """The direction of each feature of a layer in the stream, in the order of the SAE's features."""
    n = world.recipe.n_features
    rows = torch.zeros(n, BITS + n * world.recipe.n_layers)
    rows[:, BITS + n * layer : BITS + n * (layer + 1)] = layer_directions(world, index)[layer]
    return rows[torch.from_numpy(np.argsort(world.place[index, layer]))]


def _codes_of_ids() -> Float[Tensor, "id bit"]:
    """The binary digits of each id as -1 and 1: no two agree in all, so one threshold tells an id from all others."""
    digits = (torch.arange(N_IDS).unsqueeze(1) >> torch.arange(BITS)) & 1
    return digits.float() * 2 - 1

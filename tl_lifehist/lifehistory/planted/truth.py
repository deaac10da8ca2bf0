"""What a planted history knows of itself, in the terms that studies report in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from tl_lifehist.errors import InputError, nearest
from tl_lifehist.lifehistory.planted.costs import cross_entropy_of, single_costs
from tl_lifehist.lifehistory.planted.world import World
from tl_lifehist.tokens import TokenSet, require_scored


class PlantedTruth:
    """The truth of a planted history. No study reads it.

    Latent numbers are the truth's own names of features; `feature` is where a latent sits in the SAE of a checkpoint.

    How it can mislead: rates, masses and costs are expectations over all documents that could be drawn; those of one
    text differ by sampling. Births, deaths, carriers and containment are exact.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    @cached_property
    def features(self) -> pd.DataFrame:
        """One row a latent: hook_name, latent, birth and death (steps; NaN: alive at the end), carrier, firing_rate,
        mass (at the end, in units of the code), cost (nats of removing it alone at the end; NaN where it is gone).
        """
        world = self._world
        steps = np.append(np.asarray(world.recipe.steps, dtype=float), np.nan)
        last = world.last
        cost = np.where(world.alive(last), single_costs(world.reading, world.codes(last)), np.nan)
        n_layers, n_features = world.birth.shape
        return pd.DataFrame(
            {
                "hook_name": np.repeat(world.recipe.hook_names, n_features),
                "latent": np.tile(np.arange(n_features), n_layers),
                "birth": steps[world.birth].ravel().astype(np.int64),
                "death": steps[world.death].ravel(),
                "carrier": world.carrier.ravel(),
                "firing_rate": world.rate.ravel(),
                "mass": world.mass.ravel(),
                "cost": cost.ravel(),
            }
        )

    @cached_property
    def lineages(self) -> pd.DataFrame:
        """Where each living latent is, one row a latent and step: hook_name, latent, step, feature."""
        world, rows = self._world, []
        for index, step in enumerate(world.recipe.steps):
            for layer, latent in np.argwhere(world.alive(index)).tolist():
                rows.append((world.recipe.hook_names[layer], latent, step, int(world.place[index, layer, latent])))
        table = pd.DataFrame(rows, columns=["hook_name", "latent", "step", "feature"])
        return table.sort_values(["hook_name", "latent", "step"], ignore_index=True)

    @cached_property
    def containment(self) -> pd.DataFrame:
        """Planted containments, one row a pair: parent_hook, parent, child_hook, child (latents)."""
        world = self._world
        hooks = world.recipe.hook_names
        rows = [
            (hooks[a], b, hooks[layer], latent)
            for layer, latent in np.argwhere(world.parent[..., 0] >= 0).tolist()
            for a, b in [world.parent[layer, latent].tolist()]
        ]
        return pd.DataFrame(rows, columns=["parent_hook", "parent", "child_hook", "child"])

    def carriers(self, step: int) -> dict[str, list[int]]:
        """The carriers' features in the SAEs of a step, `{hook_name: [feature, ...]}`."""
        found = self.lineages.merge(self.features[["hook_name", "latent", "carrier"]], on=["hook_name", "latent"])
        here = found[found["carrier"] & (found["step"] == step)]
        return {h: sorted(here.loc[here["hook_name"] == h, "feature"].tolist()) for h in self._world.recipe.hook_names}

    def ablation_cost(self, features: Mapping[str, Sequence[int]], tokens: TokenSet, *, step: int) -> float:
        """Exactly what removing features of the SAEs of a step costs on a text of this history, nats: the mean of
        log(e^s + V - 1) - s [label is the successor], with s the sum of readings x codes that are left, less the same
        with nothing removed.

        Raises:
            InputError: a step or hook point that the history does not have, a feature out of range, nothing to score.
        """
        world = self._world
        recipe = world.recipe
        require_scored(tokens)
        if step not in recipe.steps:
            raise InputError(f"step={step} is none of the history's, which are {list(recipe.steps)}.")
        index = recipe.steps.index(step)
        kept = np.ones(world.birth.shape)
        for hook_name, chosen in features.items():
            if hook_name not in recipe.hook_names:
                raise InputError(f"{hook_name!r} has no SAE; the nearest are: {nearest(hook_name, recipe.hook_names)}.")
            if len(chosen) and not 0 <= min(chosen) <= max(chosen) < recipe.n_features:
                raise InputError(f"A feature at {hook_name!r} lies outside 0 to {recipe.n_features - 1}.")
            layer = recipe.hook_names.index(hook_name)
            kept[layer, np.isin(world.place[index, layer], np.asarray(chosen, dtype=np.int64))] = 0
        codes = world.codes(index)
        ids, labels = tokens.ids[tokens.scored].numpy(), tokens.labels[tokens.scored].numpy()
        follows = labels == world.successor[ids]
        with_all, without = (np.einsum("lf,lfv->v", world.reading * part, codes)[ids] for part in (1, kept))
        return float((cross_entropy_of(without, follows) - cross_entropy_of(with_all, follows)).mean())

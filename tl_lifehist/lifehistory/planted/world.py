"""The truth of a planted history: which features live when, on which ids they fire, how strongly, and what each costs.

A feature is a set of vocabulary ids. Its code at a checkpoint depends on the id alone: strength x weight on the ids of
its set while it is alive, 0 elsewhere. So what follows from codes has a closed form over the ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.lifehistory.forecast import onset_step
from tl_lifehist.lifehistory.planted import draws
from tl_lifehist.lifehistory.planted.costs import readings
from tl_lifehist.lifehistory.planted.recipe import Recipe
from tl_lifehist.seeds import derive_seed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CARRIER_COST = 3.0  # times what a carrier costs at equal mass where load="history"
SHIFT = 0.2  # of log strength at the onset, up for carriers and down for others, where forecastable


@dataclass(frozen=True, eq=False)
class World:
    """Everything that is drawn, by layer and feature.

    Attributes:
        birth: place in `recipe.steps` of the first checkpoint with it, `[layer, feature]`.
        death: place of the first one without it; the number of steps where it lives to the end.
        carrier: whether it is one by D9's default.
        member: on which ids it fires, `[layer, feature, id]`.
        weight: of each of its ids, mean 1 over the set.
        strength: mean code on its ids, `[step, layer, feature]`.
        parent: layer and feature of the one that contains it, -1 where none does, `[layer, feature, 2]`.
        place: which feature of its SAE it is, `[step, layer, feature]`.
        turn: directions in the space of a layer, orthonormal rows, `[step, layer, feature, dim]`.
        successor: the id that follows each id.
        topic: the topic of each id.
    """

    recipe: Recipe
    birth: Ints
    death: Ints
    carrier: Bools
    member: Bools
    weight: Floats
    strength: Floats
    parent: Ints
    place: Ints
    turn: Floats
    successor: Ints
    topic: Ints

    @property
    def last(self) -> int:
        """The place of the last checkpoint."""
        return len(self.recipe.steps) - 1

    def alive(self, index: int) -> Bools:
        """Which features live at a checkpoint, `[layer, feature]`."""
        return (self.birth <= index) & (index < self.death)

    def codes(self, index: int) -> Floats:
        """The code of each feature on each id at a checkpoint, `[layer, feature, id]`."""
        rng = np.random.default_rng(derive_seed(self.recipe.seed, 31, index))
        moved = self.weight * np.exp(self.recipe.noise * rng.standard_normal(self.weight.shape))
        return draws.mean_one(moved, self.member) * (self.strength[index] * self.alive(index))[:, :, None]

    @property
    def rate(self) -> Floats:
        """Expected firing rate while alive, `[layer, feature]`: over all documents every id is equally frequent."""
        return self.member.mean(axis=2)

    @property
    def mass(self) -> Floats:
        """Expected code at the end, were it alive there, `[layer, feature]`."""
        return self.rate * self.strength[-1]

    @cached_property
    def reading(self) -> Floats:
        """What one unit of each feature's code adds to the successor's logit, `[layer, feature]`: such that removing
        a feature at the end costs as `recipe.load` says.
        """
        target = np.ones_like(self.mass) if self.recipe.load == "neither" else self.mass
        if self.recipe.load == "history":
            target = np.where(self.carrier, CARRIER_COST * target, target)
        return readings(target, self.mass, self.codes(self.last), self.alive(self.last))


@lru_cache(maxsize=4)
def draw_world(recipe: Recipe) -> World:
    """The world of a recipe. What a knob has no part in stays as it is when the knob is turned."""
    rngs = [np.random.default_rng(derive_seed(recipe.seed, 30, stream)) for stream in range(9)]
    size, at_end = draws.sizes(rngs[0], recipe)
    fate = draws.fates(rngs[1], np.log(size) + at_end, recipe)
    carrier = fate == draws.CARRIER
    birth, death = draws.lives(rngs[2], fate, recipe)
    member, parent = draws.sets(rngs[3], size, carrier, recipe)
    weight = draws.mean_one(np.exp(0.3 * rngs[4].standard_normal(member.shape)), member)
    at_onset = rngs[5].normal(0, draws.SPREAD, size.shape)
    if recipe.forecastable:
        at_onset += np.where(carrier, SHIFT, -SHIFT)
    way = _way(recipe)[:, None, None]
    place = np.array([[rngs[6].permutation(recipe.n_features) for _ in size] for _ in recipe.steps])
    return World(
        recipe,
        birth,
        death,
        carrier,
        member,
        weight,
        np.exp(way * at_end + (1 - way) * at_onset),
        parent,
        place,
        draws.turns(rngs[7], recipe),
        *draws.grammar(rngs[8]),
    )


def _way(recipe: Recipe) -> Floats:
    """How far strengths have come from those of the onset to those of the end, `[step]`."""
    onset, last = recipe.steps.index(onset_step(recipe.steps)), len(recipe.steps) - 1
    return np.clip((np.arange(last + 1) - onset) / (last - onset), 0, 1) if onset < last else np.ones(last + 1)

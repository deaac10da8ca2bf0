"""What is drawn of a planted history, one function for each thing; every one has random numbers of its own."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.lifehistory.lineages import MIN_SHARE
from tl_lifehist.lifehistory.planted.recipe import N_IDS, Recipe

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CARRIER, LATE, DYING = 0, 1, 2
FEWEST, MOST = 12, 124  # ids of a feature: it fires at 1.2 to 12 % of the positions
SPREAD = 0.2  # sd of log strength
TILT = 3.5  # log odds of being a carrier, heaviest against lightest, where breadth="confounded"
LEAST_WEIGHT = 0.05  # so that no code of a firing feature comes near the threshold of its SAE


def fates_in_order(recipe: Recipe) -> Ints:
    """Carriers first, then what is born late, then what dies, `[feature]`."""
    late = round(recipe.late * recipe.n_features)
    counts = [recipe.n_carriers, late, recipe.n_features - recipe.n_carriers - late]
    return np.repeat([CARRIER, LATE, DYING], counts)


def sizes(rng: np.random.Generator, recipe: Recipe) -> tuple[Ints, Floats]:
    """How many ids each feature has, log-uniform, and its log strength at the end, `[layer, feature]`."""
    shape = (recipe.n_layers, recipe.n_features)
    share, log_strength = rng.random(shape), rng.normal(0, SPREAD, shape)
    if recipe.breadth == "disjoint":
        # 0.4 decades between the smallest carrier and the largest other feature: wider than any caliper
        share = np.where(fates_in_order(recipe) == CARRIER, 0.8 + 0.2 * share, 0.4 * share)
        log_strength = 0.15 * np.clip(log_strength, -SPREAD, SPREAD)
    return np.round(FEWEST * (MOST / FEWEST) ** share).astype(np.int64), log_strength


def fates(rng: np.random.Generator, log_mass: Floats, recipe: Recipe) -> Ints:
    """What becomes of each feature, `[layer, feature]`. Given its mass, nothing else of a feature has a say in it."""
    in_order = fates_in_order(recipe)
    if recipe.breadth == "disjoint":
        return np.tile(in_order, (recipe.n_layers, 1))
    fate = np.empty(log_mass.shape, dtype=np.int64)
    tilt = TILT if recipe.breadth == "confounded" else 0.0
    for layer, masses in enumerate(log_mass):
        rank = masses.argsort().argsort() / len(masses)
        # the largest sums of log odds and Gumbel noise are a sample without replacement by these odds
        order = np.argsort(-(tilt * rank + rng.gumbel(size=len(rank))))
        fate[layer, order[: recipe.n_carriers]] = CARRIER
        fate[layer, rng.permutation(order[recipe.n_carriers :])] = in_order[recipe.n_carriers :]
    return fate


def lives(rng: np.random.Generator, fate: Ints, recipe: Recipe) -> tuple[Ints, Ints]:
    """First checkpoint with each feature and first one without it, as places in the steps, `[layer, feature]`."""
    n_steps, trained = len(recipe.steps), sum(step > 0 for step in recipe.steps)
    last = n_steps - math.ceil(MIN_SHARE * trained - 1e-9)  # from here on nothing becomes a carrier any more (D9)
    odds = 0.5 ** np.arange(last + 1)
    birth = rng.choice(last + 1, size=fate.shape, p=odds / odds.sum())
    late = rng.integers(last + 1, n_steps, size=fate.shape)
    death = rng.integers(birth + 1, n_steps)
    return np.where(fate == LATE, late, birth), np.where(fate == DYING, death, n_steps)


def sets(rng: np.random.Generator, size: Ints, carrier: Bools, recipe: Recipe) -> tuple[Bools, Ints]:
    """The ids of each feature, `[layer, feature, id]`, and layer and feature of what contains it, -1 for nothing.

    Where containment is planted, a random half of the features lie inside one of another layer that is at least twice
    as broad. Who contains what depends on sizes alone, unless containers are carriers.
    """
    member = np.zeros((*size.shape, N_IDS), dtype=bool)
    parent = np.full((*size.shape, 2), -1, dtype=np.int64)
    child = rng.random(size.shape) < (0.0 if recipe.containment == "chance" else 0.5)
    if recipe.containment == "carriers":
        child &= ~carrier
    container = carrier if recipe.containment == "carriers" else ~child
    for layer, feature in np.argwhere(~child).tolist():
        member[layer, feature, rng.permutation(N_IDS)[: size[layer, feature]]] = True
    taken: set[tuple[int, int, int]] = set()  # one child in each layer, so that no two are nearly the same feature
    for layer, feature in np.argwhere(child).tolist():
        broad = np.argwhere(container & (size >= 2 * size[layer, feature])).tolist()
        free = [(a, b) for a, b in broad if a != layer and (a, b, layer) not in taken]
        among = np.arange(N_IDS)
        if free:
            a, b = free[rng.integers(len(free))]
            taken.add((a, b, layer))
            parent[layer, feature], among = (a, b), np.flatnonzero(member[a, b])
        member[layer, feature, rng.permutation(among)[: size[layer, feature]]] = True
    return member, parent


def mean_one(weight: Floats, member: Bools) -> Floats:
    """Weights on the ids of each feature, of mean 1 over them, 0 elsewhere."""
    held = np.where(member, np.maximum(weight, LEAST_WEIGHT), 0.0)
    return held / (held.sum(axis=2) / member.sum(axis=2))[:, :, None]


def turns(rng: np.random.Generator, recipe: Recipe) -> Floats:
    """A basis for each layer that turns a little from one checkpoint to the next, `[step, layer, feature, dim]`."""
    n = recipe.n_features
    turn = np.empty((len(recipe.steps), recipe.n_layers, n, n))
    for layer in range(recipe.n_layers):
        held = np.linalg.qr(rng.standard_normal((n, n)))[0]
        for index in range(len(recipe.steps)):
            turn[index, layer] = held
            one, two = rng.permutation(n)[: n // 2 * 2].reshape(2, -1)  # planes to turn in: much cheaper than a new QR
            angle = rng.normal(0, 0.5, n // 2)
            held = held.copy()
            a, b = held[:, one], held[:, two]
            held[:, one], held[:, two] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return turn


def grammar(rng: np.random.Generator, n_topics: int = 64) -> tuple[Ints, Ints]:
    """The successor and the topic of each id: one circle of successors a topic, so that topics last."""
    order = rng.permutation(N_IDS).reshape(n_topics, -1)
    successor, topic = np.empty(N_IDS, dtype=np.int64), np.empty(N_IDS, dtype=np.int64)
    successor[order], topic[order] = np.roll(order, -1, axis=1), np.arange(n_topics)[:, None]
    return successor, topic

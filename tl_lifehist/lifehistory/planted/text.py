"""Text of a planted history: each id is followed by its successor, or by any id of the document's topics."""

from __future__ import annotations

import numpy as np
import torch

from tl_lifehist.lifehistory.planted.recipe import LABEL_NOISE
from tl_lifehist.lifehistory.planted.world import World
from tl_lifehist.seeds import derive_seed
from tl_lifehist.tokens import TokenSet

CONTEXT = 128
LEAST_SEQUENCES = 64  # 8,192 positions: the rarest features fire about a hundred times
TOPICAL = 0.7  # share of a document that follows its own topics


def draw_text(world: World, split: int) -> TokenSet:
    """A text of `recipe.n_documents` documents, every position valid and labelled with the id that follows.

    Documents differ in their topics, so positions of one document are correlated. All sequences that are a document's
    first stand before those that are a second one, so that the head of the text holds many documents.
    """
    recipe, topic = world.recipe, world.topic
    rng = np.random.default_rng(derive_seed(recipe.seed, 32, split))
    n_topics = int(topic.max()) + 1
    shares = TOPICAL * rng.dirichlet(np.full(n_topics, 0.5), recipe.n_documents) + (1 - TOPICAL) / n_topics
    per_document = -(-LEAST_SEQUENCES // recipe.n_documents)
    documents = np.tile(np.arange(recipe.n_documents), per_document)
    by_topic = np.argsort(topic, kind="stable").reshape(n_topics, -1)
    chances = shares.cumsum(axis=1)[documents]

    def anywhere() -> np.ndarray:
        chosen = (rng.random((len(documents), 1)) > chances).sum(axis=1).clip(max=n_topics - 1)
        return by_topic[chosen, rng.integers(by_topic.shape[1], size=len(documents))]

    ids = np.empty((len(documents), CONTEXT + 1), dtype=np.int64)
    ids[:, 0] = anywhere()
    for position in range(1, CONTEXT + 1):
        jumps = rng.random(len(documents)) < LABEL_NOISE
        ids[:, position] = np.where(jumps, anywhere(), world.successor[ids[:, position - 1]])
    tensor = torch.from_numpy(ids)
    return TokenSet(
        ids=tensor[:, :-1].contiguous(),
        valid=torch.ones(len(documents), CONTEXT, dtype=torch.bool),
        labels=tensor[:, 1:].contiguous(),
        documents=torch.from_numpy(documents).unsqueeze(1).expand(-1, CONTEXT).clone(),
    )

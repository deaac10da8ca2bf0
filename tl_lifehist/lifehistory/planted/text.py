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
OWN_TOPICS = 4  # of a document
TOPICAL = 0.9  # share of the jumps that stay within them


def draw_text(world: World, split: int) -> TokenSet:
    """A text of `recipe.n_documents` documents, every position valid and labelled with the id that follows.

    Each document keeps to a few topics, so that its positions are correlated; topics are dealt like cards, so that over
    the text all are about equally frequent. Sequences that are a document's first stand before those that are its
    second, so that the head of the text holds many documents.
    """
    n_documents, n_topics = world.recipe.n_documents, int(world.topic.max()) + 1
    rng = np.random.default_rng(derive_seed(world.recipe.seed, 32, split))
    n_decks = -(-n_documents * OWN_TOPICS // n_topics)
    cards = np.concatenate([rng.permutation(n_topics) for _ in range(n_decks)])
    own = cards[: n_documents * OWN_TOPICS].reshape(n_documents, OWN_TOPICS)
    documents = np.tile(np.arange(n_documents), -(-LEAST_SEQUENCES // n_documents))
    by_topic = np.argsort(world.topic, kind="stable").reshape(n_topics, -1)

    def jump() -> np.ndarray:
        n = len(documents)
        chosen = own[documents, rng.integers(OWN_TOPICS, size=n)]
        chosen = np.where(rng.random(n) < TOPICAL, chosen, rng.integers(n_topics, size=n))
        return by_topic[chosen, rng.integers(by_topic.shape[1], size=n)]

    ids = np.empty((len(documents), CONTEXT + 1), dtype=np.int64)
    ids[:, 0] = jump()
    for position in range(1, CONTEXT + 1):
        jumps = rng.random(len(documents)) < LABEL_NOISE
        ids[:, position] = np.where(jumps, jump(), world.successor[ids[:, position - 1]])
    tensor = torch.from_numpy(ids)
    return TokenSet(
        ids=tensor[:, :-1].contiguous(),
        valid=torch.ones(len(documents), CONTEXT, dtype=torch.bool),
        labels=tensor[:, 1:].contiguous(),
        documents=torch.from_numpy(documents).unsqueeze(1).expand(-1, CONTEXT).clone(),
    )

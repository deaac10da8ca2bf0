"""Repositories on the loopback address, where the real client of the hub looks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkpoints.conftest import Hub


@contextmanager
def served(repos: Mapping[str, dict[str, Path]], cache: Path) -> Iterator[Hub]:
    """Serve `{"owner/name": {branch: folder}}` for as long as the context lasts, with a cache of its own."""
    from huggingface_hub import close_session, constants

    server = Hub()
    server.repos.update(repos)
    with pytest.MonkeyPatch.context() as patch:
        close_session()
        patch.setattr(constants, "ENDPOINT", server.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        yield server
        close_session()
        server.close()

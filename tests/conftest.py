"""One torch thread, no network, no progress bars, no leftover files. Nothing here may import tl_lifehist: the shape
checks (--jaxtyping-packages) only reach modules that are first imported after pytest has started.
"""

from __future__ import annotations

import atexit
import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

SCRATCH = tempfile.mkdtemp(prefix="tl_lifehist_tests_")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)

# Set before torch and numpy are imported, and inherited by the worker processes that some tests start. With one thread
# a sum does not depend on the machine's load, and two pytest workers do not fight over two cores.
os.environ.update(
    {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HOME": os.path.join(SCRATCH, "huggingface"),
        "HYPOTHESIS_STORAGE_DIRECTORY": os.path.join(SCRATCH, "hypothesis"),
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "WANDB_MODE": "disabled",
    }
)

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

# No deadline: the first example pays for imports. On a build server the examples are the same in every run.
hypothesis.settings.register_profile(
    "tl_lifehist",
    deadline=None,
    max_examples=50,
    database=None,
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tl_lifehist")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: give --slow to run it"))


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Only the loopback address answers: a test that reaches for the hub fails at once and says so."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any, /) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(str(address[0])):
            self.close()
            raise RuntimeError(f"A test tried to reach {address[0]!r}; the tests run without a network.")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(scope="session")
def pocket_series() -> Any:
    import tl_lifehist as lh

    return lh.CheckpointSeries.pocket()


@pytest.fixture(scope="session")
def pocket_model(pocket_series: Any) -> Any:
    """The trained pocket model; tests must leave it as it is."""
    return pocket_series.load(4096)


@pytest.fixture(scope="session")
def pocket_tokens() -> Any:
    """A few windows of the pocket suite's test text."""
    import tl_lifehist as lh

    return lh.TokenSet.pocket("test")[::40][:12]


@pytest.fixture(scope="session")
def saelens() -> Any:
    """SAELens, for tests that train or load SAEs; without it, beside transformer-lens 4, they are left out."""
    return pytest.importorskip("sae_lens")


@pytest.fixture(scope="session")
def hooked_transformer_classes() -> tuple[Any, Any]:
    """HookedTransformer and its configuration, which transformer-lens 3.9 has and 4 has not."""
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
    except ImportError:
        pytest.skip("transformer-lens 4 has no HookedTransformer")
    return HookedTransformer, HookedTransformerConfig


@pytest.fixture(scope="session")
def make_sae(saelens: Any) -> Any:
    """A SAELens TopK SAE with random weights; with `unit=False` its decoder rows are not unit."""

    def make(*, d_in: int = 96, d_sae: int = 64, k: int = 8, seed: int = 0, unit: bool = True) -> Any:
        from sae_lens.saes.topk_sae import TopKSAE, TopKSAEConfig

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sae = TopKSAE(TopKSAEConfig(d_in=d_in, d_sae=d_sae, k=k, rescale_acts_by_decoder_norm=not unit))
            rows = torch.randn(d_sae, d_in)
            length = torch.ones(d_sae, 1) if unit else torch.rand(d_sae, 1) * 6 + 0.5
            sae.W_dec.data = rows / rows.norm(dim=1, keepdim=True) * length
            sae.W_enc.data = (rows / rows.norm(dim=1, keepdim=True)).T.contiguous()
            sae.b_dec.data = torch.randn(d_in) * 0.1
        return sae.requires_grad_(False).eval()

    return make


@pytest.fixture(scope="session")
def random_sae(make_sae: Any) -> Any:
    return make_sae()

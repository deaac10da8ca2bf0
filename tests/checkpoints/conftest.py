"""Tiny checkpoints on disk, and an emulation of the hub's HTTP interface on the loopback address."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch
from checkpoints import families

STEPS = (0, 1, 1000)
VOCAB = 64


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[int], Any]:
    """A seed becomes a random GPT-NeoX of three blocks, as `transformers` would train it."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    def build(seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = GPTNeoXConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_hidden_layers=3,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=32,
                bos_token_id=0,
                eos_token_id=0,
                use_cache=False,
            )
            return GPTNeoXForCausalLM(config).eval()

    return build


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<|endoftext|>": 0, **{f"w{i}": i for i in range(1, VOCAB)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.fixture(scope="session")
def masked_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    vocabulary = {**{token: i for i, token in enumerate(named.values())}, **{f"w{i}": i for i in range(4, VOCAB)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[MASK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


@pytest.fixture(scope="session")
def _published(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Any, masked_tokenizer: Any) -> Any:
    root = tmp_path_factory.mktemp("published")
    repos = {}
    for family, (_, _, repo, _) in families.FAMILIES.items():
        tokenizer = masked_tokenizer if family in families.MASKED_FAMILIES else tiny_tokenizer
        repos[repo] = families.publish(family, root / family, tokenizer)
    repos["almanach/moderncamembert-base-ckpts"] = {"main": families.publish_composer(root / "composer")}
    repos["tiny/folders-only"] = {"main": families.publish_folders(root / "folders")}
    return repos


@pytest.fixture
def published(hub: Any, _published: Any) -> Any:
    """The emulated hub with a repository of every family, laid out as the published one is."""
    hub.server.repos.update(_published)
    return hub


@pytest.fixture(scope="session")
def _saved_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Any, tiny_tokenizer: Any) -> Path:
    root = tmp_path_factory.mktemp("saved") / "run"
    for step in STEPS:
        tiny_model(step).save_pretrained(root / f"step{step}")
    tiny_tokenizer.save_pretrained(root)
    return root


@pytest.fixture
def run_folder(_saved_run: Path, tmp_path: Path) -> Path:
    """Folders step0, step1 and step1000 with a tokenizer beside them: a copy, to be damaged at will."""
    return Path(shutil.copytree(_saved_run, tmp_path / "run"))


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.arange(1, 25).reshape(2, 12)


class Hub:
    """Repositories as {"owner/name": {branch: folder}}, served the way huggingface.co serves them."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Path]] = {}
        self.requests: list[str] = []  # "METHOD /path"
        self.ranges: list[str] = []  # the Range header of every download that was taken up again
        self.cut: dict[str, int] = {}  # file name -> bytes sent before the connection breaks, once
        self.absent: set[str] = set()  # files that are listed and then not there
        self.refuse: tuple[int, str] | None = None  # status and error code of every answer
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def fetched(self, ending: str) -> int:
        """How many downloads were begun of files whose path ends like this."""
        return sum(request.startswith("GET") and request.endswith(ending) for request in self.requests)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written apart: 40 ms of waiting a request

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, query = unquote(urlsplit(self.path).path), urlsplit(self.path).query
        self.hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if self.hub.refuse is not None:
            self._send(self.hub.refuse[0], b"{}", {"X-Error-Code": self.hub.refuse[1]})
        elif parts[:2] == ["api", "models"] and len(parts) >= 5:
            self._api("/".join(parts[2:4]), parts[4], "/".join(parts[5:]), recursive="recursive=true" in query)
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._send(404, b"{}")

    def _api(self, repo: str, what: str, revision: str, *, recursive: bool) -> None:
        branches = self.hub.repos.get(repo)
        if branches is None:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if what == "refs":
            found = [{"name": b, "ref": f"refs/heads/{b}", "targetCommit": _sha(f)} for b, f in branches.items()]
            return self._json({"branches": found, "tags": [], "converts": []})
        revision, _, inside = revision.partition("/")  # no branch here has a stroke in its name
        branch = _branch(branches, revision)
        if branch is None or inside:
            return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound" if branch else "RevisionNotFound"})
        files = sorted(path for path in branches[branch].rglob("*") if path.is_file())
        names = [str(path.relative_to(branches[branch])) for path in files]
        if what == "revision":
            siblings = [_sibling(name, file) for name, file in zip(names, files, strict=True)]
            return self._json({"id": repo, "sha": _sha(branches[branch]), "siblings": siblings, "tags": []})
        tree = [_entry(name, file) for name, file in zip(names, files, strict=True) if recursive or "/" not in name]
        return self._json(tree)

    def _file(self, repo: str, revision: str, name: str) -> None:
        branches = self.hub.repos.get(repo, {})
        branch = _branch(branches, revision)
        if branch is None or name in self.hub.absent or not (path := branches[branch] / name).is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        body, status = path.read_bytes(), 200
        headers = {"X-Repo-Commit": _sha(branches[branch]), "ETag": f'"{_etag(path)}"', "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted:
            self.hub.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body, status = body[start:], 206
        cut = self.hub.cut.pop(path.name, None) if self.command == "GET" else None
        return self._send(status, body, headers, cut)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True


def _sha(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = "".join(f"{path.relative_to(folder)} {_etag(path)}\n" for path in files)
    return hashlib.sha1(f"{folder}\n{listed}".encode()).hexdigest()


def _etag(path: Path) -> str:
    # As on the hub: large files lie elsewhere, by their sha256.
    kind = hashlib.sha256 if path.suffix in (".safetensors", ".bin", ".pt") else hashlib.sha1
    return kind(path.read_bytes()).hexdigest()


def _entry(name: str, path: Path) -> dict[str, Any]:
    entry = {"type": "file", "path": name, "size": path.stat().st_size, "oid": _etag(path)}
    if len(_etag(path)) == 64:
        entry |= {"oid": "of a pointer", "lfs": {"oid": _etag(path), "size": entry["size"], "pointerSize": 130}}
    return entry


def _sibling(name: str, path: Path) -> dict[str, Any]:
    entry = _entry(name, path)
    sibling = {"rfilename": name, "size": entry["size"], "blobId": entry["oid"]}
    return {**sibling, "lfs": {**entry["lfs"], "sha256": entry["lfs"]["oid"]}} if "lfs" in entry else sibling


def _branch(branches: dict[str, Path], revision: str) -> str | None:
    return next((b for b in branches if revision in (b, _sha(branches[b]))), None)


@pytest.fixture
def hub(run_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The emulated hub, with tiny/pythia whose branches are main, step0, step1 and step1000, and a cache of its own."""
    from huggingface_hub import close_session, constants

    server = Hub()
    for step in STEPS:
        shutil.copy(run_folder / "tokenizer.json", run_folder / f"step{step}")
        shutil.copy(run_folder / "tokenizer_config.json", run_folder / f"step{step}")
    branches = {f"step{step}": run_folder / f"step{step}" for step in STEPS}
    server.repos["tiny/pythia"] = {"main": run_folder / "step1000", **branches}

    def point_at(url: str, offline: bool = False) -> None:
        close_session()
        monkeypatch.setattr(constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)

    point_at(server.url)
    yield SimpleNamespace(server=server, cache=tmp_path / "cache", point_at=point_at)
    close_session()
    server.close()

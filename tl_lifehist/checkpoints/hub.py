"""Checkpoints on the Hugging Face hub: which steps there are, and their files, through the hub's own client and cache.

Everything works offline for what the cache holds; what it does not hold is one clear sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints.weights import TOKENIZER_FILES
from tl_lifehist.errors import InputError

_SAFE = ("model*.safetensors", "model*.safetensors.index.json")
_PICKLED = ("pytorch_model*.bin", "pytorch_model*.bin.index.json")  # read with weights_only=True


@contextmanager
def hub_errors(repo: str, what: str) -> Iterator[None]:
    """Turn what the hub's client raises into one sentence with its remedy."""
    from huggingface_hub import errors

    # The base class of the client's HTTP errors differs between its versions (requests, httpx, httpx2).
    transport: Any = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except InputError:
        raise
    except errors.GatedRepoError as error:
        raise InputError(f"{repo} is gated: accept its terms on the hub and log in with `hf auth login`.") from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"The hub has no model repository {repo!r} that you may read: "
            "check the name, or log in with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{repo} has no {what}: list its branches on the hub and name one of those.") from error
    except errors.RemoteEntryNotFoundError as error:
        raise InputError(
            f"{what.capitalize()} of {repo} lists a file that is not there: report it to its owner."
        ) from error
    except errors.HfHubHTTPError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"The hub refused {what} of {repo} ({reason}): check your login, or try again later."
        ) from error
    except errors.HFValidationError as error:
        raise InputError(f"{repo!r} cannot be a hub repository ({error}): write it as 'owner/name'.") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError, transport) as error:
        raise InputError(
            f"The hub could not be reached and {what} of {repo} is not in the local cache, or only in part: "
            "connect to the network once to fetch it, or ask for steps that are cached."
        ) from error
    except OSError as error:
        raise InputError(f"{what.capitalize()} of {repo} could not be stored in the local cache ({error}).") from error


def list_branches(repo: str, cache_dir: Path | None = None) -> list[str]:
    """The names of the repository's branches; offline, of those that the cache has seen.

    Raises InputError when there is no such repository, or when it can neither be reached nor is cached.
    """
    from huggingface_hub import HfApi

    with hub_errors(repo, "the list of branches"):
        try:
            return [branch.name for branch in HfApi().list_repo_refs(repo).branches]
        except Exception as error:
            # Whatever kept the hub from answering: a cache that knows the repository answers in its place.
            refs = _storage(repo, cache_dir) / "refs"
            cached = sorted(str(path.relative_to(refs)) for path in refs.rglob("*") if path.is_file())
            if not cached or _is_answer(error):
                raise
            return cached


def list_files(repo: str, cache_dir: Path | None = None) -> list[str]:
    """The paths of the files on the repository's main branch; offline, of those that the cache holds."""
    from huggingface_hub import HfApi

    with hub_errors(repo, "the list of files"):
        try:
            return HfApi().list_repo_files(repo)
        except Exception as error:
            ref = _storage(repo, cache_dir) / "refs" / "main"
            if not ref.is_file() or _is_answer(error):
                raise
            snapshot = ref.parents[1] / "snapshots" / ref.read_text(encoding="utf-8").strip()
            return sorted(str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file())


def fetch_checkpoint(
    repo: str, revision: str, *, subfolder: str = "", code: bool = False, cache_dir: Path | None = None
) -> Path:
    """The local folder of one checkpoint, downloaded unless the cache has it.

    Configuration and weights only; pickled weights only where there are no safetensors, for many branches hold both.
    `code` also fetches the Python files beside them.
    """
    wanted = ("config.json", *_SAFE, *(("*.py",) if code else ()))
    folder = _snapshot(repo, revision, wanted, subfolder, cache_dir)
    if not any(folder.glob("model*.safetensors*")):
        folder = _snapshot(repo, revision, (*wanted, *_PICKLED), subfolder, cache_dir)
    return folder


def fetch_tokenizer(
    repo: str, revision: str, *, subfolder: str = "", code: bool = False, cache_dir: Path | None = None
) -> Path:
    """The local folder that holds the tokenizer's files of one revision, if it has any."""
    wanted = ("config.json", *TOKENIZER_FILES, *(("*.py",) if code else ()))
    return _snapshot(repo, revision, wanted, subfolder, cache_dir)


def download_size(repo: str, revision: str, *, subfolder: str = "", cache_dir: Path | None = None) -> int:
    """Bytes still to be fetched before the checkpoint is in the cache."""
    from huggingface_hub import snapshot_download

    patterns = [_inside(subfolder, pattern) for pattern in ("config.json", *_SAFE, *_PICKLED)]
    with hub_errors(repo, f"revision {revision!r}"):
        files = snapshot_download(repo, revision=revision, allow_patterns=patterns, cache_dir=cache_dir, dry_run=True)
    safe = any(file.filename.endswith(".safetensors") for file in files)
    wanted = [file for file in files if file.will_download and not (safe and "pytorch_model" in file.filename)]
    return sum(file.file_size or 0 for file in wanted)


def discard(repo: str, revision: str, cache_dir: Path | None = None) -> int:
    """Delete one revision from the local cache and return the bytes that were freed. Files it shares stay."""
    from huggingface_hub import scan_cache_dir

    if not _storage(repo, cache_dir).is_dir():
        return 0
    cache = scan_cache_dir(cache_dir)
    commits = [
        found.commit_hash
        for cached in cache.repos
        if cached.repo_id == repo and cached.repo_type == "model"
        for found in cached.revisions
        if revision in found.refs
    ]
    strategy = cache.delete_revisions(*commits)
    strategy.execute()
    return strategy.expected_freed_size


def _snapshot(repo: str, revision: str, wanted: Iterable[str], subfolder: str, cache_dir: Path | None) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [_inside(subfolder, pattern) for pattern in wanted]
    with hub_errors(repo, f"revision {revision!r}"):
        return (
            Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, cache_dir=cache_dir)) / subfolder
        )


def _inside(subfolder: str, pattern: str) -> str:
    return f"{subfolder}/{pattern}" if subfolder else pattern


def _storage(repo: str, cache_dir: Path | None) -> Path:
    from huggingface_hub import constants

    return Path(cache_dir or constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def _is_answer(error: Exception) -> bool:
    """The hub did answer, and the answer was no: the cache must not speak for it."""
    from huggingface_hub import errors

    return isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError, errors.RevisionNotFoundError))

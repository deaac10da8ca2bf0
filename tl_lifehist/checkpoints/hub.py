"""Checkpoints on the Hugging Face hub: which steps there are, and their files, through the hub's own client and cache.

Everything works offline for what the cache holds; what it does not hold is one clear sentence.
"""

from __future__ import annotations

import glob
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tl_lifehist.checkpoints.revisions import is_state_file, is_weights
from tl_lifehist.checkpoints.weights import ADAPTER, COMPOSER_FILES, TOKENIZER_FILES
from tl_lifehist.errors import InputError

SAFE = ("model*.safetensors", "model*.safetensors.index.json")
PICKLED = ("pytorch_model*.bin", "pytorch_model*.bin.index.json")  # read with weights_only=True
OVERLOADED = (429, 500, 502, 503, 504)  # answers that may be another a little later
PAUSES = (1.0, 2.0, 4.0)  # seconds before each further question
LONGEST = 60.0  # seconds that a hub may ask us to wait

Answer = TypeVar("Answer")


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
        raise InputError(
            f"The hub refused {what} of {repo} ({_reason(error)}): check your login, or try again later."
        ) from error
    except errors.HFValidationError as error:
        raise InputError(f"{repo!r} cannot be a hub repository ({error}): write it as 'owner/name'.") from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"The answer on {what} of {repo} was no hub's: is there a login page between you and the network?"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError, transport) as error:
        refusal = _refusal(error)
        if refusal is not None:  # the client falls back on its cache and then names the cache
            raise InputError(
                f"The hub refused {what} of {repo} ({_reason(refusal)}): check your login, or try again later."
            ) from error
        raise InputError(
            f"The hub could not be reached and {what} of {repo} is not in the local cache, or only in part: "
            "connect to the network once to fetch it, or ask for steps that are cached."
        ) from error
    except OSError as error:
        raise InputError(f"{what.capitalize()} of {repo} could not be stored in the local cache ({error}).") from error


def _reason(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _refusal(error: BaseException | None) -> BaseException | None:
    """The answer of a hub that was reached, among what led to an error."""
    from huggingface_hub import errors

    while error is not None:
        if isinstance(error, errors.HfHubHTTPError) and getattr(error, "response", None) is not None:
            return error
        error = error.__cause__ or error.__context__
    return None


def ask(question: Callable[[], Answer]) -> Answer:
    """The hub's answer. A hub that is overloaded is asked again, after the time it names or twice as long each time."""
    from huggingface_hub import errors

    for wait in (*PAUSES, None):
        try:
            return question()
        except errors.HfHubHTTPError as error:
            response: Any = error.response
            if wait is None or getattr(response, "status_code", None) not in OVERLOADED:
                raise
            named = response.headers.get("Retry-After", "")
            time.sleep(min(float(named), LONGEST) if named.isdigit() else wait)
    raise AssertionError("not reached")


def warn_of_cache(repo: str, error: Exception) -> None:
    """Say that the cache answers for a hub that did not, unless offline mode asked for it."""
    from huggingface_hub import errors

    if not isinstance(error, errors.OfflineModeIsEnabled):
        warnings.warn(
            f"The hub did not answer ({_reason(error)}), so only those checkpoints of {repo} are known that the local "
            "cache holds.",
            stacklevel=2,
        )


def list_branches(repo: str, cache_dir: Path | None = None) -> list[str]:
    """The names of the repository's branches; offline, of those whose weights the cache holds.

    Raises InputError when there is no such repository, or when it can neither be reached nor is cached.
    """
    from huggingface_hub import HfApi

    with hub_errors(repo, "the list of branches"):
        try:
            return [branch.name for branch in ask(lambda: HfApi().list_repo_refs(repo)).branches]
        except Exception as error:
            # Whatever kept the hub from answering: a cache that knows the repository answers in its place.
            storage = storage_of(repo, cache_dir)
            refs = [path for path in (storage / "refs").rglob("*") if path.is_file()]
            held = [path for path in refs if _holds_weights(storage, path.read_text(encoding="utf-8").strip())]
            if not held or is_answer(error):
                raise
            warn_of_cache(repo, error)
            return sorted(path.relative_to(storage / "refs").as_posix() for path in held)


def list_files(repo: str, cache_dir: Path | None = None) -> list[str]:
    """The paths of the files on the repository's main branch; offline, of those that the cache holds."""
    with hub_errors(repo, "the list of files"):
        try:
            return [entry.rfilename for entry in list_entries(repo, "main")]
        except Exception as error:
            ref = storage_of(repo, cache_dir) / "refs" / "main"
            if not ref.is_file() or is_answer(error):
                raise
            warn_of_cache(repo, error)
            snapshot = ref.parents[1] / "snapshots" / ref.read_text(encoding="utf-8").strip()
            return sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())


def list_entries(repo: str, revision: str) -> list[Any]:
    """The files of one revision with their sizes, as the client describes them. Raises what the client raises."""
    from huggingface_hub import HfApi

    # One request, and one that fails at once where there is no network: the client's list of a tree tries for 45 s.
    return ask(lambda: HfApi().model_info(repo, revision=revision, files_metadata=True)).siblings or []


def fetch_checkpoint(
    repo: str, revision: str, *, path: str = "", code: bool = False, cache_dir: Path | None = None, local: bool = False
) -> Path:
    """The local folder of one checkpoint, or its Composer file, downloaded unless the cache has it.

    Configuration, tokenizer and weights; pickled weights only where there are no safetensors, for many branches hold
    both. Of an adapter, what says that it is one. `path` is the sub-folder or the file of weights within the
    repository. `code` also fetches the Python files beside the weights, `local` asks nothing of the hub.
    """
    if is_state_file(path):
        return _snapshot(repo, revision, [glob.escape(path)], cache_dir, local) / path
    # The tokenizer too, though one per series is enough: every branch has the same file, so it is fetched once, and
    # any step that is cached then works offline.
    wanted = ["config.json", ADAPTER, *TOKENIZER_FILES, *SAFE, *(("*.py",) if code else ())]
    for more, found in ((PICKLED, "model*.safetensors*"), ((COMPOSER_FILES,), "pytorch_model*.bin*"), ((), "")):
        folder = _snapshot(repo, revision, _inside(path, wanted), cache_dir, local) / path
        if not more or any(folder.glob(found)):
            break
        wanted += more
    return folder


def fetch_companions(
    repo: str, revision: str, *, path: str = "", code: bool = False, cache_dir: Path | None = None
) -> Path:
    """The local folder that holds the configuration and the tokenizer's files of one revision, if it has any."""
    wanted = ("config.json", *TOKENIZER_FILES, *(("*.py",) if code else ()))
    return _snapshot(repo, revision, _inside(path, wanted), cache_dir) / path


def storage_of(repo: str, cache_dir: Path | None) -> Path:
    """The folder that the client's cache keeps for a repository."""
    from huggingface_hub import constants

    return Path(cache_dir or constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def _holds_weights(storage: Path, commit: str) -> bool:
    # A branch that was only asked for its tokenizer is in the cache as well.
    return any(is_weights(path.name) for path in (storage / "snapshots" / commit).rglob("*"))


def is_answer(error: Exception) -> bool:
    """The hub did answer, and the answer was no: the cache must not speak for it."""
    from huggingface_hub import errors

    return isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError, errors.RevisionNotFoundError))


def _snapshot(repo: str, revision: str, patterns: Iterable[str], cache_dir: Path | None, local: bool = False) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        # The client's own bar of files is drawn into pipes and logs as well.
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.setdefault("disable", None)  # only where somebody is watching
            super().__init__(*args, **kwargs)

    with hub_errors(repo, f"revision {revision!r}"):
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=list(patterns),
                cache_dir=cache_dir,
                local_files_only=local,
                tqdm_class=Bar,
            )
        )


def _inside(path: str, patterns: Iterable[str]) -> list[str]:
    return [f"{glob.escape(path)}/{pattern}" if path else pattern for pattern in patterns]

"""The client's cache of hub repositories: what a checkpoint takes, how much of it is still to come, and making room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from tl_lifehist.checkpoints.hub import PICKLED, SAFE, fetch_checkpoint, hub_errors, is_answer, list_entries, storage_of
from tl_lifehist.checkpoints.revisions import is_state_file
from tl_lifehist.checkpoints.weights import COMPOSER_FILES, weight_files
from tl_lifehist.errors import InputError

_KINDS = (SAFE, PICKLED, (COMPOSER_FILES,))  # of weight files: the first of them that is there is the one fetched


@dataclass(frozen=True)
class Size:
    """Bytes of a checkpoint's configuration and weights, and how many of them are not in the cache yet."""

    size: int
    to_download: int


def checkpoint_sizes(repo: str, revision: str, paths: Mapping[int, str], cache_dir: Path | None) -> dict[int, Size]:
    """The size of each step that lies in one revision, at `paths`, from one list of its files.

    Without network, of the steps that the cache holds; InputError for others.
    """
    with hub_errors(repo, f"revision {revision!r}"):
        try:
            files = list_entries(repo, revision)
        except Exception as error:
            if is_answer(error):
                raise
            try:
                return {step: _cached_size(repo, revision, step, path, cache_dir) for step, path in paths.items()}
            except InputError:
                raise error from None  # what kept the hub from answering says more than what the cache lacks
    return {step: _size(repo, _wanted(path, files), cache_dir) for step, path in paths.items()}


def discard_revision(repo: str, revision: str, cache_dir: Path | None) -> int:
    """Delete one revision from the cache and return the bytes that were freed. Files it shares with others stay, all of
    them where another branch is at the same commit.
    """
    from huggingface_hub import scan_cache_dir

    storage = storage_of(repo, cache_dir)
    if not storage.is_dir():
        return 0
    cache = scan_cache_dir(cache_dir)
    commits = {
        found.commit_hash: found.refs
        for cached in cache.repos
        if cached.repo_id == repo and cached.repo_type == "model"
        for found in cached.revisions
        if revision in found.refs
    }
    if any(len(refs) > 1 for refs in commits.values()):
        (storage / "refs" / revision).unlink()
        return 0
    strategy = cache.delete_revisions(*commits)
    strategy.execute()
    return strategy.expected_freed_size


def discard_path(repo: str, path: str, cache_dir: Path | None) -> int:
    """Delete one sub-folder or file from the cache and return the bytes that were freed.

    What other files of the repository, in any revision, have in common with it stays.
    """
    snapshots = storage_of(repo, cache_dir) / "snapshots"
    entries = [entry for entry in snapshots.rglob("*") if entry.is_file()]
    inside = [PurePosixPath(*entry.relative_to(snapshots).parts[1:]) for entry in entries]  # without the commit's name
    gone = [entry for entry, name in zip(entries, inside, strict=True) if name.is_relative_to(path)]
    kept = {entry.resolve() for entry in set(entries).difference(gone)}
    blobs = {entry.resolve() for entry in gone} - kept
    freed = sum(blob.stat().st_size for blob in blobs)
    for entry in gone:
        entry.unlink()
    for blob in blobs:
        blob.unlink(missing_ok=True)  # where the cache has no links, the entry was the file
    return freed


def _wanted(path: str, files: list[Any]) -> list[Any]:
    """Of the repository's files, the configuration and the weights that `fetch_checkpoint` would fetch."""
    if is_state_file(path):
        return [file for file in files if file.rfilename == path]
    named = ((PurePosixPath(file.rfilename), file) for file in files)
    here = {name.name: file for name, file in named if name.parent == PurePosixPath(path)}
    kinds = ([name for name in here if any(fnmatch(name, pattern) for pattern in kind)] for kind in _KINDS)
    weights: list[str] = next(filter(None, kinds), [])
    return [here[name] for name in ("config.json", *weights) if name in here]


def _size(repo: str, files: list[Any], cache_dir: Path | None) -> Size:
    blobs = storage_of(repo, cache_dir) / "blobs"
    missing = [file for file in files if not (blobs / (file.lfs.sha256 if file.lfs else file.blob_id)).is_file()]
    return Size(sum(file.size for file in files), sum(file.size for file in missing))


def _cached_size(repo: str, revision: str, step: int, path: str, cache_dir: Path | None) -> Size:
    place = fetch_checkpoint(repo, revision, path=path, cache_dir=cache_dir, local=True)
    weights = [file for file in weight_files(place, step) if file.is_file()]
    if not weights:
        raise InputError(f"Step {step}: the local cache lacks its weights: connect to the network once to fetch it.")
    config = [place / "config.json"] if (place / "config.json").is_file() else []
    return Size(sum(file.stat().st_size for file in (*config, *weights)), 0)

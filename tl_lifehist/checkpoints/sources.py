"""Where the models of a series come from: folders, the hub, memory, or the user's own function.

A source that works from folders can be pickled as a recipe, so a worker in another process loads for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints import hub, revisions
from tl_lifehist.checkpoints.boot import LoadOptions, boot_folder, load_tokenizer
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel


class Source(ABC):
    """What a series asks of the place its models come from."""

    # A base class and no Protocol: asking whether something satisfies one reads its attributes, and would load these.
    name: str
    tokenizer: Any

    @abstractmethod
    def load(self, step: int) -> HookedModel:
        """The model of a step that is there."""


class _Recipe(Source):
    """Pickles as its fields: the cached tokenizer stays behind and is loaded again on the other side."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "tokenizer"}


@dataclass(frozen=True)
class FolderSource(_Recipe):
    """One folder a step under one root; the tokenizer lies in the root, or else beside the last step's weights."""

    name: str
    root: Path
    folders: Mapping[int, str]
    options: LoadOptions = field(default_factory=LoadOptions)

    @classmethod
    def find(
        cls,
        path: str | Path,
        options: LoadOptions,
        *,
        name: str | None = None,
        stage: int | None = None,
        ingredient: int | None = None,
    ) -> FolderSource:
        """The sub-folders of `path` whose names are checkpoints'."""
        # Absolute, because a worker may run in another folder.
        root = Path(path).expanduser().resolve()
        try:
            names = [entry.name for entry in root.iterdir() if entry.is_dir()]
        except OSError as error:
            raise InputError(f"{root} is not a folder that can be read ({error.strerror}): check the path.") from error
        folders = revisions.select_steps(names, stage=stage, ingredient=ingredient, where=f"The sub-folders of {root}")
        return cls(name or root.name, root, folders, options)

    @cached_property
    def tokenizer(self) -> Any:
        found = load_tokenizer(self.root, self.options)
        return found if found is not None else load_tokenizer(self.root / self.folders[max(self.folders)], self.options)

    def load(self, step: int) -> HookedModel:
        folder = self.root / self.folders[step]
        return boot_folder(folder, step, name=self.name, tokenizer=self.tokenizer, options=self.options)


@dataclass(frozen=True)
class HubSource(_Recipe):
    """One revision, or one sub-folder, a step of a hub repository."""

    name: str
    places: Mapping[int, tuple[str, str]]  # step -> (revision, sub-folder)
    cache_dir: Path | None = None
    options: LoadOptions = field(default_factory=LoadOptions)

    @classmethod
    def find(
        cls,
        repo: str,
        steps: Iterable[int] | None,
        options: LoadOptions,
        *,
        subfolder: str | None = None,
        stage: int | None = None,
        ingredient: int | None = None,
        cache_dir: str | Path | None = None,
    ) -> HubSource:
        """The checkpoints of a repository: its branches, or the folders on `main` that look like `subfolder`."""
        cache = None if cache_dir is None else Path(cache_dir).expanduser().resolve()
        if subfolder is None:
            where = f"The branches of {repo}"
            found = revisions.select_steps(
                hub.list_branches(repo, cache), stage=stage, ingredient=ingredient, where=where
            )
            places = {step: (name, "") for step, name in found.items()}
        else:
            inside = revisions.match_template(subfolder, hub.list_files(repo, cache))
            places = {step: ("main", folder) for step, folder in inside.items()}
            if not places:
                raise InputError(f"{repo} holds no folder that looks like {subfolder!r}: look at its list of files.")
        if steps is not None:
            wanted = sorted(set(steps))
            revisions.require_steps(wanted, places, repo)
            # Only these, so that the tokenizer too comes from a revision that was asked for.
            places = {step: places[step] for step in wanted}
        return cls(repo, places, cache, options)

    @cached_property
    def tokenizer(self) -> Any:
        revision, subfolder = self.places[max(self.places)]
        code = self.options.trust_remote_code
        for inside in dict.fromkeys((subfolder, "")):  # a repository of sub-folders may keep its tokenizer at the top
            folder = hub.fetch_tokenizer(self.name, revision, subfolder=inside, code=code, cache_dir=self.cache_dir)
            found = load_tokenizer(folder, self.options)
            if found is not None:
                return found
        return None

    def load(self, step: int) -> HookedModel:
        revision, subfolder = self.places[step]
        code = self.options.trust_remote_code
        folder = hub.fetch_checkpoint(self.name, revision, subfolder=subfolder, code=code, cache_dir=self.cache_dir)
        return boot_folder(folder, step, name=self.name, tokenizer=self.tokenizer, options=self.options)

    def download_size(self, steps: Iterable[int]) -> int:
        """Bytes still to be fetched."""
        return sum(
            hub.download_size(self.name, revision, subfolder=subfolder, cache_dir=self.cache_dir)
            for revision, subfolder in map(self.places.__getitem__, steps)
        )

    def discard(self, step: int) -> int:
        """Delete a branch's files from the cache; a sub-folder shares its branch with the others and stays."""
        revision, subfolder = self.places[step]
        return 0 if subfolder else hub.discard(self.name, revision, self.cache_dir)


@dataclass(frozen=True)
class ModelsSource(Source):
    """Models that are in memory already."""

    name: str
    models: Mapping[int, HookedModel]

    @property
    def tokenizer(self) -> Any:
        return getattr(self.models[max(self.models)], "tokenizer", None)

    def load(self, step: int) -> HookedModel:
        return require_hooked(self.models[step], step)

    def __reduce__(self) -> Any:
        raise InputError(
            "A series of models in memory cannot be sent to another process: "
            "run it without an executor, or build it with from_directory, from_hub or from_loader."
        )


@dataclass(frozen=True)
class LoaderSource(Source):
    """The user's own function."""

    name: str
    loader: Callable[[int], HookedModel]
    tokenizer: Any = None

    def load(self, step: int) -> HookedModel:
        return require_hooked(self.loader(step), step)


def require_hooked(model: Any, step: int) -> HookedModel:
    """Refuse what has no TransformerLens hooks."""
    if not isinstance(model, HookedModel):
        raise InputError(
            f"Step {step}: {type(model).__name__} has no TransformerLens hooks: "
            "wrap it with TransformerBridge.boot_transformers(name, hf_model=model, tokenizer=tokenizer)."
        )
    return model

"""A hub repository of checkpoints: branches, or sub-folders or Composer files of its main branch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from tl_lifehist.checkpoints import cache, hub, revisions
from tl_lifehist.checkpoints.boot import LoadOptions, boot_folder
from tl_lifehist.checkpoints.shape import ModelShape, shape_of_folders, unfilled_of_folders
from tl_lifehist.checkpoints.sources import Recipe, companions, first_tokenizer, home_of_config
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel

Places = dict[int, tuple[str, str]]  # step -> (revision, path within it, empty for its top)

# Repositories whose checkpoints come without a configuration and a tokenizer, and the ones that have them.
_CONFIG_FROM = {"almanach/moderncamembert-base-ckpts": "almanach/moderncamembert-base"}


@dataclass(frozen=True)
class HubSource(Recipe):
    """One revision, or one sub-folder or Composer file of the main branch, per step."""

    name: str
    places: Mapping[int, tuple[str, str]]
    cache_dir: Path | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    config_from: str | None = None
    keep: bool = True

    @classmethod
    def find(
        cls,
        repo: str,
        steps: Iterable[int] | None,
        options: LoadOptions,
        *,
        pattern: str | None = None,
        subfolder: str | None = None,
        stage: int | None = None,
        ingredient: int | None = None,
        cache_dir: str | Path | None = None,
        config_from: str | Path | None = None,
        keep: bool = True,
    ) -> HubSource:
        """The branches that look like `pattern`, or else what does on the main branch, or looks like `subfolder` there;
        without either, the branches, or else what lies on the main branch and has a checkpoint's name.
        """
        cached = None if cache_dir is None else Path(cache_dir).expanduser().resolve()
        places: Places = {}
        names = [] if subfolder is not None and pattern is None else hub.list_branches(repo, cached)
        if pattern is not None:
            found = revisions.match_names(pattern, names, f"The branches of {repo}")
            places = {step: (name, "") for step, name in found.items()}
        elif subfolder is None:
            places = _branches(repo, names, stage, ingredient, None if steps is None else set(steps))
        if not places:
            looks = subfolder if pattern is None else pattern
            places = _inside_main(repo, names, looks, stage, ingredient, cached)
        if steps is not None:
            wanted = sorted(set(steps))
            revisions.require_steps(wanted, places, repo)
            # Only these, so that the tokenizer too comes from a revision that was asked for.
            places = {step: places[step] for step in wanted}
        config = _CONFIG_FROM.get(repo) if config_from is None else str(config_from)
        return cls(repo, places, cached, options, config, keep)

    @cached_property
    def tokenizer(self) -> Any:
        return first_tokenizer(self._homes(max(self.places)), self.options)

    def load(self, step: int) -> HookedModel:
        revision, path = self.places[step]
        code = self.options.trust_remote_code
        place = hub.fetch_checkpoint(self.name, revision, path=path, code=code, cache_dir=self.cache_dir)
        config = home_of_config(place, self._homes(step))
        model = boot_folder(place, step, name=self.name, tokenizer=self.tokenizer, config=config, options=self.options)
        if not self.keep:
            self.discard(step)
        return model

    def kept(self) -> HubSource:
        return replace(self, keep=True)

    def shape(self, step: int) -> ModelShape:
        return shape_of_folders(self._homes(step), self.options)

    def unfilled(self, step: int) -> HookedModel | None:
        return unfilled_of_folders(self._homes(step), self.options)

    def identity(self, step: int) -> str:
        return f"{self.place(step)} {self.options.dtype}"

    def place(self, step: int) -> str:
        revision, path = self.places[step]
        return path or revision

    def sizes(self, steps: Sequence[int]) -> list[cache.Size]:
        by_revision: dict[str, dict[int, str]] = {}
        for step in steps:
            revision, path = self.places[step]
            by_revision.setdefault(revision, {})[step] = path

        def ask(revision: str) -> dict[int, cache.Size]:
            return cache.checkpoint_sizes(self.name, revision, by_revision[revision], self.cache_dir)

        # One request a branch, and there can be a thousand of them.
        with ThreadPoolExecutor(8) as threads:
            answers = threads.map(ask, by_revision)
            bar = tqdm(answers, desc="sizes", unit="branch", total=len(by_revision), leave=False, disable=None)
            found = {step: size for answer in bar for step, size in answer.items()}
        return [found[step] for step in steps]

    def discard(self, step: int) -> int:
        revision, path = self.places[step]
        if path:
            return cache.discard_path(self.name, path, self.cache_dir)
        return cache.discard_revision(self.name, revision, self.cache_dir)

    def _homes(self, step: int) -> Iterator[Path]:
        """Where configuration and tokenizer may lie: where the user says, with the weights, at the top."""
        if self.config_from is not None:
            yield companions(self.config_from, self.cache_dir)
        revision, path = self.places[step]
        folder = path.rpartition("/")[0] if revisions.is_state_file(path) else path
        for home in dict.fromkeys((folder, "")):
            code = self.options.trust_remote_code
            yield hub.fetch_companions(self.name, revision, path=home, code=code, cache_dir=self.cache_dir)


def _branches(
    repo: str, names: list[str], stage: int | None, ingredient: int | None, wanted: set[int] | None
) -> Places:
    """The branches that are checkpoints', and `main` where it is known to hold a step that has no branch."""
    found: dict[int, str] = {}
    if revisions.sort_revisions(names) or revisions.bare_numbers(names):
        where = f"The branches of {repo}"
        found = revisions.select_steps(names, stage=stage, ingredient=ingredient, where=where, wanted=wanted)
    last = revisions.main_step(repo)
    if last is not None and "main" in names:
        found.setdefault(last, "main")
    return {step: (name, "") for step, name in sorted(found.items())}


def _inside_main(
    repo: str,
    names: list[str],
    pattern: str | None,
    stage: int | None,
    ingredient: int | None,
    cache_dir: Path | None,
) -> Places:
    files, branches = hub.list_files(repo, cache_dir), revisions.some(names)
    if pattern is None:
        where = f"The branches of {repo} hold no checkpoint, and the files of its main branch"
        found = revisions.find_places(files, stage=stage, ingredient=ingredient, where=where, others=names)
    else:
        found = revisions.match_template(pattern, files, f"The files of {repo}")
        if not found:
            there = revisions.some(sorted({file.partition("/")[0] for file in files}))
            raise InputError(
                f"{repo} holds {'no branch and ' * bool(names)}no folder that looks like {pattern!r}; "
                f"{f'its branches are {branches}, and ' * bool(names)}on main lie {there}."
            )
    return {step: ("main", path) for step, path in found.items()}

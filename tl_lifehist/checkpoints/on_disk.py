"""A local folder of checkpoints: sub-folders, sub-folders within those, or Composer files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints.boot import LoadOptions, boot_folder
from tl_lifehist.checkpoints.cache import Size
from tl_lifehist.checkpoints.folders import places_in
from tl_lifehist.checkpoints.shape import ModelShape, shape_of_folders, unfilled_of_folders
from tl_lifehist.checkpoints.sources import Recipe, companions, first_tokenizer, home_of_config
from tl_lifehist.checkpoints.weights import sampled_digest, weight_files
from tl_lifehist.models import HookedModel


@dataclass(frozen=True)
class FolderSource(Recipe):
    """One folder, or one Composer file, per step under one root."""

    name: str
    root: Path
    places: Mapping[int, str]
    options: LoadOptions = field(default_factory=LoadOptions)
    config_from: str | None = None

    @classmethod
    def find(
        cls,
        path: str | Path,
        options: LoadOptions,
        *,
        name: str | None = None,
        pattern: str | None = None,
        subfolder: str | None = None,
        stage: int | None = None,
        ingredient: int | None = None,
        config_from: str | Path | None = None,
    ) -> FolderSource:
        """What looks like `pattern` or `subfolder`; without them, the sub-folders of `path` whose names are
        checkpoints', or else whatever lies deeper and does, or single files.
        """
        # Absolute, because a worker may run in another folder.
        root = Path(path).expanduser().resolve()
        places = places_in(root, pattern=pattern, subfolder=subfolder, stage=stage, ingredient=ingredient)
        return cls(name or root.name, root, places, options, None if config_from is None else str(config_from))

    @cached_property
    def tokenizer(self) -> Any:
        return first_tokenizer(self._homes(max(self.places)), self.options)

    def load(self, step: int) -> HookedModel:
        place = self.root / self.places[step]
        config = home_of_config(place, self._homes(step))
        return boot_folder(place, step, name=self.name, tokenizer=self.tokenizer, config=config, options=self.options)

    def shape(self, step: int) -> ModelShape:
        return shape_of_folders(self._homes(step), self.options)

    def unfilled(self, step: int) -> HookedModel | None:
        return unfilled_of_folders(self._homes(step), self.options)

    def identity(self, step: int) -> str:
        place = self.root / self.places[step]
        home = home_of_config(place, self._homes(step))
        return f"{sampled_digest([home / 'config.json', *weight_files(place, step)])} {self.options.dtype}"

    def place(self, step: int) -> str:
        return self.places[step]

    def sizes(self, steps: Sequence[int]) -> list[Size]:
        return [Size(_bytes(self.root / self.places[step], step), 0) for step in steps]

    def _homes(self, step: int) -> Iterator[Path]:
        """Where configuration and tokenizer may lie: where the user says, in the root, with the weights."""
        if self.config_from is not None:
            yield companions(self.config_from, None)
        yield self.root
        place = self.root / self.places[step]
        yield place if place.is_dir() else place.parent


def _bytes(place: Path, step: int) -> int:
    return sum(file.stat().st_size for file in (place / "config.json", *weight_files(place, step)) if file.is_file())

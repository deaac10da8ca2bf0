"""Where the models of a series come from: memory, or the user's own function, or (`on_disk`, `on_hub`) files.

A source that works from files can be pickled as a recipe, so a worker in another process loads for itself.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints import hub
from tl_lifehist.checkpoints.boot import LoadOptions, load_tokenizer
from tl_lifehist.checkpoints.cache import Size
from tl_lifehist.checkpoints.integrity import fingerprint
from tl_lifehist.checkpoints.shape import ModelShape, shape_of_model
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel


class Source(ABC):
    """What a series asks of the place its models come from."""

    # A base class and no Protocol: asking whether something satisfies one reads its attributes, and would load these.
    name: str
    tokenizer: Any
    keep: bool = True  # what was fetched, once a model is in memory

    def kept(self) -> Source:
        """The same source, which keeps what it fetches."""
        return self

    @abstractmethod
    def load(self, step: int) -> HookedModel:
        """The model of a step that is there."""

    def shape(self, step: int) -> ModelShape:
        """How large the step's model is; without its weights where there is a configuration."""
        return shape_of_model(self.load(step))

    def unfilled(self, step: int) -> HookedModel | None:
        """The step's model for its hook points and `cfg`; without weights where there is a configuration."""
        return self.load(step)

    def identity(self, step: int) -> str:
        """What tells the step's weights from others as far as can be seen without loading them; empty where nothing
        can.
        """
        return self.place(step)

    def place(self, step: int) -> str:
        """Where the step lies: a branch, a folder, a file; empty for models that lie nowhere."""
        return ""

    def sizes(self, steps: Sequence[int]) -> list[Size]:
        """How large each step's files are, and what of them is still to be fetched."""
        return [Size(0, 0) for _ in steps]

    def discard(self, step: int) -> int:
        """Delete what was fetched of a step, and return the bytes freed."""
        return 0


class Recipe(Source):
    """Pickles as its fields: the cached tokenizer stays behind and is loaded again on the other side."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "tokenizer"}


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

    def identity(self, step: int) -> str:
        return hashlib.sha256(json.dumps(fingerprint(self.models[step])).encode()).hexdigest()[:16]

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


def companions(config_from: str, cache_dir: Path | None) -> Path:
    """The folder with the configuration and the tokenizer that checkpoints lack: a local one, or a repository's."""
    folder = Path(config_from).expanduser()
    return folder if folder.is_dir() else hub.fetch_companions(config_from, "main", cache_dir=cache_dir)


def home_of_config(place: Path, homes: Iterable[Path]) -> Path:
    """`place` where the configuration lies with the weights, else the first of `homes` that has one, else `place`."""
    if (place / "config.json").is_file():
        return place
    return next((home for home in homes if (home / "config.json").is_file()), place)


def first_tokenizer(homes: Iterable[Path], options: LoadOptions) -> Any:
    """The first tokenizer that one of the folders holds, None where none does."""
    return next((found for home in homes if (found := load_tokenizer(home, options)) is not None), None)

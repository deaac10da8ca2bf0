"""CheckpointSeries: an ordered mapping from training step to a hooked model that is loaded when it is asked for."""

from __future__ import annotations

import operator
import pickle  # noqa: TID251 - written to ask whether it works, never read
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from tl_lifehist.checkpoints import revisions
from tl_lifehist.checkpoints.boot import LoadOptions
from tl_lifehist.checkpoints.integrity import IntegrityReport, compare_fingerprints, fingerprint
from tl_lifehist.checkpoints.listing import plan_of
from tl_lifehist.checkpoints.nature import nature
from tl_lifehist.checkpoints.on_disk import FolderSource
from tl_lifehist.checkpoints.on_hub import HubSource
from tl_lifehist.checkpoints.pocket import check_pocket, pocket_path
from tl_lifehist.checkpoints.shape import ModelShape
from tl_lifehist.checkpoints.sources import LoaderSource, ModelsSource, Source
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel

if TYPE_CHECKING:
    import pandas as pd


# A type checker at run time looks into a Mapping[int, HookedModel], and to look into this one is to load a model.
_Models = Mapping[int, HookedModel] if TYPE_CHECKING else Mapping


class CheckpointSeries(_Models):
    """The checkpoints of one training run, by step, ascending.

    `series[step]` loads the model anew on every call and keeps nothing, so a walk over a hundred checkpoints holds one
    model at a time. Models that the series loads are float32 unless asked otherwise, in evaluation mode, with frozen
    parameters and unprocessed weights; those of `from_models` and `from_loader` are handed over exactly as they are.

    How it can mislead: a public checkpoint branch may hold the weights of another step, which then looks like a model
    that does not change. Call `verify()` before believing in persistence.
    """

    def __init__(self, source: Source, steps: Iterable[int]) -> None:
        self._source = source
        self._steps = tuple(sorted(set(steps)))
        if not self._steps:
            raise InputError("A series needs at least one step.")

    @classmethod
    def pocket(cls, *, device: str | None = None) -> CheckpointSeries:
        """The small GPT-NeoX suite that ships with the package. Raises InputError when its files are damaged."""
        check_pocket()
        source = FolderSource.find(pocket_path(), LoadOptions(device=device), name="pocket")
        return cls(source, source.places)

    @classmethod
    def from_directory(
        cls,
        path: str | Path,
        *,
        pattern: str | None = None,
        subfolder: str | None = None,
        stage: int | None = None,
        ingredient: int | None = None,
        config_from: str | Path | None = None,
        device: str | None = None,
        dtype: torch.dtype = torch.float32,
        trust_remote_code: bool = False,
    ) -> CheckpointSeries:
        """Sub-folders named step0, step_1000, checkpoint-500, global_step500, iter_0000500, 500, ..., each written by
        `save_pretrained`.

        The weights may also lie one folder deeper (`ckpt-500/pt`), in Composer's files (`ep0-ba500-rank0.pt`), or in
        single files of a plain state dict (`ckpt_500.pt`, read with weights_only=True; the configuration lies in the
        folder, or is named by `config_from`). Other names are ignored, the temporary ones of a run that is being
        written among them. The tokenizer is looked for in the folder itself, then with the last step's weights.

        Args:
            path: the folder.
            pattern: how the checkpoints look where their names do not say so, "run-a/{step}/hf"; `*` stands for
                anything within a name. It alone then decides.
            subfolder: the same.
            stage: which training stage of several; the earliest when None.
            ingredient: which run of a stage that has several.
            config_from: a folder or hub repository with the configuration and the tokenizer that the checkpoints lack.
            trust_remote_code: run Python code that comes with the checkpoint.

        Raises InputError when there is no such folder, or no checkpoint in it. A checkpoint that is not whole shows
        when it is loaded, and in `verify()`.
        """
        options = LoadOptions(device, dtype, trust_remote_code)
        source = FolderSource.find(
            path,
            options,
            pattern=pattern,
            subfolder=subfolder,
            stage=stage,
            ingredient=ingredient,
            config_from=config_from,
        )
        return cls(source, source.places)

    @classmethod
    def from_hub(
        cls,
        repo: str,
        steps: Iterable[SupportsIndex] | None = None,
        *,
        pattern: str | None = None,
        subfolder: str | None = None,
        stage: int | None = None,
        ingredient: int | None = None,
        config_from: str | Path | None = None,
        keep: bool = True,
        device: str | None = None,
        dtype: torch.dtype = torch.float32,
        trust_remote_code: bool = False,
        cache_dir: str | Path | None = None,
    ) -> CheckpointSeries:
        """Checkpoints of a hub repository; nothing but their list is fetched until a model is asked for.

        Branches (`step1000`, `step_1000`, `step1000-tokens4B`, `stage1-step-1000`, `checkpoint-1000`, `ckpt_010`,
        `global_step1000`, `1000`); where no branch is a checkpoint's, sub-folders of `main` (`ckpt-1000/pt`) or files
        of it (`ep0-ba1000-rank0.pt`, `ckpt_1000.pt`). What Amber counts in `ckpt_010` is checkpoints, not updates.

        A series is one training run. Of branches of several, ingredients or seeds, one has to be named.

        Args:
            repo: such as "EleutherAI/pythia-160m".
            steps: all there are when None.
            pattern: how the branches look where their names do not say so, "phase1_{step}", or else folders or files of
                `main`, "runs/{step}/hf"; `*` stands for anything within a name. It alone then decides.
            subfolder: as `pattern`, for `main` alone.
            stage: which training stage of several (OLMo 2); the earliest when None.
            ingredient: which run of a stage that has several.
            config_from: a hub repository or a folder with the configuration and the tokenizer, for checkpoints that
                come without; known for "almanach/moderncamembert-base-ckpts".
            keep: False drops a checkpoint from the cache once its model is in memory, so that a sweep needs the room of
                one. It is then fetched again whenever it is asked for, `verify()` included; not for two processes that
                load one step at the same time. A study drops each checkpoint when no unit of it needs it any more, and
                may have workers.
            trust_remote_code: run Python code that comes with the checkpoint.
            cache_dir: the hub client's own cache when None.

        Returns a series that also works offline, for the steps that the cache holds. `main` is a step only where it is
        known to be one (Pythia's last): elsewhere it is another model than the last one trained. Load it by its name,
        with `TransformerBridge.boot_transformers`.

        Raises InputError when the repository, a step or the network is not there; a step that does not exist is
        answered with the nearest ones.
        """
        options = LoadOptions(device, dtype, trust_remote_code)
        wanted = None if steps is None else [_step(step) for step in steps]
        source = HubSource.find(
            repo,
            wanted,
            options,
            pattern=pattern,
            subfolder=subfolder,
            stage=stage,
            ingredient=ingredient,
            config_from=config_from,
            keep=keep,
            cache_dir=cache_dir,
        )
        return cls(source, source.places)

    @classmethod
    def from_models(cls, models: Mapping[int, HookedModel], *, name: str = "models in memory") -> CheckpointSeries:
        """Anything with TransformerLens hooks, by step. The models stay as they are, training mode included."""
        kept = {_step(step): model for step, model in models.items()}
        series = cls(ModelsSource(name, kept), kept)
        for step in series:
            series.load(step)  # refuses what has no hooks now rather than in the middle of a study
        return series

    @classmethod
    def from_loader(
        cls,
        steps: Iterable[SupportsIndex],
        load: Callable[[int], HookedModel],
        *,
        tokenizer: Any = None,
        name: str = "own loader",
    ) -> CheckpointSeries:
        """`load(step)` is called whenever a model is asked for. A function at a module's top level can be pickled."""
        return cls(LoaderSource(name, load, tokenizer), map(_step, steps))

    @property
    def steps(self) -> tuple[int, ...]:
        """The training steps, ascending."""
        return self._steps

    @property
    def name(self) -> str:
        """What reports call the series."""
        return self._source.name

    @property
    def tokenizer(self) -> Any:
        """The tokenizer the checkpoints were trained with, or None where none is known. Loaded when first asked for."""
        return self._source.tokenizer

    @cached_property
    def shape(self) -> ModelShape:
        """Blocks, width, vocabulary and parameters of the models: `.n_layers`, `.d_model`, `.d_vocab`, `.n_parameters`.

        Read from the last step's configuration, so no weights are fetched or loaded; models in memory and those of a
        user's own loader tell it themselves.
        """
        return self._source.shape(self._steps[-1])

    def unfilled(self) -> HookedModel | None:
        """The last step's model for its hook points and its `cfg`, not to be run.

        Made from the configuration: no weights are fetched or loaded, and its parameters take no memory. Models in
        memory and those of a user's own loader are handed over as they are. None where TransformerLens needs the
        weights to say what hook points there are.
        """
        return self._source.unfilled(self._steps[-1])

    @property
    def is_portable(self) -> bool:
        """Whether workers in another process can load for themselves."""
        try:
            pickle.dumps(self)
        except Exception:  # a user's loader may fail to pickle with any error
            return False
        return True

    def load(self, step: SupportsIndex) -> HookedModel:
        """The model of one step. Raises InputError for a step that is not in the series, or that cannot be loaded."""
        step = _step(step)
        revisions.require_steps([step], self._steps, self.name)
        return self._source.load(step)

    def identity(self, step: SupportsIndex) -> str:
        """What tells a step's weights from others without loading them: of a folder, sizes and samples of its files;
        of models in memory, a hash of their parameters; of a hub repository, the branch or path. A user's own loader
        can tell nothing.
        """
        step = _step(step)
        revisions.require_steps([step], self._steps, self.name)
        return self._source.identity(step)

    @property
    def keep(self) -> bool:
        """Whether a checkpoint that was fetched from the hub stays in its cache after loading."""
        return self._source.keep

    def kept(self) -> CheckpointSeries:
        """The same series, whose checkpoints stay in the cache after loading until `discard` drops them."""
        return CheckpointSeries(self._source.kept(), self._steps)

    def subset(self, steps: Iterable[SupportsIndex]) -> CheckpointSeries:
        """The same series with these steps only. Raises InputError for steps that are not in it."""
        wanted = [_step(step) for step in steps]
        revisions.require_steps(wanted, self._steps, self.name)
        return CheckpointSeries(self._source, wanted)

    def verify(self, *, progress: bool = True) -> IntegrityReport:
        """Load every checkpoint once, fingerprint its weights, and report duplicates, what could not be loaded, and
        steps of another kind than the others: another architecture or precision, processed weights among unprocessed.

        How it can mislead: it finds weights that are *the same* as another step's. Weights of a wrong step that the
        series does not hold look as good as any.
        """
        from tqdm.auto import tqdm

        prints: dict[int, dict[str, str]] = {}
        natures: dict[int, dict[str, str]] = {}
        unreadable: dict[int, str] = {}
        for step in tqdm(self._steps, desc="verify", unit="step", leave=False, disable=None if progress else True):
            try:
                model = self.load(step)
                prints[step], natures[step] = fingerprint(model), nature(model)
                del model  # or the next is loaded beside it
            except (InputError, OSError) as error:  # OSError: a user's own loader that misses a file
                unreadable[step] = str(error)
        return compare_fingerprints(prints, unreadable, natures)

    def plan(self) -> pd.DataFrame:
        """What working through the series takes: one row per step, before anything is fetched.

        Columns: step; revision (the branch, sub-folder or file it lies in); tokens_billion (NA where the name does not
        say); size (bytes of configuration and weights); to_download (bytes of those that are not in the cache). For
        models in memory and a user's own loader both sizes are 0.

        Raises InputError when the hub cannot be reached and a step is not in the cache.

        How it can mislead: the tokenizer, some megabytes once per series, is not counted, and steps that share a file
        count it each.
        """
        return plan_of(self._source, self._steps)

    def download_size(self) -> int:
        """Bytes still to be fetched before every step is in the local cache: 0 for anything that is not on the hub."""
        return sum(size.to_download for size in self._source.sizes(self._steps))

    def discard(self, step: SupportsIndex) -> int:
        """Delete a step that came from the hub from the local cache, and return the bytes freed.

        What it shares with other checkpoints stays, and so do files that did not come from the hub. It is fetched again
        when asked for.
        """
        step = _step(step)
        revisions.require_steps([step], self._steps, self.name)
        return self._source.discard(step)

    def __getitem__(self, step: SupportsIndex) -> HookedModel:
        return self.load(step)

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    # Mapping's own versions of these would load models to answer.
    def __contains__(self, step: object) -> bool:
        return step in self._steps

    def get(self, step: Any, default: Any = None) -> Any:
        return self.load(step) if step in self else default

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"CheckpointSeries({self.name!r}, {len(self)} steps {self._steps[0]} to {self._steps[-1]})"


def _step(step: Any) -> int:
    try:
        return operator.index(step)
    except TypeError as error:
        raise InputError(f"A step is a whole number of training steps, not {step!r}.") from error

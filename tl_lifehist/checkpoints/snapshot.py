"""Write checkpoints while a model trains, such that a series can be made of them afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints.boot import quiet_transformers
from tl_lifehist.checkpoints.revisions import sort_revisions
from tl_lifehist.errors import InputError


class SnapshotCallback:
    """Writes folders step{N}, which `CheckpointSeries.from_directory(out)` reads.

    For the Hugging Face Trainer, `Trainer(..., callbacks=[SnapshotCallback("runs/mine")])`. For a loop of one's own::

        snapshot = SnapshotCallback("runs/mine", tokenizer=tokenizer)
        for step, batch in enumerate(batches):
            snapshot(model, step)         # step: how many updates the weights have seen
            update(model, batch)
        snapshot.finish(model, step + 1)  # the last one, whatever the schedule

    Args:
        out: the folder; made when needed.
        schedule: "log" for 0, 1, 2, 4, 8, ...; a number for every so many steps; or the steps themselves. The last step
            of the training is written in any case.
        tokenizer: saved once beside the checkpoints; the Trainer's own when None.

    A checkpoint is written under a temporary name and renamed when complete: a run that is killed leaves no half
    checkpoint. Raises InputError when a run starts anew in a folder that holds checkpoints already (two runs would
    look like one), when the model has no `save_pretrained`, and when the folder cannot be written.

    How it can mislead: weights that several processes hold in parts (FSDP, DeepSpeed ZeRO 3) are not gathered. A
    Trainer that stops early and loads its best model writes no last checkpoint, only the scheduled ones.
    """

    def __init__(self, out: str | Path, schedule: str | int | Iterable[int] = "log", *, tokenizer: Any = None) -> None:
        self.out = Path(out).expanduser().resolve()
        self.tokenizer = tokenizer
        self.written: list[int] = []
        self._scheduled = _schedule(schedule)
        self._started = False

    def __call__(self, model: Any, step: int) -> Path | None:
        """Write the checkpoint if `step` is in the schedule. Returns its folder, or None if it is not."""
        self._start(step)
        return self._write(model, step) if self._scheduled(step) else None

    def finish(self, model: Any, step: int) -> Path:
        """Write the last checkpoint unless it is there. Returns its folder."""
        self._start(step)
        return self.out / f"step{step}" if step in self.written else self._write(model, step)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Called by the Trainer: step 0, or the step a run was resumed from."""
        if self.tokenizer is None:
            self.tokenizer = kwargs.get("processing_class")
        if state.is_world_process_zero:
            self(model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Called by the Trainer after each update; the last one is written whatever the schedule."""
        if state.is_world_process_zero:
            last = state.global_step >= state.max_steps or control.should_training_stop
            (self.finish if last else self)(model, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Called by the Trainer when it is done, for a training that stopped between two updates."""
        # With load_best_model_at_end the weights are by now those of some other step.
        if state.is_world_process_zero and not args.load_best_model_at_end:
            self.finish(model, state.global_step)

    def __getattr__(self, name: str) -> Any:
        # The Trainer calls every event on every callback. Subclassing TrainerCallback would give the other events, but
        # it costs seconds of import for those who train without the Trainer.
        if name.startswith("on_"):
            return _ignore
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _start(self, step: int) -> None:
        if self._started:
            return
        names = [path.name for path in self.out.iterdir()] if self.out.is_dir() else []
        earlier = sort_revisions(names)
        if earlier and step <= 1:  # a resumed run begins later, and goes on in its own folder
            raise InputError(
                f"{self.out} already holds {earlier[0].name} of an earlier run: "
                "choose another folder, or remove that run."
            )
        self._started = True

    def _write(self, model: Any, step: int) -> Path:
        model = _unwrapped(model)
        final = self.out / f"step{step}"
        # Names that begin with a dot are no checkpoint's, so from_directory does not see them.
        fresh, stale = self.out / f".step{step}.partial", self.out / f".step{step}.replaced"
        try:
            for leftover in (fresh, stale):
                shutil.rmtree(leftover, ignore_errors=True)
            fresh.mkdir(parents=True)
            with quiet_transformers():
                model.save_pretrained(fresh)
            if final.exists():
                final.rename(stale)
            fresh.rename(final)
            shutil.rmtree(stale, ignore_errors=True)
            if not self.written:
                self._write_tokenizer()
        except OSError as error:
            raise InputError(
                f"Step {step} could not be written to {self.out} ({error}): check free space and permissions."
            ) from error
        self.written.append(step)
        return final

    def _write_tokenizer(self) -> None:
        if self.tokenizer is None or not hasattr(self.tokenizer, "save_pretrained"):
            return
        fresh = self.out / ".tokenizer.partial"
        shutil.rmtree(fresh, ignore_errors=True)
        self.tokenizer.save_pretrained(fresh)
        for file in fresh.iterdir():
            file.replace(self.out / file.name)
        fresh.rmdir()


def _unwrapped(model: Any) -> Any:
    while not hasattr(model, "save_pretrained") and hasattr(model, "module"):  # DistributedDataParallel and its like
        model = model.module
    if not hasattr(model, "save_pretrained"):
        raise InputError(
            f"{type(model).__name__} has no save_pretrained: give the Hugging Face model, "
            "or save your own checkpoints and use CheckpointSeries.from_loader."
        )
    return model


def _schedule(schedule: str | int | Iterable[int]) -> Callable[[int], bool]:
    if isinstance(schedule, str):
        if schedule != "log":
            raise InputError(f"There is no schedule {schedule!r}: give 'log', an interval, or the steps themselves.")
        return lambda step: step & (step - 1) == 0  # 0 and the powers of two
    if isinstance(schedule, int):
        if schedule < 1:
            raise InputError(f"A checkpoint every {schedule} steps is not possible: give 1 or more.")
        return lambda step: step % schedule == 0
    return frozenset(schedule).__contains__


def _ignore(*args: Any, **kwargs: Any) -> None:
    return None

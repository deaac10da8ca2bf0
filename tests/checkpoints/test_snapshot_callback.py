from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.checkpoints.snapshot import SnapshotCallback
from tl_lifehist.errors import InputError


class Saved:
    """Stands for a model: writes which step it was, and may break in the middle."""

    def __init__(self, breaks: BaseException | None = None) -> None:
        self.step, self.breaks = 0, breaks

    def save_pretrained(self, folder) -> None:
        (folder / "config.json").write_text(str(self.step))
        if self.breaks is not None:
            raise self.breaks
        (folder / "weights").write_text(str(self.step))


def train(callback: SnapshotCallback, model: Saved, updates: int, first: int = 0) -> None:
    for step in range(first, updates):
        callback(model, step)
        model.step = step + 1
    callback.finish(model, updates)


def folders(out) -> dict[str, str]:
    return {path.name: (path / "weights").read_text() for path in out.iterdir()}


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [("log", [0, 1, 2, 4, 8, 16, 21]), (10, [0, 10, 20, 21]), ([3, 5, 99], [3, 5, 21]), (iter([21, 2]), [2, 21])],
)
def test_a_loop_writes_its_schedule_and_the_last_step(tmp_path, schedule, steps):
    out = tmp_path / "new" / "run"
    callback = SnapshotCallback(out, schedule)
    train(callback, Saved(), 21)
    assert callback.written == steps
    assert folders(out) == {f"step{step}": str(step) for step in steps}  # each holds the weights of its own step


def test_the_call_returns_the_folder_it_wrote(tmp_path):
    callback = SnapshotCallback(tmp_path, [1, 2])
    assert callback(Saved(), 0) is None
    assert callback(Saved(), 1) == tmp_path / "step1"
    assert callback(Saved(), 2) == callback.finish(Saved(), 2) == tmp_path / "step2"
    assert callback.written == [1, 2]


@pytest.mark.parametrize(
    ("schedule", "said"), [("weekly", "no schedule 'weekly'"), (0, "every 0 steps"), (-2, "every -2")]
)
def test_a_schedule_that_makes_no_sense_is_refused(tmp_path, schedule, said):
    with pytest.raises(InputError, match=said):
        SnapshotCallback(tmp_path, schedule)


def test_what_is_killed_in_the_middle_leaves_no_checkpoint(tmp_path):
    callback = SnapshotCallback(tmp_path, 1)
    callback(Saved(), 0)
    with pytest.raises(KeyboardInterrupt):
        callback(Saved(KeyboardInterrupt()), 1)
    assert CheckpointSeries.from_directory(tmp_path).steps == (0,)
    assert any(path.name.startswith(".step1") for path in tmp_path.iterdir())  # what a killed process leaves behind
    resumed = SnapshotCallback(tmp_path, 1)
    model = Saved()
    model.step = 2
    resumed(model, 2)
    train(SnapshotCallback(tmp_path, 1), model, 4, first=2)  # writes step 2 once more, over the other
    assert CheckpointSeries.from_directory(tmp_path).steps == (0, 2, 3, 4)
    assert (tmp_path / "step2" / "weights").read_text() == "2"


def test_a_step_that_is_written_again_is_replaced_whole(tmp_path):
    first, second = Saved(), Saved()
    first.step, second.step = 5, 6
    SnapshotCallback(tmp_path, 5)(first, 5)
    (tmp_path / "step5" / "extra").write_text("of the first")
    SnapshotCallback(tmp_path, 5)(second, 5)
    assert sorted(path.name for path in (tmp_path / "step5").iterdir()) == ["config.json", "weights"]
    assert [path.name for path in tmp_path.iterdir()] == ["step5"]


def test_a_new_run_is_not_mixed_into_an_earlier_one(tmp_path):
    train(SnapshotCallback(tmp_path), Saved(), 3)
    again = SnapshotCallback(tmp_path)
    for _ in range(2):  # trying twice is no way around
        with pytest.raises(InputError, match="already holds step0 of an earlier run: choose another folder"):
            again(Saved(), 0)
    shutil.rmtree(tmp_path / "step0")


def test_what_cannot_be_saved_or_written_says_so(tmp_path):
    with pytest.raises(InputError, match="Linear has no save_pretrained: give the Hugging Face model"):
        SnapshotCallback(tmp_path)(nn.Linear(1, 1), 0)
    full = Saved(OSError(28, "No space left on device"))
    with pytest.raises(InputError, match=r"Step 0 could not be written to .*No space left.*check free space"):
        SnapshotCallback(tmp_path)(full, 0)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="Step 0 could not be written"):
        SnapshotCallback(tmp_path / "file" / "run")(Saved(), 0)


def test_a_wrapped_model_is_saved_as_what_it_wraps(tmp_path, tiny_model):
    class Parallel(nn.Module):  # as DistributedDataParallel, which needs a process group
        def __init__(self, module):
            super().__init__()
            self.module = module

    SnapshotCallback(tmp_path)(Parallel(Parallel(tiny_model(0))), 0)
    assert (tmp_path / "step0" / "model.safetensors").is_file()


def test_a_loop_with_a_tokenizer_makes_a_series(tmp_path, tiny_model, tiny_tokenizer, ids):
    model = tiny_model(0).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = SnapshotCallback(tmp_path, tokenizer=tiny_tokenizer)
    state = torch.get_rng_state()
    for step in range(2):
        callback(model, step)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    callback.finish(model, 2)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())  # a run with snapshots is the run without them
    series = CheckpointSeries.from_directory(tmp_path, device="cpu")
    assert series.steps == (0, 1, 2)
    assert series.tokenizer("w5")["input_ids"] == [5]
    assert series.verify().ok
    with torch.no_grad():
        torch.testing.assert_close(series[2](ids), model.eval()(ids).logits, atol=1e-6, rtol=0)


def test_the_trainer_writes_step_0_powers_of_two_and_the_last(tmp_path, tiny_model, tiny_tokenizer, ids):
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in ids.repeat(8, 1)]

    def run(updates: int, resume: str | None = None) -> SnapshotCallback:
        callback = SnapshotCallback(tmp_path / "snapshots")
        arguments = TrainingArguments(
            output_dir=str(tmp_path / "trainer"),
            max_steps=updates,
            per_device_train_batch_size=2,
            save_steps=5,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            tiny_model(0), arguments, train_dataset=rows, processing_class=tiny_tokenizer, callbacks=[callback]
        )
        trainer.train(resume_from_checkpoint=resume)
        return callback

    with torch.random.fork_rng(devices=[]):
        assert run(5).written == [0, 1, 2, 4, 5]
        assert run(9, resume=str(tmp_path / "trainer" / "checkpoint-5")).written == [8, 9]
        with pytest.raises(InputError, match="already holds step0 of an earlier run"):
            run(5)
    series = CheckpointSeries.from_directory(tmp_path / "snapshots", device="cpu")
    assert series.steps == (0, 1, 2, 4, 5, 8, 9)
    assert series.tokenizer("w5")["input_ids"] == [5]
    assert series.verify().ok
    with torch.no_grad():
        torch.testing.assert_close(series[0](ids), tiny_model(0)(ids).logits, atol=1e-6, rtol=0)


def test_the_best_model_is_not_taken_for_the_last(tmp_path):
    from transformers import TrainerControl, TrainerState

    state, control, model = TrainerState(max_steps=9), TrainerControl(), Saved()
    arguments = SimpleNamespace(load_best_model_at_end=True)
    callback = SnapshotCallback(tmp_path / "early", [2])
    for step in (1, 2, 3):
        state.global_step = model.step = step
        callback.on_step_end(arguments, state, control, model=model)
    model.step = 1  # the Trainer has put the best weights back
    callback.on_train_end(arguments, state, control, model=model)
    assert folders(tmp_path / "early") == {"step2": "2"}
    whole = SnapshotCallback(tmp_path / "whole", [2])
    state.global_step = model.step = 9
    whole.on_step_end(arguments, state, control, model=model)
    model.step = 1
    whole.on_train_end(arguments, state, control, model=model)
    assert folders(tmp_path / "whole") == {"step9": "9"}
    arguments.load_best_model_at_end = False
    state.global_step = model.step = 5
    stopped = SnapshotCallback(tmp_path / "stopped", [2])
    stopped.on_train_end(arguments, state, control, model=model)
    assert folders(tmp_path / "stopped") == {"step5": "5"}


def test_only_the_first_process_writes(tmp_path):
    from transformers import TrainerState

    callback = SnapshotCallback(tmp_path / "out")
    other = TrainerState(is_world_process_zero=False)
    for event in (callback.on_train_begin, callback.on_step_end, callback.on_train_end):
        event(SimpleNamespace(load_best_model_at_end=False), other, None, model=Saved())
    assert not (tmp_path / "out").exists()


def test_it_answers_every_event_of_the_trainer_and_no_other_name(tmp_path):
    from transformers import TrainerCallback

    callback = SnapshotCallback(tmp_path)
    events = [name for name in dir(TrainerCallback) if name.startswith("on_")]
    assert len(events) > 10
    others = [name for name in events if name not in ("on_train_begin", "on_step_end", "on_train_end")]
    assert all(getattr(callback, name)(None, None, None, model=None) is None for name in others)
    with pytest.raises(AttributeError, match="no attribute 'steps'"):
        _ = callback.steps

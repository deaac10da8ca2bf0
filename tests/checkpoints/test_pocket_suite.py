from __future__ import annotations

import shutil

import pytest

from tl_lifehist.checkpoints import pocket
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError


def test_every_shipped_file_is_sound_and_all_are_listed():
    names = pocket.check_pocket()
    root = pocket.pocket_path()
    data = {".json", ".safetensors", ".gz"}
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in data}
    assert set(names) >= there
    assert len(there) > 20
    assert sum((root / name).stat().st_size for name in there) < 15e6


def test_the_suite_is_a_series_that_learns(ids):
    import torch

    series = CheckpointSeries.pocket(device="cpu")
    assert series.name == "pocket"
    assert series.is_portable
    assert series.steps[0] == 0
    assert series.steps[-1] >= 1024
    text = pocket.pocket_texts("test")[0][1]
    rows = torch.tensor([[0, *series.tokenizer(text)["input_ids"][:127]]])
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(series[step](rows)[0, :-1], rows[0, 1:]) for step in (0, series.steps[-1])
        ]
    assert 6.5 < losses[0] < 7.5  # a random guess among 1,024 tokens costs 6.93 nats
    assert losses[1] < losses[0] - 2


def test_the_splits_share_no_document():
    documents = {split: {name for name, _ in pocket.pocket_texts(split)} for split in pocket.SPLITS}
    assert all(len(found) > 10 for found in documents.values())
    assert not documents["train"] & (documents["calibration"] | documents["test"])
    assert not documents["calibration"] & documents["test"]
    with pytest.raises(InputError, match="no split 'dev': ask for one of train, calibration, test"):
        pocket.pocket_texts("dev")


def test_the_tokenizer_begins_a_text_with_id_0_and_gives_text_back():
    tokenizer = pocket.pocket_tokenizer()
    assert (tokenizer.bos_token_id, len(tokenizer)) == (0, 1024)
    text = "def f(x):\n    return x  # naïve\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_damage_is_found_and_named(tmp_path, monkeypatch):
    copy = tmp_path / "pocket"
    copy.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pocket.pocket_path() / name, copy)
    lines = (pocket.pocket_path() / "SHA256SUMS").read_text().splitlines(keepends=True)
    sums = copy / "SHA256SUMS"
    sums.write_text("".join(line for line in lines if "  tokenizer" in line))
    assert set(pocket.check_pocket(copy)) == {"tokenizer.json", "tokenizer_config.json"}
    monkeypatch.setattr(pocket, "pocket_path", lambda: copy)
    with (copy / "tokenizer.json").open("a") as file:
        file.write(" ")
    with pytest.raises(InputError, match=r"tokenizer\.json of the pocket suite is damaged: install the package again"):
        pocket.check_pocket()
    (copy / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json of the pocket suite is missing"):
        pocket.check_pocket()
    sums.unlink()
    with pytest.raises(InputError, match=r"SHA256SUMS of the pocket suite is missing"):
        pocket.check_pocket()
    with pytest.raises(InputError, match=r"train\.jsonl\.gz of the pocket suite is missing or damaged"):
        pocket.pocket_texts("train")
    (copy / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json of the pocket suite is missing"):
        pocket.pocket_tokenizer()

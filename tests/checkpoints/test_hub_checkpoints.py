from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
import torch

from tl_lifehist.checkpoints import hub as hub_module
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError

REPO = "tiny/pythia"
NOWHERE = "http://127.0.0.1:9"


def series_of(hub, steps=None, **options) -> CheckpointSeries:
    return CheckpointSeries.from_hub(REPO, steps, cache_dir=hub.cache, device="cpu", **options)


def test_branches_become_steps_and_nothing_is_fetched_before_it_is_asked_for(hub):
    series = series_of(hub)
    assert series.steps == (0, 1, 1000)
    assert series.name == REPO
    assert not any("/resolve/" in request for request in hub.server.requests)


def test_a_loaded_step_is_the_model_of_its_branch(hub, tiny_model, ids):
    model = series_of(hub).load(1)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), tiny_model(1)(ids).logits, atol=1e-6, rtol=0)
    assert model.cfg.model_name == REPO
    assert model.tokenizer is not None
    assert hub.server.fetched("model.safetensors") == 1  # the other branches stay where they are


def test_a_second_load_comes_from_the_cache(hub):
    series = series_of(hub, [0])
    series.load(0)
    before = hub.server.fetched("model.safetensors")
    series_of(hub, [0]).load(0)
    assert hub.server.fetched("model.safetensors") == before == 1


@pytest.mark.parametrize("way", ["offline by variable", "hub not reachable"])
def test_a_restart_without_network_uses_what_is_cached(hub, tiny_model, ids, way):
    series_of(hub, [0, 1]).load(0)
    series_of(hub, [1]).load(1)
    hub.server.requests.clear()
    hub.point_at(
        "http://127.0.0.1:9" if way == "hub not reachable" else hub.server.url, offline=way != "hub not reachable"
    )
    if way == "hub not reachable":
        with pytest.warns(UserWarning, match="The hub did not answer"):
            again = series_of(hub)
    else:
        again = series_of(hub)
    assert again.steps == (0, 1)
    assert again.tokenizer("w3")["input_ids"] == [3]
    with torch.no_grad():
        torch.testing.assert_close(again[1](ids), tiny_model(1)(ids).logits, atol=1e-6, rtol=0)
    assert hub.server.requests == []
    hub.point_at(hub.server.url, offline=True)
    with pytest.raises(InputError, match=r"tiny/pythia has no checkpoint of step 1000; the nearest steps are: 0, 1\."):
        series_of(hub, [1000])


def test_without_network_and_cache_one_sentence_says_so(hub):
    online = series_of(hub)
    hub.point_at(NOWHERE)
    with pytest.raises(InputError, match=r"could not be reached and the list of branches of tiny/pythia is not in"):
        series_of(hub)
    with pytest.raises(InputError, match=r"The hub could not be reached and revision 'step0' of tiny/pythia is not"):
        online.load(0)
    hub.point_at(hub.server.url, offline=True)
    with pytest.raises(InputError, match=r"connect to the network once"):
        series_of(hub)


def test_a_step_that_is_not_on_the_hub_is_answered_with_the_nearest(hub):
    with pytest.raises(InputError, match=r"no checkpoint of step 900; the nearest steps are: 0, 1, 1000\."):
        series_of(hub, [0, 900])


def test_a_repository_that_is_not_there_and_a_name_that_cannot_be_one(hub):
    with pytest.raises(InputError, match=r"no model repository 'tiny/none' that you may read.*hf auth login"):
        CheckpointSeries.from_hub("tiny/none", cache_dir=hub.cache)
    with pytest.raises(InputError, match=r"'a/b/c' cannot be a hub repository"):
        CheckpointSeries.from_hub("a/b/c", cache_dir=hub.cache)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ((403, "GatedRepo"), "tiny/pythia is gated: accept its terms"),
        ((503, ""), "The hub refused the list of branches"),
    ],
)
def test_what_the_hub_refuses_is_told_with_its_reason(hub, refused, said):
    hub.server.refuse = refused
    with pytest.raises(InputError, match=said):
        series_of(hub)


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_hub_is_asked_again_and_then_named(hub, monkeypatch, status):
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == recovers_after:
            hub.server.refuse = None

    monkeypatch.setattr("tl_lifehist.checkpoints.hub.time.sleep", wait)
    recovers_after = 2
    hub.server.refuse = (status, "")
    assert series_of(hub).steps == (0, 1, 1000)
    assert waited == [1.0, 2.0]
    series = series_of(hub)
    recovers_after = 0
    hub.server.refuse = (status, "")
    for question in (series.plan, lambda: series.load(0)):
        with pytest.raises(InputError, match=rf"The hub refused revision 'step0' of tiny/pythia \(.*{status}"):
            question()


def test_a_page_that_is_no_hubs_is_told(hub, monkeypatch):
    from huggingface_hub import HfApi

    monkeypatch.setattr(HfApi, "list_repo_refs", lambda *_, **__: json.loads("<html>log in</html>"))
    with pytest.raises(InputError, match="is there a login page between you and the network"):
        series_of(hub)


def test_a_step_that_two_branches_claim_is_refused_only_where_it_is_wanted(hub):
    branches = hub.server.repos[REPO]
    odd = {"step0": "step0", "step5-tokens1B": "step1", "step5-tokens2B": "step1", "step9": "step1000"}
    hub.server.repos["tiny/odd"] = {name: branches[source] for name, source in odd.items()}
    assert CheckpointSeries.from_hub("tiny/odd", [0, 9], cache_dir=hub.cache).steps == (0, 9)
    for steps in (None, [0, 5]):
        with pytest.raises(InputError, match="two checkpoints of step 5, step5-tokens1B and step5-tokens2B"):
            CheckpointSeries.from_hub("tiny/odd", steps, cache_dir=hub.cache)


def test_a_hub_that_is_down_does_not_stop_what_is_cached(hub):
    series_of(hub, [1]).load(1)
    hub.server.refuse = (503, "")
    with pytest.warns(UserWarning, match=r"The hub did not answer \(.*503.*only those checkpoints of tiny/pythia"):
        again = series_of(hub)
    assert again.steps == (1,)
    assert again.load(1).cfg.model_name == REPO


def test_a_repository_whose_branches_are_no_checkpoints_is_refused(hub, run_folder):
    hub.server.repos["tiny/final"] = {"main": run_folder / "step0"}
    with pytest.raises(InputError, match="The branches of tiny/final hold no checkpoint"):
        CheckpointSeries.from_hub("tiny/final", cache_dir=hub.cache)


def test_a_branch_that_vanished_and_one_without_weights(hub, run_folder):
    series = series_of(hub)
    del hub.server.repos[REPO]["step1"]
    with pytest.raises(InputError, match="tiny/pythia has no revision 'step1'"):
        series.load(1)
    (run_folder / "step1000" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"Step 1000: .* holds no weights"):
        series.load(1000)
    report = series.verify()
    assert report.missing == (1, 1000)
    assert list(report.fingerprints) == [0]


def test_a_connection_that_breaks_in_the_middle_is_taken_up_again(hub, monkeypatch, tiny_model, ids):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)  # so that the part is on the disk
    hub.server.cut["model.safetensors"] = 20_000
    model = series_of(hub, [0]).load(0)
    assert hub.server.cut == {}
    assert hub.server.fetched("model.safetensors") == 2
    assert hub.server.ranges == ["bytes=20000-"]  # the rest only
    with torch.no_grad():
        torch.testing.assert_close(model(ids), tiny_model(0)(ids).logits, atol=1e-6, rtol=0)


def test_a_file_that_is_truncated_on_the_hub_is_refused(hub, run_folder):
    file = run_folder / "step1" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"Step 1: .*model\.safetensors is truncated or damaged"):
        series_of(hub).load(1)


def test_a_file_that_is_listed_and_not_there_is_told(hub):
    hub.server.absent.add("model.safetensors")
    with pytest.raises(InputError, match=r"Revision 'step1' of tiny/pythia lists a file that is not there: report it"):
        series_of(hub, [1]).load(1)


def test_pickled_weights_are_fetched_only_where_there_are_no_safetensors(hub, run_folder, tiny_model, ids):
    for step in (0, 1):
        torch.save(tiny_model(step).state_dict(), run_folder / f"step{step}" / "pytorch_model.bin")
    (run_folder / "step1" / "model.safetensors").unlink()
    series = series_of(hub, [0, 1])
    series.load(0)
    assert hub.server.fetched("pytorch_model.bin") == 0
    with torch.no_grad():
        torch.testing.assert_close(series[1](ids), tiny_model(1)(ids).logits, atol=1e-6, rtol=0)
    assert hub.server.fetched("pytorch_model.bin") == 1


def test_folders_on_the_main_branch_are_a_layout_too(hub, run_folder, tmp_path, tiny_model, ids):
    root = tmp_path / "folders"
    for step in (0, 1):
        shutil.copytree(run_folder / f"step{step}", root / f"ckpt-{step}" / "pt")
    hub.server.repos["tiny/folders"] = {"main": root}
    series = CheckpointSeries.from_hub("tiny/folders", subfolder="ckpt-{step}/pt", cache_dir=hub.cache, device="cpu")
    assert series.steps == (0, 1)
    assert series.tokenizer("w3")["input_ids"] == [3]
    with torch.no_grad():
        torch.testing.assert_close(series[1](ids), tiny_model(1)(ids).logits, atol=1e-6, rtol=0)
    assert not any("ckpt-0" in request for request in hub.server.requests if "/resolve/" in request)
    hub.point_at(hub.server.url, offline=True)
    cached = CheckpointSeries.from_hub("tiny/folders", subfolder="ckpt-{step}/pt", cache_dir=hub.cache)
    assert cached.steps == (1,)
    with pytest.raises(InputError, match=r"tiny/folders holds no folder that looks like 'x-\{step\}'"):
        CheckpointSeries.from_hub("tiny/folders", subfolder="x-{step}", cache_dir=hub.cache)


def test_the_size_to_fetch_is_known_before_and_a_step_can_be_dropped_after(hub, run_folder):
    series = series_of(hub, [0, 1])
    weights, config = ((run_folder / "step0" / name).stat().st_size for name in ("model.safetensors", "config.json"))
    torch.save({}, run_folder / "step0" / "pytorch_model.bin")  # stands beside the safetensors and will not be fetched
    assert series.download_size() == 2 * (weights + config)
    assert hub.server.fetched("model.safetensors") == 0
    series.load(0)
    # The configuration is the same file at both steps, and the tokenizer brought it along.
    assert series.download_size() == weights
    assert series.discard(0) >= weights
    assert series.download_size() == 2 * weights
    assert series.discard(0) == 0


def test_a_hub_series_is_portable_and_a_copy_loads_the_same(hub):
    series = series_of(hub, [0, 1000])
    assert series.tokenizer is not None
    assert series.is_portable
    copy = pickle.loads(pickle.dumps(series))  # noqa: S301 - our own
    hub.server.requests.clear()
    assert copy.steps == (0, 1000)
    assert not any(request.endswith("/refs") for request in hub.server.requests)
    assert copy.load(0).cfg.model_name == REPO


def test_the_real_client_finds_the_hub_by_its_own_variable(hub, tmp_path):
    script = (
        "from pathlib import Path; from tl_lifehist.checkpoints import hub; "
        f"print(hub.list_branches({REPO!r})); folder = hub.fetch_checkpoint({REPO!r}, 'step1'); "
        "print(sorted(p.name for p in Path(folder).iterdir()))"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.server.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
    }
    run = [sys.executable, "-W", "error", "-c", script]
    first = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    files = "['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']"
    assert first == ["['main', 'step0', 'step1', 'step1000']", files]
    offline = subprocess.run(
        run, env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=True
    )
    assert offline.stdout.splitlines() == ["['step1']", files]


def test_a_full_disk_is_told_apart_from_a_missing_network(monkeypatch, hub):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(InputError, match=r"could not be stored in the local cache .*No space left"):
        hub_module.fetch_checkpoint(REPO, "step0", cache_dir=hub.cache)

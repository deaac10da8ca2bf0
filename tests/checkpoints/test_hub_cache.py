"""What a sweep over the hub costs: asked before, given back after, and nothing printed where nobody watches."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from checkpoints.families import FAMILIES, build
from typer.testing import CliRunner

from tl_lifehist.checkpoints.listing import readable
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.cli import app
from tl_lifehist.errors import InputError

EUROBERT, COMPOSER = FAMILIES["EuroBERT"][2], "almanach/moderncamembert-base-ckpts"


@pytest.fixture
def from_hub(published):
    def open_series(repo, steps=None, **options):
        return CheckpointSeries.from_hub(repo, steps, cache_dir=published.cache, device="cpu", **options)

    return open_series


def blobs(published, repo):
    folder = published.cache / f"models--{repo.replace('/', '--')}" / "blobs"
    return {file.name: file.stat().st_size for file in folder.glob("*")}


def test_a_plan_counts_what_will_be_fetched_and_fetches_nothing(published, from_hub):
    folder = published.server.repos[EUROBERT]["step10000"]
    weights, config = ((folder / name).stat().st_size for name in ("pytorch_model.bin", "config.json"))
    series = from_hub(EUROBERT)
    table = series.plan()
    assert list(table.columns) == ["step", "revision", "tokens_billion", "size", "to_download"]
    assert list(table["step"]) == [10000, 480000]
    assert list(table["revision"]) == ["step10000", "step480000"]
    assert list(table["size"]) == list(table["to_download"]) == [weights + config] * 2
    assert not any("/resolve/" in request for request in published.server.requests)
    series.load(10000)
    # The configuration is one file of both branches.
    assert list(series.plan()["to_download"]) == [0, weights]
    assert series.download_size() == weights
    inside = from_hub(COMPOSER).plan()
    sizes = [(published.server.repos[COMPOSER]["main"] / name).stat().st_size for name in inside["revision"]]
    assert list(inside["size"]) == list(inside["to_download"]) == sizes


def test_a_plan_without_network_is_of_what_is_cached(published, from_hub):
    series = from_hub(EUROBERT)
    series.load(10000)
    online = series.plan()
    published.point_at("http://127.0.0.1:9")
    with pytest.warns(UserWarning, match="only those checkpoints of EuroBERT/EuroBERT-210m are known"):
        again = from_hub(EUROBERT)
    assert again.steps == (10000,)  # asking for its size did not make step 480000 one that is cached
    assert list(again.plan()["size"]) == [online["size"][0]]
    with pytest.raises(InputError, match=r"could not be reached and revision 'step480000'"):
        series.plan()


def test_a_step_that_is_not_kept_leaves_the_cache_and_its_neighbours_files_stay(published, from_hub, ids):
    kept = from_hub(EUROBERT, [480000])
    kept.load(480000)
    before = blobs(published, EUROBERT)
    series = from_hub(EUROBERT, keep=False)
    model = series.load(10000)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), build("EuroBERT", 0)(ids).logits, atol=1e-5, rtol=0)
    assert blobs(published, EUROBERT) == before  # the configuration too, which both branches have
    published.point_at(published.server.url, offline=True)
    assert kept.load(480000) is not None


def test_a_step_whose_commit_another_branch_shares_stays_until_that_is_dropped_too(published, from_hub):
    branches = published.server.repos[EUROBERT]
    published.server.repos["tiny/twins"] = {"step20": branches["step10000"], "step30": branches["step10000"]}
    series = from_hub("tiny/twins")
    for step in (20, 30):
        series.load(step)
    assert series.discard(20) == 0
    published.point_at(published.server.url, offline=True)
    assert from_hub("tiny/twins").steps == (30,)
    assert series.load(30) is not None
    assert series.discard(30) > 10_000
    assert blobs(published, "tiny/twins") == {}


def test_a_composer_file_that_is_not_kept_leaves_the_cache(published, from_hub):
    series = from_hub(COMPOSER, keep=False)
    series.load(1000)
    assert blobs(published, COMPOSER) == {}
    kept = from_hub(COMPOSER)
    kept.load(1000)
    kept.load(3000)
    size = (published.server.repos[COMPOSER]["main"] / "ep0-ba1000-rank0.pt").stat().st_size
    assert kept.discard(1000) == size
    assert sum(blobs(published, COMPOSER).values()) == size  # step 3000's is as large
    assert kept.discard(1000) == 0
    assert kept.load(3000) is not None


def test_a_blob_that_two_folders_share_stays_until_the_last_is_dropped(published, from_hub, tmp_path):
    root = tmp_path / "twins"
    for step in (1, 2):
        build("Llama", 0).save_pretrained(root / f"step{step}")
    published.server.repos["tiny/twins"] = {"main": root}
    series = from_hub("tiny/twins")
    series.load(1)
    series.load(2)
    assert series.discard(1) == 0
    assert series.load(2) is not None
    assert series.discard(2) == sum(file.stat().st_size for file in (root / "step2").glob("*model*")) + sum(
        (root / "step2" / name).stat().st_size for name in ("config.json",)
    )


def test_verify_names_a_duplicated_branch_and_a_branch_with_a_duplicated_block(published, from_hub, tmp_path):
    first, copied = build("EuroBERT", 0), build("EuroBERT", 7)
    copied.model.layers[1].load_state_dict(first.model.layers[1].state_dict())
    copied.save_pretrained(tmp_path / "partial")
    branches = published.server.repos[EUROBERT]
    published.server.repos["tiny/faulty"] = {
        "step10": branches["step10000"],
        "step20": branches["step480000"],
        "step30": branches["step480000"],
        "step40": tmp_path / "partial",
    }
    report = from_hub("tiny/faulty", keep=False).verify(progress=False)
    found = {(d.step_a, d.step_b): d for d in report.duplicates}
    assert set(found) == {(20, 30), (10, 40)}
    assert found[20, 30].whole
    assert found[10, 40].groups == ("block 1",)
    assert "Steps 20 and 30 are identical." in str(report)
    assert "Steps 10 and 40 share the weights of block 1." in str(report)


def test_every_masked_model_is_fingerprinted_by_embedding_blocks_and_head(from_hub):
    from tl_lifehist.checkpoints.integrity import fingerprint

    for repo, step in ((EUROBERT, 10000), (COMPOSER, 1000)):
        groups = list(fingerprint(from_hub(repo, [step]).load(step)))
        assert groups == ["embedding", "block 0", "block 1", "block 2", "head", "rest"]


def test_a_tokenizer_without_bos_stays_as_it_is(published, from_hub, masked_tokenizer):
    series = from_hub(EUROBERT)
    model = series.load(10000)
    assert masked_tokenizer.bos_token_id is None
    assert series.tokenizer.bos_token_id is None
    assert series.tokenizer("w5 w6", add_special_tokens=False)["input_ids"] == [5, 6]
    assert model.tokenizer is not series.tokenizer  # the bridge may add to its own copy
    assert len(series.tokenizer) == len(masked_tokenizer)


def test_a_download_is_silent_in_a_pipe(published, tmp_path):
    script = (
        "from tl_lifehist.checkpoints.series import CheckpointSeries; from tl_lifehist.checkpoints import hub; "
        f"CheckpointSeries.from_hub({EUROBERT!r}).plan(); hub.fetch_checkpoint({EUROBERT!r}, 'step10000')"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")}
    environment |= {"HF_ENDPOINT": published.server.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")


def test_the_command_lists_steps_tokens_sizes_and_revisions(published, monkeypatch, run_folder):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(published.cache))
    olmo = CliRunner().invoke(app, ["checkpoints", "allenai/OLMo-1B-hf"]).output.splitlines()
    assert olmo[0].split() == ["step", "tokens", "size", "to", "download", "revision"]
    size = sum(
        (published.server.repos["allenai/OLMo-1B-hf"]["step1000-tokens4B"] / name).stat().st_size
        for name in ("config.json", "model.safetensors")
    )
    assert olmo[1].split("  ")[-1] == "step1000-tokens4B"
    assert olmo[1].split()[:2] == ["1000", "4B"]
    assert olmo[1].count(readable(size)) == 2
    assert olmo[3] == f"allenai/OLMo-1B-hf: 2 checkpoints of {readable(2 * size)}, {readable(2 * size)} to download."
    limited = CliRunner().invoke(app, ["checkpoints", str(run_folder), "--limit", "1"]).output.splitlines()
    assert [line.split()[0] for line in limited] == ["step", "0", "run:"]
    assert limited[-1].endswith("0 B to download, 2 more are not shown.")
    assert CliRunner().invoke(app, ["checkpoints", "tiny/none"]).exit_code == 2


def test_sizes_are_written_for_people():
    assert [readable(n) for n in (0, 999, 1000, 1_234_567, 5e9, 2e12, 3e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "5.0 GB",
        "2.0 TB",
        "3000.0 TB",
    ]

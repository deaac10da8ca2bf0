from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tl_lifehist.cli import app
from tl_lifehist.console import open_series, open_texts
from tl_lifehist.errors import InputError
from tl_lifehist.written import read_documents

RUNNER = CliRunner()


def test_help_comes_at_once_and_imports_nothing_heavy():
    code = (
        "import sys, tl_lifehist.cli as c; sys.exit(any(m in sys.modules for m in ('torch', "
        "'transformer_lens', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"])
    bare = time.perf_counter() - started
    started = time.perf_counter()
    shown = subprocess.run([sys.executable, "-m", "tl_lifehist.cli", "--help"], capture_output=True, text=True)
    assert time.perf_counter() - started < bare + 3  # half a second on a quiet machine
    assert "life-history" in shown.stdout


def test_a_study_from_the_command_line(tmp_path, saelens):
    texts = tmp_path / "texts.jsonl"
    from tl_lifehist.checkpoints.pocket import pocket_texts

    texts.write_text("".join(json.dumps({"text": text}) + "\n" for _, text in pocket_texts("test")))
    sizes = "--d-sae 32 --k 4 --training-tokens 2000 --n-draws 3 --load-tokens 200 --workers 0"
    sizes += " --n-permutations 5 --n-repeats 2 --regression-sets 8 --content-draws 3"
    where = ["--texts", str(texts), "--out", str(tmp_path / "run")]
    arguments = ["life-history", "--steps", "0,4096", "--layers", "1", *where, *sizes.split()]
    shown = RUNNER.invoke(app, [*arguments, "--quiet"])
    assert shown.exit_code == 0, shown.output
    assert shown.output == f"report: {tmp_path / 'run' / 'report.html'}\n"  # quiet: the path alone
    assert (tmp_path / "run" / "report.html").exists()
    again = RUNNER.invoke(app, ["report", str(tmp_path / "run")])
    assert again.output.strip().endswith("report.html")
    status = RUNNER.invoke(app, ["status", str(tmp_path / "run")])
    assert status.output.splitlines()[-1] == f"{len(status.output.splitlines()) - 1} done"
    same = RUNNER.invoke(app, arguments)
    assert "persistent carriers" in same.output
    assert "about 40x" in same.output
    assert "used again: check/step0" in same.output
    assert "computed" not in same.output
    (tmp_path / "run" / "tables" / "events.parquet").unlink()
    status = RUNNER.invoke(app, ["status", str(tmp_path / "run")])
    assert "damaged  events.parquet is missing" in status.output
    changed = RUNNER.invoke(app, [*arguments, "--level", "0.01", "--dry-run"])
    assert "computed (damaged: events.parquet is missing): tables" not in changed.output  # it is stale as well
    assert "computed (stale: level: 0.05 → 0.01): load/count, load/rate, load/mass" in changed.output


def test_a_file_says_what_options_say_and_options_go_before_it(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("steps = [0, 4096]\nlayers = [1]\nseed = 3\n[sae]\nk = 5\n[matching]\nmin_similarity = 0.4\n")
    where = ["--out", str(tmp_path / "run"), "--dry-run"]
    shown = RUNNER.invoke(app, ["life-history", "--config", str(file), "--k", "6", *where])
    assert shown.exit_code == 0, shown.output
    printed = shown.output[: shown.output.index("\nstep  tokens")]
    (tmp_path / "again.toml").write_text(printed)
    for line in ("steps = [0, 4096]", "seed = 3", "k = 6  #", "min_similarity = 0.4  #", "min_lift = 2.0  #"):
        assert line in printed
    again = RUNNER.invoke(app, ["life-history", "--config", str(tmp_path / "again.toml"), "--dry-run"])
    assert again.output == shown.output
    file.write_text("seeed = 3\n")
    wrong = RUNNER.invoke(app, ["life-history", "--config", str(file), *where])
    assert "'seeed' is no key of a configuration file; the nearest are: seed" in wrong.output
    file.write_text("seed = \n")
    assert "is not TOML" in RUNNER.invoke(app, ["life-history", "--config", str(file), *where]).output
    missing = RUNNER.invoke(app, ["life-history", "--config", str(tmp_path / "none.toml"), *where])
    assert missing.exit_code == 2
    assert "no configuration file" in missing.output


@pytest.mark.parametrize("command", ["life-history", "sufficiency"])
def test_every_setting_is_an_option(command: str):
    from tl_lifehist.config import options
    from tl_lifehist.lifehistory.config import LifeHistoryConfig
    from tl_lifehist.sufficiency.config import SufficiencyConfig

    shown = RUNNER.invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    for _, one in options({"life-history": LifeHistoryConfig, "sufficiency": SufficiencyConfig}[command]):
        assert f"--{one.name.replace('_', '-')}" in shown, one.name
    for name in ("--config", "--threads", "--seed", "--dry-run"):
        assert name in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0,7"], "no checkpoint of step 7"),
        (["--steps", "zero"], "--steps takes whole numbers"),
        (["--layers", "9"], "no hook point 'blocks.9.hook_resid_post'"),
        (["--texts", "nowhere.txt"], "no text file nowhere.txt"),
        (["--init", "warm"], "init='warm' is unknown"),
    ],
)
def test_mistakes_are_one_sentence_and_status_2(tmp_path, saelens, arguments: list[str], message: str):
    shown = RUNNER.invoke(
        app, ["life-history", "--out", str(tmp_path / "run"), "--workers", "0", "--quiet", *arguments]
    )
    assert shown.exit_code == 2
    assert message in shown.output.replace("\n", " ")
    assert "Traceback" not in shown.output


def test_a_mistake_in_the_hook_point_does_not_claim_the_folder(tmp_path):
    where = ["--steps", "512,4096", "--layers", "1", "--out", str(tmp_path / "run"), "--workers", "0", "--quiet"]
    wrong = RUNNER.invoke(app, ["life-history", "--sites", "hook_mlp_outt", *where])
    assert wrong.exit_code == 2
    assert "the nearest names are: blocks.1.hook_mlp_out" in wrong.output
    small = "--methods svd --targets reconstruction --n-components 4 --mask-steps 2 --seeds 0 --sequences 8,4,4"
    right = RUNNER.invoke(app, ["sufficiency", *small.split(), "--translator-steps", "1", *where])
    assert right.exit_code == 0, right.output


def test_a_series_without_text_of_its_own_needs_a_file(tmp_path):
    from tl_lifehist.checkpoints.pocket import pocket_path, pocket_tokenizer

    for step in (0, 4096):
        shutil.copytree(pocket_path() / f"step{step}", tmp_path / "series" / f"step{step}")
    pocket_tokenizer().save_pretrained(tmp_path / "series")
    series = open_series(str(tmp_path / "series"), [])
    with pytest.raises(InputError, match=r"no text of its own: name a file of its language with --texts"):
        open_texts(series, None, ("train", "test"), context_size=128)
    train, test = open_texts(series, Path("pocket"), ("train", "test"), context_size=128)
    own = open_texts(open_series("pocket", []), None, ("train", "test"), context_size=128)
    assert [len(train), len(test)] == [len(tokens) for tokens in own]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sequences", "8,4"], "--sequences takes three numbers above 0"),
        (["--sweep", "a"], "--sweep takes numbers separated by commas"),
        (["--stage", "2"], "The pocket suite takes no --stage"),
        (["--config-from", "x/y"], "The pocket suite takes no --config-from"),
    ],
)
def test_mistakes_in_sizes_and_layout_are_named(tmp_path, arguments: list[str], message: str):
    shown = RUNNER.invoke(app, ["sufficiency", "--out", str(tmp_path / "run"), "--dry-run", *arguments])
    assert shown.exit_code == 2
    assert message in shown.output


def test_the_package_itself_is_the_command():
    shown = subprocess.run([sys.executable, "-m", "tl_lifehist", "--help"], capture_output=True, text=True)
    assert "Usage: tl-lifehist" in shown.stdout


GOOD = b'{"text": "a document"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("texts.jsonl", GOOD + b'{"body": "a document"}\n', 'line 2: there is no string under "text"'),
        ("texts.jsonl", GOOD + b'\n{"text": 3}\n', 'line 3: there is no string under "text"'),
        ("texts.jsonl", b'["a document"]\n', 'line 1: there is no string under "text"'),
        ("texts.jsonl", b"null\n", 'line 1: there is no string under "text"'),
        ("texts.jsonl", GOOD * 6 + b'{"text": "cut o', "line 7: this is not JSON"),
        ("texts.jsonl", b"a plain line\n", "line 1: this is not JSON"),
        ("texts.jsonl", b'{"text": "caf\xe9"}\n', "is not UTF-8 (byte 13)"),
        ("texts.txt", "café\n\n".encode("latin-1") * 6, "is not UTF-8 (byte 3)"),
        ("texts.jsonl", GOOD * 4, "holds 4 of the 5 documents"),
    ],
)
def test_bad_text_files_are_named_in_one_sentence(tmp_path, name: str, content: bytes, message: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_documents(path)
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_line_separator_within_a_document_ends_no_line(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "one\u2028document"}\n' * 5, encoding="utf-8-sig")
    assert read_documents(path) == ["one\u2028document"] * 5


def test_an_interrupt_says_that_the_same_command_goes_on(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("tl_lifehist.sufficiency.study.SufficiencyStudy.run", interrupted)
    shown = RUNNER.invoke(app, ["sufficiency", "--steps", "512,4096", "--out", str(tmp_path / "run"), "--workers", "0"])
    assert shown.exit_code == 130
    assert "interrupted; the same command goes on" in shown.output


def test_a_folder_that_is_not_there_is_no_repository_and_an_unfinished_run_has_no_report(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    shown = RUNNER.invoke(app, ["checkpoints", "runs/nothere"])
    assert shown.exit_code == 2
    assert "There is no folder 'runs/nothere'" in shown.output
    (tmp_path / "runs" / "study.json").write_text('{"study": "sufficiency"}')
    unfinished = RUNNER.invoke(app, ["report", "runs"])
    assert unfinished.exit_code == 2
    assert "report:" not in unfinished.output


def test_a_causal_model_is_not_scored_as_a_masked_one():
    with pytest.raises(InputError, match=r"pocket is a causal language model by its configuration: leave out --masked"):
        open_texts(open_series("pocket", []), None, ("train", "test"), context_size=128, masked=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 512", "steps takes a list of whole numbers or a string, not 512."),
        ("layers = 1", "layers takes a list of whole numbers or a string, not 1."),
        ("layers = [0.5]", "layers takes a list of whole numbers or a string, not [0.5]."),
        ("sites = 3", "sites takes a list of strings or a string, not 3."),
        ('sites = ""', "--sites names no hook point within a block"),
        ("hook_names = [1]", "hook_names takes a list of strings or a string, not [1]."),
        ("out = 5", "out takes a string, not 5."),
        ("texts = 3", "texts takes a string or nothing, not 3."),
        ("model = 3", "model takes a string, not 3."),
        ('context_size = "64"', "context_size takes a whole number, not '64'."),
        ('threads = "two"', "threads takes a whole number, not 'two'."),
        ("threads = 0", "threads=0 must be at least 1."),
        ('workers = "two"', "workers takes a whole number, not 'two'."),
        ("workers = -1", "workers=-1 must be at least 0."),
        ('seed = "x"', "seed takes a whole number, not 'x'."),
        ("seed = -5", "seed=-5 must not be below 0."),
        ("seed = 2026-01-01", "seed takes a whole number, not datetime.date(2026, 1, 1)."),
        ('allow_duplicates = "false"', "allow_duplicates takes true or false, not 'false'."),
        ("quiet = 1", "quiet takes true or false, not 1."),
        ('layers = [1]\nhook_names = ["blocks.1.hook_mlp_out"]', "The file has hook_names and layers"),
        ("layers = [1]\n[forecast]\nonset = 77", "onset=77 is no step of the series"),
    ],
)
def test_values_in_a_file_are_checked_as_options_are(tmp_path, text: str, message: str):
    assert message in _planned(tmp_path, "life-history", text, code=2)


def test_three_sizes_in_a_file_are_whole_numbers(tmp_path):
    shown = _planned(tmp_path, "sufficiency", 'sequences = ["a", 2, 3]', code=2)
    assert "sequences takes a list of whole numbers or a string, not ['a', 2, 3]." in shown


def _planned(tmp_path: Path, command: str, text: str, *arguments: str, code: int = 0) -> str:
    (tmp_path / "run.toml").write_text(text)
    out = [] if text.startswith("out") else ["--out", str(tmp_path / "run")]
    steps = [] if text.startswith("steps") else ["--steps", "0,4096"]
    shown = RUNNER.invoke(app, [command, "--config", str(tmp_path / "run.toml"), "--dry-run", *out, *steps, *arguments])
    assert shown.exit_code == code, shown.output
    assert "Traceback" not in shown.output
    return shown.output


def test_where_hook_points_are_what_is_written_goes_before_the_file(tmp_path):
    named = 'hook_names = ["blocks.1.hook_mlp_out"]\n'
    assert 'hook_names = ["blocks.1.hook_mlp_out"]' in _planned(tmp_path, "life-history", named)
    blocks = _planned(tmp_path, "life-history", named, "--layers", "3")
    assert 'layers = "3"' in blocks
    assert "hook_names" not in blocks
    site = _planned(tmp_path, "life-history", named, "--sites", "hook_attn_out")
    assert "hook_names" not in site
    whole = _planned(tmp_path, "life-history", "layers = [3]\n", "--hook-names", "blocks.2.hook_mlp_out")
    assert 'hook_names = "blocks.2.hook_mlp_out"' in whole
    assert "layers" not in whole
    both = _planned(tmp_path, "life-history", "", "--hook-names", "blocks.2.hook_mlp_out", "--layers", "3", code=2)
    assert "--hook-names and --layers both say where: leave one of them out." in both


def test_a_file_and_what_is_written_are_one_before_they_are_checked(tmp_path):
    assert "k = 4  #" in _planned(tmp_path, "life-history", "[sae]\nd_sae = 16\n", "--k", "4")
    assert "k=32 features of d_sae=16" in _planned(tmp_path, "life-history", "[sae]\nd_sae = 16\n", code=2)
    as_number = _planned(tmp_path, "life-history", "[matching]\nmin_similarity = 1\n")
    assert as_number == _planned(tmp_path, "life-history", "", "--min-similarity", "1")


def test_what_is_no_sae_or_of_another_width_is_refused():
    from types import SimpleNamespace

    import torch

    import tl_lifehist as lh

    series, hook = lh.CheckpointSeries.pocket().subset([0, 4096]), "blocks.1.hook_resid_post"

    def refused(saes: object, message: str, hook_name: str = hook) -> None:
        with pytest.raises(InputError, match=message):
            lh.LifeHistoryStudy(series, [hook_name], saes=saes)

    def wide(width: int, hook_name: str) -> dict[tuple[int, str], object]:
        sae = SimpleNamespace(W_dec=torch.zeros(12, width), cfg=None, state_dict=dict)
        return {(step, hook_name): sae for step in series.steps}

    refused(5, r"saes= takes no int: give what lh\.train_saes returns")
    refused([1], r"saes= takes no list: give what lh\.train_saes returns")
    refused(dict.fromkeys(wide(96, hook), "sae"), r"saes= has no SAE but str for \(0, 'blocks\.1\.hook_resid_post'\)")
    for site in ("hook_resid_post", "hook_mlp_out", "hook_attn_out"):
        name = f"blocks.1.{site}"
        refused(wide(7, name), f"for activations of width 7, and the model's are {series.shape.d_model} wide", name)
        assert lh.LifeHistoryStudy(series, [name], saes=wide(series.shape.d_model, name)).saes is not None
    inner = "blocks.1.mlp.hook_post"  # as wide as its layer
    assert lh.LifeHistoryStudy(series, [inner], saes=wide(7, inner)).saes is not None


def test_a_study_refuses_a_seed_below_0_and_an_onset_that_is_no_step():
    import tl_lifehist as lh

    series = lh.CheckpointSeries.pocket().subset([0, 4096])
    with pytest.raises(InputError, match="seed=-5 must not be below 0"):
        lh.LifeHistoryStudy(series, ["blocks.1.hook_resid_post"], seed=-5)
    with pytest.raises(InputError, match=r"onset=77 is no step of the series, which has \[0, 4096\]"):
        lh.LifeHistoryStudy(series, ["blocks.1.hook_resid_post"], onset=77)

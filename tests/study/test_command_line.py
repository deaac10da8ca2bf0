from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from tl_lifehist.cli import app
from tl_lifehist.console import _documents
from tl_lifehist.errors import InputError

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
    sizes = "--d-sae 32 --k 4 --training-tokens 2000 --draws 3 --load-tokens 200 --workers 0 --quiet"
    where = ["--texts", str(texts), "--out", str(tmp_path / "run")]
    arguments = ["life-history", "--steps", "0,4096", "--layers", "1", *where, *sizes.split()]
    shown = RUNNER.invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "persistent carriers" in shown.output
    assert "about 40x" in shown.output
    assert (tmp_path / "run" / "report.html").exists()
    again = RUNNER.invoke(app, ["report", str(tmp_path / "run")])
    assert again.output.strip().endswith("report.html")


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
        ("texts.jsonl", GOOD * 4, "holds 4 documents"),
    ],
)
def test_bad_text_files_are_named_in_one_sentence(tmp_path, name: str, content: bytes, message: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        _documents(path)
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_line_separator_within_a_document_ends_no_line(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "one\u2028document"}\n' * 5, encoding="utf-8-sig")
    assert _documents(path) == ["one\u2028document"] * 5

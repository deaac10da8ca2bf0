"""A mistake in an argument is answered before anything heavy is imported, in under two seconds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("torch", "pandas", "scipy", "sklearn", "transformers", "transformer_lens", "sae_lens", "plotly")
CODE = f"""
import sys
from tl_lifehist.cli import app
try:
    app(sys.argv[1:], prog_name="tl-lifehist")
except SystemExit as leaving:
    print(*[name for name in {HEAVY} if name in sys.modules])
    sys.exit(leaving.code)
"""
MISTAKES = {
    "life-history --steps 0,7": "pocket has no checkpoint of step 7",
    "life-history --steps zero": "--steps takes whole numbers",
    "life-history --layers 9": "no hook point 'blocks.9.hook_resid_post'",
    "life-history --controls mas": "controls=['mas']: name some of ['count', 'rate', 'mass'",
    "life-history --init warm": "init='warm' is unknown",
    "life-history --k 600 --d-sae 500": "k=600 features of d_sae=500",
    "life-history --texts nowhere.txt": "There is no text file nowhere.txt",
    "life-history --model nowhere/at/all": "There is no folder 'nowhere/at/all'",
    "life-history --model here --texts pocket": "here",
    "life-history --saes nowhere": "There is no folder nowhere with SAEs",
    "life-history --masked": "pocket is a causal language model",
    "life-history --onset 77": "onset=77 is no step of the series",
    "life-history --config nowhere.toml": "no configuration file",
    "sufficiency --methods pca": "methods=['pca']: name some of ['svd'",
    "sufficiency --targets all": "targets=['all']: name some of ['reconstruction'",
    "sufficiency --sequences 1,2": "--sequences takes three numbers",
    "sufficiency --life-history nowhere": "nowhere holds no study.json",
    "sufficiency --stage 2": "The pocket suite takes no --stage",
    "report nowhere": "nowhere holds no study.json",
    "status nowhere": "nowhere holds no study.json",
    "compare nowhere there": "nowhere holds no study.json",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_answered_at_once(arguments: str, tmp_path: Path):
    (tmp_path / "here").mkdir()
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments.split()], cwd=tmp_path, capture_output=True, text=True
    )
    took = time.perf_counter() - started
    assert done.returncode == 2, done.stderr
    assert MISTAKES[arguments] in done.stderr
    assert done.stdout.split() == []  # nothing heavy
    assert took < 2 + 8 * (arguments == next(iter(MISTAKES)))  # the first one writes bytecode

"""Kill a study again and again and let it go on: nothing finished is computed twice, and the tables end up the same.

make survive                     # 30 kills
make survive ARGS="--kills 5"
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

import tl_lifehist as lh
from tl_lifehist.store import Store

SCRIPT = """
import sys, tl_lifehist as lh
series = lh.CheckpointSeries.pocket().subset([0, 128, 1024, 4096])
lh.LifeHistoryStudy(
    series, ["blocks.0.hook_resid_post", "blocks.3.hook_resid_post"], train=lh.TokenSet.pocket("train")[::12],
    test=lh.TokenSet.pocket("test")[::6], d_sae=64, k=8, training_tokens=6000, n_draws=5, load_tokens=500,
).run(sys.argv[1])
"""


def finished(out: Path) -> dict[str, int]:
    """Stages that are there, with the moment each was made."""
    store = Store(out)
    return {name: store.folder(name).stat().st_ctime_ns for name in store.stages()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        whole, out = Path(scratch) / "whole", Path(scratch) / "killed"
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", SCRIPT, str(whole)], check=True, env=environment)
        length = time.perf_counter() - started
        print(f"uninterrupted: {length:.0f} s, {len(finished(whole))} stages")
        kept: dict[str, int] = {}
        for kill in range(args.kills):
            process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)], env=environment)
            wait = draw.uniform(4, 14)
            try:
                process.wait(timeout=wait)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            now = finished(out)
            again = [name for name, stamp in kept.items() if now.get(name) != stamp]
            state = "ended by itself" if process.returncode == 0 else "killed"
            print(f"kill {kill + 1:2d}: {state} after {wait:4.1f} s, {len(now)} stages, computed again: {len(again)}")
            if again:
                raise SystemExit(f"computed twice: {again}")
            kept = now
        subprocess.run([sys.executable, "-c", SCRIPT, str(out)], check=True, env=environment)
        a, b = lh.load_run(whole), lh.load_run(out)
        assert a.tables == b.tables, (a.tables, b.tables)
        for name in a.tables:
            pd.testing.assert_frame_equal(a.table(name), b.table(name), check_exact=True, obj=name)
        print(f"after {args.kills} kills the {len(a.tables)} tables are identical to those of the uninterrupted run")


if __name__ == "__main__":
    main()

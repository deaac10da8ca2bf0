"""Every architecture of the tests' zoo through everything that replaces activations: the table of docs/models/which.md.

    python benchmarks/which_models.py            # prints the table
    python benchmarks/which_models.py --write    # puts it into the page

The error is the largest difference from full passes with plain hooks, over the size of what it should be; gradients are
compared with central differences, which are good to about 1e-6 here.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from zoo.architectures import ZOO  # noqa: E402
from zoo.walk import WALK, Site, error, hook_names_of  # noqa: E402

import tl_lifehist as lh  # noqa: E402

PAGE = ROOT / "docs" / "models" / "which.md"
BEGIN, END = "<!-- table of benchmarks/which_models.py -->", "<!-- end of the table -->"


def row_of(name: str) -> str:
    """One line: how the model is run, what is refused, and the largest error of the rest."""
    worst, whole, refused, why = 0.0, 0, set[str](), ""
    for hook_name in hook_names_of(name):
        site = Site(ZOO[name](), hook_name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for way, walk in WALK.items():
                try:
                    worst = max(worst, error(walk(site)))
                except lh.InputError as found:
                    refused.add(way)
                    why = _reason(str(found))
        whole += any("whole model is run" in str(one.message) for one in caught)
    n_hooks = len(hook_names_of(name))
    if len(refused) == len(WALK):
        return f"| {name} | refused: {why} | |"
    how = {0: "in part", n_hooks: "whole"}.get(whole, "whole where it has to be")
    if not hasattr(site.model, "blocks"):
        how = "whole, as there is nothing to pass by"
    if refused:
        how += f"; {', '.join(way for way in WALK if way in refused)} refused: {why}"
    return f"| {name} | {how} | {worst:.0e} |"


def _reason(message: str) -> str:
    reasons = {
        "fired 2 times": "its hook points fire twice in a pass",
        "noise or keeps a state": "two passes differ",
        "other sequences": "sequences depend on their batch",
        "no gradient": "no gradient to be had",
    }
    return next(reason for words, reason in reasons.items() if words in message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    write = parser.parse_args().write
    torch.set_num_threads(1)
    torch.manual_seed(0)  # of the models that draw noise
    lines = ["| architecture | run | largest error |", "|---|---|---|", *(row_of(name) for name in ZOO)]
    print("\n".join(lines))
    if write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

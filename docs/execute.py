"""Run the Python blocks of a page and write what they print into the text blocks that follow them.

make tutorial
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import warnings
from pathlib import Path

import pandas as pd

BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?P<output>\n```text\n.*?```\n)?", re.DOTALL)


def execute(code: str, names: dict) -> str:
    """What the code prints, and the value of its last line where that is an expression, as a notebook shows it."""
    tree, shown = ast.parse(code), io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(shown):
        exec(compile(tree, "page", "exec"), names)  # noqa: S102 - our own page
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "page", "eval"), names)  # noqa: S307
            if value is not None:
                print(value.to_string(index=False) if isinstance(value, pd.DataFrame) else value)
    return shown.getvalue()


def main(page: Path) -> None:
    pd.set_option("display.width", 120, "display.float_format", "{:.3g}".format)
    warnings.simplefilter("ignore")
    names: dict = {}

    def fill(found: re.Match) -> str:
        printed = execute(found["code"], names)
        block = f"```python\n{found['code']}```\n"
        return block + (f"\n```text\n{printed.rstrip()}\n```\n" if found["output"] else "")

    page.write_text(BLOCK.sub(fill, page.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

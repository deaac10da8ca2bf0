"""What a series is made of, before anything is fetched: steps, tokens, where they lie, and how large they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tl_lifehist.checkpoints.revisions import read_path
from tl_lifehist.checkpoints.sources import Source

if TYPE_CHECKING:
    import pandas as pd


def plan_of(source: Source, steps: tuple[int, ...]) -> pd.DataFrame:
    """The table that `CheckpointSeries.plan` returns."""
    import pandas as pd

    places = [source.place(step) for step in steps]
    named = [read_path(place) for place in places]
    sizes = source.sizes(steps)
    return pd.DataFrame(
        {
            "step": list(steps),
            "revision": places,
            "tokens_billion": pd.array([None if n is None else n.tokens_billion for n in named], dtype="Int64"),
            "size": [size.size for size in sizes],
            "to_download": [size.to_download for size in sizes],
        }
    )


def write_listing(name: str, table: pd.DataFrame, echo: Callable[[str], object], *, left_out: int = 0) -> None:
    """Write the plan of the series `name` as text: one line per step, and one with the sums and the number of steps
    that the plan leaves out."""
    import pandas as pd

    rows = [("step", "tokens", "size", "to download", "revision")]
    for row in table.to_dict("records"):
        tokens = "" if pd.isna(row["tokens_billion"]) else f"{row['tokens_billion']}B"
        sizes = readable(row["size"]), readable(row["to_download"])
        rows.append((str(row["step"]), tokens, *sizes, row["revision"]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        echo("  ".join([*(value.rjust(width) for value, width in zip(row, widths, strict=False)), row[4]]))
    more = f", {left_out} more are not shown" if left_out else ""
    echo(
        f"{name}: {len(table)} checkpoint{'s' * (len(table) != 1)} of {readable(int(table['size'].sum()))}, "
        f"{readable(int(table['to_download'].sum()))} to download{more}."
    )


def readable(n_bytes: float) -> str:
    """`1234567` -> `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"

"""Tables of runs as text on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tl_lifehist.runs import Run


def print_comparison(a: Path, b: Path) -> None:
    """The settings in which two runs differ, then their claims, one under the other."""
    import warnings

    from tl_lifehist.comparison import FIGURES, compare_runs, few_in_common, settings_that_differ
    from tl_lifehist.runs import load_run

    runs = load_run(a), load_run(b)
    names = [str(a), str(b)] if a.name == b.name else [a.name, b.name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said below
        both = compare_runs(*runs)
    others = [[str(cell) for cell in row] for row in settings_that_differ(*runs).itertuples(index=False)]
    if others:
        _print(["setting", *names], others, "Settings that differ")
    else:
        typer.echo("No setting, text or version differs.")
    tables = [run.claims for run in runs]
    shared = len(set(tables[0]["id"]) & set(tables[1]["id"]))
    typer.echo(few_in_common(*tables) or f"{shared} of {len(both)} claims are in both runs.")
    shown = [name for name in FIGURES if f"{name}_a" in both and name not in ("low", "high", "unit", "of")]
    place = shown.index("null" if "effect" not in shown else "effect") + 1
    rows = []
    for row in both.to_dict("records"):
        for name, end, known in zip(names, "ab", tables, strict=True):
            side = {name: row[f"{name}_{end}"] for name in FIGURES if f"{name}_{end}" in row}
            if row["id"] in set(known["id"]):
                cells = [_cell(side, figure) for figure in shown]
                cells.insert(place, f"{_short(side.get('low'))} to {_short(side.get('high'))}")
            else:
                cells = ["not in this run", *[""] * len(shown)]
            rows.append([str(row["claim"]) if end == "a" else "", name, *cells])
    headings = list(shown)
    headings.insert(place, "95 % of it")
    _print(["claim", "run", *headings], rows, "Claims")


def _cell(row: Mapping[str, Any], figure: str) -> str:
    value = row[figure]
    if figure == "n":
        return _count(row)
    return _short(value) if not isinstance(value, str) else value


def print_calibration(path: Path, n_worlds: int, seed: int) -> None:
    """False positives and power of each tested claim of a run."""
    from tl_lifehist.calibrate import calibrate_claims
    from tl_lifehist.runs import load_run

    rows = []
    for row in calibrate_claims(load_run(path), n_worlds=n_worlds, seed=seed).to_dict("records"):
        effect = "none" if row["effect"] == 0 else _short(row["effect"])
        band = f"{_short(row['low'])} to {_short(row['high'])}"
        rows.append([str(row["id"]), effect, str(row["unit"]), _short(row["rejected"]), band, str(row["n_tested"])])
    columns = ["claim", "effect", "unit", "rejected", "95 %", "tested"]
    _print(columns, rows, f"{n_worlds} worlds of each effect")


def print_run(run: Run) -> None:
    """What was reduced, our figures beside the published ones, and what was found."""
    say_reduced(run.study["reduced"])
    published = run.table("published")
    cells = [[str(value) for value in row] for row in published.itertuples(index=False)]
    _print(list(published.columns), cells, "Ours beside the published figures")
    claims = run.claims
    rows = [
        [str(row["verdict"]), str(row["sentence"] or row["claim"]), _short(row["q"]), _count(row)]
        for row in claims[claims["headline"]].to_dict("records")
    ]
    _print(["verdict", "what was found", "q", "n"], rows, "Claims")
    typer.echo(f"{int((~claims['headline']).sum())} more figures are described in the report, without a test.")


def say_reduced(reduced: Mapping[str, str]) -> None:
    """What was made smaller than the full study."""
    for what, how in reduced.items():
        typer.echo(f"reduced: {what}: {how}")


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """A table; a pipe gets it in a width at which nothing is cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: what stands in brackets is no markup
    _console().print(table)


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def _short(value: Any) -> str:
    return "-" if value is None or value != value else f"{value:.3g}"


def _count(row: Mapping[Any, Any]) -> str:
    """The sample size, with what it counts where the table says so."""
    if row["n"] is None or row["n"] != row["n"]:
        return "-"
    return f"{int(row['n']):,} {row.get('of') or ''}".strip()

"""Write the page on the tables of runs from their declarations.

python docs/write_tables.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tl_lifehist.report.tables import TABLES
from tl_lifehist.tables import Table

PAGE = Path(__file__).parent / "tables.md"
HEADINGS = {"life-history": "A life-history run", "sufficiency": "A sufficiency run"}
METHODS = {"life-history": "methods/life-history.md", "sufficiency": "methods/sufficiency.md"}
ABOUT = """# The tables of a run

<!-- written by docs/write_tables.py -->

`run.table("carriers")` reads one, `run.tables` names them, and `tables/*.parquet` of the run folder can be read
without this package. A row is what the first line says. *Stage* is what computes the table: `tables` joins what other
stages left; where another stage is named, the table is that stage's own, unchanged. Floats may be missing (NaN). In an
empty table, columns have no type.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [ABOUT]
    for study, tables in TABLES.items():
        parts.append(f"\n## {HEADINGS[study]}\n\nDefinitions and formulas: [method page]({METHODS[study]}).\n")
        parts += [section for table in tables.values() for section in _section(table)]
    return "".join(parts)


def _section(table: Table) -> Iterator[str]:
    there = f" There if {table.condition}." if table.condition else ""
    yield f"\n### {table.name}\n\n{table.about} Stage: `{table.producer}`.{there}\n"
    yield "\n| column | type | unit | |\n|---|---|---|---|\n"
    for name, column in table.columns.items():
        about = f"{column.about}; there if {column.condition}" if column.condition else column.about
        yield f"| `{name}` | {column.kind} | {column.unit} | {about.replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

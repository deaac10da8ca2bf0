"""What a table of a run holds, declared once: for the report, for the page on tables, and for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# of values, and numpy's letters for them; whole numbers become floats where some are missing
KINDS = {"int": "iu", "int or missing": "iuf", "float": "f", "bool": "b", "str": "OTU"}


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        kind: of its values, one of `KINDS`; "float" may be missing, "str" None.
        about: what it says, in a few words.
        unit: "nats", "share", "steps", ...; empty where there is none.
        condition: when it is there, where that is not always.
    """

    kind: str
    about: str
    unit: str = ""
    condition: str = ""

    def holds(self, dtype: Any) -> bool:
        """Whether values of a pandas dtype are of this kind."""
        return dtype.kind in KINDS[self.kind]


@dataclass(frozen=True)
class Table:
    """One table of a run.

    Attributes:
        name: as in `run.table(name)`.
        about: what a row is, and what the table is for.
        columns: by name, in the table's order.
        producer: the stage that computes it; "tables" for what joins several.
        condition: when it is there, where that is not always.
    """

    name: str
    about: str
    columns: Mapping[str, Column]
    producer: str
    condition: str = ""

    @property
    def always(self) -> list[str]:
        """Names of the columns that are there in every run."""
        return [name for name, column in self.columns.items() if not column.condition]

    def difference(self, frame: Any) -> str:
        """In what a DataFrame is not this table, in a few words; nothing where it is."""
        wanted = [name for name, column in self.columns.items() if not column.condition or name in frame]
        if list(frame.columns) != wanted:
            return f"{self.name} has the columns {list(frame.columns)}, not {wanted}"
        wrong = [f"{name} ({frame[name].dtype})" for name in wanted if not self.columns[name].holds(frame[name].dtype)]
        return f"{self.name} has values of another kind in {', '.join(wrong)}" if wrong and len(frame) else ""


def integer(about: str, unit: str = "", condition: str = "") -> Column:
    """A column of whole numbers."""
    return Column("int", about, unit, condition)


def number(about: str, unit: str = "", condition: str = "") -> Column:
    """A column of floating-point numbers."""
    return Column("float", about, unit, condition)


def flag(about: str) -> Column:
    """A column of true and false."""
    return Column("bool", about)


def text(about: str, condition: str = "") -> Column:
    """A column of strings."""
    return Column("str", about, "", condition)


def by_name(*tables: Table) -> dict[str, Table]:
    """Tables as a mapping, in this order."""
    return {table.name: table for table in tables}


CLAIMS = Table(
    "claims",
    "A claim of the run beside its null.",
    {
        "id": text("what the claim is called in every run"),
        "claim": text("the claim in words"),
        "headline": flag("it is tested, together with the study's other headline claims"),
        "verdict": text('"beyond", "within", "not testable", or "descriptive" for what is not tested'),
        "sentence": text("what was found, in plain words; empty for what is not tested"),
        "observed": number("the run's figure, in the claim's unit"),
        "null": number("the same figure under the null, on average"),
        "effect": number("observed less null, or what a null of its own is taken out of"),
        "low": number("2.5 % of the effect"),
        "high": number("97.5 % of the effect"),
        "unit": text("of observed, null, effect, low, high and detectable"),
        "p": number("how often the null gives as much", "share"),
        "q": number("the same, the headline claims controlled together (Benjamini-Hochberg)", "share"),
        "n": integer("sample size"),
        "of": text("what n counts"),
        "detectable": number("least effect that the test finds four times out of five at this n"),
        "false_positives": number("how often the test errs in planted worlds of the run's size", "share"),
        "note": text("null, sample and procedure in words"),
    },
    "tables",
)

CALIBRATION = Table(
    "calibration",
    "How often the test of a claim rejects in planted worlds of the run's size.",
    {
        "id": text("of the claim"),
        "effect": number("planted effect; 0: there is nothing, so that every rejection is false"),
        "unit": text("of the effect"),
        "n_worlds": integer("worlds"),
        "n_tested": integer("worlds in which the claim is testable", "worlds"),
        "rejected": number("of these, those in which the test rejects", "share"),
        "low": number("2.5 % of it (Wilson)", "share"),
        "high": number("97.5 % of it", "share"),
    },
    "calibration",
)

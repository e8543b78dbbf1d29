"""Which column of SQLite has values of which type, in both directions; columns say little there, values have types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.connectors.sqlite.database import Affinity, TableColumn, folded
from penstock.errors import PipelineError
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT64,
    FLOATS,
    INT64,
    INTEGERS,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Scalar,
    Schema,
    StructType,
)

MOST_REAL_DIGITS: Final = 15
"""As many digits of a decimal number survive in a column that makes it a number with a floating point."""


@dataclass(frozen=True, slots=True)
class Stored:
    """How values of a type are kept."""

    declared: str
    """The type of a column that is made for them."""
    value: Scalar
    """What SQLite is given."""
    takes: tuple[Affinity, ...]
    """Columns that keep what they are given as it is."""


_TEXT: Final = Stored("TEXT", STRING, ("text", "blob"))
_SCALARS: Final[Mapping[str, Stored]] = {
    "boolean": Stored("BOOLEAN", INT64, ("numeric", "integer", "blob")),
    "float32": Stored("REAL", FLOAT64, ("real", "numeric", "blob")),
    "float64": Stored("REAL", FLOAT64, ("real", "numeric", "blob")),
    "string": _TEXT,
    "binary": Stored("BLOB", BINARY, ("blob",)),
    "date": Stored("DATE", STRING, ("numeric", "text", "blob")),
    "time": Stored("TIME", STRING, ("numeric", "text", "blob")),
    "timestamp": Stored("TIMESTAMP", STRING, ("numeric", "text", "blob")),
    "duration": _TEXT,
}
_INTEGER: Final = Stored("INTEGER", INT64, ("integer", "numeric", "blob"))
_DIGITS: Final = re.compile(r"(?:NUMERIC|DECIMAL|DEC|NUMBER)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_NAMED: Final[Mapping[str, DataType]] = {
    "BOOLEAN": BOOLEAN, "BOOL": BOOLEAN, "DATE": DATE, "TIME": TIME, "DATETIME": TIMESTAMP, "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP, "TIMESTAMP WITH TIME ZONE": TIMESTAMP, "NUMERIC": FLOAT64, "DECIMAL": FLOAT64,
    "DEC": FLOAT64, "NUMBER": FLOAT64, "BLOB": BINARY,
}  # fmt: skip
_OF_AFFINITY: Final[Mapping[Affinity, DataType]] = {"integer": INT64, "text": STRING, "real": FLOAT64}


def stored(kind: DataType, where: str) -> Stored:
    """How values of a type are kept.

    Raises:
        PipelineError: they cannot be.
    """
    if isinstance(kind, ListType | MapType | StructType):
        return _TEXT
    if isinstance(kind, DecimalType):
        numbers: tuple[Affinity, ...] = ("numeric",) if kind.precision <= MOST_REAL_DIGITS else ()
        return Stored("TEXT", STRING, ("text", "blob", *numbers))
    if kind in INTEGERS:
        return _INTEGER
    if kind.name not in _SCALARS:
        raise PipelineError(f"{where} is {kind}, which SQLite has no column for; drop it, or cast it before")
    return _SCALARS[kind.name]


def check_columns(schema: Schema, what: str) -> None:
    """Raise `PipelineError` if a table cannot have such columns; `what` leads the error."""
    seen: dict[str, str] = {}
    for field in schema:
        stored(field.type, f"{what}: {field.name}")
        if (same := seen.setdefault(folded(field.name), field.name)) != field.name:
            raise PipelineError(
                f"{what}: {same} and {field.name} are one name to SQLite, which does not tell small letters from "
                "capital ones; rename one of them before"
            )


def never_holds(column: TableColumn, kind: DataType) -> bool:
    """Whether no value of a column can be of this type, because SQLite makes another one of all."""
    if kind in INTEGERS or kind == BOOLEAN:
        return column.affinity in ("text", "real")
    return kind in FLOATS and column.affinity == "text"


def inferred(columns: Iterable[TableColumn], where: str) -> Schema:
    """The schema that declared types say.

    Raises:
        PipelineError: some say none; names them.
    """
    kinds = [(column, _declared(column.declared, column.affinity)) for column in columns]
    silent = [f"{column.name} ({column.declared or 'none'})" for column, kind in kinds if kind is None]
    if silent:
        raise PipelineError(
            f"{where}the declared types of these columns do not say what is in them: {', '.join(silent)}; give schema=, "
            "a dataclass with a field per column"
        )
    return Schema(
        tuple(
            Field(column.name, kind, not (column.not_null or column.is_rowid))
            for column, kind in kinds
            if kind is not None
        )
    )


def _declared(declared: str, affinity: Affinity) -> DataType | None:
    words = " ".join(declared.upper().split())
    if (digits := _DIGITS.fullmatch(words)) is not None:
        precision, scale = int(digits[1]), int(digits[2] or 0)
        return DecimalType(precision, scale) if 1 <= precision <= 38 and scale <= precision else None
    without_length = re.sub(r"\s*\([^)]*\)", "", words)
    return _NAMED.get(without_length) or _OF_AFFINITY.get(affinity)

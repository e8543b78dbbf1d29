"""What the footer of a Parquet file proves of the rows of a row group, without reading them.

Only what is certain counts: statistics that are missing, types that differ from the declared ones and floats (whose NaN
statistics leave out) prove nothing. Minima and maxima of text may be cut; they bound the values all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.core.times import to_micros
from penstock.errors import PipelineError
from penstock.expressions.nodes import Alias, Call, Column, Literal
from penstock.formats.columns import MAX_MICROS, MIN_MICROS
from penstock.types import DATE, INTEGERS, STRING, TIMESTAMP, DataType, Field, Schema, of_arrow

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connectors.event_times import EventTimeForm
    from penstock.expressions import Expr
    from penstock.expressions.nodes import Node

_COMPARED: Final = frozenset({*INTEGERS, STRING, DATE, TIMESTAMP})
_CAST: Final = ("timestamp", "duration", "time", "decimal", "dictionary", "date")
"""Arrow types of which values may be no values of ours."""
_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}


@dataclass(frozen=True)
class _Facts:
    """What is known of a column."""

    least: Any = None
    most: Any = None
    nulls: int | None = None


@dataclass(frozen=True)
class GroupFacts:
    """What is known of a row group."""

    rows: int
    columns: Mapping[str, _Facts]
    schema: pa.Schema

    @classmethod
    def of(cls, group: Any, schema: pa.Schema) -> GroupFacts:
        """From the metadata of a row group of a file with this schema."""
        found: dict[str, _Facts] = {}
        for index in range(group.num_columns):
            column = group.column(index)
            if "." not in column.path_in_schema:  # a value within another one says little of that
                found[column.path_in_schema] = _facts(column)
        return cls(group.num_rows, found, schema)

    def is_sound(self, field: Field) -> bool:
        """Whether no value of a column can make its row a bad one."""
        index = self.schema.get_field_index(field.name)
        if index < 0:
            return True  # null or its default, which was checked
        kind: Any = self.schema.field(index).type
        known = self.columns.get(field.name, _Facts())
        if not field.nullable and known.nulls != 0:
            return False
        if field.type == TIMESTAMP:
            return str(kind).startswith("timestamp[us, tz=") and self._is_in_calendar(known, TIMESTAMP)
        if field.type == DATE:
            return str(kind) == "date32[day]" and self._is_in_calendar(known, DATE)
        return not any(word in str(kind) for word in _CAST) and _is_of(kind, field.type)

    def _is_in_calendar(self, known: _Facts, kind: DataType) -> bool:
        """Days that Python has no value for are no bounds."""
        if known.nulls == self.rows:
            return True
        bounds = [_value(each, kind) for each in (known.least, known.most)]
        return all(each is not None and (kind == DATE or MIN_MICROS <= each <= MAX_MICROS) for each in bounds)

    def has_event_times(self, form: EventTimeForm | None, reach_us: int) -> bool:
        """Whether every row has an event time, as far from the ends of the calendar as windows need it."""
        if form is None:
            return True
        node = form.expression.node
        if form.hidden or form.kind != TIMESTAMP or not isinstance(node, Column):
            return False
        known = self.columns.get(node.name, _Facts())
        if known.nulls != 0 or not self.is_sound(Field(node.name, TIMESTAMP)):
            return False
        bounds = [_value(each, TIMESTAMP) for each in (known.least, known.most)]
        return all(each is not None and MIN_MICROS + reach_us <= each <= MAX_MICROS - reach_us for each in bounds)

    def may_be_true(self, predicate: Expr, schema: Schema) -> bool:
        """Whether the condition may hold for a row; False only if it holds for none."""
        return self._may(predicate.node, schema)

    def _may(self, node: Node, schema: Schema) -> bool:
        match node:
            case Alias(operand=operand):
                return self._may(operand, schema)
            case Call(function="and", args=args):
                return all(self._may(arg, schema) for arg in args)
            case Call(function="or", args=args):
                return any(self._may(arg, schema) for arg in args)
            case Call(function="is_null", args=(Column(name),)):
                return self._known(name, schema).nulls != 0
            case Call(function="is_not_null", args=(Column(name),)):
                return self._known(name, schema).nulls != self.rows
            case Call(function="is_in", args=(Column(name), *values)):
                return any(self._compares("eq", name, value, schema) for value in values)
            case Call(function="is_between", args=(Column(name), low, high)):
                return self._compares("ge", name, low, schema) and self._compares("le", name, high, schema)
            case Call(function=function, args=(Column(name), Literal() as value)) if function in _MIRRORED:
                return self._compares(function, name, value, schema)
            case Call(function=function, args=(Literal() as value, Column(name))) if function in _MIRRORED:
                return self._compares(_MIRRORED[function], name, value, schema)
            case _:
                return True

    def _known(self, name: str, schema: Schema) -> _Facts:
        """What is known of a column if it has the declared type."""
        index = self.schema.get_field_index(name)
        if index < 0 or name not in schema or not _is_of(self.schema.field(index).type, schema.field(name).type):
            return _Facts()
        return self.columns.get(name, _Facts())

    def _compares(self, function: str, name: str, literal: Node, schema: Schema) -> bool:
        if not isinstance(literal, Literal) or literal.value is None or name not in schema:
            return True  # a column that a folder names is in no file
        known, kind = self._known(name, schema), schema.field(name).type
        if kind not in _COMPARED:
            return True
        if known.nulls == self.rows:
            return False
        value, least, most = (_value(each, kind) for each in (literal.value, known.least, known.most))
        if value is None or least is None or most is None:
            return True
        match function:
            case "lt":
                return least < value
            case "le":
                return least <= value
            case "gt":
                return most > value
            case "ge":
                return most >= value
            case _:
                return least <= value <= most


def _facts(column: Any) -> _Facts:
    try:
        known = column.statistics
        if known is None:
            return _Facts()
        nulls = known.null_count if known.has_null_count else None
        return _Facts(known.min, known.max, nulls) if known.has_min_max else _Facts(nulls=nulls)
    except (ValueError, OverflowError, UnicodeDecodeError, NotImplementedError):  # bounds that Python has no value for
        return _Facts()


def _is_of(kind: pa.DataType, declared: DataType) -> bool:
    """Whether the file has just the declared type."""
    if str(kind).startswith("timestamp") and not str(kind).startswith("timestamp[us, tz="):
        return False
    try:
        return of_arrow(kind, "") == declared
    except PipelineError:
        return False


def _value(value: Any, kind: DataType) -> Any:
    """A value as it is compared with others of the type; None if it is none of it."""
    match value:
        case bool() | None:
            return None
        case int() if kind in INTEGERS:
            return value
        case str() if kind == STRING:
            return value
        case datetime() if kind == TIMESTAMP:
            return to_micros(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
        case date() if kind == DATE and not isinstance(value, datetime):
            return value
        case _:
            return None

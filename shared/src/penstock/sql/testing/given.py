"""The rows that INSERT INTO of a test gives to a table, as its connector would read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from penstock.connectors.base import ChangeSource, Source
from penstock.connectors.keyed_rows import RETRACTED
from penstock.core.decimals import units_of
from penstock.errors import PipelineError, nearest
from penstock.expressions import to_polars
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.names import Scope, alike
from penstock.sql.binding.relations import Relation
from penstock.sql.binding.seeds import one_row
from penstock.sql.catalogue import DeclaredTable
from penstock.sql.connectors import TableSettings, connector_of, source_of
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.constants import moment_of
from penstock.sql.syntax import Constant, Insert, Name, Part, Values
from penstock.sql.testing.changes import KINDS, OP
from penstock.sql.testing.tables import holds
from penstock.types import (
    ANY_NUMBER,
    DATE,
    FLOATS,
    NULL,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    family,
    polars_type,
)

_TIMES: Final = frozenset[DataType]({DATE, TIME, TIMESTAMP})
_NO_COLUMNS: Final = Schema((Field("is_row", NULL),))


@dataclass(frozen=True)
class GivenTable:
    """A table that a test gives rows to."""

    context: Context
    """Of the file of tests."""
    table: DeclaredTable

    def rows(self, part: Insert) -> list[dict[str, Any]]:
        """The rows of a statement, as dicts of the columns that the source of the table reads.

        Raises:
            SqlError: they are no constants, too many or too few for the columns, or not of their types.
        """
        body = part.query.body
        if not isinstance(body, Values) or part.query.tables or part.query.order or part.query.limit:
            raise self.context.error(part.query, "a test gives rows by VALUES: INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        if part.overwrite:
            raise self.context.error(part, "a test gives rows by INSERT INTO; leave OVERWRITE out")
        source = self._source(part)
        names = self._names(part, source)
        return [self._row(row, names, source) for row in body.rows]

    def _source(self, part: Insert) -> Source[Any] | None:
        """What reads the table; None if it is asked for rows by their key."""
        name = self.table.statement.name
        kind = connector_of(self._settings)
        if kind.source is None and kind.lookup is not None:
            return None
        if kind.source is None:
            raise self.context.error(
                part.table,
                f"{name} cannot be read: '{kind.name}' is for INSERT INTO of the program; give rows to others",
            )
        with self.table.context.at(self.table.statement.span):
            return source_of(name, self._settings)

    @cached_property
    def _settings(self) -> TableSettings:
        return self.table.settings()

    @cached_property
    def _binds(self) -> tuple[Scope, Expressions]:
        """Of values that read no columns."""
        scope = Scope(self.context.text, Relation(one_row(self.context.plan), ()))
        return scope, Expressions(self.context, _NO_COLUMNS)

    @cached_property
    def _columns(self) -> dict[str, Field]:
        """Those that the connector gives, in the order of the table."""
        types = {each.name: each for each in self._settings.schema}
        return {each.name: types[each.name] for each in self.table.statement.columns if each.computed is None}

    def _names(self, part: Insert, source: Source[Any] | None) -> list[str]:
        known = [*self._columns]
        if not part.columns:
            return known
        found: list[str] = []
        for each in part.columns:
            name = alike(each.parts[-1], [*known, *([] if OP in known else [OP])])
            if name is None:
                raise self.context.error(each, self._unknown(each, known))
            if name in found:
                raise self.context.error(each, f"{each} is there twice")
            if name == OP and OP not in known and not isinstance(source, ChangeSource):
                raise self.context.error(
                    each, f"rows of {self.table.statement.name} are never replaced, so all of them are +I; leave op out"
                )
            found.append(name)
        return found

    def _unknown(self, name: Name, known: Sequence[str]) -> str:
        computed = [each.name for each in self.table.statement.columns if each.computed is not None]
        if name.parts[-1] in computed:
            return f"{name} is computed; leave it out"
        return f"{name} is no column of {self.table.statement.name}; {nearest(str(name), known)}"

    def _row(self, parts: Sequence[Part], names: Sequence[str], source: Source[Any] | None) -> dict[str, Any]:
        span = parts[0].span.to(parts[-1].span)
        if len(parts) != len(names):
            raise self.context.error(
                span, f"the row has {_counted(len(parts))}, and there are {len(names)} columns: {', '.join(names)}"
            )
        columns = self._columns
        row: dict[str, Any] = {}
        retracted = False
        for name, part in zip(names, parts, strict=True):
            if name in columns:
                row[name] = self._value(part, columns[name])
            else:
                retracted = self._kind(part) in ("-U", "-D")
        nullable = source.schema if retracted and source is not None else self._settings.schema
        for each in nullable:
            if each.name in columns and not each.nullable and row.get(each.name) is None:
                place = parts[names.index(each.name)].span if each.name in names else span
                raise self.context.error(place, f"{each.name} is NOT NULL; give it a value")
        return {**row, RETRACTED: retracted} if isinstance(source, ChangeSource) else row

    def _kind(self, part: Part) -> str:
        if not isinstance(part, Constant) or part.value not in KINDS:
            raise self.context.error(part, f"op says what the row does: {', '.join(map(repr, KINDS))}")
        return str(part.value)

    # -- values ---------------------------------------------------------------------------------------------------------

    def _value(self, part: Part, field: Field) -> Any:
        kind = field.type
        if isinstance(part, Constant) and isinstance(part.value, str) and kind in _TIMES:
            with self.context.at(part.span):
                return moment_of(part.value, kind, field.name)
        scope, binds = self._binds
        argument = binds.bind(scope.resolve(part))
        value = argument.value if argument.is_constant else self._computed(part, argument.expr)
        try:
            return _as_type(value, argument.type, kind)
        except ValueError:
            what = "a number" if family(argument.type) in ANY_NUMBER else sql_name(argument.type)
            shown = self.context.text.at(part.span)
            raise self.context.error(
                part, f"{shown} is {what}, and {field.name} is {sql_name(kind)}, which does not hold it"
            ) from None

    def _computed(self, part: Part, expr: Any) -> Any:
        import polars as pl

        with self.context.at(part.span):
            try:
                frame = pl.DataFrame({"is_row": [None]}, schema={"is_row": polars_type(NULL)})
                return frame.select(to_polars(expr, _NO_COLUMNS).alias("value")).row(0)[0]
            except (pl.exceptions.PolarsError, ValueError, OverflowError) as error:
                raise PipelineError(f"this cannot be computed: {error}") from error


def _counted(values: int) -> str:
    return f"{values} value" if values == 1 else f"{values} values"


def _as_type(value: Any, own: DataType, kind: DataType) -> Any:
    """A value of one type as one of another, as sources take it.

    Raises:
        ValueError: the type does not hold it.
    """
    if value is None:
        return None
    match own, kind:
        case ListType(inner=given), ListType(inner=inner):
            return [_as_type(each, given, inner) for each in value]
        case MapType(value=given), MapType(value=inner):
            return {key: _as_type(each, given, inner) for key, each in value.items()}
        case StructType(fields=given), StructType(fields=fields) if len(given) == len(fields):
            pairs = zip(given, fields, strict=True)
            return {each.name: _as_type(value[one.name], one.type, each.type) for one, each in pairs}
        case _ if family(own) in ANY_NUMBER and family(kind) in ANY_NUMBER:
            return _number(value, kind)
        case _ if (own, kind) == (DATE, TIMESTAMP):
            return datetime.combine(value, time(), UTC)
        case _ if own == kind:
            return value
        case _:
            raise ValueError(value)


def _number(value: float | Decimal, kind: DataType) -> float | Decimal:
    if kind in FLOATS:
        return float(value)
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if isinstance(kind, DecimalType):
        if units_of(exact, kind.precision, kind.scale) is not None:
            return exact
    elif exact.is_finite() and exact == exact.to_integral_value() and holds(kind, int(exact)):
        return int(exact)
    raise ValueError(value)

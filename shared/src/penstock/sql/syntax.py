"""The tree of a text: what the parser makes and the binder reads.

Every part knows its place in the text. Two parts are equal if they say the same, wherever they stand and however they are
formatted: that is how an expression of SELECT is known to be one of GROUP BY.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any, Literal, TypeVar

from penstock.sql.text import Span
from penstock.types import DataType

NOWHERE = Span(0, 0)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a tree."""

    span: Span = field(default=NOWHERE, compare=False, repr=False)


P = TypeVar("P", bound=Part)


def parts_of(part: Part) -> Iterator[Part]:
    """The part and all within it, those of subqueries included, parents first."""
    pending: list[Any] = [part]
    while pending:
        found = pending.pop()
        if isinstance(found, Part):
            yield found
            pending += reversed([getattr(found, each.name) for each in fields(found)])
        elif isinstance(found, tuple):
            pending += reversed(found)  # pyright: ignore[reportUnknownArgumentType]


# -- expressions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Name(Part):
    """A column, by its name alone or behind a table's, or a field of a row: `price`, `b.price`, `b.item.size`."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class Star(Part):
    """`*` or `b.*`, all columns; `EXCLUDE (a, b)` leaves some out."""

    table: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Constant(Part):
    """A number, a text, bytes, TRUE, FALSE or NULL."""

    value: bool | int | float | Decimal | str | bytes | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str]:
        """True is no 1, and 1.0 has another type than 1."""
        return type(self.value).__name__, repr(self.value)


@dataclass(frozen=True)
class TimeConstant(Part):
    """`DATE '2020-01-31'`, `TIME '10:00:00'`, `TIMESTAMP '2020-01-31 10:00:00'`."""

    kind: Literal["DATE", "TIME", "TIMESTAMP"]
    text: str


@dataclass(frozen=True)
class Interval(Part):
    """`INTERVAL '1 10' DAY TO HOUR`."""

    text: str
    unit: str
    to: str | None = None


@dataclass(frozen=True)
class OrderItem(Part):
    """One expression of ORDER BY."""

    expression: Part
    descending: bool = False
    nulls_last: bool | None = None
    """None where the text does not say it."""


@dataclass(frozen=True)
class FrameBound(Part):
    """One end of a frame. `distance` is None for UNBOUNDED, and for CURRENT ROW."""

    kind: Literal["preceding", "current", "following"]
    distance: Part | None = None


@dataclass(frozen=True)
class Frame(Part):
    """`ROWS BETWEEN ... AND ...`."""

    unit: Literal["ROWS", "RANGE", "GROUPS"]
    start: FrameBound
    end: FrameBound


@dataclass(frozen=True)
class Window(Part):
    """What stands behind OVER in parentheses; `base` is a window of the WINDOW clause that it begins with."""

    partition: tuple[Part, ...] = ()
    order: tuple[OrderItem, ...] = ()
    frame: Frame | None = None
    base: str | None = None


@dataclass(frozen=True)
class Call(Part):
    """A function, or an operator by its symbol or keywords (`"+"`, `"LIKE"`)."""

    function: str
    """In upper case, unless it is a user's."""
    arguments: tuple[Part, ...]
    options: tuple[tuple[str, Any], ...] = ()
    """What keywords within the parentheses say; values are constants, types or parts."""
    distinct: bool = False
    filter: Part | None = None
    order: tuple[OrderItem, ...] = ()
    """`LISTAGG(x) WITHIN GROUP (ORDER BY ...)`, `ARRAY_AGG(x ORDER BY ...)`."""
    over: Window | None = None
    ignore_nulls: bool | None = None
    """True for IGNORE NULLS, False for RESPECT NULLS; None if the text says neither."""
    name: Span = field(default=NOWHERE, compare=False, repr=False)
    """Where the name of the function stands."""


@dataclass(frozen=True)
class Cast(Part):
    """`CAST(x AS type)`; `strict` is false for TRY_CAST."""

    operand: Part
    type: DataType
    length: tuple[str, int] | None = None
    """`("VARCHAR", 10)` and the like, which the type does not say."""
    strict: bool = True


@dataclass(frozen=True)
class FieldOf(Part):
    """`(expression).field`."""

    operand: Part
    field: str


@dataclass(frozen=True)
class Subquery(Part):
    """A query that is a value: one row, one column."""

    query: Query


@dataclass(frozen=True)
class Exists(Part):
    """`EXISTS (query)`."""

    query: Query


@dataclass(frozen=True)
class InQuery(Part):
    """`(a, b) IN (query)`; several values stand in a tuple. `NOT IN` is the call `NOT` of it."""

    values: tuple[Part, ...]
    query: Query


@dataclass(frozen=True)
class Quantified(Part):
    """`x > ALL (query)`, `x = ANY (query)`."""

    operand: Part
    operator: str
    quantifier: Literal["ALL", "ANY"]
    query: Query


@dataclass(frozen=True)
class TableArgument(Part):
    """`TABLE bids` as an argument of a function, perhaps with PARTITION BY and ORDER BY."""

    table: Part
    partition: tuple[Part, ...] = ()
    order: tuple[OrderItem, ...] = ()


@dataclass(frozen=True)
class Descriptor(Part):
    """`DESCRIPTOR(ts)`."""

    columns: tuple[Name, ...]


@dataclass(frozen=True)
class NamedArgument(Part):
    """`name => value`."""

    name: str
    value: Part
    place: Span = field(default=NOWHERE, compare=False, repr=False)
    """Where the name stands."""


# -- queries ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hint(Part):
    """One of `/*+ OPTIONS('a' = 'b'), STATE_TTL('t' = '1 d') */`."""

    name: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TableName(Part):
    """A table, a view or a query of WITH, by name."""

    name: tuple[str, ...]
    alias: str | None = None
    columns: tuple[str, ...] = ()
    as_of: Part | None = None
    """The moment of `FOR SYSTEM_TIME AS OF`."""
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True)
class DerivedTable(Part):
    """A query in FROM."""

    query: Query
    alias: str | None = None
    columns: tuple[str, ...] = ()
    lateral: bool = False


@dataclass(frozen=True)
class TableFunction(Part):
    """A call that gives rows: `UNNEST(tags)`, `TUMBLE(TABLE bids, ...)`, `read_csv('a.csv')`, a user's function."""

    call: Call
    alias: str | None = None
    columns: tuple[str, ...] = ()
    lateral: bool = False
    ordinality: bool = False


JoinKind = Literal["inner", "left", "right", "full", "cross"]


@dataclass(frozen=True)
class Joined(Part):
    """Two tables that are joined. A comma is a cross join."""

    kind: JoinKind
    left: Part
    right: Part
    condition: Part | None = None
    using: tuple[Name, ...] = ()
    natural: bool = False


@dataclass(frozen=True)
class SelectItem(Part):
    """One column of SELECT."""

    expression: Part
    alias: str | None = None


@dataclass(frozen=True)
class GroupingSets(Part):
    """`GROUPING SETS (...)`, `ROLLUP (...)`, `CUBE (...)`; what stands in parentheses together is one member."""

    kind: Literal["GROUPING SETS", "ROLLUP", "CUBE"]
    members: tuple[tuple[Part, ...] | GroupingSets, ...]


@dataclass(frozen=True)
class Select(Part):
    """One SELECT."""

    items: tuple[SelectItem, ...]
    distinct: bool = False
    tables: Part | None = None
    where: Part | None = None
    group: tuple[Part, ...] | None = None
    having: Part | None = None
    windows: tuple[tuple[str, Window], ...] = ()
    qualify: Part | None = None
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True)
class Values(Part):
    """`VALUES (1, 'a'), (2, 'b')`."""

    rows: tuple[tuple[Part, ...], ...]


@dataclass(frozen=True)
class SetOperation(Part):
    """`left UNION [ALL] right`."""

    kind: Literal["UNION", "INTERSECT", "EXCEPT"]
    all: bool
    left: Part
    right: Part


@dataclass(frozen=True)
class CommonTable(Part):
    """`name (columns) AS (query)` of WITH."""

    name: str
    columns: tuple[str, ...]
    query: Query


@dataclass(frozen=True)
class Query(Part):
    """A query as a whole: `body` is a `Select`, `Values`, `SetOperation` or a `Query` in parentheses."""

    body: Part
    tables: tuple[CommonTable, ...] = ()
    order: tuple[OrderItem, ...] = ()
    limit: Part | None = None
    offset: Part | None = None


# -- row patterns -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PatternVariable(Part):
    """A row, by the name of its variable."""

    name: str


@dataclass(frozen=True)
class PatternSequence(Part):
    """Patterns one after the other; what stands in `{- -}` is not shown."""

    parts: tuple[Part, ...]
    shown: bool = True


@dataclass(frozen=True)
class PatternAlternatives(Part):
    """`A | B`, the first of which is preferred."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class PatternPermutation(Part):
    """`PERMUTE(A, B)`: one behind the other in any order, `A B` preferred to `B A`."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class PatternRepetition(Part):
    """`A{2,3}?`; `most` is None for any number."""

    part: Part
    least: int
    most: int | None
    greedy: bool


@dataclass(frozen=True)
class SkipTo(Part):
    """`AFTER MATCH SKIP`; `variable` is that of `TO FIRST` and `TO LAST`."""

    to: Literal["next", "past_last", "first", "last"]
    variable: str = ""


@dataclass(frozen=True)
class MatchRecognize(Part):
    """`table MATCH_RECOGNIZE (...)`."""

    table: Part
    pattern: Part
    define: tuple[SelectItem, ...]
    """Conditions; each has its variable as alias."""
    partition: tuple[Part, ...] = ()
    order: tuple[OrderItem, ...] = ()
    measures: tuple[SelectItem, ...] = ()
    all_rows: bool = False
    skip: SkipTo = SkipTo("past_last")
    within: Part | None = None
    subsets: tuple[tuple[PatternVariable, tuple[PatternVariable, ...]], ...] = ()
    alias: str | None = None
    columns: tuple[str, ...] = ()


# -- statements ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting(Part):
    """`'key' = 'value'` of WITH."""

    key: str
    value: str


@dataclass(frozen=True)
class ColumnDefinition(Part):
    """A column of CREATE TABLE: a physical one has a type, a computed one an expression, a metadata one both names.

    A column that has neither a type nor an expression is one of the query of CREATE TABLE ... AS."""

    name: str
    type: DataType | None
    nullable: bool = True
    computed: Part | None = None
    metadata: str | None = None
    """The name of the metadata that the column shows."""
    virtual: bool = False


@dataclass(frozen=True)
class Watermark(Part):
    """`WATERMARK FOR ts AS ts - INTERVAL '5' SECOND`."""

    column: str
    expression: Part


@dataclass(frozen=True)
class CreateTable(Part):
    """`CREATE TABLE`."""

    name: str
    columns: tuple[ColumnDefinition, ...]
    watermark: Watermark | None
    primary_key: tuple[str, ...]
    partitioned: tuple[str, ...]
    settings: tuple[Setting, ...]
    like: str | None = None
    query: Query | None = None
    only_if_new: bool = False


@dataclass(frozen=True)
class CreateView(Part):
    """`CREATE VIEW`."""

    name: str
    columns: tuple[str, ...]
    query: Query
    replace: bool = False
    only_if_new: bool = False


@dataclass(frozen=True)
class CreateFunction(Part):
    """`CREATE FUNCTION name AS 'module.function' LANGUAGE PYTHON`."""

    name: str
    path: str
    language: str
    only_if_new: bool = False


@dataclass(frozen=True)
class Drop(Part):
    """`DROP TABLE | VIEW | FUNCTION`."""

    kind: Literal["TABLE", "VIEW", "FUNCTION"]
    name: str
    only_if_there: bool


@dataclass(frozen=True)
class Insert(Part):
    """`INSERT INTO table (columns) query`."""

    table: Name
    columns: tuple[Name, ...]
    query: Query
    overwrite: bool = False


@dataclass(frozen=True)
class Explain(Part):
    """`EXPLAIN statement`; `details` are keywords in front of it."""

    statement: Part
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Describe(Part):
    """`DESCRIBE table`."""

    name: Name


@dataclass(frozen=True)
class Show(Part):
    """`SHOW TABLES | VIEWS | FUNCTIONS | CREATE TABLE name`."""

    what: str
    name: Name | None = None
    like: str | None = None


@dataclass(frozen=True)
class SetOption(Part):
    """`SET 'key' = 'value'`; without a key the settings are shown."""

    key: str | None
    value: str | None


@dataclass(frozen=True)
class ResetOption(Part):
    """`RESET 'key'`, or all."""

    key: str | None


@dataclass(frozen=True)
class StatementSet(Part):
    """`BEGIN STATEMENT SET; ... END`."""

    statements: tuple[Insert, ...]

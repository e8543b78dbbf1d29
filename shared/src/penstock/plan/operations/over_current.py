"""Current rows with columns computed from all current rows of their key, in any order: SQL's OVER as in databases."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal

from penstock.core.times import format_duration
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns, key_of_subset, undetermined
from penstock.plan.traits import Traits, kept_for, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node
    from penstock.plan.order import Order

Offset = int | float | Decimal | timedelta
Unit = Literal["rows", "range", "groups"]
RowFunction = Literal[
    "row_number", "rank", "dense_rank", "ntile", "percent_rank", "cume_dist",
    "lag", "lead", "first_value", "last_value", "nth_value",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """Which rows around a row an aggregate is of, from `start` to `end`, both included: SQL's frame clause.

    A bound is a distance to the row itself: less than 0 precedes it, more than 0 follows, 0 is the current row, and None
    the first or the last row of the partition.
    """

    unit: Unit
    """Distances are in rows; in groups of rows that are equal in the order, its peers; or in what the rows are ordered by
    (SQL: RANGE). Of the latter two the current row is all its peers."""
    start: Offset | None = None
    end: Offset | None = 0

    @property
    def has_row(self) -> bool:
        """Whether the row itself is in its frame, which is never empty then."""
        return (self.start is None or sign(self.start) <= 0) and (self.end is None or sign(self.end) >= 0)

    def __str__(self) -> str:
        return f"{self.unit} between {_bound(self.start, 'preceding')} and {_bound(self.end, 'following')}"


def _bound(offset: Offset | None, side: str) -> str:
    if offset is None:
        return f"unbounded {side}"
    if not offset:
        return "current row"
    micros = abs(offset) // timedelta(microseconds=1) if isinstance(offset, timedelta) else None
    shown = abs(offset) if micros is None else format_duration(micros)
    return f"{shown} {'preceding' if sign(offset) < 0 else 'following'}"


def sign(offset: Offset) -> int:
    """Whether a distance precedes (-1) or follows (1); 0 if it is none."""
    return int(offset > type(offset)()) - int(offset < type(offset)())  # pyright: ignore[reportOperatorIssue]


OF_NO_ROWS: Final = frozenset({"count", "len", "n_unique", "approx_n_unique"})
"""Aggregates that are 0 of an empty frame, where others are null."""
WHOLE: Final = Frame("rows", None, None)
UP_TO_PEERS: Final = Frame("range", None, 0)


@dataclass(frozen=True, eq=False)
class OverColumn:
    """One column: a function of the rows of the partition, in an order, as SQL has it."""

    name: str
    function: Expr | RowFunction
    """Made of aggregates, which are of the frame, and of columns of the row; `row_number`, `lag` and `lead` in it are of
    the partition. Or one of SQL's functions of rows, of which `first_value`, `last_value` and `nth_value` are of the
    frame."""
    args: tuple[Expr, ...] = ()
    """Of `lag` and `lead` a value, and perhaps what stands where there is no such row; of the functions of the frame a
    value."""
    number: int = 1
    """How many rows `lag` and `lead` are away, into how many parts `ntile` divides, which row `nth_value` is of."""
    order: tuple[Order, ...] = ()
    frame: Frame | None = None
    """None: with an order all rows up to the last peer of this one, without one all rows."""

    @property
    def rows(self) -> Frame:
        """The frame."""
        return self.frame or (UP_TO_PEERS if self.order else WHOLE)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """All that it holds."""
        function = () if isinstance(self.function, str) else (self.function,)
        return (*function, *self.args, *(order.expr for order in self.order))

    @property
    def text(self) -> str:
        """What is computed, in words of SQL."""
        if not isinstance(self.function, str):
            return str(self.function)
        numbered = self.function in ("lag", "lead", "ntile", "nth_value")
        arguments = [str(arg) for arg in self.args[:1]] + ([str(self.number)] if numbered else [])
        return f"{self.function}({', '.join(arguments + [str(arg) for arg in self.args[1:]])})"

    def __str__(self) -> str:
        order = f"order by {', '.join(map(str, self.order))}" if self.order else ""
        over = " ".join(part for part in (order, "" if self.frame is None else str(self.frame)) if part)
        return f"{self.text} over ({over})"


@dataclass(frozen=True, eq=False)
class OverCurrent(Operation):
    """Every current row of a key with columns that are computed from all of them.

    When the change of a row changes what is computed for others, these are retracted and added anew.
    """

    columns: tuple[OverColumn, ...]
    ttl_us: int | None = None

    @property
    def verb(self) -> str:
        return "over"

    def traits(self, node: Node) -> Traits:
        left_open = "the changes of a key before its last, and what the order of its rows leaves open"
        kept = kept_for("all current rows of a key", self.ttl_us, of_changes=node.inputs[0].updates)
        free = undetermined(expr for column in self.columns for expr in column.expressions)
        return keyed(undetermined=free, arrival=left_open, state="by_key", kept=kept, ttl_us=self.ttl_us)

    def describe(self, node: Node) -> Settings:
        return {"keys": list(node.inputs[0].keys), "columns": {column.name: str(column) for column in self.columns}}

    def state_signature(self, node: Node) -> Settings | None:
        """With the columns: what was sent is computed anew to be retracted."""
        columns = {column.name: str(column) for column in self.columns}
        row = schema_to_json(node.inputs[0].schema)
        return {"verb": "over current rows", "keys": key_columns(node), "columns": columns, "row": row}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return key_of_subset(node, verb)

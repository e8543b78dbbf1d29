"""Conditions that look back, row by row: what is remembered of the rows of a match, and what is made of it.

Memory grows by one row at a time and is never changed, for partial matches share their beginnings. Values are as columns
hold them: moments and durations are whole numbers.

Python compares and adds what it does as Polars does; a condition, or a value, of which that is not sure is computed by
Polars as a column of one row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from penstock.core.decimals import MOST_DIGITS, checked_units, half_up, of_units
from penstock.core.times import signed_duration_us, to_micros
from penstock.errors import PipelineError, UserCodeError
from penstock.expressions import Expr, columns_of, output_field, to_polars
from penstock.expressions.nodes import Call, Case, Cast, Column, Literal, Node
from penstock.types import (
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT64,
    FLOATS,
    INT8,
    INT16,
    INT32,
    INT64,
    INTEGERS,
    STRING,
    TIMESTAMP,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DataType,
    DecimalType,
    Field,
    Schema,
    polars_type,
)

if TYPE_CHECKING:
    from penstock.functions.patterns.references import Asked

Values = tuple[Any, ...]
Read = Callable[[Values, Values], Any]
"""Gives a value of the values of a row and of the memory."""
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_COMPUTED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul
}  # fmt: skip
_OF_ONE: Final[Mapping[str, Callable[[Any], Any]]] = {"not": operator.not_, "neg": operator.neg, "abs": abs}
_OF_MOMENTS: Final = frozenset(
    {
        ("add", TIMESTAMP, DURATION, TIMESTAMP), ("sub", TIMESTAMP, DURATION, TIMESTAMP),
        ("sub", TIMESTAMP, TIMESTAMP, DURATION), ("add", DURATION, DURATION, DURATION),
        ("sub", DURATION, DURATION, DURATION),
    }
)  # fmt: skip
_BOUNDS: Final[Mapping[DataType, int]] = {INT32: 2**31, INT64: 2**63, TIMESTAMP: 2**63, DURATION: 2**63}
_LESS_THAN_64_BITS: Final = frozenset({INT8, INT16, INT32, UINT8, UINT16, UINT32})
_EXACT_DIGITS: Final = 15
"""Decimals of so many digits are the nearest float, whichever way they become one."""
_PLAIN: Final = frozenset({STRING, BOOLEAN, DATE, TIMESTAMP, DURATION, FLOAT64, *INTEGERS})
_SUMMED: Final = frozenset({*FLOATS, *INTEGERS})
_HELD: Final = frozenset({int, float, str, bool, Decimal})
"""Types of constants with which Python does what Polars does."""
_ANY_DIGITS: Final = 1_000
"""More than a decimal has: whether a sum is too large is asked when it is read."""


class _UnusualError(Exception):
    """Polars is to be asked: of NaN, or of what 64 bits cannot hold."""


# -- memory ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remembered:
    """Something that conditions ask of the rows before.

    Args:
        asked: what it is.
        place: of the value among those of a row, of a row as an object -1; None: rows are counted.
        type: of the value that is asked for.
    """

    asked: Asked
    place: int | None
    type: DataType

    def is_of(self, variable: str) -> bool:
        """Whether rows of the variable are among those that are asked."""
        return self.asked.variables is None or variable in self.asked.variables

    def grown(self, memory: Any, values: Values) -> Any:
        """The memory with one more of these rows; that of no row is None."""
        value = True if self.place is None else values[self.place]
        most = self.asked.offset + 1
        match self.asked.function:
            case "first":
                return memory if memory is not None and len(memory) == most else (*(memory or ()), value)
            case "last":
                return (*(memory or ()), value)[-most:]
            case "rows":
                return (*(memory or ()), value)
            case "count":
                return (memory or 0) + (value is not None)
            case "min" | "max":
                return _better(self.asked.function, memory, value)
            case _ if value is None:
                return memory
            case _ if isinstance(self.type, DecimalType):
                return _added(memory, checked_units(value, _ANY_DIGITS, self.type.scale))
            case _:
                return _added(memory, value)

    def value(self, memory: Any) -> Any:
        """What is asked for."""
        match self.asked.function:
            case "rows":
                return list(memory or ())
            case "count":
                return memory or 0
            case "first" | "last":
                offset = self.asked.offset
                if memory is None or len(memory) <= offset:
                    return None
                return memory[offset if self.asked.function == "first" else -1 - offset]
            case "min" | "max":
                return memory
            case _ if memory is None:
                return None
            case function if isinstance(self.type, DecimalType):
                units = _total(memory)
                return self._decimal(units if function == "sum" else half_up(units, memory[1]), self.type.scale)
            case "sum":
                return self._fitting(_total(memory))
            case _:
                return _total(memory) / memory[1]

    def _decimal(self, units: int, scale: int) -> Decimal:
        if abs(units) >= 10**MOST_DIGITS:
            raise UserCodeError(f"a condition asks for a {self.asked.function} that has more than {MOST_DIGITS} digits")
        return of_units(units, scale)

    def _fitting(self, total: Any) -> Any:
        least, most = (0, 2**64 - 1) if self.type == UINT64 else (-(2**63), 2**63 - 1)
        if isinstance(total, int) and not least <= total <= most:
            raise UserCodeError(
                f"a condition asks for a sum that does not fit into {self.type}; add floats instead: "
                ".cast(float).sum(), in SQL SUM(CAST(... AS DOUBLE))"
            )
        return total


def remembering(
    remembered: Sequence[Remembered | None], variables: Sequence[str]
) -> Callable[[Values, int, Values], Values]:
    """What adds a row to the memory of a match; `variables` are those of the positions. Nobody asks for what is None."""

    grown_by = [(place, each) for place, each in enumerate(remembered) if each is not None]
    grows = [[(place, each) for place, each in grown_by if each.is_of(name)] for name in variables]

    def remember(memory: Values, position: int, values: Values) -> Values:
        if not (places := grows[position]):
            return memory
        grown = [*memory]
        for place, each in places:
            grown[place] = each.grown(memory[place], values)
        return tuple(grown)

    return remember if grown_by else lambda memory, position, values: memory


def _better(function: str, memory: Any, value: Any) -> Any:
    if value is None or (memory is not None and value != value):  # NaN counts where there is nothing else
        return memory
    if memory is None or memory != memory:
        return value
    return min(memory, value) if function == "min" else max(memory, value)


def _added(memory: tuple[tuple[Any, ...], int] | None, value: Any) -> tuple[tuple[Any, ...], int]:
    """Numbers that have no rounding error together, and of how many values they are the sum: as `math.fsum` does it."""
    parts, number = memory or ((), 0)
    if isinstance(value, int):
        return ((sum(parts) + value,), number + 1)
    if not math.isfinite(sum(parts) + value):
        return ((sum(parts) + value,), number + 1)
    left: list[float] = []
    for part in parts:
        if abs(value) < abs(part):
            value, part = part, value
        total = value + part
        rest = part - (total - value)
        if rest:
            left.append(rest)
        value = total
    return ((*left, value), number + 1)


def _total(memory: tuple[tuple[Any, ...], int]) -> Any:
    parts, _ = memory
    if isinstance(parts[0], int):
        return parts[0]
    return math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts)


def check_remembered(asked: Asked, kind: DataType, text: str) -> None:
    """Raise `PipelineError` if sums of such values cannot be remembered."""
    if asked.function in ("sum", "mean") and kind not in _SUMMED and not isinstance(kind, DecimalType):
        raise PipelineError(f"match: {text} is of {kind}; a condition can ask for sums and means of numbers")


# -- conditions --------------------------------------------------------------------------------------------------------


class Evaluator:
    """A condition over the values of a row and what is asked of the rows before.

    Args:
        condition: boolean, over the columns of `schema`.
        schema: the columns of the row that it reads, and what is asked, by their names.
        places: of the columns of the row among its values.
        remembered: what is asked, by names, with the place in the memory.
    """

    def __init__(
        self,
        condition: Expr,
        schema: Schema,
        places: Mapping[str, int],
        remembered: Mapping[str, tuple[int, Remembered]],
    ) -> None:
        self._schema = schema
        self._places = places
        self._remembered = remembered
        self._columns = {part: self._column(part) for part in schema.names}
        self._lowered = to_polars(condition, schema, "match")
        self._fast = self._compiled(condition.node)

    @property
    def never_fails(self) -> bool:
        """Whether it has an answer for every row, also for those that it would not be asked of."""
        return self._fast is not None

    def __call__(self, values: Values, memory: Values) -> bool | None:
        """Whether a row fulfils it; None as in SQL."""
        if self._fast is not None:
            try:
                return self._fast(values, memory)
            except _UnusualError:
                pass
        return self.by_polars(values, memory)

    def by_polars(self, values: Values, memory: Values) -> bool | None:
        """The same, computed as a column."""
        import polars as pl

        from penstock.state.number_columns import of_numbers  # loads Polars

        columns: list[pl.Series] = []
        for name, read in self._columns.items():
            columns.append(of_numbers(name, [read(values, memory)], polars_type(self._schema.field(name).type)))
        return pl.DataFrame(columns).select(self._lowered.alias("it")).item()

    def _column(self, name: str) -> Callable[[Values, Values], Any]:
        if name in self._remembered:
            place, remembered = self._remembered[name]
            return lambda values, memory: remembered.value(memory[place])
        at = self._places[name]
        return lambda values, memory: values[at]

    def _compiled(self, node: Node) -> Read | None:
        """The node in Python; None if it is not sure that this gives what Polars gives."""
        match node:
            case Column(name=name):
                return self._plain_column(name)
            case Literal(value=value):
                return _constant(value)
            case Call(function="and" | "or" as function, args=args):
                parts = [self._compiled(arg) for arg in args if self._type(arg) == BOOLEAN]
                known = [part for part in parts if part is not None]
                return _logic(function, known) if len(known) == len(args) else None
            case Call(function="is_null" | "is_not_null" as function, args=(inner,)):
                return _null_check(self._compiled(inner), wanted=function == "is_null")
            case Call(function="not" | "neg" | "abs" as function, args=(inner,)):
                return self._of_one(function, inner)
            case Call(function="is_in", args=(value, *constants)):
                return self._among(value, constants)
            case Call(function="coalesce" | "fill_null", args=args):
                return self._first_of(args, self._type(node))
            case Case():
                return self._chosen(node)
            case Cast(operand=operand, to=kind) if kind == FLOAT64 and self._type(operand) in _LESS_THAN_64_BITS:
                return _as_float(self._compiled(operand))
            case Call(function=function, args=(left, right)) if function in _COMPARED:
                left, right = self._alike(left, right), self._alike(right, left)
                if _family(self._type(left)) != _family(self._type(right)):
                    return None
                return self._both(left, right, _COMPARED[function])
            case Call(function=function, args=(left, right)) if function in _COMPUTED:
                left, right = self._alike(left, right), self._alike(right, left)
                kinds = self._type(left), self._type(right), self._type(node)
                exact = (function, *kinds) in _OF_MOMENTS or {*kinds} in ({FLOAT64}, {INT64}, {INT32})
                return self._both(left, right, _COMPUTED[function], _BOUNDS.get(kinds[2])) if exact else None
            case _:
                return None

    def _plain_column(self, name: str) -> Read | None:
        kind, read = self._schema.field(name).type, self._columns[name]
        return read if kind in _PLAIN or isinstance(kind, DecimalType) else None

    def _both(
        self, left: Node, right: Node, function: Callable[[Any, Any], Any], bound: int | None = None
    ) -> Read | None:
        """A function of two values that are not null; `bound`: whole numbers are less than it, and not less than -it."""
        one, other = self._compiled(left), self._compiled(right)
        if one is None or other is None:
            return None

        def both(values: Values, memory: Values) -> Any:
            first, second = one(values, memory), other(values, memory)
            if first is None or second is None:
                return None
            if first != first or second != second:
                raise _UnusualError
            found = function(first, second)
            if bound is not None and not -bound <= found < bound:
                raise _UnusualError
            return found

        return both

    def _of_one(self, function: str, inner: Node) -> Read | None:
        kind, read = self._type(inner), self._compiled(inner)
        if read is None or kind not in ({BOOLEAN} if function == "not" else {FLOAT64, INT64}):
            return None
        apply = _OF_ONE[function]

        def of_one(values: Values, memory: Values) -> Any:
            value = read(values, memory)
            if value is None:
                return None
            if value != value or value == -(2**63):
                raise _UnusualError
            return apply(value)

        return of_one

    def _among(self, value: Node, constants: Sequence[Node]) -> Read | None:
        read = self._compiled(value)
        alike = [self._alike(each, value) for each in constants]
        family = _family(self._type(value))
        if read is None or any(not isinstance(each, Literal) or _family(self._type(each)) != family for each in alike):
            return None
        among = {_held(each.value) for each in alike if isinstance(each, Literal)}

        def is_among(values: Values, memory: Values) -> bool | None:
            found = read(values, memory)
            if found is None:
                return None
            if found != found:
                raise _UnusualError
            return found in among

        return is_among if {*map(type, among)} <= _HELD else None

    def _first_of(self, args: Sequence[Node], kind: DataType) -> Read | None:
        alike = [self._alike(arg, args[0]) for arg in args]
        parts = [self._compiled(arg) for arg in alike if self._type(arg) == kind and kind in _PLAIN]
        known = [part for part in parts if part is not None]
        if len(known) < len(args):
            return None

        def first_of(values: Values, memory: Values) -> Any:
            return next((value for part in known if (value := part(values, memory)) is not None), None)

        return first_of

    def _chosen(self, case: Case) -> Read | None:
        kind = self._type(case)
        ways = [*case.branches, *(() if case.otherwise is None else ((Literal(True), case.otherwise),))]
        if kind not in _PLAIN or any(self._type(value) != kind for _, value in ways):
            return None
        parts = [(self._compiled(condition), self._compiled(value)) for condition, value in ways]
        known = [(condition, value) for condition, value in parts if condition is not None and value is not None]
        if len(known) < len(parts):
            return None

        def chosen(values: Values, memory: Values) -> Any:
            return next((value(values, memory) for condition, value in known if condition(values, memory)), None)

        return chosen

    def _alike(self, node: Node, other: Node) -> Node:
        """A number that is written beside floats or decimals as one of these."""
        if not isinstance(node, Literal):
            return node
        value, kind = node.value, self._type(other)
        if type(value) is int and isinstance(kind, DecimalType):
            return Literal(Decimal(value))
        if kind != FLOAT64:
            return node
        if type(value) is int and abs(value) <= 2**53:
            return Literal(float(value))
        if (
            isinstance(value, Decimal)
            and len(value.as_tuple().digits) <= _EXACT_DIGITS
            and abs(value) < 10**_EXACT_DIGITS
        ):
            return Literal(float(value))
        return node

    def _type(self, node: Node) -> DataType:
        return output_field(Expr(node), self._schema, "match", "it").type


def _constant(value: Any) -> Read | None:
    held = _held(value)
    return (lambda values, memory: held) if type(held) in _HELD else None


def _held(value: Any) -> Any:
    """A constant as columns hold it."""
    if isinstance(value, timedelta):
        return signed_duration_us(value)
    return to_micros(value) if isinstance(value, datetime) else value


def _null_check(read: Read | None, *, wanted: bool) -> Read | None:
    return None if read is None else lambda values, memory: (read(values, memory) is None) is wanted


def _as_float(read: Read | None) -> Read | None:
    if read is None:
        return None
    return lambda values, memory: None if (value := read(values, memory)) is None else float(value)


def _family(kind: DataType) -> object:
    """Types whose values Python compares as Polars does are of one family."""
    if kind in INTEGERS:
        return "integer"
    if isinstance(kind, DecimalType):
        return "decimal"
    return kind if kind in _PLAIN else object()


def _logic(
    function: str, parts: Sequence[Callable[[Values, Values], bool | None]]
) -> Callable[[Values, Values], bool | None]:
    decisive = function == "or"

    def logic(values: Values, memory: Values) -> bool | None:
        found: bool | None = not decisive
        for part in parts:
            value = part(values, memory)
            if value is decisive:
                return decisive
            if value is None:
                found = None
        return found

    return logic


def schema_of(condition: Expr, row: Schema, asked: Mapping[str, DataType]) -> Schema:
    """The columns that what looks back of a condition reads: those of the row, and what is asked, which may be null."""
    names = [name for name in row.names if name in columns_of(condition) and name not in asked]
    return Schema((*row.select(names), *(Field(name, kind, nullable=True) for name, kind in asked.items())))

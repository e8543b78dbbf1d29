"""Catalogue rows that only SQL asks for: what its operators and functions are where those of Python and Polars differ.

They have no methods: `penstock.sql.functions` builds calls of them. Their names begin with `sql.`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from penstock.expressions import functions_sql_json, functions_sql_lists, functions_sql_text
from penstock.expressions.functions import Function, Lowering, polars
from penstock.expressions.typing_rules import (
    Arguments,
    Rule,
    TypeMismatchError,
    Typing,
    check,
    meet,
    takes,
    to_float,
)
from penstock.types import (
    ANY_NUMBER,
    BOOLEAN,
    DATE,
    FLOAT64,
    FLOATS,
    INT64,
    INTEGERS,
    NUMERIC,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    polars_type,
)

if TYPE_CHECKING:
    import polars as pl

PREFIX: Final = "sql."
_BY_ZERO: Final = "division by zero; write NULLIF(divisor, 0) to get NULL"
_DAYS: Final = frozenset({DATE, TIMESTAMP})


# -- numbers ------------------------------------------------------------------------------------------------------------


def _integers(arguments: Arguments) -> Typing:
    common = meet(arguments, "divide", INTEGERS)
    return Typing(common, arguments.nullable, (common, common))


def _numbers(arguments: Arguments) -> Typing:
    common = meet(arguments, "take the remainder of", NUMERIC)
    return Typing(common, arguments.nullable, (common, common))


def _as_long(columns: Sequence[pl.Series]) -> list[pl.Series]:
    """The columns, a constant as often as the others have rows: within an aggregate Polars gives it once, and wants a
    result for every row."""
    rows = next((len(column) for column in columns if len(column) != 1), 1)
    return [column if len(column) == rows else column.new_from_index(0, rows) for column in columns]


def _nonzero(call: Lowering) -> pl.Expr:
    """The divisor, of which a zero fails the row beside a number."""
    pl = polars()

    def checked(columns: Sequence[pl.Series]) -> pl.Series:
        dividend, divisor = _as_long(columns)
        if ((divisor == 0) & dividend.is_not_null()).any():
            raise pl.exceptions.ComputeError(_BY_ZERO)
        return divisor

    return pl.map_batches(list(call.args), checked, polars_type(call.operands[1]), is_elementwise=True)


def _quotient(call: Lowering) -> pl.Expr:
    """Rounded towards zero. Polars rounds down, and has no quotient of the smallest integer by -1, which wraps around."""
    pl = polars()
    kind = polars_type(call.result)
    dividend, divisor = call[0], _nonzero(call)
    turned = divisor == -1
    safe = pl.when(turned).then(pl.lit(1, kind)).otherwise(divisor)
    below = (dividend % safe != 0) & ((dividend < 0) != (safe < 0))
    found = dividend // safe + below.cast(kind)
    return found if str(call.result).startswith("u") else pl.when(turned).then(-dividend).otherwise(found)


def _remainder(call: Lowering) -> pl.Expr:
    """With the sign of the dividend, as in C, Java and SQL."""
    pl = polars()
    if call.result in FLOATS:
        return _fmod(call)
    kind = polars_type(call.result)
    dividend, divisor = call[0], _nonzero(call)
    safe = pl.when(divisor == -1).then(pl.lit(1, kind)).otherwise(divisor)
    rest = dividend % safe
    return pl.when((rest != 0) & ((dividend < 0) != (safe < 0))).then(rest - safe).otherwise(rest)


def _fmod(call: Lowering) -> pl.Expr:
    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        import numpy as np

        left, right = columns
        nulls = left.is_null() | right.is_null()
        with np.errstate(all="ignore"):
            made = polars().Series(left.name, np.fmod(left.to_numpy(), right.to_numpy()))
        return made.set(nulls, None) if nulls.any() else made

    return polars().map_batches(list(call.args), apply, polars_type(call.result), is_elementwise=True)


def _divisor_rule(arguments: Arguments) -> Typing:
    kind = check(arguments, 0, ANY_NUMBER)
    check(arguments, 1, {BOOLEAN})
    return Typing(kind, arguments[0].nullable, (kind, BOOLEAN))


def _divisor(call: Lowering) -> pl.Expr:
    pl = polars()

    def checked(columns: Sequence[pl.Series]) -> pl.Series:
        divisor, asked = _as_long(columns)
        if ((divisor == 0) & asked).any():
            raise pl.exceptions.ComputeError(_BY_ZERO)
        return divisor

    return pl.map_batches(list(call.args), checked, polars_type(call.result), is_elementwise=True)


def _truncate_rule(arguments: Arguments) -> Typing:
    kind = arguments[0].type
    decimals = arguments.options["decimals"]
    if not isinstance(kind, DecimalType) or not isinstance(decimals, int):
        raise arguments.fail("a decimal", kind)
    scale = min(kind.scale, decimals)
    to = DecimalType(max(1, kind.precision - kind.scale + scale), scale)
    return Typing(to, arguments.nullable, (kind,))


def _truncate(call: Lowering) -> pl.Expr:
    from penstock.expressions.decimal_arithmetic import decimal_of_units

    origin, to = call.operands[0], call.result
    assert isinstance(origin, DecimalType)
    assert isinstance(to, DecimalType)
    divisor = 10 ** (origin.scale - to.scale)

    def apply(column: pl.Series) -> pl.Series:
        units = column.to_physical()
        by = polars().Series([divisor], dtype=polars().Int128())
        return decimal_of_units(column.name, units.abs() // by * units.sign(), to, "a number")

    return call[0].map_batches(apply, polars_type(to), is_elementwise=True)


def _by_numpy(ufunc: str) -> Callable[[Lowering], pl.Expr]:
    """A function of floats of NumPy: the logarithm to base 10 of 1000 is 3 there, in Polars 2.9999999999999996."""

    def lower(call: Lowering) -> pl.Expr:
        def apply(column: pl.Series) -> pl.Series:
            import numpy as np

            with np.errstate(all="ignore"):
                made = polars().Series(column.name, getattr(np, ufunc)(column.to_numpy()))
            nulls = column.is_null()
            return made.set(nulls, None) if nulls.any() else made

        return call[0].map_batches(apply, polars_type(FLOAT64), is_elementwise=True)

    return lower


def _no_arguments(gives: DataType) -> Rule:
    return lambda arguments: Typing(gives, False, ())


def _for_every_row(make: Callable[[int], Any], gives: DataType) -> Callable[[Lowering], pl.Expr]:
    """Values that are made for so many rows."""

    def lower(call: Lowering) -> pl.Expr:
        pl = polars()
        kind = polars_type(gives)
        rows = pl.int_range(pl.len())
        return rows.map_batches(lambda places: pl.Series(places.name, make(len(places)), dtype=kind), kind)

    return lower


def _now(count: int) -> Any:
    import numpy as np

    return np.full(count, time_ns() // 1_000_000 * 1_000, np.int64)


def _time_now(count: int) -> Any:
    import numpy as np

    nanoseconds = time_ns() // 1_000_000 * 1_000_000
    return np.full(count, nanoseconds % 86_400_000_000_000, np.int64)


def _random(count: int) -> Any:
    import numpy as np

    return np.random.default_rng().random(count)


def _uuids(count: int) -> list[str]:
    import numpy as np

    parts = np.frombuffer(os.urandom(16 * count), dtype=np.uint8).reshape(count, 16).copy()
    parts[:, 6] = parts[:, 6] & 0x0F | 0x40  # version 4
    parts[:, 8] = parts[:, 8] & 0x3F | 0x80  # variant of RFC 4122
    text = parts.tobytes().hex()
    digits = (text[place : place + 32] for place in range(0, 32 * count, 32))
    return [f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}" for d in digits]


NUMBERS: Final = (
    Function(
        "sql.log2", "LOG2(x)", to_float("take the logarithm of"), _by_numpy("log2"),
        "Logarithm to base 2 in float64.", ("log2",), polars=("log",),
    ),
    Function(
        "sql.log10", "LOG10(x)", to_float("take the logarithm of"), _by_numpy("log10"),
        "Logarithm to base 10 in float64.", ("log10",), polars=("log10",),
    ),
    Function(
        "sql.random", "RAND()", _no_arguments(FLOAT64), _for_every_row(_random, FLOAT64),
        "A random number from 0 to less than 1 for every row.", ("random",), polars_lacks=True, free=True,
    ),
    Function(
        "sql.uuid", "UUID()", _no_arguments(STRING), _for_every_row(_uuids, STRING),
        "A random UUID for every row.", ("uuid",), polars_lacks=True, free=True,
    ),
    Function(
        "sql.div", "a / b", _integers, _quotient,
        "Division of integers rounded towards zero; by zero it fails the row.", ("/",), polars_lacks=True,
    ),
    Function(
        "sql.mod", "MOD(a, b)", _numbers, _remainder,
        "Remainder with the dividend's sign; of integers by zero it fails the row, of floats it is NaN.",
        ("%", "mod"), polars_lacks=True,
    ),
    Function(
        "sql.divisor", "x", _divisor_rule, _divisor,
        "The number itself; zero fails the row where the second argument is true.", polars_lacks=True,
    ),
    Function(
        "sql.truncate", "TRUNCATE(x, decimals)", _truncate_rule, _truncate,
        "A decimal without the digits behind so many decimals.", ("truncate",), polars=("truncate",),
    ),
)  # fmt: skip


# -- time ---------------------------------------------------------------------------------------------------------------


def _months_rule(arguments: Arguments) -> Typing:
    raise TypeMismatchError("an interval of months is only added to a date or timestamp, or subtracted from it")


def _months(call: Lowering) -> pl.Expr:
    raise AssertionError("its rule refuses it")  # pragma: no cover


def _add_months_rule(arguments: Arguments) -> Typing:
    kind = check(arguments, 0, _DAYS)
    check(arguments, 1, INTEGERS)
    return Typing(kind, arguments.nullable, (kind, INT64))


def _add_months(call: Lowering) -> pl.Expr:
    months: Any = call.constants[1]
    if months is not None:
        return call[0].dt.offset_by(f"{months}mo")
    return call[0].dt.offset_by(polars().format("{}mo", call[1]))


def _whole_months_rule(arguments: Arguments) -> Typing:
    kind = meet(arguments, "compare", _DAYS)
    return Typing(INT64, arguments.nullable, (kind, kind))


def _whole_months(call: Lowering) -> pl.Expr:
    """The most months by which the earlier one is moved without passing the later one, negative if that comes first."""
    pl = polars()
    first, second = call.args
    low, high = pl.min_horizontal(first, second), pl.max_horizontal(first, second)
    years = high.dt.year().cast(pl.Int64) - low.dt.year().cast(pl.Int64)
    found = years * 12 + high.dt.month().cast(pl.Int64) - low.dt.month().cast(pl.Int64)
    passed = low.dt.offset_by(pl.format("{}mo", found)) > high
    months = found - passed.cast(pl.Int64)
    present = first.is_not_null() & second.is_not_null()
    return pl.when(present & (first > second)).then(-months).when(present).then(months)


def _zone_rule(arguments: Arguments) -> Typing:
    return takes({TIMESTAMP}, gives=TIMESTAMP)(arguments)


def _local_time(call: Lowering) -> pl.Expr:
    shown = call[0].dt.convert_time_zone(call.option("zone"))
    return shown.dt.replace_time_zone(None).dt.replace_time_zone("UTC")


def _moment_there(call: Lowering) -> pl.Expr:
    """Of a clock time that is there twice the first, of one that is left out what clocks show an hour later."""
    pl = polars()
    zone = call.option("zone")
    bare = call[0].dt.replace_time_zone(None)
    found = bare.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    # The offset from a day before holds until clocks are set forward, so that 02:30 becomes 03:30.
    before = bare.dt.offset_by("-1d").dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    shifted = before.dt.convert_time_zone("UTC").dt.offset_by("1d")
    return pl.coalesce([found.dt.convert_time_zone("UTC"), shifted])


TIMES: Final = (
    Function(
        "sql.now", "NOW()", _no_arguments(TIMESTAMP), _for_every_row(_now, TIMESTAMP),
        "The moment at which a row is processed, to the millisecond.", ("now",), polars_lacks=True, free=True,
    ),
    Function(
        "sql.time_now", "CURRENT_TIME", _no_arguments(TIME), _for_every_row(_time_now, TIME),
        "The time of day in UTC at which a row is processed, to the millisecond.", ("current_time",),
        polars_lacks=True, free=True,
    ),
    Function(
        "sql.months", "INTERVAL '3' MONTH", _months_rule, _months,
        "An interval of months, which `+` and `-` take beside a date or timestamp.", ("interval",), polars_lacks=True,
    ),
    Function(
        "sql.add_months", "TIMESTAMPADD(MONTH, n, x)", _add_months_rule, _add_months,
        "A date or timestamp moved by so many months; January 31st and a month is the last day of February.",
        ("add_months",), polars=("dt.offset_by",),
    ),
    Function(
        "sql.whole_months", "TIMESTAMPDIFF(MONTH, a, b)", _whole_months_rule, _whole_months,
        "Whole months from one moment to the other, negative if that comes before.", ("datediff",), polars_lacks=True,
    ),
    Function(
        "sql.iso_year", "EXTRACT(ISOYEAR FROM x)", takes(_DAYS, gives=INT64), lambda c: c[0].dt.iso_year(),
        "The year that the ISO week belongs to.", ("isoyear",), exact=False, polars=("dt.iso_year",),
    ),
    Function(
        "sql.local_time", "x AT TIME ZONE 'Europe/Berlin'", _zone_rule, _local_time,
        "What clocks show in a zone at that moment, as a timestamp.", ("at time zone",),
        polars=("dt.convert_time_zone",),
    ),
    Function(
        "sql.moment", "CONVERT_TZ(x, zone, 'UTC')", _zone_rule, _moment_there,
        "The moment at which clocks of a zone show that; of two the first, of none an hour later, as Java.",
        ("convert_tz",), polars=("dt.replace_time_zone",),
    ),
)  # fmt: skip


ROWS: Final = (*NUMBERS, *TIMES, *functions_sql_text.ROWS, *functions_sql_lists.ROWS, *functions_sql_json.ROWS)

"""Decimals computed exactly, rounded once, and never too large for their type without an error.

Polars has fewer digits behind the point than the rules of `decimal_rules` give, and rounds in its own way. So numbers are
taken as the whole numbers that they are kept as: in 128 bits of Polars where all steps fit into these, else as Python's
integers, which are slower and have no end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import polars as pl

from penstock.core.decimals import half_up, of_text, rounded_units
from penstock.types import DecimalType, polars_type
from penstock.types.decimal_columns import decimals_of, decimals_of_texts

if TYPE_CHECKING:
    from penstock.expressions.functions import Lowering

_INT128: Final = pl.Int128()
_FITTING: Final = 37
"""Digits that 128 bits certainly hold, with one to spare for doubling and for a carry."""


def decimal_of_units(name: str, units: pl.Series, kind: DecimalType, what: str) -> pl.Series:
    """The decimals of so many units (Int128).

    Raises:
        ComputeError: one has more digits than the type; `what` says of what.
    """
    most = 10**kind.precision
    # Not by absolute values: the least of 128 bits has none.
    outside = ((units >= _constant(most)) | (units <= _constant(-most))).fill_null(False)
    if outside.any():
        raise _overflow(what, kind)
    return decimals_of(name, units, kind)


def series_of_units(name: str, units: Sequence[int | None], kind: DecimalType, what: str) -> pl.Series:
    """As `decimal_of_units`, from Python's integers of any size."""
    most = 10**kind.precision
    if any(unit is not None and not -most < unit < most for unit in units):
        raise _overflow(what, kind)
    return decimals_of(name, units, kind)


def _overflow(what: str, kind: DecimalType) -> pl.exceptions.ComputeError:
    return pl.exceptions.ComputeError(
        f"{what} does not fit into {kind}: it has more than {kind.precision - kind.scale} digits before the point; cast "
        "to fewer digits behind it, or to float"
    )


def _constant(value: int) -> pl.Series:
    return pl.Series([value], dtype=_INT128)


# -- operators ----------------------------------------------------------------------------------------------------------


def compute(call: Lowering, sign: str) -> pl.Expr:
    """`+`, `-`, `*`, `/`, `%` or `//` of two decimals."""
    left, right, result = (cast("DecimalType", kind) for kind in (*call.operands, call.result))
    operator = _Operator(sign, left, right, result)
    return pl.map_batches(call.args, operator.apply, polars_type(result), is_elementwise=True)


class _Operator:
    """An operator between two types of decimals, in whole numbers of units."""

    def __init__(self, sign: str, left: DecimalType, right: DecimalType, result: DecimalType) -> None:
        self._sign, self._result = sign, result
        if sign == "*":
            self._ups, between = (0, 0), left.scale + right.scale
        elif sign == "/":
            shift = result.scale - left.scale + right.scale
            self._ups, between = (max(0, shift), max(0, -shift)), result.scale
        else:
            between = max(left.scale, right.scale)
            self._ups = (between - left.scale, between - right.scale)
        self._down = 0 if sign in ("/", "//") else between - result.scale
        digits = [kind.precision + up for kind, up in zip((left, right), self._ups, strict=True)]
        self._wide = (sum(digits) if sign == "*" else max(digits)) > _FITTING

    def apply(self, columns: Sequence[pl.Series]) -> pl.Series:
        """The results of whole columns."""
        left, right = (column.to_physical() for column in columns)
        if len(left) != len(right):  # one is a constant
            height = max(len(left), len(right)) if len(left) and len(right) else 0
            left, right = (part if len(part) == height else part.head(height) if not height
                           else part.new_from_index(0, height) for part in (left, right))  # fmt: skip
        if self._sign == "/" and ((right == 0) & left.is_not_null()).any():
            raise pl.exceptions.ComputeError("division by zero; write .nullif(0) behind the divisor to get null")
        what = f"a result of {self._sign}"
        if self._wide:
            units = [self._of_row(*pair) for pair in zip(left.to_list(), right.to_list(), strict=True)]
            return series_of_units(columns[0].name, units, self._result, what)
        return decimal_of_units(columns[0].name, self._of_columns(left, right), self._result, what)

    def _of_columns(self, left: pl.Series, right: pl.Series) -> pl.Series:
        a, b = (part * _constant(10**up) if up else part for part, up in zip((left, right), self._ups, strict=True))
        if self._sign == "/":
            return _half_up(a, b)
        found = _OPERATORS[self._sign](a, b)
        return _half_up(found, _constant(10**self._down)) if self._down else found

    def _of_row(self, left: int | None, right: int | None) -> int | None:
        if left is None or right is None or (right == 0 and self._sign in ("%", "//")):
            return None
        a, b = (part * 10**up for part, up in zip((left, right), self._ups, strict=True))
        if self._sign == "/":
            return half_up(a, b)
        found = _OPERATORS[self._sign](a, b)
        return half_up(found, 10**self._down) if self._down else found


_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "%": lambda a, b: a % b, "//": lambda a, b: a // b,
}  # fmt: skip


def _half_up(dividend: pl.Series, divisor: pl.Series) -> pl.Series:
    """The quotient of Int128 rounded, halves away from zero."""
    size, by = dividend.abs(), divisor.abs()
    rest = size % by
    quotient = size // by + (rest >= by - rest).cast(_INT128)
    signs = dividend.sign() * divisor.sign()
    return quotient * signs


def rounded(value: pl.Expr, origin: DecimalType, to: DecimalType, *, strict: bool = True) -> pl.Expr:
    """With fewer digits behind the point, halves away from zero; too large is an error, or null if not `strict`."""
    divisor = 10 ** (origin.scale - to.scale)

    def apply(column: pl.Series) -> pl.Series:
        units = _half_up(column.to_physical(), _constant(divisor))
        if not strict:
            units = units.set((units.abs() >= _constant(10**to.precision)).fill_null(False), None)
        return decimal_of_units(column.name, units, to, "a number")

    return value.map_batches(apply, polars_type(to), is_elementwise=True)


def floored(value: pl.Expr, origin: DecimalType, to: DecimalType, *, up: bool) -> pl.Expr:
    """The next whole number below, or above."""

    def apply(column: pl.Series) -> pl.Series:
        units, by = column.to_physical(), _constant(10**origin.scale)
        found = units // by + ((units % by) != 0).cast(_INT128) if up else units // by
        return decimal_of_units(column.name, found, to, "a number")

    return value.map_batches(apply, polars_type(to), is_elementwise=True)


# -- casts --------------------------------------------------------------------------------------------------------------


def parsed(text: pl.Expr, to: DecimalType, *, strict: bool) -> pl.Expr:
    """Decimals of texts, rounded, halves away from zero; what is no number or too large is an error, or null."""

    def apply(column: pl.Series) -> pl.Series:
        found = decimals_of_texts(column, to)
        return _parsed_one_by_one(column, to, strict=strict) if found is None else found

    return text.map_batches(apply, polars_type(to), is_elementwise=True)


def _parsed_one_by_one(column: pl.Series, to: DecimalType, *, strict: bool) -> pl.Series:
    units = [None if text is None else _parsed(text, to) for text in column]
    if strict:
        for text, unit in zip(column, units, strict=True):
            if text is not None and unit is None:
                raise pl.exceptions.InvalidOperationError(f"conversion from text to {to} failed for {text!r:.100}")
    return series_of_units(column.name, units, to, "a number")


def _parsed(text: str, to: DecimalType) -> int | None:
    value = of_text(text)
    return None if value is None else rounded_units(value, to.precision, to.scale)

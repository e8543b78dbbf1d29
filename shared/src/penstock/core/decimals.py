"""Decimals as whole numbers of their smallest unit: `1.10` with two digits behind the point is 110.

Exact whatever `decimal`'s context is, which rounds to 28 digits by itself. What is said of a number that does not fit is
said here, for rows, files and messages alike.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation
from typing import Final

MOST_DIGITS: Final = 38
"""What 128 bits hold: the digits that Arrow, Polars, Flink and Spark have for a decimal."""
_WRITTEN: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_EXACT: Final = Context(prec=MOST_DIGITS + 1)


def units_of(value: Decimal, precision: int, scale: int) -> int | None:
    """The number in units of its last digit; None if so many digits do not hold it exactly."""
    if not value:
        return 0 if value.is_finite() else None
    if not value.is_finite() or value.adjusted() >= precision - scale:
        return None
    units, dropped = _cut(value, scale)
    return None if any(dropped) else -units if value.is_signed() else units


def rounded_units(value: Decimal, precision: int, scale: int) -> int | None:
    """The same of the number rounded, halves away from zero; None if it is too large, or no number."""
    if not value.is_finite() or (value and value.adjusted() >= precision - scale):
        return None
    if not value or value.adjusted() < -scale - 1:
        return 0
    units, dropped = _cut(value, scale)
    units += bool(dropped) and dropped[0] >= 5
    return None if units >= 10**precision else -units if value.is_signed() else units


def _cut(value: Decimal, scale: int) -> tuple[int, tuple[int, ...]]:
    """The units of a number without its sign, and the digits behind them; a number may have more than an int can read."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + scale
    if shift >= 0:
        return int("".join(map(str, digits))) * 10**shift, ()
    return int("".join(map(str, digits[:shift])) or "0"), digits[shift:]


def half_up(dividend: int, divisor: int) -> int:
    """The quotient rounded, halves away from zero: as Flink and Spark round decimals."""
    quotient = (2 * abs(dividend) + abs(divisor)) // (2 * abs(divisor))
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def of_units(units: int, scale: int) -> Decimal:
    """The number of so many units."""
    return Decimal(units).scaleb(-scale, _EXACT)


def checked_units(value: object, precision: int, scale: int) -> int:
    """As `units_of`, of a Decimal or int.

    Raises:
        ValueError: it does not fit, and why; its text continues a sentence about the value.
    """
    if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
        raise ValueError("write a Decimal")
    number = Decimal(value)
    units = units_of(number, precision, scale)
    if units is None:
        raise ValueError(misfit(number, precision, scale))
    return units


def written_digits(value: Decimal) -> tuple[int, int]:
    """Precision and scale of a number as it is written: those of 1.10 are 3 and 2. There may be too many."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    return max(len(digits) + max(0, exponent), scale, 1), scale


def of_text(text: str) -> Decimal | None:
    """The number that a text is, such as `-1.10` or `1e3`; None if it is none."""
    try:
        return Decimal(text) if _WRITTEN.fullmatch(text) else None
    except InvalidOperation:  # an exponent beyond all that a Decimal has
        return None


def misfit(value: Decimal, precision: int, scale: int) -> str:
    """Why a number does not fit, and what to do."""
    if not value.is_finite():
        return "only numbers fit; write None for what is not there"
    if value.adjusted() >= precision - scale:
        return f"it has more than {precision - scale} digits before the point; declare more digits"
    return f"it has more than {scale} digits behind the point; round it, or declare more digits"

"""Sums that are exact, so that no batch, no order of merging and no overflow shows in a result.

A float is a whole number of units of 2**-96 if it is not very small, and a sum of such numbers is exact in integers. So
the partial of a sum of floats is a number in base 2**40: each value is cut into limbs, and limbs are added one by one
as int64. What is below the last limb, what is too large for the first, NaN and infinities are added as floats beside
them: of values between 2**-43 (1e-13) and 2**55 (3e16), and of zero, nothing is.

Limbs are carried (`carried`) after every grouping, so that they never come near 64 bits: one grouping may add 2**23 rows.
Integers are added modulo 2**64 beside their high halves (see `exact_means`), which tell whether the sum fits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.types import UNSIGNED, DataType, polars_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_WIDTH: Final = 40
_BASE: Final = 2**_WIDTH
_LOWEST: Final = -96
SUM_LIMBS: Final = 4
"""Up to 2**64, of which sums may use the last nine bits."""
SQUARES_LIMBS: Final = 6
"""Up to 2**144: squares of what sums hold, and of any integer."""
_INT64: Final = pl.Int64()
_FLOAT64: Final = pl.Float64()
_HIGHEST: Final = 2**50
"""A highest limb beyond this (of a sum beyond 2**74) is added as a float as well."""
_SPLIT: Final = 2.0**27 + 1


def limbs_of(value: pl.Expr) -> list[pl.Expr]:
    """The limbs of floats, lowest first; then what no limb holds, as a float."""
    fits = value.abs() < _limit(SUM_LIMBS)
    held = pl.when(fits).then(value).when(value.is_not_null()).then(0.0)
    # Division by a power of two, truncation and the difference of two such prefixes of a number are all exact.
    prefixes = [(held / _unit(limb)).truncate() for limb in range(SUM_LIMBS)]
    above = [prefix * float(_BASE) for prefix in prefixes[1:]]
    limbs = [*(prefix - higher for prefix, higher in zip(prefixes, above, strict=False)), prefixes[-1]]
    rest = pl.when(fits).then(held - prefixes[0] * _unit(0)).otherwise(value)
    return [*(limb.cast(_INT64) for limb in limbs), rest]


def squares_of(value: pl.Expr) -> list[pl.Expr]:
    """The limbs and rest of the exact squares of floats."""
    # By NumPy: as one expression the product's parts would stand in it hundreds of times.
    return [
        value.map_batches(_part_of_squares(place), return_dtype=kind, is_elementwise=True)
        for place, kind in enumerate([*[_INT64] * SQUARES_LIMBS, _FLOAT64])
    ]


def _part_of_squares(place: int) -> Callable[[pl.Series], pl.Series]:
    def apply(values: pl.Series) -> pl.Series:
        with np.errstate(all="ignore"):
            parts = [_part(product, place) for product in _squared(_filled(values))]
        found = pl.Series(values.name, parts[0] + parts[1])
        return found.set(values.is_null(), None) if values.null_count() else found

    return apply


def _squared(value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two floats whose sum is exactly the square of a float (Dekker's product)."""
    square = value * value
    scaled = value * _SPLIT
    high = scaled - (scaled - value)
    low = value - high
    error = ((high * high - square) + high * low * 2.0) + low * low
    return square, np.where(np.abs(square) < _limit(SQUARES_LIMBS), error, 0.0)


def _part(value: NDArray[Any], place: int) -> NDArray[Any]:
    """A limb of floats, or behind the last place what no limb holds."""
    fits = np.abs(value) < _limit(SQUARES_LIMBS)
    held = np.where(fits, value, 0.0)
    if place == SQUARES_LIMBS:
        return np.where(fits, held - np.trunc(held / _unit(0)) * _unit(0), value)
    limb = np.trunc(held / _unit(place))
    if place < SQUARES_LIMBS - 1:
        limb -= np.trunc(held / _unit(place + 1)) * float(_BASE)
    return limb.astype(np.int64)


def _unit(limb: int) -> float:
    return 2.0 ** (_LOWEST + _WIDTH * limb)


def _limit(limbs: int) -> float:
    """Values below are held by so many limbs, of which the highest may be added four thousand million times."""
    return 2.0 ** (_LOWEST + _WIDTH * limbs - 9)


def carried(columns: Sequence[str]) -> list[pl.Expr]:
    """The columns of limbs and rest, the same number in small limbs: all but the highest within the base."""
    *limbs, rest = columns
    highest = pl.col(limbs[-1])
    too_large = pl.when(highest.abs() > _HIGHEST).then(highest).otherwise(0)
    own = [*(pl.col(name) % _BASE for name in limbs[:-1]), highest - too_large]
    below = [pl.col(name) // _BASE for name in limbs[:-1]]
    return [
        own[0],
        *(limb + carry for limb, carry in zip(own[1:], below, strict=True)),
        pl.col(rest) + too_large.cast(_FLOAT64) * _unit(len(limbs) - 1),
    ]


def carried_exactly(columns: Sequence[str]) -> list[pl.Expr]:
    """The columns of limbs the same number in small limbs, the highest as it comes: nothing goes over into the rest.

    So how often limbs are carried shows in nothing; the highest has room for 2**32 values.
    """
    *limbs, _ = columns
    carry = pl.lit(0, _INT64)
    found: list[pl.Expr] = []
    for name in limbs[:-1]:
        whole = pl.col(name) + carry
        found.append((whole % _BASE).alias(name))
        carry = whole // _BASE
    return [*found, (pl.col(limbs[-1]) + carry).alias(limbs[-1])]


def total_of(limbs: Sequence[pl.Expr], rest: pl.Expr) -> pl.Expr:
    """float64: what the limbs and the rest add up to."""
    return pl.map_batches([*limbs, rest], _totals, _FLOAT64, is_elementwise=True)


def _totals(columns: Sequence[pl.Series]) -> pl.Series:
    *limbs, rest = (_filled(column) for column in columns)
    with np.errstate(all="ignore"):
        return pl.Series(columns[0].name, _added([*_scaled(limbs), rest]))


def _scaled(limbs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The carried limbs as floats, highest first."""
    scaled: list[NDArray[Any]] = []
    carry = np.zeros_like(limbs[0])
    for place, limb in enumerate(limbs):
        whole = limb + carry
        carry = whole >> _WIDTH if place < len(limbs) - 1 else carry
        kept = whole & (_BASE - 1) if place < len(limbs) - 1 else whole
        scaled.append(np.ldexp(kept.astype(np.float64), _LOWEST + _WIDTH * place))
    return scaled[::-1]


def _added(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The sum rounded once: what each addition of the great parts loses is added to the small ones."""
    total, lost = parts[0], np.zeros_like(parts[0])
    for part in parts[1:]:
        added = total + part
        shadow = added - total
        lost = lost + ((total - (added - shadow)) + (part - shadow))
        total = added
    return np.where(np.isfinite(total) & np.isfinite(lost), total + lost, total)


def variance_of(sums: Sequence[pl.Expr], squares: Sequence[pl.Expr], rows: pl.Expr, ddof: int) -> pl.Expr:
    """float64: the variance, from limbs and rest of the sum and of the sum of squares; null for `ddof` rows or fewer."""
    limbs = len(sums)

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        lists = [_filled(column).tolist() for column in columns]
        found = [_variance(row[:limbs], row[limbs:-1], row[-1], ddof) for row in zip(*lists, strict=True)]
        return pl.Series(columns[0].name, found, dtype=_FLOAT64)

    return pl.map_batches([*sums, *squares, rows], apply, _FLOAT64, is_elementwise=True)


def _variance(sums: Sequence[Any], squares: Sequence[Any], rows: int, ddof: int) -> float | None:
    if rows <= ddof:
        return None
    if not (math.isfinite(sums[-1]) and math.isfinite(squares[-1])):
        return math.nan
    first, second = _exactly(sums), _exactly(squares)
    return float(max(second - first * first / rows, Fraction(0)) / (rows - ddof))


def _exactly(parts: Sequence[Any]) -> Fraction:
    *limbs, rest = parts
    units = sum(limb << (_WIDTH * place) for place, limb in enumerate(limbs))
    return Fraction(units, 2**-_LOWEST) + Fraction(rest)


def _filled(column: pl.Series) -> NDArray[Any]:
    return column.fill_null(0).to_numpy()


def fitting(total: pl.Expr, high: pl.Expr, kind: DataType, what: str) -> pl.Expr:
    """The integers of a sum modulo 2**64; an error if the true one, which the sum of high halves tells, is another."""
    least, most = (0, 2**32 - 1) if kind in UNSIGNED else (-(2**31), 2**31 - 1)

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        totals, highs = (_filled(column.to_physical()).astype(np.int64, copy=False) for column in columns)
        true_high = highs + ((totals - (highs << 32)) >> 32)
        if np.any((true_high < least) | (true_high > most)):
            raise pl.exceptions.ComputeError(what)
        return columns[0]

    return pl.map_batches([total, high], apply, polars_type(kind), is_elementwise=True)

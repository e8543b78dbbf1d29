"""Sums and means of decimals that never wrap around: whatever the batches and the order of merging.

Two decimals of 38 digits have a sum that 128 bits do not hold, and Polars' sums of groups would wrap around. So of
decimals with more than 19 digits the upper and the lower 19 are added by themselves, of which 10**19 rows fit, and put
together with Python's integers, per group. Of others the sum itself has place for as many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from penstock.core.decimals import half_up
from penstock.expressions.decimal_arithmetic import series_of_units
from penstock.expressions.decimal_rules import mean_of_decimals
from penstock.types import DECIMAL, DecimalType, polars_type

UNHALVED_DIGITS: Final = 19
_HALF: Final = 10**19


def halves_of(value: pl.Expr) -> list[pl.Expr]:
    """Upper and lower digits of decimals, as whole decimals of 38 digits; the lower are never negative."""
    units, half = value.to_physical(), pl.lit(_HALF, dtype=pl.Int128())
    return [part.cast(polars_type(DECIMAL)) for part in (units // half, units % half)]


def total_of_halves(halves: Sequence[pl.Expr], kind: DecimalType, what: str) -> pl.Expr:
    """The sum; an error if it has more digits than its type."""

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        return series_of_units(columns[0].name, _units(columns), kind, f"the sum of {what}")

    return pl.map_batches(list(halves), apply, polars_type(kind), is_elementwise=True)


def mean_of_parts(parts: Sequence[pl.Expr], rows: pl.Expr, kind: DecimalType, what: str) -> pl.Expr:
    """The sum, in one part or in halves, divided by the number of rows: rounded once, halves away from zero."""
    result = mean_of_decimals(kind)
    factor = 10 ** (result.scale - kind.scale)

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        totals, counts = _units(columns[:-1]), columns[-1].to_list()
        means = [
            half_up((total or 0) * factor, max(count or 0, 1)) for total, count in zip(totals, counts, strict=True)
        ]
        return series_of_units(columns[0].name, means, result, f"the mean of {what}")

    return pl.map_batches([*parts, rows], apply, polars_type(result), is_elementwise=True)


def _units(parts: Sequence[pl.Series]) -> list[int]:
    """The sums as Python's integers; 0 of nothing but nulls."""
    lists = [part.to_physical().fill_null(0).to_list() for part in parts]
    if len(lists) == 1:
        return lists[0]
    return [upper * _HALF + lower for upper, lower in zip(*lists, strict=True)]

"""Columns of decimals from whole numbers of units and from texts: what Polars would round, or not take.

Polars rounds a Decimal with more digits than its type without a word; here only what fits exactly comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from penstock.core.decimals import MOST_DIGITS
from penstock.types import DecimalType

if TYPE_CHECKING:
    import polars as pl


def decimals_of(name: str, units: pl.Series | Sequence[int | None], kind: DecimalType) -> pl.Series:
    """The decimals of so many units (Int128, where a series); none may have more digits than the type."""
    import polars as pl
    import pyarrow as pa

    whole = units if isinstance(units, pl.Series) else pl.Series(units, dtype=pl.Int128)
    array: Any = whole.cast(pl.Decimal(MOST_DIGITS, 0)).rechunk().to_arrow()
    exact: Any = pa.decimal128(kind.precision, kind.scale)
    made: Any = pa.Array.from_buffers(exact, len(array), array.buffers(), array.null_count, array.offset)
    return cast("pl.Series", pl.from_arrow(made)).rename(name)


def exact_decimals(name: str, values: Sequence[Any], kind: DecimalType) -> pl.Series | None:
    """The Decimals and ints (or None), if all are such and fit exactly; else, or if it is not known, None."""
    import polars as pl

    if not {Decimal, int, type(None)}.issuperset(map(type, values)):
        return None
    texts = [None if value is None else str(value) for value in values]
    return decimals_of_texts(pl.Series(name, texts, dtype=pl.String), kind)


def decimals_of_texts(texts: pl.Series, kind: DecimalType) -> pl.Series | None:
    """The numbers that texts are (or null), if all are numbers and fit exactly; else, or if that is not known, None.

    Arrow is quick, but wraps around in silence where the units do not fit into 128 bits, and may crash on exponents. So
    it is given neither: texts have so few digits that with those of the scale behind them there are 38 at most.
    """
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc

    longest = cast("int | None", texts.str.len_bytes().max())
    if (longest or 0) + kind.scale > MOST_DIGITS or texts.str.contains("[eE]").any():
        return None
    try:
        array: Any = pc.cast(cast("Any", texts.rechunk().to_arrow()), pa.decimal128(kind.precision, kind.scale))
    except pa.ArrowInvalid:
        return None
    return cast("pl.Series", pl.from_arrow(array)).rename(texts.name)

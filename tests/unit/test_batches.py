"""What rows carry of event time."""

from __future__ import annotations

from itertools import product

import polars as pl
import pytest

from penstock.batches import EVENT_TIME, WATERMARK, with_watermarks

MOMENTS = range(3)
ROWS = list(product(MOMENTS, [None, *MOMENTS]))


@pytest.mark.parametrize("every_row", [False, True])
def test_a_row_carries_its_mark_within_the_bounds_where_something_depends_on_it(every_row):
    """What the docstring says, of all there is with up to two rows; no column where every mark would be null."""
    for rows in ([], *product(ROWS), *product(ROWS, ROWS)):
        frame = pl.DataFrame({EVENT_TIME: [time for time, _ in rows]}, schema={EVENT_TIME: pl.Int64})
        at_rows = pl.Series([mark for _, mark in rows], dtype=pl.Int64)
        for least, most in product(MOMENTS, MOMENTS):
            within = [None if mark is None else min(max(mark, least), max(least, most)) for _, mark in rows]
            carried = [
                mark if mark is not None and (every_row or time <= mark) else None
                for (time, _), mark in zip(rows, within, strict=True)
            ]
            found = with_watermarks(frame, at_rows, least, most, every_row=every_row)
            case = (rows, least, most)
            assert found[EVENT_TIME].to_list() == frame[EVENT_TIME].to_list(), case
            if every_row or carried.count(None) < len(carried):
                assert (found.schema[WATERMARK], found[WATERMARK].to_list()) == (pl.Int64, carried), case
            else:
                assert found.columns == [EVENT_TIME], case

"""What rows carry of event time."""

from __future__ import annotations

import contextlib
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.connectors import files
from penstock.connectors.base import EndOfSplit, ReadContext
from penstock.core.batches import EVENT_TIME, WATERMARK, one_batch, only_batch, with_watermarks
from penstock.errors import PipelineError

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


class LargeTable:
    """An Arrow table that stays in its chunks, as one does of which a column of text holds more than 2 GiB."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def combine_chunks(self) -> pa.Table:
        return self._table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


def test_what_cannot_be_one_batch_is_never_cut_to_its_first_chunk() -> None:
    """It stays a table where that is enough; else it is an error that says how many rows and for whom."""
    table = pa.concat_tables([pa.table({"n": [1, 2]}), pa.table({"n": [3]})])
    large: Any = LargeTable(table)
    assert only_batch(large) is None
    with pytest.raises(PipelineError, match=r"map_batches: 3 rows hold more than 2 GiB of text .* read fewer rows"):
        one_batch(large, "map_batches")
    assert one_batch(table, "").column("n").to_pylist() == [1, 2, 3]
    assert one_batch(table.slice(3), "").num_rows == 0


async def test_a_row_group_of_more_text_than_a_chunk_holds_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow gives such a column in several chunks, which no combining makes one."""
    rows = pa.table({"n": list(range(10)), "text": [f"t{n}" for n in range(10)]})
    parquet.write_table(rows, tmp_path / "a.parquet")
    chunks = pa.concat_tables([rows.slice(0, 3), rows.slice(3, 4), rows.slice(7)])
    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", lambda *_, **__: LargeTable(chunks))
    reader = (source := files.Source(tmp_path / "a.parquet")).open(
        source.discover()[0], None, ReadContext(lambda: 0, lambda: 0)
    )
    found: list[Any] = []
    with contextlib.suppress(EndOfSplit):
        while fetched := await reader.read(4):
            found += fetched.frame.to_dicts()
    assert found == rows.to_pylist()

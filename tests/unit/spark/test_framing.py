"""Rows in frames come out as Spark would sort them: by time, those of equal times by producer and place."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.spark import framing
from penstock.spark.framing import FrameMerger, cut, frame_schema
from penstock.types import Field, ListType, Scalar, Schema

SCHEMA = Schema((Field("text", Scalar("string"), nullable=True), Field("tags", ListType(Scalar("int64")))))
PLACES = 5


def rows_of(chance: random.Random, producer: int, rows: int, disorder: int) -> pl.DataFrame:
    """Rows roughly in order of time, with many equal times; each tells where it comes from."""
    texts = [None if n % 11 == 0 else f"{producer}-{n}" + "x" * chance.randrange(40) for n in range(rows)]
    return pl.DataFrame(
        {
            "text": texts,
            "tags": [[producer, n] for n in range(rows)],
            EVENT_TIME: [n // 3 + chance.randrange(-disorder, disorder + 1) for n in range(rows)],
        },
        schema={**SCHEMA.polars(), EVENT_TIME: pl.Int64},
    )


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("disorder", [0, 5, 1_000])
def test_merged_frames_are_sorted_rows(timed: bool, disorder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever batches they were cut, and however little is gathered before rows are handed on."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    moment = EVENT_TIME if timed else None
    schema = frame_schema(SCHEMA, event_time=timed, watermarks=False)
    for _ in range(20):
        monkeypatch.setattr(framing, "MERGED_ROWS", chance.choice([1, 7, 50, 10_000]))
        monkeypatch.setattr(framing, "MEMORY_BYTES", chance.choice([1, 5_000, 1 << 20]))
        expected, crossing = [], []
        for producer in range(chance.randrange(1, 4)):
            frame = rows_of(chance, producer, chance.randrange(1, 200), disorder)
            places = np.array([chance.randrange(PLACES) for _ in range(frame.height)], np.int32)
            numbered = frame.with_columns(place=pl.Series(places), producer=producer, number=pl.int_range(frame.height))
            expected.append(numbered)
            begin = 0
            while begin < frame.height:
                size = chance.randrange(1, 80)
                part, at = frame.slice(begin, size), places[begin : begin + size]
                for row, least, data in cut(part, at, moment, schema):
                    crossing.append((int(at[row]), least if least is not None else 0, (0, producer, begin), data))
                begin += size
        ordered = pl.concat(expected).sort(["place", *([EVENT_TIME] if timed else []), "producer", "number"])
        merged = [
            frame for place in range(PLACES) for frame in merge(sorted(f for f in crossing if f[0] == place), moment)
        ]
        assert pl.concat(merged)["tags"].to_list() == ordered["tags"].to_list()
        assert pl.concat(merged)["text"].to_list() == ordered["text"].to_list()


def merge(frames: list[tuple[int, int, tuple[int, int, int], bytes]], moment: str | None) -> list[pl.DataFrame]:
    """What a task makes of the frames of a place, as Spark sorts them."""
    merger = FrameMerger(frame_schema(SCHEMA, event_time=moment is not None, watermarks=False), moment)
    found: list[pl.DataFrame] = []
    for _, least, origin, data in frames:
        found += merger.add(origin, least if moment else None, pa.py_buffer(data))
    found += merger.rest()
    assert all(
        frame.height <= framing.MERGED_ROWS or frame[EVENT_TIME].n_unique() == 1
        for frame in found
        if moment is not None
    )
    return found


def test_rows_in_order_are_never_all_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MERGED_ROWS", 100)
    schema = frame_schema(SCHEMA, event_time=True, watermarks=False)
    merger, most, given = FrameMerger(schema, EVENT_TIME), 0, 0
    frame = rows_of(random.Random(1), 0, 30_000, 0)
    for begin in range(0, frame.height, 50):
        ((_, least, data),) = cut(frame.slice(begin, 50), np.zeros(50, np.int32), EVENT_TIME, schema)
        given += sum(complete.height for complete in merger.add((0, 0, begin), least, pa.py_buffer(data)))
        most = max(most, begin + 50 - given)
    assert most < 300


def test_watermarks_travel_and_may_be_the_order() -> None:
    schema = frame_schema(SCHEMA, event_time=True, watermarks=True)
    assert schema.names == ["text", "tags", EVENT_TIME, WATERMARK]
    frame = rows_of(random.Random(1), 0, 9, 0).with_columns(pl.Series(WATERMARK, [-(2**63), *range(8)]))
    ((row, least, data),) = cut(frame.reverse(), np.zeros(9, np.int32), WATERMARK, schema)
    assert (row, least) == (8, -(2**63))
    merger = FrameMerger(schema, WATERMARK)
    assert not list(merger.add((0, 0, 0), least, pa.py_buffer(data)))
    assert pl.concat(merger.rest()).equals(frame)

"""Structs that are null, of members that never are: Arrow has nulls beneath them, and no struct is lost by it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock.connectors import files, iterables
from penstock.embedded import _told  # pyright: ignore[reportPrivateUsage]
from penstock.errors import PenstockError, UserCodeError


@dataclass
class Point:
    x: int
    label: str


@dataclass
class Row:
    id: int
    sure: Point
    point: Point | None
    many: list[Point] | None
    named: dict[str, Point] | None


AT = Point(1, "a")
ROWS = [Row(1, AT, AT, [AT, Point(2, "b")], {"k": AT}), Row(2, AT, None, None, None), Row(3, AT, None, [], {})]
POINT: Any = {"x": 1, "label": "a"}
EXPECTED = [
    (1, POINT, POINT, [POINT, {"x": 2, "label": "b"}], {"k": POINT}),
    (2, POINT, None, None, None),
    (3, POINT, None, [], {}),
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_files_hold_them(kind: Literal["jsonl", "parquet", "arrow"], tmp_path: Path) -> None:
    """What is read is what was written."""
    p = Pipeline("written")
    p.read(iterables.Source(ROWS, schema=Row)).write(files.Sink(tmp_path / "out", format=kind))
    assert p.run(durable=False).state == "FINISHED"
    read = Pipeline("read").read(files.Source(tmp_path / "out", schema=Row))
    assert read.collect().rows() == EXPECTED


def test_they_go_through_map_batches() -> None:
    """Into the function, and out of it again."""
    seen: list[pa.RecordBatch] = []

    def same(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        return batch

    rows = Pipeline("batches").read(iterables.Source(ROWS, schema=Row)).map_batches(same, returns=Row)
    assert rows.collect().rows() == EXPECTED
    assert seen[0].column("point").null_count == 2
    assert not seen[0].schema.field("sure").type.field("x").nullable


def test_what_fails_inside_is_not_blamed_on_the_user() -> None:
    """Only what a frame of the user's raised is."""
    inside = pa.ArrowInvalid("no cast")
    told = _told("v0[0]: ArrowInvalid: no cast", inside)
    assert not isinstance(told, UserCodeError)
    assert "raised inside Penstock" in str(told)
    own = PenstockError("said already")
    assert _told("v0[0]", own) is own
    with pytest.raises(ValueError, match="mine") as raised:
        raise ValueError("mine")
    assert isinstance(_told("v0[0]: ValueError: mine", raised.value), UserCodeError)

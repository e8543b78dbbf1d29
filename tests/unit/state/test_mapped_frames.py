"""Frames in files without a name."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from penstock.errors import ExternalError
from penstock.state.mapped_frames import FrameWriter

FRAME = pl.DataFrame(
    {
        "i": [1, None, 3], "u": pl.Series([2**63, None, 1], dtype=pl.UInt64), "f": [1.5, None, float("nan")],
        "f32": pl.Series([1.5, None, -0.0], dtype=pl.Float32), "ok": [True, None, False],
        "s": ["a", None, "longer than twelve bytes"], "b": [b"x", None, b""], "d": [Decimal("1.25"), None, Decimal(2)],
        "day": [date(2020, 1, 1), None, date(1, 1, 1)], "at": [datetime(2020, 1, 1, tzinfo=UTC), None, None],
        "took": [timedelta(1), None, timedelta(-1)], "list": [[1, 2], None, []],
        "struct": [{"a": 1, "b": [{"c": "x"}]}, None, {"a": None, "b": []}], "none": [None, None, None],
    }
)  # fmt: skip


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Every type, whatever is null; parts in order; slices of it, too."""
    with FrameWriter(tmp_path / "new") as writer:
        for part in (FRAME.clear(), FRAME, FRAME.clear(), FRAME.tail(2)):
            writer.add(part)
        frame = writer.mapped()
    assert_frame_equal(frame, pl.concat([FRAME, FRAME.tail(2)]))
    assert_frame_equal(frame.slice(2, 2), pl.concat([FRAME.tail(1), FRAME.slice(1, 1)]))
    assert frame.n_chunks() == 2
    with FrameWriter(tmp_path) as writer:
        writer.add(FRAME)
        in_order, at_random = writer.mapped(), writer.mapped(at_random=True)
    assert_frame_equal(at_random[[2, 0]], in_order[[2, 0]])


def test_some_parts_are_read_into_memory(tmp_path: Path) -> None:
    """In the order asked for, each by its number."""
    with FrameWriter(tmp_path) as writer:
        for part in (FRAME.head(1), FRAME.tail(1), FRAME.slice(1, 1)):
            writer.add(part)
        assert_frame_equal(writer.read([2, 0]), pl.concat([FRAME.slice(1, 1), FRAME.head(1)]))
        assert_frame_equal(writer.read([1]), FRAME.tail(1))
        os.ftruncate(writer._file.fileno(), writer._ends[-1] - 1)
        with pytest.raises(ExternalError, match="bytes were written there"):
            writer.read([2])


def test_nothing_but_empty_parts(tmp_path: Path) -> None:
    """There are columns, and no rows."""
    with FrameWriter(tmp_path) as writer:
        writer.add(FRAME.clear())
        assert_frame_equal(writer.mapped(), FRAME.clear())


def test_a_file_has_no_name_and_goes_with_its_frame(tmp_path: Path) -> None:
    """Whatever dies, nothing is left; and what is dropped is closed."""
    before = len(os.listdir("/proc/self/fd"))
    with FrameWriter(tmp_path) as writer:
        writer.add(FRAME)
        assert list(tmp_path.iterdir()) == []
        frame = writer.mapped()
    part = frame.slice(1, 1)
    del frame
    assert list(tmp_path.iterdir()) == []
    assert part.equals(FRAME.slice(1, 1), null_equal=True)
    del part, writer
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    """So is a folder that cannot be made."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ExternalError, match=r"cannot be kept in the local folder .*file"):
        FrameWriter(tmp_path / "file")
    with FrameWriter(tmp_path) as writer:
        writer._file.close()
        writer._file = open("/dev/full", "wb")  # noqa: SIM115 - closed by the writer
        large = pl.DataFrame({"n": range(100_000)})
        with pytest.raises(ExternalError, match="No space left on device"):
            writer.add(large)

"""Segments: rows by key group, in order, readable again."""

from __future__ import annotations

import polars as pl
import pytest

from penstock.state import segments
from penstock.types import INT64, Field, Schema


def test_rows_of_many_pieces_keep_their_order_within_a_key_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting rows by key group in pieces gives what sorting them at once gives."""
    frame = pl.DataFrame({"key": [number % 17 for number in range(1_000)], "value": range(1_000)})
    keys = Schema((Field("key", INT64),))
    whole = dict(segments.encode_segments({"kind": "window"}, [frame], keys, 8))
    monkeypatch.setattr(segments, "_PIECE_ROWS", 64)
    pieces = dict(segments.encode_segments({"kind": "window"}, [frame[:300], frame[300:]], keys, 8))
    assert list(pieces) == sorted(whole)
    for group, data in pieces.items():
        assert segments.decode_segment(data, "w")[1].equals(segments.decode_segment(whole[group], "w")[1])
    assert sum(segments.decode_segment(data, "w")[1].height for data in pieces.values()) == frame.height


def test_no_rows_are_no_segments() -> None:
    """Empty state leaves nothing in a snapshot."""
    keys = Schema((Field("key", INT64),))
    empty = pl.DataFrame(schema={"key": pl.Int64})
    assert list(segments.encode_segments({"kind": "window"}, [empty], keys, 8)) == []
    assert list(segments.encode_segments({"kind": "window"}, [], keys, 8)) == []

"""The sinks for people and tests: printing and collecting."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from penstock.connectors import collecting, console
from penstock.types import INT64, TIMESTAMP, Field, Schema

SCHEMA = Schema((Field("i", INT64), Field("at", TIMESTAMP)))
AT = datetime(2001, 1, 1, tzinfo=UTC)


def frame(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame({"i": numbers, "at": [AT] * len(numbers)}, schema=SCHEMA.polars())


def test_console_prints_rows_at_once(write_context: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Every row is a line of JSON after the label, on standard output or the given stream."""
    writer = console.Sink(label="bids").open(SCHEMA, write_context())
    writer.write(frame(1, 2))
    writer.write(frame())
    assert writer.prepare(1).committables == ()
    text = 'bids> {"i":1,"at":"2001-01-01T00:00:00Z"}\nbids> {"i":2,"at":"2001-01-01T00:00:00Z"}\n'
    assert capsys.readouterr().out == text
    stream = io.StringIO()
    sink = console.Sink(stream=stream)
    sink.check(SCHEMA, updates=True)
    sink.open(SCHEMA, write_context()).write(frame(3))
    assert stream.getvalue() == '{"i":3,"at":"2001-01-01T00:00:00Z"}\n'
    assert sink.guarantee == "at-least-once"


def test_collecting_shows_rows_with_the_commit(write_context: Callable[..., Any]) -> None:
    """Rows appear once, with the commit, whoever commits and how often."""
    sink = collecting.Sink()
    writer = sink.open(SCHEMA, write_context())
    writer.write(frame(1, 2))
    writer.write(frame(3))
    prepared = json.loads(json.dumps(writer.prepare(5).committables))
    assert sink.rows == []
    writer.commit(prepared[0])
    writer.commit(prepared[0])
    sink.open(SCHEMA, write_context(attempt="b" * 32)).commit(prepared[0])
    assert sink.rows == frame(1, 2, 3).to_dicts()
    assert sink.rows[0]["at"] == AT
    assert writer.prepare(6).committables == ()


def test_collecting_other_subtasks_and_discarded_parts(write_context: Callable[..., Any]) -> None:
    """Parts of other subtasks and checkpoints count for themselves; what is discarded or closed is gone."""
    into: list[dict[str, Any]] = [{"kept": True}]
    sink = collecting.Sink(into)
    for subtask in (0, 1):
        writer = sink.open(SCHEMA, write_context(subtask=subtask))
        for checkpoint in (1, 2):
            writer.write(frame(10 * subtask + checkpoint))
            writer.commit(writer.prepare(checkpoint).committables[0])
        writer.write(frame(99))
        writer.discard(writer.prepare(3).committables[0])
        writer.write(frame(98))
        writer.close()
    assert [row["i"] for row in into[1:]] == [1, 2, 11, 12]
    sink.begin()()
    assert len(into) == 5, "a list of the user is not cleared"
    own = collecting.Sink()
    writer = own.open(SCHEMA, write_context())
    for _ in range(2):
        own.begin()()
        writer.write(frame(1))
        writer.commit(writer.prepare(1).committables[0])
    assert len(own.rows) == 1

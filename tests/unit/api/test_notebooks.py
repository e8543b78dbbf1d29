"""What a notebook shows: pictures of streams and pipelines, the first rows, short tracebacks, how a run is."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import KeyedProcess, Pipeline, PipelineError, Stream, col, count, tumbling
from penstock.connectors import collecting, iterables
from penstock.core.blocking import run_in_thread
from penstock.errors import PenstockError, ProtocolError, UserCodeError


@dataclass
class Bid:
    auction: int
    at: datetime
    note: str | None = None


AT = datetime(2026, 1, 1, tzinfo=UTC)


def endless() -> Iterator[Bid]:
    number = 0
    while True:
        number += 1
        yield Bid(number % 2, AT + timedelta(seconds=number))


def bids_of(pipeline: Pipeline, *, bounded: bool = True) -> Stream[Bid]:
    rows = [Bid(1, AT), Bid(2, AT)] if bounded else endless
    return pipeline.read(iterables.Source(rows, schema=Bid, event_time="at", bounded=bounded))


class Failing(KeyedProcess[Bid, Bid]):
    def on_row(self, row: Bid, ctx: Any) -> None:
        raise KeyError("here")


def test_the_first_rows_of_a_stream_without_end() -> None:
    """The run ends as soon as it has them; behind a window too."""
    bids = bids_of(Pipeline("notebook"), bounded=False)
    assert bids.select("auction").head(3).rows() == [(1,), (0,), (1,)]
    assert bids.head().height == 5
    counted = bids.key_by("auction").window(tumbling("10s")).agg(n=count())
    assert counted.collect(limit=3).height == 3


def test_the_first_rows_have_the_columns_of_all_rows() -> None:
    """Also where there are fewer, and none."""
    bids = bids_of(Pipeline("notebook"))
    assert bids.head(10).equals(bids.collect())
    assert bids.head(0).schema == bids.filter(col("auction") > 5).head().schema == bids.collect().schema
    with pytest.raises(PipelineError, match="limit=-1: take 0 or more rows"):
        bids.collect(limit=-1)


def test_all_rows_of_a_stream_without_end_are_refused_with_what_to_write() -> None:
    """They would never come."""
    with pytest.raises(PipelineError, match=r"has no end; .head\(5\) or .collect\(limit="):
        bids_of(Pipeline("notebook"), bounded=False).collect()


def test_pictures() -> None:
    """Columns and the graph of a stream; the graph and the plan of a pipeline; what has no graph yet says so."""
    pipeline = Pipeline("notebook")
    bids = bids_of(pipeline)
    counted = bids.key_by("auction").window(tumbling("10s")).agg(n=count()).parallelism(2)
    assert repr(counted).startswith("Stream of key auction: auction: int64, window_start: timestamp")
    shown = counted._repr_html_()
    assert "<td>window_start</td><td>timestamp</td>" in shown
    assert "<td>note</td><td>string or null</td>" in bids._repr_html_()
    assert shown.count("<rect") == 3  # the source, the windows, and what takes their rows
    assert " by auction</text>" in shown
    assert "no sink yet" in pipeline._repr_html_()
    counted.write(collecting.Sink())
    shown = pipeline._repr_html_()
    assert "<svg" in shown
    assert "keyed by auction" in shown
    assert repr(pipeline) == "Pipeline 'notebook': 4 operators (1 source, 1 sink)"
    assert repr(pipeline.plan).splitlines()[2].startswith("  n1 key_by <- n0: auction: int64")


def test_what_became_of_a_run_in_five_lines() -> None:
    """State, rows, sinks, checkpoints."""
    pipeline = Pipeline("notebook")
    bids_of(pipeline).write(collecting.Sink())
    lines = repr(pipeline.run(durable=False)).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "notebook",
        "rows read",
        "collecting sink",
        lines[-1].split(":")[0],
    ]
    assert lines[0] == "notebook: finished"
    assert lines[-1].startswith("1 checkpoint, newest 1")


def test_a_traceback_has_the_frames_of_the_user_alone() -> None:
    """The cell, the function that failed, and the message; of a defect all frames."""
    with pytest.raises(UserCodeError) as error:
        bids_of(Pipeline("notebook")).key_by("auction").process(Failing()).collect()
    lines = shown_in_ipython(error.value)
    assert [line.strip() for line in lines if line.startswith(" ")][1:] == ['raise KeyError("here")']
    assert [line.partition(", in ")[2] for line in lines if line.startswith(__file__)] == [
        "test_a_traceback_has_the_frames_of_the_user_alone",
        "on_row",
    ]
    assert lines[-1].startswith("UserCodeError: process (n2-process): Failing.on_row raised KeyError: 'here'")
    assert shown_in_ipython(ProtocolError("a defect"))[-1].endswith("ProtocolError: a defect")


def shown_in_ipython(error: PenstockError) -> list[str]:
    render: Any = getattr(error, "_render_traceback_")  # noqa: B009 (IPython asks so)
    return render()


def test_what_is_declared_twice_says_in_a_notebook_that_a_cell_ran_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it does not."""
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=object))
    bids = bids_of(Pipeline("notebook"))
    bids.filter(col("auction") > 1).uid("dear")
    with pytest.raises(PipelineError, match=r"run the cell of Pipeline\(...\) again"):
        bids.filter(col("auction") > 1).uid("dear")


def test_a_notebook_shows_how_a_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place below the cell, which is replaced, and empty at the end."""
    shown: list[tuple[str, str, bool]] = []

    def publish(data: dict[str, str], _: object, *, transient: dict[str, str], update: bool) -> None:
        shown.append((data["text/plain"], transient["display_id"], update))

    publisher = types.SimpleNamespace(publish=publish)
    shell = types.SimpleNamespace(kernel=object(), display_pub=publisher)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr("penstock.embedded.SHOWN_EVERY_S", 0.001)
    bids_of(Pipeline("notebook"), bounded=False).head(20_000)
    texts, places, updates = zip(*shown, strict=True)
    assert texts[0].startswith("notebook: ")
    assert "rows read: " in texts[0]
    assert texts[-1] == ""
    assert len({*places}) == 1
    assert updates == (False, *[True] * (len(shown) - 1))


def test_ctrl_c_ends_what_runs_in_another_thread() -> None:
    """As a notebook's run does, in whose thread a loop runs already."""
    ended = threading.Event()

    async def forever() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_in_thread(forever())
    assert ended.wait(10)

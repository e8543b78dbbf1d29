"""`Pipeline(..., watermark_interval=)`: fewer watermarks, the same rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Pipeline, PipelineError, count, tumbling
from penstock.connectors import iterables
from penstock.connectors.collecting import Sink
from penstock.core.blocking import run_blocking
from penstock.protocol.outputs import OutputLedger
from penstock.testing import elapse, pipelines
from penstock.testing.feeds import Collected, feeds_of, rewired
from penstock.testing.virtual_time import VirtualLoop

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Reading:
    sensor: str
    at: datetime


def windows(interval: str) -> Pipeline:
    p = Pipeline("interval", watermark_interval=interval)
    read = p.read(iterables.Source([], schema=Reading, event_time="at", bounded=True)).parallelism(1)
    counted = read.key_by("sensor").window(tumbling("10s")).agg(rows=count())
    counted.write(Sink([]))
    return p


def run(interval: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows, and the watermarks that were sent to one subtask of the windows; a row every 100 ms, for ten seconds."""
    sent: list[int] = []
    plain = OutputLedger.watermark

    def counted(ledger: OutputLedger, output: Any, watermark: int) -> Any:
        if output.partition == 0:
            sent.append(watermark)
        return plain(ledger, output, watermark)

    plan = windows(interval).plan
    rows: list[Any] = []
    for n in range(100):
        rows += [Reading("ab"[n % 2], START + timedelta(seconds=n)), elapse("100ms")]
    collected: Collected = {}
    copied = rewired(plan, feeds_of(plan, rows), collected, 1)
    copied = replace(copied, watermark_interval_us=plan.watermark_interval_us)
    with monkeypatch.context() as patched:
        patched.setattr(OutputLedger, "watermark", counted)
        run_blocking(pipelines._run(copied, 2, 0), VirtualLoop)
    (found,) = collected.values()
    return sorted(found, key=repr), sent


def test_so_much_time_is_left_between_two_watermarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is sent in any case, and what comes out is the same."""
    rows, often = run("0s", monkeypatch)
    assert len(often) > 90
    for interval, most in [("1s", 15), ("1h", 3)]:
        fewer, sent = run(interval, monkeypatch)
        assert fewer == rows
        assert len(sent) <= most
        assert sent == sorted(set(sent))
        assert sent[-1] == often[-1]


def test_it_is_a_duration() -> None:
    """Said when the pipeline is made."""
    with pytest.raises(PipelineError, match="watermark_interval"):
        Pipeline("wrong", watermark_interval="often")

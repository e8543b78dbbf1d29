"""Late rows that a pipeline sends to a side output which it does not read: dropped, but counted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import OutputTag, Pipeline, col, count, every, tumbling
from penstock.connectors import collecting, iterables

START = datetime(2026, 11, 23, tzinfo=UTC)


@dataclass
class Seen:
    """A row."""

    key: int
    at: datetime


LATE = OutputTag("late", Seen)
ROWS = [Seen(1, START + timedelta(minutes=minutes)) for minutes in (0, 10, 1, 20, 2, 3)]


def windows(p: Pipeline, verb: str) -> Any:
    """A stream whose last rows are late."""
    source = iterables.Source(ROWS, schema=Seen, event_time="at")
    keyed = p.read(source).key_by("key")
    match verb:
        case "agg":
            return keyed.window(tumbling("1m")).late_to(LATE).agg(n=count())
        case "trigger":
            return keyed.window(tumbling("1m")).late_to(LATE).trigger(every("1h")).agg(n=count())
        case _:
            return keyed.over().late_to(LATE).with_columns(n=col("key").sum())


@pytest.mark.parametrize("verb", ["agg", "trigger", "over"])
@pytest.mark.parametrize("read", [False, True])
def test_late_rows_that_nobody_reads_are_counted(verb: str, read: bool, tmp_path: Path) -> None:
    """Those that are read are nobody's loss."""
    p, late = Pipeline("late"), collecting.Sink()
    stream = windows(p, verb)
    stream.write(collecting.Sink())
    if read:
        stream.side(LATE).write(late)
    result = p.run(directory=tmp_path, durable=False)
    counted = sum(result.progress.total(node.operator_id, "late_rows") for node in p.plan)
    assert counted == (0 if read else 3)
    assert len(late.rows) == (3 if read else 0)

"""What a run on Spark refuses of its options, before Spark is asked for anything."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock import Pipeline, count, tumbling
from penstock.connectors import files, iterables
from penstock.errors import UsageError
from penstock.savepoint.places import LocalPlace
from penstock.spark.engine import RunOptions, batch_graph, check_options
from penstock.types import TIMESTAMP, Field, Schema

SCHEMA = Schema((Field("at", TIMESTAMP),))


def windows(out: Path, *, retimed: bool) -> Pipeline:
    pipeline = Pipeline("windows")
    read = pipeline.read(iterables.Source([{"at": datetime(2026, 1, 1, tzinfo=UTC)}], schema=SCHEMA, event_time="at"))
    timed = read.with_event_time("at", max_out_of_orderness="1d") if retimed else read
    timed.key_by("at").window(tumbling("1h")).agg(n=count()).write(files.Sink(out))
    return pipeline


def test_a_savepoint_does_not_say_how_far_another_event_time_has_come(tmp_path: Path) -> None:
    """It would be taken for the source's: the rows of a next run would be late."""
    target = RunOptions(target=LocalPlace(tmp_path / "kept"))
    for retimed, options in ((False, target), (True, RunOptions())):
        plan = windows(tmp_path / "out", retimed=retimed).plan
        check_options(batch_graph(plan, 1), plan, options)
    plan = windows(tmp_path / "out", retimed=True).plan
    with pytest.raises(UsageError, match=r"n1-with_event_time: .* say event_time= at the source"):
        check_options(batch_graph(plan, 1), plan, target)

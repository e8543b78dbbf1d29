"""A whole pipeline in a test: rows in, rows out, in virtual time.

    def test_totals():
        rows = run_pipeline(totals, [Payment("a", 1.0, at), Payment("a", 2.0, at + minute)])
        assert rows == [{"account": "a", "total": 3.0}]

The pipeline's own sources and sinks are not touched: in a copy of its plan rows take the place of the sources and lists
that of the sinks. Everything between them, state, exchange and the last checkpoint included, is what runs in
production: a coordinator and a worker on ports in memory. Time passes only between rows (`elapse`), and at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from penstock.api.pipeline import DeclaredPipeline
from penstock.core.blocking import run_blocking
from penstock.core.times import Duration, duration_us, to_micros
from penstock.errors import PenstockError, UsageError, UserCodeError
from penstock.observability.logs import keep_quiet
from penstock.plan.logical import LogicalPlan
from penstock.testing.feeds import Collected, Feed, Rows, elapse, feeds_of, rewired
from penstock.testing.virtual_time import VirtualLoop

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The processing time at which runs begin, unless told otherwise."""


def run_pipeline(
    pipeline: DeclaredPipeline,
    rows: Rows | Mapping[str, Rows],
    *,
    parallelism: int = 1,
    batch: int = 1,
    wait: Duration = "0s",
    now: datetime = NOW,
) -> list[dict[str, Any]]:
    """What the only sink of a pipeline gets for these rows.

    Processing time stands still while rows are worked on. It passes where `elapse` stands between them, by the `rate` of
    the source in whose place they stand, and by `wait`; timers of processing time, `idle_after` and periodic watermarks
    that are due meanwhile take their turn in the order of that time, and none of it takes any. A run with the same
    arguments gives the same rows; only the keys of one window may change places.

    Args:
        pipeline: as declared.
        rows: what the source reads, in this order; if there are several sources, by the id (`uid`) of each.
        parallelism: subtasks per operator that says nothing else.
        batch: rows that are read at a time: event time comes on behind each batch, so with 1 a row is late if the one
            before it was too far ahead.
        wait: how long every source stays open behind its last row. Timers of processing time that are due later do not
            fire, as none does behind the end of a bounded input.
        now: the processing time when the first row is read.

    Raises:
        UsageError: rows are for another source than there is, or there are several sinks: use `run_sinks`.
        PenstockError: what the pipeline or its code raised.

    Example:
        >>> written = bids.filter(col("price") > 100).write(files.Sink("out"))
        >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        >>> rows = run_pipeline(p, [Bid(1, 99.0, noon, []), Bid(2, 101.0, noon, [])])
        >>> [row["auction"] for row in rows]
        [2]
    """
    found = run_sinks(pipeline, rows, parallelism=parallelism, batch=batch, wait=wait, now=now)
    if len(found) != 1:
        raise UsageError(f"run_pipeline: {pipeline.name} has {len(found)} sinks; use run_sinks, which tells them apart")
    return next(iter(found.values()))


def run_sinks(
    pipeline: DeclaredPipeline,
    rows: Rows | Mapping[str, Rows],
    *,
    parallelism: int = 1,
    batch: int = 1,
    wait: Duration = "0s",
    now: datetime = NOW,
) -> Collected:
    """What every sink of a pipeline gets, by the id of the sink; see `run_pipeline`.

    Example:
        >>> cheap = bids.filter(col("price") <= 100).write(files.Sink("cheap")).uid("cheap")
        >>> dear = bids.filter(col("price") > 100).write(files.Sink("dear")).uid("dear")
        >>> rows = run_sinks(p, [Bid(1, 99.0, datetime(2026, 1, 1, tzinfo=UTC), [])])
        >>> len(rows["cheap"]), len(rows["dear"])
        (1, 0)
    """
    if batch < 1:
        raise UsageError(f"batch={batch}: at least one row is read at a time")
    feeds = feeds_of(pipeline.plan, rows)
    if duration_us(wait, "wait"):
        for feed in feeds.values():
            feed.items.append(elapse(wait))
    return run_plan(pipeline.plan, feeds, parallelism=parallelism, batch=batch, now=now)


def run_plan(
    plan: LogicalPlan, feeds: Mapping[str, Feed], *, parallelism: int = 1, batch: int = 1, now: datetime = NOW
) -> Collected:
    """The same of a plan, in which only the sources that `feeds` names read something else than they say."""
    keep_quiet()
    sinks: Collected = {}
    run_blocking(_run(rewired(plan, feeds, sinks, batch), parallelism, to_micros(now)), VirtualLoop)
    return sinks


async def _run(plan: LogicalPlan, parallelism: int, now_us: int) -> None:
    from penstock.graph.executiongraph import ExecutionGraph
    from penstock.graph.jobgraph import build_job_graph
    from penstock.jobmanager.coordinator import CoordinatorTimeouts
    from penstock.protocol.checkpoints import CheckpointSettings
    from penstock.protocol.joblog import JobSettings
    from penstock.protocol.restarts import NoRestart
    from penstock.task.environment import SubtaskSettings
    from penstock.testing.memory_cluster import MemoryCluster
    from penstock.testing.virtual_log import VirtualLog
    from penstock.testing.virtual_time import VirtualClock

    forever_ms = 10**12
    ids = itertools.count(1)
    cluster = MemoryCluster(
        clock=VirtualClock(now_us),
        timeouts=CoordinatorTimeouts(forever_ms, 0, forever_ms),
        data=SubtaskSettings(longest_wait_ms=forever_ms, gather_ms=0, gather_covered_ms=0),
        log=VirtualLog(),
        new_id=lambda: f"{next(ids):032x}",
        leader_silence_ms=forever_ms,
    )
    slots = ExecutionGraph(build_job_graph(plan, parallelism)).topology().slot_count
    # The last checkpoint, at the end of the input, is enough: one at every jump of time would cost more than the rest.
    settings = JobSettings(CheckpointSettings(interval_ms=forever_ms), NoRestart())
    job = await cluster.submit(plan, settings, parallelism=parallelism)
    try:
        worker = cluster.worker(slots)
        ended = await cluster.coordinator().job_ended(job)
    finally:
        await cluster.stop()
    if ended.state == "FAILED":
        error = worker.failures[0] if worker.failures else None
        raise (error if isinstance(error, PenstockError) else UserCodeError(ended.reason)) from error

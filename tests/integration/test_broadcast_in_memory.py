"""Broadcast state on a cluster in memory: through a lost worker and a rescale, every subtask goes on with every rule."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.integration.one_job import START, Cluster, Event, until

from penstock import BroadcastState, Context, KeyedBroadcastProcess, KeyedContext, Pipeline, ValueState
from penstock.connectors import iterables
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.requests import RescaleJob

WINDOW = timedelta(seconds=100)
RULES = 60


@dataclass
class Rule:
    number: int
    at: datetime


@dataclass
class Judged:
    key: int
    window: int
    rows: int
    rules: int


class Judge(KeyedBroadcastProcess[Event, Rule, Judged]):
    """How many rows a key had in each window, and the sum of the rules of that window."""

    rules = BroadcastState(int, int)
    rows = ValueState(int)

    def on_row(self, row: Event, ctx: KeyedContext[Judged]) -> None:
        self.rows.set(self.rows.get(default=0) + 1)
        ctx.event_timer(START + ((row.at - START) // WINDOW + 1) * WINDOW)

    def on_broadcast(self, row: Rule, ctx: Context[Judged]) -> None:
        window = (row.at - START) // WINDOW
        self.rules.set(window, self.rules.get(window, default=0) + row.number)

    def on_timer(self, at: datetime, ctx: KeyedContext[Judged]) -> None:
        window = (at - START) // WINDOW - 1
        ctx.emit(Judged(ctx.key, window, self.rows.get(default=0), self.rules.get(window, default=0)))
        self.rows.clear()


class Judging(Cluster):
    """All rules come at once, in two streams; what came before a checkpoint is in the state alone."""

    def __init__(self) -> None:
        super().__init__(held=True, rate=6_000)
        self.pipeline = Pipeline("cluster")
        rules = [Rule(n, START + WINDOW * (n // 2)) for n in range(2 * RULES)]
        first, second = (
            self.pipeline.read(iterables.Source(rules[number::2], schema=Rule, event_time="at")) for number in range(2)
        )
        rows = self.pipeline.read(iterables.Source(self.input, schema=Event, event_time="at", rate=6_000))
        judged = rows.key_by("key").connect(first.union(second).broadcast()).process(Judge()).uid("judge")
        judged.write(self.sink)
        self.graph = build_job_graph(self.pipeline.plan, 2)

    def check_judged(self) -> None:
        """Every key and window once, with all its rows and both of its rules."""
        found = {(row["key"], row["window"]): row for row in self.sink.rows}
        assert len(found) == len(self.sink.rows) == 7 * self.input.rows // 100
        assert sum(row["rows"] for row in self.sink.rows) == self.input.rows
        for (_, window), row in found.items():
            assert row["rules"] == (4 * window + 1 if window < RULES else 0), row


async def test_rules_survive_a_lost_worker_and_a_rescale():
    """Rules were read long before: a subtask that is new, or begins again, has them from the snapshot."""
    cluster = Judging()
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        name = cluster.worker(4).name
        await until(lambda: len(cluster.sink.rows) > 20, "windows are over")
        await until(cluster.checkpointed, "a checkpoint is complete")
        await cluster.kill_worker(name)
        cluster.worker(4)
        before = len(cluster.sink.rows)
        await until(lambda: len(cluster.sink.rows) > before + 20, "it goes on elsewhere")
        for request, parallelism in (("wider", 3), ("narrower", 1)):
            await cluster.request(RescaleJob(request=request, job=cluster.job, parallelism=parallelism))
            answer = await cluster.answer(request)
            assert answer.outcome == "completed", answer.reason
            before = len(cluster.sink.rows)
            await until(lambda before=before: len(cluster.sink.rows) > before, "it goes on")
        cluster.input.end()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
    finally:
        await cluster.stop()
    cluster.check_judged()

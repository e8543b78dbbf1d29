"""The jobs of a history: few rows, a file sink, and what is wrong with some of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState
from penstock.connectors import files, iterables
from penstock.graph.jobgraph import build_job_graph
from penstock.graph.rescaling import scalable_form
from penstock.plan.logical import LogicalPlan
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.requests import SubmitJob
from penstock.protocol.restarts import ExponentialDelay, FixedDelay, RestartStrategy

KEYS = 3
Poison = Literal["", "row", "graph", "manifest"]


@dataclass
class Row:
    """What a source reads."""

    id: int
    key: int


@dataclass
class Out:
    """What a sink writes."""

    id: int
    key: int
    n: int


class Number(KeyedProcess[Row, Out]):
    """Counts the rows of a key: a row that is read twice, or not at all, shows in all that follow."""

    n = ValueState(int)

    def __init__(self, poison: int = -1) -> None:
        self._poison = poison

    def on_row(self, row: Row, ctx: KeyedContext) -> None:
        """Pass it on with its number; the poisoned one is never passed."""
        if row.id == self._poison:
            raise ValueError("this row is poison")
        self.n.set(self.n.get(default=0) + 1)
        ctx.emit(Out(row.id, row.key, self.n.get(default=0)))


@dataclass(frozen=True)
class Job:
    """One job of a history."""

    id: str
    rows: int
    keyed: bool
    parallelism: int
    rate: float | None
    poison: Poison
    interval_ms: int
    submitted_s: float
    asks: Literal["", "cancel", "stop", "savepoint", "rescale"]
    asks_s: float
    replaces: bool = False
    """Whether its sink removes what was visible before the job."""
    wanted: int = 0
    """The parallelism of a rescale; perhaps more than there are slots."""
    waits: bool = False
    """Whether the rescale waits for slots."""
    patient: bool = False
    """Whether no number of failed checkpoints fails an attempt: what is stuck stays stuck."""

    @property
    def folder(self) -> str:
        """Where its rows become visible."""
        return f"/sink/{self.id}"

    def plan(self) -> LogicalPlan:
        """The pipeline."""
        made = Pipeline(f"job-{self.id[:4]}")
        source = iterables.Source(_rows_of(self.rows), schema=Row, rate=self.rate)
        sink = files.Sink(self.folder, existing="replace" if self.replaces else "append")
        poison = self.rows // 2 if self.poison == "row" else -1
        read = made.read(source)
        if self.keyed:
            read.key_by("key").process(Number(poison)).write(sink)
        else:
            read.write(sink)
        return made.plan

    def submission(self, plan: LogicalPlan) -> SubmitJob:
        """What a dispatcher asks for."""
        checkpoints = CheckpointSettings(
            interval_ms=self.interval_ms, timeout_ms=3_000, tolerable_failed=1_000 if self.patient else 3
        )
        settings = JobSettings(checkpoints, self._restarts())
        return SubmitJob(
            request=self.id, job=self.id, name=plan.name, graph=build_job_graph(plan, self.parallelism).to_json(),
            scalable=scalable_form(plan).to_json(), settings=settings,
        )  # fmt: skip

    def _restarts(self) -> RestartStrategy:
        if self.poison == "row":
            return FixedDelay(attempts=2, delay_ms=100)
        return ExponentialDelay(initial_ms=50, max_ms=500, reset_after_ms=1_000)


def _rows_of(count: int) -> Callable[[], Iterable[Row]]:
    return lambda: (Row(number, number % KEYS) for number in range(count))


def draw_jobs(draw: random.Random, *, extras: bool) -> list[Job]:
    """Some healthy jobs, and perhaps one with something wrong."""
    count = draw.choice((1, 1, 2, 2, 3))
    jobs = [_draw_job(draw, "") for _ in range(count)]
    if draw.random() < 0.3:
        jobs.append(_draw_job(draw, draw.choice(("row", "graph", "manifest"))))
    return [_with_extras(job) for job in jobs] if extras else jobs


def _with_extras(job: Job) -> Job:
    """Drawn from a generator of its own: jobs without extras stay what they are."""
    draw = random.Random(f"{job.id}/extras")
    if not job.poison and draw.random() < 0.1:
        return replace(job, replaces=True)
    if not (job.poison or job.asks) and draw.random() < 0.12:
        return replace(job, asks="rescale", wanted=draw.choice((1, 2, 3, 9)), waits=draw.random() < 0.4)
    return job


def _draw_job(draw: random.Random, poison: Poison) -> Job:
    asks = draw.choice(("", "", "", "", "cancel", "stop", "savepoint")) if not poison else ""
    return Job(
        id=f"{draw.getrandbits(128):032x}",
        rows=draw.randint(12, 60),
        keyed=poison == "row" or draw.random() < 0.6,
        parallelism=draw.choice((1, 1, 2)),
        rate=draw.choice((10.0, 20.0, 40.0)),
        poison=poison,
        interval_ms=draw.choice((100, 200, 500)),
        submitted_s=draw.uniform(0, 1.5),
        asks=asks,
        asks_s=draw.uniform(1.5, 5.0),
    )

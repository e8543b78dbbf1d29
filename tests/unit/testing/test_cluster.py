"""The fixture `penstock_cluster`: what users see of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState, col, count, tumbling
from penstock.connectors import collecting, iterables, kafka
from penstock.errors import ExternalError, PenstockError, UsageError
from penstock.testing.cluster import PenstockCluster

AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Payment:
    account: str
    amount: float
    at: datetime


def paid(account: str, amount: float = 1.0, minutes: float = 0) -> Payment:
    return Payment(account, amount, AT + timedelta(minutes=minutes))


def totals() -> Pipeline:
    """Windows from a topic to a topic, neither of which exists anywhere."""
    p = Pipeline("totals")
    source = kafka.Source("payments", schema=Payment, event_time="at")
    windows = p.read(source).uid("payments").key_by("account").window(tumbling("1h"))
    windows.agg(n=count(), total=col("amount").sum()).uid("windows").write(kafka.Sink("totals", key="account")).uid(
        "sink"
    )
    return p


@dataclass
class Numbered:
    account: str
    n: int


class Number(KeyedProcess[Payment, Numbered]):
    """Numbers the payments of each account."""

    n = ValueState(int)

    def on_row(self, row: Payment, ctx: KeyedContext) -> None:
        self.n.set(self.n.get(default=0) + 1)
        ctx.emit(Numbered(row.account, self.n.get(default=0)))


def running() -> Pipeline:
    """One row per payment."""
    p = Pipeline("running")
    p.read(iterables.Source([], schema=Payment)).key_by("account").process(Number()).write(collecting.Sink())
    return p


def test_a_job_runs_to_its_end(penstock_cluster: PenstockCluster) -> None:
    """Rows in, rows out, at several subtasks."""
    rows = [paid("a", 1.0), paid("b", 5.0, 1), paid("a", 2.5, 59), paid("a", 1.0, 61)]
    job = penstock_cluster.submit(totals(), rows, parallelism=2)
    job.wait()
    assert job.state == "FINISHED"
    assert sorted((row["account"], row["n"], row["total"]) for row in job.rows()) == [
        ("a", 1, 1.0),
        ("a", 2, 3.5),
        ("b", 1, 5.0),
    ]


def test_nothing_is_lost_with_a_worker_and_a_coordinator(penstock_cluster: PenstockCluster) -> None:
    """The job goes on from a checkpoint under another leader, and counts every row once."""
    job = penstock_cluster.submit(running(), [paid("a")] * 10, ends=False, parallelism=2, checkpoint_interval="30ms")
    job.wait_for_rows(10)
    job.send([paid("a")] * 10)
    penstock_cluster.kill_worker()
    job.wait_for_rows(20)
    penstock_cluster.start_coordinator()
    penstock_cluster.kill_coordinator()
    job.send([paid("a")] * 10)
    job.end_input()
    job.wait()
    assert [row["n"] for row in job.rows()] == list(range(1, 31))
    assert len(penstock_cluster.workers) == 1


def test_a_savepoint_is_gone_on_from(penstock_cluster: PenstockCluster) -> None:
    """By another job, at another parallelism; the windows that were open are."""
    first = penstock_cluster.submit(totals(), [paid("a"), paid("b")], ends=False)
    first.wait_for_checkpoint()
    first.rescale(2)
    saved = first.stop()
    assert first.state == "STOPPED"
    assert first.rows() == []
    second = penstock_cluster.submit(totals(), [paid("a"), paid("b"), paid("a", 1.0, 1)], from_savepoint=saved)
    second.wait()
    assert {row["account"]: row["n"] for row in second.rows()} == {"a": 2, "b": 1}


def test_savepoints_and_cancelling(penstock_cluster: PenstockCluster) -> None:
    """A job goes on behind a savepoint, ends when it is cancelled, and says then that it has."""
    job = penstock_cluster.submit(running(), [paid("a")], ends=False)
    job.wait_for_rows(1)
    assert job.state == "RUNNING"
    assert job.savepoint().checkpoint > 0
    job.send([paid("a")])
    job.wait_for_rows(2)
    job.cancel()
    assert job.state == "CANCELED"
    with pytest.raises(UsageError, match="savepoint was refused: there is no such job, or it has ended"):
        job.savepoint()


def test_what_user_code_raises_is_raised(penstock_cluster: PenstockCluster) -> None:
    """Once the restarts are used up, with its own message and cause."""
    p = Pipeline("failing")

    def boom(row: Payment) -> Payment:
        raise ValueError(f"no {row.account}")

    p.read(iterables.Source([], schema=Payment)).map(boom).write(collecting.Sink())
    job = penstock_cluster.submit(p, [paid("a")], restarts=2)
    with pytest.raises(PenstockError, match="no a") as caught:
        job.wait()
    assert isinstance(caught.value.__cause__, PenstockError)
    assert job.attempts == 3


def test_a_job_waits_for_slots() -> None:
    """And runs once there are some."""
    with PenstockCluster(workers=0) as cluster:
        job = cluster.submit(running(), [paid("a")])
        with pytest.raises(ExternalError, match=r"not within 0\.3 s: the job ends"):
            job.wait("300ms")
        assert job.state == "WAITING"
        cluster.start_worker(slots=1)
        job.wait()
        assert job.rows() == [{"account": "a", "n": 1}]


def test_what_is_asked_wrongly_is_said(penstock_cluster: PenstockCluster) -> None:
    """With what there is instead."""
    job = penstock_cluster.submit(totals(), [paid("a")])
    with pytest.raises(UsageError, match="the input of 'payments' has ended"):
        job.send([paid("b")])
    with pytest.raises(UsageError, match="no rows of a sink 'sync'; there are: sink"):
        job.rows("sync")
    with pytest.raises(UsageError, match="no source 'payment'; did you mean 'payments'"):
        penstock_cluster.submit(totals(), {"payment": []})
    with pytest.raises(UsageError, match="no worker 'nobody'"):
        penstock_cluster.kill_worker("nobody")
    job.wait()


def test_a_savepoint_that_does_not_fit_is_refused(penstock_cluster: PenstockCluster) -> None:
    """When the job is submitted, with the reason."""
    saved = penstock_cluster.submit(totals(), [paid("a")], ends=False).stop()
    with pytest.raises(UsageError, match="'windows' in checkpoint 1 has no operator"):
        penstock_cluster.submit(running(), [paid("a")], from_savepoint=saved)


def test_a_pipelines_own_sources_and_sinks_can_stay(penstock_cluster: PenstockCluster) -> None:
    """As a cluster would run them."""
    sink = collecting.Sink()
    p = Pipeline("own")
    p.read(iterables.Source([paid("a"), paid("b")])).write(sink)
    job = penstock_cluster.submit(p, own_sinks=True)
    job.wait()
    assert [row["account"] for row in sink.rows] == ["a", "b"]
    with pytest.raises(UsageError, match="gathers no rows"):
        job.rows()

"""`penstock.testing.run_pipeline`: users' tests of whole pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from penstock import Pipeline, col, count, tumbling
from penstock.connectors import collecting, files, iterables, kafka
from penstock.errors import PenstockError, UsageError
from penstock.testing import elapse, run_pipeline, run_sinks
from penstock.testing.cluster import PenstockCluster

AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Payment:
    account: str
    amount: float
    at: datetime


def totals() -> Pipeline:
    """A pipeline whose topics do not exist anywhere."""
    p = Pipeline("totals")
    (
        p.read(kafka.Source("payments", schema=Payment, event_time="at", max_out_of_orderness="1m"))
        .uid("payments")
        .key_by("account")
        .window(tumbling("1h"))
        .agg(n=count(), total=col("amount").sum())
        .write(kafka.Sink("totals", key="account"))
        .uid("sink")
    )
    return p


def paid(account: str, amount: float, minutes: int) -> Payment:
    return Payment(account, amount, AT + timedelta(minutes=minutes))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_go_in_and_come_out(parallelism: int) -> None:
    """Without Kafka; the pipeline itself stays what it was, and may be run again."""
    pipeline = totals()
    source = pipeline.plan.nodes[0].operation
    rows = [paid("a", 1.0, 0), paid("b", 5.0, 1), paid("a", 2.5, 59), paid("a", 1.0, 61)]
    for _ in range(2):
        found = run_pipeline(pipeline, rows, parallelism=parallelism)
        assert sorted((row["account"], row["window_start"], row["n"], row["total"]) for row in found) == [
            ("a", AT, 2, 3.5),
            ("a", AT + timedelta(hours=1), 1, 1.0),
            ("b", AT, 1, 5.0),
        ]
    assert pipeline.plan.nodes[0].operation is source


def test_dicts_are_rows_too() -> None:
    """Values are checked as the source would."""
    assert run_pipeline(totals(), [{"account": "a", "amount": 1.0, "at": AT}])[0]["n"] == 1


def test_a_row_is_late_behind_the_one_before() -> None:
    """Event time comes on row by row, whatever comes together."""
    rows = [paid("a", 1.0, 0), paid("a", 1.0, 120), paid("a", 1.0, 1)]
    counted = {batch: sum(row["n"] for row in run_pipeline(totals(), rows, batch=batch)) for batch in (1, 3)}
    assert counted == {1: 2, 3: 2}


def test_several_sources_and_sinks(tmp_path) -> None:
    """By their ids; a source that is not named reads nothing."""
    p = Pipeline("several")
    left = p.read(iterables.Source([], schema=Payment, bounded=True)).uid("left")
    right = p.read(iterables.Source([], schema=Payment, bounded=True)).uid("right")
    left.union(right).write(collecting.Sink()).uid("all")
    left.filter(col("amount") > 1).write(files.Sink(tmp_path / "out")).uid("large")
    found = run_sinks(p, {"left": [paid("a", 1.0, 0), paid("b", 2.0, 0)]})
    assert {name: sorted(row["account"] for row in rows) for name, rows in found.items()} == {
        "all": ["a", "b"],
        "large": ["b"],
    }
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="2 sinks; use run_sinks"):
        run_pipeline(p, {"left": []})
    with pytest.raises(UsageError, match="say which rows are whose"):
        run_sinks(p, [])
    with pytest.raises(UsageError, match=r"no source 'lefd'.*left"):
        run_sinks(p, {"lefd": []})


def test_rows_that_a_text_makes_itself_are_no_source_to_give_rows_to() -> None:
    """Those of VALUES, and the one with which a group of all rows begins."""
    p = Pipeline("rates")
    payments = p.read(kafka.Source("payments", schema=Payment, event_time="at")).uid("payments")
    rates = "(VALUES ('a', 2.0), ('b', 3.0)) AS rates(name, rate)"
    p.sql(f"SELECT amount * rate AS due FROM payments JOIN {rates} ON account = name", payments=payments).write(
        kafka.Sink("due")
    ).uid("due")
    p.sql("SELECT COUNT(*) AS n FROM payments", payments=payments).write(collecting.Sink()).uid("n")
    rows = run_sinks(p, [paid("a", 1.0, 0), paid("b", 5.0, 1)])
    assert sorted(row["due"] for row in rows["due"]) == [2.0, 15.0]
    assert rows["n"][-1]["n"] == 2
    assert run_sinks(p, [])["n"][-1]["n"] == 0


def test_what_user_code_raises_is_raised() -> None:
    """With its own message."""
    p = Pipeline("failing")

    def boom(row: Payment) -> Payment:
        raise ValueError(f"no {row.account}")

    p.read(iterables.Source([], schema=Payment)).map(boom).write(collecting.Sink())
    with pytest.raises(PenstockError, match="no a"):
        run_pipeline(p, [paid("a", 1.0, 0)])


def test_a_run_that_goes_well_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """What a cluster logs of it is nothing to users' tests, unless they have said how to log."""
    structlog.reset_defaults()
    assert run_pipeline(totals(), [paid("a", 1.0, 0)])
    assert run_pipeline(totals(), [paid("a", 1.0, 0), elapse("100s"), paid("a", 1.0, 100)])
    with PenstockCluster(workers=1) as cluster:
        cluster.submit(totals(), [paid("a", 1.0, 0)]).wait()
    assert capsys.readouterr() == ("", "")

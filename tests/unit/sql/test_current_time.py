"""Conditions on the current time: rows are valid for a while, and are retracted when event time has passed it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Pipeline
from penstock.api.update_streams import UpsertStream
from penstock.connectors import files, iterables
from penstock.embedded import EmbeddedSettings, run_pipeline
from penstock.errors import PipelineError
from penstock.plan.operations.temporal_filter import TemporalFilter

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Order:
    id: int
    kind: str
    ts: datetime
    due: datetime | None


ORDERS = [Order(n, "ab"[n % 2], START + timedelta(days=n), None if n % 3 else START) for n in range(9)]


def declared(text: str) -> tuple[Pipeline, UpsertStream]:
    pipeline = Pipeline("now")
    found = pipeline.sql(text, orders=pipeline.read(iterables.Source(ORDERS, event_time="ts")))
    assert isinstance(found, UpsertStream)
    return pipeline, found


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        ("ts > NOW()", {"valid_until": 'col("ts")'}),
        ("ts > NOW() - INTERVAL '7' DAY", {"valid_until": 'col("ts") + datetime.timedelta(days=7)'}),
        ("NOW() < ts + INTERVAL '7' DAY", {"valid_until": 'col("ts") + datetime.timedelta(days=7)'}),
        ("CURRENT_TIMESTAMP - INTERVAL '1' HOUR - INTERVAL '1' HOUR >= ts",
         {"valid_from": 'col("ts") + datetime.timedelta(seconds=7200)'}),
        ("ts >= LOCALTIMESTAMP", {"valid_until": 'col("ts") + datetime.timedelta(microseconds=1)'}),
        ("ts < NOW()", {"valid_from": 'col("ts") + datetime.timedelta(microseconds=1)'}),
        ("ts BETWEEN NOW() - INTERVAL '1' DAY AND NOW()",
         {"valid_from": 'col("ts")',
          "valid_until": 'col("ts") + datetime.timedelta(days=1) + datetime.timedelta(microseconds=1)'}),
        ("ts > NOW() AND ts > NOW() - INTERVAL '1' DAY AND id > 3",
         {"valid_until": 'min_horizontal(col("ts"), col("ts") + datetime.timedelta(days=1))'}),
    ],
)  # fmt: skip
def test_a_comparison_is_a_bound(condition: str, bounds: dict[str, str]) -> None:
    _, found = declared(f"SELECT id FROM orders WHERE {condition}")
    [node] = [node for node in found._pipeline.plan if isinstance(node.operation, TemporalFilter)]
    assert node.operation.describe(node) == bounds


def log_of(text: str, folder: Path) -> list[dict[str, Any]]:
    """The changes of a query, in order."""
    pipeline, found = declared(text)
    found.write(files.Sink(folder / "out", format="jsonl"))
    run_pipeline(pipeline, EmbeddedSettings(), directory=folder / "run", resume=False)
    return [
        json.loads(line) for file in sorted((folder / "out").glob("*.jsonl")) for line in file.read_text().splitlines()
    ]


def test_rows_are_retracted_when_their_time_is_over(tmp_path: Path) -> None:
    """All of them, in order of their times, since event time goes to its end with the input."""
    log = log_of("SELECT id FROM orders WHERE ts > NOW() - INTERVAL '3' DAY AND id > 1", tmp_path)
    assert Counter((row["id"], row["retracted"]) for row in log) == {
        (n, gone): 1 for n in range(2, 9) for gone in (0, 1)
    }
    assert [row["id"] for row in log if row["retracted"]] == list(range(2, 9))


def test_what_is_compared_with_null_does_not_hold(tmp_path: Path) -> None:
    log = log_of("SELECT id FROM orders WHERE due <= NOW() AND ts > NOW() - INTERVAL '3' DAY", tmp_path)
    assert {row["id"] for row in log} == {0, 3, 6}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT kind, COUNT(*) AS n FROM orders WHERE ts > NOW() - INTERVAL '3' DAY GROUP BY kind",
        "SELECT * FROM (SELECT kind, COUNT(*) AS n, MAX(ts) AS last FROM orders GROUP BY kind) "
        "WHERE last > NOW() - INTERVAL '3' DAY",
        "SELECT kind, COUNT(*) AS n FROM orders GROUP BY kind HAVING MAX(ts) > NOW() - INTERVAL '3' DAY",
        "SELECT o.id, p.id AS other FROM orders o JOIN orders p ON o.kind = p.kind WHERE o.ts > NOW() - INTERVAL '3' DAY",
        "SELECT * FROM (SELECT id, ts, ROW_NUMBER() OVER (PARTITION BY kind ORDER BY id DESC) AS rn FROM orders) "
        "WHERE rn <= 2 AND ts > NOW() - INTERVAL '3' DAY",
    ],
)
def test_what_follows_is_kept_up_to_date(text: str, tmp_path: Path) -> None:
    """Aggregates, joins and ranks: what was added is retracted again, and was there."""
    standing: Counter[str] = Counter()
    log = log_of(text, tmp_path)
    for row in log:
        gone = row.pop("retracted")
        standing[json.dumps(row)] += -1 if gone else 1
        assert standing[json.dumps(row)] >= 0
    assert log
    assert not +standing


LATELY = "SELECT * FROM orders WHERE ts > NOW() - INTERVAL '3' DAY"


@pytest.mark.parametrize(
    "text",
    [
        LATELY,
        f"SELECT kind, COUNT(*) FROM ({LATELY}) GROUP BY kind",
        f"{LATELY} AND kind = 'a' UNION ALL {LATELY} AND kind = 'b'",
        f"SELECT a.id FROM ({LATELY}) a LEFT JOIN orders b ON a.id = b.id",
        f"SELECT a.id FROM orders a JOIN ({LATELY}) b ON a.id = b.id",
        f"SELECT id FROM orders WHERE id IN (SELECT id FROM ({LATELY}))",
    ],
)
def test_a_bounded_query_says_that_nothing_would_be_left(text: str) -> None:
    _, found = declared(text)
    with pytest.raises(PipelineError, match=r"final: .*temporal_filter retracts every row"):
        found.final()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"SELECT COUNT(*) AS id FROM ({LATELY})", [0]),
        (f"SELECT a.id FROM orders a LEFT JOIN ({LATELY}) b ON a.id = b.id", range(9)),
        (f"SELECT b.id FROM ({LATELY}) a FULL JOIN orders b ON a.id = b.id", range(9)),
        (f"SELECT id FROM orders WHERE id NOT IN (SELECT id FROM ({LATELY}))", range(9)),
        (f"SELECT id FROM orders EXCEPT SELECT id FROM ({LATELY})", range(9)),
        (f"SELECT id FROM orders WHERE id < 2 UNION ALL SELECT id FROM ({LATELY})", range(2)),
    ],
)
def test_what_else_is_left_of_a_bounded_query_is_shown(text: str, left: Iterable[int]) -> None:
    _, found = declared(text)
    assert sorted(found.final().collect()["id"]) == [*left]

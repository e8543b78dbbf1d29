"""What can only work in one directory is refused before it is sent to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Pattern, Pipeline, col
from penstock.connectors import collecting, files, iterables, sqlite
from penstock.errors import UsageError
from penstock.submission.cluster_checks import advice, check_fit
from penstock.types import INT64, TIMESTAMP, Field, Schema

SCHEMA = Schema((Field("n", INT64),))


def written(sink: Any) -> Pipeline:
    p = Pipeline("here")
    p.read(iterables.Source([{"n": 1}], schema=SCHEMA)).write(sink)
    return p


def read(source: Any) -> Pipeline:
    p = Pipeline("here")
    p.read(source).write(collecting.Sink())
    return p


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        (lambda: read(files.Source("in/*.jsonl", schema=SCHEMA)), "files.Source('in/*.jsonl') is relative"),
        (lambda: written(files.Sink("out")), "files.Sink('out') is relative"),
        (lambda: read(sqlite.Source("shop.db", table="n", schema=SCHEMA)), "sqlite.Source('shop.db') is relative"),
        (lambda: written(sqlite.Sink("shop.db", table="n")), "sqlite.Sink('shop.db') is relative"),
    ],
)
def test_a_relative_path_is_refused(pipeline: Any, said: str) -> None:
    """By the name of the connector, with what to do."""
    with pytest.raises(UsageError, match="give an absolute path") as error:
        check_fit(pipeline().plan)
    assert said in str(error.value)


def test_an_absolute_path_and_a_store_are_not(tmp_path: Path) -> None:
    """Whether they are reached from there is known there."""
    check_fit(written(files.Sink(tmp_path / "out")).plan)
    check_fit(written(files.Sink("s3://lake/out")).plan)
    check_fit(written(sqlite.Sink(tmp_path / "shop.db", table="n")).plan)


class Endless(iterables.Source[Any]):
    """Rows that never end."""

    @property
    def bounded(self) -> bool:
        return False


EVENTS = Schema((Field("n", INT64), Field("at", TIMESTAMP)))
A = Pattern.begin("a", col("n") > 1)


@pytest.mark.parametrize(
    ("pattern", "options", "warned"),
    [
        (A.followed_by("b"), {}, True),
        (A.followed_by("b"), {"within": "1h"}, False),
        (A.followed_by("b", within="1h"), {}, False),
        (A.next("b", col("n") > col("a.n")), {}, False),
        (A.next("b", times=(2, None), repeated="next"), {}, False),
        (A.next("b", times=2), {}, True),
    ],
)
def test_patterns_that_wait_for_ever_are_told(
    pattern: Pattern, options: dict[str, Any], warned: bool, tmp_path: Path
) -> None:
    file = tmp_path / "p.py"
    file.write_text("")
    for source in (Endless, iterables.Source):
        p = Pipeline("waits")
        rows = p.read(source([], schema=EVENTS, event_time="at")).key_by("n")
        rows.match(pattern, **options).select("n").write(collecting.Sink())
        found = advice(p.plan, file)
        if warned and source is Endless:
            assert found == [
                "n2-match: the pattern has no time, so partial matches that do not go on are kept for ever; "
                "give match(within=...)"
            ]
        else:
            assert found == []

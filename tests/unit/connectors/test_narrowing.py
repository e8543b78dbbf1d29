"""Sources that read less than everything: what comes out is as if they had read it, and what is bad stays bad."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyarrow import parquet

from penstock import Pipeline, col, count, lit, tumbling
from penstock.connectors import collecting, files
from penstock.connectors.base import EndOfSplit, ReadContext, Source
from penstock.errors import PipelineError
from penstock.expressions import Expr, to_polars
from penstock.graph.explain import explain_text
from penstock.graph.jobgraph import build_job_graph
from penstock.plan.passes.reading import narrowed, said_of_reading, scan_request_of


@dataclass
class Order:
    shop: str
    euros: int
    note: str | None
    at: datetime


@dataclass
class Dated(Order):
    day: date


START = datetime(2026, 3, 1, tzinfo=UTC)
GROUP_ROWS = 10
SCHEMA: dict[str, Any] = {"shop": pl.String, "euros": pl.Int64, "note": pl.String, "at": pl.Datetime("us", "UTC")}


def orders(rows: int = 60) -> list[dict[str, Any]]:
    """Rows in order of time and of euros."""
    return [
        {"shop": f"s{n % 3}", "euros": n, "note": None if n % 4 else "n", "at": START + timedelta(seconds=n)}
        for n in range(rows)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A Parquet file with row groups of ten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pl.DataFrame(rows, schema=SCHEMA).to_arrow(), path, row_group_size=GROUP_ROWS)
    return path


def read(source: Source[Any]) -> tuple[list[dict[str, Any]], list[tuple[str, bytes, str]]]:
    """All good rows and all bad ones, of all splits."""

    async def everything() -> tuple[list[dict[str, Any]], list[tuple[str, bytes, str]]]:
        rows, bad = list[dict[str, Any]](), list[tuple[str, bytes, str]]()
        for split in source.discover():
            reader = source.open(split, None, ReadContext(lambda: 0, lambda: 0))
            try:
                while True:
                    fetched = await reader.read(7)
                    if fetched is not None:
                        assert tuple(fetched.frame.columns) == source.schema.names
                        rows += fetched.frame.to_dicts()
                        bad += [(each.error, each.raw, each.where) for each in fetched.bad]
            except EndOfSplit:
                await reader.close()
        return rows, bad

    return asyncio.run(everything())


def _as_it_is(row: Order) -> Order:
    return row


def pipeline(source: Source[Any]) -> tuple[Pipeline, Any]:
    made = Pipeline("narrow")
    return made, made.read(source)


def source_of(made: Pipeline, **options: Any) -> Source[Any]:
    return narrowed(made.plan, made.plan.nodes[0], **options)


def test_only_columns_that_the_pipeline_looks_at_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", orders())
    made, stream = pipeline(files.Source(tmp_path, schema=Order, event_time="at"))
    stream.key_by("shop").window(tumbling("10s")).agg(n=count()).write(collecting.Sink())
    assert scan_request_of(made.plan, made.plan.nodes[0]).columns == {"shop", "at"}
    rows, bad = read(source_of(made))
    assert [(row["shop"], row["at"], row["euros"], row["note"]) for row in rows] == [
        (row["shop"], row["at"], None, None) for row in orders()
    ]
    assert not bad
    assert "columns read: shop, at" in explain_text(build_job_graph(made.plan, 1), made.plan)


@pytest.mark.parametrize("kind", ["map", "late", "write", "two"])
def test_what_looks_at_rows_gets_whole_rows(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", orders())
    made, stream = pipeline(files.Source(tmp_path, schema=Order, event_time="at"))
    match kind:
        case "map":
            stream.map(_as_it_is).write(collecting.Sink())
        case "late":
            stream.filter(col("euros") > 3).write(collecting.Sink())
        case "write":
            stream.write(collecting.Sink())
        case _:
            stream.select("shop").write(collecting.Sink())
            stream.write(collecting.Sink())
    assert scan_request_of(made.plan, made.plan.nodes[0]).columns is None


def test_a_projection_that_is_handed_on_is_seen_through(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", orders())
    made, stream = pipeline(files.Source(tmp_path, schema=Order))
    stream.rename({"euros": "price"}).with_columns(twice=col("price") * 2).select("twice").write(collecting.Sink())
    assert scan_request_of(made.plan, made.plan.nodes[0]).columns == {"euros"}


def test_bad_rows_stay_bad_and_are_shown_whole(tmp_path: Path) -> None:
    """Also those that are bad for a column that nobody needs."""
    rows = orders()
    rows[13]["euros"] = None
    rows[41]["shop"] = None
    write(tmp_path / "a.parquet", rows)
    made, stream = pipeline(files.Source(tmp_path, schema=Order, bad_rows="skip"))
    stream.filter(col("shop") == "s0").select("shop").write(collecting.Sink())
    given = made.plan.nodes[0].operation.source
    whole, less = read(given), read(source_of(made))
    assert less[1] == whole[1]
    assert len(less[1]) == 2
    assert [row["shop"] for row in less[0]] == [row["shop"] for row in whole[0]]


CONDITIONS: list[Expr] = [
    col("euros") > 45,
    col("euros") < 5,
    lit(45) <= col("euros"),
    (col("euros") >= 20) & (col("euros") < 30) & (col("shop") == "s1"),
    (col("euros") == 3) | (col("euros") == 58),
    col("euros").is_in([12, 33]),
    col("euros").is_between(9, 10),
    col("shop") > "s9",
    col("note").is_null(),
    col("note").is_not_null() & (col("euros") > 50),
    col("at") < datetime(2026, 3, 1, 0, 0, 11, tzinfo=UTC),
    ~(col("euros") > 10),
    col("euros") * 2 > 100,
    col("euros") > 44.5,
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_row_groups_without_a_wanted_row_are_not_read(condition: Expr, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", orders())
    made, stream = pipeline(files.Source(tmp_path, schema=Order))
    stream.filter(condition).write(collecting.Sink())
    rows, _ = read(source_of(made))
    frame = pl.DataFrame(orders(), schema=SCHEMA)
    predicate = to_polars(condition, made.plan.nodes[0].schema)
    assert pl.DataFrame(rows, schema=SCHEMA).filter(predicate).equals(frame.filter(predicate))
    if str(condition) in {str(each) for each in CONDITIONS[:8]}:
        assert len(rows) < len(frame)


def test_random_conditions_lose_nothing(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    rows = orders(200)
    chance.shuffle(rows)
    for row in rows:
        row["note"] = chance.choice([None, "", "a", "\U0001f600", "z" * 300])
    write(tmp_path / "a.parquet", rows)
    frame = pl.DataFrame(rows, schema=SCHEMA)
    for _ in range(60):
        condition = _condition(chance, 3)
        made, stream = pipeline(files.Source(tmp_path, schema=Order))
        stream.filter(condition).write(collecting.Sink())
        predicate = to_polars(condition, made.plan.nodes[0].schema)
        found = pl.DataFrame(read(source_of(made))[0], schema=SCHEMA)
        assert found.filter(predicate).equals(frame.filter(predicate)), str(condition)


def _condition(chance: random.Random, depth: int) -> Expr:
    if depth and chance.random() < 0.6:
        left, right = _condition(chance, depth - 1), _condition(chance, depth - 1)
        return left & right if chance.random() < 0.6 else left | right
    note, euros = chance.choice(["", "a", "b", "z" * 299, "\uffff"]), chance.randrange(-5, 210)
    return chance.choice([
        col("euros") > euros, col("euros") <= euros, col("euros") == euros, col("euros") != euros,
        lit(euros) > col("euros"), col("note") >= note, col("note") < note, col("note").is_null(),
        col("note").is_in([note, "q"]), ~(col("euros") < euros), col("euros").is_between(euros, euros + 9, closed="none"),
    ])  # fmt: skip


def test_rows_that_move_event_time_are_read(tmp_path: Path) -> None:
    """A window behind the filter sees how far the rows that are dropped have come; without one nobody does."""
    write(tmp_path / "a.parquet", orders())
    made, stream = pipeline(files.Source(tmp_path, schema=Order, event_time="at"))
    stream.filter(col("euros") > 45).key_by("shop").window(tumbling("10s")).agg(n=count()).write(collecting.Sink())
    assert len(read(source_of(made))[0]) == 60
    assert "move event time" in said_of_reading(made.plan, made.plan.nodes[0])["reads"]
    made, stream = pipeline(files.Source(tmp_path, schema=Order, event_time="at"))
    stream.filter(col("euros") > 45).write(collecting.Sink())
    assert len(read(source_of(made))[0]) == 20


def folders(root: Path) -> Path:
    for number in range(4):
        write(root / f"day=2026-03-0{number + 1}" / "a.parquet", orders(20))
    return root


def test_folders_that_a_filter_leaves_out_are_neither_read_nor_listed(tmp_path: Path, monkeypatch) -> None:
    folders(tmp_path)
    made, stream = pipeline(files.Source(tmp_path, schema=Dated))
    stream.filter((col("day") > date(2026, 3, 2)) & (col("euros") >= 0)).write(collecting.Sink())
    source = source_of(made)
    looked: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (looked.append(str(path)), real(path))[1])
    assert [split.id for split in source.discover()] == ["day=2026-03-03/a.parquet", "day=2026-03-04/a.parquet"]
    assert not [each for each in looked if "day=2026-03-01" in each]
    monkeypatch.undo()
    assert {row["day"] for row in read(source)[0]} == {date(2026, 3, 3), date(2026, 3, 4)}


def test_event_time_of_folders(tmp_path: Path) -> None:
    """A batch engine, where splits have nothing to do with each other, leaves out folders all the same."""
    folders(tmp_path)
    made, stream = pipeline(files.Source(tmp_path, schema=Dated, event_time="at"))
    wanted = stream.filter((col("day") == date(2026, 3, 2)) & (col("euros") > 15))
    wanted.key_by("shop").window(tumbling("10s")).agg(n=count()).write(collecting.Sink())
    assert len(source_of(made).discover()) == 4
    assert len(source_of(made, time_per_split=True).discover()) == 1
    assert len(read(source_of(made, time_per_split=True))[0]) == 20


def test_no_folder_is_wanted_or_there_is_none(tmp_path: Path) -> None:
    folders(tmp_path)
    made, stream = pipeline(files.Source(tmp_path, schema=Dated))
    stream.filter(col("day") == date(2027, 1, 1)).write(collecting.Sink())
    assert not source_of(made).discover()
    (tmp_path / "empty").mkdir()
    made, stream = pipeline(files.Source(tmp_path / "empty", schema=Dated))
    stream.filter(col("day") == date(2027, 1, 1)).write(collecting.Sink())
    with pytest.raises(PipelineError, match="no file"):
        source_of(made).discover()

"""The connector that docs/connectors.md writes: its blocks, run, keep what the page says of them."""

from __future__ import annotations

import re
import sqlite3
import sys
import uuid
from contextlib import closing
from pathlib import Path
from time import time_ns
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from tests.integration.publishing_by_hand import check_a_stopped_publisher_is_refused, check_rows_are_visible_once
from tests.integration.sink_rows import Sale, sales

from penstock import Pipeline, PipelineError, col, count
from penstock.connectors import iterables
from penstock.connectors.base import EndOfSplit, PublishContext, ReadContext

PAGE = Path(__file__).parents[2] / "docs" / "connectors.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of all blocks, with the tables they speak of."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("create table payments (id integer primary key, amount real)")
        connection.execute("create table large (id integer, amount real)")
        connection.execute("create table numbers (n integer)")
        connection.execute(
            "create table windows (key text, window_start text, window_end text, n integer, total integer)"
        )
        connection.executemany("insert into payments values (?, ?)", [(n, n * 1.0) for n in range(1, 1_001)])
    module = ModuleType("the_connector_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), vars(module))
    return module


def rows(query: str) -> list[Any]:
    with closing(sqlite3.connect("shop.db")) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("options", [{}, {"at_least_once": True}])
def test_its_pipeline(page: Any, options: Any) -> None:
    """From table to table."""
    assert page.p.run(**options).state == "FINISHED"
    assert sorted(rows("select id, amount from large")) == [(n, float(n)) for n in range(101, 1_001)]


async def test_reading_goes_on_from_a_position(page: Any) -> None:
    """Every row once, in order, wherever a reader stops."""
    context = ReadContext(lambda: 0, lambda: 0)
    for split in page.payments.discover():
        reader, found = page.payments.open(split, None, context), []
        while True:
            try:
                found += (await reader.read(37)).frame["id"].to_list()
            except EndOfSplit:
                break
            reader = page.payments.open(split, reader.position(), context)
        assert found == [n for n in range(1, 1_001) if n % 4 == int(split.id)]


class Target:
    """Numbers, published by hand."""

    def __init__(self, page: Any) -> None:
        self.page, self.sink = page, page.Sink("shop.db", "numbers")
        self.context = PublishContext(uuid.uuid4().hex, "out", 0, 0, 1, lambda: time_ns() // 1_000)

    def publisher(self) -> Any:
        made = self.page.Publisher(self.sink, self.context)
        commit = made.commit

        async def numbered(frames: Any, mark: Any) -> None:
            await commit(
                [frame.select(pl.col("value").cast(pl.String).cast(pl.Int64).alias("n")) for frame in frames], mark
            )

        made.commit = numbered
        return made

    def numbers(self) -> list[int]:
        return [n for (n,) in rows("select n from numbers order by n")]


async def test_its_rows_are_visible_once(page: Any) -> None:
    """And the mark says how far; marks can be forgotten."""
    target = Target(page)
    await check_rows_are_visible_once(target)
    assert len(rows("select * from marks")) == 1
    await target.sink.forget(target.context)
    assert rows("select * from marks") == []


async def test_a_publisher_that_was_stopped_is_refused(page: Any) -> None:
    """Before its transaction another one starts."""
    await check_a_stopped_publisher_is_refused(Target(page))


def test_what_its_sink_refuses(page: Any) -> None:
    """When the pipeline is built."""
    read = Pipeline("p").read(iterables.Source(sales(3), schema=Sale))
    with pytest.raises(PipelineError, match="write its `final"):
        read.key_by("shop").agg(n=count()).write(page.Sink("shop.db", "t"))
    with pytest.raises(PipelineError, match="large is boolean; make it a text or a number"):
        read.with_columns(large=col("amount") > 5).write(page.Sink("shop.db", "t"))

"""The tables of guarantees: they name every connector, say what the code says, and what shows it is there."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tools.reference import entries

from penstock.connectors import (
    collecting,
    console,
    files,
    generate,
    http,
    iceberg,
    iterables,
    kafka,
    opensearch,
    postgres,
    redis,
    sockets,
    spark,
    sqlite,
)
from penstock.connectors.base import Sink, Source
from penstock.connectors.lookups import Lookup
from penstock.types import INT64, Field, Schema

ROOT: Final = Path(__file__).parents[3]
HEAD: Final = "| connector | guarantee | shown by |"
ROW: Final = Schema((Field("auction", INT64),))
DATABASE, CACHE, SEARCH = "postgresql://localhost/shop", "redis://localhost", "http://localhost:9200"
WEAKER: Final = "at-least-once"
MADE: Final[dict[str, list[Source | Sink]]] = {
    "`files.Source`": [files.Source("bids.jsonl", schema=ROW)],
    "`kafka.Source`": [kafka.Source("bids", schema=ROW)],
    "`kafka.ChangeSource`": [kafka.ChangeSource("bids", key="auction", schema=ROW)],
    "`postgres.ChangeSource`": [
        postgres.ChangeSource("bids", key="auction", schema=ROW, url=DATABASE, slot="bids"),
    ],
    "`iceberg.Source`": [iceberg.Source("shop.bids", schema=ROW)],
    "`sqlite.Source`": [sqlite.Source("shop.db", "bids", schema=ROW)],
    "`generate.Source`, also of `nexmark`": [generate.Source(lambda numbers: {"auction": numbers}, schema=ROW)],
    "`iterables.Source` of a list or a function": [
        iterables.Source([{"auction": 1}], schema=ROW),
        iterables.Source(lambda: [{"auction": 1}], schema=ROW),
    ],
    "`iterables.Source` of an iterator": [iterables.Source(iter([{"auction": 1}]), schema=ROW)],
    "`sockets.Source`": [sockets.Source("localhost", 9000, schema=ROW)],
    "`spark.Source`": [spark.Source("bids", schema=ROW)],
    "`files.Sink` on a disk": [files.Sink(tempfile.gettempdir())],
    "`files.Sink` on an object store": [files.Sink("s3://shop/bids")],
    "`iceberg.Sink`": [iceberg.Sink("shop.bids")],
    "`kafka.Sink`": [kafka.Sink("bids"), kafka.Sink("bids", key="auction", delivery="upsert")],
    '`kafka.Sink(publish="direct")`': [kafka.Sink("bids", publish="direct")],
    '`kafka.Sink(delivery="at-least-once")`': [kafka.Sink("bids", delivery=WEAKER)],
    "`postgres.Sink`": [postgres.Sink("bids", url=DATABASE)],
    "`sqlite.Sink`": [sqlite.Sink("shop.db", "bids"), sqlite.Sink("shop.db", "bids", key="auction")],
    '`sqlite.Sink(delivery="at-least-once")`': [sqlite.Sink("shop.db", "bids", delivery=WEAKER)],
    "`redis.Sink`, `redis.StreamSink`": [redis.Sink("{auction}", url=CACHE), redis.StreamSink("bids", url=CACHE)],
    "`opensearch.Sink`": [opensearch.Sink("bids", url=SEARCH)],
    (
        "`http.Sink`; `postgres.Sink`, `redis.Sink`, `redis.StreamSink`, `opensearch.Sink` with "
        '`delivery="at-least-once"`, by the same writer'
    ): [
        http.Sink("https://localhost/bids"),
        postgres.Sink("bids", url=DATABASE, delivery=WEAKER),
        redis.Sink("{auction}", url=CACHE, delivery=WEAKER),
        redis.StreamSink("bids", url=CACHE, delivery=WEAKER),
        opensearch.Sink("bids", url=SEARCH, delivery=WEAKER),
    ],
    "`console.Sink`": [console.Sink()],
    "`collecting.Sink`": [collecting.Sink()],
    "`postgres.Lookup`, `redis.Lookup`, `http.Lookup`": [],
}
"""The connectors of a row; lookups say nothing of what they guarantee."""


@dataclass(frozen=True)
class Shown:
    """A row of a table."""

    page: str
    connector: str
    guarantee: str
    tests: str

    def __str__(self) -> str:
        return f"{self.page}: {self.connector}"


def shown(page: str) -> list[Shown]:
    """The rows of a page's table."""
    _, _, below = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"{HEAD}\n")
    lines = below.partition("\n\n")[0].splitlines()[1:]
    return [Shown(page, *(cell.strip() for cell in line.strip("|").split(" | "))) for line in lines]


CONNECTORS: Final = shown("connectors.md")


@pytest.mark.parametrize("row", [*CONNECTORS, *shown("changes.md")], ids=str)
def test_what_shows_a_guarantee_is_there(row: Shown) -> None:
    """Each file, and the test in it."""
    named = re.findall(r"`([^`]+\.py)(?:::([^`]+))?`", row.tests)
    assert len(named) == row.tests.count(".py")
    assert named
    for file, test in named:
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(" if test else "^(async )?def test_", text, re.M), (file, test)


def test_every_connector_has_a_guarantee() -> None:
    """Those that the reference explains."""
    public = {
        name for name, value in entries() if isinstance(value, type) and issubclass(value, Source | Sink | Lookup)
    }
    named = {name for row in CONNECTORS for name in re.findall(r"`(\w+\.\w+)", row.connector)}
    assert len(public) > 20
    assert named == public


def test_guarantees_are_those_of_the_code() -> None:
    """A source that cannot be read again promises less."""
    assert [row.connector for row in CONNECTORS] == list(MADE)
    for row in CONNECTORS:
        for made in MADE[row.connector]:
            said = made.guarantee if isinstance(made, Sink) else "exactly-once" if made.replayable else WEAKER
            assert row.guarantee.startswith(said), (row.connector, made)

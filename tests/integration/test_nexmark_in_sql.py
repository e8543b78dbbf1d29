"""The queries of Nexmark in SQL come to what DuckDB finds in the same events, whatever happens on the way.

`sql/nexmark.sql` has the queries. They run in a few jobs, which are interrupted and continue at another parallelism.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import duckdb
import numpy as np
import polars as pl
import pytest
from embedded_runs import Attempt, Stress, assert_same, settings

from penstock import Pipeline
from penstock.api.pipeline import DeclaredPipeline
from penstock.api.stream import Stream
from penstock.api.update_streams import UpsertStream
from penstock.connectors import files, generate, iterables, nexmark
from penstock.connectors.base import Fetched, Position, ReadContext, Split, SplitReader
from penstock.embedded import run_pipeline
from penstock.loading import load_pipeline
from penstock.sql.text import SqlError
from penstock.task import sources
from penstock.types import INT64, STRING, Field, Schema

ROUNDS: Final = 60
"""Of 50 events each, of which one is a person, three are auctions, and the others bids."""
FAST, SLOW = "20ms", "20s"
"""Between two events: within a minute, or within 17 hours."""
OF_DAYS: Final = frozenset({"q14", "q15", "q16", "q17"})
"""Queries over slow events, which come at all hours, and on two days."""
GROUPS: Final = {
    "rows": ("q0 q1 q2 q10 q14 q21 q22", "bid"),
    "joins": ("q3 q13 q20", "person auction bid side_input"),
    "winners": ("q4 q6 q9", "auction bid"),
    "windows": ("q5 q7 q8 q11 q12", "person auction bid"),
    "groups": ("q15 q16 q17 q18 q19", "bid"),
}
"""Queries that run as one job, and the tables that they read."""
APPENDED: Final = frozenset(
    ["q0", "q1", "q2", "q3", "q5", "q7", "q8", "q10", "q11", "q12", "q13", "q14", "q20", "q21", "q22"]
)
"""Queries whose rows are never replaced."""
OPTIONS: Final[dict[str, Any]] = {"start": datetime(2026, 1, 1, 23, 59, 10, tzinfo=UTC), "out_of_orderness": "2s"}
CALLED: Final = {"at": "dateTime", "item_name": "itemName", "initial_bid": "initialBid"}
"""Columns of `nexmark` as the queries call them."""
SIDE_INPUT: Final = [{"key": key, "value": f"auction {key}"} for key in range(1000, 1400, 3)]


@dataclass(frozen=True)
class Query:
    """A query of the benchmark."""

    name: str
    ours: str
    theirs: str
    """What DuckDB is asked."""

    @property
    def interval(self) -> str:
        """Between the events that it is over."""
        return SLOW if self.name in OF_DAYS else FAST


def queries() -> Iterator[Query]:
    text = (Path(__file__).parent / "sql" / "nexmark.sql").read_text()
    for name, part in re.findall(r"^-- (q\d+): .*\n((?:(?!-- q).*\n?)*)", text, re.MULTILINE):
        ours, _, theirs = part.partition("-- DuckDB\n")
        yield Query(name, ours.strip().rstrip(";"), (theirs or ours).strip())


QUERIES: Final = {query.name: query for query in queries()}


def contents(interval: str) -> dict[str, tuple[generate.Content[Any], int]]:
    """What each table holds, and how many rows of it."""
    return {
        "person": (nexmark.people(interval=interval, **OPTIONS), ROUNDS),
        "auction": (nexmark.auctions(interval=interval, **OPTIONS), 3 * ROUNDS),
        "bid": (nexmark.bids(interval=interval, **OPTIONS), 46 * ROUNDS),
    }


def called(content: generate.Content[Any]) -> dict[str, str]:
    return {name: called for name, called in CALLED.items() if name in content.schema.names}


def count_char(text: str, letter: str) -> int:
    return text.count(letter)


class Held(generate.Source[Any]):
    """Hands out some of its rows, and then waits: what reads it cannot end before it is interrupted."""

    def __init__(self, content: generate.Content[Any], rows: int, rounds: int) -> None:
        super().__init__(content, rows=rows, splits=3)
        self.share = rounds / ROUNDS

    def open(self, split: Split, position: Position, context: ReadContext) -> SplitReader:
        reader, rows = super().open(split, position, context), self.rows_of_split(int(split.id)) or 0
        return reader if self.share == 1 else HeldReader(reader, int(self.share * rows))


class HeldReader:
    def __init__(self, reader: SplitReader, rows: int) -> None:
        self.reader, self.rows = reader, rows
        self.position, self.close = reader.position, reader.close

    async def read(self, max_rows: int) -> Fetched | None:
        left = self.rows - self.reader.position()
        if left <= 0:
            await asyncio.sleep(0.01)
            return None
        return await self.reader.read(min(max_rows, left))


def streams(p: Pipeline, tables: Sequence[str], interval: str, rounds: int) -> dict[str, Any]:
    """The tables of a pipeline, of which so many rounds are handed out."""
    found: dict[str, Any] = {}
    for name, (content, rows) in contents(interval).items():
        if name in tables:
            found[name] = p.read(Held(content, rows, rounds)).rename(called(content))
    if "side_input" in tables:
        schema = Schema((Field("key", INT64), Field("value", STRING)))
        found["side_input"] = p.read(iterables.Source(SIDE_INPUT, schema=schema))
    return found


def declared(names: Sequence[str], tables: Sequence[str], out: Path, rounds: int) -> Pipeline:
    """Queries as one pipeline, each of which writes its final rows below a folder."""
    p = Pipeline("nexmark", max_parallelism=8)
    intervals = {QUERIES[name].interval for name in names}
    over = {interval: streams(p, tables, interval, rounds) for interval in intervals}
    for name in names:
        query = QUERIES[name]
        rows = p.sql(query.ours, **over[query.interval], count_char=count_char)
        assert isinstance(rows, Stream) == (name in APPENDED), name
        final = rows.final() if isinstance(rows, UpsertStream) else rows
        final.write(files.Sink(out / name, format="arrow", partition_by=["dt", "hm"] if name == "q10" else []))
    return p


def database(interval: str) -> duckdb.DuckDBPyConnection:
    """The same tables."""
    connection = duckdb.connect()
    frames = {"side_input": pl.DataFrame(SIDE_INPUT)}
    for name, (content, rows) in contents(interval).items():
        frames[name] = content.frame(np.arange(rows), 42).rename(called(content))
    for name, frame in frames.items():
        plain_times = frame.with_columns(pl.col(pl.Datetime("us", "UTC")).dt.replace_time_zone(None))
        connection.register(f"given_{name}", plain_times.to_arrow())
        connection.execute(f"create table {name} as select * from given_{name}")
    connection.execute(
        "create macro date_format(t, form) as strftime(t, case form when 'HH:mm' then '%H:%M' else '%Y-%m-%d' end);"
        "create macro count_char(text, letter) as len(text) - len(replace(text, letter, ''))"
    )
    return connection


@pytest.fixture(scope="module")
def databases() -> dict[str, duckdb.DuckDBPyConnection]:
    return {interval: database(interval) for interval in (FAST, SLOW)}


def asked(connection: duckdb.DuckDBPyConnection, name: str) -> Counter[str]:
    """What DuckDB finds, which is something."""
    found = counted(connection.execute(QUERIES[name].theirs).fetchall())
    assert found, name
    return found


def plain(value: Any) -> Any:
    """A value in a form in which both engines agree about it."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return round(float(value), 6) if isinstance(value, float | Decimal) else value


def counted(rows: Iterable[Sequence[Any]]) -> Counter[str]:
    return Counter(str(tuple(map(plain, row))) for row in rows)


def written(folder: Path) -> Counter[str]:
    """The rows of a query, with what its folders say behind them."""
    found: Counter[str] = Counter()
    for part in folder.rglob("part-*"):
        of_folders = [unquote(name.partition("=")[2]) for name in part.relative_to(folder).parts[:-1]]
        found += counted((*row, *of_folders) for row in pl.read_ipc(part).iter_rows())
    return found


def test_all_queries_are_there() -> None:
    assert (
        set(QUERIES) == {name for names, _ in GROUPS.values() for name in names.split()} == {f"q{n}" for n in range(23)}
    )


@pytest.mark.parametrize("group", GROUPS)
def test_interrupted_queries_come_to_what_duckdb_finds(
    group: str,
    databases: dict[str, duckdb.DuckDBPyConnection],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With three subtasks, then with one, then with three again, each behind a third of the rows."""
    monkeypatch.setattr(sources, "BATCH_ROWS", 150)
    names, tables = (words.split() for words in GROUPS[group])
    planned = (Attempt(3, 50, 0, after_checkpoints=2), Attempt(1, 50, 0, after_checkpoints=2), Attempt(3, 50, 60, None))
    rounds = iter((ROUNDS // 3, 2 * ROUNDS // 3, ROUNDS))
    stress = Stress(lambda out: declared(names, tables, out, next(rounds)), tmp_path, "nexmark", planned=planned)
    out = stress.run()
    assert (len(stress.history), stress.resumed) == (3, 2)
    for name in names:
        assert_same(written(out / name), asked(databases[QUERIES[name].interval], name), name)


PROGRAM: Final = """
CREATE TABLE events (
    kind INT,
    auction ROW<id BIGINT, seller BIGINT, category BIGINT, `at` TIMESTAMP(3), expires TIMESTAMP(3)>,
    bid ROW<auction BIGINT, bidder BIGINT, price BIGINT, `at` TIMESTAMP(3), extra VARCHAR>,
    dateTime AS CASE WHEN kind = 1 THEN auction.`at` ELSE bid.`at` END,
    WATERMARK FOR dateTime AS dateTime - INTERVAL '4' SECOND
) WITH ('connector' = 'filesystem', 'path' = 'events.jsonl', 'format' = 'json');

CREATE VIEW auction AS
SELECT auction.id, auction.seller, auction.category, dateTime, auction.expires FROM events WHERE kind = 1;
CREATE VIEW bid AS
SELECT bid.auction, bid.bidder, bid.price, dateTime, bid.extra FROM events WHERE kind = 2;

CREATE FUNCTION count_char AS 'letters.count_char' LANGUAGE PYTHON;
"""
INTO: Final = {
    "q4": "category BIGINT, mean DOUBLE",
    "q10": "auction BIGINT, bidder BIGINT, price BIGINT, dateTime TIMESTAMP(3), extra VARCHAR, dt STRING, hm STRING",
    "q11": "bidder BIGINT, bids BIGINT, begins TIMESTAMP(3), ends TIMESTAMP(3)",
    "q14": "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), time_of_day VARCHAR, dateTime TIMESTAMP(3), "
    "extra VARCHAR, letters BIGINT",
}
"""The tables that some queries fill."""
LETTERS: Final = """
def count_char(text: str | None, letter: str) -> int | None:
    return None if text is None else text.count(letter)
"""


def table(name: str, more: str = "") -> str:
    partitioned = "PARTITIONED BY (dt, hm)" if name == "q10" else ""
    settings = f"'connector' = 'filesystem', 'path' = '{name}', 'format' = 'arrow'{more}"
    return f"CREATE TABLE {name} ({INTO[name]}) {partitioned} WITH ({settings});"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the function that the statements call."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.py").write_text(LETTERS)
    return tmp_path


def program(folder: Path, statements: str) -> DeclaredPipeline:
    (folder / "job.sql").write_text(PROGRAM + statements)
    return load_pipeline(str(folder / "job.sql"), {})


def test_a_file_of_statements_reads_events_of_all_kinds(
    databases: dict[str, duckdb.DuckDBPyConnection], folder: Path
) -> None:
    """As the benchmark declares them: one table, with a column for each kind and a computed event time, and its views."""
    of_kinds = {"auction": 1, "bid": 2}
    lines: list[dict[str, Any]] = [
        {"kind": of_kinds[name], **dict.fromkeys(of_kinds), name: row}
        for name, (content, rows) in contents(FAST).items()
        if name in of_kinds
        for row in content.frame(np.arange(rows), 42).to_dicts()
    ]
    lines.sort(key=lambda line: (line["auction"] or line["bid"])["at"])
    (folder / "events.jsonl").write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))
    statements = [table(name) + f"INSERT INTO {name} {QUERIES[name].ours};" for name in INTO]
    run_pipeline(program(folder, "\n".join(statements)), settings(2, 50), directory=folder / "state", resume=False)
    for name in INTO:
        assert_same(written(folder / name), asked(databases[FAST], name), name)


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (  # the mean of integers has a fraction, as in other databases than Flink
            "CREATE TABLE q4 (id BIGINT, best BIGINT) WITH ('connector' = 'print'); INSERT INTO q4 "
            + QUERIES["q4"].ours,
            "'EXPR\\$1' is DOUBLE, and best of the table BIGINT; CAST it",
        ),
        (  # as in the benchmark, with the condition beside what it is about, which no engine runs
            "SELECT id, ROW_NUMBER() OVER (PARTITION BY id ORDER BY category) AS place FROM auction WHERE place <= 1",
            "there is no column 'place'",
        ),
        (
            table("q10", ", 'sink.partition-commit.trigger' = 'partition-time'")
            + "INSERT INTO q10 "
            + QUERIES["q10"].ours,
            "'filesystem' has no setting 'sink.partition-commit.trigger'",
        ),
        (  # q12
            "SELECT bidder, COUNT(*) FROM TABLE(TUMBLE(TABLE (SELECT *, PROCTIME() AS p FROM bid), DESCRIPTOR(p), "
            "INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end",
            "windows go by event time, and p is not: the event time of the table is dateTime",
        ),
        (  # q13
            "SELECT b.price, a.seller FROM (SELECT *, PROCTIME() AS p FROM bid) b "
            "JOIN auction FOR SYSTEM_TIME AS OF b.p AS a ON b.auction = a.id",
            "FOR SYSTEM_TIME AS OF takes the column that is the event time of the left table",
        ),
    ],
    ids=["q4", "q6", "q10", "q12", "q13"],
)
def test_what_the_benchmark_says_otherwise_is_refused(statements: str, reason: str, folder: Path) -> None:
    with pytest.raises(SqlError, match=reason):
        program(folder, statements)

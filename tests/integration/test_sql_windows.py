"""Windows, joins in time and OVER by event time in SQL: what DuckDB finds in the same rows, sent once and for all.

Windows of windowing functions are views in DuckDB, in which every row is once for each of its windows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import duckdb
import polars as pl
import pytest

from penstock import Pipeline
from penstock.api.stream import Stream
from penstock.api.update_streams import UpsertStream
from penstock.connectors import collecting, iterables
from penstock.sql.text import SqlError
from penstock.testing import run_sinks
from penstock.types import INT64, TIMESTAMP, Field, Schema

START: Final = datetime(2024, 1, 1, tzinfo=UTC)
BEHIND: Final = 7
"""By how many seconds rows come after later ones."""
SCHEMA: Final = Schema((Field("ts", TIMESTAMP), Field("k", INT64, True), Field("x", INT64, True), Field("id", INT64)))


def drawn(table: str) -> list[dict[str, Any]]:
    """Rows, no two at one time in both tables, not quite in order."""
    chance = random.Random(table)
    moments = [second * 1000 + (500 if table == "b" else 0) for second in chance.sample(range(150), 60)]
    rows: list[dict[str, Any]] = [
        {
            "ts": START + timedelta(milliseconds=moment), "id": number, "x": chance.choice([None, *range(5)]),
            "k": chance.choice([None, 1, 2, 3]),
        }
        for number, moment in enumerate(moments)
    ]  # fmt: skip
    late = {row["id"]: row["ts"] + timedelta(seconds=chance.uniform(0, BEHIND - 1)) for row in rows}
    return sorted(rows, key=lambda row: late[row["id"]])


ROWS: Final = {table: drawn(table) for table in ("a", "b")}

WINDOWS: Final = {
    "TUMBLE": ("TUMBLE(TABLE {0}, DESCRIPTOR(ts), INTERVAL '10' SECOND)", 10, 10),
    "HOP": ("HOP(TABLE {0}, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '15' SECOND)", 5, 15),
    "CUMULATE": ("CUMULATE(TABLE {0}, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)", 5, 20),
    "SESSION": ("SESSION(TABLE {0} PARTITION BY k, DESCRIPTOR(ts), INTERVAL '4' SECOND)", 4, 4),
}


def view(kind: str, table: str, step: int, size: int) -> str:
    """The rows of a table with their windows, in DuckDB."""
    if kind == "SESSION":
        return (
            f"SELECT * EXCLUDE (begun, number), min(ts) OVER w AS window_start, "
            f"max(ts) OVER w + INTERVAL {size} SECOND AS window_end FROM (SELECT *, sum(begun) OVER "
            f"(PARTITION BY k ORDER BY ts) "
            f"AS number FROM (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) <= INTERVAL "
            f"{size} SECOND "
            f"THEN 0 ELSE 1 END AS begun FROM {table})) WINDOW w AS (PARTITION BY k, number)"
        )
    if kind == "CUMULATE":
        bucket = f"time_bucket(INTERVAL {size} SECOND, ts)"
        steps = f"unnest(range(1, {size // step + 1}))"
        return (
            f"SELECT * FROM (SELECT *, {bucket} AS window_start, {bucket} + {steps} * INTERVAL {step} SECOND "
            f"AS window_end "
            f"FROM {table}) WHERE window_end > ts"
        )
    bucket = f"time_bucket(INTERVAL {step} SECOND, ts)"
    return (
        f"SELECT *, window_start + INTERVAL {size} SECOND AS window_end FROM (SELECT *, "
        f"{bucket} - unnest(range(0, {size // step})) * INTERVAL {step} SECOND AS window_start FROM {table})"
    )


OF_WINDOWS: Final = (
    "SELECT k, window_start, window_end, COUNT(*), SUM(x), COUNT(DISTINCT x), AVG(x) FROM {a} GROUP "
    "BY k, window_start, window_end",
    "SELECT k, window_end, MAX(x) FROM {a} WHERE k > 1 GROUP BY window_start, window_end, k HAVING COUNT(*) > 1",
    "WITH one AS (SELECT k, window_start, window_end, COUNT(*) AS n FROM {a} GROUP BY k, "
    "window_start, window_end) "
    "SELECT k, n + 1, window_end FROM one WHERE n > 1",
)
"""Over windows of all kinds."""

OF_FIXED_WINDOWS: Final = (
    "SELECT k, window_end, MAX(x) FROM {a} WHERE x > 0 GROUP BY window_start, window_end, k HAVING COUNT(*) > 1",
    "SELECT k, x % 2 AS odd, window_start, COUNT(*) FILTER (WHERE x = 1) FROM {a} GROUP BY k, x % "
    "2, window_start, window_end",
    "SELECT window_start, window_end, COUNT(*), MIN(x) FROM {a} GROUP BY window_start, window_end",
    "WITH one AS (SELECT k, window_start, window_end, COUNT(*) AS n, SUM(x) AS s FROM {a} GROUP BY "
    "k, window_start, window_end) "
    "SELECT window_start, window_end, MAX(n), SUM(s), COUNT(*) FROM one GROUP BY window_start, window_end",
    "WITH one AS (SELECT k, window_start, window_end, COUNT(*) AS n FROM {a} GROUP BY k, "
    "window_start, window_end) "
    "SELECT n, window_end, COUNT(*) FROM one WHERE k IS NOT NULL GROUP BY n, window_start, window_end",
    "WITH one AS (SELECT k, window_start, window_end, COUNT(*) AS n FROM {a} GROUP BY k, "
    "window_start, window_end), "
    "two AS (SELECT n, window_start, window_end, COUNT(*) AS m FROM one GROUP BY n, window_start, "
    "window_end) "
    "SELECT window_start, window_end, SUM(n * m), MAX(m) FROM two GROUP BY window_start, window_end",
    "SELECT l.k, l.window_start, l.n, r.s FROM "
    "(SELECT k, window_start, window_end, COUNT(*) AS n FROM {a} GROUP BY k, window_start, "
    "window_end) AS l JOIN "
    "(SELECT k, window_start, window_end, SUM(x) AS s FROM {b} GROUP BY k, window_start, window_end) AS r "
    "ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end",
    "SELECT l.k, l.window_start, r.window_start AS other, l.n, r.s FROM "
    "(SELECT k, window_start, window_end, COUNT(*) AS n FROM {a} GROUP BY k, window_start, "
    "window_end) AS l FULL JOIN "
    "(SELECT k, window_start, window_end, SUM(x) AS s FROM {b} GROUP BY k, window_start, window_end) AS r "
    "ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end AND l.n > r.s",
    "SELECT l.window_end, l.n FROM "
    "(SELECT k, window_start, window_end, COUNT(*) AS n FROM {a} GROUP BY k, window_start, "
    "window_end) AS l WHERE EXISTS "
    "(SELECT 1 FROM (SELECT k, window_start, window_end FROM {b} GROUP BY k, window_start, window_end) AS r "
    "WHERE l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end)",
)
"""Over windows that are the same for all keys."""

BEST: Final = (
    "SELECT * FROM (SELECT k, window_start, window_end, id, x, ROW_NUMBER() OVER "
    "(PARTITION BY window_start, window_end ORDER BY x DESC NULLS LAST, id) AS n FROM {a}) WHERE n <= 2",
    "SELECT k, window_end, c FROM (SELECT *, ROW_NUMBER() OVER "
    "(PARTITION BY window_start, window_end ORDER BY c DESC, k NULLS LAST) AS n FROM (SELECT k, "
    "window_start, window_end, "
    "COUNT(*) AS c FROM {a} GROUP BY k, window_start, window_end)) WHERE n = 1",
)
"""The best rows of windows, which are corrected until they end."""

IN_TIME: Final = (
    "SELECT a.id, b.id AS other FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '10' SECOND",
    "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.k = b.k AND b.ts > a.ts - INTERVAL '5' SECOND AND b.ts < a.ts",
    "SELECT a.id, b.id AS other FROM a FULL JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '3' SECOND "
    "AND a.ts + INTERVAL '3' SECOND AND a.x < b.x",
    "SELECT a.id, b.id AS other FROM a RIGHT JOIN b ON a.ts BETWEEN b.ts - INTERVAL '2' SECOND AND b.ts AND a.x = b.x",
    "SELECT a.id, b.id AS other FROM a, b WHERE a.k = b.k AND a.ts <= b.ts AND b.ts <= a.ts + "
    "INTERVAL '4' SECOND AND a.x > 1",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.k = b.k AND b.ts BETWEEN a.ts AND a.ts "
    "+ INTERVAL '5' SECOND)",
    "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.k = b.k AND b.ts BETWEEN a.ts AND "
    "a.ts + INTERVAL '5' SECOND "
    "AND b.x <> a.x)",
    "SELECT id, SUM(x) OVER (PARTITION BY k ORDER BY ts) AS s, COUNT(*) OVER (PARTITION BY k ORDER BY ts) AS n FROM a",
    "SELECT id, AVG(x) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS m FROM a",
    "SELECT id, MAX(x) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL '9' SECOND PRECEDING "
    "AND CURRENT ROW) AS m FROM a",
    "SELECT id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n, LAG(x) OVER (PARTITION BY k "
    "ORDER BY ts) AS before FROM a",
    "SELECT id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n FROM a",
    "SELECT id, ts, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n FROM a WHERE x > 1",
    "SELECT n, id FROM (SELECT id, ts AS t, x, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n FROM a) WHERE x > n",
    "SELECT id, SUM(x) OVER (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) - x AS d FROM a WHERE k IS NOT NULL",
    "SELECT k, x, id FROM a UNION ALL SELECT k, x + 1, id FROM b WHERE x > 1",
)
"""Over rows with event time, in the same words in both."""


PAIRS: Final = (
    "SELECT a.id, b.id AS other, a.k, a.x, a.ts AS lt, b.ts AS bt FROM a {} JOIN b ON a.k = b.k "
    "AND b.ts BETWEEN a.ts - INTERVAL '4' SECOND AND a.ts + INTERVAL '9' SECOND"
)
"""Of which both times are event times."""
ALL_PAIRS: Final = f"({PAIRS.format('LEFT')})"
NEXT_PAIRS: Final = (
    f"(SELECT p.id, p.other, p.k, p.lt, p.bt, c.ts AS ct, c.id AS third FROM ({PAIRS.format('')}) AS p JOIN a AS c "
    "ON c.ts > p.bt AND c.ts <= p.bt + INTERVAL '6' SECOND AND p.k = c.k)"
)
OF_TIMES: Final = tuple(
    (
        f"SELECT window_start, COUNT(*), SUM(other) FROM TUMBLE(TABLE {rows}, DESCRIPTOR({time}), INTERVAL '10' SECOND) "
        "GROUP BY window_start, window_end",
        f"SELECT time_bucket(INTERVAL 10 SECOND, {time}) AS w, COUNT(*), SUM(other) FROM {rows} GROUP BY w",
    )
    for rows, times in ((ALL_PAIRS, ["lt"]), (f"({PAIRS.format('')})", ["lt", "bt"]), (NEXT_PAIRS, ["lt", "bt", "ct"]))
    for time in times
)
"""Windows by every time behind joins in time, and what they are in DuckDB."""
IN_TIME_OF_PAIRS: Final = (
    f"SELECT id, other, COUNT(*) OVER (PARTITION BY k ORDER BY lt) AS n FROM ({PAIRS.format('')})",
    f"SELECT id, other, SUM(x) OVER (PARTITION BY k ORDER BY bt RANGE BETWEEN INTERVAL '9' SECOND PRECEDING "
    f"AND CURRENT ROW) AS s FROM ({PAIRS.format('')})",
    f"SELECT id, third, MAX(other) OVER (PARTITION BY k ORDER BY bt) AS m FROM {NEXT_PAIRS} WHERE id <> third",
    f"SELECT * FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY lt, bt) AS n FROM ({PAIRS.format('')})) "
    "WHERE n > 2",
    f"SELECT DISTINCT p.other, c.id FROM {NEXT_PAIRS} AS p JOIN b AS c ON p.k = c.k "
    "AND c.ts BETWEEN p.lt AND p.lt + INTERVAL '3' SECOND",
)
"""In the same words in both."""


def plain(value: Any) -> Any:
    """A value in a form in which both engines agree about it."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return round(float(value), 6) if isinstance(value, float | Decimal) else value


def counted(rows: Iterable[Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(plain, row)) for row in rows)


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for table, rows in ROWS.items():
        frame = pl.DataFrame(rows, schema=SCHEMA.polars()).with_columns(pl.col("ts").dt.replace_time_zone(None))
        connection.register(f"given_{table}", frame.to_arrow())
        connection.execute(f"create table {table} as select * from given_{table}")
        for kind, (_, step, size) in WINDOWS.items():
            connection.execute(f"create view {table}_{kind} as {view(kind, table, step, size)}")
    return connection


def appended(queries: Sequence[str], *, replaced: bool = False) -> list[Counter[tuple[Any, ...]]]:
    """The rows of queries whose results are never replaced, or the final ones of others."""
    pipeline = Pipeline("queries")
    streams = {
        table: pipeline.read(
            iterables.Source(rows, schema=SCHEMA, event_time="ts", max_out_of_orderness=timedelta(seconds=BEHIND))
        )
        for table, rows in ROWS.items()
    }
    sinks: list[tuple[list[str], collecting.Sink]] = []
    for query in queries:
        found = pipeline.sql(query, **streams)
        assert replaced or isinstance(found, Stream), f"replaces rows: {query}"
        found = found.final() if isinstance(found, UpsertStream) else found
        sink = collecting.Sink()
        found.write(sink)
        sinks.append((list(found.schema.names), sink))
    pipeline.run(durable=False)
    return [counted([row[name] for name in names] for row in sink.rows) for names, sink in sinks]


@pytest.mark.parametrize("kind", WINDOWS)
def test_results_of_windows_are_final_and_those_of_duckdb(kind: str, database: duckdb.DuckDBPyConnection) -> None:
    function = WINDOWS[kind][0]
    queries = OF_WINDOWS if kind == "SESSION" else (*OF_WINDOWS, *OF_FIXED_WINDOWS)
    ours = appended([query.format(a=function.format("a"), b=function.format("b")) for query in queries])
    for query, rows in zip(queries, ours, strict=True):
        theirs = counted(database.execute(query.format(a=f"a_{kind}", b=f"b_{kind}")).fetchall())
        assert theirs
        assert rows == theirs, query


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, COUNT(*) FROM {a} WHERE x > 0 GROUP BY k, window_start, window_end",
        "SELECT k, COUNT(*) FROM {a} GROUP BY k, x, window_start, window_end",
        "SELECT COUNT(*) FROM {a} GROUP BY window_start, window_end",
    ],
)
def test_sessions_are_those_of_their_partition(query: str) -> None:
    """Rows that are left out, or other groups, would make other sessions."""
    with pytest.raises(SqlError, match=r"session|SESSION"):
        appended([query.format(a=WINDOWS["SESSION"][0].format("a"))])


@pytest.mark.parametrize("kind", ["TUMBLE", "HOP"])
def test_the_best_rows_of_windows_are_those_of_duckdb(kind: str, database: duckdb.DuckDBPyConnection) -> None:
    function = WINDOWS[kind][0].format("a")
    ours = appended([query.format(a=function) for query in BEST], replaced=True)
    for query, rows in zip(BEST, ours, strict=True):
        assert rows == counted(database.execute(query.format(a=f"a_{kind}")).fetchall()), query


def test_joins_in_time_and_over_by_event_time_are_final_and_those_of_duckdb(
    database: duckdb.DuckDBPyConnection,
) -> None:
    for query, rows in zip(IN_TIME, appended(IN_TIME), strict=True):
        theirs = counted(database.execute(query).fetchall())
        assert theirs
        assert rows == theirs, query


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_times_of_both_sides_are_event_times_behind_joins_in_time(
    parallelism: int, database: duckdb.DuckDBPyConnection
) -> None:
    """Time moves with every row, so that one that came behind the watermark would be late."""
    pipeline, queries = Pipeline("times"), [*OF_TIMES, *zip(IN_TIME_OF_PAIRS, IN_TIME_OF_PAIRS, strict=True)]
    of = iterables.Source(
        [], schema=SCHEMA, event_time="ts", max_out_of_orderness=timedelta(seconds=BEHIND), bounded=True
    )
    streams = {table: pipeline.read(of).uid(table).parallelism(1) for table in ROWS}
    names: list[tuple[str, ...]] = []
    for number, (ours, _) in enumerate(queries):
        found = pipeline.sql(ours, **streams)
        found = found.final() if isinstance(found, UpsertStream) else found
        names.append(found.schema.names)
        found.write(collecting.Sink()).uid(f"q{number}")
    sent = run_sinks(pipeline, ROWS, parallelism=parallelism)
    for number, (ours, theirs) in enumerate(queries):
        expected = counted(database.execute(theirs).fetchall())
        assert expected
        assert counted([row[name] for name in names[number]] for row in sent[f"q{number}"]) == expected, ours


@pytest.mark.parametrize("union", ["UNION ALL", "UNION"])
def test_rows_of_a_union_are_in_windows_by_a_column_that_is_the_time_of_both(
    union: str, database: duckdb.DuckDBPyConnection
) -> None:
    both = f"SELECT ts, x FROM a {union} SELECT ts AS at, k FROM b"
    query = (
        f"SELECT window_start, COUNT(*), SUM(x) FROM TUMBLE(TABLE ({both}), DESCRIPTOR(ts), INTERVAL '10' SECOND) "
        "GROUP BY window_start, window_end"
    )
    theirs = f"SELECT time_bucket(INTERVAL 10 SECOND, ts) AS w, COUNT(*), SUM(x) FROM ({both}) GROUP BY w"
    assert appended([query])[0] == counted(database.execute(theirs).fetchall())
    with pytest.raises(SqlError, match="windows go by event time"):
        appended([query.replace("ts AS at", "ts + INTERVAL '1' SECOND")])


@pytest.mark.parametrize("kind", ["LEFT", ""])
def test_the_newest_row_as_of_a_time_is_that_of_duckdb(kind: str, database: duckdb.DuckDBPyConnection) -> None:
    """A condition in WHERE is one of pairs: it does not make an older row the newest one."""
    ours = "SELECT a.id, b.id AS other FROM a {} JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.k = b.k {}"
    theirs = "SELECT a.id, b.id FROM a ASOF {} JOIN b ON a.k = b.k AND b.ts <= a.ts {}"
    wheres = ("", "WHERE b.x > 1", "WHERE a.x > 1 AND b.x < 4")
    for where, rows in zip(wheres, appended([ours.format(kind, where) for where in wheres]), strict=True):
        assert rows == counted(database.execute(theirs.format(kind, where)).fetchall()), where


def test_conditions_of_an_inner_join_as_of_a_time_may_be_of_the_left_rows(
    database: duckdb.DuckDBPyConnection,
) -> None:
    """USING names the keys as well, and a further join takes the pairs."""
    of_a = "FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts {}"
    ours = [
        f"SELECT a.id, b.id AS other {of_a.format('ON a.k = b.k AND a.x > 1')}",
        f"SELECT a.id, b.id AS other {of_a.format('USING (k)')} WHERE a.x > 1",
        f"SELECT p.id, p.other FROM (SELECT a.id, a.x, b.id AS other {of_a.format('USING (k)')}) p JOIN a ON a.id = p.id "
        "AND a.x = p.x WHERE a.x > 1",
    ]
    theirs = "SELECT a.id, b.id FROM a ASOF JOIN b ON a.k = b.k AND b.ts <= a.ts WHERE a.x > 1"
    assert appended(ours) == [counted(database.execute(theirs).fetchall())] * 3

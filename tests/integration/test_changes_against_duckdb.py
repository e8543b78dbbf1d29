"""Joins, aggregates, filters and ranks of tables that change come to what DuckDB finds in the tables at the end.

Whole pipelines, fed with random histories of two tables in every way in which a stream can be one. What they send on the
way is a log of changes too: at every moment nothing is taken back that does not hold, and of a key at most one row holds.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import duckdb
import polars as pl
import pytest
from embedded_runs import assert_same, finish
from embedded_runs import settings as run_settings
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock import Expr, Pipeline, col, count, lit
from penstock.api.update_streams import UpsertStream
from penstock.connectors import base, collecting, iterables
from penstock.connectors.base import Position, ReadContext, Split, SplitReader
from penstock.connectors.change_rows import with_changes
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.changes import known_keys
from penstock.plan.operations.join import JoinKind
from penstock.task import exchange, sources
from penstock.types import BOOLEAN, INT64, Field, Schema

HOWS = get_args(JoinKind)
KINDS = ("facts", "newest", "filtered", "upserts", "changes")
"""How a stream is a table: its rows are facts; or the newest ones of their keys, which a filter may take back; or changes
come as such, without the former rows or with them."""
Row = dict[str, Any]


# -- histories of tables ------------------------------------------------------------------------------------------------


class Changes(iterables.Source[Any], base.ChangeSource[Any]):
    """Changes in memory. Those of a key stand in one split, in order, as they do in a partition of a topic."""

    def __init__(self, changes: Sequence[Row], rows: Schema, *keys: str, complete: bool) -> None:
        self.rows, self.keys, self.complete = rows, keys, complete
        super().__init__(changes, schema=with_changes(rows, self.keys, complete=complete))

    def discover(self) -> Sequence[Split]:
        return [Split(str(number)) for number in range(3)]

    def open(self, split: Split, position: Position, context: ReadContext) -> SplitReader:
        part = [change for change in self.data if change[self.keys[0]] % 3 == int(split.id)]
        return iterables.Source(part, schema=self.schema).open(split, position, context)


@dataclass
class Table:
    """A table of the columns `key`, `k` and `value`, of which the last may be null, and `k` in some."""

    key: str
    value: str
    kind: str
    chance: random.Random

    def __post_init__(self) -> None:
        self.groups = self.chance.choice([[0, 1, 2], [None, 0, 1, 2]])
        """What `k` may be."""
        k = Field("k", INT64, nullable=None in self.groups)
        self.schema = Schema((Field(self.key, INT64), k, Field(self.value, INT64, True)))
        self.rows: list[Row] = []
        """What holds at the end."""

    def declared(self, p: Pipeline) -> Any:
        """The stream of a random history."""
        written = [self._written() for _ in range(self.chance.choice([0, 5, 40]))]
        if self.kind in ("upserts", "changes"):
            return p.read(Changes(self._changes(written), self.schema, self.key, complete=self.kind == "changes"))
        return self._of_facts(p, written)

    def _written(self) -> tuple[int, Row | None]:
        """A key, and its new row, or that it has none any more."""
        key, chance = self.chance.randrange(6), self.chance
        if chance.random() < 0.3:
            return key, None
        return key, {
            self.key: key,
            "k": chance.choice(self.groups),
            self.value: chance.choice([None, *range(-2, 4)]),
        }

    def _changes(self, written: list[tuple[int, Row | None]]) -> list[Row]:
        held: dict[int, Row] = {}
        changes: list[Row] = []
        for key, row in written:
            gone = held.pop(key, None)
            if self.kind == "changes" and gone is not None:
                changes.append({**gone, RETRACTED: True})
            elif self.kind == "upserts" and row is None:  # perhaps of a key that has no row
                changes.append({self.key: key, RETRACTED: True})
            if row is not None:
                held[key] = row
                changes.append({**row, RETRACTED: False})
        self.rows = list(held.values())
        return changes

    def _of_facts(self, p: Pipeline, written: list[tuple[int, Row | None]]) -> Any:
        """With event times, perhaps: the newest row is the one with the latest then, and of equal ones the last."""
        event_time: Any = {"event_time": "at", "time_unit": "s"} if self.chance.random() < 0.5 else {}
        schema = Schema((*self.schema, Field("there", BOOLEAN), Field("at", INT64)))
        facts = [
            {**(row or {self.key: key, "k": self.groups[0]}), "there": row is not None, "at": self.chance.randrange(9)}
            for key, row in written
            if row is not None or self.kind == "filtered"
        ]
        read = p.read(iterables.Source(facts, schema=schema, **event_time))
        newest = {row[self.key]: row for row in (sorted(facts, key=lambda row: row["at"]) if event_time else facts)}
        held = facts if self.kind == "facts" else [row for row in newest.values() if row["there"]]
        self.rows = [{name: row[name] for name in self.schema.names} for row in held]
        if self.kind == "facts":
            return read.drop("there", "at")
        updates = read.key_by(self.key).deduplicate("last")
        return (updates.filter(col("there")) if self.kind == "filtered" else updates).drop("there", "at")

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.rows, schema=self.schema.polars())


# -- questions ----------------------------------------------------------------------------------------------------------

AGGREGATES = {
    "n": count(), "total": col("v").sum(), "least": col("v").min(), "most": col("v").max(), "mean": col("v").mean(),
    "kinds": col("v").n_unique(), "usual": col("v").mode("least"),
}  # fmt: skip
IN_SQL = "count(*) AS n, sum(v) AS total, min(v) AS least, max(v), avg(v), count(DISTINCT v), mode(v ORDER BY v)"
OF_AGGREGATES = {
    "keys": count(),
    "all": col("total").sum(),
    "most": col("total").max(),
    "kinds": col("least").n_unique(),
}
OF_IN_SQL = "count(*), sum(total), max(total), count(DISTINCT least)"
RANK = "row_number() OVER (PARTITION BY k ORDER BY v DESC NULLS LAST) AS rank"
UP_TO = "OVER (PARTITION BY n ORDER BY total DESC NULLS LAST)"
Question = tuple[Callable[[Any], Any], str]
QUESTIONS: tuple[Question, ...] = (
    (lambda rows: rows.filter(col("v") > 0), "SELECT * FROM {} WHERE v > 0"),
    (lambda rows: rows.key_by("k").agg(**AGGREGATES), f"SELECT k, {IN_SQL} FROM {{}} GROUP BY k"),
    (
        lambda rows: rows.filter(col("v") < 3).key_by(all=lit(1)).agg(**AGGREGATES),
        f"SELECT 1, {IN_SQL} FROM {{}} WHERE v < 3 HAVING count(*) > 0",
    ),
    (
        lambda rows: rows.key_by("k").agg(**AGGREGATES).key_by("n").agg(**OF_AGGREGATES),
        f"SELECT n, {OF_IN_SQL} FROM (SELECT k, {IN_SQL} FROM {{}} GROUP BY k) GROUP BY n",
    ),
    (lambda rows: rows.distinct("k").select("k"), "SELECT DISTINCT k FROM {}"),
    (
        lambda rows: rows.distinct("v", "k").select("v", "k").key_by("k").agg(kinds=count()),
        "SELECT k, count(*) FROM (SELECT DISTINCT v, k FROM {}) GROUP BY k",
    ),
    (
        lambda rows: rows.rollup("k", "v").agg(n=count()),
        "SELECT k, v, grouping_id(k, v), count(*) FROM {} GROUP BY ROLLUP (k, v) HAVING count(*) > 0",
    ),
    (
        lambda rows: rows.cube("k").agg(**AGGREGATES),
        f"SELECT k, grouping_id(k), {IN_SQL} FROM {{}} GROUP BY CUBE (k) HAVING count(*) > 0",
    ),
    (
        lambda rows: rows.grouping_sets(("v",), ("k", "v")).agg(n=count()).key_by("n").agg(groups=count()),
        "SELECT n, count(*) FROM (SELECT count(*) AS n FROM {} GROUP BY GROUPING SETS ((v), (k, v))) GROUP BY n",
    ),
    (  # which of equal rows is the better one is a matter of arrival
        lambda rows: rows.key_by("k").top(2, by="v").select("k", "rank", "v"),
        f"SELECT k, rank, v FROM (SELECT *, {RANK} FROM {{}}) WHERE rank <= 2",
    ),
    (
        lambda rows: (
            rows.key_by("k").agg(**AGGREGATES).select("k", "n", "total").key_by("n").over("total", descending=True)
        ).with_columns(upto=count(), all=col("total").sum() + 0 * col("n"), part=col("total").max() - col("total")),
        f"SELECT *, count(*) {UP_TO}, sum(total) {UP_TO}, max(total) {UP_TO} - total "
        f"FROM (SELECT k, count(*) AS n, sum(v) AS total FROM {{}} GROUP BY k)",
    ),
    (
        lambda rows: rows.key_by("k").top(2, by=["v", "k"], offset=1, rank=None).select("k", "v"),
        f"SELECT k, v FROM (SELECT *, {RANK} FROM {{}}) WHERE rank BETWEEN 2 AND 3",
    ),
)


@dataclass(frozen=True)
class Meeting:
    """What a pair has to be beside equal keys, as an option of `join` and in SQL; and whether null equals null."""

    where: Expr | None = None
    in_sql: str = "true"
    nulls_equal: bool = False

    @property
    def options(self) -> dict[str, Any]:
        return {"where": self.where, "nulls_equal": self.nulls_equal}

    def on(self, key: str) -> str:
        return f"l.{key} {'IS NOT DISTINCT FROM' if self.nulls_equal else '='} r.{key} AND ({self.in_sql})"


ON_KEYS = Meeting()
CONDITIONS = (
    (None, "true"),
    (lit(True), "true"),
    (lit(False), "false"),
    (col("v") > col("w"), "v > w"),
    (col("v") < 2, "v < 2"),
    (col("w").is_null() | (col("id") <= col("rid")), "w IS NULL OR id <= rid"),
    ((col("v") + col("w") + col("k")) % 2 == 0, "(v + w + l.k) % 2 = 0"),
)


def joined_in_sql(how: str, left: str, right: str, on: str, names: Sequence[str], meeting: Meeting = ON_KEYS) -> str:
    """The left rows alone, or columns of both."""
    if how in ("semi", "anti"):
        met = f"EXISTS (SELECT 1 FROM {right} AS r WHERE {meeting.on(on)})"
        return f"SELECT l.* FROM {left} AS l WHERE {met if how == 'semi' else f'NOT {met}'}"
    columns = [f"coalesce(l.{on}, r.{on}) AS {on}" if name == on else name for name in names]
    return f"SELECT {', '.join(columns)} FROM {left} AS l {how} JOIN {right} AS r ON {meeting.on(on)}"


def questions(orders: Any, places: Any, how: Any, chance: random.Random) -> Iterator[tuple[Any, str]]:
    """Streams, and queries over the tables that give what they come to."""
    meeting = Meeting(*chance.choice(CONDITIONS), chance.random() < 0.5)
    joined = orders.join(places, on="k", how=how, **meeting.options)
    joined_sql = joined_in_sql(how, "orders", "places", "k", ("id", "k", "v", "rid", "w"), meeting)
    yield joined, joined_sql
    for stream, table in ((orders, "orders"), (joined, f"({joined_sql})")):
        for ask, query in chance.sample(QUESTIONS, 2):
            yield ask(stream), query.format(table)
    totals = orders.key_by("k").agg(n=count(), most=col("v").max())
    query = "(SELECT k, count(*) AS n, max(v) AS most FROM orders GROUP BY k)"
    yield totals.join(places, on="k", how=how), joined_in_sql(how, query, "places", "k", ("k", "n", "most", "rid", "w"))
    others = places.key_by("k").agg(least=col("w").min())
    both = (query, "(SELECT k, min(w) AS least FROM places GROUP BY k)")
    meeting = chance.choice((ON_KEYS, Meeting(col("most") > col("least"), "most > least"), Meeting(nulls_equal=True)))
    in_sql = joined_in_sql(how, *both, "k", ("k", "n", "most", "least"), meeting)
    yield totals.join(others, on="k", how=how, **meeting.options), in_sql
    yield (
        joined.key_by(all=lit(1)).agg(keys=col("k").count()),
        f"SELECT 1, count(k) FROM ({joined_sql}) HAVING count(*) > 0",
    )
    counts = orders.key_by("v").agg(n=count())
    query = "(SELECT v, count(*) AS n FROM orders GROUP BY v)"
    yield orders.join(counts, on="v", how=how), joined_in_sql(how, "orders", query, "v", ("id", "k", "v", "n"))


def with_counts(orders: Any, places: Any, how: Any) -> tuple[Any, str]:
    """Of each order one row, whichever key it came by."""
    query = "(SELECT k, count(*) AS n FROM places GROUP BY k)"
    joined = orders.join(places.key_by("k").agg(n=count()), on="k", how=how)
    return joined, joined_in_sql(how, "orders", query, "k", ("id", "k", "v", "n"))


def sets(orders: Any, places: Any) -> Iterator[tuple[Any, str]]:
    """Rows of both, of the first alone, and what they come to; without the keys by which they replace others."""
    left, right = (rows.changes() if isinstance(rows, UpsertStream) else rows for rows in (orders, places))
    left, right = left.select("k", "v"), right.select(v="w", k="k")
    for stream, sql in ((left.intersect(right), "INTERSECT"), (left.minus(right), "EXCEPT")):
        query = f"SELECT k, v FROM orders {sql} SELECT k, w FROM places"
        yield stream, query
        yield stream.key_by("k").agg(**AGGREGATES), f"SELECT k, {IN_SQL} FROM ({query}) GROUP BY k"
    for verb, sql in (("intersect", "INTERSECT ALL"), ("minus", "EXCEPT ALL")):
        for one, other, query in (
            (left, right, f"SELECT k, v FROM orders {sql} SELECT k, w FROM places"),
            (right, left, f"SELECT w AS v, k FROM places {sql} SELECT v, k FROM orders"),
            (left.select("k"), right.select("k"), f"SELECT k FROM orders {sql} SELECT k FROM places"),
        ):
            copies = getattr(one, verb)(other, all=True)
            yield copies, query
            if "v" in query:
                yield copies.key_by("k").agg(**AGGREGATES), f"SELECT k, {IN_SQL} FROM ({query}) GROUP BY k"
    counts = orders.key_by("k").agg(n=count())
    yield (
        counts.minus(right.rename({"v": "n"})),
        "SELECT k, count(*) FROM orders GROUP BY k EXCEPT SELECT k, w FROM places",
    )


# -- answers ------------------------------------------------------------------------------------------------------------


class SinkWithKey(collecting.Sink):
    """Takes the changes of one row per key."""

    def __init__(self, key: tuple[str, ...] | None) -> None:
        super().__init__()
        self._key = key

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        return self._key


class Answers:
    """What a stream sends, to a sink with a key, if one is given, and what it comes to at the end."""

    def __init__(self, stream: Any, key: tuple[str, ...] | None = None) -> None:
        changes = isinstance(stream, UpsertStream)
        sent = stream.changes() if changes else stream
        self._keys = key or (known_keys(sent._node) if changes else None)
        self._log, self._final = SinkWithKey(key), collecting.Sink()
        sent.write(self._log)
        (stream.final() if changes else stream).write(self._final)

    def final(self) -> Counter[str]:
        return Counter(str(tuple(row.values())) for row in self._final.rows)

    def that_hold(self) -> Counter[str]:
        """What the log comes to, looked at after each change."""
        held, of_key = Counter[str](), Counter[tuple[Any, ...]]()
        for row in self._log.rows:
            sign = -1 if row.pop(RETRACTED, False) else 1
            content = str(tuple(row.values()))
            held[content] += sign
            assert held[content] >= 0, f"{row} is taken back, but does not hold"
            if self._keys is not None:
                key = tuple(row[name] for name in self._keys)
                of_key[key] += sign
                assert of_key[key] <= 1, f"{row} is added beside another row of its key"
        return +held


def test_a_sink_has_the_current_row_of_its_key_also_behind_key_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that leaves the key of the sink must not take another row with it that has come to that key."""
    monkeypatch.setattr(sources, "BATCH_ROWS", 1)
    p = Pipeline("counts")
    schema = Schema((Field("k", INT64),))
    counts = p.read(iterables.Source([{"k": 1}, {"k": 2}, {"k": 1}], schema=schema)).key_by("k").agg(n=count())
    sinks = [SinkWithKey(("n",)) for _ in range(2)]
    counts.write(sinks[0])
    counts.key_by("n").write(sinks[1])
    p.run()
    for sink in sinks:
        table: dict[int, int] = {}
        for row in sink.rows:
            if row[RETRACTED]:
                del table[row["n"]]
            else:
                table[row["n"]] = row["k"]
        assert table == {1: 2, 2: 1}


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=9, deadline=None, phases=[Phase.explicit, Phase.generate])  # no seed is simpler
@given(seed=st.integers(0, 10**9))
def test_what_changes_come_to_is_what_sql_says_of_the_tables(how: str, seed: int) -> None:
    """Whatever the batches, the parallelism and the order in which the two tables are read."""
    chance = random.Random(seed)
    orders, places = (Table(*names, chance.choice(KINDS), chance) for names in (("id", "v"), ("rid", "w")))
    print(f"seed {seed}, {orders.kind} and {places.kind}: repeat with @example(seed={seed})")
    p = Pipeline("tables")
    streams = orders.declared(p), places.declared(p)
    answers = [(Answers(stream), query) for stream, query in questions(*streams, how, chance)]
    if orders.kind != "facts":
        stream, query = with_counts(*streams, "left" if how in ("right", "full") else how)
        answers.append((Answers(stream, ("id",)), query))
    come_to(p, answers, orders, places, chance)


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 10**9))
def test_what_tables_have_in_common_is_what_sql_says(seed: int) -> None:
    chance = random.Random(seed)
    orders, places = (Table(*names, chance.choice(KINDS), chance) for names in (("id", "v"), ("rid", "w")))
    print(f"seed {seed}, {orders.kind} and {places.kind}: repeat with @example(seed={seed})")
    p = Pipeline("tables")
    answers = [(Answers(stream), query) for stream, query in sets(orders.declared(p), places.declared(p))]
    come_to(p, answers, orders, places, chance)


def come_to(
    p: Pipeline, answers: Sequence[tuple[Answers, str]], orders: Table, places: Table, chance: random.Random
) -> None:
    """Run the pipeline; its answers are those of the queries."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(sources, "BATCH_ROWS", chance.choice([1, 4, 65_536]))
        patch.setattr(exchange, "COALESCE_ROWS", chance.choice([1, 16_384]))
        finish(p, Path(directory), run_settings(chance.choice([1, 3]), chance.choice([20, 10_000])))
    with duckdb.connect(":memory:") as connection:
        connection.register("orders", orders.frame().to_arrow())
        connection.register("places", places.frame().to_arrow())
        for answer, query in answers:
            expected = Counter(map(str, connection.execute(query).fetchall()))
            assert_same(answer.final(), expected, f"{orders.kind} and {places.kind}, final: {query}")
            assert_same(answer.that_hold(), expected, f"{orders.kind} and {places.kind}, sent: {query}")

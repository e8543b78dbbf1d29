"""Files of statements as pipelines: what they declare, what they write, and by which ids their state is found."""

from __future__ import annotations

import json
import re
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors import files, kafka, postgres
from penstock.coordination.artifacts import pack
from penstock.embedded import EmbeddedSettings, run_pipeline
from penstock.errors import PipelineError, UsageError, UserCodeError
from penstock.graph.jobgraph import JobGraph, build_job_graph
from penstock.loading import load_pipeline
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.lookup_join import LookupJoin
from penstock.plan.operations.read import Read
from penstock.plan.operations.regular_join import RegularJoin
from penstock.plan.operations.write import Write
from penstock.sql.connectors import duration_setting
from penstock.sql.parsing import statements
from penstock.sql.programs import Program, Session
from penstock.sql.text import SqlError, SqlText

ORDERS = """
CREATE TABLE orders (id BIGINT, price DOUBLE, at TIMESTAMP(6), doubled AS price * 2,
                     WATERMARK FOR at AS at - INTERVAL '5' SECOND)
WITH ('connector' = 'filesystem', 'path' = 'orders.jsonl', 'format' = 'json');
CREATE TABLE totals (id BIGINT, total DOUBLE)
WITH ('connector' = 'filesystem', 'path' = '${out:totals}', 'format' = 'json');
"""
FILL = "INSERT INTO totals SELECT id, SUM(doubled) FROM orders WHERE price > 1 GROUP BY id;"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With 30 orders of three ids."""
    monkeypatch.chdir(tmp_path)
    rows = [{"id": n % 3, "price": float(n), "at": f"2026-01-01T00:00:{n:02}Z"} for n in range(30)]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def written(path: Path, text: str, **parameters: str) -> list[dict[str, Any]]:
    """What a file of statements writes into a folder."""
    file = path / "job.sql"
    file.write_text(text)
    run_pipeline(load_pipeline(str(file), parameters), EmbeddedSettings(durable=False), directory=None, resume=False)
    parts = sorted((path / parameters.get("out", "totals")).glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def test_a_file_writes_what_it_says(folder: Path) -> None:
    """Files cannot replace rows: of tables with an end they get the final ones."""
    expected = [{"id": k, "total": sum(2.0 * n for n in range(2, 30) if n % 3 == k)} for k in range(3)]
    assert sorted(written(folder, ORDERS + FILL), key=str) == sorted(expected, key=str)
    assert len(written(folder, ORDERS + FILL, out="others")) == 3


@pytest.mark.parametrize("time", ["2026-01-01 00:30:00", "2026-01-01T00:30:00", "2026-01-01T00:30:00Z"])
def test_a_timestamp_without_a_zone_is_in_utc(folder: Path, time: str) -> None:
    """As the page says of TIMESTAMP, and as Flink writes one in JSON; `timezone` names another zone."""
    (folder / "orders.jsonl").write_text(json.dumps({"id": 1, "price": 2.0, "at": time}) + "\n")
    fill = """
    CREATE TABLE times (at TIMESTAMP(3)) WITH ('connector' = 'filesystem', 'path' = 'totals', 'format' = 'json');
    INSERT INTO times SELECT at FROM orders;"""
    assert written(folder, ORDERS + fill) == [{"at": "2026-01-01T00:30:00Z"}]
    if not time.endswith("Z"):
        berlin = ORDERS.replace("'format'", "'timezone' = 'Europe/Berlin', 'format'", 1)
        assert written(folder, berlin + fill.replace("'totals'", "'berlin'"), out="berlin") == [
            {"at": "2025-12-31T23:30:00Z"}
        ]


def test_a_null_does_not_come_into_a_column_that_has_none(folder: Path) -> None:
    """As with Flink's enforcer: the job fails, whatever it has written of other rows."""
    orders = ORDERS.replace("total DOUBLE", "total DOUBLE NOT NULL")
    fill = "INSERT INTO totals (total, id) SELECT NULLIF(price, {}), id FROM orders WHERE price > 20"
    assert len(written(folder, orders + fill.format(7))) == 9
    with pytest.raises(
        UserCodeError, match="total of totals is NOT NULL, and a row has NULL there; leave such rows out"
    ):
        written(folder, orders + fill.format(27), out="others")
    declared = f"CREATE TABLE others (id BIGINT NOT NULL) {AS_QUERY.replace('totals', 'more')}"
    with pytest.raises(UserCodeError, match="id of others is NOT NULL"):
        written(folder, f"{orders} {declared} AS SELECT MAX(id) AS id FROM orders WHERE price > 99")


def test_rows_have_the_columns_of_their_table_in_its_order(folder: Path) -> None:
    """However the text names them: a format without names, and whoever reads files in order, relies on it."""
    rows = written(
        folder, ORDERS + "INSERT INTO totals (total, id) SELECT price AS total, id FROM orders WHERE price > 28"
    )
    assert [list(row) for row in rows] == [["id", "total"]]


def test_columns_may_be_named_in_any_order(folder: Path) -> None:
    rows = written(folder, ORDERS + "INSERT INTO totals (total) SELECT MAX(price) FROM orders;")
    assert rows == [{"id": None, "total": 29.0}]


def test_metadata_is_read_under_another_name() -> None:
    """`FROM` says what of a record it is; it may be the event time."""
    settings = (
        "WITH ('connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'b:9092', 'format' = 'json')"
    )
    plan = _plan(
        f"""
        CREATE TABLE t (a INT, at TIMESTAMP(3) METADATA FROM 'timestamp', `offset` BIGINT METADATA VIRTUAL,
                        WATERMARK FOR at AS at - INTERVAL '5' SECOND) {settings};
        CREATE TABLE p (a INT, at TIMESTAMP(3), o BIGINT) WITH ('connector' = 'print');
        INSERT INTO p SELECT a, at, `offset` FROM t"""
    )
    source = next(node.operation.source for node in plan if isinstance(node.operation, Read))
    assert isinstance(source, kafka.Source)
    assert source.metadata == {"timestamp": "at", "offset": "offset"}
    assert source.event_time is not None


def test_a_topic_of_debezium_is_a_table_of_changes_as_in_flink() -> None:
    settings = "'connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'b:9092'"
    start = "'scan.startup.mode' = 'earliest-offset', 'properties.group.id' = 'g'"
    plan = _plan(
        f"""
        CREATE TABLE t (id BIGINT, a INT, PRIMARY KEY (id) NOT ENFORCED)
        WITH ({settings}, {start}, 'format' = 'debezium-json');
        CREATE TABLE totals (a INT, n BIGINT, PRIMARY KEY (a) NOT ENFORCED)
        WITH ({settings}, 'value.format' = 'debezium-json');
        INSERT INTO totals SELECT a, COUNT(*) FROM t GROUP BY a"""
    )
    source = next(node.operation.source for node in plan if isinstance(node.operation, Read))
    assert isinstance(source, kafka.ChangeSource)
    assert (source.debezium, source.keys) == (True, ("id",))
    sink = next(node.operation.sink for node in plan if isinstance(node.operation, Write))
    assert isinstance(sink, kafka.Sink)
    assert (sink.wants_changes, sink.upsert_key) == (True, ("a",))


def test_a_table_that_is_read_and_written_has_the_settings_of_both(folder: Path) -> None:
    """Those of both say something of both: what is written with a delimiter is read with it."""
    table = """
    CREATE TABLE pairs (a BIGINT, b DOUBLE) WITH (
        'connector' = 'filesystem', 'path' = 'pairs', 'format' = 'csv', 'csv.field-delimiter' = ';',
        'existing' = 'replace', 'bad-rows' = 'skip', 'timezone' = 'UTC', 'batch-rows' = '10');"""
    for fill in ("INSERT INTO pairs SELECT id, price FROM orders", "INSERT INTO totals SELECT a, b FROM pairs"):
        rows = written(folder, f"{ORDERS} {table} {fill} WHERE {'id' if 'orders' in fill else 'a'} = 2;")
    (part,) = (folder / "pairs").glob("part-*")
    assert part.read_text().splitlines()[:2] == ["a;b", "2;2.0"]
    assert len(rows) == 10
    wrong = table.replace("existing", "exiting")
    with pytest.raises(PipelineError, match="no setting 'exiting'; did you mean 'existing'"):
        _plan(f"{wrong} CREATE TABLE p (a BIGINT) WITH ('connector' = 'print'); INSERT INTO p SELECT a FROM pairs")


def test_a_program_that_runs_twice_does_not_double_the_files_of_its_tables() -> None:
    """Its run is refused there; statements of a session add to what is there, unless the table says otherwise."""
    table = "CREATE TABLE t (a INT) WITH ('connector' = 'filesystem', 'path' = 't', 'format' = 'json'{})"
    for appends, said, expected in (
        (False, "", "fail"), (True, "", "append"), (True, ", 'existing' = 'fail'", "fail"),
    ):  # fmt: skip
        text = SqlText(f"{table.format(said)}; INSERT INTO t SELECT 1")
        declare, insert = statements(text)
        session, plan = Session(LogicalPlan("declared"), appends=appends), LogicalPlan("inserting")
        session.execute(text, declare, lambda rows: None)
        session.over(plan).execute(text, insert, lambda rows: None)
        (sink,) = [node.operation.sink for node in plan if isinstance(node.operation, Write)]
        assert isinstance(sink, files.Sink)
        assert sink.existing == expected


def test_a_database_is_named_as_jdbc_does() -> None:
    """User and password are settings of their own there."""
    settings = "'connector' = 'jdbc', 'table-name' = 't', 'url' = 'jdbc:postgresql://db:5432/shop'"
    login = "'username' = 'u', 'password' = 'p@ss', 'driver' = 'org.postgresql.Driver'"
    text = "CREATE TABLE t (a INT) WITH ({}); INSERT INTO t SELECT 1"
    for given, expected in (
        (settings, "postgresql://db:5432/shop"),
        (f"{settings}, {login}", "postgresql://u:p%40ss@db:5432/shop"),
    ):
        sink = next(node.operation.sink for node in _plan(text.format(given)) if isinstance(node.operation, Write))
        assert isinstance(sink, postgres.Sink)
        assert sink.target.url.reveal() == expected


def test_a_table_that_is_refused_is_not_declared() -> None:
    """So that it can be corrected at a prompt."""
    session = Session(LogicalPlan("p"))
    wrong = SqlText("CREATE TABLE t (a INT) WITH ('connector' = 'prinnt')")
    with pytest.raises(PipelineError, match="did you mean 'print'"):
        session.execute(wrong, statements(wrong)[0], lambda rows: None)
    right = SqlText(wrong.text.replace("prinnt", "print"))
    session.execute(right, statements(right)[0], lambda rows: None)
    assert session.catalogue.names == ["t"]


def test_several_inserts_read_a_table_once(folder: Path) -> None:
    declared = "CREATE TABLE dear (id BIGINT, price DOUBLE) WITH ('connector' = 'print');"
    more = f"{declared} INSERT INTO dear SELECT id, price FROM orders;"
    plan = _plan(ORDERS + FILL + more)
    assert [node.verb for node in plan].count("read") == 1
    assert [node.verb for node in plan].count("write") == 2


def test_state_keeps_its_ids_where_a_text_is_changed(folder: Path) -> None:
    """What is formatted otherwise, has further columns, or fills another table first."""
    ids = _ids(ORDERS + FILL)
    assert "totals.agg" in ids
    assert _ids(ORDERS.replace("\n", " ") + FILL.replace("SELECT", "select\n\t").replace(",", " ,")) == ids
    first = (
        "CREATE TABLE dear (id BIGINT) WITH ('connector' = 'print'); INSERT INTO dear SELECT DISTINCT id FROM orders;"
    )
    assert ids <= _ids(ORDERS + first + FILL)
    assert ids <= _ids(ORDERS + FILL.replace("WHERE price > 1", "WHERE price > 1 AND id < 7"))


def test_a_table_like_another_has_its_columns_and_settings(folder: Path) -> None:
    like = "CREATE TABLE o WITH ('path' = 'elsewhere') LIKE totals; INSERT INTO o SELECT id, price FROM orders;"
    assert written(folder, ORDERS + like) == []
    assert len([line for part in (folder / "elsewhere").glob("part-*") for line in part.read_text().splitlines()]) == 30


AS_QUERY = "WITH ('connector' = 'filesystem', 'path' = 'totals', 'format' = 'json')"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("", {"id": 2, "price": 29.0, "doubled": 58.0}),
        ("(note STRING, price DOUBLE, half AS price / 2)", {"note": None, "id": 2, "price": 29.0, "doubled": 58.0}),
        ("(price FLOAT NOT NULL, id BIGINT)", {"id": 2, "price": 29.0, "doubled": 58.0}),
        ("(doubled, id, price)", {"doubled": 58.0, "id": 2, "price": 29.0}),
        ("(PRIMARY KEY (id) NOT ENFORCED)", {"id": 2, "price": 29.0, "doubled": 58.0}),
    ],
)
def test_a_table_of_a_query_has_its_columns_behind_those_that_are_declared(
    folder: Path, columns: str, expected: dict[str, Any]
) -> None:
    """And a declared column in place of one of the query that has its name; a list without types orders them."""
    query = "SELECT id, CAST(price AS FLOAT) AS price, doubled FROM orders WHERE price > 28"
    orders = ORDERS.replace("totals (", "others (")
    assert [
        list(row.items()) for row in written(folder, f"{orders} CREATE TABLE totals {columns} {AS_QUERY} AS {query}")
    ] == [list(expected.items())]


def test_a_table_of_a_query_is_not_filled_if_it_is_there(folder: Path) -> None:
    """By IF NOT EXISTS."""
    make = f"CREATE TABLE IF NOT EXISTS totals {AS_QUERY} AS SELECT MAX(id) AS id FROM orders;"
    text = ORDERS.replace("totals (", "others (") + make + make
    plan = LogicalPlan("job")
    Program.of(SqlText(text)).add_to(plan)
    assert [node.uid for node in plan if isinstance(node.operation, Write)] == ["totals.write"]
    assert written(folder, text) == [{"id": 2}]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("(a, c)", "c needs a type; there are: a, b"),
        ("(a, c INT)", "a needs a type, or all columns go without"),
        ("(a)", "the query has a column b too; name all of its columns, or none"),
        ("(c INT NOT NULL)", "c is NOT NULL and is not named"),
        ("(a DATE)", "'a' is INT, and a of the table DATE; CAST it"),
    ],
)
def test_columns_of_a_table_of_a_query_fit_the_query(columns: str, reason: str) -> None:
    """And a table that is refused is not declared."""
    session = Session(LogicalPlan("job"))
    text = SqlText(f"CREATE TABLE totals {columns} {AS_QUERY} AS SELECT 1 AS a, 2 AS b")
    [part] = statements(text)
    with pytest.raises(SqlError, match=re.escape(reason)):
        session.execute(text, part, lambda rows: None)
    assert not session.catalogue.tables


def test_views_are_queries_with_names(folder: Path) -> None:
    view = (
        "CREATE VIEW few (k, p) AS SELECT id, price FROM orders WHERE price < 4; INSERT INTO totals SELECT * FROM few;"
    )
    assert sorted(row["total"] for row in written(folder, ORDERS + view)) == [0.0, 1.0, 2.0, 3.0]


def test_a_view_has_the_first_rows_of_an_order_and_can_be_combined(folder: Path) -> None:
    """Also where these are replaced, and where INSERT INTO has parentheses around both queries."""
    views = """
    CREATE VIEW dearest AS SELECT id, price FROM orders ORDER BY price DESC LIMIT 3;
    CREATE VIEW both AS (SELECT id, price FROM dearest) UNION ALL (SELECT id, price FROM orders ORDER BY price LIMIT 2);
    CREATE VIEW largest AS SELECT id, SUM(price) AS total FROM orders GROUP BY id ORDER BY total DESC LIMIT 1;
    INSERT INTO totals (SELECT * FROM both) UNION ALL (SELECT id, total FROM largest);
    """
    sums = [sum(float(n) for n in range(30) if n % 3 == k) for k in range(3)]
    found = sorted(row["total"] for row in written(folder, ORDERS + views))
    assert found == [0.0, 1.0, 27.0, 28.0, 29.0, max(sums)]


def test_a_view_is_checked_where_it_is_declared(folder: Path) -> None:
    """Also if nobody reads it; what is checked leaves nothing in the plan."""
    with pytest.raises(SqlError, match=r"<sql>:8:20: there is no column 'prize'; did you mean 'price'\?"):
        _plan(ORDERS + "CREATE VIEW v AS\n            SELECT prize FROM orders;" + FILL)
    unused = _plan(ORDERS + "CREATE VIEW v AS SELECT id, COUNT(*) FROM orders GROUP BY id;" + FILL)
    assert [node.operator_id for node in unused] == [node.operator_id for node in _plan(ORDERS + FILL)]


def test_a_view_that_is_wrong_does_not_replace_another(folder: Path) -> None:
    session = Session(LogicalPlan("views"))
    whole = SqlText(
        ORDERS + "CREATE VIEW v AS SELECT id FROM orders; CREATE OR REPLACE VIEW v AS SELECT nope FROM orders;"
    )
    *right, wrong = statements(whole)
    for part in right:
        session.execute(whole, part, lambda rows: None)
    with pytest.raises(SqlError, match="there is no column 'nope'"):
        session.execute(whole, wrong, lambda rows: None)
    again = SqlText("SELECT id FROM v; CREATE OR REPLACE VIEW v AS SELECT price FROM orders; SELECT price FROM v")
    for part in statements(again):
        session.execute(again, part, lambda rows: None)
    assert session.writes == 2


def test_a_query_of_with_that_nobody_reads_is_not_computed(folder: Path) -> None:
    """Nor does it change what the state of others is called."""
    unused = FILL.replace("SELECT", "WITH x AS (SELECT id, COUNT(*) FROM orders GROUP BY id) SELECT")
    assert {*_ids(ORDERS + FILL)} <= {*_ids(ORDERS + unused)}
    verbs = [each.verb for vertex in _graph(ORDERS + unused).vertices for each in vertex.operators]
    assert verbs == [each.verb for vertex in _graph(ORDERS + FILL).vertices for each in vertex.operators]


def test_tables_are_those_of_the_one_catalog(folder: Path) -> None:
    fill = FILL.replace("INTO totals", "INTO default_catalog.default_database.totals")
    assert len(written(folder, ORDERS + fill.replace("FROM orders", "FROM default_database.orders"))) == 3


def test_settings_of_a_text_are_those_of_its_pipeline(folder: Path) -> None:
    (folder / "job.sql").write_text(
        "SET 'pipeline.name' = 'nightly'; SET 'table.exec.state.ttl' = '2 h'; SET 'pipeline.max-parallelism' = '12';"
        + ORDERS + FILL
    )  # fmt: skip
    pipeline = load_pipeline(str(folder / "job.sql"), {})
    assert pipeline.name == "nightly"
    assert pipeline.plan.state_ttl_us == 7_200_000_000
    assert pipeline.plan.max_parallelism == 12


ASKED = """
CREATE TABLE sales (id BIGINT, customer INT, at TIMESTAMP(6), proc AS PROCTIME(), WATERMARK FOR at AS at)
WITH ('connector' = 'filesystem', 'path' = 'orders.jsonl', 'format' = 'json');
CREATE TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH ('connector' = 'jdbc', 'url' = 'jdbc:postgresql://localhost/shop', 'table-name' = 'customers', 'create' = 'true',
      'lookup.cache' = 'PARTIAL', 'lookup.partial-cache.expire-after-write' = '1 min');
"""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 s", 10),
        ("3 SECS", 3),
        ("5 min", 300),
        ("5 mins", 300),
        ("1 h 30 minutes", 5_400),
        ("500", 0.5),
        ("2 days", 172_800),
    ],
)
def test_durations_are_written_as_flink_writes_them(text: str, seconds: float) -> None:
    """`5 mins` was five milliseconds once."""
    assert duration_setting("cache", text) == seconds * 1_000_000


def test_a_table_that_is_no_stream_is_asked_for_its_rows() -> None:
    """Also behind a view; it is asked for the columns that the query mentions."""
    plan = LogicalPlan("job")
    view = "CREATE VIEW v AS SELECT customer, proc AS now FROM sales;"
    query = "SELECT name FROM v LEFT JOIN customers FOR SYSTEM_TIME AS OF v.now AS c ON v.customer = c.id"
    Program.of(SqlText(ASKED + view + query)).add_to(plan)
    [join] = [each.operation for each in plan if isinstance(each.operation, LookupJoin)]
    assert (join.how, join.on, join.columns) == ("left", (("key_id", "id"),), (("id", "id"), ("name", "name")))
    assert join.lookup.calls.cache_ttl_us == 60_000_000


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT * FROM customers", "'jdbc' is for INSERT INTO, and for JOIN customers FOR SYSTEM_TIME AS OF"),
        ("SELECT * FROM sales AS s JOIN customers AS c ON s.customer = c.id", "customers cannot be read"),
        ("{} s.at AS c ON s.customer = c.id", "write FOR SYSTEM_TIME AS OF PROCTIME()"),
        ("{} s.proc AS c ON s.customer > c.id", "ON needs a condition of the form a = b"),
        ("{} s.proc AS c ON s.at = c.id", "this is TIMESTAMP, and id of the table BIGINT; CAST it"),
        (
            "LEFT {} s.proc AS c ON s.customer = c.id AND c.name > 'a'",
            "takes one condition a = b for each of its columns",
        ),
        ("RIGHT {} s.proc AS c ON s.customer = c.id", "is for JOIN ... ON and LEFT JOIN ... ON"),
        ("{} s.proc AS c ON s.customer = c.street", "c has no column 'street'; there are: id, name"),
        (
            "SELECT * FROM (SELECT MAX(id) AS id FROM sales) AS s "
            "JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON s.id = c.id",
            "rows that may be retracted would be asked for again",
        ),
    ],
)
def test_a_table_cannot_be_asked_like_this(query: str, reason: str) -> None:
    """It knows rows by their key and as of now."""
    kind, _, rest = query.partition("{}")
    text = f"SELECT * FROM sales AS s {kind} JOIN customers FOR SYSTEM_TIME AS OF {rest}" if rest else query
    with pytest.raises(SqlError, match=re.escape(reason)):
        Program.of(SqlText(ASKED + text)).add_to(LogicalPlan("job"))


@pytest.mark.parametrize(
    ("options", "on", "reason"),
    [
        ("'host' = 'h', 'url' = 'redis://h', 'key' = '{id}'", "id", "'redis' takes its address as 'host', with 'port'"),
        ("'port' = '1', 'key' = '{id}'", "id", "'redis' takes its address as 'host', with 'port'"),
        ("'host' = 'h', 'username' = 'u', 'key' = '{id}'", "id", "'username' of 'redis' needs 'password'"),
        ("'hst' = 'h', 'key' = '{id}'", "id", "'redis' has no setting 'hst'; did you mean 'host'?"),
        ("'host' = 'h'", "id", "'redis' needs 'key'; write it into WITH"),
        (
            "'host' = 'h', 'key' = '{id}', 'command' = 'set'",
            "id",
            "'command' is 'get', 'hget', 'hgetall' or 'hmget', not 'set'",
        ),
        ("'host' = 'h', 'key' = '{id}'", "size", "each key column has to be in it"),
        ("'host' = 'h', 'key' = '{id}'", "", "'redis' is for JOIN limits FOR SYSTEM_TIME AS OF"),
    ],
)
def test_redis_cannot_be_asked_like_this(options: str, on: str, reason: str) -> None:
    """Its address is said once, and a row is named by what ON has."""
    text = (
        f"CREATE TABLE limits (id BIGINT, size BIGINT) WITH ('connector' = 'redis', {options}); SELECT s.id, size FROM "
    )
    text += f"sales AS s JOIN limits FOR SYSTEM_TIME AS OF s.proc AS l ON s.id = l.{on}" if on else "limits"
    with pytest.raises(SqlError, match=re.escape(reason)):
        Program.of(SqlText(ASKED + text)).add_to(LogicalPlan("job"))


HOUR, DAY = 3_600_000_000, 86_400_000_000


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("SELECT /*+ STATE_TTL('o' = '1d') */ id, COUNT(*) FROM orders AS o GROUP BY id", [DAY]),
        ("SELECT /*+ STATE_TTL('ORDERS' = '1 h') */ DISTINCT id FROM orders", [HOUR]),
        ("SELECT /*+ STATE_TTL('orders' = '0s') */ COUNT(*) FROM orders WHERE id > 1", [None]),
        ("SELECT /*+ STATE_TTL('orders' = '1h') */ id, COUNT(*) FROM orders GROUP BY ROLLUP (id)", [HOUR]),
        (
            "SELECT id FROM (SELECT /*+ STATE_TTL('orders' = '1h') */ DISTINCT id FROM orders) GROUP BY id",
            [HOUR, 2 * DAY],
        ),
        (
            "SELECT /*+ STATE_TTL('a' = '1d', 'b' = '1h') */ a.id FROM orders AS a, orders AS b WHERE a.id = b.id",
            [(DAY, HOUR)],
        ),
        (
            "SELECT /*+ STATE_TTL('b' = '1h') */ a.id FROM orders AS a LEFT JOIN orders AS b ON a.id = b.id",
            [(2 * DAY, HOUR)],
        ),
        (
            "SELECT /*+ STATE_TTL('a' = '1h', 'b' = '1d', 'c' = '0s') */ a.id "
            "FROM orders AS a JOIN orders AS b ON a.id = b.id JOIN orders AS c ON c.id = a.id",
            [(HOUR, DAY), (2 * DAY, None)],
        ),
        (
            "SELECT /*+ STATE_TTL('a' = '1h') */ a.id FROM orders AS a WHERE id IN (SELECT id FROM orders)",
            [(HOUR, 2 * DAY)],
        ),
    ],
)
def test_a_hint_says_how_long_the_state_of_a_table_is_kept(folder: Path, query: str, kept: list[Any]) -> None:
    """In the joins and groupings of its own query; elsewhere it is as SET says."""
    plan = LogicalPlan("job")
    session = Session(plan)
    for text in (SqlText(ORDERS), SqlText("SET 'table.exec.state.ttl' = '2d'"), SqlText(query)):
        for part in statements(text):
            session.execute(text, part, lambda rows: None)
    found = [
        each.operation.ttls_us if isinstance(each.operation, RegularJoin) else each.traits.ttl_us
        for each in plan
        if each.verb in ("join", "agg", "deduplicate", "distinct")
    ]
    assert found == kept


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT /*+ STATE_TTL('o' = '1h') */ id FROM orders AS o", "STATE_TTL says nothing of o here"),
        ("SELECT /*+ STATE_TTL('totals' = '1h') */ DISTINCT id FROM orders", "there is no table 'totals' in FROM"),
        (
            "SELECT /*+ STATE_TTL('orders' = 'soon') */ DISTINCT id FROM orders",
            "STATE_TTL of orders: 'soon' is not a duration",
        ),
        (
            "SELECT /*+ STATE_TTL('orders' = '1h', 'Orders' = '2h') */ DISTINCT id FROM orders",
            "STATE_TTL says of Orders twice",
        ),
        (
            "SELECT /*+ STATE_TTL(orders) */ DISTINCT id FROM orders",
            "STATE_TTL: orders is no setting; write 'key' = 'value'",
        ),
        ("SELECT /*+ STATE_TTL() */ DISTINCT id FROM orders", "STATE_TTL needs a table and a duration"),
        ("SELECT /*+ STATE_TTL('orders' = '99999999999d') */ DISTINCT id FROM orders", "is at most 365250d"),
        ("SELECT DISTINCT id FROM orders /*+ STATE_TTL('orders' = '1h') */", "STATE_TTL stands behind SELECT"),
        (
            "SELECT /*+ STATE_TTL('orders' = '1h') */ COUNT(*) "
            "FROM TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' DAY) GROUP BY window_start, window_end",
            "STATE_TTL says nothing of orders here",
        ),
    ],
)
def test_a_hint_without_a_meaning_is_an_error(folder: Path, query: str, reason: str) -> None:
    """Whoever bounds state is to know that it is bounded."""
    with pytest.raises(SqlError, match=re.escape(reason)):
        Program.of(SqlText(ORDERS + query)).add_to(LogicalPlan("job"))


def test_a_file_travels_to_a_cluster_as_it_is(folder: Path) -> None:
    (folder / "job.sql").write_text(ORDERS + FILL)
    packed = pack(str(folder / "job.sql"), {"out": "there"})
    assert packed.artifact.target == "job.sql"
    assert packed.artifact.requirements == ()
    with zipfile.ZipFile(BytesIO(packed.data)) as archive:
        archive.extractall(folder / "worker")
    loaded = load_pipeline(str(folder / "worker" / "job.sql"), dict(packed.artifact.parameters))
    assert [node.operator_id for node in loaded.plan] == [node.operator_id for node in _plan(ORDERS + FILL)]


@pytest.mark.parametrize(
    ("text", "parameters", "reason"),
    [
        (ORDERS, {}, "writes nothing"),
        (ORDERS + FILL, {"outt": "x"}, "--param outt says nothing"),
        (ORDERS + FILL, {"ou": "x"}, "--param ou says nothing"),
        (ORDERS.replace("${out:totals}", "${out}") + FILL, {}, "no --param out=..."),
        (
            ORDERS + "INSERT INTO totals SELECT id, at FROM orders;",
            {},
            "'at' is TIMESTAMP, and total of the table DOUBLE",
        ),
    ],
)
def test_a_file_that_cannot_run_says_why(folder: Path, text: str, parameters: dict[str, str], reason: str) -> None:
    (folder / "job.sql").write_text(text)
    with pytest.raises((PipelineError, UsageError), match=reason.replace("$", r"\$")):
        load_pipeline(str(folder / "job.sql"), parameters)


def _plan(text: str) -> LogicalPlan:
    plan = LogicalPlan("job")
    Program.of(SqlText(text)).add_to(plan)
    return plan


def _graph(text: str) -> JobGraph:
    return build_job_graph(_plan(text), 2)


def _ids(text: str) -> set[str]:
    return {
        node.operator_id for node in _plan(text) if node.traits.keeps_state or node.traits.role in ("source", "sink")
    }

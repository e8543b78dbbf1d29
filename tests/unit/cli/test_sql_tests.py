"""`penstock test`: tests of SQL in files of SQL, from the file to what is printed and the exit code."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from penstock.cli.sql_tests import RunSqlTests, sql_tests_command
from penstock.errors import UsageError

EXAMPLES = Path(__file__).parents[3] / "examples"
SHOP = """
CREATE TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH ('connector' = 'upsert-kafka', 'topic' = 'customers', 'properties.bootstrap.servers' = 'nowhere:9092');
CREATE TABLE orders (
    id BIGINT NOT NULL, customer BIGINT, price DECIMAL(10, 2), at TIMESTAMP(6), rank SMALLINT,
    WATERMARK FOR at AS at - INTERVAL '1' MINUTE
) WITH ('connector' = 'kafka', 'topic' = 'orders', 'properties.bootstrap.servers' = 'nowhere:9092', 'format' = 'json');
CREATE VIEW dear AS SELECT id, customer, price FROM orders WHERE price > ${least};
CREATE TABLE spent (customer BIGINT, n BIGINT, total DECIMAL(38, 2), PRIMARY KEY (customer) NOT ENFORCED)
WITH ('connector' = 'upsert-kafka', 'topic' = 'spent', 'properties.bootstrap.servers' = 'nowhere:9092');
CREATE TABLE hourly (hour_start TIMESTAMP(6), n BIGINT)
WITH ('connector' = 'filesystem', 'path' = 'out', 'format' = 'json');
CREATE TABLE named (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH ('connector' = 'postgres', 'url' = 'postgresql://nowhere/x', 'table-name' = 'named');
INSERT INTO spent SELECT customer, COUNT(*), SUM(price) FROM orders GROUP BY customer;
INSERT INTO hourly SELECT window_start, COUNT(*) FROM TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' HOUR)
GROUP BY window_start, window_end;
INSERT INTO named SELECT o.id, c.name FROM orders AS o JOIN customers AS c ON o.customer = c.id;
""".replace("${least}", "10")
ORDERS = """
INSERT INTO orders (id, customer, price, at) VALUES
    (1, 7, 5, '2026-01-01 10:00'), (2, 7, 12.5, '2026-01-01 10:30'), (3, 8, 20, '2026-01-01 11:00');
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.sql").write_text(SHOP)
    (tmp_path / "shop.py").touch()
    return tmp_path


LIVING = """
CREATE TABLE towns (id BIGINT, town STRING, since TIMESTAMP(3), share DECIMAL(6, 2), PRIMARY KEY (id) NOT ENFORCED)
WITH ('connector' = 'postgres', 'url' = 'postgresql://nowhere.invalid/shop', 'table-name' = 'towns');
CREATE TABLE living (id BIGINT, town STRING, since TIMESTAMP(3), share DECIMAL(6, 2)) WITH ('connector' = 'print');
INSERT INTO living SELECT o.id, t.town, t.since, t.share FROM orders AS o LEFT JOIN towns FOR SYSTEM_TIME AS OF PROCTIME()
    AS t ON o.customer = t.id;
"""
"""A program that asks a database which is not there."""


def test_a_table_that_is_asked_for_rows_answers_with_those_that_are_given(folder: Path) -> None:
    """A later row of its key replaces an earlier one, and without rows it has none; queries may ask it, too."""
    (folder / "asks.sql").write_text(SHOP + LIVING)
    (folder / "asks.test.sql").write_text(
        f"""-- program: asks.sql
        -- test: it has rows
        INSERT INTO towns VALUES (7, 'Lima', NULL, 1), (7, 'Rome', '2026-01-01 08:30:00.123', 12.25);
        INSERT INTO towns (id, town) VALUES (9, 'Oslo');
        {ORDERS}
        SELECT * FROM living;
        -- | id | town | since                   | share |
        -- |----|------|-------------------------|-------|
        -- |  1 | Rome | 2026-01-01 08:30:00.123 | 12.25 |
        -- |  2 | Rome | 2026-01-01 08:30:00.123 | 12.25 |
        -- |  3 | NULL | NULL                    | NULL  |
        SELECT o.id, t.town FROM orders AS o JOIN towns FOR SYSTEM_TIME AS OF PROCTIME() AS t ON t.id = o.customer + 2;
        -- | id | town |
        -- |----|------|
        -- |  1 | Oslo |
        -- |  2 | Oslo |
        -- test: it has none
        {ORDERS}
        SELECT COUNT(town) AS towns, COUNT(*) AS n FROM living;
        -- | towns | n |
        -- |-------|---|
        -- |     0 | 3 |
        """
    )
    assert run(folder / "asks.test.sql") == 0


def run(*paths: str | Path, keyword: str | None = None, update: bool = False, param: tuple[str, ...] = ()) -> int:
    return sql_tests_command(RunSqlTests([*map(str, paths)], keyword, update, [*param]))


def run_text(folder: Path, *texts: str) -> int:
    """The exit code of tests of the shop."""
    (folder / "shop.test.sql").write_text("".join(map(dedent, texts)))
    return run("shop.test.sql")


def test_the_example_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(EXAMPLES) == 0
    shown = capsys.readouterr().out
    assert "departures.test.sql" in shown
    assert shown.endswith("2 tests\n")


def test_tables_and_views_of_a_program_are_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows without ORDER BY are in any order, values are equal if they mean the same."""
    assert run_text(folder, ORDERS, """
        SELECT * FROM spent;
        -- | customer | n | total |
        -- | 8 | 1 | 20 |
        -- | 7 | 2 | 17.50 |
        SELECT * FROM hourly ORDER BY hour_start DESC;
        -- | hour_start          | n |
        -- |---------------------|---|
        -- | 2026-01-01 11:00:00 | 1 |
        -- | 2026-01-01 10:00    | 2 |
        SELECT id FROM dear WHERE customer = 7;
        -- +----+
        -- | id |
        -- +----+
        -- | 2  |
        -- +----+
        SELECT * FROM named;
        -- | id | name |
    """) == 0  # fmt: skip
    assert capsys.readouterr().out == "shop.test.sql\n  passed   shop\n1 test\n"


def test_a_failure_is_shown_as_a_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_text(folder, ORDERS, """
        SELECT customer, n FROM spent;
        -- | customer | n |
        -- |        7 | 3 |
        -- |        8 | 1 |
        SELECT id FROM orders ORDER BY id;
        -- | id |
        -- |  2 |
        -- |  1 |
        -- |  3 |
    """) == 1  # fmt: skip
    shown = capsys.readouterr().out
    assert shown == dedent("""\
        shop.test.sql
          FAILED   shop
        shop.test.sql:5:1: the answer is another one: 1 row missing (-), 1 row not expected (+)
           5 | SELECT customer, n FROM spent;
             | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            | customer | n |
          + |        7 | 2 |
          - |        7 | 3 |
            |        8 | 1 |

        shop.test.sql:9:1: the answer is another one: 1 row missing (-), 1 row not expected (+)
           9 | SELECT id FROM orders ORDER BY id;
             | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            | id |
          + |  1 |
            |  2 |
          - |  1 |
            |  3 |

        1 test, 1 failed
        """)


def test_rows_are_late_as_in_production(folder: Path) -> None:
    """Event time comes on with every row; a row is late if its window is over."""
    assert run_text(folder, """
        INSERT INTO orders (id, at) VALUES
            (1, '2026-01-01 10:00'), (2, '2026-01-01 11:00:59'), (3, '2026-01-01 10:00'), (4, '2026-01-01 11:01'),
            (5, '2026-01-01 10:00');
        SELECT * FROM hourly;
        -- | hour_start       | n |
        -- | 2026-01-01 10:00 | 2 |
        -- | 2026-01-01 11:00 | 2 |
    """) == 0  # fmt: skip


def test_event_times_may_be_in_the_future(folder: Path) -> None:
    """Sources without an end refuse them, by a clock that a test does not have."""
    assert run_text(folder, """
        INSERT INTO orders (id, at) VALUES (1, '2099-01-01 10:00');
        SELECT * FROM hourly;
        -- | hour_start       | n |
        -- | 2099-01-01 10:00 | 1 |
    """) == 0  # fmt: skip


def test_changes_are_listed_behind_op(folder: Path) -> None:
    """What is written to a table that replaces rows is read again as changes; a query has its own."""
    assert run_text(folder, ORDERS, """
        SELECT * FROM spent;
        -- | op | customer | n | total |
        -- | +I | 8        | 1 | 20.00 |
        -- | +I | 7        | 1 |  5.00 |
        -- | -U | 7        | 1 |  5.00 |
        -- | +U | 7        | 2 | 17.50 |
        SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer;
        -- | op | customer | n |
        -- | +I | 7        | 1 |
        -- | +U | 7        | 2 |
        -- | +I | 8        | 1 |
        SELECT id FROM orders WHERE id = 1;
        -- | op | id |
        -- | +I | 1  |
    """) == 0  # fmt: skip


def test_changes_are_those_of_one_row_after_the_other(folder: Path) -> None:
    """Of several tables, too, and of a count of all rows, which begins with a row of its own."""
    (folder / "both.test.sql").write_text("".join(f"""
        CREATE TABLE {name} (a STRING) WITH ('connector' = 'kafka', 'topic' = '{name}', 'format' = 'json');
        INSERT INTO {name} VALUES ('x'), ('x');""" for name in "st") + """
        SELECT a, COUNT(*) AS n FROM (SELECT a FROM s UNION ALL SELECT a FROM t) GROUP BY a;
        -- | op | a | n |
        -- | +I | x | 1 |
        -- | +U | x | 2 |
        -- | +U | x | 3 |
        -- | +U | x | 4 |
        SELECT s.a, COUNT(*) AS n FROM s JOIN t ON s.a = t.a GROUP BY s.a;
        -- | op | a | n |
        -- | +I | x | 2 |
        -- | +U | x | 4 |
        SELECT COUNT(*) AS n FROM s WHERE a = 'x';
        -- | op | n |
        -- | +I | 0 |
        -- | -D | 0 |
        -- | +I | 1 |
        -- | -D | 1 |
        -- | +I | 2 |
    """)  # fmt: skip
    assert run("both.test.sql") == 0


def test_changes_of_one_key_are_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_text(folder, ORDERS, """
        SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer;
        -- | op | customer | n |
        -- | +U | 7        | 2 |
        -- | +I | 7        | 1 |
        -- | +I | 8        | 1 |
    """) == 1  # fmt: skip
    assert "1 row missing" in capsys.readouterr().out


def test_rows_of_a_table_may_be_replaced_and_taken_back(folder: Path) -> None:
    """A query sees the rows above it."""
    assert run_text(folder, ORDERS, """
        INSERT INTO customers VALUES (7, 'Ann'), (8, 'Bob'), (7, 'Anna');
        SELECT * FROM named;
        -- | id | name |
        -- | 1  | Anna |
        -- | 2  | Anna |
        -- | 3  | Bob  |
        INSERT INTO customers (op, id) VALUES ('-D', 7);
        SELECT * FROM named;
        -- | id | name |
        -- | 3  | Bob  |
    """) == 0  # fmt: skip


def test_tables_have_the_rows_that_their_connectors_would_have(folder: Path) -> None:
    """With a key the last row of it, without one every change that is printed; views of a test see them, too."""
    (folder / "shop.sql").write_text(SHOP + """
        CREATE TABLE last (customer BIGINT, id BIGINT, PRIMARY KEY (customer) NOT ENFORCED)
        WITH ('connector' = 'sqlite', 'database' = 'nowhere.db', 'table-name' = 'last');
        CREATE TABLE counts (customer BIGINT, n BIGINT) WITH ('connector' = 'print');
        BEGIN STATEMENT SET;
        INSERT INTO last SELECT customer, id FROM orders;
        INSERT INTO counts SELECT customer, COUNT(*) FROM orders GROUP BY customer;
        END;
    """)  # fmt: skip
    assert run_text(folder, "-- test: last", ORDERS, """
        CREATE VIEW first_of_last AS SELECT MIN(id) AS id FROM last;
        SELECT * FROM last;
        -- | customer | id |
        -- | 7        | 2  |
        -- | 8        | 3  |
        SELECT id FROM first_of_last;
        -- | id |
        -- | 2  |
        SELECT n, customer FROM counts ORDER BY n DESC, customer;
        -- | n | customer |
        -- | 2 | 7        |
        -- | 1 | 8        |
        -- test: NULL is a group
        INSERT INTO orders (id, at) VALUES (1, '2026-01-01'), (2, '2026-01-01');
        SELECT * FROM counts;
        -- | op | customer | n |
        -- | +I | NULL     | 1 |
        -- | -U | NULL     | 1 |
        -- | +U | NULL     | 2 |
    """) == 0  # fmt: skip
    assert not (folder / "nowhere.db").exists()


def test_statements_are_read_one_after_the_other(folder: Path) -> None:
    """Also where they are of different tables: the order comes before the customer, or behind."""
    log = """
        SELECT o.id, c.name FROM orders AS o LEFT JOIN customers AS c ON o.customer = c.id;
        -- | op | id | name |
    """
    first = "INSERT INTO customers VALUES (7, 'Ann');"
    then = "INSERT INTO orders (id, customer, at) VALUES (1, 7, '2026-01-01');"
    assert run_text(folder, then + first + log + "-- | +I | 1 | NULL |\n-- | -D | 1 | NULL |\n-- | +I | 1 | Ann |") == 0
    assert run_text(folder, first + then + log + "-- | +I | 1 | Ann |") == 0


def test_errors_may_be_expected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_text(folder, ORDERS, """
        -- test: as expected
        SELECT prise FROM orders;
        -- error: did you mean 'price'
        SELECT 1 / 0 AS a FROM orders;
        -- error: zero
        -- test: another one
        SELECT prise FROM orders;
        -- error: did you mean 'id'
        -- test: only in the query
        SELECT prise FROM orders;
        -- error: FROM orders
        -- test: none
        SELECT id FROM dear;
        -- error: dear
    """) == 1  # fmt: skip
    shown = capsys.readouterr().out
    assert "passed   as expected" in shown
    assert "the error is another one:" in shown
    assert "this was to fail, and it has an answer of 2 rows" in shown
    assert "FAILED   only in the query" in shown
    assert shown.endswith("4 tests, 3 failed\n")


def test_what_the_program_cannot_do_fails_its_tests(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the place in the program; a key that is NULL is no row for a table with a key."""
    assert run_text(folder, """
        -- test: key
        INSERT INTO orders (id, at) VALUES (1, '2026-01-01');
        SELECT * FROM spent;
        -- error: a row whose key is NULL (column customer)
        -- test: key, unexpected
        INSERT INTO orders (id, at) VALUES (1, '2026-01-01');
        SELECT n FROM spent;
        -- | n |
    """) == 1  # fmt: skip
    shown = capsys.readouterr().out
    assert "passed   key" in shown
    assert "shop.test.sql:8:1: this cannot be answered:" in shown
    (folder / "shop.sql").write_text(SHOP.replace("COUNT(*), SUM", "COUNTS(*), SUM"))
    assert run("shop.test.sql") == 1
    assert "shop.sql:15:36: there is no function COUNTS; did you mean 'COUNT'?" in capsys.readouterr().out


def test_update_writes_answers_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What passes stays as it is formatted; what cannot be answered, or was to fail, stays a failure."""
    text = ORDERS + dedent("""
        -- test: all
        SELECT id FROM dear; -- the dear ones

        SELECT customer, n FROM spent;
            -- | customer | n |
            -- | 1 | x |
        SELECT id FROM orders WHERE id = 1;
        --|id|
        --|1|
        SELECT * FROM spent;
        -- | op |
        -- test: fails
        SELECT idd FROM dear;
        -- | id |
        SELECT id FROM dear;
        -- error: x""")
    path = folder / "shop.test.sql"
    path.write_text(text)
    assert run("shop.test.sql", update=True) == 1
    assert capsys.readouterr().out.endswith("2 tests, 1 failed, 3 answers written\n")
    assert path.read_text() == ORDERS + dedent("""
        -- test: all
        SELECT id FROM dear; -- the dear ones
        -- | id |
        -- |----|
        -- |  2 |
        -- |  3 |

        SELECT customer, n FROM spent;
            -- | customer | n |
            -- |----------|---|
            -- |        7 | 2 |
            -- |        8 | 1 |
        SELECT id FROM orders WHERE id = 1;
        --|id|
        --|1|
        SELECT * FROM spent;
        -- | op | customer | n | total |
        -- |----|----------|---|-------|
        -- | +I |        7 | 1 |  5.00 |
        -- | -U |        7 | 1 |  5.00 |
        -- | +U |        7 | 2 | 17.50 |
        -- | +I |        8 | 1 | 20.00 |
        -- test: fails
        SELECT idd FROM dear;
        -- | id |
        SELECT id FROM dear;
        -- error: x""")
    before = path.read_text()
    assert run("shop.test.sql", keyword="all") == 0
    assert run("shop.test.sql", update=True) == 1
    assert path.read_text() == before


VALUES = """
CREATE TABLE t (a INT, b ARRAY<STRING>, c MAP<STRING, INT>, d ROW<x INT>, e BYTES, f FLOAT, g DOUBLE, h AS a + 1)
WITH ('connector' = 'filesystem', 'path' = 'nowhere', 'format' = 'json');
CREATE VIEW v AS SELECT *, '' AS i, 'NULL' AS j, 'a|"b' AS k, DATE '2026-01-31' AS l FROM t;
INSERT INTO t VALUES (1, ARRAY['x|', NULL], MAP['k', 2], ROW(3), X'0aff', 0.1, 0.1);
INSERT INTO t (a) VALUES (NULL);
SELECT * FROM v ORDER BY a;
"""
ANSWER = """\
-- | a    | b           | c       | d       | e       | f    | g    | h    | i  | j      | k       | l          |
-- |------|-------------|---------|---------|---------|------|------|------|----|--------|---------|------------|
-- | NULL | NULL        | NULL    | NULL    | NULL    | NULL | NULL | NULL | "" | "NULL" | "a|\\"b" | 2026-01-31 |
-- |    1 | ["x|",null] | {"k":2} | {"x":3} | X'0aff' |  0.1 |  0.1 |    2 | "" | "NULL" | "a|\\"b" | 2026-01-31 |
"""


def test_update_writes_what_is_read_as_the_same_answer(folder: Path) -> None:
    """Texts and names that look like a part of a drawing, and lines that part a file."""
    file = folder / "odd.test.sql"
    file.write_text(dedent("""\
        CREATE TABLE t (s STRING) WITH ('connector' = 'kafka', 'topic' = 't', 'format' = 'json');
        -- ──────────
        -- test: odd
        -- ++++++++++
        INSERT INTO t VALUES ('-'), ('---'), ('+'), ('='), ('- -'), ('a');
        SELECT s FROM t;
        SELECT s AS `a|b`, s AS `-`, s AS ` x` FROM t WHERE s = '-';
        """))  # fmt: skip
    assert run(file) == 1
    assert run(file, update=True) == 0
    written = file.read_text()
    assert run(file, update=True) == run(file) == 0
    assert file.read_text() == written
    assert '-- | "---" |\n' in written
    file.write_text(written.replace('-- | "---" |\n', ""))
    assert run(file) == 1


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end_of_line", ["\n", "\r\n"])
def test_update_keeps_what_else_is_in_a_file(folder: Path, mark: str, end_of_line: str) -> None:
    """Ends of lines, a byte order mark, and comments and queries behind a query."""
    text, answer = "SELECT 1 AS a;", "\n-- | a |\n-- |---|\n-- | 1 |"
    before = f"{text} SELECT 1 AS a; /* one */ -- line\n/* \ufeff\u00e4 */ {text} /* two\nlines */\n{text}"
    after = (
        f"{text}{answer}\nSELECT 1 AS a; /* one */ -- line{answer}\n"
        f"/* \ufeff\u00e4 */ {text}{answer}\n/* two\nlines */\n{text}{answer}"
    )
    file = folder / "kept.test.sql"
    for _ in range(2):
        file.write_text(mark + before.replace("\n", end_of_line), encoding="utf-8", newline="")
        assert run(file, update=True) == run(file) == 0
        assert file.read_bytes().decode() == mark + after.replace("\n", end_of_line)
        before = after.replace("-- | 1 |", "-- | 2 |\n-- | 1 |")


def test_a_file_may_declare_all_itself(folder: Path) -> None:
    """Of all types, in answers that are read as they were written."""
    (folder / "alone.test.sql").write_text(VALUES)
    assert run("alone.test.sql", update=True) == 0
    assert (folder / "alone.test.sql").read_text() == VALUES + ANSWER
    assert run("alone.test.sql") == 0


def test_a_file_may_name_its_program_and_parameters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parameters of the command replace those of the file."""
    (folder / "tests").mkdir()
    (folder / "greeting.sql").write_text("CREATE VIEW greeting AS SELECT '${word:hello}' AS word;")
    text = """
        -- program: ../greeting.sql
        -- test: said
        -- param: word=hi
        SELECT * FROM greeting;
        -- | word |
        -- | hi   |
        -- test: left out
        SELECT * FROM greeting;
        -- | word  |
        -- | hello |
    """
    (folder / "tests" / "greeting.test.sql").write_text(dedent(text))
    assert run("tests", "tests/greeting.test.sql") == 0
    assert capsys.readouterr().out.endswith("\n2 tests\n")
    assert run("tests", param=("word=hi",)) == 1
    assert "FAILED   left out" in capsys.readouterr().out


def test_a_parameter_is_used_by_its_whole_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shop.test.sql").write_text("-- param: at=7\nSELECT '${attic:x}' AS a;\n-- | a |\n-- | x |\n")
    assert run("shop.test.sql") == 1
    assert "has ${at}, so this says nothing" in capsys.readouterr().out


def test_what_is_asked_for_must_be_there(folder: Path) -> None:
    (folder / "shop.test.sql").write_text("SELECT id FROM dear;\n-- | id |")
    for paths, keyword, param, reason in [
        (["nowhere"], None, (), "nowhere: there is no such file or folder"),
        ([folder / "empty"], None, (), "there are no tests in this folder"),
        (["shop.test.sql"], "x y", (), "no test has 'x y' in its name"),
        (["shop.test.sql"], None, ("least=1",), r"has \$\{least\}, so --param least says nothing"),
    ]:
        (folder / "empty").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=reason):
            run(*paths, keyword=keyword, param=param)


ASKS = "SELECT id FROM orders;\n-- | id |\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "1:1: nothing is checked here; write a query"),
        ("-- test: a\nINSERT INTO orders (id, at) VALUES (1, '2026-01-01');", "1:1: nothing is checked here"),
        ("-- test:\n" + ASKS, "1:1: the test has no name"),
        (f"-- test: a\n{ASKS}-- test: a\n{ASKS}", "4:1: there is a test of this name in line 1"),
        (f"{ASKS}-- test: a\n{ASKS}", "1:1: a query stands before the first test"),
        ("-- program: a.sql\n-- program: b.sql\n" + ASKS, "2:1: a file tests one program"),
        ("-- program: a.sql\n" + ASKS, "1:1: there is no file a.sql"),
        ("-- program: shop.py\n" + ASKS, "1:1: tests are of files of SQL (.sql)"),
        ("-- param: least\n" + ASKS, "1:1: a parameter is written -- param: name=value"),
        ("-- param: least=1\n" + ASKS, "1:1: no text of shop.sql or of this file has ${least}"),
        ("SELECT id FROM orders;\n-- error:\n", "2:1: this says no error"),
        (ASKS + "\n-- | id |\n", "4:1: the query has an answer already"),
        ("-- | id |\n" + ASKS, "1:1: this stands behind no query"),
        (ORDERS + "-- | id |\n" + ASKS, "4:1: this stands behind no query"),
        ("INSERT INTO spent SELECT 1, 2, 3;", "1:13: the program fills spent, and does not read it"),
        ("INSERT INTO orders SELECT 1, 2, 3;", "1:20: a test gives rows by VALUES"),
        ("INSERT INTO named VALUES (1, 'a');", "1:13: the program fills named, and does not read it"),
        ("INSERT INTO order_s VALUES (1);", "1:13: there is no table 'order_s'; did you mean 'orders'?"),
        ("INSERT INTO orders (id, prise) VALUES (1, 2);", "1:25: prise is no column of orders; did you mean 'price'?"),
        ("INSERT INTO orders (id, id) VALUES (1, 2);", "1:25: id is there twice"),
        ("INSERT INTO orders (op, id) VALUES ('-D', 2);", "1:21: rows of orders are never replaced"),
        ("INSERT INTO customers (op, id) VALUES ('-X', 2);", "1:40: op says what the row does: '+I', '-U', '+U', '-D'"),
        (
            "INSERT INTO orders (id, customer) VALUES (1, 2), (3);",
            "1:51: the row has 1 value, and there are 2 columns: id, customer",
        ),
        ("INSERT INTO orders (id) VALUES ('a');", "1:33: 'a' is STRING, and id is BIGINT, which does not hold it"),
        ("INSERT INTO orders (id) VALUES (1.5);", "1:33: 1.5 is a number, and id is BIGINT, which does not hold it"),
        ("INSERT INTO orders (id, rank) VALUES (1, 40000);", "1:42: 40000 is a number, and rank is SMALLINT"),
        ("INSERT INTO orders (id, price) VALUES (1, 1.255);", "1:43: 1.255 is a number, and price is DECIMAL(10, 2)"),
        ("INSERT INTO orders (id, at) VALUES (1, 'noon');", "1:40: at: 'noon' is no timestamp"),
        ("INSERT INTO orders (id) VALUES (NULL);", "1:33: id is NOT NULL; give it a value"),
        ("INSERT INTO orders (rank) VALUES (1);", "1:35: id is NOT NULL; give it a value"),
        ("INSERT INTO orders (id) VALUES (customer);", "1:33: there is no column 'customer'"),
        ("INSERT INTO orders (id) VALUES (CAST('x' AS BIGINT));", "1:33: this cannot be computed"),
        ("SET 'pipeline.name' = 'x';\n" + ASKS, "1:1: a file of tests has CREATE, INSERT INTO and queries"),
        ("SELECT FROM orders;\n-- | id |", "1:8: 'FROM' cannot stand here"),
        ("SELECT * FROM order_s;\n-- | id |", "1:15: there is no table 'order_s'; did you mean 'orders'?"),
        ("-- param: a=1\n-- param: a=2\nSELECT '${a}';", "2:1: a has a value already, above; leave one of them out"),
        ("SELECT id FROM orders; -- test: a\n" + ASKS, "1:24: a test begins behind this statement"),
        ("SELECT id FROM orders;", "1:1: nothing is expected of this query; write its answer behind it"),
        ("SELECT id FROM orders;\n-- |----|", "2:1: the table has no line with the names of the columns"),
        ("SELECT id FROM orders;\n-- | id |\n-- | 1 | 2 |", "3:6: the row has 2 values, and the table 1 columns"),
        ("SELECT id FROM orders;\n-- | idd |", "2:6: the columns are idd, and those of the query id"),
        ("SELECT id FROM orders;\n-- | id |\n-- | x |", "3:6: 'x' is no BIGINT; write for example 15, or NULL"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_said_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    (folder / "shop.test.sql").write_text(f"{text}\n{ASKS}" if text.startswith("INSERT") else text)
    assert run("shop.test.sql") == 1
    shown = capsys.readouterr().out
    assert f"shop.test.sql:{reason}" in shown
    assert "^" in shown

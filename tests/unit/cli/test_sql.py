"""`penstock sql`: statements of the command line, of a file and of a prompt."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from penstock.cli.sql import Asked, Sql, sql_command
from penstock.errors import PenstockError, UsageError
from penstock.sql.text import SqlError, SqlText
from penstock.testing.sql import read_sql_tests, run_sql_test

ROWS = [{"id": n, "price": n * 1.5, "name": None if n == 2 else f"n{n}"} for n in range(4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def run(text: str | None = None, *, file: str | None = None, param: list[str] | None = None) -> int:
    return sql_command(Sql(file=file, execute=text, param=param or [], parallelism=None, json=True))


def test_a_query_shows_its_final_rows_in_their_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("SELECT name, price FROM read_jsonl('rows.jsonl') WHERE id > 0 ORDER BY name DESC NULLS LAST") == 0
    names = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    assert names == ["n3", "n1", None]
    run("SELECT COUNT(*) AS n, MAX(price) AS most FROM read_jsonl('${file}')", param=["file=rows.jsonl"])
    assert capsys.readouterr().out == '{"n": 4, "most": 4.5}\n'


def test_a_file_is_utf_8_whatever_wrote_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.sql").write_bytes("\ufeffSELECT '\u00e4' AS a;\r\n".encode())
    assert run(file="a.sql") == 0
    assert json.loads(capsys.readouterr().out) == {"a": "\u00e4"}
    (folder / "a.sql").write_bytes("SELECT '\u00e4'".encode("latin-1"))
    with pytest.raises(UsageError, match=r"^a\.sql: cannot be read as text in UTF-8: "):
        run(file="a.sql")


def test_a_parameter_that_nothing_reads_is_refused(folder: Path) -> None:
    (folder / "a.sql").write_text("SELECT '${attic:x}' AS a")
    for asked in ({"text": "SELECT '${attic:x}' AS a"}, {"file": "a.sql"}):
        assert run(**asked, param=["attic=y"]) == 0
        with pytest.raises(UsageError, match=r"has \$\{at\}, so --param at says nothing"):
            run(**asked, param=["at=7"])


def test_a_table_can_be_filled_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the prompt, by CREATE TABLE ... AS and INSERT INTO, also after one that failed."""
    asked = Asked(Console(file=io.StringIO()), as_json=True)
    settings = "('connector' = 'filesystem', 'path' = 'out', 'format' = 'json')"
    with pytest.raises(PenstockError, match="division by zero"):
        asked.run(SqlText(f"CREATE TABLE t WITH {settings} AS SELECT 1 / id AS n FROM read_jsonl('rows.jsonl')"))
    asked.run(SqlText(f"DROP TABLE t; CREATE TABLE t WITH {settings} AS SELECT id AS n FROM read_jsonl('rows.jsonl')"))
    with pytest.raises(SqlError, match="there is no table 'nowhere'"):
        asked.run(SqlText("INSERT INTO t SELECT 7; SELECT * FROM nowhere"))
    for _ in range(2):
        asked.run(SqlText("INSERT INTO t SELECT 7"))
    asked.run(SqlText("SELECT COUNT(*) AS rows_there, SUM(n) AS total FROM read_jsonl('out')"))
    assert json.loads(capsys.readouterr().out) == {"rows_there": 6, "total": 20}


def test_a_statement_that_does_nothing_has_no_plan(folder: Path) -> None:
    asked = Asked(Console(file=io.StringIO()))
    asked.run(SqlText("CREATE TABLE t (n BIGINT) WITH ('connector' = 'print')"))
    with pytest.raises(SqlError, match="the table is there already, so this statement does nothing"):
        asked.run(SqlText("EXPLAIN CREATE TABLE IF NOT EXISTS t WITH ('connector' = 'print') AS SELECT 1 AS n"))


def test_a_setting_that_is_refused_is_not_kept() -> None:
    asked = Asked(Console(file=io.StringIO()))
    for setting in (
        "'table.exec.state.ttl' = 'x'",
        "'table.exec.state.ttl' = '400000d'",
        "'pipeline.max-parallelism' = '0'",
    ):
        with pytest.raises(SqlError, match="<sql>:1:"):
            asked.run(SqlText(f"SET {setting}"))
    asked.run(SqlText("SET 'pipeline.name' = 'abc'"))
    assert asked.session.settings.values == {"pipeline.name": "abc"}


def test_a_file_declares_fills_and_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.sql").write_text(
        "CREATE VIEW dear AS SELECT id FROM read_jsonl('rows.jsonl') WHERE price > 2;\n"
        "CREATE TABLE out (id BIGINT) WITH ('connector' = 'filesystem', 'path' = 'out', 'format' = 'json');\n"
        "INSERT INTO out SELECT * FROM dear; SHOW TABLES; DESCRIBE dear; EXPLAIN SELECT * FROM dear"
    )
    assert run(file="job.sql") == 0
    shown = capsys.readouterr().out
    assert "dear\nout\n" in shown
    assert "id\tBIGINT" in shown
    assert "filter  [append]" in shown
    assert sum(len(part.read_text().splitlines()) for part in (folder / "out").glob("part-*")) == 2


def test_explain_is_a_tree_with_modes_and_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What each operation reads is below it; its rows have a mode, and its state an end."""
    counts = "SELECT name, COUNT(*) AS n FROM read_jsonl('rows.jsonl') GROUP BY name"
    run(f"EXPLAIN {counts}")
    shown = capsys.readouterr().out
    assert "agg by name  [upsert by name]\n" in shown
    assert "state: aggregates per key, for ever\n" in shown
    assert shown.index("agg by name") < shown.index("read  [append]")
    run(f"SET 'table.exec.state.ttl' = '1 d'; EXPLAIN CHANGELOG_MODE SELECT a.n, b.n FROM ({counts}) a, ({counts}) b")
    assert "state: the last row of a key, for 1d after its last change\n" in capsys.readouterr().out
    run(f"EXPLAIN JSON_EXECUTION_PLAN {counts}")
    assert json.loads(capsys.readouterr().out)["vertices"]
    with pytest.raises(SqlError, match="costs are not estimated"):
        run(f"EXPLAIN ESTIMATED_COST {counts}")


@pytest.mark.parametrize("time", ["10:00:00", "10:00:00.250", "10:00:00.250001"])
def test_a_terminal_shows_a_timestamp_as_cast_writes_it(time: str) -> None:
    terminal = io.StringIO()
    asked = Asked(Console(file=terminal, force_terminal=True, color_system=None, width=100))
    literal = f"TIMESTAMP '2026-01-01 {time}'"
    asked.run(SqlText(f"SELECT {literal} AS one, CAST({literal} AS STRING) AS other"))
    assert f"│ 2026-01-01 {time} │ 2026-01-01 {time} │" in terminal.getvalue()


def test_settings_are_those_of_the_statements_behind_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And are checked, and shown."""
    counts = "SELECT name, COUNT(*) FROM read_jsonl('rows.jsonl') GROUP BY name;"
    explained = f"EXPLAIN {counts} EXPLAIN JSON_EXECUTION_PLAN {counts}"
    run(f"SET 'table.exec.state.ttl' = '1 h'; SET 'pipeline.max-parallelism' = '7'; {explained}")
    shown = capsys.readouterr().out
    assert "aggregates per key, for 1h after its last change" in shown
    assert '"max_parallelism": 7' in shown
    reset = "SET 'table.exec.state.ttl' = '1 h'; RESET 'table.exec.state.ttl';"
    run(f"{reset} SET 'pipeline.name' = 'mine'; SET; {explained}")
    shown = capsys.readouterr().out
    assert shown.startswith("pipeline.name\tmine\n")
    assert '"name": "mine"' in shown
    assert "ttl" not in shown
    for wrong, what in (
        ("'pipeline.nam' = 'x'", "did you mean 'pipeline.name'"),
        ("'table.exec.state.ttl' = 'x'", "is not a duration"),
        ("'parallelism.default' = '4'", "the option --parallelism"),
        ("'pipeline.name' = 'a b'", "is no name"),
    ):
        with pytest.raises(PenstockError, match=what):
            run(f"SET {wrong}")


def test_aggregates_take_nulls_as_the_text_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word ARRAY_AGG respects them, and the first and last value are not null."""
    calls = ("ARRAY_AGG(x)", "ARRAY_AGG(x) IGNORE NULLS", "FIRST_VALUE(x)", "FIRST_VALUE(x) RESPECT NULLS")
    (folder / "times.jsonl").write_text(
        "".join(json.dumps({"x": x, "at": f"2026-01-01T00:00:0{n}Z"}) + "\n" for n, x in enumerate((None, 1, 2)))
    )
    run(
        "CREATE TABLE t (x INT, at TIMESTAMP(3), WATERMARK FOR at AS at) "
        "WITH ('connector' = 'filesystem', 'path' = 'times.jsonl', 'format' = 'json');"
        f"SELECT {', '.join(f'{call} AS c{n}' for n, call in enumerate(calls))} FROM t"
    )
    assert json.loads(capsys.readouterr().out) == {"c0": [None, 1, 2], "c1": [1, 2], "c2": 1, "c3": None}


def test_rows_that_are_shown_as_they_come_have_the_columns_of_the_query(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not those that the engine adds, nor one that they are ordered by."""
    kafka = "'connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'b:9092', 'format' = 'json'"
    for query in ("SELECT id FROM t LIMIT 5", "SELECT id FROM t ORDER BY at, x", "SELECT id FROM t ORDER BY x LIMIT 5"):
        table = "CREATE TABLE t (id INT, x INT, at TIMESTAMP(3), WATERMARK FOR at AS at)"
        run(f"{table} WITH ({kafka}); EXPLAIN JSON_EXECUTION_PLAN {query}")
        sink = json.loads(capsys.readouterr().out)["vertices"][-1]["operators"][-1]
        assert [column["name"] for column in sink["schema"]] in (["id"], ["id", "retracted"]), query


def test_a_table_that_is_only_written_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("CREATE TABLE t (id INT NOT NULL, at TIMESTAMP(3)) WITH ('connector' = 'print'); DESCRIBE t")
    assert capsys.readouterr().out == "id\tINT\tNOT NULL\nat\tTIMESTAMP\t\n"


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_times_without_a_zone_in_a_file_are_in_utc(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or in the zone that is named; also as event time."""
    moments = [datetime(2026, 1, 1, hour, tzinfo=UTC).replace(tzinfo=None) for hour in (10, 11)]
    times = pl.DataFrame({"x": [1, 2], "t": moments})
    {"csv": times.write_csv, "parquet": times.write_parquet, "jsonl": times.write_ndjson}[kind](folder / f"t.{kind}")
    for zone, first in (("", 10), (", timezone => 'Europe/Berlin'", 9)):
        table = f"(SELECT x, t FROM read_{kind}('t.{kind}', event_time => 't'{zone}))"
        windows = f"TUMBLE(TABLE {table}, DESCRIPTOR(t), INTERVAL '1' HOUR)"
        run(f"SELECT HOUR(window_start) AS h, SUM(x) AS s FROM {windows} GROUP BY window_start, window_end")
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert rows == [{"h": first, "s": 1}, {"h": first + 1, "s": 2}]


@pytest.mark.parametrize("from_file", [True, False])
def test_functions_of_modules_beside_the_text_are_found(
    from_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the file, and at a prompt in the current folder."""
    monkeypatch.setattr("sys.path", [*sys.path])
    module = f"beside_{'file' if from_file else 'prompt'}"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{module}.py").write_text("def twice(x: int) -> int:\n    return 2 * x\n")
    text = f"CREATE FUNCTION twice AS '{module}.twice' LANGUAGE PYTHON; SELECT twice(a) AS b FROM (VALUES (3)) AS t (a)"
    (tmp_path / "code" / "job.sql").write_text(text)
    monkeypatch.chdir(tmp_path if from_file else tmp_path / "code")
    run(file="code/job.sql") if from_file else run(text)
    assert capsys.readouterr().out == '{"b": 6}\n'


def test_fetch_takes_one_row_where_it_says_no_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("SELECT id FROM read_jsonl('rows.jsonl') ORDER BY id DESC FETCH FIRST ROW ONLY")
    assert capsys.readouterr().out == '{"id": 3}\n'


def test_a_plan_is_shown_as_it_is(folder: Path) -> None:
    """No part of it is a picture to rich, and no line is broken."""
    terminal = io.StringIO()
    asked = Asked(Console(file=terminal, force_terminal=True, color_system=None, width=40))
    asked.run(
        SqlText(
            "EXPLAIN SELECT id AS `c:id:`, name AS `a name that is too long for a line` FROM read_jsonl('rows.jsonl')"
        )
    )
    assert 'c:id: = col("id"), a name that is too long for a line = col("name")' in terminal.getvalue()


def test_show_lists_the_names_that_are_like_a_pattern(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("CREATE VIEW va AS SELECT 1; CREATE VIEW vbc AS SELECT 1; SHOW TABLES LIKE 'v_'; SHOW VIEWS LIKE '%C'")
    assert capsys.readouterr().out == "va\nvbc\n"
    run("SHOW FUNCTIONS LIKE 'upp%'")
    assert capsys.readouterr().out == "UPPER\n"


def test_a_prompt_goes_on_behind_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement may have several lines; the last one needs no semicolon."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT x\nFROM y;\nSELECT 1\n AS a;\nhelp;\nSELECT 2 AS b"))
    assert run() == 0
    shown = capsys.readouterr().out
    assert "<sql>:2:6: there is no table 'y'" in shown
    assert '{"a": 1}' in shown
    assert '{"b": 2}' in shown
    assert "read_csv" in shown


def test_a_terminal_is_shown_a_table_that_tests_take(folder: Path) -> None:
    """NULL is told from the text, and pasted behind a query of a file of tests it is the answer."""
    output = io.StringIO()
    asked = Asked(Console(file=output, force_terminal=True, width=100, color_system=None))
    columns = "name, 'NULL' AS word, '' AS nothing, TRUE AS t, 0.1e0 + 0.2e0 AS total"
    query = f"SELECT {columns} FROM read_jsonl('rows.jsonl') ORDER BY id DESC;"
    asked.run(SqlText(query))
    *lines, last = output.getvalue().splitlines()
    assert "NULL" in lines[4]
    assert last == "4 rows"
    (folder / "pasted.test.sql").write_text("\n".join([query, *(f"-- {line}" for line in lines)]))
    tests = read_sql_tests(folder / "pasted.test.sql", {})
    assert run_sql_test(tests, tests.file.tests[0]) == []


def test_what_is_wrong_is_said(folder: Path) -> None:
    with pytest.raises(SqlError, match="did you mean 'price'"):
        run("SELECT prise FROM read_jsonl('rows.jsonl')")
    with pytest.raises(UsageError, match="there is no such file"):
        run(file="nowhere.sql")
    with pytest.raises(UsageError, match="not both"):
        run("SELECT 1", file="rows.jsonl")

"""The rows of a query without an end, as a prompt shows them."""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.live_table import LiveTable, Pages
from penstock.cli.sql import Asked
from penstock.connectors import iterables
from penstock.gateway.runs import Run
from penstock.plan.building.rows import Rows
from penstock.plan.building.sources import read
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.sql.answers import Answer
from penstock.sql.asking import Asking
from penstock.sql.parsing import statements
from penstock.sql.programs import Session
from penstock.sql.testing.changes import Log
from penstock.sql.text import SqlError, SqlText
from penstock.sql.watching import WatchingSink


@dataclass
class Tick:
    name: str
    n: int


def endless() -> Iterator[Tick]:
    for n in itertools.count():
        yield Tick("ab"[n % 2], n)


def ticks(plan: LogicalPlan) -> Rows:
    return read(plan, iterables.Source(endless, schema=Tick, bounded=False))


def asked(query: str) -> Answer:
    plan = LogicalPlan("p")
    session = Session(plan, {"ticks": ticks(plan)})
    [part] = statements(SqlText(query))
    found = Asking(session).answer(SqlText(query), part)
    assert isinstance(found, Answer)
    assert not found.bounded
    return found


def table_of(query: str, **options: Any) -> LiveTable:
    answer = asked(query)
    return LiveTable(answer, Log.of(answer.rows.node, ()).key, **options)


def shown(table: LiveTable, number: int | None = None, height: int = 100) -> list[tuple[str, ...]]:
    return table.page(number, height)[2]


def test_rows_that_replace_others_stand_in_their_place() -> None:
    table = table_of("SELECT name, COUNT(*) AS n FROM ticks GROUP BY name")
    table.put([("+I", ("a", 1)), ("+I", ("b", 1))])
    table.put([("+U", ("a", 2))])
    assert shown(table) == [("a", "2"), ("b", "1")]
    table.put([("-U", ("a", 2)), ("+U", ("a", 3)), ("-D", ("b", 1))])
    assert shown(table) == [("a", "3")]
    table.put([("+I", ("b", 7))])
    assert shown(table) == [("a", "3"), ("b", "7")]
    assert (len(table), table.changes, table.left_out) == (2, 7, 0)


def test_equal_rows_are_retracted_once_each_where_no_key_tells_them_apart() -> None:
    table = table_of("SELECT t.name FROM ticks AS t LEFT JOIN ticks AS u ON t.n = u.n")
    table.put([("+I", ("a",)), ("+I", ("a",)), ("+I", ("b",))])
    table.put([("-D", ("a",))])
    assert shown(table) == [("a",), ("b",)]
    table.put([("-D", ("a",)), ("-D", ("b",))])
    assert shown(table) == []


def test_the_newest_rows_are_held() -> None:
    table = table_of("SELECT n FROM ticks", max_rows=3)
    table.put([("+I", (n,)) for n in range(5)])
    assert (shown(table), table.left_out) == ([("2",), ("3",), ("4",)], 2)
    table = table_of("SELECT name, MAX(n) AS n FROM ticks GROUP BY name", max_rows=2)
    table.put([("+I", ("a", 1)), ("+I", ("b", 1)), ("+I", ("c", 1))])
    assert shown(table) == [("b", "1"), ("c", "1")]
    table.put([("-U", ("a", 1)), ("+U", ("a", 2))])  # it comes anew
    assert shown(table) == [("c", "1"), ("a", "2")]
    table.put([("-D", ("b", 1)), ("-D", ("c", 1))])
    assert shown(table) == [("a", "2")]


def test_rows_with_an_order_are_shown_in_it() -> None:
    table = table_of("SELECT name, n FROM ticks ORDER BY n DESC LIMIT 3")
    table.put([("+I", ("a", 2)), ("+I", ("b", 7)), ("+I", ("c", 5))])
    assert shown(table) == [("b", "7"), ("c", "5"), ("a", "2")]
    assert shown(table, 1, 2) == [("a", "2")]
    table = table_of("SELECT name FROM ticks ORDER BY n DESC LIMIT 3")  # by what nobody sees: as they come
    table.put([("+I", ("a",)), ("+I", ("b",))])
    assert shown(table) == [("a",), ("b",)]


def test_values_of_every_shape_are_shown() -> None:
    table = table_of("SELECT MAP[name, n] AS m, ARRAY[MAP[name, n]] AS a, ROW(n, name) AS r, n FROM ticks")
    table.put([("+I", ({"x": 1}, [{"x": 1}], {"EXPR$0": 1, "EXPR$1": "x"}, None))])
    assert shown(table) == [('{"x":1}', '[{"x":1}]', '{"EXPR$0":1,"EXPR$1":"x"}', "NULL")]


def test_a_long_text_hides_no_other_column() -> None:
    table = table_of("SELECT name, n FROM ticks")
    table.put([("+I", ("x" * 500, 4_711))])
    output = Console(file=io.StringIO(), width=60, height=8, force_terminal=False)
    output.print(Pages(table, ["name", "n"]).picture(8))
    text: str = output.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    assert "4711" in text
    assert len(text.splitlines()) == 8 - 1  # one row, and room for one more


def test_pages_are_turned_by_keys() -> None:
    table = table_of("SELECT n FROM ticks")
    table.put([("+I", (n,)) for n in range(10)])
    pages = Pages(table, ["n"])

    def picture() -> str:
        output = Console(file=io.StringIO(), width=60, height=10, force_terminal=False)
        output.print(pages.picture(10))
        return output.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]

    assert "page 3 of 3, 10 rows after 10 changes" in picture()
    table.put([("+I", (n,)) for n in range(10, 14)])
    assert "page 4 of 4" in picture()  # the end is followed
    for keys, page in (("p", 3), ("pp", 1), ("p", 1), ("n", 2), ("G", 4), ("g", 1), (" ", 2), ("x", 2), ("nnn", 4)):
        for key in keys:
            pages.press(key)
            text = picture()
        assert f"page {page} of 4" in text, keys
    assert not pages.left
    pages.press("q")
    assert pages.left


def test_changes_are_lines_where_that_is_asked_for() -> None:
    """Of a query whose source breaks in the end."""

    def some() -> Iterator[Tick]:
        while "+U | a" not in output.getvalue():
            yield Tick("a", 1)
        raise ValueError("the reader is broken")

    output = io.StringIO()
    asked = Asked(Console(file=output, force_terminal=True, width=80, color_system=None))
    asked.session.catalogue.streams = {
        "ticks": read(asked.pipeline.plan, iterables.Source(some, schema=Tick, bounded=False))
    }
    with pytest.raises(Exception, match="the reader is broken"):
        asked.run(
            SqlText(
                "SET 'sql-client.execution.result-mode' = 'Changelog'; SET;"
                "SELECT name, SUM(n) AS n FROM ticks GROUP BY name"
            )
        )
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert any("result-mode" in line and "changelog" in line for line in lines)
    changes = [line.split(" | ") for line in lines[lines.index("op | name | n") + 1 :]]
    totals = [int(total) for _, _, total in changes]
    assert [kind for kind, *_ in changes] == ["+I", *["-U", "+U"] * (len(changes) // 2)]
    assert totals[1::2] == totals[:-1:2]  # what is retracted is what was shown before
    assert totals == sorted(totals)


def test_a_mode_that_there_is_not_is_refused() -> None:
    asked = Asked(Console(file=io.StringIO()))
    with pytest.raises(SqlError, match="is table, changelog or tableau, not 'pages'"):
        asked.run(SqlText("SET 'sql-client.execution.result-mode' = 'pages'"))


def test_a_query_that_is_left_has_ended_at_once() -> None:
    """Whether it waits for rows or is given more than it can take."""
    for rate in (None, 1.0):
        plan = LogicalPlan("p")
        rows = read(plan, iterables.Source(endless, schema=Tick, bounded=False, rate=rate))
        sink = WatchingSink(lambda rows: None, rows.node, ["n"])
        run = Run(plan.ending_in(rows.node, Write(sink)), 1)
        run.start()
        run.submitted.result(20)
        run.cancel()
        assert run.ended in wait([run.ended], 20).done
        assert run.ended.cancelled()


PROGRAM = """
from rich.console import Console
from penstock.cli.sql import Asked
from penstock.connectors import iterables
from penstock.plan.building.sources import read
from penstock.sql.text import SqlText
from tests.unit.cli.test_live_table import Tick, endless

asked = Asked(Console(width=80, height=12))
source = iterables.Source(endless, schema=Tick, bounded=False, rate=1_000)
asked.session.catalogue.streams = {"ticks": read(asked.pipeline.plan, source)}
asked.run(SqlText(MODE + "SELECT name, COUNT(*) AS n FROM ticks GROUP BY name"))
print("left")
"""
LOG = "SET 'sql-client.execution.result-mode' = 'changelog';"


def at_a_terminal() -> None:
    """Of this process, whose Ctrl-C is heard also where the tests run in the background, with SIGINT ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("mode", "shown", "key"), [("", "2 rows after", b"q"), (LOG, "+U | a", b"\x03")])
def test_a_query_without_an_end_is_shown_at_a_terminal_until_a_key_leaves_it(mode: str, shown: str, key: bytes) -> None:
    """As a table until q, as a log until Ctrl-C; and the terminal is as it was before."""
    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    process = subprocess.Popen(
        [sys.executable, "-c", f"MODE = {mode!r}\n{PROGRAM}"],
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        preexec_fn=at_a_terminal,
        cwd=Path(__file__).parents[3], env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    try:
        seen = ""
        end = time.monotonic() + 50
        while shown not in seen:
            assert time.monotonic() < end, seen
            seen += os.read(leader, 65_536).decode(errors="replace")
        os.write(leader, key)
        while "left" not in seen.rpartition("changes")[2]:
            assert time.monotonic() < end, seen
            seen += os.read(leader, 65_536).decode(errors="replace")
        assert process.wait(20) == 0
        assert termios.tcgetattr(follower) == before
    finally:
        process.kill()
        process.wait()
        os.close(leader)
        os.close(follower)

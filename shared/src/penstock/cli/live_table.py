"""The rows of a query without an end, at a prompt: a table that changes in place, and the keys that turn its pages.

`LiveTable` holds the rows and knows no terminal; `watch` shows it until the query ends or somebody leaves it.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import Any, Final

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.sql.answers import Answer
from penstock.sql.testing.tables import cell_of
from penstock.sql.watching import Row

try:
    import termios
    import tty
except ImportError:  # a system without terminals of this kind reads no single keys: Ctrl-C leaves the query
    termios = tty = None

MAX_ROWS: Final = 1_000_000
"""So many rows are held, as in Flink's client; the oldest are left out then."""
REFRESH_S: Final = 0.2
_WIDEST: Final = 30
"""Columns are no wider, as in Flink's client, so that a long text hides no other column."""
_AROUND: Final = 6
"""Lines of the screen that are no rows: frame, names, and what is said below."""
_KEYS: Final = {
    "q": "leave", "n": "next", " ": "next", "\x1b[6~": "next", "\x1b[B": "next", "p": "previous", "\x1b[5~": "previous",
    "\x1b[A": "previous", "g": "first", "\x1b[H": "first", "G": "last", "\x1b[F": "last",
}  # fmt: skip
_HELP: Final = "q leaves, n and p turn pages, g and G go to the first and the last"


class LiveTable:
    """The current rows of a query. A row that replaces another one takes its place.

    Args:
        answer: the query.
        key: the columns by which a row replaces another; None if only an equal row is retracted.
        max_rows: so many rows are held.
    """

    def __init__(self, answer: Answer, key: Sequence[str] | None, max_rows: int = MAX_ROWS) -> None:
        self._answer = answer
        self.columns: Final = answer.rows.node.row_schema.names
        self._key = None if key is None else [self.columns.index(name) for name in key]
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._rows: dict[int, tuple[Any, ...]] = {}
        self._places: dict[str, list[int]] = {}
        """Where the rows of a key are, or equal rows."""
        self._next = 0
        self.changes = 0
        """How many rows have come, those that replace or retract others included."""
        self.left_out = 0
        """How many rows are not held, because there are too many."""

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, rows: Sequence[Row]) -> None:
        """Take rows from the thread of a run."""
        with self._lock:
            for kind, values in rows:
                self.changes += 1
                self._add(values) if kind[0] == "+" else self._remove(values, replaced=kind == "-U")
            while len(self._rows) > self._max_rows:
                place = next(iter(self._rows))
                self._forget(self._name(self._rows.pop(place)), place)
                self.left_out += 1

    def _add(self, values: tuple[Any, ...]) -> None:
        name = self._name(values)
        places = self._places.setdefault(name, [])
        if self._key is None or not places:
            places.append(self._next)
            self._next += 1
        self._rows[places[-1]] = values

    def _remove(self, values: tuple[Any, ...], *, replaced: bool) -> None:
        name = self._name(values)
        if (replaced and self._key is not None) or name not in self._places:
            return  # the row that replaces it is about to come, or it is one that is not held any more
        place = self._places[name][-1]
        del self._rows[place]
        self._forget(name, place)

    def _forget(self, name: str, place: int) -> None:
        places = self._places[name]
        places.remove(place)
        if not places:
            del self._places[name]

    def _name(self, values: tuple[Any, ...]) -> str:
        return repr(values if self._key is None else [values[place] for place in self._key])

    def page(self, number: int | None, height: int) -> tuple[int, int, list[tuple[str, ...]]]:
        """Some rows as texts: as they came, or in the order of the query, where it is by columns that are shown.

        Args:
            number: which page, from 0 on; None: the last one.
            height: the rows of a page.

        Returns:
            The number of the page, how many there are, and its rows.
        """
        with self._lock:
            rows = list(self._rows.values())
        pages = max(-(-len(rows) // height), 1)
        number = pages - 1 if number is None else min(max(number, 0), pages - 1)
        if self._answer.order and {*self._answer.ordered_by} <= {*self.columns}:
            rows = self._in_order(rows)
        rows = rows[number * height : (number + 1) * height]
        shown = [self.columns.index(own) for _, own in self._answer.columns]
        kinds = [each.type for each in self._answer.fields]
        cells = [tuple(cell_of(row[place], kind) for place, kind in zip(shown, kinds, strict=True)) for row in rows]
        return number, pages, cells

    def _in_order(self, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        places = {name: self.columns.index(name) for name in self._answer.ordered_by}
        kinds = self._answer.rows.node.row_schema.polars()
        frame = pl.DataFrame(
            [pl.Series(name, [row[place] for row in rows], kinds[name]) for name, place in places.items()]
        ).with_row_index("__row")
        places_in_order: list[int] = self._answer.sorted(frame)["__row"].to_list()
        return [rows[place] for place in places_in_order]


class Pages:
    """Which page of a table is shown, as keys say."""

    def __init__(self, table: LiveTable, names: Sequence[str]) -> None:
        self._table = table
        self._names = names
        self._page: int | None = None
        self._shown = 0
        self.left = False
        """Whether the query is to be left."""

    def press(self, key: str) -> None:
        """Turn pages, or leave; other keys do nothing."""
        match _KEYS.get(key):
            case "leave":
                self.left = True
            case "next":
                self._page = self._shown + 1
            case "previous":
                self._page = max(self._shown - 1, 0)
            case "first":
                self._page = 0
            case "last":
                self._page = None
            case _:
                pass

    def picture(self, height: int) -> RenderableType:
        """The page, for a screen of so many lines."""
        number, pages, rows = self._table.page(self._page, max(height - _AROUND, 1))
        if self._page is not None and self._page >= pages:
            self._page = None  # past the last page its end is followed
        self._shown = number
        shown = Table()
        for name in self._names:
            shown.add_column(name, no_wrap=True, overflow="ellipsis", min_width=3, max_width=_WIDEST)
        for row in rows:
            shown.add_row(*map(Text, row))
        said = f"page {number + 1} of {pages}, {len(self._table):,} rows after {self._table.changes:,} changes"
        if self._table.left_out:
            said += f", {self._table.left_out:,} older rows are not held"
        below = (Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in (said, _HELP))
        return Group(shown, *below)


def watch(table: LiveTable, names: Sequence[str], ended: Future[Any], output: Console) -> None:
    """Show a table until the query ends, or is left by a key or Ctrl-C.

    Args:
        table: its rows.
        names: its columns.
        ended: is done when the query has ended.
        output: the terminal.
    """
    pages = Pages(table, names)
    try:
        with _single_keys(), Live(console=output, screen=True, auto_refresh=False) as live:
            while not ended.done() and not pages.left:
                live.update(pages.picture(output.height), refresh=True)
                if key := _pressed(REFRESH_S):
                    pages.press(key)
    except KeyboardInterrupt:
        output.set_alt_screen(enable=False)  # it may have come while the screen was being changed


@contextlib.contextmanager
def _single_keys() -> Generator[None]:
    """Keys come at once, and are not shown."""
    if termios is None or tty is None or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(wait_s: float) -> str:
    """The key that is pressed within that time; empty if none is."""
    if termios is None or not sys.stdin.isatty():
        time.sleep(wait_s)
        return ""
    if not select.select([sys.stdin], [], [], wait_s)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 8).decode(errors="replace")  # some keys are several bytes

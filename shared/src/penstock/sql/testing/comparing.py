"""An answer beside what was expected: whether they are the same, and a difference that shows where not."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from penstock.sql.testing.changes import OP
from penstock.sql.testing.tables import TextTable, drawn, is_number, line_of, name_cell, normal_cell
from penstock.sql.text import Span, SqlText
from penstock.types import STRING, Field

Row = tuple[str, ...]
_AROUND: Final = 3
"""So many rows are shown around a difference."""


@dataclass(frozen=True)
class Found:
    """The answer of a query, in cells."""

    columns: tuple[Field, ...]
    rows: Sequence[Row]
    ties: Sequence[str] | None = None
    """Of rows that are in an order: what they are ordered by, where rows of the same may change places. None: all may."""
    key: Sequence[int] | None = None
    """Of changes: the places of the key. Changes of one key are in order, those of different ones may change places."""

    def same_as(self, expected: Sequence[Row]) -> bool:
        """Whether they are the expected rows."""
        if Counter(self.rows) != Counter(expected):
            return False
        if self.key is not None:
            return _by_key(self.rows, self.key) == _by_key(expected, self.key)
        if self.ties is None:
            return True
        start = 0
        for _, group in groupby(self.ties):
            end = start + sum(1 for _ in group)
            if Counter(self.rows[start:end]) != Counter(expected[start:end]):
                return False
            start = end
        return True

    @property
    def settled(self) -> Sequence[Row]:
        """The rows as they are written into a file: those without an order by their cells."""
        return self.rows if self.is_ordered else sorted(self.rows)

    @property
    def is_ordered(self) -> bool:
        """Whether rows are in an order."""
        return self.ties is not None or self.key is not None

    def table(self) -> list[str]:
        """The lines of the answer."""
        return drawn(
            [name_cell(each.name) for each in self.columns],
            self.settled,
            [is_number(each.type) for each in self.columns],
        )


def _by_key(rows: Sequence[Row], places: Sequence[int]) -> dict[Row, list[Row]]:
    found: dict[Row, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[place] for place in places), []).append(row)
    return found


def wants_changes(table: TextTable, columns: Sequence[str]) -> bool:
    """Whether a table lists changes: it begins with a column `op` that the query does not have."""
    return table.names[0] == OP and table.names != [*columns]


def expected_rows(text: SqlText, table: TextTable, columns: Sequence[Field]) -> list[Row]:
    """The rows of a table of a file, in cells that are equal where values are.

    Raises:
        SqlError: the columns are not those of the query, or a cell is no value of its column.
    """
    names = table.names
    wanted = [each.name for each in columns]
    if names != wanted:
        raise text.error(
            _place(table), f"the columns are {', '.join(names)}, and those of the query {', '.join(wanted)}"
        )
    return [
        tuple(normal_cell(cell, column.type, text) for cell, column in zip(row, columns, strict=True))
        for row in table.rows
    ]


def _place(table: TextTable) -> Span:
    return table.header[0].span.to(table.header[-1].span)


def with_kinds(columns: Sequence[Field]) -> tuple[Field, ...]:
    """The columns of changes."""
    return (Field(OP, STRING), *columns)


def difference(text: SqlText, span: Span, found: Found, expected: Sequence[Row]) -> str:
    """What is said of a query whose answer is another one: `-` rows are expected and missing, `+` rows are too many."""
    pairs = [*(_in_order(expected, found.rows) if found.is_ordered else _in_any_order(expected, found.rows))]
    missing, too_many = (sum(mark == sign for mark, _ in pairs) for sign in "-+")
    reason = f"the answer is another one: {_counted(missing)} missing (-), {_counted(too_many)} not expected (+)"
    return "\n".join([str(text.error(span, reason)), *_difference(found, pairs)])


def _counted(rows: int) -> str:
    return f"{rows} {'row' if rows == 1 else 'rows'}"


def _in_order(expected: Sequence[Row], found: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    matcher = difflib.SequenceMatcher(None, [*expected], [*found], autojunk=False)
    for tag, start, end, other, last in matcher.get_opcodes():
        if tag == "equal":
            yield from ((" ", row) for row in expected[start:end])
        else:
            yield from (("-", row) for row in expected[start:end])
            yield from (("+", row) for row in found[other:last])


def _in_any_order(expected: Sequence[Row], found: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """Sorted, so that rows that are almost the same stand together."""
    wanted, there = Counter(expected), Counter(found)
    for row in sorted({*wanted, *there}):
        both = min(wanted[row], there[row])
        yield from [(" ", row)] * both
        yield from [("-", row)] * (wanted[row] - both)
        yield from [("+", row)] * (there[row] - both)


def _difference(found: Found, pairs: Sequence[tuple[str, Row]]) -> Iterator[str]:
    names = tuple(name_cell(each.name) for each in found.columns)
    numbers = [is_number(each.type) for each in found.columns]
    widths = [max(map(len, column)) for column in zip(names, *(row for _, row in pairs), strict=True)]
    yield f"    {line_of(names, widths, [False] * len(widths))}"
    near = {
        number + step for number, (mark, _) in enumerate(pairs) if mark != " " for step in range(-_AROUND, _AROUND + 1)
    }
    left_out = 0
    for number, (mark, row) in enumerate(pairs):
        if number in near:
            if left_out:
                yield f"    ... {_counted(left_out)}"
            left_out = 0
            yield f"  {mark} {line_of(row, widths, numbers)}"
        else:
            left_out += 1
    if left_out:
        yield f"    ... {_counted(left_out)}"

"""A row that a function has given is what it was then, whatever the function does to the same object afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from penstock import KeyedProcess, OutputTag, Pipeline, Process, ValueState, tumbling
from penstock.connectors import iterables

AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Row:
    key: int
    at: datetime


@dataclass
class Part:
    n: int


@dataclass
class Sum:
    """Of every kind of column whose values can be changed in place."""

    key: int
    n: int = 0
    seen: list[int] = field(default_factory=list)
    nested: list[list[int]] = field(default_factory=lambda: [[]])
    part: Part | None = None
    by_name: dict[str, int] = field(default_factory=dict)

    def add(self) -> None:
        self.n += 1
        self.seen.append(self.n)
        self.nested[0].append(self.n)
        self.part = self.part or Part(0)
        self.part.n += 1
        self.by_name["n"] = self.n


class Plain(msgspec.Struct):
    key: int
    n: int


ASIDE = OutputTag("aside", Sum)
ROWS = [Row(n % 2, AT + timedelta(seconds=n)) for n in range(4)]


def source():
    return Pipeline("rows").read(iterables.Source(ROWS, event_time="at"))


def told(frame):
    """What is expected of the rows that `Sum.add` made: of each how often it was called, and all else as it was then."""
    for row in frame.iter_rows(named=True):
        n = row["n"]
        assert row["seen"] == row["nested"][0] == list(range(1, n + 1))
        assert (row["part"], row["by_name"]) == ({"n": n}, {"n": n})
    return frame.select("key", "n").rows()


class Totals(KeyedProcess[Row, Sum]):
    """Keeps in its state what it emits."""

    total = ValueState(Sum)

    def on_row(self, row, ctx):
        total = self.total.get(default=Sum(row.key))
        total.add()
        self.total.set(total)
        ctx.emit(total)
        ctx.emit_to(ASIDE, total)


def test_a_process_emits_what_it_keeps_in_state():
    """Rows of one batch, main and side output: each has the total of its turn."""
    totals = source().key_by("key").process(Totals())
    expected = [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert told(totals.collect()) == expected
    assert told(totals.side(ASIDE).collect()) == expected


class OneDict(Process[Row, Plain]):
    def open(self, context):
        self.given = {"key": 0, "n": 0}

    def on_row(self, row, ctx):
        self.given["n"] += 1
        ctx.emit(self.given)


def test_a_process_may_emit_one_dict_again_and_again():
    """The same of dicts in place of rows."""
    assert source().process(OneDict()).collect()["n"].to_list() == [1, 2, 3, 4]


class One:
    """Gives one object again and again."""

    def __init__(self):
        self.row = Sum(7)

    def __call__(self, row):
        self.row.add()
        return self.row


def several(row):
    given = Sum(row.key)
    for _ in range(2):
        given.add()
        yield given


class OneLater(One):
    async def __call__(self, row):
        return super().__call__(row)


@pytest.mark.parametrize(
    ("stream", "numbers"),
    [
        (lambda: source().map(One(), returns=Sum), [1, 2, 3, 4]),
        (lambda: source().flat_map(several, returns=Sum), [1, 2] * 4),
        (lambda: source().map_async(OneLater(), returns=Sum), [1, 2, 3, 4]),
        (
            lambda: (
                source()
                .key_by("key")
                .window(tumbling("1m"))
                .apply(lambda key, window, rows: several(rows[0]), returns=Sum)
            ),
            [1, 2, 1, 2],
        ),
    ],
    ids=["map", "flat_map", "map_async", "apply"],
)
def test_functions_may_give_one_object_again_and_again(stream, numbers):
    """What they return or yield is taken before they are called, or go on."""
    assert [n for _, n in told(stream().collect())] == numbers


def one_again_and_again():
    row = Plain(0, 0)
    for row.n in range(1, 5):
        yield row


def one_dict_again_and_again():
    row = {"key": 0}
    for row["n"] in range(1, 5):
        yield row


@pytest.mark.parametrize("rows", [one_again_and_again, one_dict_again_and_again])
def test_a_generator_may_give_one_object_again_and_again(rows):
    """The same at the other end: rows that a source is given."""
    read = Pipeline("rows").read(iterables.Source(rows, schema=Plain))
    assert read.collect()["n"].to_list() == [1, 2, 3, 4]

"""Arrow batches as rows of a schema: what does not fit makes its row bad, however deep it stands."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pytest

from penstock.formats.schema_matching import SchemaMatcher
from penstock.types import DecimalType, schema_of

FAR = 253_402_300_800_000_000
"""The year 10000, in microseconds."""


@dataclass
class Inner:
    n: int


@dataclass
class Nested:
    ids: list[int]
    sums: list[Annotated[Decimal, DecimalType(5, 2)]]
    by_name: dict[str, int]
    inner: Inner | None
    deep: list[dict[str, list[int]]]
    moments: list[datetime]


TYPES: dict[str, Any] = {
    "ids": pa.list_(pa.uint64()),
    "sums": pa.list_(pa.decimal128(10, 1)),
    "by_name": pa.map_(pa.string(), pa.uint64()),
    "inner": pa.struct([("n", pa.int64())]),
    "deep": pa.list_(pa.map_(pa.string(), pa.list_(pa.uint64()))),
    "moments": pa.list_(pa.timestamp("us", "UTC")),
}
GOOD: dict[str, list[Any]] = {
    "ids": [[], [7, None], [1, 2]],
    "sums": [[], [Decimal("1.5"), None]],
    "by_name": [[], [("k", 1), ("l", None)]],
    "inner": [None, {"n": 3}],
    "deep": [[], [None, []], [[("k", None), ("l", [1, None])]]],
    "moments": [[], [0, None]],
}
BAD: dict[str, list[Any]] = {
    "ids": [[2**63 + 1], [1, None, 2**64 - 1]],
    "sums": [[Decimal("12345.1")], [None, Decimal("1.5"), Decimal("-1000.0")]],
    "by_name": [[("k", 1), ("l", 2**63)]],
    "inner": [{"n": None}],
    "deep": [[[("k", [1])], [("k", [None, 2**63])]]],
    "moments": [[FAR], [0, 2**62]],
}


@pytest.mark.parametrize("seed", range(20))
def test_values_within_others_that_do_not_fit(seed: int) -> None:
    """Each by itself, beside rows that do; and none of the good ones is changed."""
    rng = random.Random(seed)
    rows, wrong = [], []
    for number in range(30):
        row = {name: rng.choice(values) for name, values in GOOD.items()}
        if rng.random() < 0.4:
            name = rng.choice(list(BAD))
            row[name] = rng.choice(BAD[name])
            wrong.append((number, name))
        rows.append(row)
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()})
    frame, bad = SchemaMatcher(schema_of(Nested), table.schema, "f").frame(table)
    assert [(row, reason.partition(":")[0]) for row, reason, _ in bad] == wrong
    kept = [row for number, row in enumerate(rows) if number not in dict(wrong)]
    assert frame["ids"].to_list() == [row["ids"] for row in kept]
    assert frame["sums"].to_list() == [row["sums"] for row in kept]
    assert frame["inner"].to_list() == [row["inner"] for row in kept]
    assert [len(each) for each in frame["deep"]] == [len(row["deep"]) for row in kept]


@dataclass
class Days:
    at: datetime | None
    day: date | None


@pytest.mark.parametrize(
    ("at", "day", "name", "shown"),
    [
        (pa.array([FAR], pa.timestamp("us", "UTC")), [date(2026, 1, 1)], "at", str(FAR)),
        (pa.array([2**63 - 1], pa.timestamp("us", "UTC")), [date(2026, 1, 1)], "at", str(2**63 - 1)),
        (pa.array([2**61], pa.timestamp("ms", "UTC")), [date(2026, 1, 1)], "at", str(2**61)),
        (pa.array([None], pa.timestamp("us", "UTC")), pa.array([2**31 - 1], pa.date32()), "day", str(2**31 - 1)),
    ],
)
def test_moments_that_python_has_none_for(at: Any, day: Any, name: str, shown: str) -> None:
    """Such as the infinity of DuckDB: a bad row, whose record has the number."""
    table = pa.table({"at": at, "day": day})
    frame, bad = SchemaMatcher(schema_of(Days), table.schema, "f").frame(table)
    assert frame.height == 0
    assert [(row, reason.partition(":")[0]) for row, reason, _ in bad] == [(0, name)]
    assert shown in bad[0][2].decode()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_units_of_time_do_not_wrap(unit: str) -> None:
    """Any number of any unit is its moment, or a bad row that shows it."""
    rng, per_second = random.Random(unit), {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    edges = [2**63 - 1, -(2**63), 2**62, (FAR // 1_000_000 - 1) * per_second, FAR // 1_000_000 * per_second]
    numbers = [each for each in edges if -(2**63) <= each < 2**63]
    numbers += [rng.randrange(-(2 ** rng.randrange(63)), 2 ** rng.randrange(63)) for _ in range(300)]
    for zone, timezone in (("UTC", None), (None, "UTC"), (None, "Europe/Berlin")):
        table = pa.table({"at": pa.array(numbers, pa.timestamp(unit, zone)), "day": [date(2026, 1, 1)] * len(numbers)})
        frame, bad = SchemaMatcher(schema_of(Days), table.schema, "f", timezone).frame(table)
        within = {n: each for n, each in enumerate(numbers) if -62135596800 <= each // per_second < FAR // 1_000_000}
        if timezone != "Europe/Berlin":
            assert [row for row, _, _ in bad] == [row for row in range(len(numbers)) if row not in within]
            assert frame["at"].to_physical().to_list() == [n * 1_000_000 // per_second for n in within.values()]
        assert all(str(numbers[row]) in reason for row, reason, _ in bad)


@dataclass
class Parts:
    moments: list[datetime]
    by_name: dict[str, datetime]
    took: timedelta | None


def test_seconds_within_others_do_not_wrap() -> None:
    """Polars has none, and multiplies those that it takes from Arrow without a look."""
    far = 2**62
    columns = {
        "moments": pa.array([[1], [1, far], [], [2]], pa.list_(pa.timestamp("s", "UTC"))),
        "by_name": pa.array([[("k", 1)], [], [("k", far)], []], pa.map_(pa.string(), pa.timestamp("s", "UTC"))),
        "took": pa.array([1, 1, 1, far], pa.duration("s")),
    }
    table = pa.table(columns)
    frame, bad = SchemaMatcher(schema_of(Parts), table.schema, "f").frame(table)
    assert frame["moments"].to_list() == [[datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]]
    assert frame["took"].to_list() == [timedelta(seconds=1)]
    assert [(row, reason) for row, reason, _ in bad] == [
        (1, "moments: a value in it is more than 64 bits of milliseconds hold"),
        (2, "by_name: a value in it is more than 64 bits of milliseconds hold"),
        (3, f"took: {far} seconds are more than 64 bits of milliseconds hold"),
    ]


@pytest.mark.parametrize(("unit", "fits"), [("ms", False), ("us", True), ("ns", True)])
def test_durations_do_not_wrap(unit: str, fits: bool) -> None:
    """What microseconds of 64 bits do not hold is a bad row."""
    table = pa.table({
        "moments": pa.array([[]], pa.list_(pa.timestamp("s", "UTC"))),
        "by_name": pa.array([[]], pa.map_(pa.string(), pa.timestamp("s", "UTC"))),
        "took": pa.array([2**62], pa.duration(unit)),
    })  # fmt: skip
    frame, bad = SchemaMatcher(schema_of(Parts), table.schema, "f").frame(table)
    assert (frame.height, len(bad)) == (int(fits), int(not fits))

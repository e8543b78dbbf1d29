"""Arrow batches as rows of a schema: what does not fit makes its row bad, however deep it stands."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, datetime
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

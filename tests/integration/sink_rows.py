"""Rows that tests write to other systems and read back from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final

from penstock import DecimalType, Pipeline
from penstock.connectors import iterables

START: Final = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


@dataclass
class Everything:
    """A column of every type."""

    id: int
    text: str
    small: int
    amount: Annotated[Decimal, DecimalType(12, 2)]
    ratio: float
    truth: bool
    data: bytes
    at: datetime
    day: date
    moment: time
    span: timedelta
    tags: list[str]
    weights: dict[str, int]
    absent: int | None


ALL: Final = Everything(
    1, 'say "é"\n\\', -5, Decimal("10.10"), 0.1, True, bytes(range(256)), START, date(2026, 2, 3), time(4, 5, 6, 7),
    timedelta(days=-400, seconds=1.5), ["a", "b,"], {"k": 1}, None,
)  # fmt: skip
EMPTY: Final = replace(ALL, id=2, text="", data=b"", tags=[], weights={}, span=timedelta(microseconds=-1), absent=7)


@dataclass
class Id:
    id: int


def read_back(lookup: Any, number: int) -> list[Everything]:
    """The rows of the ids from 1 on, as a lookup finds them."""
    found: list[Everything] = []

    def keep(row: Everything) -> Everything:
        found.append(row)
        return row

    ids = Pipeline("p").read(iterables.Source([Id(n) for n in range(1, number + 1)], schema=Id))
    assert ids.join(lookup, on="id").as_(Everything).map(keep).collect().height == len(found)
    return found


@dataclass
class Sale:
    id: int
    shop: str
    amount: int


def sales(number: int = 500) -> list[Sale]:
    """Of 13 shops."""
    return [Sale(n, f"s{n * 7 % 13}", n % 11) for n in range(number)]


def sales_by_shop() -> dict[str, int]:
    """What the shops of `sales` have taken."""
    return {sale.shop: sum(other.amount for other in sales() if other.shop == sale.shop) for sale in sales()}


def write(sink: Any, rows: Any, schema: Any) -> None:
    """A run of its own."""
    p = Pipeline("p")
    p.read(iterables.Source(rows, schema=schema)).write(sink)
    assert p.run().state == "FINISHED"


def joined(lookup: Any, *keys: Any, on: Any = "id", how: Any = "inner") -> list[tuple[Any, ...]]:
    """The rows of a join of these with a lookup."""
    read = Pipeline("p").read(iterables.Source(keys, schema=type(keys[0])))
    return read.join(lookup, on=on, how=how).collect().rows()

"""What the job of `examples/orders.py` must come to for the first orders of `examples/orders_feed.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

PARTITIONS: Final = 4
_WINDOW_US: Final = 10_000_000
_STEP_US: Final = 500
_OUT_OF_ORDER_US: Final = 1_000_000
_START_US: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)

Window = tuple[int, int, int, int]
"""Customer, beginning in microseconds since the epoch, orders, cents."""


def expected(orders: int, *, closed: bool = True) -> list[Window]:
    """Every window that the watermark behind the last order has closed, or all, as where the input ends there."""
    watermark = _START_US + (orders - 1) * _STEP_US - _OUT_OF_ORDER_US
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for number in range(orders):
        at = _START_US + number * _STEP_US
        begin = at - at % _WINDOW_US
        if not closed or begin + _WINDOW_US <= watermark:
            key = (number * 7919 % 1_000, begin)
            count, cents = found.get(key, (0, 0))
            found[key] = (count + 1, cents + number * 104_729 % 20_000)
    return sorted((customer, begin, *sums) for (customer, begin), sums in found.items())


def windows(rows: Iterable[Mapping[str, Any]]) -> list[Window]:
    """The same of the rows in the topic."""
    return sorted(
        (row["customer"], _micros(row["window_start"]), row["orders"], round(row["euros"] * 100)) for row in rows
    )


def _micros(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)

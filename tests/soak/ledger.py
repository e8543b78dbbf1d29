"""What the job of `examples/orders.py` must come to for all orders of `examples/orders_feed.py`, and what it came to.

Arrays with a cell for every window of every customer, so that an hour of orders is a few megabytes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

CUSTOMERS: Final = 1_000
ORDERS_PER_WINDOW: Final = 20_000
"""Ten seconds of event time at 500 us an order."""
_START_US: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
_WINDOW_US: Final = 10_000_000
_CHUNK: Final = 1_000_000
_SHOWN: Final = 10


class Spent(msgspec.Struct):
    """A row of the topic."""

    customer: int
    window_start: datetime
    orders: int
    euros: float


class Ledger:
    """Holds what was read against what must be there."""

    def __init__(self, orders: int) -> None:
        """`orders`: how many the feed writes."""
        self._cells = -(-orders // ORDERS_PER_WINDOW) * CUSTOMERS
        self._orders, self._cents = expected(orders)
        self._seen = np.zeros(self._cells, np.int64)
        self._missing = int(np.count_nonzero(self._orders))
        self.rows = 0
        self.problems: list[str] = []

    def note(self, record: bytes, where: str) -> None:
        """A committed record of the topic."""
        row = msgspec.json.decode(record, type=Spent)
        window, rest = divmod(round(row.window_start.timestamp() * 1_000_000) - _START_US, _WINDOW_US)
        cell = window * CUSTOMERS + row.customer
        self.rows += 1
        if rest or not 0 <= row.customer < CUSTOMERS or not 0 <= cell < self._cells:
            self.problems.append(f"{where}: {record!r}: there is no such window")
            return
        due = (int(self._orders[cell]), int(self._cents[cell]))
        if (row.orders, round(row.euros * 100)) != due:
            self.problems.append(f"{where}: {record!r}: should be {due[0]} orders, {due[1]} cents")
        if self._seen[cell]:
            self.problems.append(f"{where}: {record!r}: doubled")
        else:
            self._missing -= 1
        self._seen[cell] += 1

    @property
    def complete(self) -> bool:
        """Whether every window was seen."""
        return self._missing == 0

    def verdict(self) -> list[str]:
        """What is wrong; nothing if all is right."""
        lost = np.flatnonzero((self._orders > 0) & (self._seen == 0))
        lines = [f"lost: window {cell // CUSTOMERS} of customer {cell % CUSTOMERS}" for cell in lost[:_SHOWN]]
        return [*self.problems[:_SHOWN], *lines, *([f"{len(lost)} windows are lost"] if len(lost) else [])]


def expected(orders: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Orders and cents of every window of every customer."""
    cells = -(-orders // ORDERS_PER_WINDOW) * CUSTOMERS
    count, cents = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    for begin in range(0, orders, _CHUNK):
        numbers = np.arange(begin, min(begin + _CHUNK, orders), dtype=np.int64)
        cell = numbers // ORDERS_PER_WINDOW * CUSTOMERS + numbers * 7919 % CUSTOMERS
        count += np.bincount(cell, minlength=cells)
        cents += np.bincount(cell, weights=numbers * 104_729 % 20_000, minlength=cells).astype(np.int64)
    return count, cents

"""The judge of `make soak`: windows against orders, and what counts as growth."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from tests.acceptance.orders import expected as by_hand
from tests.soak.flatness import FEWEST, grown_lag, grown_memory
from tests.soak.ledger import Ledger

ORDERS = 45_000
START = datetime(2026, 1, 1, tzinfo=UTC)


def records() -> list[bytes]:
    """The rows of all windows, as a loop over the orders has them, those of the last one included."""
    everything = by_hand(ORDERS + 40_000)
    due = {(customer, begin): (0, 0) for customer, begin, _, _ in everything}
    for number in range(ORDERS):
        begin = int(START.timestamp()) * 1_000_000 + number // 20_000 * 10_000_000
        orders, cents = due[number * 7919 % 1_000, begin]
        due[number * 7919 % 1_000, begin] = orders + 1, cents + number * 104_729 % 20_000
    return [
        json.dumps({
            "customer": customer, "orders": orders, "euros": cents / 100,
            "window_start": (START + timedelta(microseconds=begin) - timedelta(seconds=START.timestamp())).isoformat(),
        }).encode()
        for (customer, begin), (orders, cents) in due.items() if orders
    ]  # fmt: skip


def read(rows: list[bytes]) -> Ledger:
    ledger = Ledger(ORDERS)
    for number, row in enumerate(rows):
        ledger.note(row, f"spent[0]@{number}")
    return ledger


def test_all_windows_once_are_right() -> None:
    """Three windows, the last one a quarter full, of a thousand customers."""
    ledger = read(records())
    assert ledger.complete
    assert (ledger.rows, ledger.verdict()) == (3_000, [])


def test_what_is_lost_doubled_or_wrong_is_named() -> None:
    """Each by itself."""
    rows = records()
    assert read(rows[1:]).verdict()[-1] == "1 windows are lost"
    assert not read(rows[1:]).complete
    assert "doubled" in read([*rows, rows[0]]).verdict()[0]
    wrong = json.loads(rows[0]) | {"orders": 1}
    assert "should be 20 orders" in read([json.dumps(wrong).encode(), *rows[1:]]).verdict()[0]
    beside = json.loads(rows[0]) | {"window_start": "2026-01-01T00:00:01+00:00"}
    assert "there is no such window" in read([json.dumps(beside).encode(), *rows]).verdict()[0]


def test_growth_is_named_and_noise_is_not() -> None:
    """Medians of fifths: a spike or a step is no growth, a slope is, and few samples say nothing."""
    flat = [200.0 + number % 7 for number in range(100)]
    assert grown_memory("worker", flat) == ""
    assert grown_memory("worker", [*flat[:60], 900.0, *flat[61:]]) == ""
    assert grown_memory("worker", [*flat[:50], *(value + 60 for value in flat[50:])]) == ""
    assert grown_memory("worker", [200.0 + number for number in range(100)]) == (
        "worker grows: 230 MiB early, 290 MiB at the end"
    )
    assert grown_memory("worker", [200.0 + 9 * number for number in range(FEWEST - 1)]) == ""
    assert grown_lag([500.0] * 100, 1_000) == ""
    assert "the lag grows" in grown_lag([1_000.0 * number for number in range(100)], 1_000)

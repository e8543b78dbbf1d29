"""The Nexmark queries of the examples against brute force over the same events, with one subtask and with two."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_examples import EXAMPLES, rows_of, same

from penstock.connectors import nexmark

Row = dict[str, Any]
Run = Callable[..., list[Row]]

SEED = 42
"""That of `generate.Source`, unless told otherwise."""
SIZES = {"people": 200, "auctions": 600, "bids": 9_200}
"""All rows of 10,000 events."""


@pytest.fixture(params=[1, 2], ids=["alone", "two subtasks"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a query and gives what it has written."""
    return lambda name, **given: rows_of(EXAMPLES / f"nexmark/{name}.py", tmp_path, request.param, **given)


def events(kind: str, interval: str = "100us") -> list[Row]:
    """All of this kind: `people`, `auctions` or `bids`."""
    frame = getattr(nexmark, kind)(interval=interval).frame(np.arange(SIZES[kind]), SEED)
    return frame.to_dicts()


def only(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


# -- rows by themselves -------------------------------------------------------------------------------------------------


def test_q0(run: Run) -> None:
    kept = ("auction", "bidder", "price", "at", "extra")
    same(run("q0", bids=SIZES["bids"]), [only(bid, *kept) for bid in events("bids")])


def test_q1(run: Run) -> None:
    kept = ("auction", "bidder", "at", "extra")
    expected = [{**only(bid, *kept), "price": bid["price"] * 0.908} for bid in events("bids")]
    same(run("q1", bids=SIZES["bids"]), expected)


def test_q2(run: Run) -> None:
    expected = [only(bid, "auction", "price") for bid in events("bids") if bid["auction"] % 123 == 0]
    same(run("q2", bids=SIZES["bids"]), expected)


# -- persons and auctions -----------------------------------------------------------------------------------------------


def test_q3(run: Run) -> None:
    people = {person["id"]: person for person in events("people") if person["state"] in ("OR", "ID", "CA")}
    expected = [
        {**only(people[auction["seller"]], "name", "city", "state"), "auction": auction["id"]}
        for auction in events("auctions")
        if auction["category"] == 10 and auction["seller"] in people
    ]
    same(run("q3", people=SIZES["people"], auctions=SIZES["auctions"]), expected)


def test_q8(run: Run) -> None:
    selling = {(auction["seller"], window_of(auction["at"])) for auction in events("auctions", "10ms")}
    expected = [
        {**only(person, "id", "name"), "window_start": window_of(person["at"])}
        for person in events("people", "10ms")
        if (person["id"], window_of(person["at"])) in selling
    ]
    same(run("q8", people=SIZES["people"], auctions=SIZES["auctions"]), expected)


def window_of(at: datetime, size_s: int = 10) -> datetime:
    """The beginning of the tumbling window around a moment."""
    return at - timedelta(
        microseconds=(at - datetime(1970, 1, 1, tzinfo=at.tzinfo)) // timedelta(microseconds=1) % (size_s * 1_000_000)
    )


# -- winning bids -------------------------------------------------------------------------------------------------------

WINNING = {"auctions": SIZES["auctions"], "bids": SIZES["bids"]}


def winners(interval: str = "100us") -> list[Row]:
    """Each auction with a bid in its time, with the price of the winner, by the end of the auctions."""
    offers: dict[int, list[Row]] = defaultdict(list)
    for bid in events("bids", interval):
        offers[bid["auction"]].append(bid)
    found: list[Row] = []
    for auction in events("auctions", interval):
        prices = [bid["price"] for bid in offers[auction["id"]] if auction["at"] <= bid["at"] <= auction["expires"]]
        if prices:
            found.append({**auction, "price": max(prices)})
    return sorted(found, key=lambda auction: auction["expires"])


def test_q4(run: Run) -> None:
    prices: dict[int, list[int]] = defaultdict(list)
    for won in winners():
        prices[won["category"]].append(won["price"])
    found = {row["category"]: row["mean_price"] for row in run("q4", **WINNING)}
    assert found == pytest.approx({category: sum(those) / len(those) for category, those in prices.items()})
    assert len(found) == 5


def test_q6(run: Run) -> None:
    """With an interval at which no two auctions of a seller end at the same time, so that there is one order."""
    interval = "50ms"
    expected: dict[int, float] = {}
    won_by: dict[int, list[Row]] = defaultdict(list)
    for won in winners(interval):
        before = won_by[won["seller"]]
        assert not before or before[-1]["expires"] < won["expires"]
        before.append(won)
        ten = [other["price"] for other in before[-10:]]
        expected[won["id"]] = sum(ten) / len(ten)
    found = {row["auction"]: row["mean_price"] for row in run("q6", interval=interval, **WINNING)}
    assert found == pytest.approx(expected)
    assert max(map(len, won_by.values())) > 20


# -- windows ------------------------------------------------------------------------------------------------------------


def test_q5(run: Run) -> None:
    windows: dict[datetime, Counter[int]] = defaultdict(Counter)
    for bid in events("bids", "10ms"):
        for start in _sliding(bid["at"]):
            windows[start][bid["auction"]] += 1
    expected = [
        {"auction": auction, "bids": bids, "window_start": start, "window_end": start + timedelta(seconds=10)}
        for start, counted in windows.items()
        for auction, bids in counted.items()
        if bids == max(counted.values())
    ]
    same(run("q5", bids=SIZES["bids"]), expected)


def _sliding(at: datetime) -> Iterator[datetime]:
    newest = window_of(at, 2)
    for back in range(5):
        yield newest - timedelta(seconds=2 * back)


def test_q7(run: Run) -> None:
    windows: dict[datetime, list[Row]] = defaultdict(list)
    for bid in events("bids", "10ms"):
        windows[window_of(bid["at"])].append(bid)
    expected = [
        {**only(bid, "auction", "bidder", "price"), "bid_at": bid["at"], "window_end": start + timedelta(seconds=10)}
        for start, bids in windows.items()
        for bid in bids
        if bid["price"] == max(other["price"] for other in bids)
    ]
    same(run("q7", bids=SIZES["bids"]), expected)

"""The events of the Nexmark benchmark for `generate`: persons, auctions and bids of an online auction house.

Follows the generator of Apache Beam and of Nexmark for Flink (PersonGenerator, AuctionGenerator, BidGenerator with
their defaults): of every 50 events 1 is a person, 3 are auctions, 46 bids; half of the bids go to a hot auction, three
quarters come from a hot bidder and of a hot seller; prices are log-uniform. Names are in Python's style (`item_name`
for `itemName`), and `at` stands for `dateTime`, which is the event time. Differences: texts have fixed lengths, and
numbers come from a hash of the event's number, so that any part can be made on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.generate import Content, random_bits, random_floats, random_integers
from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us, format_duration, to_micros
from penstock.errors import PipelineError, nearest
from penstock.types import schema_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    Integers = npt.NDArray[np.int64]

_PERSONS: Final = 1
_AUCTIONS: Final = 3
_BIDS: Final = 46
_EVENTS: Final = _PERSONS + _AUCTIONS + _BIDS
_FIRST_ID: Final = 1_000
_FIRST_CATEGORY: Final = 10
_CATEGORIES: Final = 5
_HOT_EVERY: Final = 100
_IN_FLIGHT_AUCTIONS: Final = 100
_AUCTION_LEAD: Final = 10
_ACTIVE_PEOPLE: Final = 1_000
_PERSON_LEAD: Final = 10
_CHANNELS: Final = 10_000
_HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES: Final = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
)  # fmt: skip
_FIRST_NAMES: Final = (
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
)  # fmt: skip
_LAST_NAMES: Final = (
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris",
)  # fmt: skip
START: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Bid:
    """A bid of a person for an auction. Columns: `auction` (its id), `bidder` (a person's id), `price` in cents,
    `channel` and `url` by which it came, `at` (event time), `extra` (filling)."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    at: datetime
    extra: str


@dataclass
class Auction:
    """Something for sale. Columns: `id`, `item_name`, `description`, `initial_bid` and `reserve` in cents, `at` (event
    time), `expires`, `seller` (a person's id), `category`, `extra` (filling)."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    at: datetime
    expires: datetime
    seller: int
    category: int
    extra: str


@dataclass
class Person:
    """Somebody who sells and bids. Columns: `id`, `name`, `email_address`, `credit_card`, `city`, `state`, `at` (event
    time), `extra` (filling)."""

    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    at: datetime
    extra: str


@checked
def bids(
    *,
    columns: Sequence[str] | None = None,
    keys: int | None = None,
    out_of_orderness: Duration = "0s",
    interval: Duration = "100us",
    start: datetime = START,
) -> Content[Bid]:
    """Bids: the columns of `Bid`.

    Args:
        columns: only these; fewer are faster.
        keys: draw auctions uniformly from 0 to `keys` - 1 instead of by Nexmark's rules.
        out_of_orderness: event times lie up to that much before the time of their event, uniformly.
        interval: between two events of any kind (Nexmark's default is 10,000 events per second).
        start: of the first event.

    Example:
        >>> p.read(generate.Source(nexmark.bids(columns=["auction", "price", "at"]), rows=100)).schema.names
        ('auction', 'price', 'at')
    """
    return _BidContent(columns, _Times(interval, start, out_of_orderness), keys)


@checked
def auctions(
    *,
    columns: Sequence[str] | None = None,
    out_of_orderness: Duration = "0s",
    interval: Duration = "100us",
    start: datetime = START,
) -> Content[Auction]:
    """Auctions: the columns of `Auction`; parameters as for `bids`.

    Example:
        >>> p.read(generate.Source(nexmark.auctions(columns=["id", "seller", "at"]), rows=100)).collect().height
        100
    """
    return _AuctionContent(Auction, columns, _Times(interval, start, out_of_orderness), "auctions")


@checked
def people(
    *,
    columns: Sequence[str] | None = None,
    out_of_orderness: Duration = "0s",
    interval: Duration = "100us",
    start: datetime = START,
) -> Content[Person]:
    """Persons: the columns of `Person`; parameters as for `bids`.

    Example:
        >>> p.read(generate.Source(nexmark.people(columns=["id", "city", "at"]), rows=100)).collect().height
        100
    """
    return _PersonContent(Person, columns, _Times(interval, start, out_of_orderness), "people")


_CALLED_HERE: Final = {"persons": "people", "person": "people", "bid": "bids", "auction": "auctions"}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)
        here = _CALLED_HERE.get(name)
        known = f"did you mean {here!r}?" if here else nearest(name, ["bids", "auctions", "people"])
        raise AttributeError(f"nexmark: there is no {name!r}; {known}")


def _keys(keys: int | None) -> str:
    if keys is not None and not 0 < keys < 2**31:
        raise PipelineError(f"nexmark.bids: keys= is a number from 1 to {2**31 - 1}, got {keys}")
    return "" if keys is None else f" of {keys} auctions"


# -- contents -----------------------------------------------------------------------------------------------------------


class _Times:
    """Event numbers to event times."""

    def __init__(self, interval: Duration, start: datetime, out_of_orderness: Duration) -> None:
        self.interval_us = duration_us(interval, "nexmark: interval", positive=True)
        self.start_us = to_micros(start)
        self.bound_us = duration_us(out_of_orderness, "nexmark: out_of_orderness")

    def at(self, events: Integers, seed: int) -> Integers:
        """Event time in microseconds, late by a random part of the bound."""
        micros = events * self.interval_us
        micros += self.start_us
        if self.bound_us:
            micros -= (random_floats(events, seed, 99) * (self.bound_us + 1)).astype(micros.dtype)
        return micros


class _NexmarkContent(Content[Any]):
    def __init__(self, row_type: type[Any], columns: Sequence[str] | None, times: _Times, name: str) -> None:
        full = schema_of(row_type)
        schema = full if columns is None else full.select(columns, f"nexmark.{name}: columns")
        self.schema = schema
        self.row_type = row_type if columns is None else None
        self.event_time = "at" if "at" in schema else None
        self.max_out_of_orderness = format_duration(times.bound_us)
        self.times: Final = times
        self.name: Final = name

    def describe(self) -> str:
        return f"nexmark {self.name}"

    def frame(self, numbers: Integers, seed: int) -> pl.DataFrame:
        import polars as pl

        makers = self._makers(numbers, seed)
        return pl.DataFrame([_series(name, makers[name]()) for name in self.schema.names])

    def _makers(self, numbers: Integers, seed: int) -> dict[str, Callable[[], Any]]:
        """How to make each column; only those that are wanted are made."""
        raise NotImplementedError


class _BidContent(_NexmarkContent):
    def __init__(self, columns: Sequence[str] | None, times: _Times, keys: int | None) -> None:
        super().__init__(Bid, columns, times, f"bids{_keys(keys)}")
        self.keys: Final = keys

    def _makers(self, numbers: Integers, seed: int) -> dict[str, Callable[[], Any]]:
        events = numbers // _BIDS * _EVENTS + (numbers % _BIDS + _PERSONS + _AUCTIONS)
        return {
            "auction": lambda: self._auction(events, seed),
            "bidder": lambda: _person(events, seed, 4, hot_offset=1),
            "price": lambda: _price(events, seed, 7),
            "channel": lambda: _channel(events, seed),
            "url": lambda: _url(events, seed),
            "at": lambda: _timestamps(self.times.at(events, seed)),
            "extra": lambda: _text(events, seed, 14, 68),
        }

    def _auction(self, events: Integers, seed: int) -> Integers:
        import numpy as np

        if self.keys is not None:
            return random_integers(events, seed, 1, self.keys)
        last = _last_auction(events)
        least = np.maximum(last - _IN_FLIGHT_AUCTIONS, 0)
        cold = least + random_integers(events, seed, 1, last - least + 1 + _AUCTION_LEAD)
        hot = last // _HOT_EVERY * _HOT_EVERY
        return np.where(random_integers(events, seed, 2, 2) > 0, hot, cold) + _FIRST_ID


class _AuctionContent(_NexmarkContent):
    def _makers(self, numbers: Integers, seed: int) -> dict[str, Callable[[], Any]]:
        events = numbers // _AUCTIONS * _EVENTS + numbers % _AUCTIONS + _PERSONS
        return {
            "id": lambda: _last_auction(events) + _FIRST_ID,
            "item_name": lambda: _text(events, seed, 20, 20),
            "description": lambda: _text(events, seed, 23, 100),
            "initial_bid": lambda: _price(events, seed, 36),
            "reserve": lambda: _price(events, seed, 36) + _price(events, seed, 37),
            "at": lambda: _timestamps(self.times.at(events, seed)),
            "expires": lambda: _timestamps(self._expires(events, seed)),
            "seller": lambda: _person(events, seed, 40, hot_offset=0),
            "category": lambda: random_integers(events, seed, 43, _CATEGORIES) + _FIRST_CATEGORY,
            "extra": lambda: _text(events, seed, 44, 80),
        }

    def _expires(self, events: Integers, seed: int) -> Integers:
        """On average as late as it takes for the auctions in flight to come up, at least a millisecond."""
        horizon_us = _IN_FLIGHT_AUCTIONS * _EVENTS // _AUCTIONS * self.times.interval_us
        milliseconds = random_integers(events, seed, 39, max(2 * horizon_us // 1_000, 1)) + 1
        return self.times.at(events, seed) + milliseconds * 1_000


class _PersonContent(_NexmarkContent):
    def _makers(self, numbers: Integers, seed: int) -> dict[str, Callable[[], Any]]:
        import polars as pl

        events = numbers * _EVENTS
        return {
            "id": lambda: _last_person(events) + _FIRST_ID,
            "name": lambda: pl.select(
                pl.concat_str(
                    _choice(events, seed, 50, _FIRST_NAMES), _choice(events, seed, 51, _LAST_NAMES), separator=" "
                )
            ).to_series(),
            "email_address": lambda: _joined(_text(events, seed, 52, 7), "@", _text(events, seed, 53, 5), ".com"),
            "credit_card": lambda: _joined(
                *(part for word in range(4) for part in (" " if word else "", _digits(events, seed, 54 + word)))
            ),
            "city": lambda: _choice(events, seed, 60, _CITIES),
            "state": lambda: _choice(events, seed, 61, _STATES),
            "at": lambda: _timestamps(self.times.at(events, seed)),
            "extra": lambda: _text(events, seed, 62, 110),
        }


# -- values -------------------------------------------------------------------------------------------------------------


def _last_person(events: Integers) -> Integers:
    """Number of the newest person at an event (every group of 50 begins with its person)."""
    return events // _EVENTS


def _last_auction(events: Integers) -> Integers:
    """Number of the newest auction at an event; at a person it is the last of the group before."""
    import numpy as np

    return events // _EVENTS * _AUCTIONS + np.clip(events % _EVENTS - _PERSONS, -1, _AUCTIONS - 1)


def _person(events: Integers, seed: int, stream: int, *, hot_offset: int) -> Integers:
    """A bidder or seller: three of four times a hot one, else one of the active or of the next persons."""
    import numpy as np

    last = _last_person(events)
    active = np.minimum(last + 1, _ACTIVE_PEOPLE)
    cold = last + 1 - active + random_integers(events, seed, stream, active + _PERSON_LEAD)
    hot = last // _HOT_EVERY * _HOT_EVERY + hot_offset
    return np.where(random_integers(events, seed, stream + 1, 4) > 0, hot, cold) + _FIRST_ID


def _price(events: Integers, seed: int, stream: int) -> Integers:
    """Cents, log-uniform from 1 to a million dollars."""
    import numpy as np

    return np.rint(np.exp(random_floats(events, seed, stream) * (6 * np.log(10))) * 100).astype(np.int64)


def _channel(events: Integers, seed: int) -> pl.Series:
    import polars as pl

    hot = _is_hot_channel(events, seed)
    number = pl.Series(random_integers(events, seed, 9, _CHANNELS))
    cold = pl.select("channel-" + number.cast(pl.String)).to_series()
    return _either(hot, _choice(events, seed, 10, _HOT_CHANNELS), cold)


def _url(events: Integers, seed: int) -> pl.Series:
    import numpy as np
    import polars as pl

    # The page of a hot channel is always the same one, that of any other bid is its own.
    pages = np.where(_is_hot_channel(events, seed), random_integers(events, seed, 10, len(_HOT_CHANNELS)), events + 4)
    base = _joined(
        "https://www.nexmark.com/", _text(pages, seed, 11, 5), "/", _text(pages, seed, 12, 5), "/",
        _text(pages, seed, 13, 5), "/item.htm?query=1",
    )  # fmt: skip
    number = pl.Series(random_integers(events, seed, 9, _CHANNELS)).cast(pl.String)
    tagged = pl.select(pl.concat_str(base, pl.lit("&channel_id="), number)).to_series()
    return _either(_is_hot_channel(events, seed) | (random_integers(events, seed, 16, 10) == 0), base, tagged)


def _is_hot_channel(events: Integers, seed: int) -> npt.NDArray[np.bool_]:
    return random_integers(events, seed, 8, 2) > 0


def _either(first: npt.NDArray[np.bool_], one: pl.Series, other: pl.Series) -> pl.Series:
    import polars as pl

    return pl.select(pl.when(pl.Series(first)).then(one).otherwise(other)).to_series()


def _choice(events: Integers, seed: int, stream: int, options: Sequence[str]) -> pl.Series:
    import polars as pl

    return pl.Series(options).gather(pl.Series(random_integers(events, seed, stream, len(options))))


def _digits(events: Integers, seed: int, stream: int) -> pl.Series:
    import polars as pl

    return pl.Series(random_integers(events, seed, stream, 10_000)).cast(pl.String).str.zfill(4)


def _text(events: Integers, seed: int, stream: int, length: int) -> pl.Series:
    """A text of `length` lower-case letters per event; takes (length + 7) // 8 streams of its own family."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    words = (length + 7) // 8
    bits = np.empty((len(events), words), np.uint64)
    for word in range(words):
        bits[:, word] = random_bits(events, seed, 1_000 * (stream + 1) + word)
    letters = bits.view(np.uint8).reshape(len(events), 8 * words)[:, :length] % 26 + ord("a")
    offsets = np.arange(len(events) + 1, dtype=np.int64) * length
    buffers: Any = [None, pa.py_buffer(offsets.data), pa.py_buffer(np.ascontiguousarray(letters).data)]
    made = pl.from_arrow(pa.Array.from_buffers(pa.large_string(), len(events), buffers))
    assert isinstance(made, pl.Series)
    return made


def _joined(*parts: pl.Series | str) -> pl.Series:
    import polars as pl

    return pl.select(pl.concat_str(pl.lit(part) if isinstance(part, str) else part for part in parts)).to_series()


def _timestamps(micros: Integers) -> pl.Series:
    import polars as pl

    return pl.Series(micros).cast(pl.Datetime("us", "UTC"))


def _series(name: str, values: Any) -> pl.Series:
    import polars as pl

    return values.rename(name) if isinstance(values, pl.Series) else pl.Series(name, values, dtype=pl.Int64)

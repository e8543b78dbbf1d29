"""Generated rows: determinism, splits, rates, functions, and what the Nexmark contents look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from penstock.connectors import generate, nexmark
from penstock.connectors.generate import random_bits, random_floats, random_integers
from penstock.errors import PipelineError, UserCodeError

CONTENTS = {
    "bids": nexmark.bids(),
    "keys": nexmark.bids(keys=100, out_of_orderness="2s"),
    "auctions": nexmark.auctions(),
    "people": nexmark.people(out_of_orderness="1s"),
}


@pytest.mark.parametrize("name", CONTENTS)
async def test_rows_do_not_depend_on_splits_and_pieces(name: str, read_split: Callable[..., Any]) -> None:
    """The same rows whatever the number of splits, the sizes of batches and restarts; another seed gives others."""
    content = CONTENTS[name]
    whole = (await read_split(generate.Source(content, rows=500))).rows
    assert len(whole) == 500
    source = generate.Source(content, rows=500, splits=3)
    parts = {split.id: (await read_split(source, split.id, pieces=[7, 50, 1] * 99)).rows for split in source.discover()}
    assert [parts[str(number % 3)][number // 3] for number in range(500)] == whole
    reopened = await read_split(generate.Source(content, rows=500), pieces=[90] * 9, reopen=True)
    assert reopened.rows == whole
    assert (await read_split(generate.Source(content, rows=500, seed=7))).rows != whole


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 200), st.integers(0, 2**31), st.integers(1, 2**31 - 1))
def test_random_numbers_are_functions_of_the_row_number(first: int, count: int, seed: int, below: int) -> None:
    """A row's numbers are the same in any batch, and within their bounds."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    drawn = random_integers(numbers, seed, 1, below)
    assert drawn.min() >= 0
    assert drawn.max() < below
    single = np.concatenate([random_integers(numbers[index : index + 1], seed, 1, below) for index in range(count)])
    assert (drawn == single).all()
    floats = random_floats(numbers, seed, 2)
    assert ((floats >= 0) & (floats < 1)).all()


def test_random_numbers_look_random() -> None:
    """Bits are balanced, streams and seeds are unrelated, and the values are those of this release for ever."""
    numbers = np.arange(20_000, dtype=np.int64)
    bits = np.unpackbits(random_bits(numbers, 42).view(np.uint8)).reshape(-1, 64)
    assert (abs(bits.mean(axis=0) - 0.5) < 0.02).all()
    for other in (random_bits(numbers, 43), random_bits(numbers, 42, 1), random_bits(numbers + 1, 42)):
        shared = np.unpackbits((random_bits(numbers, 42) ^ other).view(np.uint8)).mean()
        assert abs(shared - 0.5) < 0.01
    counts = np.bincount(random_integers(numbers, 1, 1, 10))
    assert (abs(counts - 2_000) < 200).all()
    assert random_bits(numbers[:2], 42, 3).tolist() == GOLDEN


GOLDEN = [13695754685179426077, 9787889404986947848]


def frame(content: generate.Content[Any], count: int = 46_000, first: int = 460_000) -> pl.DataFrame:
    made = content.frame(np.arange(first, first + count, dtype=np.int64), 42)
    assert made.schema == pl.Schema(content.schema.polars())
    return made


def test_bids_follow_nexmark() -> None:
    """Half of the bids go to a hot auction, three quarters come from a hot bidder, half use a hot channel."""
    bids = frame(nexmark.bids())
    hot = bids.filter(pl.col("auction") % 100 == 0)
    assert 0.48 < hot.height / bids.height < 0.53
    assert 0.73 < bids.filter((pl.col("bidder") - 1) % 100 == 0).height / bids.height < 0.78
    assert (
        0.48
        < bids.filter(pl.col("channel").is_in(["Google", "Facebook", "Baidu", "Apple"])).height / bids.height
        < 0.52
    )
    assert bids["price"].min() >= 100  # type: ignore[operator]
    assert bids["price"].max() <= 100_000_000  # type: ignore[operator]
    assert 0.4 < bids.filter(pl.col("price") < 100_000).height / bids.height < 0.6, "log-uniform"
    assert bids["url"].str.contains(r"^https://www\.nexmark\.com/[a-z]{5}/[a-z]{5}/[a-z]{5}/item\.htm\?query=1").all()
    assert bids.filter(pl.col("channel") == "Apple")["url"].n_unique() == 1
    # bid 460,000 is in group 10,000 of 50 events, 100 us apart
    assert bids["at"][0] == nexmark.START + timedelta(microseconds=100 * (10_000 * 50 + 4))
    newest_auction = 1_000 + 10_000 * 3 + 2
    assert bids["auction"][:46].max() <= newest_auction + 10  # type: ignore[operator]
    assert bids["auction"][:46].min() >= newest_auction - 102  # type: ignore[operator]


def test_streams_fit_together() -> None:
    """Auctions and persons are numbered densely, and bids and sellers refer to them."""
    auctions, people = frame(nexmark.auctions(), 3_000, 0), frame(nexmark.people(), 1_000, 0)
    assert auctions["id"].to_list() == list(range(1_000, 4_000))
    assert people["id"].to_list() == list(range(1_000, 2_000))
    assert auctions["category"].unique().sort().to_list() == [10, 11, 12, 13, 14]
    assert (auctions["expires"] > auctions["at"]).all()
    assert (auctions["reserve"] > auctions["initial_bid"]).all()
    assert auctions["seller"].max() < 2_000 + 10  # type: ignore[operator]
    assert people["credit_card"].str.contains(r"^\d{4} \d{4} \d{4} \d{4}$").all()
    assert people["email_address"].str.contains(r"^[a-z]{7}@[a-z]{5}\.com$").all()
    bids = frame(nexmark.bids(columns=["auction", "bidder"]), 4_600, 0)
    assert bids["auction"].max() < 1_000 + 300 + 10  # type: ignore[operator]
    assert bids["bidder"].max() < 1_000 + 100 + 10  # type: ignore[operator]


def test_columns_and_keys() -> None:
    """Columns can be chosen without changing their values; keys are uniform; lateness is bounded."""
    content = nexmark.bids(
        columns=["at", "auction"], keys=50, out_of_orderness="2s", start=datetime(2020, 1, 1, tzinfo=UTC)
    )
    some = frame(content)
    assert some.columns == ["at", "auction"]
    assert_frame_equal(
        some,
        frame(nexmark.bids(keys=50, out_of_orderness="2s", start=datetime(2020, 1, 1, tzinfo=UTC))).select(
            "at", "auction"
        ),
    )
    counts = some["auction"].value_counts()["count"]
    assert len(counts) == 50
    assert counts.min() > 700  # type: ignore[operator]
    lateness = some["at"].cum_max() - some["at"]
    assert timedelta(seconds=1.9) < lateness.max() <= timedelta(seconds=2)  # type: ignore[operator]
    source = generate.Source(content, rows=1)
    assert source.event_time is not None
    assert source.event_time.watermarks.describe() == "out of order by at most 2s"
    assert generate.Source(nexmark.bids(columns=["price"])).event_time is None
    with pytest.raises(PipelineError, match=r"no column 'prize'; did you mean 'price'"):
        nexmark.bids(columns=["prize"])
    with pytest.raises(PipelineError, match="keys="):
        nexmark.bids(keys=0)


@dataclass
class Square:
    number: int
    square: int


@pytest.mark.parametrize("kind", ["polars", "arrow", "dict"])
async def test_functions(kind: str, read_split: Callable[..., Any]) -> None:
    """A function of row numbers may return a frame, a record batch or a dict of arrays."""

    def squares(numbers: Any) -> Any:
        columns = {"number": numbers, "square": numbers * numbers}
        match kind:
            case "polars":
                return pl.DataFrame(columns)
            case "arrow":
                return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})
            case _:
                return columns

    found = await read_split(generate.Source(squares, schema=Square, rows=10), pieces=[3] * 9)
    assert found.rows == [{"number": number, "square": number * number} for number in range(10)]


async def test_functions_that_do_not_fit(read_split: Callable[..., Any]) -> None:
    """Wrong numbers of rows, wrong types and errors are told; nulls are bad rows."""

    def source(function: Any) -> generate.Source[Square]:
        return generate.Source(function, schema=Square, rows=4)

    with pytest.raises(UserCodeError, match="returned 1 rows for 4"):
        await read_split(source(lambda numbers: {"number": [1], "square": [1]}))
    with pytest.raises(UserCodeError, match="raised ZeroDivisionError"):
        await read_split(source(lambda numbers: 1 / 0))
    with pytest.raises(UserCodeError, match=r"return a pyarrow\.RecordBatch"):
        await read_split(source(lambda numbers: list(numbers)))
    with pytest.raises(PipelineError, match="holds string"):
        await read_split(source(lambda numbers: {"number": numbers, "square": ["x"] * 4}))
    found = await read_split(source(lambda numbers: {"number": numbers, "square": [1, None, 1, 1]}))
    assert [row["number"] for row in found.rows] == [0, 2, 3]
    assert [bad.where for bad in found.bad] == ["row 1"]


async def test_rate_and_end(time: Any) -> None:
    """A rate is shared by the splits; without rows= there is no end; odd shares add up."""
    source = generate.Source(nexmark.bids(columns=["price"]), rate=1_000, splits=2)
    assert not source.bounded
    assert source.replayable
    reader = source.open(source.discover()[1], None, time.context())
    time.ms = 100
    fetched = await reader.read(1_000)
    assert fetched is not None
    assert fetched.frame.height == 50
    shares = generate.Source(nexmark.bids(), rows=10, splits=4)
    assert [shares.rows_of_split(split) for split in range(4)] == [3, 3, 2, 2]
    assert generate.Source(nexmark.bids(), rows=1, splits=3).rows_of_split(2) == 0


def test_declaration_errors() -> None:
    """Wrong parameters are told when the source is declared."""
    with pytest.raises(PipelineError, match="with schema="):
        generate.Source(lambda numbers: numbers)
    with pytest.raises(PipelineError, match="own schema"):
        generate.Source(nexmark.bids(), schema=Square)
    with pytest.raises(PipelineError, match="splits="):
        generate.Source(nexmark.bids(), splits=0)
    with pytest.raises(PipelineError, match="rate="):
        generate.Source(nexmark.bids(), rate=-1)

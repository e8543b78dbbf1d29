"""Float keys: every NaN is the same key, whichever other keys its batch has."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock import Pipeline, count, session, tumbling
from penstock.connectors import iterables
from penstock.state.columns import joined_by_keys

NAN = float("nan")
KEYS = [[NAN, NAN], [NAN, 0.5, None, NAN]]


def stream(p: Pipeline, name: str, keys: list[Any], kind: Any) -> Any:
    schema = pa.schema([("k", kind), pa.field(name, pa.int64(), nullable=False)])
    rows = [{"k": key, name: number} for number, key in enumerate(keys)]
    return p.read(iterables.Source(rows, schema=schema, event_time=name, time_unit="s"))


Shape = Callable[[Pipeline, list[Any], Any], Any]
SHAPES: dict[str, Shape] = {
    how: lambda p, keys, kind, how=how: stream(p, "a", keys, kind).join(stream(p, "b", keys, kind), on="k", how=how)
    for how in ("inner", "full", "semi")
} | {
    "windows": lambda p, keys, kind: stream(p, "a", keys, kind).key_by("k").window(tumbling("1m")).agg(n=count()),
    "sessions": lambda p, keys, kind: stream(p, "a", keys, kind).key_by("k").window(session("1m")).agg(n=count()),
}  # fmt: skip


def found(shape: Shape, keys: list[Any], kind: Any) -> list[str]:
    stream = shape(Pipeline("p"), keys, kind)
    frame = (stream.final() if hasattr(stream, "final") else stream).collect()
    return sorted(str(row) for row in frame.select(pl.exclude("k"), pl.col("k").cast(pl.String)).rows())


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_key_that_is_nan_is_a_key_as_any_other(name: str, keys: list[float | None]) -> None:
    """The same comes of it as of texts in place of the numbers."""
    texts = pl.Series(keys).cast(pl.String).to_list()
    assert found(SHAPES[name], keys, pa.float64()) == found(SHAPES[name], texts, pa.string())


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32])
def test_joins_by_keys_find_nan_in_sorted_columns(dtype: Any) -> None:
    """Whatever Polars knows of their order."""
    chance = random.Random(7)
    for _ in range(200):
        sides = [[chance.choice([None, NAN, 0.5, 1.0]) for _ in range(chance.randrange(1, 4))] for _ in range(2)]
        left, right = (pl.DataFrame({"k": side}, schema={"k": dtype}).unique().sort("k") for side in sides)
        right = right.with_row_index("n")
        expected = [repr(key) in map(repr, right["k"].to_list()) for key in left["k"].to_list()]
        assert joined_by_keys(left, right, ["k"], "left")["n"].is_not_null().to_list() == expected
        assert joined_by_keys(left, right, ["k"], "semi").height == sum(expected)
        assert joined_by_keys(left, right, ["k"], "anti").height == len(expected) - sum(expected)

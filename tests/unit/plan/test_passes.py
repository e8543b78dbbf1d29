"""Random pipelines give the same rows whether plans are narrowed to what they look at or not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyarrow import parquet

from penstock import Pipeline, col, count, lit
from penstock.connectors import collecting, files
from penstock.connectors.base import Source
from penstock.plan.passes import reading
from penstock.types import INT64, STRING, Field, ListType, Schema

SCHEMA = Schema((Field("a", INT64), Field("b", INT64, True), Field("c", STRING), Field("d", ListType(INT64))))
GROUP_ROWS = 20


def write(path: Path, chance: random.Random) -> Path:
    rows = [
        {"a": number, "b": chance.choice([None, number % 7]), "c": f"c{number % 3}", "d": [1, 2][: number % 3]}
        for number in range(chance.choice([0, 100]))
    ]
    frame = pl.DataFrame(rows, schema=SCHEMA.polars())
    parquet.write_table(frame.to_arrow(), path, row_group_size=GROUP_ROWS)
    return path


def numbers(stream: Any) -> list[str]:
    return [field.name for field in stream.schema if field.type == INT64]


def step(stream: Any, chance: random.Random) -> Any:
    """A verb that looks at some columns."""
    names, ints = list(stream.schema.names), numbers(stream)
    one = chance.choice(ints)
    match chance.randrange(8):
        case 0:
            return stream.select(
                *chance.sample(names, chance.randrange(1, len(names) + 1)),
                **{f"of{len(names)}_{chance.randrange(10**6)}": col(one) * 2},
            )
        case 1:
            return stream.rename({one: f"{one}_"})
        case 2 if len(ints) > 1:
            return stream.drop(one)
        case 3:
            return stream.with_columns(**{chance.choice(["new", one]): chance.choice([lit(3), col(one) + 1])})
        case 4 if "d" in names and stream.schema.field("d").type == ListType(INT64):
            return stream.explode("d")
        case 5:
            return stream.union(stream.filter(col(one) < 20))
        case _:
            return stream.filter(chance.choice([col(one) > chance.randrange(90), col(one).is_not_null()]))


def end(stream: Any, chance: random.Random) -> Any:
    one, other = chance.choice(numbers(stream)), chance.choice(numbers(stream))
    match chance.randrange(5):
        case 0:
            return stream.key_by(one).agg(n=count()).final()
        case 1:
            return stream.key_by(all=lit(1)).agg(n=count(), most=col(other).max()).final()
        case 2:
            return stream.rollup(*dict.fromkeys((one, other))).agg(n=count()).final()
        case 3:
            return stream.select(only=lit(1))
        case _:
            return stream


def declared(p: Pipeline, chance: random.Random, path: Path) -> collecting.Sink:
    """A stream of random verbs, and the sink that takes it."""
    stream = p.read(files.Source(write(path, chance), schema=SCHEMA))
    for _ in range(chance.randrange(1, 7)):
        stream = step(stream, chance)
        if stream._node.verb != "union" and chance.random() < 0.5:
            stream = stream.chain(False)
    sink = collecting.Sink()
    end(stream, chance).write(sink)
    return sink


def rows_of(seed: int, folder: Path) -> list[Counter[str]]:
    """Those of several streams, of one run."""
    chance, p = random.Random(seed), Pipeline("narrowed")
    sinks = [declared(p, chance, folder / f"{number}.parquet") for number in range(5)]
    p.run(parallelism=2, state_backend="memory", durable=False)
    return [Counter(str(sorted(row.items())) for row in sink.rows) for sink in sinks]


def nothing_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column is read and crosses every exchange, and every row is read."""

    def as_it_is(plan: Any, read: Any, **_: Any) -> Source[Any]:
        return read.operation.source

    everything: Callable[..., None] = lambda *_: None  # noqa: E731
    monkeypatch.setattr("penstock.task.opening.narrowed", as_it_is)
    monkeypatch.setattr(reading.Consumers, "read_by", everything)


@pytest.mark.parametrize("number", range(3))
def test_rows_are_the_same_with_and_without(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that nobody needs do not cross exchanges and are not read, rows that a filter drops are not read."""
    seed = random.randrange(2**32)
    print(f"seed {seed}, of case {number}")
    found = rows_of(seed, tmp_path)
    nothing_left_out(monkeypatch)
    assert found == rows_of(seed, tmp_path)

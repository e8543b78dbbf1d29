"""Every public verb, function and connector has an example in its docstring, and all examples run.

Examples are doctests. Each finds four bids in `bids.jsonl`, the pipeline `p` and its stream `bids`, the classes `Bid` and
`Total`, and everything that `penstock` exports. What needs a cluster is skipped in the example itself.
"""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from public_api import CONNECTORS, OF_THE_USER, public

import penstock
from penstock import Pipeline, client, savepoint, testing
from penstock.api.parameters import set_parameters
from penstock.connectors import (
    collecting,
    console,
    files,
    generate,
    http,
    iceberg,
    iterables,
    kafka,
    nexmark,
    opensearch,
    postgres,
    redis,
    sockets,
    spark,
    sqlite,
)
from penstock.connectors.kafka import default_cluster
from penstock.observability.logs import configure_logging
from penstock.settings import KafkaSettings

BIDS = """\
{"auction": 1, "price": 50.0, "at": "2026-01-01T10:00:00Z", "tags": ["new"]}
{"auction": 2, "price": 250.0, "at": "2026-01-01T10:00:04Z", "tags": []}
{"auction": 1, "price": 120.0, "at": "2026-01-01T10:00:12Z", "tags": ["hot", "web"]}
{"auction": 2, "price": 80.0, "at": "2026-01-01T10:01:00Z", "tags": ["web"]}
"""
ELSEWHERE = ("penstock.expressions", "penstock.errors")
"""Rooms whose public names need no example here: functions of expressions are in a catalogue with examples of its own."""
NEED_A_CLUSTER = ("Pipeline.submit", "Cluster", "Job", "savepoint.read")


@dataclasses.dataclass
class Bid:
    auction: int
    price: float
    at: datetime
    tags: list[str]


@dataclasses.dataclass
class Total:
    auction: int
    price: float


def documented() -> Iterator[tuple[str, Any]]:
    """Each once, though several kinds of streams have it."""
    yield from ((name, getattr(penstock, name)) for name in OF_THE_USER)
    yield from ((name, getattr(client, name)) for name in client.__all__)
    yield from ((name, getattr(testing, name)) for name in testing.__all__)
    yield "savepoint.read", savepoint.read
    seen: set[Any] = set()
    for name, value in public():
        function = inspect.unwrap(value)
        if function not in seen:
            seen.add(function)
            yield name, value


def examples_of(value: Any) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")


DOCUMENTED = dict(documented())
WITH_EXAMPLES = [name for name, value in DOCUMENTED.items() if examples_of(value)]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an example finds, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    configure_logging("text", "error")  # what an example prints is what it shows
    monkeypatch.setattr(default_cluster, "_platform", dataclasses.replace(default_cluster._platform))
    set_parameters({})  # what a test before has given to a pipeline of its own
    monkeypatch.setattr(sys.modules[__name__], "__file__", str(tmp_path / "example.py"))
    Path("bids.jsonl").write_text(BIDS)
    Path("mixed.jsonl").write_text('{"auction": 1, "price": 2}\n{"auction": "one", "price": 1}\n')
    Path("production.toml").write_text("")
    Path("lake").mkdir()
    p = Pipeline("example")
    bids = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
    found: dict[str, Any] = {name: getattr(penstock, name) for name in penstock.__all__}
    connectors = (
        collecting, console, files, generate, http, iceberg, iterables, kafka, nexmark, opensearch, postgres,
        redis, sockets, spark, sqlite,
    )  # fmt: skip
    found |= dict(zip(CONNECTORS, connectors, strict=True))
    return found | {
        "Annotated": Annotated, "Any": Any, "Bid": Bid, "Decimal": Decimal, "Iterator": Iterator,
        "KafkaSettings": KafkaSettings, "Path": Path, "Total": Total,
        "UTC": UTC, "bids": bids, "dataclass": dataclasses.dataclass, "date": date, "datetime": datetime, "time": time,
        "np": np, "p": p, "pa": pa, "pl": pl, "pc": pc, "timedelta": timedelta,
        "savepoint": savepoint,
        **{name: getattr(package, name) for package in (client, testing) for name in package.__all__},
    }  # fmt: skip


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_an_example_runs(name: str, names: dict[str, Any]) -> None:
    """And shows what it says."""
    text = inspect.getdoc(DOCUMENTED[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_everything_public_has_an_example(name: str) -> None:
    """That is run: skipped is only what needs a cluster."""
    value = DOCUMENTED[name]
    examples = examples_of(value)
    if not value.__module__.startswith(ELSEWHERE) and not (isinstance(value, type) and issubclass(value, Exception)):
        assert examples, f"{name}: add a section Example: with lines of >>> to its docstring"
    skipped = [example for example in examples if example.options.get(doctest.SKIP)]
    assert not skipped or name in NEED_A_CLUSTER

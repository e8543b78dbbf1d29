"""Every argument of the public API is checked where it is given: no wrong one gets as far as an error of Python's."""

from __future__ import annotations

import contextlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from public_api import public

import penstock
from penstock import (
    Accumulator,
    BroadcastProcess,
    Context,
    KeyedBroadcastProcess,
    KeyedContext,
    KeyedCoProcess,
    KeyedProcess,
    OutputTag,
    Pattern,
    Pipeline,
    PipelineError,
    Process,
    col,
    tumbling,
)
from penstock.connectors import collecting, iterables, kafka
from penstock.core.arguments import _hint, _parts, checked, fits, hints_of
from penstock.errors import PenstockError
from penstock.expressions.nodes import Value
from penstock.settings import KafkaSettings


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime


class Each(Process[Bid, Bid]):
    def on_row(self, row, ctx):
        ctx.emit(row)


class Ruled(KeyedBroadcastProcess[Bid, Bid, Bid]):
    def on_row(self, row: Bid, ctx: KeyedContext[Bid]) -> None: ...

    def on_broadcast(self, row: Bid, ctx: Context[Bid]) -> None: ...


class Beside(BroadcastProcess[Bid, Bid, Bid]):
    def on_row(self, row: Bid, ctx: Context[Bid]) -> None: ...

    def on_broadcast(self, row: Bid, ctx: Context[Bid]) -> None: ...


class Both(KeyedCoProcess[Bid, Bid, Bid]):
    """Never called."""

    def on_left(self, row: Any, ctx: Any) -> None: ...

    def on_right(self, row: Any, ctx: Any) -> None: ...


class PerAuction(KeyedProcess[Bid, Bid]):
    def on_row(self, row, ctx):
        ctx.emit(row)


class Sum(Accumulator[int, int]):
    accumulator_type = int

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, left: int, right: int) -> int:
        return left + right

    def result(self, accumulator: int) -> int:
        return accumulator


RUN = ("run", "submit", "collect")
"""What does more than declare: called with wrong arguments only."""
WRONG: tuple[Any, ...] = (
    None,
    object(),
    3.5,
    "text",
    b"bytes",
    Bid,
    tumbling,
    [object()],
    {"a": object()},
    True,
    col("a"),
)


def read() -> Any:
    return Pipeline("p").read(iterables.Source([], schema=Bid, event_time="at"))


INSTANCES: dict[str, Callable[[], Any]] = {
    "Pipeline": lambda: Pipeline("p"),
    "Expr": lambda: col("auction"),
    "Stream": lambda: read().filter(col("auction") > 1),
    "SourceStream": read,
    "KeyedStream": lambda: read().key_by("auction"),
    "ConnectedStreams": lambda: (keyed := read().key_by("auction")).connect(keyed),
    "BroadcastConnectedStreams": lambda: (bids := read()).connect(bids.broadcast()),
    "KeyedBroadcastConnectedStreams": lambda: (bids := read()).key_by("auction").connect(bids.broadcast()),
    "WindowedStream": lambda: read().key_by("auction").window(tumbling("1s")),
    "LateWindowedStream": lambda: read().key_by("auction").window(tumbling("1s")).allowed_lateness("1s"),
    "OverStream": lambda: read().key_by("auction").over(),
    "MatchedStream": lambda: read().key_by("auction").match(Pattern.begin("first")),
    "Pattern": lambda: Pattern.begin("first"),
    "UpsertStream": lambda: read().key_by("auction").agg(n=penstock.count()),
    "SourceUpdates": lambda: Pipeline("p").read(kafka.ChangeSource("t", key="auction", schema=Bid)),
    "KeyedUpdates": lambda: read().key_by("auction").agg(n=penstock.count()).key_by("n"),
    "StringNamespace": lambda: col("a").str,
    "DateTimeNamespace": lambda: col("a").dt,
    "ListNamespace": lambda: col("a").list,
    "MapNamespace": lambda: col("a").map,
    "StructNamespace": lambda: col("a").struct,
    "When": lambda: penstock.when(col("a")),
    "Then": lambda: penstock.when(col("a")).then(1),
}
SAMPLES: dict[Any, Any] = {
    str: "auction", int: 1, float: 1.0, bool: True, datetime: datetime(2026, 1, 1, tzinfo=UTC), date: date(2026, 1, 1),
    timedelta: timedelta(1), bytes: b"", type(None): None,
}  # fmt: skip


PUBLIC = {name: value for name, value in public() if not name.startswith("generate.random_")}
"""What declares; `random_integers` and its like are called for every batch, by functions of users."""


def arguments_of(function: Any) -> list[tuple[inspect.Parameter, Any]]:
    """Parameters and their hints; the signature is that of the constructor if it is a class."""
    target = function.__init__ if isinstance(function, type) else function
    own = inspect.unwrap(target)
    found: list[tuple[inspect.Parameter, Any]] = []
    for parameter in inspect.signature(own).parameters.values():
        if parameter.name == "self":
            continue
        hint = Any if parameter.annotation in ("Operand", "Value") else _hint(own, parameter.annotation)
        if typing.get_origin(hint) is typing.Unpack:
            options = hints_of(typing.get_args(hint)[0])
            kind = inspect.Parameter.KEYWORD_ONLY
            found += [(inspect.Parameter(name, kind, default=None), each) for name, each in options.items()]
        else:
            found.append((parameter, hint))
    return found


def sample(hint: Any) -> Any:
    """Something that an annotation takes."""
    part = _parts(hint)[0]
    origin, arguments = typing.get_origin(part), typing.get_args(part)
    name = getattr(origin or part, "__name__", "")
    made: dict[str, Callable[[], Any]] = {
        "Expr": lambda: col("auction"), "Sink": collecting.Sink, "Source": lambda: iterables.Source([], schema=Bid),
        "OutputTag": lambda: OutputTag("late", Bid), "Process": Each, "KeyedProcess": PerAuction, "Stream": read,
        "KeyedStream": lambda: read().key_by("auction"), "KeyedCoProcess": Both,
        "BroadcastStream": lambda: read().broadcast(), "KeyedBroadcastProcess": Ruled, "BroadcastProcess": Beside,
        "Iterable": list, "Sequence": list, "Mapping": dict, "type": lambda: Bid, "Content": lambda: (lambda n: n),
        "DataFrame": lambda: "a.table",
        "Accumulator": Sum, "KafkaSettings": KafkaSettings, "WindowFunction": lambda: (lambda key, window, rows: rows),
        "TumblingWindow": lambda: tumbling("1s"), "Pattern": lambda: Pattern.begin("first"),
        "Callable": lambda: (lambda *given: given[0]),
    }  # fmt: skip
    if origin is typing.Literal:
        return arguments[0]
    return made[name]() if name in made else SAMPLES.get(part, 1)


def call(name: str, function: Any, parameter: inspect.Parameter, wrong: Any) -> Any:
    """With one wrong argument, and samples for all others that are needed."""
    args: list[Any] = []
    if "." in name and name.partition(".")[0] in INSTANCES:
        args.append(INSTANCES[name.partition(".")[0]]())
    given: dict[str, Any] = {}
    for other, hint in arguments_of(function):
        value = wrong if other.name == parameter.name else sample(hint)
        if other.kind is inspect.Parameter.VAR_POSITIONAL:
            args.append(value)
        elif other.kind is inspect.Parameter.VAR_KEYWORD:
            given["key"] = value
        elif other.name == parameter.name or other.default is inspect.Parameter.empty:
            if other.kind is inspect.Parameter.KEYWORD_ONLY:
                given[other.name] = value
            else:
                args.append(value)
        elif other.kind is not inspect.Parameter.KEYWORD_ONLY:
            args.append(other.default)
    return function(*args, **given)


CASES = [(name, parameter, hint) for name, function in PUBLIC.items() for parameter, hint in arguments_of(function)]


@pytest.mark.parametrize(
    ("name", "parameter", "hint"), CASES, ids=[f"{name}({parameter.name})" for name, parameter, _ in CASES]
)
def test_a_wrong_argument_is_named(name: str, parameter: inspect.Parameter, hint: Any) -> None:
    """What its annotation does not take is refused by name; what it takes raises no error of Python's own."""
    for wrong in WRONG:
        taken = fits(wrong, hint)
        if taken and (name.rpartition(".")[2] in RUN or inspect.isfunction(wrong)):
            continue
        named = "key=" if parameter.kind is inspect.Parameter.VAR_KEYWORD else parameter.name
        if taken:
            with contextlib.suppress(PenstockError):
                call(name, PUBLIC[name], parameter, wrong)
        else:
            with pytest.raises(PenstockError, match=re.escape(named)):
                call(name, PUBLIC[name], parameter, wrong)


def test_the_public_api_is_looked_at() -> None:
    """Verbs, windows, connectors, functions and states are among what is tried."""
    wanted = {"Stream.filter", "KeyedStream.window", "tumbling", "files.Source", "kafka.Sink", "col", "ValueState",
              "StringNamespace.split", "Pipeline.run", "OutputTag", "nexmark.bids", "param", "periodic"}  # fmt: skip
    assert wanted <= set(PUBLIC)


@checked
def taking(
    a: int, *rest: str, of: Sequence[str] = (), by: Mapping[str, int] | None = None, value: Value = None
) -> tuple[Any, ...]:
    return a, rest, of, by, value


def test_numbers_of_numpy_are_pythons() -> None:
    """Wherever a number is taken; an array is none."""
    assert type(taking(np.int64(1))[0]) is int
    with pytest.raises(PipelineError, match="taking: a= takes a whole number, got array"):
        taking(np.array([1, 2]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: taking(), r"taking: missing a required argument: 'a'; it takes \(a, \*rest"),
        (lambda: taking(1, off=3), "taking: there is no argument off=; did you mean 'of'"),
        (lambda: taking(1, of="text"), "of= takes a list of text, got 'text'"),
        (lambda: taking(1, of=["a", 1]), r"of= takes a list of text, got \['a', 1\]"),
        (lambda: taking(1, by={"a": "b"}), "by= takes a dict or None, got"),
        (lambda: taking(True), "a= takes a whole number, got True"),
        (lambda: taking(1, "a", 2), r"\*rest takes text, got 2"),
    ],
)
def test_what_is_said_of_a_wrong_argument(given: Callable[[], object], said: str) -> None:
    """What it is called, what it takes, what was given."""
    with pytest.raises(PipelineError, match=said):
        given()

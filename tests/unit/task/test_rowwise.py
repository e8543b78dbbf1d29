"""map, flat_map and map_batches: values, event times, and what is said when a function of the user fails."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.core.batches import EVENT_TIME
from penstock.errors import ProtocolError, UserCodeError
from penstock.observability.user_frames import describe_error
from penstock.plan.logical import Node
from penstock.plan.operations.as_ import As
from penstock.plan.operations.map_batches import MapBatches
from penstock.plan.operations.map_rows import MapRows
from penstock.task.operators import build_operator
from penstock.task.operators.rowwise import raised
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import schema_of


@dataclasses.dataclass
class Bid:
    auction: int
    price: float
    at: datetime


@dataclasses.dataclass
class Euro:
    auction: int
    euros: float | None


def node(operation, out=Euro, event_time=True):
    source = input_node(schema_of(Bid), Bid, event_time=event_time)
    return Node("n7", operation, (source,), schema_of(out), out, event_time)


def bids(count=5, event_time=True):
    times = pl.Series([1_000 * row for row in range(count)], dtype=pl.Int64)
    frame = pl.DataFrame(
        {
            "auction": pl.Series(range(count), dtype=pl.Int64),
            "price": [float(row) for row in range(count)],
            "at": times.cast(pl.Datetime("us", "UTC")),
        }
    )
    return frame.with_columns(times.alias(EVENT_TIME)) if event_time else frame


def fed(operation, frame, event_time=True, out=Euro):
    harness = OperatorHarness(node(operation, out, event_time))
    harness.frame(frame)
    return pl.concat(harness.collected.frames) if harness.collected.frames else None


def to_euro(bid: Bid) -> Euro:
    if bid.auction == 3_333:
        raise ZeroDivisionError("no rate")
    return Euro(bid.auction, bid.price * 2)


def test_map_keeps_order_and_event_time_over_many_chunks():
    """One row in, one out; the hidden column goes along."""
    result = fed(MapRows(to_euro, flat=False), bids(3_000))
    assert result.columns == ["auction", "euros", EVENT_TIME]
    assert result["euros"].to_list() == [2.0 * row for row in range(3_000)]
    assert result[EVENT_TIME].to_list() == bids(3_000)[EVENT_TIME].to_list()
    assert fed(MapRows(to_euro, flat=False), bids(2, False), False).columns == ["auction", "euros"]


@pytest.mark.parametrize("finish", ["run_background_slice", "snapshot", "advance", "process"])
@pytest.mark.parametrize("flat", [False, True])
def test_others_run_while_a_function_is_called(flat, finish):
    """A call of a batch in between is never longer than that of a chunk; whatever comes next finishes it first."""
    called = 0

    def function(bid):
        nonlocal called
        called += 1
        return [Euro(bid.auction, bid.price)] if flat else Euro(bid.auction, bid.price)

    harness = OperatorHarness(node(MapRows(function, flat=flat)))
    (operator,) = harness.operators
    operator.process(bids(3_000), harness.collected)
    assert called == 1_024
    match finish:
        case "run_background_slice":
            assert [operator.run_background_slice() for _ in range(3)] == [True, False, False]
        case "snapshot":
            assert operator.snapshot() is None
        case "advance":
            operator.advance(10_000_000, harness.collected)
        case _:
            operator.process(bids(0), harness.collected)
    assert called == 3_000
    assert [row["auction"] for row in harness.output()] == list(range(3_000))


def test_map_names_function_and_row_when_it_raises():
    """The row at fault, not the batch; the cause is chained."""
    with pytest.raises(
        UserCodeError, match=r"map \(n7-map\): to_euro raised ZeroDivisionError: no rate; row: Bid\("
    ) as e:
        fed(MapRows(to_euro, flat=False), bids(5_000))
    assert "auction=3333," in str(e.value)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_a_function_that_raises_stop_iteration_loses_no_row():
    """`next()` of nothing does: it is an error of its row, and not the end of the rows."""
    found = iter([Euro(0, 0.0), Euro(1, 1.0)])
    with pytest.raises(UserCodeError, match=r"map \(n7-map\): .* raised StopIteration: ; row: Bid\(auction=2,"):
        fed(MapRows(lambda bid: next(found), flat=False), bids(4, False), False)


def test_a_callable_object_is_named_by_its_class():
    """Functions with state of their own."""

    class Converter:
        def __call__(self, bid):
            raise ValueError

    with pytest.raises(UserCodeError, match="Converter raised ValueError"):
        fed(MapRows(Converter(), flat=False), bids(1))


def test_flat_map_repeats_the_event_time_of_its_row():
    """None, one or several rows out; generators too."""

    def split(bid):
        for _ in range(bid.auction % 3):
            yield Euro(bid.auction, None)

    result = fed(MapRows(split, flat=True), bids(2_000))
    expected = [row for row in range(2_000) for _ in range(row % 3)]
    assert result["auction"].to_list() == expected
    assert result[EVENT_TIME].to_list() == [1_000 * row for row in expected]
    empty = fed(MapRows(lambda bid: [], flat=True), bids(3))
    assert empty is None

    def broken(bid):
        yield Euro(1, None)
        raise RuntimeError("half way")

    with pytest.raises(
        UserCodeError, match=r"flat_map \(n7-flat_map\): .*broken raised RuntimeError: half way; row: Bid"
    ):
        fed(MapRows(broken, flat=True), bids(3))


def test_map_batches_gives_the_declared_arrow_schema_and_takes_it_back():
    """A record batch in, one of the declared columns out; string widths do not matter."""
    seen = []

    def double(batch):
        seen.append(batch.schema)
        return pa.record_batch({"auction": batch["auction"], "euros": pc.multiply(batch["price"], 2)})

    result = fed(MapBatches(double), bids(10))
    assert seen == [schema_of(Bid).arrow()]
    assert result["euros"].to_list() == [2.0 * row for row in range(10)]
    assert result[EVENT_TIME].to_list() == [1_000 * row for row in range(10)]

    @dataclasses.dataclass
    class Named:
        name: str

    named = fed(MapBatches(lambda b: pa.table({"name": pa.array(["x"] * len(b), pa.string())})), bids(2), out=Named)
    assert named["name"].to_list() == ["x", "x"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda b: b.slice(0, 1), "returned the columns auction, price, at; declared are auction, euros"),
        (lambda b: [1], "must return a pyarrow.RecordBatch, got list"),
        (lambda b: pa.table({"auction": [1], "euros": [1.0]}), "returned 1 rows for 3; on a stream with event time"),
        (lambda b: pa.table({"auction": [1.5] * 3, "euros": [1.0] * 3}), "returned column 'auction' as double"),
        (
            lambda b: pa.table({"auction": pa.array([1, None, 2]), "euros": [1.0] * 3}),
            "returned nulls in column",
        ),
        (lambda b: 1 / 0, "raised ZeroDivisionError: division by zero; on a batch of 3 rows"),
    ],
)
def test_map_batches_checks_what_comes_back(function, message):
    """Columns, types, nulls and, with event time, the number of rows."""
    with pytest.raises(UserCodeError, match=message):
        fed(MapBatches(function), bids(3))


def test_map_batches_may_change_the_number_of_rows_without_event_time():
    """Nothing has to line up then."""
    result = fed(MapBatches(lambda b: pa.table({"auction": [1], "euros": [None]}, schema_of(Euro).arrow())),
                 bids(3, False), False)  # fmt: skip
    assert result.rows() == [(1, None)]


def test_structure_has_no_operator():
    """Asking for one is a mistake of the runtime, not of the user."""
    with pytest.raises(ProtocolError, match="is structure"):
        build_operator(node(As()))


def test_rows_arrive_with_aware_moments():
    """Timestamps are datetimes in UTC."""
    seen = []
    fed(MapRows(lambda bid: seen.append(bid.at) or Euro(1, None), flat=False), bids(2))
    assert seen == [datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)]


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class MuteBid(Bid):
    def __repr__(self) -> str:
        raise RuntimeError("no picture")


def test_an_exception_that_cannot_say_what_it_is_hides_neither_function_nor_row() -> None:
    """Nor does a row that cannot be shown."""

    def broken(bid: Bid) -> Euro:
        raise MuteError

    said = r"map \(n7-map\): .*broken raised MuteError \(its str\(\) raised RuntimeError\); row: Bid\(auction=0"
    with pytest.raises(UserCodeError, match=said):
        fed(MapRows(broken, flat=False), bids())
    assert describe_error(MuteError()) == "MuteError (its str() raised RuntimeError)"
    shown = str(raised("here", MuteBid(1, 1.0, datetime.now(UTC)), ValueError("wrong")))
    assert shown == "here raised ValueError: wrong; row: <MuteBid, of which repr() raised RuntimeError>"

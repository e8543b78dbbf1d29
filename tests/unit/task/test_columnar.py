"""The columnar operators without state."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from penstock.core.batches import EVENT_TIME
from penstock.errors import UserCodeError
from penstock.expressions import Expr, col, lit, row_field, when
from penstock.plan.logical import Node
from penstock.plan.operation import Operation
from penstock.plan.operations.check import Check
from penstock.plan.operations.expand import Expand
from penstock.plan.operations.explode import Explode
from penstock.plan.operations.filter import Filter
from penstock.plan.operations.project import Project
from penstock.plan.operations.read import Read
from penstock.task.operators.columnar import (
    CheckOperator,
    ExpandOperator,
    ExplodeOperator,
    FilterOperator,
    ProjectOperator,
)
from penstock.types import FLOAT64, INT32, INT64, STRING, Field, ListType, Schema

SCHEMA = Schema(
    (
        Field("a", INT64, True), Field("s", STRING), Field("l", ListType(INT64), True),
        Field("m", ListType(STRING), True),
    )
)  # fmt: skip
FRAME = pl.DataFrame(
    {"a": [1, None, 3], "s": ["1", "x", "3"], "l": [[1, 2], [], None], "m": [["p", None], [], None]},
    schema=SCHEMA.polars(),
)
TIMED = FRAME.with_columns(pl.Series(EVENT_TIME, [30, 10, 20], dtype=pl.Int64))


class Outputs:
    """Keeps what an operator emits."""

    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []
        self.watermarks: list[int] = []

    def rows(self, frame: pl.DataFrame) -> None:
        self.frames.append(frame)

    def side(self, tag: str, frame: pl.DataFrame) -> None:
        raise AssertionError("stateless operators have no side outputs")

    def watermark(self, watermark: int) -> None:
        self.watermarks.append(watermark)


def node(operation: Operation, schema: Schema = SCHEMA) -> Node:
    """A node over a source of `SCHEMA`."""
    source: Any = None
    read = Node("n0", Read(source), (), SCHEMA, object, event_time=True)
    return Node("n1", operation, (read,), schema, object, event_time=True)


def projection(verb: Any = "select", **columns: Expr) -> ProjectOperator:
    """An operator for these columns."""
    schema = Schema(tuple(row_field(expr, SCHEMA, verb, name) for name, expr in columns.items()))
    return ProjectOperator(node(Project(verb, tuple(columns.items())), schema))


def run(operator: Any, frame: pl.DataFrame) -> list[pl.DataFrame]:
    """What the operator emits for one batch."""
    outputs = Outputs()
    operator.process(frame, outputs)
    return outputs.frames


def test_a_projection_computes_columns_and_carries_event_time() -> None:
    """Every row keeps its event time; without one there is none."""
    operator = projection(b=col("a") * 2, s=col("s"), c=when(col("a") > 1).then(lit("big")).otherwise(lit("small")))
    (got,) = run(operator, TIMED)
    assert got.to_dict(as_series=False) == {
        "b": [2, None, 6], "s": ["1", "x", "3"], "c": ["small", "small", "big"], EVENT_TIME: [30, 10, 20],
    }  # fmt: skip
    assert run(operator, FRAME)[0].equals(got.drop(EVENT_TIME))


@pytest.mark.parametrize("frame", [FRAME, TIMED, FRAME.head(0), TIMED.head(0)])
def test_constants_have_as_many_rows_as_the_batch(frame: pl.DataFrame) -> None:
    """A projection of constants only neither loses nor adds rows."""
    (got,) = run(projection(one=lit(1), two=lit(2.0) * 3), frame)
    assert got.height == frame.height
    assert got.drop(EVENT_TIME, strict=False).schema == {"one": pl.Int64(), "two": pl.Float64()}


@pytest.mark.parametrize("frame", [FRAME, TIMED, FRAME.head(0)])
def test_columns_that_did_not_cross_the_exchange_are_left_out(frame: pl.DataFrame) -> None:
    """And what is left, constants too, has as many rows as the batch; a failure names what was computed."""
    operator = projection(one=lit(1), s=col("s"), b=col("a") * 2)
    hidden = [EVENT_TIME] if EVENT_TIME in frame.columns else []
    (got,) = run(operator, frame.select("l", *hidden))
    assert got.columns == ["one", *hidden]
    assert got.height == frame.height
    assert run(operator, frame.select("a", *hidden))[0].columns == ["one", "b", *hidden]
    failing = projection(s=col("s"), n=lit("x").cast(int))
    with pytest.raises(UserCodeError, match="n = "):
        run(failing, FRAME.select("l"))


def test_a_filter_keeps_only_what_is_true() -> None:
    """False and null go, event times stay with their rows, and an empty result is not handed on."""
    operator = FilterOperator(node(Filter(col("a") > 1)))
    (got,) = run(operator, TIMED)
    assert got.rows() == TIMED[2:].rows()
    assert run(operator, TIMED.head(2)) == []
    assert run(FilterOperator(node(Filter(lit(True)))), FRAME)[0].equals(FRAME)


def test_rows_that_are_checked_go_on_as_they_are_or_fail() -> None:
    """Null is not true either; an empty batch is right."""
    operator = CheckOperator(node(Check(col("a") > 0, "a is not positive")))
    (got,) = run(operator, TIMED.filter(pl.col("a") > 0))
    assert got.rows() == TIMED.filter(pl.col("a") > 0).rows()
    assert run(operator, TIMED.clear())[0].height == 0
    for wrong in (TIMED, TIMED.filter(pl.col("a").is_null()), TIMED.filter(pl.col("a") > 0).with_columns(a=pl.lit(0))):
        with pytest.raises(UserCodeError, match=r"^a is not positive$"):
            run(operator, wrong)


def test_explode_gives_a_row_per_element() -> None:
    """An empty list or null gives one null; several columns go in step."""
    operator = ExplodeOperator(node(Explode(("l", "m"))))
    (got,) = run(operator, TIMED.select("a", "l", "m", EVENT_TIME))
    assert got.rows() == [(1, 1, "p", 30), (1, 2, None, 30), (None, None, None, 10), (3, None, None, 20)]


def test_elements_are_numbered_from_one() -> None:
    """Of null and of an empty list there is none; where these give no row, a batch of such rows is not handed on."""
    schema = Schema((Field("l", INT64, nullable=True), Field("n", INT32, nullable=True)))
    frame = pl.DataFrame({"l": [[7, None], [], None]}).with_columns(pl.lit(30).alias(EVENT_TIME))
    (got,) = run(ExplodeOperator(node(Explode(("l",), "n"), schema)), frame)
    assert got.columns == ["l", "n", EVENT_TIME]
    assert got.rows() == [(7, 1, 30), (None, 2, 30), (None, None, 30), (None, None, 30)]
    operator = ExplodeOperator(node(Explode(("l",), "n", keep_empty=False), schema))
    (got,) = run(operator, frame)
    assert got.rows() == [(7, 1, 30), (None, 2, 30)]
    assert run(operator, frame[1:]) == []


def test_explode_of_different_lengths_is_the_users_error() -> None:
    """The message names the columns."""
    frame = pl.DataFrame({"l": [[1]], "m": [["a", "b"]]})
    with pytest.raises(UserCodeError, match=r"explode \(n1-explode\): the lists in 'l', 'm' have different lengths"):
        run(ExplodeOperator(node(Explode(("l", "m")))), frame)


def test_a_failed_cast_names_operator_column_and_expression() -> None:
    """A strict cast of what cannot be converted fails with the value; Polars' advice for its own users is left out."""
    operator = projection("with_columns", a=col("a"), n=col("s").cast(int))
    with pytest.raises(UserCodeError) as caught:
        run(operator, TIMED)
    assert str(caught.value) == (
        'with_columns (n1-with_columns): n = col("s").cast(int64): conversion from `str` to `i64` failed in column '
        "'s' for 1 out of 3 values: [\"x\"]; use strict=False (in SQL: TRY_CAST) to get null instead, or filter such "
        "rows out before"
    )
    with pytest.raises(
        UserCodeError, match=r'^filter \(n1-filter\): col\("s"\).str.to_integer\(\) > 1: strict integer'
    ):
        run(FilterOperator(node(Filter(col("s").str.to_integer() > 1))), TIMED)
    (got,) = run(projection(n=col("s").cast(float, strict=False)), FRAME)
    assert got["n"].to_list() == [1.0, None, 3.0]
    assert got.schema == Schema((Field("n", FLOAT64, True),)).polars()


def test_a_watermark_passes() -> None:
    """Event time goes on behind the rows."""
    outputs = Outputs()
    projection(a=col("a")).advance(5, outputs)
    assert outputs.watermarks == [5]


def test_grouping_sets_repeat_rows_with_the_bits_of_the_columns_that_are_left_out() -> None:
    """The copies of a row stay together and have its event time; the first column has the most significant bit."""
    schema = Schema((*SCHEMA.fields[:2], Field("grouping_id", INT64)))
    sets = (frozenset({"a", "s"}), frozenset({"s"}), frozenset({"a"}), frozenset[str]())
    operator = ExpandOperator(node(Expand(("s", "a"), sets), schema))
    (got,) = run(operator, TIMED.head(2))
    assert got.to_dict(as_series=False) == {
        "a": [1, None, 1, None, None, None, None, None],
        "s": ["1", "1", None, None, "x", "x", None, None],
        "grouping_id": [0, 1, 2, 3] * 2,
        EVENT_TIME: [30] * 4 + [10] * 4,
    }
    assert run(operator, FRAME.head(2))[0].equals(got.drop(EVENT_TIME))

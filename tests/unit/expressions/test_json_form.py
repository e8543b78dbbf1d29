"""The JSON form of expressions."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PipelineError
from penstock.expressions import Accumulator, Expr, aggregate, col, from_json, to_json
from penstock.expressions.nodes import Aggregate, Alias, Call, Case, Cast, Column, Literal, Node
from penstock.types import BINARY, INT8, TIMESTAMP, Field, ListType, StructType

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary(), st.dates(),
    st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0)), st.timedeltas(),
    st.sampled_from([math.nan, -0.0, datetime.max.replace(tzinfo=UTC), date.min, timedelta.max]),
)  # fmt: skip
TYPES = st.sampled_from([INT8, TIMESTAMP, ListType(BINARY), StructType((Field("x", INT8, True),))])
OPTIONS = st.dictionaries(st.text(max_size=5), st.one_of(st.booleans(), st.integers(), st.text()), max_size=2).map(
    lambda options: tuple(options.items())
)


def _grown(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    args = st.lists(inner, max_size=3).map(tuple)
    branches = st.lists(st.tuples(inner, inner), min_size=1, max_size=2).map(tuple)
    return st.one_of(
        st.builds(Call, st.text(), args, OPTIONS),
        st.builds(Cast, inner, TYPES, st.booleans()),
        st.builds(Case, branches, st.one_of(st.none(), inner)),
        st.builds(Alias, inner, st.text()),
        st.builds(Aggregate, st.text(), args, OPTIONS),
    )


NODES = st.recursive(st.one_of(st.builds(Column, st.text()), st.builds(Literal, VALUES)), _grown, max_leaves=8)


@settings(deadline=None, max_examples=100)
@given(NODES)
def test_an_expression_survives_json(node: Node) -> None:
    """Through the JSON text of Python and back every tree is equal to itself, constants to the last bit."""
    form = json.loads(json.dumps(to_json(Expr(node)), allow_nan=False))
    assert from_json(form).node == node


def test_what_is_no_expression_is_refused() -> None:
    """A foreign JSON value is an error that shows it."""
    with pytest.raises(PipelineError, match=r"\{'call': 1\} is not the JSON form of an expression"):
        from_json({"call": 1})


class Product(Accumulator[float, float]):
    """Multiplies."""

    accumulator_type = float

    def create(self) -> float:
        return 1.0

    def add(self, accumulator: float, *values: float) -> float:
        return accumulator * values[0]

    def merge(self, left: float, right: float) -> float:
        return left * right

    def result(self, accumulator: float) -> float:
        return accumulator


def test_a_users_aggregate_is_named_but_does_not_travel() -> None:
    """Its form names the class, for plans and fingerprints; making it again is refused."""
    form = to_json(aggregate(Product(), col("x")))
    assert form["accumulator"].endswith(":Product")
    with pytest.raises(PipelineError, match="does not travel as JSON; import the user's file"):
        from_json(form)

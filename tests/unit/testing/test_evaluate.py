"""What `evaluate` says of what is wrong: in Penstock's words, whoever found it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import col
from penstock.errors import PipelineError, UserCodeError
from penstock.testing import evaluate


@pytest.mark.parametrize("expr", [col("x").cast(int), col("x").cast(int).sum()])
def test_a_value_on_which_an_expression_fails_is_told_as_a_job_tells_it(expr: Any) -> None:
    """Polars found it, beneath an aggregate too."""
    with pytest.raises(UserCodeError, match=r'evaluate: col\("x"\).cast\(int64\).*: conversion from `str` to `i64`'):
        evaluate(expr, x=["a"])


def test_columns_are_lists_of_one_length() -> None:
    """What is none is named."""
    with pytest.raises(PipelineError, match="evaluate: x= takes a list of values, one for every row, got 3"):
        evaluate(col("x") + 1, x=3)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"columns are of one length.*: x: 1, y: 2"):
        evaluate(col("x") + 1, x=[1], y=[1, 2])


def test_nexmark_says_what_its_streams_are_called() -> None:
    """The benchmark says Person, Auction and Bid."""
    from penstock.connectors import nexmark

    with pytest.raises(AttributeError, match="there is no 'persons'; did you mean 'people'"):
        nexmark.persons()  # pyright: ignore[reportAttributeAccessIssue]

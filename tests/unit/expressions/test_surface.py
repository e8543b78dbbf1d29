"""What users write, and how it is printed back to them."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from penstock.errors import PipelineError
from penstock.expressions import (
    Expr,
    coalesce,
    col,
    columns_of,
    concat_list,
    concat_str,
    contains_aggregate,
    count,
    lag,
    lead,
    lit,
    max_horizontal,
    min_horizontal,
    output_name,
    struct,
    when,
)
from penstock.expressions.nodes import Literal
from penstock.types import INT8

a, b, p, q = col("a"), col("b"), col("p"), col("q")

WRITTEN: list[tuple[Expr, str]] = [
    (col("price") * 0.908, 'col("price") * 0.908'),
    (1 - a, '1 - col("a")'),
    ((a + 1) * 2, '(col("a") + 1) * 2'),
    (a + 1 * 2, 'col("a") + 2'),
    (a - (b - 1), 'col("a") - (col("b") - 1)'),
    (a - b - 1, 'col("a") - col("b") - 1'),
    (a / (b * 2) // 3 % 4, 'col("a") / (col("b") * 2) // 3 % 4'),
    (-(a**2), '-col("a") ** 2'),
    ((-a) ** 2, '(-col("a")) ** 2'),
    (a**b**2, 'col("a") ** (col("b") ** 2)'),
    (2**a, '2 ** col("a")'),
    (a - -1, 'col("a") - -1'),
    (-(a + b), '-(col("a") + col("b"))'),
    ((a > 1) & ~(b <= 2) | p, '(col("a") > 1) & ~(col("b") <= 2) | col("p")'),
    (p & (q | p), 'col("p") & (col("q") | col("p"))'),
    (p ^ q, 'col("p") ^ col("q")'),
    ((a == b) == p, '(col("a") == col("b")) == col("p")'),
    (a < 1, 'col("a") < 1'),
    (1 < a, 'col("a") > 1'),  # noqa: SIM300 (Python itself turns it round)
    (lit(1) + 2, "lit(1) + 2"),
    (lit("x").str.to_uppercase(), 'lit("x").str.to_uppercase()'),
    (a != 'say "hi"', r'col("a") != "say \"hi\""'),
    (abs(a), 'col("a").abs()'),
    ((a + b).abs(), '(col("a") + col("b")).abs()'),
    (a.round(), 'col("a").round()'),
    (a.round(2), 'col("a").round(2)'),
    (a.clip(0), 'col("a").clip(0, None)'),
    (a.is_in([1, 2]), 'col("a").is_in([1, 2])'),
    (a.is_between(1, b, closed="left"), 'col("a").is_between(1, col("b"), closed="left")'),
    (a.cast(int), 'col("a").cast(int64)'),
    (a.cast(INT8, strict=False), 'col("a").cast(int8, strict=False)'),
    (a.alias("x"), 'col("a").alias("x")'),
    (a.str.contains("x", literal=True), 'col("a").str.contains("x", literal=True)'),
    (a.str.slice(1, 2), 'col("a").str.slice(1, 2)'),
    (a.str.to_datetime("%Y", strict=False), 'col("a").str.to_datetime("%Y", strict=False)'),
    (a.str.strptime(date, "%Y"), 'col("a").str.to_date("%Y")'),
    (a.dt.truncate(timedelta(minutes=10)), 'col("a").dt.truncate("10m")'),
    (a.list.get(0), 'col("a").list.get(0)'),
    (a.struct.field("x"), 'col("a").struct.field("x")'),
    (a << 1 + b, 'col("a") << 1 + col("b")'),
    ((a & 3) >> 2, '(col("a") & 3) >> 2'),
    (a.replace({1: 2, None: 0}), 'col("a").replace({1: 2, None: 0})'),
    (a.replace_strict({"x": 1}, default=b), 'col("a").replace_strict({"x": 1}, default=col("b"))'),
    (a.dt.in_zone("UTC").truncate("1d"), 'col("a").dt.in_zone("UTC").truncate("1d")'),
    (a.json.get("$.x", int), 'col("a").json.get("$.x").cast(int64)'),
    (a.json.decode(list[int]), 'col("a").json.decode(list[int64])'),
    (struct("a", (a + b).alias("c"), d=b), 'struct(col("a"), (col("a") + col("b")).alias("c"), d=col("b"))'),
    (concat_list("a", 1), 'concat_list(col("a"), 1)'),
    (coalesce("a", b, 0), 'coalesce(col("a"), col("b"), 0)'),
    (min_horizontal("a", "b"), 'min_horizontal(col("a"), col("b"))'),
    (max_horizontal("a", 1), 'max_horizontal(col("a"), 1)'),
    (concat_str("a", lit("x"), separator="-"), 'concat_str(col("a"), "x", separator="-")'),
    (when(p).then(1), 'when(col("p")).then(1)'),
    (
        when(a > 1).then(a).when(q).then(lit("x")).otherwise(None).alias("z"),
        'when(col("a") > 1).then(col("a")).when(col("q")).then("x").otherwise(None).alias("z")',
    ),
    (count(), "count()"),
    (a.sum() / count(), 'col("a").sum() / count()'),
    (a.quantile(0.9), 'col("a").quantile(0.9)'),
    (a.top_k_by("b", 3), 'col("a").top_k_by(col("b"), 3)'),
    (a.bottom_k_by(b + 1, 3, filter=p), 'col("a").bottom_k_by(col("b") + 1, 3, filter=col("p"))'),
    (lag("a"), 'lag(col("a"), 1)'),
    (lead(a * 2, 3), 'lead(col("a") * 2, 3)'),
    (lag("a", 2, default=-1), 'lag(col("a"), 2, default=-1)'),
    (a - lead("a", default=0), 'col("a") - lead(col("a"), 1, default=0)'),
    (when(lag(p)).then(lag("a")).otherwise(0), 'when(lag(col("p"), 1)).then(lag(col("a"), 1)).otherwise(0)'),
    (
        when(lag(lit(True))).then(lag("a", 2)).otherwise(0),
        'when(lag(lit(True), 1)).then(lag(col("a"), 2)).otherwise(0)',
    ),
    (a.approx_quantile(0.9), 'col("a").approx_quantile(0.9)'),
    (a.approx_n_unique(), 'col("a").approx_n_unique()'),
    ((a * 2).max(), '(col("a") * 2).max()'),
]


@pytest.mark.parametrize(("expr", "text"), WRITTEN, ids=[text for _, text in WRITTEN])
def test_an_expression_prints_as_it_was_written(expr: Expr, text: str) -> None:
    """`str()` gives Python with no more parentheses than needed."""
    assert str(expr) == repr(expr) == text


def test_an_expression_has_no_truth_value() -> None:
    """`and`, `or`, `not`, `if` and chained comparisons fail and say what to use."""
    for wrong in (lambda: a > 1 and b > 1, lambda: not a, lambda: 1 < a < 3, lambda: a in [b]):
        with pytest.raises(PipelineError, match=r"has no truth value before rows flow: use & \| ~ instead of"):
            wrong()


def test_an_expression_is_not_iterable() -> None:
    """Neither loops nor unpacking work on a column."""
    with pytest.raises(PipelineError, match="cannot be iterated over"):
        list(a)


def test_expressions_are_hashable_and_frozen() -> None:
    """Equal trees have equal hashes, and nothing can be assigned."""
    assert hash(a + 1) == hash(col("a") + 1)
    assert (a + 1).node == (col("a") + 1).node
    with pytest.raises(AttributeError):
        a.node = b.node  # pyright: ignore


def test_constants_are_brought_to_one_form() -> None:
    """Datetimes become UTC, numpy scalars Python's, NaN equals NaN, and 1, 1.0 and True are three constants."""
    moment = datetime(2001, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert lit(moment).node == Literal(datetime(2001, 1, 1, tzinfo=UTC))
    numpy_value: Any = np.int64(3)
    assert lit(numpy_value).node == Literal(3)
    assert lit(float("nan")).node == lit(float("nan")).node
    assert len({lit(1).node, lit(1.0).node, lit(True).node, lit(0.0).node, lit(-0.0).node}) == 5


REFUSED: list[tuple[Any, str]] = [
    (lambda: lit(datetime(2001, 1, 1)), "lit: datetime.datetime(2001, 1, 1, 0, 0) has no time zone; write"),  # noqa: DTZ001
    (lambda: a + {}, "add: {} is neither an expression nor a constant; there are bool, int,"),
    (lambda: col("a") + timedelta(106_751_992), "add: 106751992 days, 0:00:00 is too long; durations have up to"),
    (lambda: lit(2**64), "lit: 18446744073709551616 does not fit into 64 bits"),
    (lambda: when(p).then("x"), 'then(\'x\'): write lit("x") for the text or col("x") for the column'),
    (lambda: a.is_in([1, None]), 'col("a").is_in: None is equal to nothing; add | col("a").is_null()'),
    (lambda: a.is_between(1, 2, closed="maybe"), 'col("a").is_between: closed must be "both", "left", "right" or'),
    (lambda: a.dt.epoch("h"), "epoch: there is no unit='h'; there are: s, ms, us"),
    (lambda: a.str.strptime(int, "%Y"), 'col("a").str.strptime: the type must be datetime or date, got'),
    (lambda: a.cast(dict), "col(\"a\").cast: <class 'dict'> is no column type"),
    (lambda: coalesce(), "coalesce: give at least one column"),
    (lambda: col(1), "col: name= takes text, got 1"),
    (lambda: a.dt.truncate(timedelta(0)), "dt.truncate: must be positive"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_meant_is_refused_at_once(wrong: Any, message: str) -> None:
    """Mistakes that need no schema are errors where they are written."""
    with pytest.raises(PipelineError) as caught:
        wrong()
    assert message in str(caught.value)


def test_output_name_is_the_alias_or_the_leftmost_column() -> None:
    """As in Polars; values come before conditions, and a struct's field gives its own name."""
    assert output_name((a + b).alias("x")) == "x"
    assert output_name(1 - b + a) == "b"
    assert output_name(when(p).then(a).otherwise(b)) == "a"
    assert output_name(a.struct.field("x")) == "x"
    assert output_name(a.sum() / count()) == "a"
    with pytest.raises(PipelineError, match=r'select: count\(\) has no name; give it one: .alias\("name"\)'):
        output_name(count(), "select")


def test_columns_and_aggregates_are_found() -> None:
    """Wherever they stand in the tree."""
    expr = when(p).then(a.sum()).otherwise(b + 1)
    assert columns_of(expr) == {"a", "b", "p"}
    assert contains_aggregate(expr)
    assert not contains_aggregate(a + b)


def test_building_expressions_loads_no_engine() -> None:
    """`import penstock.expressions` and everything that builds and types an expression works without Polars."""
    code = (
        "import sys\n"
        "from penstock.expressions import col, when, output_field, to_json\n"
        "from penstock.types import *\n"
        "schema = Schema((Field('a', INT64),))\n"
        "to_json(col('a') + 1), output_field(when(col('a') > 1).then(col('a')), schema)\n"
        "print([name for name in ('polars', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

"""Types are known, and misfits refused with exact messages, before a row flows."""

from __future__ import annotations

import pytest

from penstock.errors import PipelineError
from penstock.expressions import (
    Expr,
    aggregate_field,
    check_predicate,
    coalesce,
    col,
    count,
    lit,
    output_field,
    row_field,
    when,
)
from penstock.types import (
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    UINT8,
    UINT32,
    UINT64,
    DataType,
    Field,
    ListType,
    Schema,
    StructType,
)

SCHEMA = Schema(
    (
        Field("price", FLOAT64), Field("count", INT64, True), Field("name", STRING), Field("at", TIMESTAMP),
        Field("day", DATE), Field("span", DURATION), Field("ok", BOOLEAN), Field("maybe", BOOLEAN, True),
        Field("i8", INT8), Field("i16", INT16), Field("i32", INT32), Field("i64", INT64), Field("u8", UINT8),
        Field("u32", UINT32), Field("u64", UINT64), Field("f32", FLOAT32), Field("tags", ListType(STRING)),
        Field("place", StructType((Field("city", STRING), Field("zip", INT64, True)))),
    )
)  # fmt: skip
price, number, name, at, day, span = col("price"), col("count"), col("name"), col("at"), col("day"), col("span")

TYPES: list[tuple[Expr, DataType, bool]] = [
    (col("i8") + col("i16"), INT16, False),
    (col("i8") + col("u8"), INT16, False),
    (col("i8") + col("u32"), INT64, False),
    (col("i64") + col("u32"), INT64, False),
    (col("u8") + col("u32"), UINT32, False),
    (col("i8") + 1, INT8, False),
    (col("i8") + 128, INT64, False),
    (col("u8") - 1, UINT8, False),
    (col("u64") + 1, UINT64, False),
    (col("i8") + 1.5, FLOAT64, False),
    (col("f32") * 0.5, FLOAT32, False),
    (col("f32") * 2, FLOAT32, False),
    (col("f32") + col("i16"), FLOAT32, False),
    (col("f32") + col("i32"), FLOAT64, False),
    (price + col("f32"), FLOAT64, False),
    (lit(1) + 2, INT64, False),
    (number + 1, INT64, True),
    (col("i8") / col("i8"), FLOAT64, False),
    (col("i8") // col("i8"), INT8, True),
    (col("i8") // 2, INT8, False),
    (col("i8") % 0, INT8, True),
    (price // 0, FLOAT64, False),
    (col("i8") ** 2, INT8, False),
    (col("i8") ** col("i8"), FLOAT64, False),
    (col("i8") ** -1, FLOAT64, False),
    (at - at, DURATION, False),
    (at + span, TIMESTAMP, False),
    (span + at, TIMESTAMP, False),
    (day - day, DURATION, False),
    (span * 2, DURATION, False),
    (3 * span, DURATION, False),
    (span / span, FLOAT64, False),
    (span // span, INT64, True),
    (span // 2, DURATION, False),
    (name + name, STRING, False),
    (number > 1, BOOLEAN, True),
    (col("ok") & col("maybe"), BOOLEAN, True),
    (number.is_null(), BOOLEAN, False),
    (number.fill_null(0), INT64, False),
    (number.fill_null(1.5), FLOAT64, False),
    (coalesce(number, price), FLOAT64, False),
    (when(col("ok")).then(1), INT64, True),
    (when(col("ok")).then(1).otherwise(2.5), FLOAT64, False),
    (when(col("ok")).then(col("i8")).otherwise(1), INT8, False),
    (when(col("ok")).then(price).otherwise(None), FLOAT64, True),
    (name.str.len_chars(), INT64, False),
    (name.str.extract("(.)"), STRING, True),
    (name.str.to_integer(), INT64, False),
    (name.str.to_integer(strict=False), INT64, True),
    (name.str.split(","), ListType(STRING), False),
    (at.dt.year(), INT64, False),
    (at.dt.date(), DATE, False),
    (col("tags").list.get(0), STRING, True),
    (col("place").struct.field("city"), STRING, False),
    (col("place").struct.field("zip"), INT64, True),
    (price.cast(int), INT64, False),
    (price.cast(int, strict=False), INT64, True),
    (number.hash(), INT64, False),
    (count(), INT64, False),
    (number.count(), INT64, False),
    (col("i8").sum(), INT64, False),
    (col("u8").sum(), UINT64, False),
    (col("f32").sum(), FLOAT64, False),
    (col("ok").sum(), INT64, False),
    (span.sum(), DURATION, False),
    (number.sum(), INT64, True),
    (number.mean(), FLOAT64, True),
    (span.mean(), DURATION, False),
    (name.max(), STRING, False),
    (number.last(), INT64, True),
    (number.n_unique(), INT64, False),
    (name.collect(), ListType(STRING), False),
    (price.median(), FLOAT64, False),
    (price.sum() / count(), FLOAT64, False),
]


@pytest.mark.parametrize(("expr", "kind", "nullable"), TYPES, ids=[str(expr) for expr, _, _ in TYPES])
def test_type_and_nullability(expr: Expr, kind: DataType, nullable: bool) -> None:
    """The type and whether the column can be null follow from the schema."""
    field = output_field(expr, SCHEMA)
    assert (field.type, field.nullable) == (kind, nullable)


ERRORS: list[tuple[Expr, str]] = [
    (price + name, 'with_columns: col("price") + col("name"): cannot add float64 and string; cast one of them'),
    (
        (price + name).abs().alias("x"),
        'with_columns: col("price") + col("name"): cannot add float64 and string; cast one of them '
        '(in (col("price") + col("name")).abs())',
    ),
    (col("prise"), "with_columns: there is no column 'prise'; did you mean 'price'?"),
    (col("prise") * 2, "with_columns: col(\"prise\") * 2: there is no column 'prise'; did you mean 'price'?"),
    (
        at > "2001-01-01",
        'with_columns: col("at") > "2001-01-01": cannot compare timestamp and string; make a timestamp of the text '
        "with .str.to_datetime(format), or write datetime(..., tzinfo=UTC)",
    ),
    (
        day < at,
        'with_columns: col("day") < col("at"): cannot compare date and timestamp; make a date of the timestamp with '
        ".dt.date(), or a timestamp of the date with .cast(datetime)",
    ),
    (
        day + span,
        'with_columns: col("day") + col("span"): cannot add date and duration; make a timestamp of the date: '
        ".cast(datetime)",
    ),
    (
        span > 5,
        'with_columns: col("span") > 5: cannot compare duration and int64; use .dt.total_seconds() to get a number, '
        "or a timedelta for a duration",
    ),
    (
        col("u64") + col("i8"),
        'with_columns: col("u64") + col("i8"): cannot add uint64 and int8; cast one of them',
    ),
    (
        price & 1,
        'with_columns: col("price") & 1: & needs boolean or integers, got float64; put comparisons in parentheses: '
        "(a > 1) & (b > 2)",
    ),
    (-name, 'with_columns: -col("name"): cannot negate string; it needs a number'),
    (-col("u8"), 'with_columns: -col("u8"): cannot negate uint8, which has no negative values; cast it to int64'),
    (name.sqrt(), 'with_columns: col("name").sqrt(): cannot take the square root of string; cast it'),
    (name.abs(), 'with_columns: col("name").abs(): .abs() needs a number or duration, got string'),
    (price.str.head(1), 'with_columns: col("price").str.head(1): .str.head() needs string, got float64'),
    (name.dt.year(), 'with_columns: col("name").dt.year(): .dt.year() needs date or timestamp, got string'),
    (
        name.str.contains("("),
        'with_columns: col("name").str.contains("("): the regular expression \'(\' is not valid: unclosed group',
    ),
    (name.str.split(""), 'with_columns: col("name").str.split(""): .str.split() needs a separator of at least one '
                         "character"),
    (name.list.len(), 'with_columns: col("name").list.len(): .list.len() needs a list, got string'),
    (
        col("place").struct.field("town"),
        'with_columns: col("place").struct.field("town"): struct{city: string, zip: int64 or null} has no field '
        "'town'; there are: city, zip",
    ),
    (day.cast(bool), 'with_columns: col("day").cast(boolean): cannot cast date to boolean; there is no such conversion'),
    (name.cast(TIMESTAMP), 'with_columns: col("name").cast(timestamp): cannot cast string to timestamp; use '
                           ".str.to_datetime(format)"),
    (price.cast(TIMESTAMP), 'with_columns: col("price").cast(timestamp): cannot cast float64 to timestamp; cast by '
                            "way of int64, which counts microseconds"),
    (when(number).then(1), 'with_columns: when(col("count")).then(1): when() needs boolean, got int64'),
    (
        when(col("ok")).then(1).otherwise(name),
        'with_columns: when(col("ok")).then(1).otherwise(col("name")): the branches have the types int64 and string; '
        "cast them to one type",
    ),
    (name.sum(), 'with_columns: col("name").sum(): .sum() needs a number or boolean or duration, got string'),
    (price.quantile(2), 'with_columns: col("price").quantile(2): .quantile() needs a number between 0 and 1, got 2'),
    (price.sum().max(), 'with_columns: col("price").sum().max(): an aggregate cannot stand within another one'),
    (
        price.sum() + price,
        "with_columns: column 'price' stands outside an aggregate, where a group has many values of it; "
        "write for example col('price').last() or .max()",
    ),
    (lit(1).sum(), "with_columns: lit(1).sum() reads no column; use count() or lit() outside the aggregate"),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "message"), ERRORS, ids=[str(expr) for expr, _ in ERRORS])
def test_misfits_are_named(expr: Expr, message: str) -> None:
    """The message says where, in which expression, what does not fit, and what to do."""
    with pytest.raises(PipelineError) as caught:
        output_field(expr, SCHEMA, "with_columns")
    assert str(caught.value) == message


def test_rows_groups_and_conditions_are_told_apart() -> None:
    """A row-level verb refuses aggregates, an aggregation needs them, and a filter needs a boolean."""
    with pytest.raises(PipelineError, match=r'select: col\("price"\).sum\(\) is an aggregate of many rows; use it in'):
        row_field(price.sum(), SCHEMA)
    with pytest.raises(PipelineError, match=r'agg: col\("price"\) is not an aggregate; write for example count\(\)'):
        aggregate_field(price, SCHEMA)
    with pytest.raises(PipelineError, match=r'filter: col\("price"\) is float64, not boolean; compare it'):
        check_predicate(price, SCHEMA)
    with pytest.raises(PipelineError, match=r"select: need an expression, got 'price'; write col\('price'\)"):
        row_field("price", SCHEMA)  # pyright: ignore
    check_predicate(price > 1, SCHEMA)


def test_the_name_is_given_implied_or_the_text() -> None:
    """An expression of constants only is called what it says."""
    assert output_field(price * 2, SCHEMA).name == "price"
    assert output_field(price * 2, SCHEMA, name="x").name == "x"
    assert output_field(lit(1) + 2, SCHEMA).name == "lit(1) + 2"

"""UNNEST: what it makes of arrays, of arrays of rows, and of maps, with and without their places."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Pipeline
from penstock.connectors import iterables
from penstock.types import INT32, INT64, STRING, Field, ListType, MapType, Schema, StructType

PAIR = StructType((Field("x", INT64, nullable=True), Field("y", STRING, nullable=True)))
SCHEMA = Schema(
    (
        Field("id", INT64),
        Field("a", ListType(INT64), nullable=True),
        Field("m", MapType(INT64), nullable=True),
        Field("r", ListType(PAIR), nullable=True),
    )
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "a": [5, 6], "m": {"k": 1, "l": None}, "r": [{"x": 1, "y": "p"}, None]},
    {"id": 2, "a": [], "m": {}, "r": []},
    {"id": 3, "a": None, "m": None, "r": None},
    {"id": 4, "a": [None], "m": {"z": 3}, "r": [{"x": None, "y": "q"}]},
]


def found(text: str) -> tuple[Schema, list[tuple[Any, ...]]]:
    pipeline = Pipeline("lists")
    stream = pipeline.sql(text, t=pipeline.read(iterables.Source(ROWS, schema=SCHEMA)))
    return stream.schema, stream.collect().rows()


ELEMENTS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("UNNEST(a)", [(1, 5), (1, 6), (4, None)]),
    ("UNNEST(a) WITH ORDINALITY", [(1, 5, 1), (1, 6, 2), (4, None, 1)]),
    ("UNNEST(m)", [(1, "k", 1), (1, "l", None), (4, "z", 3)]),
    ("UNNEST(m) WITH ORDINALITY", [(1, "k", 1, 1), (1, "l", None, 2), (4, "z", 3, 1)]),
    ("UNNEST(r)", [(1, 1, "p"), (1, None, None), (4, None, "q")]),
    ("UNNEST(r) WITH ORDINALITY", [(1, 1, "p", 1), (1, None, None, 2), (4, None, "q", 1)]),
]


@pytest.mark.parametrize(("call", "rows"), ELEMENTS)
def test_a_row_has_a_row_for_each_element(call: str, rows: list[tuple[Any, ...]]) -> None:
    """A cross join has none for a row without elements; a left join has one, of nulls."""
    assert found(f"SELECT id, e.* FROM t CROSS JOIN {call} AS e")[1] == rows
    assert found(f"SELECT id, e.* FROM t, {call} AS e")[1] == rows
    nulls = (None,) * (len(rows[0]) - 1)
    kept = sorted([*rows, (2, *nulls), (3, *nulls)], key=lambda row: row[0])
    assert found(f"SELECT id, e.* FROM t LEFT JOIN {call} AS e ON TRUE")[1] == kept


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("UNNEST(a) AS e", ["e"]),
        ("UNNEST(a) WITH ORDINALITY", ["EXPR$0", "ordinality"]),
        ("UNNEST(m) WITH ORDINALITY AS e", ["key", "value", "ordinality"]),
        ("UNNEST(m) WITH ORDINALITY AS e (k)", ["k", "value", "ordinality"]),
        ("UNNEST(r) WITH ORDINALITY AS e (one, other, n)", ["one", "other", "n"]),
    ],
)
def test_columns_have_the_names_of_the_text(call: str, names: list[str]) -> None:
    """As far as it gives any."""
    assert found(f"SELECT * EXCLUDE (id, a, m, r) FROM t, {call}")[0].names == tuple(names)


def test_places_are_numbers_that_are_never_null_unless_a_join_makes_them_so() -> None:
    """INT, as in Flink."""
    assert found("SELECT n FROM t, UNNEST(a) WITH ORDINALITY AS e (x, n)")[0].fields == (Field("n", INT32),)
    left = found("SELECT n FROM t LEFT JOIN UNNEST(a) WITH ORDINALITY AS e (x, n) ON TRUE")[0]
    assert left.fields == (Field("n", INT32, nullable=True),)


def test_places_are_columns_like_others() -> None:
    """In conditions, expressions and groups, beside columns of the same name, and without the elements."""
    both = "FROM t, UNNEST(a) WITH ORDINALITY AS e (x, n), UNNEST(m) WITH ORDINALITY AS f (k, v, n)"
    assert found(f"SELECT id, e.n, f.n {both} WHERE e.n = f.n")[1] == [(1, 1, 1), (1, 2, 2), (4, 1, 1)]
    assert found("SELECT n * 10 FROM t, UNNEST(a) WITH ORDINALITY AS e (x, n) WHERE n > 1")[1] == [(20,)]
    assert found("SELECT y, n FROM UNNEST(ARRAY['p', 'q']) WITH ORDINALITY AS e (y, n)")[1] == [("p", 1), ("q", 2)]

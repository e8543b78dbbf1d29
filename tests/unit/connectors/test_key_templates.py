"""Names and addresses that are made of the columns of a key: each of one key, and of no other."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors import http, opensearch, redis
from penstock.connectors.http_requests import AddressTemplate
from penstock.connectors.lookups import KeyTemplate
from penstock.errors import BadRecordError
from penstock.types import BOOLEAN, DATE, INT64, STRING, TIMESTAMP, DataType, DecimalType, Field, Schema

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    STRING: st.text("a-10:.~A", max_size=3),
    INT64: st.integers(-12, 12),
    BOOLEAN: st.booleans(),
    DecimalType(4, 1): st.decimals(-12, 12, places=1, allow_nan=False),
    DATE: st.sampled_from([date(2026, 1, 2), date(2026, 1, 12)]),
    TIMESTAMP: st.sampled_from([AT, AT.replace(microsecond=1)]),
}
SIGNS = st.text("a-1:.~/A", max_size=2)


def keys_of(*kinds: DataType) -> Schema:
    return Schema(tuple(Field(name, kind) for name, kind in zip("abc", kinds, strict=False)))


@given(st.data(), st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3), st.booleans())
def test_no_two_keys_have_the_same_text(data: st.DataObject, kinds: list[DataType], in_address: bool) -> None:
    """And whenever keys would have the same one of them has it: a text that nobody else would have is not refused."""
    keys = keys_of(*kinds)
    order = data.draw(st.lists(st.sampled_from(keys.names), max_size=1)) + list(keys.names)
    text = "http://h/" + "".join(f"{data.draw(SIGNS)}{{{name}}}" for name in order) + data.draw(SIGNS)
    make = AddressTemplate if in_address else KeyTemplate
    strict, lax = make("test", text, keys), make("test", text, keys, apart=False)
    found: dict[str, tuple[Any, ...]] = {}
    refused: dict[str, tuple[Any, ...]] = {}
    for key in data.draw(st.lists(st.tuples(*(VALUES[kind] for kind in kinds)), min_size=20, max_size=60, unique=True)):
        made, whole = strict.text(key), lax.text(key)
        assert whole is not None
        if made is None:
            assert strict.problem(key)
            refused[whole] = key
        else:
            assert made == whole
            assert found.setdefault(made, key) == key
    for whole, key in refused.items():
        other = tuple(map(read_again, strict._read(whole), kinds))
        assert other != key
        assert strict.text(other) == whole


def read_again(text: str, kind: DataType) -> Any:
    read: Any = {
        STRING: unquote, INT64: int, BOOLEAN: "true".__eq__, DATE: date.fromisoformat,
        TIMESTAMP: lambda at: datetime.fromisoformat(unquote(at)),
    }  # fmt: skip
    return read.get(kind, Decimal)(text)


@pytest.mark.parametrize(
    ("text", "kinds", "key", "made"),
    [
        ("t:{a}:{b}", (STRING, STRING), ("a", "b:c"), "t:a:b:c"),
        ("t:{a}:{b}", (STRING, STRING), ("a:b", "c"), None),
        ("{a}::{b}", (STRING, STRING), ("a:", "b"), None),
        ("{a}::{b}", (STRING, STRING), ("a", ":b"), "a:::b"),
        ("{a}:{b}", (STRING, TIMESTAMP), ("a:b", AT), "a:b:2026-01-02T03:04:05Z"),
        ("{a}-{b}", (STRING, DATE), ("a-2026", AT.date()), "a-2026-2026-01-02"),
        ("{a}-{b}", (STRING, INT64), ("a", -1), "a--1"),
        ("{a}-{b}", (STRING, INT64), ("a-", 1), None),
        ("{a}{b}", (INT64, STRING), (12, "x"), "12x"),
        ("{a}{b}", (INT64, STRING), (1, "2x"), None),
        ("{a}{b}", (STRING, INT64), ("0", 5), "05"),
        ("{a}{b}", (DATE, STRING), (AT.date(), "2"), "2026-01-022"),
        ("{a}-{b}-{a}", (STRING, STRING), ("x", "y-z"), "x-y-z-x"),
        ("{{{a}}}{{{b}}}", (STRING, STRING), ("x", "y"), "{x}{y}"),
        ("{{{a}}}{{{b}}}", (STRING, STRING), ("x}{", "y"), None),
        ("{a}-x", (STRING,), ("a-x-x",), "a-x-x-x"),
        ("{a}\n{b}", (STRING, STRING), ("a", "b\nc"), "a\nb\nc"),
    ],
)  # fmt: skip
def test_which_key_has_a_text(text: str, kinds: Any, key: Any, made: str | None) -> None:
    """That which is read out of it."""
    assert KeyTemplate("test", text, keys_of(*kinds)).text(key) == made


@pytest.mark.parametrize(
    ("text", "key", "made"),
    [
        ("/{a}/{b}", ("a/b", "c"), "/a%2Fb/c"),
        ("/{a}/{b}", ("a", "b/c"), "/a/b%2Fc"),
        ("/{a}:{b}", ("a:b", "c"), "/a%3Ab:c"),
        ("/{a}-{b}", ("a", "b-c"), "/a-b-c"),
        ("/{a}-{b}", ("a-b", "c"), None),
        ("/{a}A{b}", (":", "c"), "/%3AAc"),
    ],
)
def test_addresses_by_what_is_encoded(text: str, key: Any, made: str | None) -> None:
    """A separator that is never in a value is none of it."""
    found = AddressTemplate("test", f"http://h{text}", keys_of(STRING, STRING)).text(key)
    assert found == (None if made is None else f"http://h{made}")


def test_why_there_is_none() -> None:
    """By column, value and separator, and what to do."""
    template = KeyTemplate("redis.Lookup", "{a}{{:{b}", keys_of(STRING, STRING))
    said = (
        r"^redis.Lookup: '\{a\}\{\{:\{b\}' would make the same of another key: column a is 'x\{:y', and '\{:' stands "
        r"behind it there; put another separator behind \{a\}, which no value has, or cast or replace its values before$"
    )
    with pytest.raises(BadRecordError, match=said):
        template.asked(("x{:y", "z"))
    with pytest.raises(BadRecordError, match="column a is '1', and nothing stands between it and the next one"):
        KeyTemplate("redis.Lookup", "{a}{b}", keys_of(INT64, INT64)).asked((1, 23))


@pytest.mark.parametrize(
    ("value", "text"), [("0.00000001", "0.00000001"), ("0.00000000", "0.00000000"), ("-1.50000000", "-1.50000000")]
)
def test_decimals_as_everybody_writes_them(value: str, text: str) -> None:
    """With all their digits."""
    assert KeyTemplate("test", "{a}", keys_of(DecimalType(12, 8))).text((Decimal(value),)) == text


@pytest.mark.parametrize(
    "sink",
    [
        redis.Sink("{shop}:{item}", url="redis://h", bad_rows="skip"),
        http.Sink("http://h/{shop}~{item}", method="PUT", bad_rows="skip"),
        http.Sink("http://h/", idempotency_key="{shop}:{item}", bad_rows="skip"),
        opensearch.Sink("t", url="http://h", document_id="{shop}:{item}", bad_rows="skip"),
    ],
    ids=lambda sink: f"{sink.kind}-{getattr(sink, 'method', '')}",
)
def test_sinks_take_such_rows_for_bad_ones(sink: Any) -> None:
    """Counted or refused by the sink's policy; the row that has the name is written."""
    signs = pl.DataFrame({"shop": ["a~b", "a:b", "a", "a"], "item": ["c", "c", "b~c", "b:c"]})
    schema = Schema(tuple(Field(name, STRING) for name in ("shop", "item")))
    encoded = sink._encoder(schema).encode(signs)
    assert (encoded.frame.height, encoded.skipped) == (3, 1)
    failing = type(sink)(**_options(sink), bad_rows="fail")
    with pytest.raises(BadRecordError, match=r"column shop is 'a[~:]b', and '[~:]' stands behind it"):
        failing._encoder(schema).encode(signs)


def _options(sink: Any) -> dict[str, Any]:
    match sink.kind:
        case "redis":
            return {"key": sink.key, "url": "redis://h"}
        case "http":
            return {"url": sink.url, "method": sink.method, "idempotency_key": sink.idempotency_key}
        case _:
            return {"index": sink.index, "url": "http://h", "document_id": sink.document_id}


def test_what_only_says_where_rows_go_may_be_the_same() -> None:
    """An index holds the rows of several keys, and so does an address that they are posted to."""
    rows = pl.DataFrame({"shop": ["a-b", "a"], "item": ["c", "b-c"]})
    schema = Schema(tuple(Field(name, STRING) for name in ("shop", "item")))
    for sink in (opensearch.Sink("t-{shop}-{item}", url="http://h"), http.Sink("http://h/{shop}-{item}")):
        assert sink._encoder(schema).encode(rows).frame.height == 2

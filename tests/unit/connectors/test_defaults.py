"""Defaults of a dataclass or Struct stand for fields that the data lack; what no column can hold is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest

from penstock import DecimalType, Pipeline, PipelineError
from penstock.connectors import collecting, iterables
from penstock.formats.csv_decoding import CsvDecoder
from penstock.formats.decoding import JsonDecoder
from penstock.formats.schema_matching import SchemaMatcher
from penstock.types import schema_of

MONEY = Annotated[Decimal, DecimalType(12, 2)]

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@dataclass
class Place:
    """A nested row."""

    city: str
    country: str = "DE"


@dataclass
class Order:
    """What is read."""

    id: int
    amount: float = 1
    currency: str = "EUR"
    note: str | None = "none"
    at: datetime = NOON
    took: timedelta = timedelta(0)
    tags: list[str] = field(default_factory=lambda: ["new"])
    place: Place | None = None


class Flat(msgspec.Struct):
    """A Struct without parts."""

    id: int
    currency: str = "EUR"
    ok: bool = True
    note: str | None = "none"


FILLED = {
    "id": 1, "amount": 1.0, "currency": "EUR", "note": "none", "at": NOON, "took": timedelta(0), "tags": ["new"],
    "place": None,
}  # fmt: skip


@pytest.mark.parametrize("more", [b"", b'{"id": "no"}\n'])
def test_json_is_filled_with_defaults(more: bytes) -> None:
    """As a whole block, and line by line beside one that is bad."""
    block = b'{"id": 1}\n{"id": 1, "place": {"city": "Ulm"}, "note": null, "amount": 2.5}\n' + more
    decoded = JsonDecoder(schema_of(Order)).decode(block)
    assert decoded.frame.to_dicts() == [
        FILLED,
        {**FILLED, "place": {"city": "Ulm", "country": "DE"}, "note": None, "amount": 2.5},
    ]
    assert len(decoded.bad) == bool(more)


def test_null_is_no_missing_field() -> None:
    """Where null is not allowed, a null is wrong, default or not."""
    decoded = JsonDecoder(schema_of(Order)).decode(b'{"id": 1, "currency": null}\n')
    assert decoded.frame.height == 0
    assert "currency" in decoded.bad[0].error


def test_csv_without_the_column_is_filled_with_defaults() -> None:
    """The header says which columns there are."""
    decoded = CsvDecoder(schema_of(Flat), ["id"], "a.csv").decode(b"1\n2\n")
    assert decoded.frame.rows() == [(1, "EUR", True, "none"), (2, "EUR", True, "none")]


def test_typed_columns_that_lack_one_are_filled_with_defaults() -> None:
    """As Parquet and Arrow files may."""
    batch = pa.record_batch({"id": pa.array([1, 2])})
    frame, bad = SchemaMatcher(schema_of(Order), batch.schema, "a.parquet").frame(batch)
    assert frame.to_dicts() == [FILLED, {**FILLED, "id": 2}]
    assert not bad


def test_dicts_of_an_iterable_are_filled_with_defaults() -> None:
    """Dictionaries without the key."""
    made = Pipeline("defaults")
    sink = collecting.Sink()
    made.read(iterables.Source([{"id": 1}, {"id": 2, "currency": "SEK"}], schema=Flat)).write(sink)
    made.run()
    assert [(row["currency"], row["note"]) for row in sink.rows] == [("EUR", "none"), ("SEK", "none")]


@pytest.mark.parametrize(
    ("hint", "default"),
    [
        (int, "1"),
        (str, 1),
        (int, True),
        (bool, 1),
        (MONEY, 0.5),
        (MONEY, Decimal("0.001")),
        (datetime, datetime(2024, 1, 1)),  # noqa: DTZ001
    ],
)
def test_a_default_of_another_type_is_refused(hint: Any, default: Any) -> None:
    """When the schema is declared."""
    wrong = msgspec.defstruct("Wrong", [("x", hint, default)])
    with pytest.raises(
        PipelineError, match=r"schema: Wrong\.x: the default .* is no .*; (write|it has more than 2 digits)"
    ):
        schema_of(wrong)


@pytest.mark.parametrize(
    ("hint", "advice"),
    [
        (Decimal, r"write Annotated\[Decimal, DecimalType\(12, 2\)\]"),
        (dict[int, int], r"write dict\[str, \.\.\.\] with the type of the values; keys are text"),
        (tuple[int, int], "or a dataclass if its parts differ"),
    ],
)
def test_types_that_no_column_has_are_refused_with_what_to_write_instead(hint: Any, advice: str) -> None:
    """When the schema is declared."""
    wrong = msgspec.defstruct("Wrong", [("x", hint)])
    with pytest.raises(PipelineError, match=rf"schema: Wrong\.x: .* is no column type; .*{advice}"):
        schema_of(wrong)

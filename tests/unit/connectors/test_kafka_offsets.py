"""Where reading of a partition begins and ends, for whatever a user writes; the broker is asked in tests/integration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from penstock.connectors.kafka.offsets import _bounds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOW, HIGH = 10, 50


class Answers:
    """A partition with the offsets LOW to HIGH, the record with offset n at 100 * n milliseconds."""

    def __init__(self, end: int = OFFSET_END) -> None:
        self._end = end

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return LOW, HIGH

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        (place,) = places
        offset = next((offset for offset in range(LOW, HIGH) if offset * 100 >= place.offset), self._end)
        return [TopicPartition(place.topic, place.partition, offset)]


def bounds(start: Any, end: Any = None, consumer: Answers | None = None) -> tuple[int, int | None]:
    return _bounds(cast("Consumer", consumer or Answers()), TopicPartition("orders", 3), start, end)


def at(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", LOW),
        ("latest", HIGH),
        ({3: 20}, 20),
        ({2: 20}, LOW),
        (at(2_000_000), 20),
        (at(1_999_999), 20),
        (at(2_000_001), 21),
        (at(0), LOW),
        (at(-1), LOW),
        (at(4_900_000), 49),
        (at(4_900_001), HIGH),
    ],
)
def test_reading_begins_at_the_first_record_that_is_wanted(start, first) -> None:
    """A moment between two milliseconds is that of the later one: the record before it is too old."""
    assert bounds(start) == (first, None)


@pytest.mark.parametrize(
    ("end", "last"),
    [("latest", HIGH), ({3: 20}, 20), ({2: 20}, HIGH), (at(2_000_000), 20), (at(2_000_001), 21), (at(9_000_000), HIGH)],
)
def test_reading_ends_before_the_first_record_that_is_not_wanted(end, last) -> None:
    assert bounds("earliest", end) == (LOW, last)


@pytest.mark.parametrize("end", [{3: 20}, at(2_000_000), "earliest"])
def test_an_end_before_the_beginning_is_the_beginning(end) -> None:
    """So nothing is read; a negative number of records would never be reached."""
    assert bounds({3: 30}, end) == (30, 30)


@pytest.mark.parametrize("beyond", [OFFSET_END, -1])
def test_behind_the_newest_record_is_the_end(beyond) -> None:
    """Which clients say in two ways."""
    assert bounds(at(9_000_000), consumer=Answers(beyond)) == (HIGH, None)

"""A destination with transactions, in memory: what a sink that publishes from its own exchange writes to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from penstock.connectors.base import (
    Encoded,
    Guarantee,
    ProducerFencedError,
    PublishContext,
    PublishedMark,
    PublishedSink,
    SinkEncoder,
    SinkPublisher,
    SinkWriter,
    WriteContext,
)
from penstock.errors import ExternalError
from penstock.types import Schema


@dataclass
class Destination:
    """Outlives every run: visible rows, marks, the newest producer of each partition."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    marks: dict[tuple[Any, ...], PublishedMark] = field(default_factory=dict[tuple[Any, ...], PublishedMark])
    producers: dict[tuple[Any, ...], object] = field(default_factory=dict[tuple[Any, ...], object])
    refuses_rows: bool = False
    """Whether transactions with rows fail; marks alone are still committed."""
    refused: int = 0
    """How many did."""


@dataclass(frozen=True)
class Sink(PublishedSink):
    """Publishes rows as they are."""

    destination: Destination
    kind = "destination"

    @property
    def guarantee(self) -> Guarantee:
        return "exactly-once"

    def check(self, schema: Schema, *, updates: bool) -> None:
        return

    def open(self, schema: Schema, context: WriteContext) -> SinkWriter:
        raise AssertionError("it is exactly-once only")

    def describe(self) -> Mapping[str, Any]:
        return {}

    def encoded_schema(self, schema: Schema) -> Schema:
        return schema

    async def encoder(self, schema: Schema, operator: str) -> SinkEncoder:
        return _AsTheyAre()

    def publisher(self, context: PublishContext) -> SinkPublisher:
        return _Publisher(self.destination, (context.job, context.operator, context.generation, context.partition))

    async def forget(self, context: PublishContext) -> None:
        return


class _AsTheyAre:
    def encode(self, frame: pl.DataFrame) -> Encoded:
        return Encoded(frame)


class _Publisher:
    def __init__(self, destination: Destination, key: tuple[Any, ...]) -> None:
        self._destination = destination
        self._key = key

    async def open(self) -> None:
        return

    async def init_producer(self) -> None:
        self._destination.producers[self._key] = self

    async def read_mark(self) -> PublishedMark | None:
        return self._destination.marks.get(self._key)

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> None:
        destination = self._destination
        if destination.producers[self._key] is not self:
            raise ProducerFencedError("another producer has started")
        if frames and destination.refuses_rows:
            destination.refused += 1
            raise ExternalError("it takes no rows now")
        for frame in frames:
            destination.rows.extend(json.loads(frame.write_json()))
        destination.marks[self._key] = mark

    async def close(self) -> None:
        return

"""Avro in Kafka records: in Confluent's wire format with a schema registry, or written with one known schema."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

from penstock.connectors.kafka.schema_registry import MAGIC, PREFIX, SchemaRegistry
from penstock.errors import ExternalError, PipelineError
from penstock.formats.avro import avro_schema
from penstock.formats.columns import FrameBuilder
from penstock.formats.decoding import BadLine, Decoded
from penstock.types import Schema


class AvroValues:
    """Decodes one datum per record: by the schema its id names, else by the writer's, else by that of the rows."""

    rows_per_value = True

    def __init__(self, schema: Schema, registry: str | None, writer_schema: str | None) -> None:
        import fastavro

        self._schema = schema
        self._builder = FrameBuilder(schema)
        self._registry = SchemaRegistry(registry) if registry is not None else None
        own = fastavro.parse_schema(avro_schema(schema))
        self._writer: Any = fastavro.parse_schema(json.loads(writer_schema)) if writer_schema is not None else own
        self._by_id: dict[int, Any] = {}

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, None]:
        """Rows by field name: a field that the writer's schema lacks is null where that is allowed."""
        rows: list[dict[str, Any]] = []
        indexes: list[int] = []
        bad: list[BadLine] = []
        for index, value in enumerate(values):
            try:
                row = self._row(value)
            except (ExternalError, PipelineError):  # the registry's, not the record's
                raise
            except Exception as error:  # whatever fastavro meets in bytes that are no datum
                bad.append(BadLine(index, f"no datum of its schema: {type(error).__name__}: {error}", value))
                continue
            rows.append(row)
            indexes.append(index)
        frame, wrong = self._builder.frame(
            [[row.get(field.name, field.default) for row in rows] for field in self._schema]
        )
        bad += [BadLine(indexes[index], error, values[indexes[index]]) for index, error in wrong]
        return Decoded(frame, sorted(bad, key=lambda line: line.index)), None

    def _row(self, value: bytes) -> dict[str, Any]:
        import fastavro

        writer = self._writer
        data = value
        if self._registry is not None:
            magic, number = PREFIX.unpack_from(value)
            if magic != MAGIC:
                raise ValueError(f"begins with {magic}, not with 0 and the id of a schema")
            writer = self._by_id.get(number) or self._fetch(self._registry, number)
            data = value[PREFIX.size :]
        read = io.BytesIO(data)
        row: Any = fastavro.schemaless_reader(read, writer, None)
        if read.tell() != len(data):
            raise ValueError(f"{len(data) - read.tell()} bytes are left over")
        if not isinstance(row, dict):
            raise ValueError(f"a {type(row).__name__}, not a record")
        return row

    def _fetch(self, registry: SchemaRegistry, number: int) -> Any:
        """An id that nobody has registered is the record's fault."""
        import fastavro

        self._by_id[number] = fastavro.parse_schema(registry.schema(number))
        return self._by_id[number]

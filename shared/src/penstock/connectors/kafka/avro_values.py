"""Avro in Kafka records: in Confluent's wire format with a schema registry, or written with one known schema."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, cast

from penstock.connectors.kafka.row_values import RowValues
from penstock.connectors.kafka.schema_registry import MAGIC, PREFIX, SchemaRegistry
from penstock.formats.avro import avro_schema, of_column
from penstock.formats.misspelt import misspelt_in_names
from penstock.types import BINARY, DURATION, STRING, Field, Schema, parts_of


class AvroValues(RowValues):
    """Decodes one datum per record: by the schema its id names, else by the writer's, else by that of the rows.

    A field that the writer's schema lacks is null where that is allowed. Numbers (long) in columns of durations count
    microseconds.
    """

    def __init__(
        self, schema: Schema, registry: str | None, writer_schema: str | None, zone: tzinfo | None = None
    ) -> None:
        """`zone`: that of `local-timestamp-millis` and `-micros`."""
        import fastavro

        super().__init__(schema, "datum of its schema", zone)
        self._registry = SchemaRegistry(registry) if registry is not None else None
        self.asks = registry is not None
        own = fastavro.parse_schema(avro_schema(schema))
        self._writer: Any = fastavro.parse_schema(json.loads(writer_schema)) if writer_schema is not None else own
        self._by_id: dict[int, Any] = {}
        self._made: dict[int, list[Field]] = {}
        self._look(self._writer)

    def _row(self, value: bytes) -> Sequence[Any]:
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
        for field in self._made_of(writer):
            if field.name in row:
                row[field.name] = of_column(row[field.name], field.type)
        return [row.get(field.name, field.default) for field in self._schema]

    def _made_of(self, writer: Any) -> list[Field]:
        """The columns whose values are made of what fastavro gives, with this schema of the writer."""
        known = self._made.get(id(writer))
        if known is None:
            wanted = {DURATION, STRING, BINARY} if "uuid" in str(writer) else {DURATION}
            known = [field for field in self._schema if not wanted.isdisjoint(parts_of(field.type))]
            self._made[id(writer)] = known
        return known

    def _fetch(self, registry: SchemaRegistry, number: int) -> Any:
        """An id that nobody has registered is the record's fault."""
        import fastavro

        self._by_id[number] = fastavro.parse_schema(registry.schema(number))
        self._look(self._by_id[number])
        return self._by_id[number]

    def _look(self, writer: Any) -> None:
        """Which optional fields the writer's schema, if it is a record's, seems to spell otherwise."""
        if isinstance(writer, dict) and "fields" in writer:
            fields = cast("list[dict[str, Any]]", writer["fields"])
            self._misspelt = misspelt_in_names(self._schema.fields, [each["name"] for each in fields])

"""Avro in Kafka records: in Confluent's wire format with a schema registry, or written with one known schema."""

from __future__ import annotations

import io
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

from penstock.connectors.avro import avro_schema
from penstock.connectors.columns import FrameBuilder
from penstock.connectors.decoding import BadLine, Decoded
from penstock.errors import ExternalError
from penstock.types import Schema

_MAGIC: Final = 0
_PREFIX: Final = struct.Struct(">bI")
_TIMEOUT_S: Final = 10.0
_NOT_FOUND: Final = 404


class AvroValues:
    """Decodes one datum per record: by the schema its id names, else by the writer's, else by that of the rows."""

    rows_per_value = True

    def __init__(self, schema: Schema, registry: str | None, writer_schema: str | None) -> None:
        import fastavro

        self._schema = schema
        self._builder = FrameBuilder(schema)
        self._registry = registry.rstrip("/") if registry is not None else None
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
            except ExternalError:
                raise
            except Exception as error:  # whatever fastavro meets in bytes that are no datum
                bad.append(BadLine(index, f"no datum of its schema: {type(error).__name__}: {error}", value))
                continue
            rows.append(row)
            indexes.append(index)
        frame, wrong = self._builder.frame([[row.get(name) for row in rows] for name in self._schema.names])
        bad += [BadLine(indexes[index], error, values[indexes[index]]) for index, error in wrong]
        return Decoded(frame, sorted(bad, key=lambda line: line.index)), None

    def _row(self, value: bytes) -> dict[str, Any]:
        import fastavro

        writer = self._writer
        data = value
        if self._registry is not None:
            magic, number = _PREFIX.unpack_from(value)
            if magic != _MAGIC:
                raise ValueError(f"begins with {magic}, not with 0 and the id of a schema")
            writer = self._by_id.get(number) or self._fetch(number)
            data = value[_PREFIX.size :]
        read = io.BytesIO(data)
        row: Any = fastavro.schemaless_reader(read, writer, None)
        if read.tell() != len(data):
            raise ValueError(f"{len(data) - read.tell()} bytes are left over")
        if not isinstance(row, dict):
            raise ValueError(f"a {type(row).__name__}, not a record")
        return row

    def _fetch(self, number: int) -> Any:
        import fastavro

        address = f"{self._registry}/schemas/ids/{number}"
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
                text = json.loads(answer.read())["schema"]
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _NOT_FOUND:  # an id that nobody has registered is the record's fault
                raise ValueError(f"the schema registry knows no schema {number}") from error
            raise ExternalError(f"schema registry: {address}: {error}") from error
        except (OSError, ValueError, KeyError) as error:
            raise ExternalError(f"schema registry: {address}: {error}") from error
        self._by_id[number] = fastavro.parse_schema(json.loads(text))
        return self._by_id[number]

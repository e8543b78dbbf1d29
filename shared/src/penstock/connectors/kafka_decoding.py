"""Values of Kafka records to rows, format by format; a batch of records at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Protocol

from penstock.connectors.columns import FrameBuilder
from penstock.connectors.decoding import BadLine, Decoded, JsonDecoder
from penstock.errors import PipelineError
from penstock.types import STRING, Schema

if TYPE_CHECKING:
    import polars as pl

    from penstock.connectors.kafka_source import Source


class ValueDecoder(Protocol):
    """Decodes the values of consecutive records."""

    rows_per_value: bool
    """Whether a value is exactly one row; else the numbers of rows come back as `counts`."""

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, Sequence[int] | None]:
        """The rows in order and the bad records (`BadLine.index` counts values); rows per value where they differ."""
        ...


class _Json:
    rows_per_value = True

    def __init__(self, schema: Schema, zone: tzinfo | None) -> None:
        self._decoder = JsonDecoder(schema, zone)

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, None]:
        block = b"\n".join(values)
        if block.count(b"\n") == len(values) - 1:  # no record holds a newline: as many lines as records
            decoded = self._decoder.decode(block)
            if not decoded.bad and decoded.frame.height == len(values):
                return decoded, None
        return self._decoder.decode_values(values), None


class _Csv:
    rows_per_value = True

    def __init__(self, schema: Schema, zone: tzinfo | None) -> None:
        from penstock.connectors.csv_decoding import CsvDecoder

        self._decoder = CsvDecoder(schema, schema.names, "kafka.Source", zone=zone)
        self._schema = schema

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, None]:
        import polars as pl

        block = b"\n".join(values)
        if b'"' not in block and block.count(b"\n") == len(values) - 1:
            decoded = self._decoder.decode(block)
            if not decoded.bad and decoded.frame.height == len(values):
                return decoded, None
        frames: list[pl.DataFrame] = []
        bad: list[BadLine] = []
        for index, value in enumerate(values):
            decoded = self._decoder.decode(value)
            if decoded.frame.height + len(decoded.bad) != 1:
                bad.append(BadLine(index, f"a record is one line, this one holds {decoded.frame.height}", value))
                continue
            frames.append(decoded.frame)
            bad += [BadLine(index, line.error, value) for line in decoded.bad]
        frame = pl.concat(frames, rechunk=True) if frames else pl.DataFrame(schema=self._schema.polars())
        return Decoded(frame, bad), None


class _Raw:
    rows_per_value = True

    def __init__(self, schema: Schema) -> None:
        self._builder = FrameBuilder(schema)
        self._text = schema.fields[0].type == STRING

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, None]:
        if not self._text:
            frame, _ = self._builder.frame([values])
            return Decoded(frame), None
        texts: list[str] = []
        bad: list[BadLine] = []
        for index, value in enumerate(values):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError as error:
                bad.append(BadLine(index, f"not UTF-8: {error}", value))
        frame, _ = self._builder.frame([texts])
        return Decoded(frame, bad), None


class _Arrow:
    rows_per_value = False

    def __init__(self, schema: Schema, timezone: str | None) -> None:
        self._schema = schema
        self._timezone = timezone
        self._found: Any = None
        self._conformer: Any = None

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, Sequence[int]]:
        import polars as pl
        import pyarrow as pa

        frames: list[pl.DataFrame] = []
        bad: list[BadLine] = []
        counts: list[int] = []
        for index, value in enumerate(values):
            try:
                table: Any = pa.ipc.open_stream(value).read_all()
                frame, wrong = self._conforming(table)
            except (pa.ArrowException, PipelineError) as error:
                bad.append(BadLine(index, f"no Arrow stream of these rows: {error}", value[:1_000]))
                counts.append(0)
                continue
            frames.append(frame)
            counts.append(frame.height)
            bad += [BadLine(index, reason, raw) for _, reason, raw in wrong]
        frame = pl.concat(frames) if frames else pl.DataFrame(schema=self._schema.polars())
        return Decoded(frame, bad), counts

    def _conforming(self, table: Any) -> tuple[pl.DataFrame, list[tuple[int, str, bytes]]]:
        from penstock.connectors.conforming import Conformer

        if self._found is None or not self._found.equals(table.schema):
            self._conformer = Conformer(self._schema, table.schema, "a record", self._timezone)
            self._found = table.schema
        return self._conformer.frame(table)


def record_decoder(source: Source[Any], zone: tzinfo | None) -> RecordDecoder:
    """The decoder that a source declares."""
    schema = source.value_schema
    match source.format:
        case "json":
            values: ValueDecoder = _Json(schema, zone)
        case "csv":
            values = _Csv(schema, zone)
        case "raw":
            values = _Raw(schema)
        case "arrow":
            values = _Arrow(schema, source.timezone)
        case "avro":
            from penstock.connectors.kafka_avro import AvroValues

            values = AvroValues(schema, source.registry, source.writer_schema)
    return RecordDecoder(source.schema, dict(source.metadata), values)


class RecordDecoder:
    """Rows of records: values through a `ValueDecoder`, and columns of metadata beside them."""

    def __init__(self, schema: Schema, metadata: dict[str, str], values: ValueDecoder) -> None:
        self._schema = schema
        self._metadata = metadata
        self._values = values

    @property
    def rows_per_value(self) -> bool:
        """Whether every record is one row."""
        return self._values.rows_per_value

    def decode(self, records: Sequence[Any]) -> Decoded:
        """The rows of confluent messages; records without a value (tombstones) are bad."""
        values = [record.value() for record in records]
        tombstones = [index for index, value in enumerate(values) if value is None]
        kept = range(len(values))
        if tombstones:
            gone = set(tombstones)
            kept = [index for index in kept if index not in gone]
            values = [values[index] for index in kept]
        decoded, counts = self._values.decode(values)
        bad = [BadLine(kept[line.index], line.error, line.raw) for line in decoded.bad]
        bad += [BadLine(index, "the record has no value (a tombstone)", b"") for index in tombstones]
        frame = decoded.frame
        if self._metadata:
            wrong = {line.index for line in decoded.bad} if counts is None else set[int]()
            good = [records[kept[index]] for index in range(len(values)) if index not in wrong]
            frame = self._with_metadata(frame, good, counts)
        return Decoded(frame, sorted(bad, key=lambda line: line.index) if tombstones else bad)

    def _with_metadata(self, frame: pl.DataFrame, records: Sequence[Any], counts: Sequence[int] | None) -> pl.DataFrame:
        import polars as pl

        columns: list[pl.Series] = []
        for part, name in self._metadata.items():
            field = self._schema.field(name)
            found = [_part(record, part) for record in records]
            if part == "key" and field.type == STRING:
                found = [None if key is None else key.decode("utf-8", "replace") for key in found]
            if counts is not None:
                found = [value for value, count in zip(found, counts, strict=True) for _ in range(count)]
            if part == "timestamp":
                column = pl.Series(name, found, dtype=pl.Int64).cast(pl.Datetime("us", "UTC"))
            else:
                column = pl.Series(name, found, dtype=self._schema.polars()[name])
            columns.append(column)
        return frame.with_columns(columns).select(list(self._schema.names))


def _part(record: Any, part: str) -> Any:
    match part:
        case "key":
            return record.key()
        case "offset":
            return record.offset()
        case "partition":
            return record.partition()
        case "timestamp":
            kind, millis = record.timestamp()
            return millis * 1_000 if kind else None
        case _:
            return [{"name": name, "value": value or b""} for name, value in record.headers() or ()]

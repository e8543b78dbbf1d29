"""Values of Kafka records to rows, format by format; a batch of records at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.connectors.kafka.avro_values import AvroValues
from penstock.connectors.kafka.protobuf_values import ProtobufValues
from penstock.errors import PipelineError
from penstock.formats.columns import MISSING, FrameBuilder, not_null, timestamps
from penstock.formats.csv_decoding import CsvDecoder
from penstock.formats.decoding import BadLine, Decoded, JsonDecoder
from penstock.formats.schema_matching import SchemaMatcher
from penstock.types import STRING, TIMESTAMP, Field, ListType, Schema, StructType, polars_type

if TYPE_CHECKING:
    import polars as pl

    from penstock.connectors.kafka.source import Source


RECORD_TIMESTAMP: Final = "__record_timestamp"
"""As `event_time`: the timestamp that each record has in Kafka, whatever its value holds."""


_NO_TIMESTAMP: Final = -1
"""The timestamp of a record that has none: old clients and mirrors write it."""


class ValueDecoder(Protocol):
    """Decodes the values of consecutive records."""

    rows_per_value: bool
    """Whether a value is exactly one row; else the numbers of rows come back as `counts`."""
    asks: bool
    """Whether decoding may ask somebody, and so take long."""

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, Sequence[int] | None]:
        """The rows in order and the bad records (`BadLine.index` counts values); rows per value where they differ."""
        ...


class JsonValues:
    """An object per record."""

    rows_per_value = True
    asks = False

    def __init__(self, schema: Schema, zone: tzinfo | None) -> None:
        self._json = JsonDecoder(schema, zone)

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, None]:
        """See `ValueDecoder.decode`."""
        return self._json.decode_values(values), None


class _Csv:
    """A line per record: decoded as one block, unless that does not come out as one row per record."""

    rows_per_value = True
    asks = False

    def __init__(self, schema: Schema, zone: tzinfo | None) -> None:
        self._csv = CsvDecoder(schema, schema.names, "kafka.Source", zone=zone)
        self._schema = schema

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, None]:
        block = b"\n".join(values)
        if block.count(b"\n") == len(values) - 1:  # no record holds a newline, so no line can become more rows than one
            decoded = self._csv.decode(block)
            if decoded.frame.height + len(decoded.bad) == len(values):
                return decoded, None
        return self._one_by_one(values), None

    def _one_by_one(self, values: Sequence[bytes]) -> Decoded:
        """The rows of records of which any may hold anything."""
        import polars as pl

        frames: list[pl.DataFrame] = []
        bad: list[BadLine] = []
        for index, value in enumerate(values):
            decoded = self._csv.decode(value)
            if decoded.frame.height + len(decoded.bad) != 1:
                rows = decoded.frame.height + len(decoded.bad)
                bad.append(BadLine(index, f"a record is one line of CSV; this one holds {rows}", value))
                continue
            frames.append(decoded.frame)
            bad += [BadLine(index, line.error, value) for line in decoded.bad]
        frame = pl.concat(frames, rechunk=True) if frames else pl.DataFrame(schema=self._schema.polars())
        return Decoded(frame, bad)


class _Raw:
    rows_per_value = True
    asks = False

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
    asks = False

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
        if self._found is None or not self._found.equals(table.schema):
            self._conformer = SchemaMatcher(self._schema, table.schema, "a record", self._timezone)
            self._found = table.schema
        return self._conformer.frame(table)


def value_decoder(source: Source[Any], schema: Schema, zone: tzinfo | None) -> ValueDecoder:
    """The decoder of the format that a source declares, for values of these columns."""
    match source.format:
        case "json":
            return JsonValues(schema, zone)
        case "csv":
            return _Csv(schema, zone)
        case "raw":
            return _Raw(schema)
        case "arrow":
            return _Arrow(schema, source.timezone)
        case "avro":
            return AvroValues(schema, source.registry, source.writer_schema, zone)
        case "protobuf":
            assert source.message is not None
            return ProtobufValues(schema, source.message, prefixed=source.registry is not None)


class Records:
    """Consecutive records of a partition, without their objects unless columns are made of those."""

    def __init__(self, *, keep_messages: bool) -> None:
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.messages: list[Any] = []
        self.size_bytes = 0
        self._keep_messages = keep_messages

    def add(self, messages: Sequence[Any]) -> None:
        """Append confluent messages, none of which is an error."""
        if not messages:
            return
        values: list[bytes | None] = [message.value() for message in messages]
        first, last = messages[0].offset(), messages[-1].offset()
        dense = last - first + 1 == len(messages)  # else there are markers or removed records between them
        self.offsets += range(first, last + 1) if dense else [message.offset() for message in messages]
        self.values += values
        self.size_bytes += sum([len(value) for value in values if value is not None])
        if self._keep_messages:
            self.messages += messages


class RecordDecoder(Protocol):
    """Decodes whole records."""

    keep_messages: bool
    """Whether `decode` needs the records' objects."""

    @property
    def rows_per_value(self) -> bool:
        """Whether a record is one row, or about one."""
        ...

    @property
    def asks(self) -> bool:
        """Whether decoding may ask somebody, and so take long."""
        ...

    def decode(self, records: Records) -> Decoded:
        """The rows in order, and what is bad, in order; `BadLine.index` counts records."""
        ...


class RowDecoder:
    """Rows of records: values through a `ValueDecoder`, and columns of metadata beside them."""

    def __init__(self, schema: Schema, metadata: dict[str, str], values: ValueDecoder, *, timed: bool = False) -> None:
        """`timed`: rows have the record's timestamp beside the columns of `schema`, as `RECORD_TIMESTAMP`."""
        self._schema = schema
        self._timed = timed
        self._metadata = metadata
        self._values = values
        self.keep_messages = bool(metadata) or timed
        """Whether `decode` needs the records' objects."""

    @property
    def rows_per_value(self) -> bool:
        """Whether every record is one row."""
        return self._values.rows_per_value

    @property
    def asks(self) -> bool:
        """See `ValueDecoder.asks`."""
        return self._values.asks

    def decode(self, records: Records) -> Decoded:
        """The rows; records without a value (tombstones) are bad. `BadLine.index` counts records."""
        values = [value for value in records.values if value is not None]
        kept: Sequence[int] = range(len(values))
        tombstones: list[int] = []
        if len(values) < len(records.values):
            kept = [index for index, value in enumerate(records.values) if value is not None]
            tombstones = [index for index, value in enumerate(records.values) if value is None]
        decoded, counts = self._values.decode(values)
        bad = [BadLine(kept[line.index], line.error, line.raw) for line in decoded.bad]
        bad += [BadLine(index, "the record has no value (a tombstone)", b"") for index in tombstones]
        frame = decoded.frame
        misfits: dict[int, str] = {}
        if self.keep_messages:
            wrong = {line.index for line in decoded.bad} if counts is None else set[int]()
            good = [kept[index] for index in range(len(values)) if index not in wrong]
            frame, misfits = self._with_metadata(frame, [records.messages[index] for index in good], counts)
            bad = _replaced(bad, {good[number]: reason for number, reason in misfits.items()}, records)
        bad = sorted(bad, key=lambda line: line.index) if tombstones or misfits else bad
        return Decoded(frame, bad, decoded.misspelt)

    def _with_metadata(
        self, frame: pl.DataFrame, records: Sequence[Any], counts: Sequence[int] | None
    ) -> tuple[pl.DataFrame, dict[int, str]]:
        """The frame with all columns, and which of the records (by number) do not fit, whose rows it lacks."""
        import polars as pl

        try:
            return self._whole(frame, records, counts), {}
        except (ValueError, TypeError, OverflowError):  # Polars says TypeError of what has more than 64 bits
            rows = counts if counts is not None else [1] * len(records)
        found = ((number, self._misfit(record)) for number, record in enumerate(records) if rows[number])
        misfits = {number: reason for number, reason in found if reason}
        kept = [number for number in range(len(records)) if rows[number] and number not in misfits]
        there = _repeated([number not in misfits for number in range(len(records))], counts)
        fitting = frame.filter(pl.Series(there, dtype=pl.Boolean))
        kept_counts = None if counts is None else [counts[number] for number in kept]
        return self._whole(fitting, [records[number] for number in kept], kept_counts), misfits

    def _whole(self, frame: pl.DataFrame, records: Sequence[Any], counts: Sequence[int] | None) -> pl.DataFrame:
        """All columns; a `ValueError` or an `OverflowError` if metadata does not fit."""
        columns: list[pl.Series] = []
        for part, name in self._metadata.items():
            field = self._schema.field(name)
            found = _repeated([_part(record, part) for record in records], counts)
            columns.append(not_null(_column(part, field, found), field))
        whole = frame.with_columns(columns).select(list(self._schema.names))
        if not self._timed:
            return whole
        times = _repeated([_part(record, "timestamp") for record in records], counts)
        return whole.with_columns(timestamps(RECORD_TIMESTAMP, times))

    def _misfit(self, record: Any) -> str:
        """What of a record's metadata does not fit."""
        for part, name in self._metadata.items():
            field, value = self._schema.field(name), _part(record, part)
            if value is None and not field.nullable:
                return f"{name}: {MISSING}"
            if value is not None and (reason := _misfit_of(part, field, value)):
                return f"{name}: {reason}"
        time = _part(record, "timestamp") if self._timed else None
        return "" if time is None else _misfit_of("timestamp", Field("", TIMESTAMP), time)


def _replaced(bad: list[BadLine], misfits: dict[int, str], records: Records) -> list[BadLine]:
    """What is bad, where these records are bad as a whole."""
    if not misfits:
        return bad
    others = [line for line in bad if line.index not in misfits]
    return others + [BadLine(index, reason, records.values[index] or b"") for index, reason in misfits.items()]


def _column(part: str, field: Field, values: list[Any]) -> pl.Series:
    import polars as pl

    if part == "timestamp":
        return timestamps(field.name, values)
    if part == "headers" and not _takes_null(field) and any(each["value"] is None for all in values for each in all):
        raise ValueError(field.name)
    if part == "key" and field.type == STRING:
        values = [None if key is None else key.decode() for key in values]
    return pl.Series(field.name, values, dtype=polars_type(field.type))


def _takes_null(headers: Field) -> bool:
    """Whether the value of a header may be null."""
    kind = headers.type
    return isinstance(kind, ListType) and isinstance(kind.inner, StructType) and kind.inner.fields[1].nullable


def _misfit_of(part: str, field: Field, value: Any) -> str:
    try:
        _column(part, field, [value])
    except UnicodeDecodeError:
        return "not UTF-8; declare it as bytes"
    except ValueError:
        return "the value of a header is null; declare it as value: bytes | None"
    except (TypeError, OverflowError):
        return f"the record's timestamp, {value // 1_000} ms, is not within the years 1 to 9999"
    return ""


def _repeated(values: list[Any], counts: Sequence[int] | None) -> list[Any]:
    """A value per row, where records hold several."""
    return values if counts is None else [v for v, count in zip(values, counts, strict=True) for _ in range(count)]


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
            return millis * 1_000 if kind and millis != _NO_TIMESTAMP else None
        case _:
            return [{"name": name, "value": value} for name, value in record.headers() or ()]

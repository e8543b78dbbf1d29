"""Rows to Kafka records: value, key, the hash that says which partition, timestamp, headers; one column each.

Vectorised: what is published later is only copied. A row that cannot be a record (too large for the topic, with a
timestamp that the topic refuses, no value, no key where one is needed) is a bad row here, before the exchange, so that
the publisher does not meet it unless the topic is changed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.connectors.base import Encoded, Policy
from penstock.connectors.kafka.limits import TopicLimits
from penstock.connectors.kafka.partitioning import key_hashes
from penstock.connectors.keyed_rows import RETRACTED
from penstock.core.times import format_duration, format_time
from penstock.errors import BadRecordError
from penstock.formats.avro import encode_avro
from penstock.formats.encoding import as_text, encode_csv, json_texts
from penstock.formats.protobuf import ProtobufMessage, encode_protobuf
from penstock.types import BINARY, INT32, INT64, STRING, Field, ListType, MapType, Schema, StructType

if TYPE_CHECKING:
    import polars as pl

RecordFormat = Literal["json", "arrow", "csv", "avro", "protobuf", "raw", "debezium"]

VALUE: Final = "value"
KEY: Final = "key"
HASH: Final = "hash"
TIMESTAMP_MS: Final = "timestamp"
HEADER: Final = "header"
"""Followed by the header's number."""
DEAD: Final = "dead"
"""Why a row cannot be a record of the topic: its value goes to the topic of dead letters, and this with it."""
DEAD_HEADER: Final = "penstock-error"
"""The header of a dead letter that says why."""
_RECORD_OVERHEAD: Final = 128
"""Header of a batch (61 bytes) and the lengths and deltas of a record, at most."""
_CSV_NEWLINE, _CSV_QUOTE = 10, 34
_OR: Final = ", or set bad_rows='skip' or 'dead_letter'"


@dataclass(frozen=True)
class RecordShape:
    """Which columns of a row become what of a record."""

    format: RecordFormat
    key: tuple[str, ...] = ()
    partition_by: str | None = None
    timestamp: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Header name to column."""
    key_needed: bool = False
    """Whether a row without key is a bad row."""
    dead_letters: bool = False
    """Whether bad rows become records of another topic."""
    message: ProtobufMessage | None = None
    """What a value is, if the format is Protobuf."""
    changes: bool = False
    """Whether rows are changes of what the key stands for: one that is retracted deletes it, or is Debezium's event."""

    @property
    def hashed(self) -> bool:
        """Whether the partition follows from the row."""
        return bool(self.key) or self.partition_by is not None

    @property
    def deletes(self) -> bool:
        """Whether a retracted row is a record without a value, which deletes its key."""
        return self.key_needed and self.changes

    def values(self, schema: Schema) -> Schema:
        """The columns that stand in a value."""
        return Schema(tuple(field for field in schema if not self.changes or field.name != RETRACTED))


def encoded_schema(shape: RecordShape, *, deletes: bool = False) -> Schema:
    """The columns of encoded records; only those that are used. `deletes`: some have no value."""
    fields = [Field(VALUE, BINARY, nullable=shape.format == "raw" or deletes)]
    if shape.key:
        fields.append(Field(KEY, BINARY, nullable=True))
    if shape.hashed:
        fields.append(Field(HASH, INT32, nullable=True))
    if shape.timestamp is not None:
        fields.append(Field(TIMESTAMP_MS, INT64, nullable=True))
    fields += [Field(f"{HEADER}{index}", BINARY, nullable=True) for index in range(len(shape.headers))]
    if shape.dead_letters:
        fields.append(Field(DEAD, STRING, nullable=True))
    return Schema(tuple(fields))


def raw_column(schema: Schema, shape: RecordShape) -> str | None:
    """The column whose bytes are the value of a `raw` record: `value`, or the only one that nothing else uses."""
    if VALUE in schema:
        return VALUE
    used = {*shape.key, shape.partition_by, shape.timestamp, *shape.headers.values()}
    left = [name for name in schema.names if name not in used]
    return left[0] if len(left) == 1 else None


class KafkaEncoder:
    """The encoder of one subtask; see `SinkEncoder`."""

    def __init__(
        self,
        what: str,
        schema: Schema,
        shape: RecordShape,
        limits: TopicLimits,
        bad_rows: Policy,
        dead_letter_bytes: int = 0,
        prefix: bytes = b"",
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        """`what` leads error messages; `limits` is what the topic takes, `dead_letter_bytes` the size that the topic of
        dead letters does; `prefix` stands before every Avro datum; `clock_us` is the time of day."""
        self._what = what
        self._schema = shape.values(schema)
        self._shape = shape
        self._limits = limits
        self._max_bytes = limits.max_message_bytes
        self._needs_key = bool(shape.key) and (shape.key_needed or limits.needs_key)
        self._clock_us = clock_us
        self._bad_rows = bad_rows
        self._dead_bytes = dead_letter_bytes
        self._deletes = shape.deletes
        self._prefix = prefix

    def encode(self, frame: pl.DataFrame) -> Encoded:
        """See `SinkEncoder.encode`."""
        import polars as pl

        if self._shape.format == "arrow":
            return self._encode_whole(frame)
        wrong: Mapping[int, str] = {}
        if self._shape.format == "debezium":
            frame, values = self._events(frame)
        else:
            if self._shape.changes:
                frame = frame.filter(pl.struct(self._shape.key).is_last_distinct())
            if self._shape.format == "protobuf":
                values, wrong = self._messages(frame)
            else:
                values = self._values(frame)
        columns = {VALUE: values}
        if self._deletes:
            columns[VALUE] = _without_retracted(columns[VALUE], frame[RETRACTED])
        if self._shape.key:
            columns[KEY] = self._key(frame)
        if self._shape.hashed:
            columns[HASH] = key_hashes(self._partition_key(frame, columns))
        if self._shape.timestamp is not None:
            columns[TIMESTAMP_MS] = frame[self._shape.timestamp].dt.epoch("ms")
        for index, column in enumerate(self._shape.headers.values()):
            columns[f"{HEADER}{index}"] = self._bytes(frame, column)
        return self._checked(frame, pl.DataFrame(columns), wrong)

    # -- parts of a record ----------------------------------------------------------------------------------------------

    def _values(self, frame: pl.DataFrame) -> pl.Series:
        import polars as pl

        match self._shape.format:
            case "json":
                return json_texts(frame, self._schema).cast(pl.Binary)
            case "csv":
                return _csv_lines(frame, self._schema)
            case "avro":
                return encode_avro(frame, self._schema, self._prefix)
            case _:
                column = raw_column(self._schema, self._shape)
                assert column is not None
                return frame[column].cast(pl.Binary)

    def _messages(self, frame: pl.DataFrame) -> tuple[pl.Series, Mapping[int, str]]:
        """A message per row, and why that of a row cannot be made, unless the row only deletes."""
        assert self._shape.message is not None
        values, wrong = encode_protobuf(frame, self._schema, self._shape.message)
        gone: list[bool | None] = frame[RETRACTED].to_list() if self._deletes and wrong else []
        return values, {index: reason for index, reason in wrong.items() if not (gone and gone[index])}

    def _events(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
        """A row per event of Debezium, and the events: what is retracted and replaced at once is an update."""
        import polars as pl

        changes = self._shape.changes
        gone = frame[RETRACTED] if changes else pl.repeat(value=False, n=frame.height, eager=True)
        same = [frame[name].eq_missing(frame[name].shift()) for name in self._shape.key] if changes else []
        images = json_texts(frame, self._schema).alias("image")
        rows = pl.DataFrame([images, gone.alias("gone")]).with_columns(
            update=pl.all_horizontal(~pl.col("gone"), pl.col("gone").shift(fill_value=False), *same)
        )
        null, image = pl.lit("null"), pl.col("image")
        event = pl.concat_str(
            pl.lit('{"before":'), pl.when("gone").then(image).when("update").then(image.shift()).otherwise(null),
            pl.lit(',"after":'), pl.when("gone").then(null).otherwise(image),
            pl.lit(',"op":"'), pl.when("gone").then(pl.lit("d")).when("update").then(pl.lit("u")).otherwise(pl.lit("c")),
            pl.lit('"}'),
        )  # fmt: skip
        kept = rows.select(event.cast(pl.Binary).alias(VALUE), kept=~pl.col("update").shift(-1, fill_value=False))
        return frame.filter(kept["kept"]), kept[VALUE].filter(kept["kept"])

    def _key(self, frame: pl.DataFrame) -> pl.Series:
        """One column: its bytes or its text; several, or with Debezium: a JSON object."""
        import polars as pl

        if len(self._shape.key) == 1 and self._shape.format != "debezium":
            return self._bytes(frame, self._shape.key[0])
        columns = self._schema.select(self._shape.key)
        return json_texts(frame, columns).cast(pl.Binary)

    def _partition_key(self, frame: pl.DataFrame, columns: Mapping[str, pl.Series]) -> pl.Series:
        by = self._shape.partition_by
        return columns[KEY] if by is None else self._bytes(frame, by)

    def _bytes(self, frame: pl.DataFrame, column: str) -> pl.Series:
        """A column as bytes: binary as it is, text as UTF-8, anything else as JSON writes it, without quotes."""
        import polars as pl

        kind = self._schema.field(column).type
        if kind in (BINARY, STRING):
            return frame[column].cast(pl.Binary)
        if isinstance(kind, ListType | MapType | StructType):
            parts = json_texts(frame.select(pl.col(column).alias("v")), Schema((Field("v", kind, nullable=True),)))
            return parts.str.slice(5).str.head(-1).cast(pl.Binary)
        text = as_text(frame[[column]], self._schema.select([column]))[column]
        if text.dtype == pl.Date:
            text = text.dt.to_string("iso")
        return text.cast(pl.String).cast(pl.Binary)

    # -- bad rows -------------------------------------------------------------------------------------------------------

    def _checked(self, frame: pl.DataFrame, records: pl.DataFrame, wrong: Mapping[int, str]) -> Encoded:
        """Without bad rows; `wrong`: what was found out about some already."""
        import polars as pl

        misdated = self._misdated(records)
        if not wrong and self._all_fit(records) and not misdated.any():
            return Encoded(self._with_dead(records, []))
        size = pl.lit(_RECORD_OVERHEAD)
        for column in records.columns:
            if records[column].dtype == pl.Binary:
                size = size + pl.col(column).bin.size().fill_null(0)
        for name in self._shape.headers:
            size = size + len(name) + 10
        bad = (size > self._max_bytes) | misdated
        if self._needs_key:
            bad = bad | pl.col(KEY).is_null()
        elif self._shape.format == "raw" and not self._shape.key:
            bad = bad | pl.col(VALUE).is_null()
        if wrong:
            bad = bad | pl.int_range(pl.len()).is_in(list(wrong))
        judged = records.select(bad=bad, size=size)
        skipped = int(judged["bad"].sum())
        if not skipped:
            return Encoded(self._with_dead(records, []))
        bad_ones = records.filter(judged["bad"])
        found = zip(judged["bad"].arg_true(), judged["size"].filter(judged["bad"]), strict=True)
        reasons = [wrong.get(index) or self._reason(records.row(index, named=True), size) for index, size in found]
        if self._bad_rows == "fail":
            start = (bad_ones[VALUE][0] or b"")[:200]
            raise BadRecordError(f"{self._what}: {reasons[0]}{_OR}; it begins {start!r}")
        dead = [self._dead(frame.filter(judged["bad"]), reasons)] if self._shape.dead_letters else []
        return Encoded(self._with_dead(records.filter(~judged["bad"]), dead), skipped)

    def _all_fit(self, records: pl.DataFrame) -> bool:
        """Whether no row can be bad, because the topic would take all of them as one record, and none lacks anything."""
        needed = KEY if self._needs_key else VALUE
        overhead = _RECORD_OVERHEAD + sum(len(name) + 10 for name in self._shape.headers)
        return records.estimated_size() + overhead <= self._max_bytes and not records[needed].null_count()

    def _misdated(self, records: pl.DataFrame) -> pl.Series:
        """Which have a timestamp that the topic refuses now; when it takes one that is ahead is not waited for."""
        import polars as pl

        least, greatest = self._limits.timestamps(self._clock_us() // 1_000)
        wrong = pl.repeat(value=False, n=records.height, eager=True)
        if TIMESTAMP_MS in records.columns:
            if least is not None:
                wrong = wrong | (records[TIMESTAMP_MS] < least).fill_null(value=False)
            if greatest is not None:
                wrong = wrong | (records[TIMESTAMP_MS] > greatest).fill_null(value=False)
        return wrong

    def _reason(self, record: Mapping[str, Any], size: int) -> str:
        if size > self._max_bytes:
            return self._too_large(size)
        if self._needs_key and record[KEY] is None:
            which = f"a row has no key (column {', '.join(self._shape.key)} is null)"
            return which if self._shape.key_needed else f"{which}, and the topic is compacted (cleanup.policy)"
        if record[VALUE] is None and self._shape.format == "raw" and record.get(KEY) is None:
            return "a row has neither value nor key"
        return self._untimely(record[TIMESTAMP_MS])

    def _too_large(self, size: int) -> str:
        return (
            f"a row makes a record of {size:,} bytes, the topic takes {self._max_bytes:,} (max.message.bytes); "
            "raise that of the topic"
        )

    def _untimely(self, at_ms: int) -> str:
        ahead_ms = at_ms - self._clock_us() // 1_000
        which, bound_ms, setting = "behind", self._limits.before_ms, "message.timestamp.before.max.ms"
        if ahead_ms > 0:
            which, bound_ms, setting = "ahead of", self._limits.after_ms, "message.timestamp.after.max.ms"
        return (
            f"a row has the timestamp {format_time(at_ms * 1_000)} (column {self._shape.timestamp}), "
            f"{format_duration(abs(ahead_ms) // 1_000 * 1_000_000)} {which} the clock, the topic takes "
            f"{format_duration((bound_ms or 0) * 1_000)} ({setting}); raise that of the topic, or leave timestamp= out"
        )

    def _dead(self, rows: pl.DataFrame, reasons: Sequence[str]) -> pl.DataFrame:
        """Rows as dead letters: JSON whatever the format is, cut to what their topic takes."""
        import polars as pl

        text = json_texts(rows, self._schema).cast(pl.Binary)
        reason = pl.Series(DEAD, [f"{self._what}: {reason}" for reason in reasons], pl.String)
        return cut_letters(pl.DataFrame({VALUE: text, DEAD: reason}), self._dead_bytes)

    def _with_dead(self, records: pl.DataFrame, dead: Sequence[pl.DataFrame]) -> pl.DataFrame:
        import polars as pl

        if not self._shape.dead_letters:
            return records
        columns = encoded_schema(self._shape)
        empty = pl.DataFrame(schema=columns.polars())
        return pl.concat([empty, records, *dead], how="diagonal").select(columns.names)

    # -- many rows per record -------------------------------------------------------------------------------------------

    def _encode_whole(self, frame: pl.DataFrame) -> Encoded:
        """Format `arrow`: a record is an Arrow stream (schema and one batch) with as many rows as it takes."""
        import polars as pl

        values: list[bytes] = []
        dead: list[pl.DataFrame] = []
        skipped = 0
        waiting = [frame] if frame.height else []
        while waiting:
            part = waiting.pop()
            data = self._stream(part)
            if len(data) + _RECORD_OVERHEAD <= self._max_bytes:
                values.append(data)
            elif part.height > 1:
                waiting += [part.slice(part.height // 2), part.head(part.height // 2)]
            elif self._bad_rows == "fail":
                raise BadRecordError(f"{self._what}: {self._too_large(len(data) + _RECORD_OVERHEAD)}{_OR}")
            else:
                skipped += 1
                if self._shape.dead_letters:
                    dead.append(self._dead(part, [self._too_large(len(data) + _RECORD_OVERHEAD)]))
        records = pl.DataFrame({VALUE: pl.Series(values, dtype=pl.Binary)})
        return Encoded(self._with_dead(records, dead), skipped)

    def _stream(self, frame: pl.DataFrame) -> bytes:
        import pyarrow as pa

        arrow = self._schema.stored_arrow()
        table = frame.select(self._schema.names).to_arrow().cast(arrow).combine_chunks()
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, arrow) as writer:
            writer.write_table(table)
        return out.getvalue().to_pybytes()


def _without_retracted(values: pl.Series, retracted: pl.Series) -> pl.Series:
    """The values, null where a row takes an earlier one away: a tombstone."""
    import polars as pl

    kept = pl.when(retracted.fill_null(value=False)).then(None).otherwise(values)
    return pl.select(kept.alias(VALUE)).to_series()


def _csv_lines(frame: pl.DataFrame, schema: Schema) -> pl.Series:
    """One CSV record per row, without header and newline. A newline within quotes ends no record."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    text = np.frombuffer(encode_csv(frame, schema, header=False), np.uint8)
    inside = np.cumsum(text == _CSV_QUOTE) % 2 == 1
    ends = np.flatnonzero((text == _CSV_NEWLINE) & ~inside)
    kept = np.ones(len(text), bool)
    kept[ends] = False
    offsets = np.concatenate([np.zeros(1, np.int64), ends - np.arange(len(ends))])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(text[kept].tobytes())]
    found = pl.from_arrow(pa.LargeBinaryArray.from_buffers(pa.large_binary(), frame.height, buffers))
    assert isinstance(found, pl.Series)
    return found


def cut_letters(letters: pl.DataFrame, most_bytes: int) -> pl.DataFrame:
    """Dead letters whose values are cut so that each record has at most so many bytes."""
    import polars as pl

    overhead = pl.lit(_RECORD_OVERHEAD + len(DEAD_HEADER)) + pl.col(DEAD).str.len_bytes()
    room = (pl.lit(most_bytes) - overhead).clip(lower_bound=0)
    return letters.with_columns(pl.col(VALUE).bin.head(room))

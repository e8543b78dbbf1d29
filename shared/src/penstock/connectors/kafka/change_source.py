"""`kafka.ChangeSource`: a topic of changes of rows with a key, such as a table's. Importing this loads no Kafka client.

Either an upsert topic, in which the newest record of a key counts and one without a value deletes it, or a change log of
Debezium. What of the key stands where is said in `change_decoding`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors import base
from penstock.connectors.base import Policy, T
from penstock.connectors.change_rows import check_keys, with_changes
from penstock.connectors.declaring import declare
from penstock.connectors.kafka.change_forms import (
    BINARY_KEYS,
    ChangeFormat,
    DecimalMode,
    KeyFormat,
    holds_decimals,
)
from penstock.connectors.kafka.source import Offsets, Source
from penstock.core.arguments import checked
from penstock.errors import PipelineError
from penstock.formats.avro import avro_schema
from penstock.settings import KafkaSettings
from penstock.types import Schema, StructType

if TYPE_CHECKING:
    from penstock.connectors.kafka.decoding import RecordDecoder

_WHAT: Final = "kafka.ChangeSource"


class ChangeSource(Source[T], base.ChangeSource[T]):
    """The rows of a table that a topic keeps the changes of: a stream of changes, from the beginning of the topic.

    In an upsert topic (a compacted one, as a rule) the newest record of a key counts, and a record without a value (a
    tombstone) says that there is no row any more. The columns of the key are taken from the record's key, whatever its
    value says of them. Records of a key must stand in one partition; a record without key is a bad row.

    In a topic of Debezium every record is an envelope of `op`, `before` and `after`, with or without a schema around it.
    The key is looked for in these; updates without `before` are taken, and so are events that come twice. Records without
    a value are passed over. What Debezium makes of types is declared as it stands there: moments are numbers (`int`),
    unless `time.precision.mode=isostring`. Decimals are read as the schema of an event says, or else `decimals=`.

    Args:
        topic: must exist.
        key: column or columns of the key.
        schema: the columns of a row, those of the key too: dataclass, msgspec.Struct, pyarrow.Schema or Schema.
        format: as at `kafka.Source`, without `arrow`, or `debezium`.
        key_format: how an upsert topic's records have their keys. `plain`: bytes or text as they are, other types as
            JSON writes them, as `kafka.Sink` does with one column. `json`: an object with the columns, as it does with
            several, and others with one. `binary`: a number as Java's LongSerializer and its like write it, big-endian
            in as many bytes as its type has. If not given, `plain` for one column, `json` for several.
        before_images: of `debezium`: every update and delete has the whole former row in `before` (Postgres: `REPLICA
            IDENTITY FULL`), and no event comes twice. Then no state is needed to know what is retracted.
        decimals: of `debezium`: what a decimal that is text is in events without schema. `precise`, Debezium's default:
            base64 of the unscaled number, whose scale is that of the column as it is declared. `string`: digits
            (`decimal.handling.mode=string`). If not given, digits, and a bad row where they may be base64 as well.
        end: None, or where the input ends, as at `kafka.Source`.
        registry: as at `kafka.Source`.
        writer_schema: as at `kafka.Source`.
        brokers: `host:port`, several separated by commas; the platform's Kafka if not given.
        security: how to reach another Kafka with TLS or a login.
        bad_rows: what becomes of records that are no changes: `"fail"`, `"skip"` (counted) or `"dead_letter"`.
        timezone: zone of naive timestamps in the data.

    Raises:
        PipelineError: one of them does not fit.

    Example:
        >>> accounts = p.read(kafka.ChangeSource("accounts", key="auction", schema=Total, end="latest"))
        >>> accounts.schema.names
        ('auction', 'price', 'retracted')
        >>> dear = accounts.filter(col("price") > 100).key_by(all=lit(1)).agg(auctions=count())
    """

    @checked
    def __init__(
        self,
        topic: str,
        *,
        key: str | Sequence[str],
        schema: type[T] | Any,
        format: ChangeFormat = "json",
        key_format: KeyFormat | None = None,
        before_images: bool = False,
        decimals: DecimalMode | None = None,
        end: Offsets | None = None,
        registry: str | None = None,
        writer_schema: str | None = None,
        brokers: str | None = None,
        security: KafkaSettings | None = None,
        bad_rows: Policy = "fail",
        timezone: str | None = None,
    ) -> None:
        self.rows = declare(_WHAT, schema, timezone=timezone).schema
        self.keys: tuple[str, ...] = (key,) if isinstance(key, str) else tuple(key)
        self.debezium: Final = format == "debezium"
        self.complete = before_images
        self.decimals: Final = decimals
        self.key_format: Final[KeyFormat] = key_format or ("plain" if len(self.keys) == 1 else "json")
        self._check(key_format)
        if format == "avro" and registry is None and writer_schema is None:
            writer_schema = json.dumps(avro_schema(self.rows))  # not that of `value_schema`
        super().__init__(
            topic, schema=with_changes(self.rows, self.keys, complete=self.complete),
            format="json" if format == "debezium" else format, end=end, registry=registry, writer_schema=writer_schema,
            brokers=brokers, security=security, bad_rows=bad_rows, timezone=timezone,
        )  # fmt: skip

    def _check(self, key_format: KeyFormat | None) -> None:
        columns = check_keys(_WHAT, self.rows, self.keys).fields
        if self.debezium and key_format is not None:
            raise PipelineError(f'{_WHAT}: with format="debezium" the key stands in the value; leave key_format= out')
        if self.complete and not self.debezium:
            raise PipelineError(f'{_WHAT}: before_images= is for format="debezium"; others have no former rows')
        if self.decimals is not None and not (self.debezium and holds_decimals(self.rows)):
            raise PipelineError(f'{_WHAT}: decimals= is for format="debezium" and columns of decimals; leave it out')
        if self.debezium or self.key_format == "json":
            return
        if len(self.keys) > 1:
            raise PipelineError(f'{_WHAT}: a key of several columns is an object; write key_format="json"')
        if isinstance(columns[0].type, StructType):
            raise PipelineError(f'{_WHAT}: a plain key is one value, {columns[0]}; write key_format="json"')
        if self.key_format == "binary" and columns[0].type not in BINARY_KEYS:
            numbers = ", ".join(map(str, BINARY_KEYS))
            raise PipelineError(
                f"{_WHAT}: a binary key is a number of Java ({numbers}), not {columns[0]}; leave key_format= out, which "
                "reads text and bytes"
            )

    @property
    def value_schema(self) -> Schema:
        """The columns that are looked for in a record's value; those of the key need not be there."""
        if self.format == "raw":
            return Schema(tuple(field for field in self.rows if field.name not in self.keys))
        return Schema(tuple(replace(each, nullable=True) if each.name in self.keys else each for each in self.rows))

    def _decoder(self, zone: tzinfo | None) -> RecordDecoder:
        from penstock.connectors.kafka.change_decoding import DebeziumDecoder, UpsertDecoder

        return DebeziumDecoder(self, zone) if self.debezium else UpsertDecoder(self, zone)

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        described = {**super().describe(), "key": list(self.keys)}
        if self.debezium:
            described |= {"format": "debezium"} | ({"before_images": True} if self.complete else {})
            described |= {} if self.decimals is None else {"decimals": self.decimals}
        elif self.key_format != ("plain" if len(self.keys) == 1 else "json"):
            described["key_format"] = self.key_format
        return described

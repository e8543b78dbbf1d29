"""The events of W1 and W2 in Kafka: made, sent, read back and compared."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

PARTITIONS = 4
KEYS = 10_000
CHUNK = 100_000
INTERVAL_US = 20
LATE_US = 2_000_000
START_US = 1_767_225_600_000_000
SEED = 7
FRAME_ROWS = 25_000
_EVENTS = "events.arrow"


def topic_of(format: str) -> str:
    """Where the events of a format are."""
    return f"events-{format}"


def frames(events: int) -> Iterable[pl.DataFrame]:
    """Events, each up to two seconds before the newest."""
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(SEED)
    for start in range(0, events, CHUNK):
        size = min(CHUNK, events - start)
        at = START_US + np.arange(start, start + size) * INTERVAL_US - rng.integers(0, LATE_US, size)
        columns = {"key": rng.integers(0, KEYS, size), "price": rng.integers(1, 10_000, size), "at": at}
        yield pl.DataFrame(columns).with_columns(pl.col("at").cast(pl.Datetime("us", "UTC")))


def create_topic(brokers: str, topic: str, partitions: int = PARTITIONS) -> None:
    """A topic, of four partitions if nothing else is said."""
    from confluent_kafka.admin import AdminClient, NewTopic

    wanted = NewTopic(topic, partitions, 1, config={"max.message.bytes": "8388608"})
    admin = AdminClient({"bootstrap.servers": brokers})  # its end would end what it does
    admin.create_topics([wanted])[topic].result(30)


def fill(brokers: str, formats: Iterable[str], events: int, folder: Path) -> None:
    """Send the events in every format, and keep them in a file for the comparison."""
    import pyarrow as pa
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": brokers, "linger.ms": 20, "batch.num.messages": 10_000, "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000, "message.max.bytes": 8_000_000,
        }
    )  # fmt: skip
    wanted = set(formats)
    for format in wanted:
        create_topic(brokers, topic_of(format))
    writer: Any = None
    for frame in frames(events):
        table: Any = frame.to_arrow().combine_chunks()
        writer = writer or pa.ipc.new_file(folder / _EVENTS, table.schema)
        writer.write_table(table)
        for partition in range(PARTITIONS):
            part = frame.gather_every(PARTITIONS, partition)
            if "json" in wanted:
                producer.produce_batch(topic_of("json"), [{"value": line} for line in _json(part)], partition=partition)
            if "arrow" in wanted:
                for start in range(0, part.height, FRAME_ROWS):
                    producer.produce(topic_of("arrow"), _arrow(part[start : start + FRAME_ROWS]), partition=partition)
        while len(producer) > 300_000:
            producer.poll(0.05)
    writer.close()
    if producer.flush(60):
        raise SystemExit("the broker did not take all events")


def _json(frame: pl.DataFrame) -> list[bytes]:
    from penstock.formats.encoding import encode_jsonl
    from penstock.types import INT64, TIMESTAMP, Field, Schema

    schema = Schema((Field("key", INT64, False), Field("price", INT64, False), Field("at", TIMESTAMP, False)))
    return encode_jsonl(frame, schema).splitlines()


def _arrow(frame: pl.DataFrame) -> bytes:
    import pyarrow as pa

    table: Any = frame.to_arrow().combine_chunks()
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


def committed(brokers: str, topic: str) -> list[bytes]:
    """The values of all committed records."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": brokers, "group.id": "unused", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 5,
        }
    )  # fmt: skip
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            for message in consumer.consume(10_000, 1):
                error = message.error()
                if error is None:
                    found.append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise SystemExit(f"reading {topic}: {error}")
    finally:
        consumer.close()
    return found


def _same(sql: str, order: str, schema: Mapping[str, Any]) -> Callable[[str, str, Path], bool]:
    def compare(brokers: str, topic: str, folder: Path) -> bool:
        import duckdb
        import polars as pl
        import pyarrow as pa

        got = pl.read_ndjson(b"\n".join(committed(brokers, topic)), schema=schema)
        times = [name for name in schema if name in ("at", "window_start")]
        got = got.with_columns(pl.col(times).str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us").cast(pl.Int64))
        with duckdb.connect() as connection:
            connection.register("events", pa.ipc.open_file(pa.memory_map(str(folder / _EVENTS))).read_all())
            connection.execute("SET TimeZone = 'UTC'")
            wanted = pl.from_arrow(connection.sql(sql).to_arrow_table())
        assert isinstance(wanted, pl.DataFrame)
        columns, by = list(wanted.columns), order.split(",")
        got, wanted = got.select(columns).sort(by), wanted.cast(dict(got.select(columns).schema)).sort(by)
        if not got.equals(wanted):
            print(f"penstock: {got}\nDuckDB: {wanted}")
        return got.equals(wanted)

    return compare


def _schemas() -> dict[str, Callable[[str, str, Path], bool]]:
    import polars as pl

    w1 = "SELECT key, epoch_us(time_bucket(INTERVAL '10 seconds', \"at\"::TIMESTAMP)) AS window_start, "
    w1 += "count(*) AS events, sum(price)::BIGINT AS total, max(price) AS highest FROM events GROUP BY ALL"
    w2 = 'SELECT key, epoch_us("at"::TIMESTAMP) AS at, price * 0.908::DOUBLE AS euros FROM events WHERE price > 5000'
    whole = dict.fromkeys(("key", "events", "total", "highest"), pl.Int64)
    return {
        "w1": _same(w1, "key,window_start", {**whole, "window_start": pl.String}),
        "w2": _same(w2, "at,key,euros", {"key": pl.Int64, "at": pl.String, "euros": pl.Float64}),
    }


COMPARISONS = _schemas()

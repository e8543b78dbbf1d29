"""The at-least-once writer of Kafka sinks: records are sent as rows come, and confirmed before the checkpoint is.

Kafka refuses no old writer outside a transaction; records of an upsert sink therefore carry the number of the attempt
that wrote them, so that a consumer can tell a late record of a dead attempt from a newer one.

A record that the topic refuses although it was judged by the topic's settings fails the attempt at once: with its batch
the records beside it were refused, and sent again behind later ones they would change which record of a key is the
newest. The next attempt judges rows by what the topic takes then, and does with them what the policy says.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.connectors.base import Prepared
from penstock.connectors.kafka.encoding import DEAD, DEAD_HEADER, HASH, HEADER, KEY, TIMESTAMP_MS, VALUE, KafkaEncoder
from penstock.connectors.kafka.topics import LOG_WARNINGS, LOGGER, TopicAdmin, is_denied
from penstock.core.times import format_time
from penstock.errors import ExternalError, PenstockError, PipelineError, RefusedRowError
from penstock.kafka.clients import confluent_options
from penstock.settings import KafkaSettings

if TYPE_CHECKING:
    import polars as pl

DELIVERY_TIMEOUT_MS: Final = 120_000
BATCH_BYTES: Final = 1 << 20
"""Records are sent in batches of this size, or of what the topic takes if that is less: a topic's limit is on batches."""
BATCH_HEADER_BYTES: Final = 128
"""More than what a batch has beside its records."""
ATTEMPT_HEADER: Final = "penstock-attempt"
_REFUSED: Final = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_RECORD,
)
"""What a broker refuses for what it is."""
_BESIDE_REFUSED: Final = KafkaError._INVALID_DIFFERENT_RECORD
_NO_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_POLL_S: Final = 0.05
_POLLS: Final = int(DELIVERY_TIMEOUT_MS / 1_000 / _POLL_S)


class KafkaWriter:
    """Writes the rows of one subtask; see `SinkWriter`. It stages nothing: what is written is visible."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        encoder: KafkaEncoder,
        headers: Sequence[str],
        attempt_number: int | None,
        partitions: int,
        *,
        dead_letters: str | None = None,
        compression: str = "none",
    ) -> None:
        """`attempt_number` is written into every record's headers, if given; `dead_letters` as in `KafkaPublisher`."""
        self._topic = topic
        self._encoder = encoder
        self._headers = tuple(headers)
        self._fixed = [] if attempt_number is None else [(ATTEMPT_HEADER, str(attempt_number).encode())]
        self._partitions = partitions
        self._dead_letters = dead_letters
        self._failure: PenstockError | None = None
        """Why the first record that was not written was not."""
        self._closed = False
        self._lock = threading.Lock()
        admin = TopicAdmin(settings, "penstock-sink")
        limits = [admin.limits(name).max_message_bytes for name in (topic, dead_letters) if name is not None]
        self._where = f"kafka topic {topic!r} at {settings.brokers}"
        self._producer: Any = Producer(
            {
                **confluent_options(settings, "penstock-sink"),
                "log_level": LOG_WARNINGS,
                "enable.idempotence": True,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "linger.ms": 5,
                "batch.size": min(BATCH_BYTES, min(limits) - BATCH_HEADER_BYTES),
                "compression.type": compression,
                "message.max.bytes": max(1_000_000, *limits),
                "queue.buffering.max.kbytes": 64 << 10,
                "delivery.report.only.error": True,
                "on_delivery": self._delivered,
            },
            logger=LOGGER,
        )
        self.skipped = 0

    def write(self, frame: pl.DataFrame) -> None:
        """See `SinkWriter.write`."""
        encoded = self._encoder.encode(frame)
        self.skipped += encoded.skipped
        rows = self._without_dead(encoded.frame)
        times = rows[TIMESTAMP_MS].fill_null(0).to_list() if TIMESTAMP_MS in rows.columns else [0] * rows.height
        keys = rows[KEY].to_list() if KEY in rows.columns else [None] * rows.height
        hashes = rows[HASH].to_list() if HASH in rows.columns else [None] * rows.height
        columns = [rows[f"{HEADER}{index}"].to_list() for index in range(len(self._headers))]
        headers = list(zip(*columns, strict=True)) if columns else [()] * rows.height
        for value, key, chosen, at, named in zip(rows[VALUE].to_list(), keys, hashes, times, headers, strict=True):
            partition = -1 if chosen is None else chosen % self._partitions
            all_headers = [*self._fixed, *zip(self._headers, named, strict=True)]
            self._produce(self._topic, value, key, partition, at, all_headers)
        self._producer.poll(0)
        self._check()

    def _without_dead(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Send what is dead to its own topic; the rest."""
        import polars as pl

        if self._dead_letters is None:
            return rows
        for value, reason in rows.filter(pl.col(DEAD).is_not_null()).select(VALUE, DEAD).iter_rows():
            self._produce(self._dead_letters, value, None, -1, 0, [*self._fixed, (DEAD_HEADER, reason.encode())])
        return rows.filter(pl.col(DEAD).is_null())

    def _produce(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, at_ms: int,
        headers: list[tuple[str, Any]],
    ) -> None:  # fmt: skip
        """Waits while the producer's queue is full: that is how a slow cluster slows the job."""
        for _ in range(_POLLS):
            try:
                self._producer.produce(topic, value, key, partition=partition, timestamp=at_ms, headers=headers or None)
                return
            except BufferError:
                self._producer.poll(_POLL_S)
                self._check()
        raise ExternalError(f"{self._where}: nothing was taken in two minutes")

    def prepare(self, checkpoint: int) -> Prepared:
        """See `SinkWriter.prepare`: nothing is staged, the checkpoint waits until all is confirmed."""
        return Prepared(persist=self._flush)

    def commit(self, committable: Any) -> None:
        """Nothing is staged."""

    def discard(self, committable: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        """See `SinkWriter.close`; what is on its way may still arrive."""
        self._closed = True
        self._producer.purge(in_queue=True, in_flight=False)
        self._producer.flush(0)

    def _flush(self) -> None:
        """Until all is confirmed; a record that is refused is not waited for with the rest."""
        left = len(self._producer)
        for _ in range(_POLLS):
            left = self._producer.flush(_POLL_S)
            self._check()
            if not left:
                return
            if self._closed:
                raise ExternalError(f"{self._where}: the writer was closed before {left:,} records were confirmed")
        raise ExternalError(f"{self._where}: {left:,} records are not confirmed after two minutes")

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None or error.code() == KafkaError._PURGE_QUEUE:
            return
        with self._lock:
            if self._failure is None and error.code() != _BESIDE_REFUSED:
                self._failure = self._meaning(error, message)

    def _meaning(self, error: KafkaError, message: Any) -> PenstockError:
        topic = message.topic()
        if error.code() in _REFUSED:
            at = format_time(message.timestamp()[1] * 1_000)
            return RefusedRowError(
                f"{self._where}: topic {topic!r} refuses a record ({error}): key {(message.key() or b'')[:200]!r}, "
                f"timestamp {at}, value {(message.value() or b'')[:200]!r}; let the topic take it (max.message.bytes, "
                "message.timestamp.after.max.ms and before.max.ms, cleanup.policy). Another attempt judges rows by what "
                "the topic takes then, and leaves them out if bad_rows= says so"
            )
        if is_denied(KafkaException(error)):
            return PipelineError(f"{self._where}: {error}; grant it to the user of this job")
        if error.code() in _NO_TOPIC:
            return PipelineError(f"{self._where}: {error}: there is no topic {topic!r} any more; create it again")
        return ExternalError(f"{self._where}: a record was not written: {error}")

    def _check(self) -> None:
        """A record that was not written fails the attempt: its rows are lost otherwise."""
        with self._lock:
            failure = self._failure
        if failure is not None:
            raise failure

"""What is made of the bytes of a fetch, and what of it is kept."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from penstock.adapters.kafka import chunks as kafka_chunks
from penstock.adapters.kafka.chunks import Chunk, ChunkStore, decode
from penstock.errors import CorruptDataError
from penstock.ports import LogRecord


def batch(first: int, values: list[bytes]) -> bytes:
    """A batch of records as a broker sends it."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=0,
        batch_size=1 << 20,
    )  # fmt: skip
    for index, value in enumerate(values):
        builder.append(index, timestamp=1_000, key=None, value=value, headers=[])
    data = bytearray(builder.build())
    data[:8] = first.to_bytes(8, "big")
    return bytes(data)


def chunk(start: int, count: int, size_bytes: int = 100) -> Chunk:
    """A chunk of `count` records of ten bytes."""
    records = [LogRecord(start + index, start + index + 1, b"0123456789") for index in range(count)]
    return Chunk(start, start + count, records, start + count, size_bytes)


def test_records_before_the_offset_are_left_out() -> None:
    """A fetch brings whole batches; only what lies at or behind the offset counts, up to a part of a batch."""
    data = batch(10, [b"a", b"b", b"c"]) + batch(13, [b"d"]) + batch(14, [b"lost"])[:-3]
    found = decode(("t", 0), 11, data, 20)
    assert [(record.offset, record.next_offset, record.value) for record in found.records] == [
        (11, 12, b"b"),
        (12, 13, b"c"),
        (13, 14, b"d"),
    ]
    assert (found.start, found.end, found.partition_end) == (11, 14, 20)


def test_batches_without_records_move_the_end() -> None:
    """Where all records at the offset were compacted away, the end is behind their batches."""
    found = decode(("t", 0), 13, batch(10, [b"a", b"b", b"c"]), 20)
    assert (found.records, found.end) == ([], 13)
    assert decode(("t", 0), 5, b"", 5).end == 5


def test_damaged_bytes_are_an_error() -> None:
    """A bit that changed on the way is found, and topic and offset are named."""
    data = bytearray(batch(10, [b"payload"]))
    data[-3] ^= 1
    with pytest.raises(CorruptDataError, match=r"topic t, partition 3.*offset 10"):
        decode(("t", 3), 10, bytes(data), 11)


def test_pieces_hold_at_least_one_record() -> None:
    """A piece begins at the offset, also between records, and ends by bytes after at least one."""
    whole = chunk(100, 10)
    assert [record.offset for record in whole.piece(103, 25)] == [103, 104]
    assert [record.offset for record in whole.piece(103, 1)] == [103]
    assert len(whole.piece(100, 10_000)) == 10
    assert whole.piece(110, 100) == []


def test_store_finds_by_offset_and_forgets() -> None:
    """A kept chunk serves any offset within it, of its partition only, until it is dropped."""
    store = ChunkStore()
    first, second = chunk(0, 10), chunk(10, 10)
    for one in (first, second, second):
        store.keep(("t", 0), one)
    assert store.find(("t", 0), 9) is first
    assert store.find(("t", 0), 10) is second
    assert store.find(("t", 0), 20) is None
    assert store.find(("t", 1), 0) is None
    assert store.size_bytes == 200
    store.drop(("t", 0), first)
    assert store.find(("t", 0), 9) is None
    store.drop_topic("t")
    assert store.size_bytes == 0


def test_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the longest unused goes; one chunk always stays, however large."""
    monkeypatch.setattr(kafka_chunks, "KEPT_BYTES", 250)
    store = ChunkStore()
    for partition in range(3):
        store.keep(("t", partition), chunk(0, 5))
        store.find(("t", 0), 0)
    assert store.size_bytes == 200
    assert store.find(("t", 1), 0) is None
    store.keep(("u", 0), chunk(0, 5, 1_000))
    assert store.size_bytes == 1_000

"""What sinks gather in memory on a cluster, in the store."""

from __future__ import annotations

import msgspec
import pytest

from penstock.adapters.memory import MemoryBlobs
from penstock.coordination import collected_rows
from penstock.coordination.collected_rows import (
    CollectedPart,
    CollectedParts,
    collected_names,
    collected_prefix,
    operator_of,
)
from penstock.errors import UsageError
from penstock.protocol.committing import StagedPart

JOB = "a" * 32


async def test_a_part_is_there_once_and_in_its_place() -> None:
    """Committed again, also by another subtask, it is the same object; names sort by operator and checkpoint."""
    blobs = MemoryBlobs()
    parts = [StagedPart(name, checkpoint, {"rows": [checkpoint]}) for name in ("b", "a/ä") for checkpoint in (10, 9)]
    for part in [*parts, *parts]:
        await CollectedParts(JOB, blobs).put(part)
    names = await collected_names(blobs, JOB)
    found = [msgspec.json.decode(await blobs.get(collected_prefix(JOB) + name), type=CollectedPart) for name in names]
    assert [(part.operator, part.checkpoint) for part in found] == [("a/ä", 9), ("a/ä", 10), ("b", 9), ("b", 10)]
    assert [operator_of(name) for name in names] == ["a/ä", "a/ä", "b", "b"]
    assert await collected_names(blobs, "b" * 32) == []


async def test_too_many_rows_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no longer fits into memory belongs into files."""
    monkeypatch.setattr(collected_rows, "LIMIT_BYTES", 200)
    parts = CollectedParts(JOB, MemoryBlobs())
    await parts.put(StagedPart("out", 1, "x" * 100))
    with pytest.raises(UsageError, match=r"sink 'out' gathers rows in memory.*write to files or Kafka"):
        await parts.put(StagedPart("out", 2, "x" * 100))

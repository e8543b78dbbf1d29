"""Which key groups share a chain: all of them come once, in order, with their rows; none holds more than it may."""

from __future__ import annotations

import itertools
import os
import random

import polars as pl
import pytest

from penstock.spark import key_group_batches
from penstock.spark.key_group_batches import KeyGroupBatch, KeyGroupBatcher

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
ROW_BYTES = 10
LIMIT = 1_000


@pytest.mark.parametrize("history", range(200))
def test_every_key_group_comes_once_with_its_rows_and_its_turn(history: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups rise; rows are in their batch and keep their order; only those of a group that flows come in pieces; what
    waits is bounded."""
    monkeypatch.setattr(key_group_batches, "BATCH_BYTES", LIMIT)
    rng = random.Random(f"{SEED} {history}")
    print(f"repeat with PENSTOCK_TEST_SEED={SEED}")
    groups = sorted(rng.sample(range(64), rng.randrange(1, 40)))
    stored = {group: rng.choice([0, 10, 600, 5_000]) for group in range(64) if rng.random() < 0.4}
    counts = {group: rng.choice([1, 5, 30, 99, 101, 350]) for group in groups}
    found: list[KeyGroupBatch] = []
    made = KeyGroupBatcher(stored)
    for group, count in counts.items():
        for begin in range(0, count, 40):
            rows = pl.DataFrame({"group": group, "number": range(begin, min(count, begin + 40))})
            found += made.add(group, rows, rows.height * ROW_BYTES)
    found += made.finish()
    opened = [batch.groups for batch in found if not batch.continues]
    assert all(one.end <= other.start for one, other in itertools.pairwise(opened))
    assert {group for each in opened for group in range(each.start, each.end)} >= {*groups, *stored}
    rows = [(row, batch) for batch in found for frame in batch.frames for row in frame.rows()]
    assert [row for row, _ in rows] == [(group, number) for group in groups for number in range(counts[group])]
    assert all(row[0] in batch.groups for row, batch in rows)
    for batch in found:
        held = sum(frame.height for frame in batch.frames) * ROW_BYTES
        inside = {group for frame in batch.frames for group in frame["group"].to_list()}
        assert held <= LIMIT + 40 * ROW_BYTES
        state = [stored.get(group, 0) for group in range(batch.groups.start, batch.groups.end)]
        assert sum(state) <= LIMIT or sum(size > 0 for size in state) == 1 or batch.continues
        if not batch.whole:
            assert inside <= {batch.groups.start}
            assert counts[batch.groups.start] * ROW_BYTES > LIMIT
    for group in groups:
        pieces = [batch for batch in found if group in batch.groups]
        assert len(pieces) == 1 or not any(batch.whole for batch in pieces)
        assert [batch.continues for batch in pieces] == [False, *[True] * (len(pieces) - 1)]


def test_nothing_makes_no_batch() -> None:
    """A task that has no key group."""
    assert list(KeyGroupBatcher({}).finish()) == []

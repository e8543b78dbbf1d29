"""Which epochs between freezes are kept apart, and how what came in them becomes state again."""

from __future__ import annotations

import polars as pl
import pytest

from penstock.errors import CorruptDataError, UsageError
from penstock.savepoint.segments import table_of
from penstock.state.backend import ABSENT, Table
from penstock.state.deltas import BY_ROW, REMOVED, is_by_key, merged
from penstock.state.freezes import ADDS, EVERYTHING, Freezes, added
from penstock.state.segments import decode_segment, encode_segment

HEADER = {"kind": "running", "keys": [{"name": "key", "type": "int64"}]}


def rows(values, removed=()):
    frame = pl.DataFrame({"key": list(values), "total": list(values.values())}, {"key": pl.Int64, "total": pl.Int64})
    if not removed:
        return frame
    gone = pl.DataFrame({"key": list(removed), "total": [None] * len(removed)}, frame.schema)
    flags = [False] * frame.height + [True] * len(removed)
    return pl.concat([frame, gone]).with_columns(pl.Series(REMOVED, flags, pl.Boolean))


def test_without_incremental_checkpoints_nothing_is_kept_apart():
    """And nothing is known of what came since a freeze."""
    freezes = Freezes()
    for number in range(1, 5):
        freeze = freezes.next(incremental=False)
        assert freezes.current == 0
        assert not any(freeze.knows_since(epoch) for epoch in range(number))


def test_what_may_still_be_asked_for_is_kept_apart():
    """Epochs up to the one that was asked for may be merged with each other, later ones with none."""
    freezes = Freezes()
    assert freezes.next(incremental=True).number == 1
    assert freezes.current == 2
    assert not freezes.together(0, 2)
    second, third = freezes.next(incremental=True), freezes.next(incremental=True)
    assert (second.knows_since(1), third.knows_since(1), third.knows_since(2)) == (True, True, True)
    assert not freezes.together(2, 3)
    assert third.since(2) == 2
    assert freezes.together(0, 2)
    assert not freezes.together(2, 3)
    fourth = freezes.next(incremental=True)
    assert (fourth.knows_since(1), fourth.knows_since(2), fourth.knows_since(5)) == (False, True, False)


def test_where_no_checkpoint_is_complete_old_epochs_are_given_up():
    """Otherwise each would leave a part that is never merged."""
    freezes = Freezes()
    for _ in range(40):
        freeze = freezes.next(incremental=True)
    assert freezes.together(0, freeze.known_from)
    assert not freezes.together(freeze.known_from, freeze.known_from + 1)
    assert freeze.number - freeze.known_from == 16


def test_no_delta_builds_on_what_was_before_all_was_forgotten():
    """The next snapshot is a full one."""
    freezes = Freezes()
    freezes.next(incremental=True)
    freezes.restart()
    second = freezes.next(incremental=True)
    assert not second.knows_since(1)
    assert freezes.next(incremental=True).knows_since(2)


def test_a_table_tells_what_was_written_and_removed_behind_a_freeze():
    """However much of it was merged down meanwhile."""
    freezes = Freezes()
    table = Table(freezes=freezes)
    for key in range(10):
        table.put(key, key)
    table.freeze().release()
    freezes.next(incremental=True)
    table.put(3, 33)
    table.remove(4)
    table.maintain(1_000)
    frozen = table.freeze()
    freezes.next(incremental=True)
    table.put(5, 55)
    assert dict(frozen.since(1)) == {3: 33, 4: ABSENT}
    assert dict(frozen) == {key: key for key in range(10) if key != 4} | {3: 33}
    frozen.release()
    freezes.asked_since = 1
    table.maintain(1_000)
    frozen = table.freeze()
    assert dict(frozen.since(1)) == {3: 33, 4: ABSENT, 5: 55}
    assert dict(frozen.since(2)) == {5: 55}


def test_of_the_rows_of_a_key_the_last_one_counts_unless_it_was_removed():
    """Keys are told by themselves: what a delta does not have stays as it was."""
    full = encode_segment(HEADER, rows({1: 10, 2: 20, 3: 30}))
    first = encode_segment({**HEADER, BY_ROW: True}, rows({2: 21}, removed=[3]))
    second = encode_segment({**HEADER, BY_ROW: True}, rows({4: 40}, removed=[2]))
    header, found = decode_segment(merged("op", [full, first, second]), "op")
    assert header == HEADER
    assert dict(found.sort("key").rows()) == {1: 10, 4: 40}
    assert not is_by_key("op", [full, second])
    assert is_by_key("op", [full])
    with pytest.raises(CorruptDataError, match="a segment of other"):
        merged("op", [encode_segment({**HEADER, "kind": "other"}, rows({1: 10})), first])


def test_what_is_added_is_told_from_what_stands_alone():
    """An operator brings it together; as a table it would be wrong, so it is none."""
    full = encode_segment(added(HEADER, EVERYTHING), rows({1: 10}))
    delta = encode_segment(added(HEADER, 3), rows({1: 5}).rename({"total": "other"}))
    together = merged("op", [full, delta])
    header, found = decode_segment(together, "op")
    assert header == {**HEADER, ADDS: True}
    assert found.to_dicts() == [{"key": 1, "total": 10, "other": None}, {"key": 1, "total": None, "other": 5}]
    assert not is_by_key("op", [full, delta])
    assert table_of(full, "op")[1].rows() == [(1, 10)]
    with pytest.raises(UsageError, match=r"operator 'op': this checkpoint is incremental.* take a savepoint"):
        table_of(together, "op")

"""Staged parts of two-phase sinks."""

from __future__ import annotations

from penstock.protocol.committing import StagedPart, StagedParts


def part(checkpoint: int) -> StagedPart:
    return StagedPart("sink", checkpoint, f"part-{checkpoint}")


def test_a_part_belongs_to_the_first_complete_at_or_above_it():
    """A part of an aborted checkpoint becomes visible with the next one."""
    parts = StagedParts((), 0)
    parts.prepared([part(1)])
    parts.prepared([part(2)])
    assert parts.to_commit() == []
    parts.completed(2)
    assert parts.to_commit() == [part(1), part(2)]


def test_parts_are_listed_until_they_are_visible():
    """And only then is the checkpoint published."""
    parts = StagedParts((), 0)
    parts.prepared([part(1)])
    parts.completed(1)
    assert parts.listed(2) == [part(1)]
    assert parts.published == 0
    parts.committed(part(1))
    assert parts.listed(3) == []
    assert parts.published == 1


def test_restored_parts_are_committed_at_once():
    """They stand in a COMPLETE manifest."""
    parts = StagedParts([part(3)], 3)
    assert parts.to_commit() == [part(3)]
    assert parts.published == 0
    assert StagedParts((), 3).published == 3


def test_the_proof_of_a_commit_goes_with_the_first_complete_that_does_not_list_the_part():
    """A snapshot that was taken before the commit lists it; an aborted one proves nothing."""
    parts = StagedParts((), 0)
    parts.prepared([part(1)])
    parts.completed(1)
    assert parts.listed(2) == [part(1)]
    parts.committed(part(1))
    parts.completed(2)
    assert parts.to_forget() == []
    assert parts.listed(3) == []
    assert parts.listed(4) == []
    assert parts.to_forget() == []
    parts.completed(4)
    assert parts.to_forget() == [part(1)]
    assert parts.to_forget() == [part(1)], "until that is done for certain"
    parts.forgotten([part(1)])
    assert parts.to_forget() == []


def test_a_checkpoint_without_parts_is_published_when_it_is_complete():
    """There is nothing to wait for."""
    parts = StagedParts((), 0)
    parts.completed(4)
    assert parts.published == 4

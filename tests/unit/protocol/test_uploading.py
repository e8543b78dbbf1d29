"""When a snapshot counts as durable."""

from __future__ import annotations

from penstock.protocol.uploading import Put, UploadDone, UploadGivenUp, UploadMachine


def test_every_object_must_be_stored():
    """The last confirmation makes the snapshot durable."""
    machine = UploadMachine(["a", "b"])
    assert machine.start() == [Put("a"), Put("b")]
    assert machine.stored("b") == []
    assert machine.stored("a") == [UploadDone()]


def test_a_snapshot_without_objects_is_durable():
    """There is nothing to wait for."""
    assert UploadMachine([]).start() == [UploadDone()]


def test_an_unknown_answer_repeats_the_object_until_it_is_given_up():
    """Bounded, and given up once; a late confirmation changes nothing any more."""
    machine = UploadMachine(["a", "b"], tries=2)
    assert machine.unknown("a", "no answer") == [Put("a")]
    assert machine.unknown("a", "no answer") == [UploadGivenUp("no answer")]
    machine.unknown("b", "no answer")
    assert machine.unknown("b", "no answer") == []
    assert machine.stored("a") == []
    assert machine.stored("b") == []

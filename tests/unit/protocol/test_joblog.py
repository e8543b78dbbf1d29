"""What may follow in a job log, and what an answer of the store means."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import CorruptDataError, ProtocolError
from penstock.protocol.joblog import (
    Begin,
    Complete,
    JobHistory,
    Leader,
    Savepoint,
    Submit,
    Terminated,
    decode_record,
    encode_record,
    log_key,
)
from penstock.protocol.joblog_writer import (
    CreateRecord,
    JobLogWriter,
    ReadRecord,
    RecordCommitted,
    StepDown,
)


def begin(seq: int, attempt: str = "a") -> Begin:
    return Begin(
        seq=seq, attempt=attempt, attempt_number=1, restore=None, parallelism=1, generation=0, start_offsets={}
    )


def complete(seq: int, checkpoint: int, *, attempt: str = "a", parent: int = -1) -> Complete:
    return Complete(
        seq=seq, checkpoint=checkpoint, checkpoint_nonce="n", attempt=attempt, parent=parent, manifest="m", sha256="s"
    )


def history(*more: object) -> JobHistory:
    return JobHistory.of([Submit(seq=0, job="j", name="n", graph={}), Leader(seq=1, epoch=1), begin(2), *more])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Leader(seq=9, epoch=2), "record 9 where 3"),
        (Submit(seq=3, job="j", name="n", graph={}), "record 3 is Submit"),
        (Leader(seq=3, epoch=1), "epoch 1 after epoch 1"),
        (begin(3), "begins twice"),
        (complete(3, 1, attempt="old"), "not newest"),
        (complete(3, 1, parent=2), "names parent 2"),
    ],
)
def test_records_that_break_the_chain_are_refused(record: object, message: str):
    """I5: dense, one chain, of the newest attempt."""
    with pytest.raises(ProtocolError, match=message):
        history().apply(record)


def test_checkpoints_rise():
    """COMPLETE of a lower number never follows."""
    told = history(complete(3, 5))
    with pytest.raises(ProtocolError, match="COMPLETE 4 after 5"):
        told.apply(complete(4, 4, parent=3))
    assert told.restore is not None
    assert told.restore.checkpoint == 5


def test_nothing_follows_the_end():
    """I13: a terminated job never runs again."""
    told = history(Terminated(seq=3, state="FINISHED"))
    with pytest.raises(ProtocolError, match="after TERMINATED"):
        told.apply(Leader(seq=4, epoch=2))


def test_savepoints_are_found_by_their_request():
    """A request that is repeated after a change of leader is answered, not obeyed again."""
    record = Savepoint(seq=4, checkpoint=1, manifest="m", sha256="s", request="r", published=True)
    assert history(complete(3, 1), record).savepoints == {"r": record}


def test_records_survive_encoding():
    """What is written is what is read; other bytes are an error that names the object."""
    assert decode_record(encode_record(begin(2)), "k") == begin(2)
    with pytest.raises(CorruptDataError, match="object k"):
        decode_record(b"{}", "k")
    assert log_key("j", 7) == "jobs/j/log/00000000000000000007"


def test_a_created_object_is_committed_and_the_next_one_follows():
    """Records are written one at a time, and get their seq when their turn comes."""
    writer = JobLogWriter(history())
    [create] = writer.append(complete(-1, 1), "n1")
    assert isinstance(create, CreateRecord)
    assert (create.record.seq, create.record.parent) == (3, -1)
    assert writer.append(complete(-1, 2), "n2") == []
    committed, following = writer.created()
    assert isinstance(committed, RecordCommitted)
    assert (following.record.seq, following.record.parent) == (4, 3)


def test_an_unknown_answer_repeats_the_identical_record():
    """Until the answer is certain nothing else is tried, and nothing it names is deleted."""
    writer = JobLogWriter(history())
    [create] = writer.append(complete(-1, 1), "n1")
    assert writer.unknown() == [create]
    assert writer.uncertain == create.record


def test_a_refusal_by_ones_own_object_is_a_success():
    """An internal retry met itself: the nonce says so."""
    writer = JobLogWriter(history())
    [create] = writer.append(complete(-1, 1), "n1")
    assert writer.refused() == [ReadRecord(3)]
    assert writer.read_back(create.record) == [RecordCommitted(create.record)]


def test_a_conflict_that_wrote_nothing_is_tried_again():
    """Some stores answer a race with a conflict although there is no object."""
    writer = JobLogWriter(history())
    [create] = writer.append(complete(-1, 1), "n1")
    writer.refused()
    assert writer.read_back(None) == [create]


def test_another_leaders_object_means_step_down():
    """Nothing that was queued is written any more."""
    writer = JobLogWriter(history())
    writer.append(complete(-1, 1), "n1")
    writer.append(complete(-1, 2), "n2")
    writer.refused()
    [command] = writer.read_back(Leader(seq=3, epoch=2, nonce="other"))
    assert isinstance(command, StepDown)
    assert writer.append(complete(-1, 3), "n3") == []


def test_a_leader_that_comes_too_late_steps_down():
    """A later epoch stands in the log already."""
    writer = JobLogWriter(history(Leader(seq=3, epoch=5)))
    [command] = writer.append(Leader(epoch=4), "n")
    assert isinstance(command, StepDown)


@pytest.mark.parametrize("answer", ["created", "refused", "unknown"])
def test_answers_to_no_question_are_errors(answer: str):
    """The shell asked nothing."""
    with pytest.raises(ProtocolError, match="no question"):
        getattr(JobLogWriter(history()), answer)()
    with pytest.raises(ProtocolError, match="no question"):
        JobLogWriter(history()).read_back(None)


@pytest.mark.parametrize(
    ("state", "unpublished", "left", "published"),
    [("FAILED", False, True, True), ("FAILED", True, True, False), ("CANCELED", True, True, False),
     ("CANCELED", False, False, False), ("FINISHED", False, False, False)],
)  # fmt: skip
def test_what_an_ended_job_leaves_can_be_started_from(
    state: Any, unpublished: bool, left: bool, published: bool
) -> None:
    """A failed job's checkpoint, and whatever could not be published; without loss only if all is visible."""
    begin = Begin(attempt="a", attempt_number=1, restore=None, parallelism=1, generation=0, start_offsets={}, seq=1)
    complete = Complete(
        checkpoint=1, checkpoint_nonce="c", attempt="a", parent=-1, manifest="m", sha256="s", seq=2
    )  # fmt: skip
    ended = Terminated(state=state, unpublished=unpublished, seq=3)
    history = JobHistory.of([Submit(job="j", name="n", graph={}, seq=0), begin, complete, ended])
    assert (history.retained is not None) is left
    assert history.is_published("m") is published

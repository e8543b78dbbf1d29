"""Which ending of a job is under way, and what it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.protocol.attempts import AttemptTasks
from penstock.protocol.checkpoints import CheckpointBook, CheckpointSettings, PendingCheckpoint, Purpose
from penstock.protocol.endings import PUBLISH_DEADLINE_MS, Endings
from penstock.protocol.jobevents import RequestDone, Requested, RequestKind, Topology
from penstock.protocol.joblog import Begin, Complete, JobHistory, Savepoint, Submit, Terminated
from penstock.protocol.messages import SubtaskId
from penstock.protocol.phases import Phase

SINK = SubtaskId("s", 0)
TOPOLOGY = Topology((SINK,), frozenset({SINK}), frozenset({SINK}), {}, frozenset(), {SINK: 0}, 1, 1)
TASKS = AttemptTasks()
"""No sink has published anything."""


def _complete(seq: int, ending: str = "", request: str = "") -> Complete:
    return Complete(
        seq=seq, nonce=f"n{seq}", checkpoint=seq, checkpoint_nonce="c", attempt="a1", parent=-1, manifest=f"m{seq}",
        sha256="0", ending=ending, request=request,
    )  # fmt: skip


def _begin() -> Begin:
    return Begin(
        seq=1, nonce="n1", attempt="a1", attempt_number=1, restore=None, parallelism=1, generation=0, start_offsets={}
    )


def _history(*, complete: bool = True) -> JobHistory:
    begun = [Submit(seq=0, nonce="n0", job="j", name="job", graph={}), _begin()]
    return JobHistory.of([*begun, _complete(2)] if complete else begun)


def _requested(kind: RequestKind, name: str = "r") -> Requested:
    return Requested(name, kind, reason="asked")


def _pending(purpose: Purpose) -> PendingCheckpoint:
    return CheckpointBook(CheckpointSettings(), lambda: "0" * 16).trigger("a1", (), purpose, 0)


def test_a_request_is_obeyed_once() -> None:
    """A client that repeats its request does not begin a second ending."""
    endings = Endings(_history())
    assert endings.requested(_requested("savepoint"), Phase.RUNNING, "", 0) == []
    first = endings.current
    assert endings.requested(_requested("savepoint"), Phase.RUNNING, "", 0) == []
    assert endings.current is first


def test_only_a_cancel_replaces_another_ending() -> None:
    """A second ending is refused; a cancel goes first, and whoever asked for the other one hears it."""
    endings = Endings(_history())
    endings.requested(_requested("stop", "r1"), Phase.RUNNING, "", 0)
    refused = endings.requested(_requested("savepoint", "r2"), Phase.RUNNING, "", 0)
    assert refused == [RequestDone("r2", "refused: the job is busy: it is being stopped")]
    told = endings.requested(_requested("cancel", "r3"), Phase.RUNNING, "", 0)
    assert told == [RequestDone("r1", "refused: it is being cancelled")]


def test_the_barrier_is_sent_once_and_then_publishing_is_waited_for() -> None:
    """An ending needs a checkpoint until one of its purpose is pending, and only that one counts."""
    endings = Endings(_history())
    endings.requested(_requested("stop"), Phase.RUNNING, "", 0)
    assert endings.needs_checkpoint([_pending("periodic")])
    assert not endings.needs_checkpoint([_pending("stop")])
    endings.completed(3, "periodic")
    assert endings.current is not None
    assert endings.current.checkpoint is None
    endings.completed(4, "stop")
    assert endings.current.checkpoint == 4
    assert not endings.needs_checkpoint([])


def test_a_complete_says_which_ending_it_is_for() -> None:
    """The next leader reads from the record what is to be done behind it."""
    endings = Endings(_history())
    endings.requested(_requested("stop"), Phase.RUNNING, "", 0)
    marked = endings.marked(_complete(3), "stop")
    assert (marked.ending, marked.request, marked.reason) == ("stop", "r", "asked")
    assert endings.marked(_complete(3), "periodic").ending == ""


def test_a_cancel_waits_for_publishing_until_its_deadline() -> None:
    """What is complete may still be published for a while; the reason says if it was not."""
    endings = Endings(_history())
    endings.requested(_requested("cancel"), Phase.RUNNING, "", 1000)
    assert not endings.is_over(TASKS, TOPOLOGY, Phase.RUNNING, 1000 + PUBLISH_DEADLINE_MS - 1)
    assert endings.is_over(TASKS, TOPOLOGY, Phase.RUNNING, 1000 + PUBLISH_DEADLINE_MS)
    assert endings.last_words(TASKS, TOPOLOGY) == "asked; checkpoint 2 was not fully published in time"


def test_a_cancel_goes_on_while_rows_stand_in_an_exchange() -> None:
    """Nothing else would ever publish them: it ends when they are visible, or when it is cancelled once more."""
    topology = replace(TOPOLOGY, publishers=frozenset({SINK.vertex}))
    endings = Endings(_history())
    endings.requested(_requested("cancel"), Phase.RUNNING, "", 0)
    late = PUBLISH_DEADLINE_MS
    assert "cancel it again" not in endings.status(late - 1)
    [early] = endings.requested(_requested("cancel", "r2"), Phase.RUNNING, "", late - 1)
    assert isinstance(early, RequestDone)
    assert "cancel it once more in 1 s" in early.outcome
    assert not endings.is_over(TASKS, topology, Phase.RUNNING, 10 * late)
    assert "have not published checkpoint 2 yet; cancel it again" in endings.status(late)
    assert [endings.publish_again_ms(1_000, late + ms) for ms in (-1, 0, 5_000, 10**6)] == [1_000, 1_000, 5_000, 60_000]
    assert endings.requested(_requested("cancel", "r3"), Phase.RUNNING, "", late) == []
    assert endings.is_over(TASKS, topology, Phase.RUNNING, late)
    assert endings.unpublished(TASKS, topology)


def test_a_cancel_does_not_wait_for_rows_that_are_gone() -> None:
    """Its deadline serves the other sinks."""
    topology = replace(TOPOLOGY, publishers=frozenset({SINK.vertex}))
    endings = Endings(_history())
    endings.requested(_requested("cancel"), Phase.RUNNING, "", 0)
    endings.cannot_publish()
    assert not endings.is_over(TASKS, topology, Phase.RUNNING, PUBLISH_DEADLINE_MS - 1)
    assert endings.is_over(TASKS, topology, Phase.RUNNING, PUBLISH_DEADLINE_MS)


def test_a_cancel_without_a_complete_is_over_at_once() -> None:
    """There is nothing to publish."""
    endings = Endings(_history(complete=False))
    endings.requested(_requested("cancel"), Phase.RESTARTING, "", 0)
    assert endings.is_over(TASKS, TOPOLOGY, Phase.RESTARTING, 0)
    assert endings.last_words(TASKS, TOPOLOGY) == "asked"


@pytest.mark.parametrize(
    ("kind", "records"), [("savepoint", [Savepoint]), ("stop", [Savepoint, Terminated])]
)  # fmt: skip
def test_what_is_recorded_when_all_is_published(kind: RequestKind, records: list[type]) -> None:
    """A savepoint lets the job go on, a stop ends it behind its savepoint."""
    endings = Endings(_history())
    endings.requested(_requested(kind), Phase.RUNNING, "", 0)
    assert endings.current is not None
    assert [type(record) for record in endings.savepoint_records(endings.current)] == records
    assert endings.current is None


def test_a_new_attempt_forgets_that_sources_had_ended() -> None:
    """Its sources start from before their end; another ending stays."""
    endings = Endings(_history())
    endings.sources_ended()
    assert endings.current is not None
    endings.attempt_begins()
    assert endings.current is None
    endings.requested(_requested("stop"), Phase.RUNNING, "", 0)
    endings.attempt_begins()
    assert endings.current is not None


def test_a_new_leader_goes_on_with_a_stop_that_is_complete() -> None:
    """Other endings are asked for again."""
    begun = [Submit(seq=0, nonce="n0", job="j", name="job", graph={}), _begin()]
    endings = Endings(JobHistory.of([*begun, _complete(2, "stop", "r")]))
    endings.opened(None)
    assert endings.current is not None
    assert (endings.current.kind, endings.current.checkpoint) == ("stop", 2)
    other = Endings(JobHistory.of([*begun, _complete(2, "rescale", "r")]))
    other.opened(None)
    assert other.current is None


def test_a_savepoint_whose_checkpoint_fails_is_refused() -> None:
    """It is not tried for ever, and the job goes on; the end of the input is."""
    endings = Endings(_history())
    endings.requested(_requested("savepoint"), Phase.RUNNING, "", 0)
    assert endings.checkpoint_failed(_pending("periodic"), "timeout") == []
    (told,) = endings.checkpoint_failed(_pending("savepoint"), "timeout")
    assert told == RequestDone("r", "refused: its checkpoint 1 failed: timeout")
    assert endings.current is None
    endings.sources_ended()
    assert endings.checkpoint_failed(_pending("final"), "timeout") == []
    assert endings.current is not None


@pytest.mark.parametrize("kind", ["savepoint", "stop", "rescale"])
def test_without_slots_the_newest_complete_serves(kind: RequestKind) -> None:
    """Nothing runs, so no newer one can be had; sinks alone publish it."""
    endings = Endings(_history())
    endings.requested(_requested(kind), Phase.WAITING, "", 0)
    assert endings.current is not None
    assert not endings.current.needs_sinks_only
    assert endings.without_slots(3) == []
    assert endings.current.checkpoint == 2
    assert endings.current.needs_sinks_only


def test_what_cannot_be_done_without_slots_is_refused() -> None:
    """A drain sends rows through the job; without any COMPLETE there is nothing to keep."""
    endings = Endings(_history())
    endings.requested(Requested("r", "stop", drain=True), Phase.WAITING, "", 0)
    (told,) = endings.without_slots(3)
    assert isinstance(told, RequestDone)
    assert "refused: 3 slots are missing" in told.outcome
    fresh = Endings(_history(complete=False))
    fresh.requested(_requested("savepoint"), Phase.WAITING, "", 0)
    (told,) = fresh.without_slots(3)
    assert isinstance(told, RequestDone)
    assert "no checkpoint is complete" in told.outcome


def test_where_the_checkpoint_is_gone_only_a_cancel_is_obeyed() -> None:
    """Everything else would need what cannot be read."""
    endings = Endings(_history())
    (told,) = endings.requested(_requested("savepoint"), Phase.WAITING, "its manifest is missing", 0)
    assert told == RequestDone("r", "refused: the job cannot go on: its manifest is missing; cancel it")
    endings.requested(_requested("cancel", "r2"), Phase.WAITING, "its manifest is missing", 0)
    assert endings.current is not None

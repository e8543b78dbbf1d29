"""The log of a run: which records may follow which, what they mean, and how the store keeps them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from run_records import began, submitted

from penstock.adapters.memory import MemoryBlobs
from penstock.adapters.system_clock import SystemClock
from penstock.errors import ExternalError, ProtocolError
from penstock.ports import BlobExistsError
from penstock.runs.run_log import AttemptLost, CancelAsked, RunEnded, RunHistory, history_of
from penstock.runs.run_store import RunStore
from penstock.runs.run_views import RunProgress, RunView, summary_of_run

LOST = AttemptLost(attempt=1, reason="killed")
FAILED = RunEnded(state="FAILED", reason="no such column", at_us=90)
CANCEL = CancelAsked(request="r2")


def store(blobs: Any) -> RunStore:
    numbers = itertools.count()
    return RunStore(blobs, SystemClock(), lambda: f"{next(numbers):032x}")


def test_the_state_follows_from_the_records() -> None:
    """Waiting, at work, waiting again after a lost attempt, ended; submitted again it has all its attempts anew."""
    history = RunHistory()
    seen: list[tuple[str, int]] = []
    records = [submitted(), began(1), LOST, began(2), CANCEL, FAILED, submitted(request="r3"), began(3)]
    for record in records:
        history = history.after(record)
        seen.append((history.state, len(history.attempts)))
    assert seen == [
        ("QUEUED", 0), ("RUNNING", 1), ("QUEUED", 1), ("RUNNING", 2), ("RUNNING", 2), ("FAILED", 2), ("QUEUED", 0),
        ("RUNNING", 1),
    ]  # fmt: skip
    assert not history.cancel_asked
    assert [history.knows(request) for request in ("r1", "r2", "r3", "r4")] == [True, True, True, False]


@pytest.mark.parametrize(
    "records",
    [
        [began()],
        [submitted(), submitted()],
        [submitted(), began(2)],
        [submitted(), began(), began(2)],
        [submitted(), LOST],
        [submitted(), CANCEL, CANCEL],
        [submitted(), RunEnded(state="FINISHED")],
        [submitted(), FAILED, began()],
        [submitted(), began(), RunEnded(state="FINISHED"), submitted()],
    ],
)
def test_what_may_not_follow_is_refused(records: list[Any]) -> None:
    """A log that was written by somebody else's rules is not gone on with."""
    with pytest.raises(ProtocolError, match="log of a run: record"):
        history_of(records)


def test_a_run_in_short() -> None:
    """What its service sees is shown only of what is at work or waits; why an attempt was lost stays to be seen."""
    view = RunView("nightly", 2, RunProgress(at="sorting", parallelism=8))
    waiting = summary_of_run(history_of([submitted()]), view)
    assert (waiting.state, waiting.position, waiting.progress) == ("QUEUED", 2, None)
    running = summary_of_run(history_of([submitted(), began(), LOST, began(2), CANCEL]), view)
    assert (running.attempts, running.reason, running.cancel_asked) == (2, "killed", True)
    assert running.progress is not None
    assert running.parallelism == 8
    ended = summary_of_run(history_of([submitted(parallelism=3), began(), FAILED]), view)
    assert (ended.state, ended.reason, ended.ended_us, ended.parallelism) == ("FAILED", "no such column", 90, 3)


async def test_a_log_grows_by_one_writer_at_a_time() -> None:
    """Who knows less than the store does is told so, and nothing of theirs is written."""
    blobs = MemoryBlobs()
    runs = store(blobs)
    history = await runs.append("nightly", RunHistory(), submitted())
    assert history is not None
    assert await runs.append("nightly", RunHistory(), submitted(request="other")) is None
    assert await runs.history("nightly") == history
    assert await runs.append("nightly", history, began()) == await runs.history("nightly")
    assert await runs.history("another") == RunHistory()


class Uncertain(MemoryBlobs):
    """Writes, and then says that it does not know whether it did."""

    async def create(self, key: str, data: bytes) -> None:
        """See `Blobs.create`."""
        try:
            await super().create(key, data)
        except BlobExistsError:
            raise
        raise ExternalError("no answer")


async def test_an_uncertain_write_is_found_to_be_ones_own() -> None:
    """The nonce tells: the record stands there once, and its writer goes on."""
    blobs = Uncertain()
    history = await store(blobs).append("nightly", RunHistory(), submitted())
    assert history is not None
    assert len(await blobs.list("runs/log/")) == 1


async def test_the_index_names_what_is_active_and_what_has_ended() -> None:
    """A run that was submitted again stands in both until it ends, and the newest end counts."""
    runs = store(MemoryBlobs())
    await runs.announce("nightly")
    assert await runs.active() == ["nightly"]
    history = history_of([submitted(), began(), FAILED])
    await runs.retire("nightly", history)
    assert await runs.active() == []
    await runs.announce("nightly")
    again = history.after(submitted(request="r3")).after(began(2)).after(RunEnded(state="FINISHED", at_us=99))
    assert set(await runs.ended()) == set(await runs.active()) == {"nightly"}
    await runs.retire("nightly", again)
    assert (await runs.ended_summary((await runs.ended())["nightly"])).state == "FINISHED"
    await runs.announce("never")
    await runs.retire("never", RunHistory())
    assert (await runs.active(), set(await runs.ended())) == ([], {"nightly"})


async def test_the_last_lines_are_kept() -> None:
    """Those of the newest attempt."""
    runs = store(MemoryBlobs())
    assert await runs.output("nightly") == ""
    for text in ("first", "second"):
        await runs.put_output("nightly", text)
    assert await runs.output("nightly") == "second"

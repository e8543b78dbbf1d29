"""The committer: makes visible what COMPLETE covers, once, oldest first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.connectors.base import Prepared
from penstock.protocol.committing import StagedPart
from penstock.task.committer import Committer, decode_staged


class Writer:
    """A sink writer that stages one part per checkpoint and remembers what became visible."""

    def __init__(self) -> None:
        self.visible: list[object] = []

    def write(self, frame) -> None: ...

    def prepare(self, checkpoint: int) -> Prepared:
        return Prepared([f"part {checkpoint}"])

    def commit(self, committable) -> None:
        self.visible.append(committable)

    def discard(self, committable) -> None: ...

    def close(self) -> None: ...


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail after a deadline."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("the condition did not come true in time")


async def test_nothing_is_visible_before_complete():
    """Parts wait for COMPLETE; those of aborted checkpoints become visible with the next one."""
    writer = Writer()
    committer = Committer({"sink": writer}, [], 0, lambda: None)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(committer.run())
        listed, _ = committer.prepare(1)
        assert [part.committable for part in decode_staged(listed["sink"])] == ["part 1"]
        listed, _ = committer.prepare(2)
        assert len(decode_staged(listed["sink"])) == 2
        assert writer.visible == []
        committer.completed(2)
        await until(lambda: committer.published == 2)
        assert writer.visible == ["part 1", "part 2"]
        listed, _ = committer.prepare(3)
        assert [part.committable for part in decode_staged(listed["sink"])] == ["part 3"]
        running.cancel()


async def test_the_proof_of_a_commit_is_forgotten_when_no_checkpoint_lists_the_part():
    """That is: once a snapshot without it is COMPLETE."""

    class Proving(Writer):
        forgotten: list[object]

        def forget(self, committable) -> None:
            self.forgotten.append(committable)

    writer = Proving()
    writer.forgotten = []
    committer = Committer({"sink": writer}, [], 0, lambda: None)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(committer.run())
        for checkpoint in (1, 2, 3):
            committer.prepare(checkpoint)
            committer.completed(checkpoint)
            await until(lambda: committer.published == checkpoint)  # noqa: B023 (called at once)
            await until(lambda: len(writer.forgotten) == checkpoint - 1)  # noqa: B023
        running.cancel()
    assert writer.forgotten == ["part 1", "part 2"]


async def test_restored_parts_are_committed_at_once():
    """What a COMPLETE manifest lists is made visible before anything else; only then is it published."""
    writer = Writer()
    changes: list[int] = []
    committer = Committer({"sink": writer}, [StagedPart("sink", 4, "old")], 5, lambda: changes.append(1))
    assert committer.published == 0
    async with asyncio.TaskGroup() as group:
        running = group.create_task(committer.run())
        await until(lambda: committer.published == 5)
        running.cancel()
    assert writer.visible == ["old"]
    assert changes


async def test_what_could_not_be_made_durable_is_tried_with_the_next_checkpoint():
    """A declined checkpoint leaves its parts to the next one, which lists them and must make them durable, too."""

    class Durable(Writer):
        def prepare(self, checkpoint: int) -> Prepared:
            return Prepared([f"part {checkpoint}"], persist=lambda: None)

    committer = Committer({"sink": Durable()}, [], 0, lambda: None)
    _, first = committer.prepare(1)
    _, second = committer.prepare(2)
    assert second[: len(first)] == first
    assert len(second) == 2
    committer.persisted(second)
    _, third = committer.prepare(3)
    assert len(third) == 1


async def test_overlapping_uploads_forget_only_what_they_made_durable():
    """The upload of one checkpoint ends while that of the next is under way, which may yet fail."""

    class Durable(Writer):
        def prepare(self, checkpoint: int) -> Prepared:
            return Prepared([f"part {checkpoint}"], persist=lambda: made.append(checkpoint))

    made: list[int] = []
    committer = Committer({"sink": Durable()}, [], 0, lambda: None)
    _, first = committer.prepare(1)
    committer.prepare(2)
    committer.persisted(first)
    _, third = committer.prepare(3)
    for persist in third:
        persist()
    assert made == [2, 3]


async def test_parts_of_some_sinks_are_committed_elsewhere():
    """Not by their writer; those of other sinks are."""
    here, there, gathered = Writer(), Writer(), list[StagedPart]()

    async def gather(part: StagedPart) -> None:
        gathered.append(part)

    committer = Committer({"here": here, "there": there}, [], 0, lambda: None, {"there": gather})
    async with asyncio.TaskGroup() as group:
        running = group.create_task(committer.run())
        committer.prepare(1)
        committer.completed(1)
        await until(lambda: committer.published == 1)
        running.cancel()
    assert here.visible == ["part 1"]
    assert there.visible == []
    assert gathered == [StagedPart("there", 1, "part 1")]


async def test_the_end_of_the_job_ends_the_proofs_too():
    """No checkpoint of an ended job is restored as its own, so nobody asks any more whether a part was committed."""
    forgotten: list[object] = []

    class Remembers(Writer):
        def forget(self, committable) -> None:
            forgotten.append(committable)

    committer = Committer({"sink": Remembers()}, [], 0, lambda: None)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(committer.run())
        for checkpoint in (1, 2):
            committer.prepare(checkpoint)
            committer.completed(checkpoint)
            await until(lambda checkpoint=checkpoint: committer.published == checkpoint)
        running.cancel()
    assert "part 2" not in forgotten
    await committer.job_ended()
    assert "part 2" in forgotten

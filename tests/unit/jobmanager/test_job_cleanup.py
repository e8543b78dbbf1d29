"""What is deleted of a job's checkpoints where some name objects of others."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest

from penstock.adapters.memory import MemoryBlobs
from penstock.jobmanager.job_cleanup import JobCleanup
from penstock.protocol.joblog import Complete, Savepoint
from penstock.protocol.manifests import Manifest, encode_manifest, manifest_key
from penstock.protocol.messages import Handle, OperatorHandles, SubtaskSnapshot

JOB, ATTEMPT, NONCE = "j", "a" * 32, "b" * 16


def key(checkpoint: int, name: str) -> str:
    return manifest_key(JOB, ATTEMPT, checkpoint, NONCE).replace("manifest.json", name)


def manifest(checkpoint: int, *runs: str) -> bytes:
    handles = [(Handle(one, "sha", 1),) for one in runs]
    snapshot = SubtaskSnapshot(operators={"op": OperatorHandles().with_runs(handles)})
    return encode_manifest(Manifest(
        job=JOB, checkpoint=checkpoint, attempt=ATTEMPT, parallelism=1, max_parallelism=1, subtasks={"v": {0: snapshot}},
        operators={},
    ))  # fmt: skip


class Job:
    """A store with checkpoints 1 to 4, of which 3 consists of objects of 1 and 3, and 4 of its own."""

    def __init__(self, kept: str) -> None:
        self.blobs = MemoryBlobs()
        self.manifest = manifest(3, key(1, "op.state"), key(3, "op.state"))
        about = {
            "checkpoint": 3,
            "manifest": key(3, "manifest.json"),
            "sha256": hashlib.sha256(self.manifest).hexdigest(),
        }
        savepoint = Savepoint(**about, request="r", published=True, refers=True)
        complete = Complete(**about, checkpoint_nonce=NONCE, attempt=ATTEMPT, parent=1, refers=True)
        self.history = SimpleNamespace(
            records=[savepoint] if kept == "savepoint" else [], retained=complete if kept == "failed" else None,
            begin=None, complete=None, next_seq=0, compacted=0,
        )  # fmt: skip

        async def topics() -> list[str]:
            return []

        ports = SimpleNamespace(blobs=self.blobs, log=SimpleNamespace(topics=topics))
        self.cleanup = JobCleanup(JOB, ports, None, None)

    async def filled(self) -> Job:
        for number in (1, 2, 3, 4):
            await self.blobs.put(key(number, "op.state"), b"state")
            await self.blobs.put(key(number, "manifest.json"), self.manifest if number == 3 else b"{}")
        return self

    async def left(self) -> list[str]:
        return sorted(
            one.rpartition("checkpoints/")[2].split("-")[0].lstrip("0") + one[-14:] for one in await self.blobs.list("")
        )


async def test_what_a_savepoint_names_stays_with_it() -> None:
    """Of checkpoint 1 the one object that it consists of, nothing else."""
    job = await Job("savepoint").filled()
    await job.cleanup.replaced(4, job.history, lambda: ())
    assert [one for one in await job.left() if one[0] in "12"] == [name(1)]
    assert len(await job.left()) == 5


def name(number: int) -> str:
    return f"{number}{key(number, 'op.state')[-14:]}"


async def test_of_a_failed_job_the_kept_checkpoint_stays_whole() -> None:
    """With the object of another one."""
    job = await Job("failed").filled()
    await job.cleanup._delete_checkpoints(job.history)
    assert len(await job.left()) == 3
    assert name(1) in await job.left()


@pytest.mark.parametrize("damage", [b"{}", b"\xff"])
async def test_nothing_is_deleted_where_nobody_knows_what_is_needed(damage: bytes) -> None:
    """A manifest that is not what was written."""
    job = await Job("savepoint").filled()
    await job.blobs.put(key(3, "manifest.json"), damage)
    await job.cleanup.replaced(4, job.history, lambda: ())
    assert len(await job.left()) == 8


async def test_a_savepoint_that_was_disposed_of_holds_nothing() -> None:
    """Its record stays in the log."""
    job = await Job("savepoint").filled()
    await job.blobs.delete(key(3, "manifest.json"))
    await job.cleanup.replaced(4, job.history, lambda: ())
    assert name(1) not in await job.left()


async def test_what_the_newest_checkpoints_name_stays() -> None:
    """Whoever else is kept."""
    job = await Job("").filled()
    await job.cleanup.replaced(4, job.history, lambda: [key(2, "op.state")])
    assert [one[0] for one in await job.left()] == ["2", "4", "4"]

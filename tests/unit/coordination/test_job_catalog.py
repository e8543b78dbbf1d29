"""The list of jobs in the store: what is there before and after a job runs."""

from __future__ import annotations

import pytest

from penstock.adapters.memory import MemoryBlobs
from penstock.coordination.job_catalog import JobCatalog
from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError
from penstock.protocol.joblog import Submit, log_key

JOB = "e" * 32


class Conflicting(MemoryBlobs):
    """Reports a conflict of the first conditional create though nothing was written, as object stores may do."""

    refused = False

    async def create(self, key: str, data: bytes) -> None:
        if not self.refused:
            self.refused = True
            raise BlobExistsError(f"object {key} exists")
        await super().create(key, data)


async def test_a_conflict_that_wrote_nothing_does_not_lose_a_submission():
    """The job is not listed without its log; who insists makes it exist."""
    blobs = Conflicting()
    catalog = JobCatalog(blobs)
    submit = Submit(seq=0, nonce="n", job=JOB, name="job", graph={})
    with pytest.raises(ExternalError) as raised:
        await catalog.create(submit)
    assert raised.value.retryable
    assert await catalog.active() == []
    with pytest.raises(BlobNotFoundError):
        await blobs.get(log_key(JOB, 0))
    await catalog.create(submit)
    assert await catalog.active() == [JOB]
    first = await blobs.get(log_key(JOB, 0))
    await catalog.create(Submit(seq=0, nonce="another", job=JOB, name="job", graph={}))
    assert await blobs.get(log_key(JOB, 0)) == first

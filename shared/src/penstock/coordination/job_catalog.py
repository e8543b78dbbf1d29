"""Which jobs there are: what a leader finds when it takes over, and what clients see of jobs that have ended.

The job log says what happened to a job; the objects here only save listing all of them: `active/<job>` from the
submission until everything of the job is cleaned up, `finished/<job>` from then on.
"""

from __future__ import annotations

import msgspec

from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError, Blobs
from penstock.protocol.joblog import JobHistory, Submit, encode_record, log_key
from penstock.protocol.requests import Answer, SubmitJob, answer_key

ACTIVE = "active/"
FINISHED = "finished/"


class FinishedJob(msgspec.Struct, frozen=True):
    """A job that has ended, in short."""

    job: str
    name: str
    state: str
    reason: str = ""
    submitted_us: int = 0
    ended_us: int = 0
    parallelism: int = 1
    checkpoint: int = 0
    """The newest complete one."""


class JobCatalog:
    """The jobs of one cluster."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def active(self) -> list[str]:
        """Jobs that have not ended, or whose remains are not cleaned up."""
        return [key.removeprefix(ACTIVE) for key in await self._blobs.list(ACTIVE)]

    async def submit(self, request: SubmitJob, nonce: str) -> None:
        """Make the job exist; nothing happens if it does already (a request that is read again)."""
        submit = Submit(
            seq=0, nonce=nonce, job=request.job, name=request.name, graph=request.graph,
            restored_from=request.restored_from, settings=request.settings, artifact=request.artifact,
            scalable=request.scalable, submitted_us=request.issued_us,
        )  # fmt: skip
        await self.create(submit)

    async def create(self, submit: Submit) -> None:
        """Write the first record of a job's log.

        Raises:
            ExternalError: it is not certain that the log is there; trying again helps.
        """
        if await self._exists(FINISHED + submit.job):
            return
        key = log_key(submit.job, 0)
        try:
            await self._blobs.create(key, encode_record(submit))
        except BlobExistsError as error:
            # The same request, read again: its id is the job's. Or a conflict that wrote nothing, as some stores have it.
            if not await self._exists(key):
                raise ExternalError(f"create {key}: refused, and it is not there") from error
        await self._blobs.put(ACTIVE + submit.job, b"")

    async def ended(self, history: JobHistory, ended_us: int) -> None:
        """The job has ended and is cleaned up."""
        submit, terminated = history.submit, history.terminated
        assert submit is not None
        assert terminated is not None
        summary = FinishedJob(
            job=submit.job, name=submit.name, state=terminated.state, reason=terminated.reason,
            submitted_us=submit.submitted_us, ended_us=ended_us,
            parallelism=history.begin.parallelism if history.begin else 0, checkpoint=history.highest_checkpoint,
        )  # fmt: skip
        await self._blobs.put(FINISHED + submit.job, msgspec.json.encode(summary))
        await self._blobs.delete(ACTIVE + submit.job)

    async def finished(self) -> list[FinishedJob]:
        """All jobs that have ended."""
        result: list[FinishedJob] = []
        for key in await self._blobs.list(FINISHED):
            try:
                result.append(msgspec.json.decode(await self._blobs.get(key), type=FinishedJob))
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                raise CorruptDataError(f"{key}: not readable: {error}") from error
        return result

    # -- answers --------------------------------------------------------------------------------------------------------

    async def answer(self, answer: Answer) -> None:
        """Leave the answer to a request."""
        await self._blobs.put(answer_key(answer.job, answer.request), msgspec.json.encode(answer))

    async def answer_to(self, job: str, request: str) -> Answer | None:
        """The answer to a request, if there is one yet."""
        try:
            data = await self._blobs.get(answer_key(job, request))
        except BlobNotFoundError:
            return None
        return msgspec.json.decode(data, type=Answer)

    async def answered(self, job: str, kind: str) -> bool:
        """Whether a request of this kind was carried out and its asker knows."""
        for key in await self._blobs.list(answer_key(job, "")):
            answer = await self.answer_to(job, key.rpartition("/")[2])
            if answer is not None and (answer.kind, answer.outcome) == (kind, "completed"):
                return True
        return False

    async def _exists(self, key: str) -> bool:
        try:
            await self._blobs.get(key)
        except BlobNotFoundError:
            return False
        return True

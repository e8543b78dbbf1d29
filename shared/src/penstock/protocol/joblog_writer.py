"""How records come into the job log: what an answer of the store to a conditional create means.

One record at a time; what the records say is `penstock.protocol.joblog`'s business.
"""

from __future__ import annotations

from collections import deque

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.joblog import AnyRecord, Complete, JobHistory, Leader


class CreateRecord(msgspec.Struct, frozen=True):
    """Create the object `log_key(job, record.seq)` conditionally; answer with one of the three events below."""

    record: AnyRecord


class ReadRecord(msgspec.Struct, frozen=True):
    """Read the record of that seq back; give what stands there to `JobLogWriter.read_back`."""

    seq: int


class LookForCompaction(msgspec.Struct, frozen=True):
    """Is there a compaction that goes up to this seq, or further? Answer with `newest_compaction`."""

    seq: int


class RecordCommitted(msgspec.Struct, frozen=True):
    """The record stands in the log."""

    record: AnyRecord


class StepDown(msgspec.Struct, frozen=True):
    """Another leader acted: reload, decide nothing more."""

    reason: str


WriterCommand = CreateRecord | ReadRecord | LookForCompaction | RecordCommitted | StepDown


class JobLogWriter:
    """Appends records one at a time, whatever the store answers.

    A created object is committed, a LEADER after a look at the compactions. A refusal means someone wrote this seq:
    one's own earlier try (same nonce) or another leader (step down). A lost answer means unknown: the identical bytes are
    sent again until the answer is certain.
    """

    def __init__(self, history: JobHistory) -> None:
        self.history = history
        self._queue: deque[AnyRecord] = deque()
        self._in_flight: AnyRecord | None = None
        self.lost = False

    @property
    def uncertain(self) -> AnyRecord | None:
        """The record whose fate is not known; nothing that it names may be deleted."""
        return self._in_flight

    def append(self, record: AnyRecord, nonce: str) -> list[WriterCommand]:
        """Queue a record; its seq is given when its turn comes."""
        self._queue.append(msgspec.structs.replace(record, nonce=nonce))
        return self._next()

    def created(self) -> list[WriterCommand]:
        """The store created the object."""
        record = self._in_flight
        if record is None:
            raise ProtocolError("job log: an answer to no question")
        if isinstance(record, Leader):
            return [LookForCompaction(record.seq)]
        return self._committed(record)

    def newest_compaction(self, through: int) -> list[WriterCommand]:
        """How far the newest compaction goes, -1 if there is none, now that LEADER is in the store."""
        record = self._in_flight
        if record is None:
            raise ProtocolError("job log: an answer to no question")
        if through < record.seq:
            return self._committed(record)
        return self._step_down(f"record {record.seq} was written and compacted by another leader")

    def _committed(self, record: AnyRecord) -> list[WriterCommand]:
        self.history.apply(record)
        self._in_flight = None
        return [RecordCommitted(record), *self._next()]

    def _step_down(self, reason: str) -> list[WriterCommand]:
        self.lost = True
        self._queue.clear()
        return [StepDown(reason)]

    def refused(self) -> list[WriterCommand]:
        """The object exists: whose is it?"""
        if self._in_flight is None:
            raise ProtocolError("job log: an answer to no question")
        return [ReadRecord(self._in_flight.seq)]

    def unknown(self) -> list[WriterCommand]:
        """No certain answer: send the identical bytes again."""
        if self._in_flight is None:
            raise ProtocolError("job log: an answer to no question")
        return [CreateRecord(self._in_flight)]

    def read_back(self, found: AnyRecord | None) -> list[WriterCommand]:
        """What stands at the refused seq (None: nothing after all, a conflict that wrote nothing)."""
        if self._in_flight is None:
            raise ProtocolError("job log: an answer to no question")
        if found is None:
            return [CreateRecord(self._in_flight)]
        if found.nonce == self._in_flight.nonce:
            return self.created()
        return self._step_down(f"record {found.seq} ({type(found).__name__}) was written by another leader")

    def _next(self) -> list[WriterCommand]:
        if self.lost or self._in_flight is not None or not self._queue:
            return []
        record = msgspec.structs.replace(self._queue.popleft(), seq=self.history.next_seq)
        if isinstance(record, Leader) and record.epoch <= self.history.epoch:
            return self._step_down(f"a leader of epoch {self.history.epoch} acts already")
        if isinstance(record, Complete):
            parent = self.history.complete.seq if self.history.complete else -1
            record = msgspec.structs.replace(record, parent=parent)
        self.history.check(record)
        self._in_flight = record
        return [CreateRecord(record)]

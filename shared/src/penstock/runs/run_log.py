"""The record of a run on Spark: an append-only log, as a job has one, and what follows from it.

A run exists once the first record of its log is in the store: an object `runs/log/<run>/<seq>`, created conditionally,
each with a nonce. Responsible for what the records mean and in which order they may stand; `run_store` keeps them,
`run_scheduler` says which comes next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from penstock.errors import CorruptDataError, ProtocolError
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import RunOptions

RunState = Literal["QUEUED", "RUNNING", "FINISHED", "FAILED", "CANCELED"]
EndState = Literal["FINISHED", "FAILED", "CANCELED"]
RUN_ENDED: Final[frozenset[str]] = frozenset({"FINISHED", "FAILED", "CANCELED"})

LATE_ROWS_KEPT: Final = "late_rows_kept"
"""Counter of an operator in a run: rows that would have been late in a stream, and are in its results."""

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_run_id(text: str) -> bool:
    """Whether a run can be called so: up to 100 letters, digits, dots, dashes and underscores, not one of these first."""
    return _RUN_ID.fullmatch(text) is not None


def overrides_refused(master: str) -> str:
    """Why a run with a master or settings of its own is not executed."""
    return (
        f"the pipeline service of this cluster runs everything at {master} with its own settings of Spark; leave out "
        "--master and --conf, or start it with --allow-overrides"
    )


class RunRecord(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all records; the store sets seq and nonce. Times are microseconds since the epoch."""

    seq: int = -1
    nonce: str = ""
    at_us: int = 0


class Submitted(RunRecord, frozen=True, kw_only=True):
    """The run is to be executed. Record 0, and again where a run that failed or was cancelled is taken up again."""

    run: str
    request: str
    name: str
    graph: dict[str, Any]
    artifact: Artifact
    options: RunOptions


class AttemptBegan(RunRecord, frozen=True, kw_only=True):
    """Written before the process of an attempt is started; `attempt` counts from 1 over the life of the run."""

    attempt: int
    place: str
    """The work folder in which it happens: only the service that has it can see the process."""
    host: str


class AttemptLost(RunRecord, frozen=True, kw_only=True):
    """The attempt is over without an end of the run, which waits for the next one."""

    attempt: int
    reason: str


class CancelAsked(RunRecord, frozen=True, kw_only=True):
    """Somebody wants the run to end."""

    request: str


class RunEnded(RunRecord, frozen=True, kw_only=True):
    """The end, unless the run is submitted again."""

    state: EndState
    reason: str = ""
    frames: str = ""
    """Of an error in the user's code: the user's part of the traceback."""
    counts: dict[str, dict[str, int]] = {}
    """Operator id to counter (those of `OperatorMetrics`, and `LATE_ROWS_KEPT`) to value."""
    computed: bool = True
    """False if an earlier attempt had computed the run, and only its commits were carried to the end."""


AnyRunRecord = Submitted | AttemptBegan | AttemptLost | CancelAsked | RunEnded

_RECORDS: msgspec.json.Decoder[AnyRunRecord] = msgspec.json.Decoder(AnyRunRecord)


def decode_run_record(data: bytes, key: str) -> AnyRunRecord:
    """The record in the object `key`; raises `CorruptDataError`."""
    try:
        return _RECORDS.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"log of a run: object {key} is no record this program reads: {error}") from error


@dataclass(frozen=True)
class RunHistory:
    """What the log of a run says so far."""

    records: tuple[AnyRunRecord, ...] = ()

    @property
    def next_seq(self) -> int:
        """The seq of the next record."""
        return len(self.records)

    @property
    def first(self) -> Submitted | None:
        """The record that made the run exist; None if there is no such run."""
        return next((record for record in self.records if isinstance(record, Submitted)), None)

    @property
    def submitted(self) -> Submitted:
        """The newest submission: what is executed."""
        return self._newest[0]

    @property
    def attempts(self) -> tuple[AttemptBegan, ...]:
        """The attempts since the newest submission."""
        return tuple(record for record in self._newest[1] if isinstance(record, AttemptBegan))

    @property
    def attempt(self) -> AttemptBegan | None:
        """The attempt that is at work; None if the run waits or has ended."""
        for record in reversed(self.records):
            if isinstance(record, AttemptBegan):
                return record
            if not isinstance(record, CancelAsked):
                return None
        return None

    @property
    def cancel_asked(self) -> bool:
        """Whether the run is to end."""
        return any(isinstance(record, CancelAsked) for record in self._newest[1])

    @property
    def ended(self) -> RunEnded | None:
        """How it ended; None if it did not."""
        last = self.records[-1] if self.records else None
        return last if isinstance(last, RunEnded) else None

    @property
    def state(self) -> RunState:
        """What it is doing."""
        ended = self.ended
        return ended.state if ended is not None else "RUNNING" if self.attempt is not None else "QUEUED"

    def knows(self, request: str) -> bool:
        """Whether this request was carried out."""
        return any(record.request == request for record in self.records if isinstance(record, Submitted | CancelAsked))

    def is_past(self, issued_us: int) -> bool:
        """Whether a request of that moment was about what is over: an end, or what was before the newest submission."""
        ends = (record.at_us for record in self.records if isinstance(record, Submitted | RunEnded))
        return 0 < issued_us < max(ends, default=0)

    def after(self, record: AnyRunRecord) -> RunHistory:
        """The history with one more record.

        Raises:
            ProtocolError: it may not stand there.
        """
        self.check(record)
        return RunHistory((*self.records, record))

    def check(self, record: AnyRunRecord) -> None:
        """Raise `ProtocolError` if the record may not follow."""
        ended = self.ended
        if isinstance(record, Submitted):
            allowed = not self.records or (ended is not None and ended.state != "FINISHED")
        elif not self.records or ended is not None:
            allowed = False
        else:
            allowed = self._may_follow(record)
        if not allowed:
            before = type(self.records[-1]).__name__ if self.records else "nothing"
            raise ProtocolError(f"log of a run: record {self.next_seq} is {type(record).__name__} after {before}")

    def _may_follow(self, record: AnyRunRecord) -> bool:
        attempt = self.attempt
        match record:
            case AttemptBegan():
                began = sum(isinstance(known, AttemptBegan) for known in self.records)
                return attempt is None and record.attempt == began + 1
            case AttemptLost():
                return attempt is not None and record.attempt == attempt.attempt
            case RunEnded():
                return record.state != "FINISHED" or attempt is not None
            case _:
                return not self.cancel_asked

    @property
    def _newest(self) -> tuple[Submitted, tuple[AnyRunRecord, ...]]:
        """The newest submission, and what followed."""
        for index in range(len(self.records) - 1, -1, -1):
            record = self.records[index]
            if isinstance(record, Submitted):
                return record, self.records[index + 1 :]
        raise ProtocolError("log of a run: it has no records, so there is no such run")


def history_of(records: Iterable[AnyRunRecord]) -> RunHistory:
    """The history after these records; raises `ProtocolError` if they are no log of a run."""
    history = RunHistory()
    for record in records:
        history = history.after(record)
    return history


class RunOutcome(msgspec.Struct, frozen=True):
    """How an attempt ended, as its process says."""

    state: Literal["FINISHED", "FAILED"]
    reason: str = ""
    frames: str = ""
    counts: dict[str, dict[str, int]] = {}
    computed: bool = True

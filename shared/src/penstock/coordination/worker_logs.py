"""What the workers of a task manager have logged lately, those that have ended among them: who asks why a job failed
need not go to the machine.

The supervisor passes on what its workers write to standard error, and keeps the end of it.
"""

from __future__ import annotations

import asyncio
import codecs
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import ExternalError
from penstock.protocol.messages import AnyEvent, Heartbeat, TaskChanged

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

KEPT_LINES: Final = 500
KEPT_ENDED: Final = 20
"""So many workers that have ended are remembered."""
MAX_LINE: Final = 64 << 10
"""Characters; what is longer is cut."""
PASSED_ON_S: Final = 1.0
"""After its end what a worker had started may hold its standard error open; it is not waited for any longer."""
LOGS_PATH: Final = "/logs"


class WorkerLog(msgspec.Struct, frozen=True):
    """The end of what one worker logged."""

    worker: str
    ended: bool
    lines: tuple[str, ...]


class WorkerLogList(msgspec.Struct, frozen=True):
    """Of several workers."""

    workers: tuple[WorkerLog, ...]
    missing: tuple[str, ...] = ()
    """Which task managers could not be asked, and why."""


@dataclass
class _Tail:
    lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=KEPT_LINES))
    jobs: set[str] = field(default_factory=set[str])
    ended: bool = False


class WorkerLogs:
    """The logs of one task manager's workers."""

    def __init__(self) -> None:
        self._tails: dict[str, _Tail] = {}

    async def follow(self, worker: str, output: asyncio.StreamReader | None, ended: asyncio.Event) -> None:
        """Keep and pass on what a worker writes, until it has ended and all of that is read."""
        assert output is not None
        tail = self._tails.setdefault(worker, _Tail())
        reading = asyncio.create_task(self._read(tail, output))
        await ended.wait()
        await asyncio.wait([reading], timeout=PASSED_ON_S)
        reading.cancel()
        tail.ended = True
        gone = [name for name, known in self._tails.items() if known.ended]
        for name in gone[:-KEPT_ENDED]:
            del self._tails[name]

    async def _read(self, tail: _Tail, output: asyncio.StreamReader) -> None:
        rest, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
        while data := await output.read(MAX_LINE):
            text = decoder.decode(data)
            sys.stderr.write(text)
            sys.stderr.flush()
            *lines, rest = (rest + text).split("\n")
            tail.lines.extend(line[:MAX_LINE] for line in lines)
            rest = rest[:MAX_LINE]
        if rest:
            tail.lines.append(rest)

    def note(self, worker: str, event: AnyEvent) -> None:
        """A worker said this: which jobs it works for is in it."""
        if isinstance(event, TaskChanged):
            self._tails.setdefault(worker, _Tail()).jobs.add(event.status.job)
        elif isinstance(event, Heartbeat):
            self._tails.setdefault(worker, _Tail()).jobs.update(status.job for status in event.tasks)

    def list(self, job: str, lines: int) -> WorkerLogList:
        """The last lines of every worker that has worked for a job, or, without one, of all."""
        found = [(name, tail) for name, tail in self._tails.items() if not job or job in tail.jobs]
        return WorkerLogList(
            tuple(WorkerLog(name, tail.ended, tuple(tail.lines)[-lines:] if lines else ()) for name, tail in found)
        )

    def routes(self) -> Sequence[Route]:
        """`/logs?job=ID&lines=N`."""
        from starlette.responses import Response  # an embedded run has workers and serves nothing
        from starlette.routing import Route

        async def logs(request: Request) -> Response:
            given = request.query_params.get("lines", "100")
            lines = min(int(given), KEPT_LINES) if given.isdecimal() else KEPT_LINES
            document = self.list(request.query_params.get("job", ""), lines)
            return Response(msgspec.json.encode(document), media_type="application/json")

        return [Route(LOGS_PATH, logs)]


def logs_in(data: bytes) -> WorkerLogList:
    """What such a route answered; raises `ExternalError` if that is something else."""
    try:
        return msgspec.json.decode(data, type=WorkerLogList)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ExternalError(f"no list of logs of this version: {error}") from error

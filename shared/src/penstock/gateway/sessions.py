"""Sessions: what they have declared, their operations, and that those nobody asks for any more are closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from penstock.errors import UsageError
from penstock.gateway.buffers import MAX_ROWS
from penstock.gateway.jobs import Jobs
from penstock.gateway.operations import Operation
from penstock.gateway.runs import Runs
from penstock.gateway.statements import Statements
from penstock.ports import Clock

IDLE_TIMEOUT_MS: Final = 600_000
"""As long as Flink's gateway keeps a session of which nothing is heard."""
CHECKS: Final = 10
"""So many times within the time-out sessions are looked at, but not more often than every second."""
LEAST_CHECK_MS: Final = 1_000

_log = structlog.get_logger("penstock.gateway")


@dataclass
class GatewaySession:
    """One session."""

    handle: str
    name: str
    statements: Statements
    heard_ms: int
    """When something was heard of it, by the monotonic clock."""
    operations: dict[str, Operation] = field(default_factory=dict[str, Operation])

    def begin(self, handle: str, statement: str, config: Mapping[str, str]) -> Operation:
        """Execute a statement in the background."""
        operation = self.operations[handle] = Operation(handle)
        operation.begin(lambda made: self.statements.execute(made, statement, config))
        return operation

    def operation(self, handle: str) -> Operation:
        """One of its operations.

        Raises:
            UsageError: it has none with that handle.
        """
        if handle not in self.operations:
            raise UsageError(f"Can not find the submitted operation in the OperationManager with the {handle}.")
        return self.operations[handle]

    def close_operation(self, handle: str) -> None:
        """End an operation and forget it."""
        self.operation(handle).close()
        del self.operations[handle]

    def close(self, *, with_jobs: bool) -> None:
        """End all operations; `with_jobs`: what INSERT INTO has started as well."""
        for operation in self.operations.values():
            operation.close(with_run=with_jobs)
        self.operations.clear()
        if with_jobs:
            for run in self.statements.inserts:
                run.cancel()


@dataclass
class Sessions:
    """All sessions of a gateway."""

    clock: Clock
    new_id: Callable[[], str]
    """Makes handles, which are UUIDs."""
    parallelism: int = 1
    idle_timeout_ms: int = IDLE_TIMEOUT_MS
    buffer_rows: int = MAX_ROWS
    """So many rows of a query wait to be fetched, before they hold it back."""

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.clock)
        self.runs = Runs(self.parallelism)
        self._sessions: dict[str, GatewaySession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, name: str, properties: Mapping[str, str]) -> GatewaySession:
        """A new session.

        Raises:
            PenstockError: a property is wrong.
        """
        statements = Statements(self.jobs, self.runs, self.buffer_rows)
        statements.open(properties)
        session = GatewaySession(self.new_id(), name, statements, self.clock.monotonic_ms())
        self._sessions[session.handle] = session
        return session

    def session(self, handle: str) -> GatewaySession:
        """The session with that handle, of which something has been heard now.

        Raises:
            UsageError: there is none, or it has been closed.
        """
        if handle not in self._sessions:
            raise UsageError(f"Session '{handle}' does not exist.")
        session = self._sessions[handle]
        session.heard_ms = self.clock.monotonic_ms()
        return session

    def close(self, handle: str) -> None:
        """End a session and its queries; jobs of INSERT INTO go on, as in Flink."""
        self.session(handle).close(with_jobs=False)
        del self._sessions[handle]

    def close_idle(self) -> None:
        """End the sessions of which nothing has been heard for too long, and all that they have started."""
        now_ms = self.clock.monotonic_ms()
        for session in [*self._sessions.values()]:
            if now_ms - session.heard_ms >= self.idle_timeout_ms:
                _log.warning("session closed, of which nothing was heard", session=session.handle, name=session.name)
                session.close(with_jobs=True)
                del self._sessions[session.handle]

    async def watch(self) -> None:
        """Close idle sessions; ends by cancellation."""
        while True:
            await self.clock.sleep_ms(max(self.idle_timeout_ms / CHECKS, LEAST_CHECK_MS))
            self.close_idle()

    async def end(self) -> None:
        """Close all sessions, and end all that they have started."""
        for session in self._sessions.values():
            session.close(with_jobs=True)
        self._sessions.clear()
        await self.runs.end()

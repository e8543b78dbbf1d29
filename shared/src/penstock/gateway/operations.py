"""One statement that is executed: its state, in Flink's words, its results, and the run that makes them.

An operation is FINISHED as soon as its results can be fetched, while an unbounded query, or an INSERT INTO, keeps
running. A run that fails afterwards makes it ERROR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.errors import UsageError
from penstock.gateway.results import Page, Results
from penstock.gateway.runs import Run

Status = Literal["INITIALIZED", "RUNNING", "FINISHED", "CANCELED", "CLOSED", "ERROR"]
_NOT_YET: Final = ("INITIALIZED", "RUNNING")


@dataclass
class Operation:
    """A statement that is executed."""

    handle: str
    results: Results | None = None
    run: Run | None = None
    detached: bool = False
    """Whether its run continues when the operation is closed: that of an INSERT INTO."""
    _status: Status = "INITIALIZED"
    _error: BaseException | None = None
    _task: asyncio.Task[None] | None = field(default=None, repr=False)

    def begin(self, work: Callable[[Operation], Awaitable[Results]]) -> None:
        """Carry it out in the background."""
        self._task = asyncio.create_task(self._carry_out(work))

    async def _carry_out(self, work: Callable[[Operation], Awaitable[Results]]) -> None:
        self._status = "RUNNING"
        try:
            self.results = await work(self)
        except asyncio.CancelledError:  # it was cancelled or closed, or its run was
            self._end("CANCELED")
        except Exception as error:  # whatever it is, it is the answer of this operation alone
            self._error = error
            self._end("ERROR")
        else:
            self._end("FINISHED")

    def _end(self, status: Status) -> None:
        if self._status == "RUNNING":
            self._status = status

    @property
    def status(self) -> Status:
        """Its state; of a run that has gone on, what came of it."""
        if self._status == "FINISHED" and self._has_ended_run:
            assert self.run is not None
            return "CANCELED" if self.run.ended.cancelled() else "ERROR" if self.error is not None else "FINISHED"
        return self._status

    @property
    def error(self) -> BaseException | None:
        """What it, or its run, has failed with."""
        if self._error is None and self._has_ended_run and self.run is not None and not self.run.ended.cancelled():
            return self.run.ended.exception()
        return self._error

    @property
    def _has_ended_run(self) -> bool:
        return self.run is not None and self.run.ended.done()

    async def page(self, token: int) -> Page:
        """A page of its results.

        Raises:
            UsageError: it is cancelled or closed, or there is no such page.
            Exception: it has failed.
        """
        status, error = self.status, self.error
        if status == "ERROR" and error is not None and (self.results is None or not len(self.results.rows)):
            raise error
        if status in ("CANCELED", "CLOSED"):
            raise UsageError(f"Can not fetch results from the operation {self.handle} in {status} status.")
        if self.results is None:
            return Page("NOT_READY", token)
        return await self.results.page(token)

    def cancel(self) -> None:
        """End it, with its run.

        Raises:
            UsageError: it has ended.
        """
        status = self.status
        if status not in _NOT_YET and (status != "FINISHED" or self.run is None or self._has_ended_run):
            raise UsageError(
                f"Failed to convert the Operation Status from {status} to CANCELED for the operation {self.handle}."
            )
        self._status = "CANCELED"
        self._give_up(with_run=True)

    def close(self, *, with_run: bool = False) -> None:
        """End it; the run of an INSERT INTO continues, unless `with_run` says that it ends as well."""
        begun = self._status not in _NOT_YET
        self._status = "CLOSED"
        self._give_up(with_run=with_run or not (self.detached and begun))

    def _give_up(self, *, with_run: bool) -> None:
        if self.results is not None:
            self.results.rows.close()
        if self.run is not None and with_run:
            self.run.cancel()
        if self._task is not None:
            self._task.cancel()

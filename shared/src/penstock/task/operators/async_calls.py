"""The calls of one subtask to functions that wait for others: so many at once, so long at most, so often again.

A call runs as a task of the subtask's own loop; its operator looks at what has come when it is called. Where there is no
loop, in a batch run, `finish` runs one until all has come.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.core.times import format_duration
from penstock.errors import BadRecordError, ExternalError, PenstockError, PipelineError, UserCodeError, described, shown
from penstock.plan.operations.calls import CallSettings

if TYPE_CHECKING:
    import polars as pl

    from penstock.protocol.messages import OperatorMetrics

LONGEST_DELAY_S: Final = 60.0
"""Between two attempts, however many there were."""
CLOSING_S: Final = 10.0
"""How long calls that are given up, and `close`, may take to end."""

_OURS: Final = (ExternalError, PipelineError, BadRecordError)
"""What a system that is asked may raise on purpose: no mistake of the user's code."""

_log = structlog.get_logger("penstock.calls")


@dataclass(slots=True, eq=False)
class Call:
    """A call for some rows that follow each other."""

    chunk: pl.DataFrame
    """The rows that it is about are among these."""
    first: int
    rows: int
    argument: Any
    done: bool = False
    result: Any = None


class Caller:
    """Makes the calls of a subtask."""

    def __init__(
        self,
        where: str,
        function: Callable[[Any], Awaitable[Any]],
        settings: CallSettings,
        on_error: Callable[[Any, Exception], Any] | None,
    ) -> None:
        self._where = where
        self._function = function
        self._settings = settings
        self._on_error = on_error
        self._timeout_s = settings.timeout_us / 1_000_000 if settings.timeout_us is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_open = False
        self._closed = False
        self._failure: PenstockError | None = None
        self._runner: asyncio.Runner | None = None
        self._has_come = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_done: Callable[[Call], None]
        self._metrics: OperatorMetrics

    def open(self, on_done: Callable[[Call], None], metrics: OperatorMetrics) -> None:
        """Begin; `on_done` is called when a call is done, or has failed for good."""
        self._on_done, self._metrics = on_done, metrics
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._runner = asyncio.Runner()  # which makes its loop when there is a call
            return
        self._begin(loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        self._loop = loop
        begin = getattr(self._function, "open", None)
        self._is_open = begin is None
        if begin is not None:
            self._opening = loop.create_task(self._opened(begin))
        return loop

    async def _opened(self, begin: Callable[[], Awaitable[None] | None]) -> None:
        try:
            await _awaited(begin())
            self._is_open = True
        except Exception as error:  # whatever the user's function raises
            self._fail(error, f"{self._where}.open raised {described(error)}")

    @property
    def has_loop(self) -> bool:
        """Whether calls go on by themselves."""
        return self._runner is None

    @property
    def failed(self) -> bool:
        """Whether a call has failed for good."""
        return self._failure is not None

    def check(self) -> None:
        """Raise what a call has failed with for good, if one has."""
        if self._failure is not None:
            raise self._failure

    def start(self, call: Call) -> None:
        """Make a call."""
        loop = self._loop
        if loop is None:
            assert self._runner is not None
            loop = self._begin(self._runner.get_loop())
        task = loop.create_task(self._made(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def wait(self) -> None:
        """Without a loop of the subtask: until something has come."""
        assert self._loop is not None
        self._loop.run_until_complete(self._has_come.wait())
        self._has_come.clear()

    async def _made(self, call: Call) -> None:
        try:
            call.result = await self._answered(call.argument)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # whatever the user's function raises, sys.exit() among it
            if self._closed:
                return
            self._fail(error, f"{self._where}{_said(error)}; row: {shown(call.argument)}")
        call.done = True
        self._has_come.set()
        self._on_done(call)

    def _fail(self, error: BaseException, message: str) -> None:
        if self._failure is None:
            kind = next((each for each in _OURS if isinstance(error, each)), UserCodeError)
            self._failure = kind(message)
            self._failure.__cause__ = error

    async def _answered(self, argument: Any) -> Any:
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                if self._opening is not None:
                    await asyncio.shield(self._opening)
                return await self._tried(argument) if self._failure is None else None
        except Exception as error:
            self._metrics.failed_calls += 1
            failure = self._late(error) if deadline.expired() else error
            if self._on_error is None:
                raise failure from failure.__cause__
            return self._on_error(argument, failure)

    def _late(self, error: Exception) -> Exception:
        assert self._settings.timeout_us is not None
        late = TimeoutError(f"nothing has come within {format_duration(self._settings.timeout_us)}")
        late.__cause__ = error
        return late

    async def _tried(self, argument: Any) -> Any:
        delay_s = self._settings.retry_delay_us / 1_000_000
        for _ in range(self._settings.retries):
            try:
                return await self._asked(argument)
            except self._settings.retry_on as error:
                if isinstance(error, PenstockError) and not error.retryable:
                    raise
                self._metrics.failed_calls += 1
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        return await self._asked(argument)

    async def _asked(self, argument: Any) -> Any:
        answer = self._function(argument)
        if not inspect.isawaitable(answer):
            raise UserCodeError(f"it returned {answer!r:.60}, which cannot be awaited; write it with async def")
        return await answer

    async def end(self) -> None:
        """Close the function behind its last call.

        Raises:
            UserCodeError: its `close` raised, or did not end.
        """
        begun, self._is_open = self._is_open, False
        end = getattr(self._function, "close", None) if begun else None
        if end is None:
            return
        try:
            async with asyncio.timeout(CLOSING_S):
                await _awaited(end())
        except TimeoutError as error:
            raise UserCodeError(f"{self._where}.close did not end in {CLOSING_S:.0f} s") from error
        except Exception as error:  # whatever the user's function raises
            raise UserCodeError(f"{self._where}.close raised {described(error)}") from error

    def close(self) -> None:
        """Give up what has not come; nothing comes any more."""
        self._closed = True
        if self._loop is None or self._loop.is_closed():
            return
        tasks = [*self._tasks, *([self._opening] if self._opening is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks or self._is_open:
            ending = self._given_up(tasks)
            if self._runner is None:
                self._closing = self._loop.create_task(ending)
            else:
                self._loop.run_until_complete(ending)
        if self._runner is not None:
            self._runner.close()

    async def _given_up(self, tasks: list[asyncio.Task[None]]) -> None:
        """Behind a failure, or where the job is stopped: there is nobody whom an error could help."""
        try:
            async with asyncio.timeout(CLOSING_S):
                await asyncio.gather(*tasks, return_exceptions=True)
            await self.end()
        except TimeoutError:
            _log.warning("calls that were given up do not end", operator=self._where, after_s=CLOSING_S)
        except UserCodeError as error:
            _log.warning("an async function was not closed", operator=self._where, error=str(error))

    def closing(self) -> Awaitable[None] | None:
        """What `close` has left to wait for."""
        return self._closing


async def _awaited(begun: Awaitable[None] | None) -> None:
    """`open` and `close` may be plain functions, too."""
    if inspect.isawaitable(begun):
        await begun


def _said(error: BaseException) -> str:
    if isinstance(error, PenstockError):
        return f": {error}"
    if isinstance(error, asyncio.CancelledError):
        return " was cancelled, and not by Penstock"
    return f" raised {described(error)}"

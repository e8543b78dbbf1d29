"""A process that does steps: what SIGTERM and Ctrl-C mean to it, and how its outcome is put into words."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from penstock.spark.session import SparkSettings, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.step_folder import Stopped


class Asked:
    """Whether the end was asked for.

    A `threading.Event` that a signal sets while the same thread begins or ends to wait for it is locked for ever.
    """

    def __init__(self) -> None:
        self._asked = False
        self._told: SimpleQueue[None] = SimpleQueue()  # which may be interrupted by itself

    def set(self) -> None:
        """Ask for it; also from a signal's handler."""
        self._asked = True
        self._told.put(None)

    def is_set(self) -> bool:
        """Whether it was."""
        return self._asked

    def wait(self, timeout: float) -> bool:
        """Whether it is within so many seconds."""
        if not self._asked:
            with suppress(Empty):
                self._told.get(timeout=timeout)
        return self._asked


@contextmanager
def ending(stop: Asked, say: Callable[[str], None]) -> Generator[None]:
    """SIGTERM or Ctrl-C: the first one ends behind the step at work, the second one cancels that."""

    def asked(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say("ending behind the step at work; once more cancels it")

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_keeping_signals(name: str, settings: SparkSettings) -> SparkSession:
    """A session as `open_session` makes it, without PySpark's own idea of Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return open_session(name, settings)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped_text(stopped: Stopped) -> str:
    """Where a job in steps stands, for whoever may start something from there."""
    if stopped.undone is not None:
        visible = ", is decided, and perhaps only partly visible" if stopped.decided else ""
        again = f"step {stopped.undone} was begun{visible}: submitted again by its id the job carries it out"
        if stopped.decided or stopped.savepoint is None:
            return again
        return f"{again}; savepoint of step {stopped.done}: {stopped.savepoint}"
    if stopped.savepoint is None:
        return "no step was done"
    return f"ended behind step {stopped.done}; savepoint: {stopped.savepoint}"

"""Simulated time, processes that can be killed or stopped, and generators as their threads of work.

Everything is single-threaded and decided by one `random.Random(seed)`: the same seed gives the same history.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

Reply = Callable[..., None]
Operation = Callable[[Reply], None]
"""What a process waits for: called with `reply(value)` or `reply(error=...)`."""
Work = Generator[Operation, Any, Any]


class Violation(Exception):  # noqa: N818 (a finding, not a failure of the simulator)
    """An invariant does not hold in this history."""


class Kernel:
    """The queue of what happens next."""

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.steps = 0
        self.verbose = verbose
        self.history: deque[str] = deque(maxlen=80)
        self._queue: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_ms: int, action: Callable[..., Any], *args: Any) -> None:
        """Do this later."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._count, action, args))

    def step(self) -> bool:
        """Do the next thing; False if there is none."""
        if not self._queue:
            return False
        self.now, _, action, args = heapq.heappop(self._queue)
        self.steps += 1
        action(*args)
        return True

    def note(self, who: str, what: object) -> None:
        """Remember what happened, for the report of a failure."""
        line = f"{self.now:6d} {who}: {what}"
        self.history.append(line)
        if self.verbose:
            print(line)

    def short(self, low: int = 1, high: int = 6) -> int:
        """A usual delay."""
        return self.random.randint(low, high)

    def new_id(self) -> str:
        """A fresh id of 32 hex digits."""
        return f"{self.random.getrandbits(128):032x}"


class Node:
    """A process of the operating system: it can be killed, stopped and continued, and has a clock of its own."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.alive = True
        self.stopped = False
        self.skew_ms = kernel.random.randint(0, 100_000)
        self._deferred: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    @property
    def monotonic_ms(self) -> int:
        """The clock of this machine."""
        return self.kernel.now + self.skew_ms

    def deliver(self, action: Callable[..., Any], *args: Any) -> None:
        """Run something in this process: never after its death, and not while it is stopped."""
        if not self.alive:
            return
        if self.stopped:
            self._deferred.append((action, args))
            return
        action(*args)

    def later(self, delay_ms: int, action: Callable[..., Any], *args: Any) -> None:
        """Run something in this process after a while."""
        self.kernel.after(delay_ms, self.deliver, action, *args)

    def kill(self) -> None:
        """SIGKILL."""
        self.alive = False
        self._deferred.clear()

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT: everything that came meanwhile is handled now."""
        self.stopped = False
        deferred, self._deferred = self._deferred, []
        for index, (action, args) in enumerate(deferred):
            self.later(index // 4, action, *args)

    def sleep(self, delay_ms: int) -> Operation:
        """Wait."""
        return lambda reply: self.kernel.after(delay_ms, reply)

    def start(self, work: Work, failed: Callable[[BaseException], None]) -> Process:
        """Start a thread of work; `failed` hears what it raises."""
        process = Process(self, work, failed)
        process.step()
        return process


class Process:
    """A generator that yields operations and is sent their answers."""

    def __init__(self, node: Node, work: Work, failed: Callable[[BaseException], None]) -> None:
        self._node = node
        self._work = work
        self._failed = failed
        self._answers: deque[tuple[Any, BaseException | None]] = deque()
        self._stepping = False
        self.cancelled = False

    def cancel(self) -> None:
        """Drop it; answers under way go nowhere."""
        self.cancelled = True

    def step(self, value: Any = None, error: BaseException | None = None) -> None:
        """Go on with an answer. An operation may answer at once: then this loops and does not call itself."""
        self._answers.append((value, error))
        if self._stepping:
            return
        self._stepping = True
        while self._answers and not self.cancelled and self._node.alive:
            if not self._step(*self._answers.popleft()):
                self.cancelled = True
        self._stepping = False

    def _step(self, value: Any, error: BaseException | None) -> bool:
        try:
            operation = self._work.throw(error) if error is not None else self._work.send(value)
        except StopIteration:
            return False
        except Violation:
            raise
        except Exception as raised:
            self._failed(raised)
            return False
        self._node.deliver(operation, self._answer)
        return True

    def _answer(self, value: Any = None, error: BaseException | None = None) -> None:
        self._node.deliver(self.step, value, error)


class Mailbox:
    """What waits for a process; `get` is an operation."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: Reply | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        """Add something."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting(item)
        else:
            self._items.append(item)

    def get(self) -> Operation:
        """The next thing, when there is one."""

        def start(reply: Reply) -> None:
            if self._items:
                reply(self._items.popleft())
            else:
                self._waiting = reply

        return start

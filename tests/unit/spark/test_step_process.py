"""What ends a job in steps, whenever the signal comes."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from penstock.spark.step_process import Asked

LINES = 40


def waited(asked: Asked, line: int, found: list[bool]) -> None:
    """Wait, and ask at that line of it, as a signal's handler would."""
    seen = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == line:
                sys.settrace(None)
                asked.set()
        return trace

    sys.settrace(trace)
    try:
        asked.wait(0.001)
    finally:
        sys.settrace(None)
    found.append(asked.is_set())


def test_it_is_asked_for_at_any_moment_of_waiting() -> None:
    """The same thread may be anywhere when the signal comes."""
    found: list[bool] = []
    for line in range(1, LINES):
        waiting = threading.Thread(target=waited, args=(Asked(), line, found), daemon=True)
        waiting.start()
        waiting.join(20)
        assert not waiting.is_alive(), f"locked for ever at line {line}"
    assert found[0]
    assert not found[-1]


def test_who_waits_is_told() -> None:
    """At once, and from then on."""
    asked = Asked()
    assert not asked.wait(0.001)
    threading.Timer(0.05, asked.set).start()
    assert asked.wait(60)
    assert asked.wait(60)

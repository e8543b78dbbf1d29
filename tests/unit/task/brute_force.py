"""Models of Flink's windows and timers, written row by row from its documentation: slow, obvious, and never batched.

Watermarks are kept per key group, because that is what a key's rows are judged by across restores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.core.times import MIN_WATERMARK

Row = tuple[Any, int, int]
"""Key, event time, value."""


@dataclass
class Groups:
    """The watermark that each key group has seen."""

    group_of: Callable[[Any], int]
    marks: dict[int, int] = field(default_factory=dict)

    def of(self, key: Any) -> int:
        return self.marks.get(self.group_of(key), MIN_WATERMARK)

    def advance(self, groups: Iterable[int], watermark: int) -> None:
        for group in groups:
            self.marks[group] = max(watermark, self.marks.get(group, MIN_WATERMARK))


@dataclass
class WindowModel:
    """Flink's WindowOperator under EventTimeTrigger, with a list of values per window."""

    windows_of: Callable[[int], list[tuple[int, int]]]
    """The windows that a moment belongs to: starts and ends."""
    lateness: int
    groups: Groups
    windows: dict[tuple[Any, int, int], list[int]] = field(default_factory=dict)
    emitted: list[tuple[Any, int, int, tuple[int, ...]]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def row(self, key: Any, time: int, value: int) -> None:
        """WindowOperator.processElement: a window is late if its end - 1 + lateness <= watermark."""
        mark = self.groups.of(key)
        skipped = True
        for start, end in self.windows_of(time):
            if end - 1 + self.lateness <= mark:
                continue
            skipped = False
            self.windows.setdefault((key, start, end), []).append(value)
            if end - 1 <= mark:
                self.fire(key, start, end)
        if skipped and time + self.lateness <= mark:
            self.late.append((key, time, value))

    def fire(self, key: Any, start: int, end: int) -> None:
        self.emitted.append((key, start, end, tuple(self.windows[key, start, end])))

    def watermark(self, groups: Iterable[int], watermark: int) -> None:
        before = {window: self.groups.of(window[0]) for window in self.windows}
        self.groups.advance(groups, watermark)
        for key, start, end in sorted(self.windows, key=lambda window: window[2]):
            mark = self.groups.of(key)
            if before[key, start, end] < end - 1 <= mark:
                self.fire(key, start, end)
            if end - 1 + self.lateness <= mark:
                del self.windows[key, start, end]


@dataclass
class SessionModel:
    """Flink's EventTimeSessionWindows: windows [time, time + gap) that intersect or touch are merged.

    Other than there a window is over at its end, not a moment before: what touches it is no later than that.
    """

    gap: Callable[[int], int]
    """Of the value of a row."""
    lateness: int
    groups: Groups
    windows: dict[Any, list[tuple[int, int, list[int]]]] = field(default_factory=dict)
    emitted: list[tuple[Any, int, int, tuple[int, ...]]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    standing: dict[tuple[Any, int, int], tuple[int, ...]] = field(default_factory=dict)
    """What a table by key and window holds that takes every result in place of what it had, and loses merged windows."""

    def row(self, key: Any, time: int, value: int) -> None:
        mark = self.groups.of(key)
        start, end, values = time, time + self.gap(value), [value]
        apart: list[tuple[int, int, list[int]]] = []
        for window in self.windows.get(key, []):
            if window[0] <= end and window[1] >= start:  # TimeWindow.intersects
                start, end, values = min(start, window[0]), max(end, window[1]), window[2] + values
            else:
                apart.append(window)
        if end + self.lateness <= mark:
            self.late.append((key, time, value))
            return
        for before in self.windows.get(key, []):
            if before not in apart:
                self.standing.pop((key, before[0], before[1]), None)
        self.windows[key] = [*apart, (start, end, values)]
        if end <= mark:
            self.fire(key, start, end, values)

    def fire(self, key: Any, start: int, end: int, values: list[int]) -> None:
        self.emitted.append((key, start, end, tuple(values)))
        self.standing[key, start, end] = tuple(values)

    def watermark(self, groups: Iterable[int], watermark: int) -> None:
        before = {key: self.groups.of(key) for key in self.windows}
        self.groups.advance(groups, watermark)
        for key, windows in self.windows.items():
            mark = self.groups.of(key)
            for start, end, values in windows:
                if before[key] < end <= mark:
                    self.fire(key, start, end, values)
            self.windows[key] = [window for window in windows if window[1] + self.lateness > mark]

"""Watermark alignment: a split that is too far ahead of the slowest one is not read until that has caught up.

What is too far ahead waits where it is cheap, in the source, instead of in windows that are open for long. Flink's
withWatermarkAlignment. There the coordinator gathers how far each source has come and announces the limit; here each
subtask tells the others by the way that credit goes, the credits topic, and finds the limit itself: whoever has not heard
the newest reads less far, never further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.core.times import MIN_WATERMARK
from penstock.graph.executiongraph import ExecutionGraph, credits_topic
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.read import Read
from penstock.ports import Clock, Log, NewRecord
from penstock.protocol.messages import Deploy, SubtaskId
from penstock.task.exchange_io import CREDIT_REPEAT_S, CreditReport

REPORT_INTERVAL_MS: Final = 200
"""How often a subtask tells the others that it has come further (a second in Flink)."""


class SourceAlignment:
    """How far the sources of a group have come, as one of its subtasks knows."""

    def __init__(self, max_drift_us: int, others: Iterable[SubtaskId]) -> None:
        """`others` are waited for until each has said how far it is."""
        self._max_drift_us = max_drift_us
        self._others = dict.fromkeys(others, MIN_WATERMARK)
        self._own = MIN_WATERMARK
        self._changed = asyncio.Event()

    def heard(self, subtask: SubtaskId, reached: int) -> None:
        """Another subtask, if it is one of the group, has come so far; an idle one is no longer waited for."""
        if subtask in self._others:
            self._others[subtask] = reached

    def limit(self, reached: int) -> int:
        """Up to which watermark splits are to be read, now that this subtask has come so far.

        The maximum watermark says that nobody need wait for it: its splits are idle or at their end.
        """
        if reached != self._own:
            self._own = reached
            self._changed.set()
        return min((reached, *self._others.values())) + self._max_drift_us

    async def report(self, deploy: Deploy, log: Log, clock: Clock) -> None:
        """Tell the others how far this subtask has come, whenever that changes and now and then; ends by cancellation."""
        if not self._others:
            return
        own = deploy.subtask
        key = f"{deploy.attempt}/{own.vertex}/{own.index}".encode()
        while True:
            await self._change()
            report = CreditReport(deploy.attempt, own.vertex, own.index, (), self._own)
            await log.append(credits_topic(deploy.job), 0, [NewRecord(msgspec.json.encode(report), key)])
            await clock.sleep_ms(REPORT_INTERVAL_MS)

    async def _change(self) -> None:
        """Until there is something to say; after a while it is said again, should it have got lost."""
        try:
            async with asyncio.timeout(CREDIT_REPEAT_S):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()


def alignment_of(plan: LogicalPlan, execution: ExecutionGraph, subtask: SubtaskId) -> SourceAlignment | None:
    """The alignment of a source subtask, with all others of its group; None if its source declares none."""
    groups = {
        vertex.id: event_time.alignment
        for vertex in execution.graph.vertices
        if isinstance(read := plan.node(vertex.operators[0].node).operation, Read)
        and (event_time := read.source.event_time) is not None
    }
    own = groups.get(subtask.vertex)
    if own is None:
        return None
    members = (each for each in execution.subtasks() if each.vertex in groups and each != subtask)
    others = [each for each in members if (theirs := groups[each.vertex]) is not None and theirs.group == own.group]
    return SourceAlignment(own.max_drift_us, others)

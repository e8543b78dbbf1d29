"""The log in memory for runs in virtual time: it tells the loop when services talk to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.adapters.memory import MemoryLog
from penstock.coordination.control_topics import COMMANDS, EVENTS
from penstock.ports import LogRecord, NewRecord
from penstock.testing.virtual_time import VirtualLoop, timers_do_not_count

_SIGNS_OF_LIFE: Final = (b'{"type":"Heartbeat"', b'{"type":"LeaderTick"')


class VirtualLog(MemoryLog):
    """A `MemoryLog` whose readers do not stop time, and whose records give it time to settle."""

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """See `Log.append`. Signs of life come for ever and change nothing."""
        loop = asyncio.get_running_loop()
        control = topic in (COMMANDS, EVENTS)
        if isinstance(loop, VirtualLoop) and not (
            control and all(record.value.startswith(_SIGNS_OF_LIFE) for record in records)
        ):
            loop.stirred()
        return await super().append(topic, partition, records)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        """See `Log.read`. That a reader looks around now and then is no moment to stop at."""
        with timers_do_not_count():
            return await super().read(topic, partition, offset, max_bytes=max_bytes, timeout_s=timeout_s)

"""How many task managers a cluster should have: the part of the resource manager that decides.

Task managers are numbered from 0 and only the highest ones can be taken away, as in a StatefulSet of Kubernetes. Slots
that jobs wait for bring new ones at once; those at the top go when they have been idle for a while and nobody waits. No
I/O: who asks says what stands there and what time it is, and sets the number.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ScalingLimits(msgspec.Struct, frozen=True):
    """Between which numbers a cluster is scaled, and how patiently."""

    slots: int
    """Slots of one task manager."""
    least: int
    most: int
    idle_ms: int = 60_000
    """A task manager of which no job has had a slot for so long may go."""
    start_ms: int = 300_000
    """How long a task manager that should be there, or slots that it lacks, are taken to be on their way."""
    settle_ms: int = 30_000
    """A leader that has just taken over takes nothing away for so long: who is silent may not have been heard yet."""


class Standing(msgspec.Struct, frozen=True):
    """A task manager that was heard of."""

    slots: int
    used: int
    """Slots that jobs have, whether or not they use them at the moment."""


class ScalingDecision(msgspec.Struct, frozen=True):
    """How many task managers there should be."""

    task_managers: int
    short: int = 0
    """Slots that stay missing because no more task managers are allowed."""


class ScalingDecider:
    """Decides for one leadership; a new leader begins with a new one."""

    def __init__(self, limits: ScalingLimits, now_ms: int) -> None:
        self._limits = limits
        self._began_ms = now_ms
        self._idle_since: dict[tuple[int, bool], int] = {}
        """Task managers of which no job has a slot, with whether they were heard of: each has its own patience."""
        self._lacking_since: dict[int, int] = {}
        """Task managers that are wanted and have not all their slots; most often they are on their way."""

    def decide(self, now_ms: int, wanted: int, standing: Mapping[int, Standing], missing: int) -> ScalingDecision:
        """What should be, given what is.

        Args:
            now_ms: the time, by a clock that never goes back.
            wanted: how many task managers are asked for now; those below that number come without further doing.
            standing: those that were heard of, by their number.
            missing: slots that waiting jobs do not have, before any free ones are given to them.
        """
        self._look(now_ms, wanted, standing)
        if missing > 0:
            return self._grown(now_ms, wanted, standing, missing)
        return ScalingDecision(self._shrunk(now_ms, wanted, standing))

    def _look(self, now_ms: int, wanted: int, standing: Mapping[int, Standing]) -> None:
        idle = {(n, n in standing) for n in range(wanted) if n not in standing or standing[n].used == 0}
        self._idle_since = {which: self._idle_since.get(which, now_ms) for which in idle}
        lacking = {n for n in range(wanted) if n not in standing or standing[n].slots < self._limits.slots}
        self._lacking_since = {number: self._lacking_since.get(number, now_ms) for number in lacking}

    def _grown(self, now_ms: int, wanted: int, standing: Mapping[int, Standing], missing: int) -> ScalingDecision:
        """Never fewer than are asked for already: who waits for slots may have some on the highest one."""
        count = max(wanted, self._limits.least)
        left = missing - sum(self._free(now_ms, number, standing.get(number)) for number in range(count))
        while left > 0 and count < self._limits.most:
            left -= self._free(now_ms, count, standing.get(count))
            count += 1
        return ScalingDecision(count, max(0, left))

    def _free(self, now_ms: int, number: int, found: Standing | None) -> int:
        """Slots that waiting jobs may get from a task manager, those on their way among them."""
        slots, used = (found.slots, found.used) if found is not None else (0, 0)
        if now_ms - self._lacking_since.get(number, now_ms) < self._limits.start_ms:
            slots = max(slots, self._limits.slots)
        return max(0, slots - used)

    def _shrunk(self, now_ms: int, wanted: int, standing: Mapping[int, Standing]) -> int:
        count = wanted
        if now_ms - self._began_ms >= self._limits.settle_ms:
            while count > self._limits.least and self._may_go(now_ms, count - 1, count - 1 in standing):
                count -= 1
        return max(count, self._limits.least)

    def _may_go(self, now_ms: int, number: int, heard: bool) -> bool:
        """One that is silent is not idle: it goes only when it is late to come as well."""
        patience_ms = self._limits.idle_ms if heard else max(self._limits.idle_ms, self._limits.start_ms)
        return now_ms - self._idle_since.get((number, heard), now_ms) >= patience_ms

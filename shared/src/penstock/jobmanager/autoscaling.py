"""Keeps as many task managers as jobs want, where a cluster can have more made: done by the coordinator that leads.

What is wanted is `penstock.protocol.autoscaling`'s to decide; whoever makes task managers stands behind
`TaskManagerScale`. Trouble there is shown and tried again; it never ends the coordinator, jobs go on with the
slots that stand there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from penstock.coordination.cluster_view import ScalingView
from penstock.errors import ExternalError
from penstock.ports import Clock, Scale, ScaleChangedError, TaskManagerScale
from penstock.protocol.autoscaling import ScalingDecider, ScalingDecision, ScalingLimits, Standing
from penstock.protocol.slots import SlotPool

if TYPE_CHECKING:
    from penstock.jobmanager.workers import Worker

ROUND_MS: Final = 1_000
READ_MS: Final = 30_000
"""How often it is looked whether somebody else has set the number."""
TROUBLE_MS: Final = 5_000
"""Pause after an error."""

_log = structlog.get_logger("penstock.coordinator")


@dataclass(frozen=True)
class Scaling:
    """Where and how a coordinator scales."""

    scale: TaskManagerScale
    limits: ScalingLimits


class TaskManagerScaler:
    """Scales during one leadership."""

    def __init__(self, scaling: Scaling, clock: Clock, slots: SlotPool, workers: Mapping[str, Worker]) -> None:
        """`slots` and `workers` are the leader's own, looked at again and again."""
        self._scale = scaling.scale
        self._limits = scaling.limits
        self._clock = clock
        self._slots = slots
        self._workers = workers
        self._decider = ScalingDecider(scaling.limits, clock.monotonic_ms())
        self._known: Scale | None = None
        self._read_ms = 0
        self._short = 0
        self._problem = ""

    def view(self) -> ScalingView:
        """As it is now."""
        wanted = self._known.task_managers if self._known is not None else None
        limits = self._limits
        return ScalingView(wanted, len(self._standing()), limits.least, limits.most, self._short, self._problem)

    async def run(self) -> None:
        """Scale until cancelled."""
        while True:
            pause_ms = ROUND_MS
            try:
                await self._round()
                self._say("")
            except ScaleChangedError:
                self._read_ms -= READ_MS  # what was read is old: the next round begins with reading
            except ExternalError as error:
                self._say(str(error))
                pause_ms = TROUBLE_MS
            await self._clock.sleep_ms(pause_ms)

    async def _round(self) -> None:
        known = self._known
        if known is None or self._clock.monotonic_ms() - self._read_ms >= READ_MS:
            known = await self._read()
        if self._decide(known) == known.task_managers:
            self._retire(known.task_managers)
            return
        known = await self._read()
        await self._set(known, self._decide(known))

    async def _read(self) -> Scale:
        self._known = known = await self._scale.read()
        self._read_ms = self._clock.monotonic_ms()
        return known

    def _decide(self, known: Scale) -> int:
        standing, missing = self._standing(), self._slots.unmet
        decision = self._decider.decide(self._clock.monotonic_ms(), known.task_managers, standing, missing)
        self._note_short(decision)
        return decision.task_managers

    async def _set(self, known: Scale, wanted: int) -> None:
        """Those that are to go get no further job before anybody is told."""
        self._retire(wanted)
        if wanted == known.task_managers:
            return
        try:
            self._known = await self._scale.write(wanted, known.version)
        except ExternalError:
            self._retire(known.task_managers)
            raise
        _log.info("task managers scaled", before=known.task_managers, after=wanted, missing_slots=self._slots.unmet)

    def _retire(self, wanted: int) -> None:
        numbers = {name: self._number(worker) for name, worker in self._workers.items()}
        self._slots.retire(name for name, number in numbers.items() if number is not None and number >= wanted)

    def _standing(self) -> dict[int, Standing]:
        found: dict[int, Standing] = {}
        for name, worker in self._workers.items():
            number = self._number(worker)
            if number is not None:
                before = found.get(number, Standing(0, 0))
                used = sum(self._slots.used(name).values())
                found[number] = Standing(before.slots + worker.heartbeat.slots, before.used + used)
        return found

    def _number(self, worker: Worker) -> int | None:
        return self._scale.number_of(worker.heartbeat.host.partition(" ")[0])

    def _note_short(self, decision: ScalingDecision) -> None:
        if decision.short and decision.short != self._short:
            _log.warning(
                "jobs wait for more task managers than are allowed", slots=decision.short, most=self._limits.most
            )
        self._short = decision.short

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            _log.error("task managers cannot be scaled", error=problem)
        elif self._problem and not problem:
            _log.info("task managers can be scaled again")
        self._problem = problem

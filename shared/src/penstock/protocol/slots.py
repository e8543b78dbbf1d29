"""Who may use which slot: the registry of the resource manager.

Workers register by heartbeat; jobs say how many slots they need. A job gets all the slots it needs or none (an attempt
that could not begin would only keep others from beginning), in the order in which jobs first asked. It keeps its slots
from one attempt to the next until it ends, or needs fewer. Workers of low numbers are taken first, so that task managers
of high numbers become idle and can be taken away.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class _Worker:
    name: str
    slots: int
    bound_to: str
    used: dict[str, int] = field(default_factory=dict[str, int])
    used_slots: int = 0
    """The sum of what is used."""

    def __post_init__(self) -> None:
        self.order = natural(self.name)

    def usable_by(self, job: str, own: bool) -> int:
        """Slots that the job could get in addition to what it has here; `own`: it takes only those made for it."""
        if self.bound_to != job and (own or self.bound_to):
            return 0
        return self.slots - self.used_slots


def natural(name: str) -> list[tuple[str, int]]:
    """Orders names by the numbers in them: tm-2 comes before tm-10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name)]


class SlotPool:
    """All slots of a cluster."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._wanted: dict[str, int] = {}
        """Slots each job needs in all, in the order in which jobs asked first."""
        self._own: set[str] = set()
        """Jobs that take only workers which were started for them."""
        self._held: dict[str, dict[str, int]] = {}
        """What each job has: worker to number."""
        self._told: dict[str, Mapping[str, int]] = {}
        """What `allocate` last said of each job's slots."""
        self._touched: set[str] = set()
        """Jobs whose slots have changed since."""
        self._settled = True
        """Whether nothing has happened since `allocate` that could let it give more: heartbeats are many."""
        self._retired: frozenset[str] = frozenset()
        """Workers that are about to be taken away."""

    # -- workers --------------------------------------------------------------------------------------------------------

    def heard(self, worker: str, slots: int, bound_to: str = "", running: Collection[str] = ()) -> None:
        """A worker offers its slots.

        What it says is the truth: a slot that was given to another job than the one it is bound to is retracted. It was
        given before this was known, by a leader that had just taken over, or after the worker had been silent.

        Args:
            worker: its name.
            slots: how many it has.
            bound_to: the only job that may use it, because its code is loaded there; empty if any may.
            running: jobs that have subtasks there. A leader that takes over learns from it who uses what.
        """
        known = self._workers.get(worker)
        if known is None:
            known = self._workers[worker] = _Worker(worker, slots, bound_to)
            self._settled = False
            for job in sorted(running):
                self._use(known, job, 1)
        if (known.slots, known.bound_to) != (slots, bound_to):
            known.slots, known.bound_to = slots, bound_to
            for job in [job for job in known.used if bound_to not in ("", job)]:
                self._use(known, job, 0)
            self._settled = False

    def gone(self, worker: str) -> None:
        """A worker is dead, or leaves."""
        known = self._workers.get(worker)
        if known is not None:
            for job in list(known.used):
                self._use(known, job, 0)
            del self._workers[worker]

    def _use(self, worker: _Worker, job: str, slots: int) -> None:
        """The job has so many slots there now."""
        worker.used_slots += slots - worker.used.pop(job, 0)
        held = self._held.setdefault(job, {})
        held.pop(worker.name, None)
        if slots:
            worker.used[job] = held[worker.name] = slots
        self._touched.add(job)
        self._settled = False

    def retire(self, workers: Iterable[str]) -> None:
        """Give no further slots of these workers to jobs, until this is called again without them."""
        self._retired = frozenset(workers)
        self._settled = False

    @property
    def workers(self) -> Collection[str]:
        """The names of all workers."""
        return self._workers.keys()

    # -- jobs -----------------------------------------------------------------------------------------------------------

    def want(self, job: str, slots: int, *, own: bool = False) -> None:
        """A job needs so many slots in all; `own`: of workers that were started for it (and are bound to it) only."""
        if self._wanted.get(job) == slots and own == (job in self._own):
            return
        self._wanted[job] = slots
        self._settled = False
        if own:
            self._own.add(job)

    def adopt(self, job: str, used: Mapping[str, int]) -> None:
        """A leader that takes over found the job running on so many slots of these workers."""
        for name, slots in used.items():
            if name in self._workers:
                self._use(self._workers[name], job, slots)

    def keep(self, job: str, workers: Collection[str]) -> None:
        """A job has begun an attempt on these workers and needs no others."""
        for name in self._held.get(job, {}).keys() - set(workers):
            self._use(self._workers[name], job, 0)

    def release(self, job: str) -> None:
        """A job has ended."""
        self._wanted.pop(job, None)
        self._own.discard(job)
        self._told.pop(job, None)
        for name in list(self._held.get(job, {})):
            self._use(self._workers[name], job, 0)
        self._held.pop(job, None)
        self._settled = False

    def allocate(self) -> list[str]:
        """Give free slots to the jobs that wait; returns those whose `offer` is not what this last said.

        Also where nothing was given: a worker that was lost and comes back with a job's subtasks changes its offer.
        """
        if self._settled:
            return []
        for job, wanted in self._wanted.items():
            missing = wanted - sum(self._held.get(job, {}).values())
            if missing > 0:
                self._give(job, missing)
        self._settled = True
        changed: list[str] = []
        for job in [job for job in self._wanted if job in self._touched]:
            self._touched.discard(job)
            if self.offer(job) != self._told.get(job, {}):
                changed.append(job)
            self._told[job] = dict(self.offer(job))
        return changed

    def _give(self, job: str, missing: int) -> None:
        """All that it lacks, or nothing."""
        free = self._usable_by(job)
        if sum(free.values()) < missing:
            return
        for name in sorted(free, key=lambda name: self._workers[name].order):
            taken = min(missing, free[name])
            if taken > 0:
                worker = self._workers[name]
                self._use(worker, job, worker.used.get(job, 0) + taken)
                missing -= taken

    def _usable_by(self, job: str) -> dict[str, int]:
        """Slots that the job could get in addition to what it has, by worker."""
        own = job in self._own
        workers = ((name, worker) for name, worker in self._workers.items() if name not in self._retired)
        return {name: worker.usable_by(job, own) for name, worker in workers}

    def offer(self, job: str) -> Mapping[str, int]:
        """The slots that a job may use: worker to number."""
        return dict(self._held.get(job, {}))

    # -- numbers --------------------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """All slots."""
        return sum(worker.slots for worker in self._workers.values())

    @property
    def free(self) -> int:
        """Slots that no job has."""
        return sum(worker.slots - worker.used_slots for worker in self._workers.values())

    def missing(self, job: str) -> int:
        """How many slots would have to come before the job gets those it waits for."""
        return self.lacking(job, self._wanted.get(job, 0))

    def lacking(self, job: str, slots: int) -> int:
        """How many slots would have to come before the job could have so many in all."""
        return max(0, slots - sum(self.offer(job).values()) - sum(self._usable_by(job).values()))

    @property
    def unmet(self) -> int:
        """Slots that waiting jobs do not have, whatever is free; without jobs that take only workers of their own."""
        jobs = ((job, wanted) for job, wanted in self._wanted.items() if job not in self._own)
        return sum(max(0, wanted - sum(self.offer(job).values())) for job, wanted in jobs)

    def used(self, worker: str) -> dict[str, int]:
        """Job to the number of slots that it has on the worker."""
        known = self._workers.get(worker)
        return dict(known.used) if known is not None else {}

    def idle(self, worker: str) -> bool:
        """Whether no job uses the worker."""
        known = self._workers.get(worker)
        return known is not None and not known.used

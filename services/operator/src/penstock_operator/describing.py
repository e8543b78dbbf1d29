"""What the status of a job says for people and tools: phase, conditions and numbers. Nothing is decided by it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock_operator.resources import Condition, ConditionStatus, JobStatus, JobVersion, Phase, condition, rfc3339
from penstock_operator.terms import Event, JobSeen, Observed

SECOND_US: Final = 1_000_000
MEASURED_US: Final = 30 * SECOND_US
"""Numbers that change all the time are written into the status so often, if nothing else is."""


class Description:
    """Of a job for which everything is decided."""

    def __init__(
        self, before: JobStatus, decided: JobStatus, seen: Observed, now_us: int, *, generation: int,
        wanted: tuple[JobVersion, int], suspended: bool, deleting: bool,
    ) -> None:  # fmt: skip
        """`before`: what was written down last; `decided`: what will be; `wanted`: what the spec says, and at which
        parallelism the job should run; `suspended`, `deleting`: whether the resource is."""
        self._before, self._status, self._seen, self._now_us = before, decided, seen, now_us
        self._generation, self._wanted, self._suspended, self._deleting = generation, wanted, suspended, deleting

    def status(self) -> JobStatus:
        """All of it."""
        unseen = self._seen.problem
        deployed, job = self._status.starting or self._status.deployed, self._seen.job
        state = job.state if job is not None and self._status.deployed is not None else ""
        parallelism = job.parallelism if state and job is not None else 0
        if unseen:
            state, parallelism = self._before.job_state, self._before.parallelism
        self._set(
            observed_generation=self._generation, job=deployed.job if deployed else self._status.job, job_state=state,
            parallelism=parallelism,
        )  # fmt: skip
        self._set(phase=self._phase(job if self._status.deployed is not None else None))
        self._set(conditions=self._conditions(unseen))
        self._measure(job)
        return self._status

    def events(self) -> list[Event]:
        """The events that tell what the status did not say before."""
        reason, text = self._restarting()
        is_new = bool(reason) and not any(one.reason == reason for one in self._before.conditions)
        return [Event(reason, text, warning=True)] if is_new else []

    def _set(self, **changes: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **changes)

    def _measure(self, job: JobSeen | None) -> None:
        """What changes all the time: at times, and whenever the status is written anyway."""
        if self._status.job != self._before.job:
            self._set(records_behind=None, last_checkpoint=0, last_checkpoint_time="", measured_at_us=0)
        status = self._status
        if job is None or status.deployed is None:
            return
        at = rfc3339(job.checkpointed_us) if job.checkpointed_us is not None else status.last_checkpoint_time
        is_first = bool(at) and not status.last_checkpoint_time
        if status == self._before and not is_first and self._now_us - status.measured_at_us < MEASURED_US:
            return
        self._set(records_behind=job.behind, last_checkpoint=job.last_checkpoint, last_checkpoint_time=at)
        if self._status != status or status.autoscaler != self._before.autoscaler:
            self._set(measured_at_us=self._now_us)

    def _phase(self, job: JobSeen | None) -> Phase:
        step = self._status.step
        if self._seen.problem:
            return self._before.phase
        if step is not None and step.kind in ("stop", "cancel"):
            return "Ending"
        if self._status.starting is not None:
            return "Starting"
        if job is not None:
            return "Failed" if job.ended and job.state != "FINISHED" else "Finished" if job.ended else "Running"
        if self._suspended:
            return "Suspended"
        return "Failed" if self._status.problem else "Pending"

    def _conditions(self, unseen: str) -> tuple[Condition, ...]:
        ready, why, text = self._ready(unseen)
        problem, reason = self._status.problem, self._status.problem_reason
        degraded = ("ClusterUnreachable", unseen) if unseen else (reason, problem) if reason else self._restarting()
        busy = self._status.step is not None
        step = self._status.step
        doing = f"{step.kind} ({step.why})" if step is not None else ""
        return (
            self._condition("Ready", "Unknown" if unseen else "True" if ready else "False", why, text),
            self._condition("Reconciling", "True" if busy else "False", step.kind.title() if step else "Idle", doing),
            self._condition("Degraded", "True" if degraded[0] else "False", degraded[0] or "Fine", degraded[1]),
        )

    def _ready(self, unseen: str) -> tuple[bool, str, str]:
        """Whether what the spec says is so: is it, a word, a text."""
        deployed, job = self._status.deployed, self._seen.job
        if unseen:
            return False, "ClusterUnreachable", unseen
        if self._deleting or self._status.step is not None or deployed is None or job is None:
            return False, self._status.phase, self._status.problem or self._seen.submitter_problem
        if job.state == "FINISHED":
            return True, "Finished", ""
        if restarting := self._restarting()[0]:
            return False, restarting, job.reason
        runs = job.state == "RUNNING" and job.all_running
        if runs and (deployed.version, job.parallelism) == self._wanted:
            return True, "Running", ""
        if not runs and not self._status.problem:
            return False, "Deploying", job.reason
        return False, "RolledBack" if runs and self._status.failed else self._status.phase, self._status.problem

    def _restarting(self) -> tuple[str, str]:
        """The reason and the message if the job is restarting by its restart strategy; both empty otherwise."""
        job = self._seen.job
        if job is None or job.state != "RESTARTING" or self._status.deployed is None or self._status.step is not None:
            return "", ""
        return "Restarting", job.reason

    def _condition(self, kind: str, state: ConditionStatus, reason: str, message: str) -> Condition:
        return condition(self._before.conditions, kind, state, reason, message, self._generation, self._now_us)

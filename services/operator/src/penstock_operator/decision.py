"""What is to be done for a job: a function of its spec, of what was written down and of what is seen now.

No I/O, no clock, no randomness. What is decided is written into the status first, and done then: a step has the id of its
request, which the cluster carries out once. So whoever comes later (the same operator after a crash, another one, one
that saw an old status) does the same step again, not another one; and a status that was decided upon an old one is not
written, because Kubernetes refuses it. The rules:

* At most one job of a resource is alive: another one is submitted when the cluster says that the one before has ended, or
  that a submission came to nothing and nobody tries it any more.
* State is handed on from job to job: a job goes on from what the one before has left, else from what that one started
  from. Where neither is exact, the operator waits for somebody to say what to start from.
* What failed is not tried again until the spec changes; the last stable version is run in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from penstock.client.documents import ENDED
from penstock.core.times import duration_us
from penstock.errors import PenstockError, UsageError
from penstock.submission.restart_text import parse_restart
from penstock_operator.autoscaling import evaluate, measured_status, problem_of
from penstock_operator.describing import MEASURED_US, SECOND_US, Description
from penstock_operator.resources import (
    AutoscalerStatus,
    Deployed,
    JobSpec,
    JobStatus,
    JobVersion,
    SavepointRecord,
    Stable,
    StartPoint,
    Step,
    StepKind,
)
from penstock_operator.terms import (
    Action,
    Ask,
    Decision,
    Dispose,
    Event,
    Halt,
    JobSeen,
    Observed,
    Submit,
)

RETRY_US: Final = 10 * SECOND_US
"""So long nothing is asked of the cluster after it has refused something."""
IMPATIENT_US: Final = 60 * SECOND_US
"""A stop of a job that does not run and has completed no checkpoint is given up for a cancellation after this time."""
SHOWN: Final = 50
"""So many savepoints are kept in the status; older ones of upgrades are no longer listed there, and stay in the store."""
REMEMBERED: Final = 10
"""So many submissions that were given up are looked for."""

AUTOSCALER: Final = "autoscaler"
"""Why a job is rescaled that nobody has asked for."""
FAILURES: Final = ("StartFailed", "NotStable", "JobFailed")
"""Troubles with a version."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    version: JobVersion
    parallelism: int
    """As somebody has said it."""
    attempt: str
    rollback: bool = False
    autoscaled: int = 0
    """What was chosen in its place; 0 if nothing was."""

    @property
    def effective(self) -> int:
        """What the job should run at."""
        return self.autoscaled or self.parallelism


def decide(
    spec: JobSpec, status: JobStatus, seen: Observed, now_us: int, *, uid: str, generation: int, deleting: bool = False
) -> Decision:
    """What is to be done for a job now.

    Args:
        spec: what should be.
        status: what was written down last.
        seen: what is.
        now_us: the time.
        uid: the id of the resource, from which those of jobs and requests are made.
        generation: of the spec.
        deleting: whether the resource is being deleted.
    """
    return _Deciding(spec, status, seen, now_us, uid, generation, deleting).decision()


def problems_of(spec: JobSpec) -> str:
    """Why a spec makes no sense, beyond what Kubernetes checks; empty if it does."""
    try:
        stable_us = duration_us(spec.stable_within, "stableWithin", positive=True)
        interval_us = duration_us(spec.checkpoint_interval, "checkpointInterval", positive=True)
        parse_restart(spec.restart)
        if spec.savepoints is not None:
            duration_us(spec.savepoints.every, "savepoints.every", positive=True)
            if spec.savepoints.keep_age:
                duration_us(spec.savepoints.keep_age, "savepoints.keepAge", positive=True)
        if spec.autoscaler is not None and (problem := problem_of(spec.autoscaler, spec.parallelism)):
            return problem
    except (PenstockError, UsageError) as error:
        return str(error)
    if stable_us <= interval_us:
        return (
            f"stableWithin ({spec.stable_within}) must be longer than checkpointInterval ({spec.checkpoint_interval}): "
            "a version is stable when it has completed a checkpoint"
        )
    return ""


def identity(uid: str, number: int) -> str:
    """The id of a job or request of a resource: 32 hexadecimal digits."""
    return hashlib.sha256(f"{uid}/{number}".encode()).hexdigest()[:32]


def version_of(spec: JobSpec, content: str) -> JobVersion:
    """What has to be submitted for a spec."""
    names = set(JobVersion.__struct_fields__) - {"content"}
    return JobVersion(content=content, **{name: getattr(spec, name) for name in names})


def _remembered(status: JobStatus, seen: Observed) -> Observed:
    """A job that was seen to have ended has ended, also when the cluster has forgotten it."""
    if status.deployed is None or seen.job is not None or status.job_state not in ENDED:
        return seen
    return replace(seen, job=JobSeen(status.job_state, status.parallelism, reason=status.problem))


class _Deciding:
    """One decision."""

    def __init__(
        self, spec: JobSpec, status: JobStatus, seen: Observed, now_us: int, uid: str, generation: int, deleting: bool
    ) -> None:
        self._spec, self._seen, self._now_us, self._uid = spec, _remembered(status, seen), now_us, uid
        self._generation, self._deleting = generation, deleting
        self._wrong = problems_of(spec) or seen.content_problem
        self._before = self._status = status
        self._actions: list[Action] = []
        self._events: list[Event] = []
        self._released = False

    def decision(self) -> Decision:
        """All of it."""
        unseen = self._seen.problem
        if unseen:
            self._unseen(unseen)
        else:
            self._cancel_strays()
            if self._settled():
                self._plan()
        target = self._target()
        described = Description(
            self._before, self._status, self._seen, self._now_us, generation=self._generation,
            wanted=(target.version, target.effective), suspended=self._spec.state == "suspended", deleting=self._deleting,
        )  # fmt: skip
        status, events = described.status(), (*self._events, *described.events())
        return Decision(status, tuple(self._actions), events, self._released)

    def _set(self, **changes: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **changes)

    def _tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._events.append(Event(reason, message, warning))

    def _unseen(self, problem: str) -> None:
        """Nothing is done blindly; but where there is no cluster any more, nobody waits for it."""
        if self._deleting and self._seen.cluster_missing:
            self._released = True
            self._tell("Released", f"nothing was done about the job: {problem}", warning=True)

    def _cancel_strays(self) -> None:
        self._actions += [Ask("cancel", job, identity(self._uid + job, 0)) for job in self._seen.strays]

    def _new_id(self) -> str:
        self._set(counter=self._status.counter + 1)
        return identity(self._uid, self._status.counter)

    def _trouble(self, reason: str, message: str) -> None:
        """Something went wrong: said as an event when it is new."""
        if (self._status.problem_reason, self._status.problem) != (reason, message):
            self._tell(reason, message, warning=True)
        self._set(problem_reason=reason, problem=message)

    def _well(self, *reasons: str) -> None:
        """Troubles of these kinds are over."""
        if self._status.problem_reason in reasons:
            self._set(problem_reason="", problem="")

    # -- the step that is under way -------------------------------------------------------------------------------------

    def _settled(self) -> bool:
        """Whether no step is under way any more; one that the cluster does not know of is carried out (again)."""
        step = self._status.step
        if step is None:
            return True
        settle: dict[StepKind, Callable[[Step], None]] = {
            "submit": self._settle_submission,
            "stop": self._settle_ending,
            "cancel": self._settle_ending,
            "savepoint": self._settle_savepoint,
            "rescale": self._settle_rescale,
        }
        accepted_before = self._status.deployed
        settle[step.kind](step)
        return self._status.step is None and self._status.deployed in (None, accepted_before)

    def _settle_submission(self, step: Step) -> None:
        starting, answer = self._status.starting, self._seen.answer
        assert starting is not None
        if self._seen.starting is not None or answer.state == "completed":
            self._accepted(starting)
        elif answer.state == "refused":
            self._start_failed(starting, answer.reason, blamed=True)
        elif answer.state == "pending":
            return  # the leader will look at it, whatever becomes of who asked
        elif step.given_up:
            self._settle_halted(starting)
        elif self._seen.submitter == "failed":
            self._start_failed(starting, self._seen.submitter_problem, blamed=True)
        elif self._is_overdue(step.since_us) or not self._is_still_wanted(starting):
            self._set(step=msgspec.structs.replace(step, given_up=True))
            self._actions.append(Halt(starting))
        elif self._seen.submitter == "absent":
            self._actions.append(Submit(starting))

    def _settle_halted(self, starting: Deployed) -> None:
        """Another job may start only when nobody can submit this one any more."""
        if self._seen.submitter in ("absent", "working"):
            self._actions.append(Halt(starting))
            return
        wanted = self._is_still_wanted(starting)
        reason = self._seen.submitter_problem or f"it was not accepted within {self._spec.stable_within}"
        self._start_failed(starting, reason, blamed=wanted)

    def _is_still_wanted(self, starting: Deployed) -> bool:
        if self._deleting or self._spec.state == "suspended":
            return False
        wanted = self._wanted()
        return bool(self._wrong) or (wanted is not None and wanted.attempt == starting.attempt)

    def _accepted(self, starting: Deployed) -> None:
        self._set(
            deployed=msgspec.structs.replace(starting, since_us=self._now_us), starting=None, step=None,
            periodic_at_us=self._status.periodic_at_us or self._now_us,
        )  # fmt: skip
        self._seen = replace(self._seen, job=self._seen.starting)
        start = starting.start
        self._tell("Submitted", f"job {starting.job} was accepted" + (f", from {start.manifest}" if start else ""))

    def _start_failed(self, starting: Deployed, reason: str, *, blamed: bool) -> None:
        self._set(starting=None, step=None, given_up=(*self._status.given_up, starting.job)[-REMEMBERED:])
        if blamed:
            self._set(failed=(*self._status.failed, starting.attempt))
            self._trouble("StartFailed", reason)

    def _settle_ending(self, step: Step) -> None:
        job, answer = self._seen.job, self._seen.answer
        if job is None or job.ended:
            self._ended(step)
        elif answer.state == "refused":
            self._refused(step, answer.reason)
        elif answer.state == "unknown":
            self._ask(step)
        elif step.kind == "stop" and (self._is_too_long(step, job) or not self._saves(step.why)):
            self._begin("cancel", step.why)

    def _is_too_long(self, step: Step, job: JobSeen) -> bool:
        return self._is_hopeless(job) and self._now_us - step.since_us > IMPATIENT_US

    def _settle_savepoint(self, step: Step) -> None:
        job, answer = self._seen.job, self._seen.answer
        if answer.state == "completed":
            self._set(step=None)
            self._record(answer.savepoint, step.why)
            self._well("Refused")
        elif answer.state == "refused":
            self._refused(step, answer.reason)
        elif job is None or job.ended:
            self._set(step=None)
        elif answer.state == "unknown":
            self._ask(step)

    def _settle_rescale(self, step: Step) -> None:
        """One that waits for slots gives way to whatever else is wanted."""
        job, answer, wanted = self._seen.job, self._seen.answer, self._wanted()
        gives_way = wanted is None or wanted.effective != step.parallelism or self._another_is_due(wanted)
        if job is None or job.ended:
            self._set(step=None)
        elif answer.state == "completed":
            self._rescaled(step)
        elif answer.state == "refused":
            self._refused(step, answer.reason)
        elif gives_way:
            self._set(step=None)
            stays = wanted is not None and wanted.effective == job.parallelism and not self._another_is_due(wanted)
            if stays and answer.state == "pending":  # or it is carried out one day
                self._begin("rescale", step.why, job.parallelism)
        elif self._waits_in_vain(step, job):
            within = self._spec.stable_within
            self._not_autoscaled(f"the slots for parallelism {step.parallelism} have not come within {within}")
            self._begin("rescale", AUTOSCALER, job.parallelism)
        elif answer.state == "unknown":
            self._ask(step)

    def _waits_in_vain(self, step: Step, job: JobSeen) -> bool:
        """Whether no slots come for what the autoscaler wants: it looks at the load anew, which may be another now."""
        waits = step.why == AUTOSCALER and step.parallelism != job.parallelism
        return waits and job.state == "RUNNING" and not job.is_ending and self._is_overdue(step.since_us)

    def _another_is_due(self, wanted: _Wanted) -> bool:
        ends = self._deleting or self._spec.state == "suspended"
        return ends or (not self._wrong and self._needs_new_job(wanted)) or self._periodic_due()

    def _rescaled(self, step: Step) -> None:
        deployed = self._status.deployed
        assert deployed is not None
        said = {"parallelism": step.parallelism, "attempt": self._attempt(deployed.version, step.parallelism)}
        changes = {"autoscaled": step.parallelism} if step.why == AUTOSCALER else {**said, "autoscaled": 0}
        self._set(deployed=msgspec.structs.replace(deployed, since_us=self._now_us, **changes), step=None)
        self._well("Refused")
        self._tell("Rescaled", f"job {deployed.job} goes on at parallelism {step.parallelism}")

    def _refused(self, step: Step, reason: str) -> None:
        self._set(step=None, retry_at_us=self._now_us + RETRY_US)
        if step.why == AUTOSCALER:
            self._not_autoscaled(reason)
        else:
            self._trouble("Refused", f"{step.kind}: {reason}")

    def _ask(self, step: Step) -> None:
        assert self._status.deployed is not None
        self._actions.append(Ask(step.kind, self._status.deployed.job, step.request, step.parallelism))

    def _begin(self, kind: StepKind, why: str, parallelism: int = 0) -> None:
        """Write a new step down, and do it once that is written."""
        step = Step(kind=kind, request=self._new_id(), why=why, since_us=self._now_us, parallelism=parallelism)
        self._set(step=step)
        self._ask(step)

    # -- the end of a job -----------------------------------------------------------------------------------------------

    def _ended(self, step: Step) -> None:
        """It ended because it was asked to, or at the same time by itself."""
        deployed, job = self._status.deployed, self._seen.job
        assert deployed is not None
        left = self._seen.answer.savepoint or (job.left if job is not None else None)
        self._hand_on(deployed, job, left)
        if job is not None and job.state == "STOPPED":
            self._record(left, step.why)
        finished = job is not None and job.state == "FINISHED"  # it is not run again when it should run again
        self._set(deployed=deployed if finished else None, step=None)
        self._well("Refused")
        self._tell("Ended", f"job {deployed.job} has ended ({job.state if job else 'unknown to the cluster'})")

    def _hand_on(self, deployed: Deployed, job: JobSeen | None, left: StartPoint | None) -> None:
        """What the next job goes on from. What the job has published since must not be published again."""
        if job is None:
            known = {"keeps": left, "doubtful": ""} if left is not None else {}
            self._set(**{"doubtful": f"the cluster does not know job {deployed.job} any more", **known})
        elif job.state == "FINISHED":
            self._set(keeps=None, doubtful="")  # there is no more input that a state could be for
        elif left is not None and job.state != "CANCELED":
            self._set(keeps=left, doubtful="")
        elif self._has_own_checkpoint(deployed, job):
            self._set(doubtful=f"job {deployed.job} ended as {job.state} behind its checkpoint {job.last_checkpoint}")

    def _has_own_checkpoint(self, deployed: Deployed, job: JobSeen) -> bool:
        return job.last_checkpoint > (deployed.start.checkpoint if deployed.start is not None else 0)

    def _is_hopeless(self, job: JobSeen) -> bool:
        """Whether no savepoint can be taken, and nothing is lost without one."""
        assert self._status.deployed is not None
        return job.state != "RUNNING" and not self._has_own_checkpoint(self._status.deployed, job)

    def _record(self, savepoint: StartPoint | None, why: str) -> None:
        deployed = self._status.deployed
        assert deployed is not None
        if savepoint is None or any(known.manifest == savepoint.manifest for known in self._status.savepoints):
            return
        record = SavepointRecord(
            manifest=savepoint.manifest, checkpoint=savepoint.checkpoint, job=deployed.job, why=why, at_us=self._now_us
        )
        self._set(savepoints=(*self._status.savepoints, record)[-SHOWN:], newest_savepoint=record.manifest)
        self._tell("SavepointTaken", f"{savepoint.manifest} ({why})")

    # -- what comes next ------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        deployed, job = self._status.deployed, self._seen.job
        alive = deployed is not None and job is not None and not job.ended
        if deployed is not None and job is not None and alive:
            self._note_stability(deployed, job)
        elif deployed is not None:
            self._ended_by_itself(deployed, job)
        if self._deleting:
            self._plan_deletion(alive)
        elif self._spec.state == "suspended":
            if alive:
                self._end("suspend")
        elif self._wrong:
            self._trouble("InvalidSpec", self._wrong)
        else:
            self._well("InvalidSpec")
            self._plan_running(alive)

    def _plan_deletion(self, alive: bool) -> None:
        if alive:
            self._end("delete")
        else:
            self._released = True

    def _note_stability(self, deployed: Deployed, job: JobSeen) -> None:
        runs = job.state == "RUNNING" and job.all_running
        if deployed.stable or not (runs and self._has_own_checkpoint(deployed, job)):
            return
        self._set(
            deployed=msgspec.structs.replace(deployed, stable=True), keeps=deployed.start, doubtful="",
            last_stable=Stable(version=deployed.version, parallelism=deployed.parallelism),
        )  # fmt: skip
        if not self._status.failed:
            self._well(*FAILURES, "StateUnknown")
        self._tell("Stable", f"job {deployed.job} runs, and has completed checkpoint {job.last_checkpoint}")

    def _ended_by_itself(self, deployed: Deployed, job: JobSeen | None) -> None:
        self._hand_on(deployed, job, job.left if job is not None else None)
        if job is None:
            self._trouble("StateUnknown", self._status.doubtful)
        elif job.state == "FINISHED":
            self._well(*FAILURES)
        elif job.state == "FAILED":
            if not deployed.stable and deployed.attempt not in self._status.failed:
                self._set(failed=(*self._status.failed, deployed.attempt))
            self._trouble("JobFailed", job.reason or "the job has failed")
        else:
            self._trouble("EndedElsewhere", f"job {deployed.job} was ended by somebody else: {job.state} {job.reason}")

    def _plan_running(self, alive: bool) -> None:
        wanted = self._wanted()
        deployed, job = self._status.deployed, self._seen.job
        if deployed is None or not alive:
            if wanted is not None and (deployed is None or self._follows(wanted, deployed, job)):
                self._start(wanted)
            return
        assert job is not None
        if not deployed.stable and self._is_overdue(deployed.since_us):
            wanted = self._not_stable(deployed, job, wanted)
        if wanted is None:
            return
        if self._needs_new_job(wanted):
            self._end("rollback" if wanted.rollback else "upgrade")
        elif job.parallelism != wanted.effective:
            if self._may_ask():
                self._begin("rescale", AUTOSCALER if wanted.autoscaled else "parallelism", wanted.effective)
        else:
            if self._status.failed and deployed.stable and not wanted.rollback:
                self._set(failed=())  # somebody has gone back to what runs: what failed is no longer wanted
                self._well(*FAILURES)
            self._keep_savepoints()
            if self._status.step is None:
                self._autoscale(wanted, deployed, job)

    def _not_stable(self, deployed: Deployed, job: JobSeen, wanted: _Wanted | None) -> _Wanted | None:
        """Time is over: back to the last stable version if there is one, else it may go on trying."""
        problem = job.reason or f"job {deployed.job} has not become stable within {self._spec.stable_within}"
        self._trouble("NotStable", problem)
        before = self._status
        self._set(failed=(*before.failed, deployed.attempt))
        other = self._wanted()
        if other is None or other.attempt == deployed.attempt:
            self._status = before
            return wanted
        return other

    def _target(self) -> _Wanted:
        version, said = version_of(self._spec, self._seen.content), self._spec.parallelism
        return _Wanted(version, said, self._attempt(version, said), autoscaled=self._autoscaled(said))

    def _wanted(self) -> _Wanted | None:
        """What the spec says; the last stable version if that has failed; nothing if that has failed, too."""
        target, stable = self._target(), self._status.last_stable
        if target.attempt not in self._status.failed:
            return target
        if self._spec.rollback and stable is not None:
            attempt = self._attempt(stable.version, stable.parallelism)
            if attempt not in self._status.failed:
                chosen = self._autoscaled(stable.parallelism)
                return _Wanted(stable.version, stable.parallelism, attempt, rollback=True, autoscaled=chosen)
        return None

    def _attempt(self, version: JobVersion, parallelism: int) -> str:
        known = msgspec.json.encode([version, parallelism, self._spec.restart_nonce], order="sorted")
        return hashlib.sha256(known).hexdigest()[:16]

    def _needs_new_job(self, wanted: _Wanted) -> bool:
        deployed = self._status.deployed
        return deployed is not None and (deployed.version != wanted.version or self._is_restart())

    def _follows(self, wanted: _Wanted, deployed: Deployed, job: JobSeen | None) -> bool:
        """Whether another job follows one that has ended by itself: anything new is tried, unless it has finished."""
        unfinished = job is None or job.state != "FINISHED"
        return self._needs_new_job(wanted) or (unfinished and wanted.attempt != deployed.attempt)

    def _is_restart(self) -> bool:
        return self._status.nonce is not None and self._status.nonce != self._spec.restart_nonce

    def _is_overdue(self, since_us: int) -> bool:
        return not self._wrong and self._now_us - since_us > duration_us(self._spec.stable_within, "stableWithin")

    def _may_ask(self) -> bool:
        return self._now_us >= self._status.retry_at_us

    def _end(self, why: str) -> None:
        """Stop the job with a savepoint, or cancel it where its state is not wanted, or where it has none."""
        job = self._seen.job
        assert job is not None
        if not self._may_ask():
            return
        self._begin("stop" if self._saves(why) and not self._is_hopeless(job) else "cancel", why)

    def _saves(self, why: str) -> bool:
        """Whether the state of a job that is ended is wanted; somebody may say no to a stop that takes too long."""
        if self._deleting:
            return self._spec.on_delete == "savepoint"
        return why == "rollback" or self._spec.upgrade_mode != "stateless"

    # -- starting -------------------------------------------------------------------------------------------------------

    def _start(self, wanted: _Wanted) -> None:
        anew = self._status.nonce is None or self._is_restart()
        given = bool(self._spec.from_savepoint) and anew and not wanted.rollback
        problem = self._start_problem(given, wanted)
        if problem:
            self._trouble("StateUnknown", problem)
            return
        self._well("StateUnknown", "EndedElsewhere")
        if not wanted.rollback and self._status.failed:
            self._set(failed=(), problem="", problem_reason="")
        start = self._seen.given if given else None if self._is_stateless(wanted) else self._status.keeps
        job = self._new_id()
        starting = Deployed(
            job=job, version=wanted.version, parallelism=wanted.parallelism, autoscaled=wanted.autoscaled,
            attempt=wanted.attempt, start=start, since_us=self._now_us,
        )  # fmt: skip
        why = "rollback" if wanted.rollback else "start"
        self._set(
            deployed=None, starting=starting, nonce=self._spec.restart_nonce,
            step=Step(kind="submit", request=job, why=why, since_us=self._now_us),
        )  # fmt: skip
        self._actions.append(Submit(starting))
        self._tell("RollingBack" if wanted.rollback else "Submitting", f"job {job}")

    def _is_stateless(self, wanted: _Wanted) -> bool:
        return self._spec.upgrade_mode == "stateless" and not wanted.rollback

    def _start_problem(self, given: bool, wanted: _Wanted) -> str:
        """Why it is not known what to start from; empty if it is."""
        if given:
            return self._seen.given_problem
        if self._is_stateless(wanted):
            return ""
        advice = "say what to start from by fromSavepoint and another restartNonce, or set upgradeMode to stateless"
        if self._status.doubtful:
            return f"{self._status.doubtful}: going on from an earlier state would double rows; {advice}"
        keeps = self._status.keeps
        if keeps is not None and not keeps.savepoint and self._spec.upgrade_mode == "savepoint":
            return (
                f"the job has failed, and has left its checkpoint {keeps.checkpoint} and no savepoint; set upgradeMode "
                f"to last-checkpoint to go on from there, or {advice}"
            )
        return ""

    # -- autoscaling ----------------------------------------------------------------------------------------------------

    def _autoscaled(self, said: int) -> int:
        """What the autoscaler has chosen in place of this parallelism; 0 if it has not."""
        spec, status = self._spec.autoscaler, self._status.autoscaler
        if spec is None or spec.dry_run or status is None or not status.parallelism or status.instead_of != said:
            return 0
        return min(max(status.parallelism, spec.min_parallelism), spec.max_parallelism)

    def _autoscale(self, wanted: _Wanted, deployed: Deployed, job: JobSeen) -> None:
        """Look at the load of a job that runs as it should, and of which nothing else is wanted."""
        spec, before = self._spec.autoscaler, self._status.autoscaler
        if spec is None:
            self._set(autoscaler=None)
            return
        before = measured_status(before, wanted.parallelism, deployed.job, self._now_us)
        self._set(autoscaler=before)
        if not (deployed.stable and job.state == "RUNNING" and job.all_running and self._may_ask()):
            return
        loads = self._seen.loads if self._seen.loads and self._seen.loads[-1].parallelism == job.parallelism else ()
        found = evaluate(spec, before, loads, self._seen.spare_slots, self._now_us)
        self._tell_of_autoscaling(before, found.status, job.parallelism)
        new_words = msgspec.structs.replace(before, reason=found.status.reason) == found.status
        if not new_words or self._now_us - self._status.measured_at_us >= MEASURED_US:
            self._set(autoscaler=found.status)
        if loads and found.parallelism != job.parallelism:
            self._begin("rescale", AUTOSCALER, found.parallelism)

    def _tell_of_autoscaling(self, before: AutoscalerStatus, after: AutoscalerStatus, parallelism: int) -> None:
        recommended = after.recommended_parallelism
        if after.ineffective != before.ineffective:
            self._tell("IneffectiveScaling", f"parallelism {parallelism} is not faster: {after.reason}", warning=True)
        if after.last_rescale is not None and after.since_us != before.since_us:
            self._tell(after.state, f"parallelism {parallelism} becomes {recommended}: {after.reason}")
        elif after.state in ("ScaleUp", "ScaleDown") and recommended != before.recommended_parallelism:
            self._tell("Recommended", f"parallelism {recommended} in place of {parallelism}: {after.reason}")

    def _not_autoscaled(self, reason: str) -> None:
        """The cluster does not rescale the job: it stays as it is, and is measured anew."""
        status, deployed = self._status.autoscaler, self._status.deployed
        if status is None or deployed is None:
            return
        if (status.state, status.reason) != ("Refused", reason):
            self._tell("RescaleRefused", reason, warning=True)
        stays = msgspec.structs.replace(
            status, state="Refused", reason=reason, parallelism=deployed.effective, since_us=self._now_us
        )
        self._set(autoscaler=stays)

    # -- periodic savepoints --------------------------------------------------------------------------------------------

    def _periodic_due(self) -> bool:
        periodic, status = self._spec.savepoints, self._status
        stable = status.deployed is not None and status.deployed.stable
        if periodic is None or self._wrong or not stable or not self._may_ask():
            return False
        return self._now_us - status.periodic_at_us >= duration_us(periodic.every, "savepoints.every")

    def _keep_savepoints(self) -> None:
        """Take one if it is time; dispose of those that are too many or too old, and forget those that are gone."""
        kept = tuple(one for one in self._status.savepoints if one.manifest not in self._seen.gone)
        if kept != self._status.savepoints:
            self._set(savepoints=kept)
        if self._periodic_due():
            self._set(periodic_at_us=self._now_us)
            self._begin("savepoint", "periodic")
        elif self._spec.savepoints is not None:
            self._actions += [Dispose(one.manifest) for one in self._superfluous()]

    def _superfluous(self) -> list[SavepointRecord]:
        """Periodic ones beyond number and age; never the newest of all, and never what a job would start from."""
        periodic = self._spec.savepoints
        assert periodic is not None
        needed = {start.manifest for start in (self._status.keeps, self._seen.given) if start is not None}
        needed |= {one.manifest for one in self._status.savepoints[-1:]}
        taken = [one for one in self._status.savepoints if one.why == "periodic"]
        age_us = duration_us(periodic.keep_age, "savepoints.keepAge") if periodic.keep_age else None
        many = taken[: -periodic.keep_count]
        old = [one for one in taken if age_us is not None and self._now_us - one.at_us > age_us]
        return [one for one in taken if (one in many or one in old) and one.manifest not in needed]

"""A small Kubernetes and a small cluster: two operators decide in it, are interrupted, and look at what is old.

A job's state is the number of rows that it has seen, and what it has published is a number, too. So a job that starts
from anything but exactly what was published loses rows or doubles them, and is found at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.client.documents import ENDED
from penstock_operator.autoscaling import LoadSample, VertexCounts
from penstock_operator.decision import AUTOSCALER, decide
from penstock_operator.resources import (
    Autoscaler,
    Deployed,
    JobSpec,
    JobStatus,
    PeriodicSavepoints,
    Source,
    StartPoint,
    Step,
)
from penstock_operator.terms import Action, Answered, Ask, Dispose, Halt, JobSeen, Observed, Submit, Submitter

UID = "uid"
TICK_US = 1_000_000
PERIOD_US = 15 * TICK_US
GOOD, BROKEN, SILENT, CRASHING = "good", "broken", "silent", "crashing"
"""Kinds of versions: one that runs, one whose file raises, one that never runs, one that fails when it has run a bit."""
SCALER = Autoscaler(max_parallelism=4, metrics_window="1s", stabilization_interval="0s", scale_down_interval="2s")
STATEFUL = ("last-checkpoint", "savepoint")
KINDS = (GOOD, GOOD, GOOD, BROKEN, SILENT, CRASHING)


class BrokenInvariantError(Exception):
    """Something happened that must not."""


@dataclass
class Job:
    """A job of the cluster."""

    deployed: Deployed
    rows: int
    parallelism: int
    state: str = "CREATED"
    checkpoint: int = 0
    covered: int = 0
    """Rows that its newest checkpoint covers: they are published."""
    left: StartPoint | None = None
    age: int = 0

    @property
    def kind(self) -> str:
        """Of its version."""
        return self.deployed.version.parameters["kind"]

    @property
    def alive(self) -> bool:
        """Whether it may still publish something."""
        return self.state not in ENDED


@dataclass
class Request:
    """Something that was asked."""

    ask: Ask
    answered: Answered = field(default_factory=lambda: Answered("pending"))


@dataclass
class Stored:
    """The resource, as Kubernetes keeps it."""

    version: int
    spec: JobSpec
    generation: int
    status: JobStatus = field(default_factory=JobStatus)
    deleting: bool = False


class World:
    """All of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.load = random.Random(seed)
        """Apart, so that histories without autoscaler are what they are."""
        self.now_us = 1_000_000_000
        spec = JobSpec(
            cluster="c", source=Source(file="f.py"), parameters={"kind": GOOD, "n": "0"}, stable_within="40s",
            upgrade_mode="stateless" if seed % 5 == 0 else self.random.choice(STATEFUL), checkpoint_interval="1s",
            savepoints=PeriodicSavepoints(every="15s", keep_count=2, keep_age="40s"), rollback=self.random.random() < 0.8,
            autoscaler=SCALER if seed % 10 in (3, 5, 9) else None,
        )  # fmt: skip
        self.stored: Stored | None = Stored(1, spec, 1)
        self.past = [self.stored]
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, Request] = {}
        self.submitters: dict[str, tuple[Submitter, Deployed]] = {}
        self.submissions: dict[str, Answered] = {}
        self.savepoints: dict[str, int] = {}
        """Manifest to the rows that it covers."""
        self.published = 0
        self.named: set[str] = set()
        """Savepoints that somebody has said to start from."""
        self.meddled = False
        """Whether somebody else has ended a job, so that nothing exact can follow."""
        self.failures = 0.0007
        """How likely a job fails in a moment."""
        self.reasons = 1
        """What may have led to another job: edits of the version, failures."""
        self.gone: set[str] = set()
        self.written: set[str] = set()
        """Requests that stand, or stood, in the status."""
        self.chosen: set[str] = set()
        """Those of the autoscaler."""
        self.begun_us = self.now_us
        self.periodic = 0
        self.reached: set[str] = set()

    # -- time -----------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """A moment passes for everything in the cluster."""
        self.now_us += TICK_US
        for job in list(self.submitters):
            self._submit_on(job)
        for job in [job for job in self.jobs.values() if job.alive]:
            self._run(job)
        for request in [one for one in self.requests.values() if one.answered.state == "pending"]:
            if self.random.random() < 0.6:
                self._answer(request)

    def _submit_on(self, name: str) -> None:
        state, deployed = self.submitters[name]
        answer = self.submissions.get(name, Answered())
        if state == "working" and self.random.random() < 0.5:
            if deployed.version.parameters["kind"] == BROKEN:
                self.submitters[name] = ("failed", deployed)
            else:
                self.submitters[name] = ("done", deployed)
                self.submissions.setdefault(name, Answered("pending"))
        elif answer.state == "pending" and self.random.random() < 0.5:
            self._accept(name, deployed)

    def _accept(self, name: str, deployed: Deployed) -> None:
        start = deployed.start
        if start is not None and start.manifest not in self.savepoints:
            raise BrokenInvariantError(f"job {name} starts from {start.manifest}, which was disposed of")
        if any(job.alive for job in self.jobs.values()):
            raise BrokenInvariantError("two jobs are alive")
        rows = self.savepoints[start.manifest] if start is not None else 0
        if start is None and self._is_stateless():
            self.reached.add("stateless")
        elif start is not None and start.manifest in self.named:
            self.reached.add("named")
        elif rows != self.published:
            raise BrokenInvariantError(f"job {name} starts with {rows} rows where {self.published} are published")
        self.submissions[name] = Answered("completed")
        number = start.checkpoint if start is not None else 0
        parallelism = deployed.autoscaled or deployed.parallelism
        self.jobs[name] = Job(deployed, rows, parallelism, checkpoint=number, covered=rows)
        if len(self.jobs) > self.reasons:
            raise BrokenInvariantError(f"{len(self.jobs)} jobs for {self.reasons} reasons")

    def _is_stateless(self) -> bool:
        return self.past[-1].spec.upgrade_mode == "stateless"

    def _run(self, job: Job) -> None:
        job.age += 1
        if job.kind == SILENT:
            job.state = "RESTARTING"
            return
        job.state = "RUNNING"
        job.rows += self.random.randrange(3)
        if self.random.random() < 0.4:
            self._complete(job)
        if (job.kind == CRASHING and job.age > self.random.randrange(1, 5)) or self.random.random() < self.failures:
            self._end(job, "FAILED", self._savepoint(job, savepoint=False) if job.checkpoint else None)
            self.reasons += 2

    def _complete(self, job: Job) -> None:
        job.checkpoint += 1
        job.covered = self.published = job.rows

    def _savepoint(self, job: Job, *, savepoint: bool = True) -> StartPoint:
        manifest = f"{job.deployed.job[:6]}/{job.checkpoint}/{savepoint}"
        self.savepoints[manifest] = job.covered
        return StartPoint(manifest=manifest, checkpoint=job.checkpoint, savepoint=savepoint)

    def _end(self, job: Job, state: str, left: StartPoint | None) -> None:
        job.state, job.left = state, left
        self.reached.add(state)

    def _answer(self, request: Request) -> None:
        job, kind = self.jobs[request.ask.job], request.ask.kind
        if not job.alive:
            request.answered = Answered("refused", "the job has ended")
        elif kind == "cancel":
            self._end(job, "CANCELED", None)
            request.answered = Answered("completed")
        elif kind == "rescale":
            self._rescale(job, request)
        elif job.state != "RUNNING" or self.random.random() < 0.1:
            request.answered = Answered("refused", "not now")
        else:
            self._complete(job)
            request.answered = Answered("completed", "", self._savepoint(job))
            self.reached.add(kind)
            self._count(kind)
            if kind == "stop":
                self._end(job, "STOPPED", request.answered.savepoint)

    def _count(self, kind: str) -> None:
        self.periodic += kind == "savepoint"
        if self.periodic > (self.now_us - self.begun_us) / PERIOD_US + 1:
            raise BrokenInvariantError(f"{self.periodic} periodic savepoints in {self.now_us - self.begun_us} us")

    def _rescale(self, job: Job, request: Request) -> None:
        if self.random.random() < 0.3:
            job.parallelism = request.ask.parallelism
            if request.ask.request in self.chosen:
                self.reached.add("autoscaled")
            request.answered = Answered("completed")
            self.reached.add("rescale")

    # -- people ---------------------------------------------------------------------------------------------------------

    def edit(self) -> None:
        """Somebody changes something."""
        if self.stored is None or self.stored.deleting:
            return
        change = self.random.choice(
            (
                "version",
                "version",
                "version",
                "parallelism",
                "suspend",
                "resume",
                "resume",
                "nonce",
                "mode",
                "elsewhere",
            )
        )
        self.reached.add(f"edit {change}")
        getattr(self, f"_edit_{change}")()

    def change(self, **changes: Any) -> None:
        """The spec is applied with these changes."""
        assert self.stored is not None
        spec = msgspec.structs.replace(self.stored.spec, **changes)
        self.put(spec, self.stored.generation + 1)

    def put(self, spec: JobSpec, generation: int, *, deleting: bool = False) -> None:
        """Kubernetes has another version of the resource."""
        assert self.stored is not None
        self.stored = Stored(self.stored.version + 1, spec, generation, self.stored.status, deleting)
        self.past.append(self.stored)

    def _edit_version(self) -> None:
        assert self.stored is not None
        number = str(self.stored.generation)
        self.reasons += 2  # it, and the last stable one if it fails
        self.change(parameters={"kind": self.random.choice(KINDS), "n": number})

    def _edit_parallelism(self) -> None:
        assert self.stored is not None
        if self.stored.status.failed or not any(job.alive for job in self.jobs.values()):
            self.reasons += 2  # another parallelism is another attempt
        self.change(parallelism=self.random.randrange(1, 4))

    def _edit_suspend(self) -> None:
        self.reasons += 2
        self.change(state="suspended")

    def _edit_resume(self) -> None:
        self.change(state="running")

    def _edit_nonce(self) -> None:
        assert self.stored is not None
        self.reasons += 2
        named = self.random.choice([*self.savepoints, ""]) if self.random.random() < 0.3 else ""
        self.named |= {named} - {""}
        self.change(restart_nonce=self.stored.spec.restart_nonce + 1, from_savepoint=named)

    def _edit_mode(self) -> None:
        if not self._is_stateless():
            self.change(upgrade_mode=self.random.choice(STATEFUL))

    def _edit_elsewhere(self) -> None:
        """Somebody ends the job without the operator."""
        for job in [job for job in self.jobs.values() if job.alive and self.random.random() < 0.2]:
            self._end(job, "CANCELED", None)
            self.meddled = True

    def delete(self) -> None:
        """Somebody deletes the resource."""
        assert self.stored is not None
        self.put(self.stored.spec, self.stored.generation + 1, deleting=True)

    # -- operators ------------------------------------------------------------------------------------------------------

    def operator(self, *, calm: bool = False) -> Iterator[None]:
        """One pass of an operator; between any two things that it does others may act, or it may die."""
        if self.stored is None:
            return
        read = self.stored
        if not calm and self.random.random() < 0.3:  # an old copy
            read = self.random.choice(self.past[-6:])
        seen = self._observed(read)
        yield
        decision = decide(
            read.spec, read.status, seen, self.now_us, uid=UID, generation=read.generation, deleting=read.deleting
        )  # fmt: skip
        yield
        if self.stored is None or self.stored.version != read.version:
            self.reached.add("conflict")
            return
        if decision.status != read.status:
            self.stored = Stored(read.version + 1, read.spec, read.generation, decision.status, read.deleting)
            self.past.append(self.stored)
            self._note(decision.status)
        yield
        for action in decision.actions:
            self._act(action)
            yield
        if decision.released:
            self._release()

    def _note(self, status: JobStatus) -> None:
        """What is written down may be done."""
        if status.last_stable is not None and status.last_stable.version.parameters["kind"] not in (GOOD, CRASHING):
            raise BrokenInvariantError("a version counts as stable that never ran")
        if status.step is not None:
            self.written.add(status.step.request)
            self.chosen |= {status.step.request} if status.step.why == AUTOSCALER else set()

    def _check_written(self, request: str) -> None:
        if request not in self.written:
            raise BrokenInvariantError(f"{request} is done, and was not written down: nobody else would know of it")

    def _observed(self, read: Stored) -> Observed:
        status = read.status
        starting, deployed = status.starting, status.deployed
        submitter = self.submitters.get(starting.job, ("absent",))[0] if starting is not None else "absent"
        alive = [job.deployed.job for job in self.jobs.values() if job.alive]
        named = read.spec.from_savepoint
        there = self._point(named) if named in self.savepoints else None
        unheard = self.random.random() < 0.2  # the cluster has accepted it since it was looked at
        return Observed(
            given=there, given_problem="" if there is not None or not named else f"there is no savepoint {named}",
            problem="no answer" if self.random.random() < 0.05 else "",
            job=self._seen(deployed), starting=None if unheard else self._seen(starting),
            answer=self._answered(status.step),
            submitter=submitter, submitter_problem="raised ValueError" if submitter == "failed" else "",
            strays=tuple(job for job in status.given_up if job in alive), gone=frozenset(self.gone),
            loads=self._measured(deployed),
        )  # fmt: skip

    def _measured(self, deployed: Deployed | None) -> tuple[LoadSample, ...]:
        """A job that has too little to do or too much; at last, when nothing fails any more, work for three subtasks."""
        job = self.jobs.get(deployed.job) if deployed is not None else None
        if job is None or job.state != "RUNNING":
            return ()
        busy = self.load.choice((0.1, 0.6, 1.0)) if self.failures else min(1.0, 1.8 / job.parallelism)
        worked = round(busy * TICK_US)
        counts = [
            VertexCounts("v", "read", job.parallelism, ((n * worked, n * TICK_US),), ("worker",), n * 100)
            for n in (1, 2)
        ]
        ages = (TICK_US, 0)
        return tuple(LoadSample(self.now_us - a, 0, job.parallelism, (c,)) for a, c in zip(ages, counts, strict=True))

    def _point(self, manifest: str) -> StartPoint:
        _, number, kind = manifest.split("/")
        return StartPoint(manifest=manifest, checkpoint=int(number), savepoint=kind == "True")

    def _seen(self, deployed: Deployed | None) -> JobSeen | None:
        job = self.jobs.get(deployed.job) if deployed is not None else None
        if job is None:
            return None
        return JobSeen(
            job.state, job.parallelism, all_running=job.state == "RUNNING", last_checkpoint=job.checkpoint,
            reason="it failed" if job.state == "FAILED" else "", left=job.left,
        )  # fmt: skip

    def _answered(self, step: Step | None) -> Answered:
        if step is None:
            return Answered()
        if step.kind == "submit":
            return self.submissions.get(step.request, Answered())
        request = self.requests.get(step.request)
        return request.answered if request is not None else Answered()

    def _act(self, action: Action) -> None:
        match action:
            case Submit(deployed):
                self._check_written(deployed.job)
                self.submitters.setdefault(deployed.job, ("working", deployed))
            case Halt(deployed):
                if self.submitters.get(deployed.job, ("working",))[0] == "working":
                    self.submitters[deployed.job] = ("halted", deployed)
                    self.reached.add("halted")
            case Ask(job=job, request=request):
                self._check_written(request)
                if job in self.jobs and self.jobs[job].alive:
                    self.requests.setdefault(request, Request(action))
            case Dispose(manifest):
                self.reached.add("dispose")
                if self.stored is not None and manifest == self.stored.status.savepoints[-1].manifest:
                    raise BrokenInvariantError(f"the newest savepoint is disposed of: {manifest}")
                self.savepoints.pop(manifest, None)
                self.gone.add(manifest)

    def _release(self) -> None:
        self.reached.add("released")
        if any(job.alive for job in self.jobs.values()):
            raise BrokenInvariantError("the resource is gone, and its job is not")
        if any(answer.state == "pending" for answer in self.submissions.values()):
            raise BrokenInvariantError("the resource is gone, and a job of it will begin")
        self.stored = None

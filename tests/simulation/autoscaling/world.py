"""A job under a load that changes, and an operator that looks at it, decides, and may die in between.

Rows wait in a queue, as in a topic; a vertex needs so much time for a row, and those in a slot share one processor; a
rescaled job reads nothing for a while.
What is measured is noisy, and at times missing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock_operator.autoscaling import LoadSample, VertexCounts, kept_us
from penstock_operator.decision import decide
from penstock_operator.resources import Autoscaler, JobSpec, JobStatus, Source
from penstock_operator.terms import Answered, Ask, JobSeen, Observed, Submit

STEP_S = 10
SECOND_US = 1_000_000
MINUTE_S = 60
SCALER = Autoscaler(
    max_parallelism=16, metrics_window="2m", stabilization_interval="1m", scale_down_interval="10m", restart_time="30s",
    catch_up_duration="10m",
)  # fmt: skip
SPEC = JobSpec(cluster="c", source=Source(file="f.py"), autoscaler=SCALER)


@dataclass(frozen=True)
class Costs:
    """What work costs."""

    read_s: float = 0.0004
    """Per row that the source reads."""
    window_s: float = 0.002
    """Per row that comes to the window."""
    kept: float = 0.8
    """Share of the rows that come to the window."""
    hottest: float = 0.0
    """Share of the window's rows that are of one key: a higher parallelism does not divide them."""
    splits: int = 0
    """Of the source, each of which one subtask reads; 0: as many as there are subtasks."""
    last_s: float = 0.0
    """Per row that the window emits, at the parallelism of the job."""
    fixed_s: float = 0.0
    """Per row that the window emits, a tenth of what comes: a last vertex has parallelism 1, whatever the job's is."""


@dataclass
class LoadedJob:
    """A job under load."""

    seed: int
    written: Callable[[float], float]
    """Rows a second, by the time in seconds."""
    costs: Costs = field(default_factory=Costs)
    spec: JobSpec = SPEC
    noise: float = 0.0
    missing: float = 0.0
    """How likely a measurement is."""
    deaths: float = 0.0
    """How likely an operator dies in a pass: after it has decided, or before it has done what it has decided."""
    slots: int | None = None
    """Of the cluster, of which no other job has any; None if that is not known."""
    refuses: str = ""
    """Why the cluster does not rescale the job."""
    behind: float = 0.0
    """Rows that wait."""
    batch_s: int = STEP_S
    """How long a subtask works on a batch, which counts when it is done with it."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.at_s = 0.0
        self.status = JobStatus()
        self.parallelism = self.spec.parallelism
        self.running_since_s = 0.0
        self.asked: dict[str, Ask] = {}
        self.rescales: list[tuple[float, int, int]] = []
        """When, from what, to what."""
        self.decided: list[tuple[float, str, str]] = []
        """Events: when, reason, message."""
        self.late_s = 0.0
        """The longest that a row has waited: what waits, by what is written."""
        self.memory: list[LoadSample] = []
        self._counters: dict[str, tuple[int, int, int]] = {}
        """Of each vertex since the job began to run: how long it has worked, how long altogether, rows."""
        self._reported: dict[str, tuple[int, int, int]] = {}
        """The same when the last batch was done."""
        self._deploy()

    def _deploy(self) -> None:
        starting = decide(self.spec, JobStatus(), Observed(), 0, uid="u", generation=1)
        assert isinstance(starting.actions[0], Submit)
        deployed = msgspec.structs.replace(starting.actions[0].deployed, stable=True)
        self.status = JobStatus(deployed=deployed, nonce=0, counter=1, job_state="RUNNING")

    @property
    def now_us(self) -> int:
        """The time."""
        return 10**12 + round(self.at_s * SECOND_US)

    def run(self, until_s: float) -> LoadedJob:
        """Let time pass."""
        while self.at_s < until_s:
            self.at_s += STEP_S
            sample = self._works()
            self._look(sample)
        return self

    def change(self, **changes: Any) -> None:
        """Somebody applies another spec."""
        self.spec = msgspec.structs.replace(self.spec, **changes)

    # -- the job --------------------------------------------------------------------------------------------------------

    def capacity(self, parallelism: int) -> float:
        """Rows a second that it can read."""
        return 1 / sum(self._busy_of(1.0, parallelism))

    def _busy_of(self, rows: float, parallelism: int) -> tuple[float, float, float]:
        """How much of their time the subtasks in the busiest slot work at this rate."""
        costs = self.costs
        dealt = math.ceil(costs.splits / parallelism) / costs.splits if costs.splits else 1 / parallelism
        share = max(dealt, costs.hottest)
        window = rows * costs.kept * costs.window_s * share
        last = rows * costs.kept * 0.1 * (costs.fixed_s + costs.last_s / parallelism)
        return rows * costs.read_s * dealt, window, last

    def _works(self) -> LoadSample | None:
        self.behind += self.written(self.at_s) * STEP_S
        if self.at_s < self.running_since_s:
            self._note_lag()
            return None
        rows = min(self.behind / STEP_S, self.capacity(self.parallelism))
        self.behind -= rows * STEP_S
        self._note_lag()
        self._count(rows)
        return None if self.random.random() < self.missing else self._measured(rows)

    def _note_lag(self) -> None:
        self.late_s = max(self.late_s, self.behind / max(1.0, self.written(self.at_s)))

    def _count(self, rows: float) -> None:
        """What each vertex has done in this step; noise, as work is not the same for every row."""
        came = (rows, rows * self.costs.kept, rows * self.costs.kept * 0.1)
        for name, busy, each in zip(("v0", "v1", "v2"), self._busy_of(rows, self.parallelism), came, strict=True):
            worked, total, counted = self._counters.get(name, (0, 0, 0))
            if name == "v0" and self.behind > 0 and not (self.costs.hottest or self.costs.fixed_s):
                busy = 1.0  # nothing holds it up, there is always something to read, and meanwhile the others work
            noisy = min(1.0, max(0.0, busy * (1 + self.random.gauss(0, self.noise))))
            now = (
                worked + round(noisy * STEP_S * SECOND_US),
                total + STEP_S * SECOND_US,
                counted + round(each * STEP_S),
            )
            self._counters[name] = now
        if self.at_s % self.batch_s == 0:
            self._reported = dict(self._counters)

    def _measured(self, rows: float) -> LoadSample:
        def counts(name: str, words: str, parallelism: int, source: str = "", **more: Any) -> VertexCounts:
            worked, total, counted = self._reported.get(name, (0, 0, 0))
            inputs = ((source, counted),) if source else ()
            return VertexCounts(name, words, parallelism, ((worked, total),), ("worker",), counted, inputs, **more)

        vertices = (
            counts("v0", "read", self.parallelism, behind=self._waiting(rows)),
            counts("v1", "window", self.parallelism, "v0"),
            counts("v2", "last", 1 if self.costs.fixed_s else self.parallelism, "v1", scales=not self.costs.fixed_s),
        )
        since_us = 10**12 + round(self.running_since_s * SECOND_US)
        return LoadSample(self.now_us, since_us, self.parallelism, vertices)

    def _waiting(self, rows: float) -> int:
        """What waits, as it was a moment before or after."""
        return max(0, round(self.behind + rows * STEP_S * self.random.gauss(0, self.noise)))

    # -- the operator ---------------------------------------------------------------------------------------------------

    def _look(self, sample: LoadSample | None) -> None:
        if sample is not None:
            self.memory.append(sample)
        self.memory = [one for one in self.memory if one.at_us > self.now_us - kept_us(SCALER)]
        if self.random.random() < self.deaths:
            self.memory = []
        step = self.status.step
        answer = Answered() if step is None or step.request not in self.asked else self._answer(step.request)
        runs = self.at_s >= self.running_since_s
        job = JobSeen(
            "RUNNING" if runs else "RESTARTING", self.parallelism, all_running=runs, last_checkpoint=5,
            behind=round(self.behind),
        )  # fmt: skip
        spare = None if self.slots is None else self.slots - self.parallelism
        seen = Observed(job=job, answer=answer, loads=tuple(self.memory), spare_slots=spare)
        decision = decide(self.spec, self.status, seen, self.now_us, uid="u", generation=1)
        if self.random.random() < self.deaths:
            return  # before it was written
        self.status = decision.status
        self.decided += [(self.at_s, event.reason, event.message) for event in decision.events]
        if self.random.random() < self.deaths:
            return  # before it was done
        for action in decision.actions:
            assert isinstance(action, Ask)
            self._ask(action)

    def _ask(self, ask: Ask) -> None:
        if ask.request in self.asked:
            return
        self.asked[ask.request] = ask
        assert ask.kind == "rescale"
        if not self.refuses:
            self.rescales.append((self.at_s, self.parallelism, ask.parallelism))
            self.parallelism = ask.parallelism
            self._counters, self._reported = {}, {}
            self.running_since_s = self.at_s + self.random.uniform(5, 25)

    def _answer(self, request: str) -> Answered:
        if self.refuses:
            return Answered("refused", self.refuses)
        return Answered("completed" if self.at_s >= self.running_since_s else "pending")

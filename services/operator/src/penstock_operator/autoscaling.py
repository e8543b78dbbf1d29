"""Which parallelism a job needs: a function of its load, of what was made of that before, and of the time. No I/O.

The model is that of Flink's operator (FLIP-271) and of DS2 (Kalavri et al., OSDI 2018). A vertex whose subtasks work a
share `busy` of their time on `rows` rows a second could work on `rows / busy`, its true processing rate. What it should
be able to do follows from the sources: what is written to them (what they read, and by how much they fall behind), what
they have to catch up with, and from there on, vertex by vertex, the rows that go out for those that come in. Flink
scales vertex by vertex, and its subtasks have threads of their own. A job here is scaled as a whole, and the subtasks in
a slot share a process that does one thing at a time: so what has to fit is the work of all of them, and the job gets what
the slot wants that wants most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression
from typing import Any, Final

import msgspec

from penstock.core.times import duration_us
from penstock_operator.resources import Autoscaler, AutoscalerState, AutoscalerStatus, Ineffective, Rescale, rfc3339

HOLE_US: Final = 30_000_000
"""Where measurements are missing for longer, those before do not count."""
THRESHOLD: Final = 0.1
"""A higher parallelism that brings less than this share of what it should bring is ineffective, as in Flink."""
INEFFECTIVE_US: Final = 6 * 3_600_000_000
"""So long nothing higher is tried then."""
ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class VertexCounts:
    """What a vertex of the job graph has done since its subtasks began.

    Counters, and not rates of the last seconds: a subtask counts a batch when it is done with it, and that may take long.
    """

    id: str
    name: str
    parallelism: int
    spent_us: tuple[tuple[int, int], ...]
    """Of each subtask how long it has worked, and how long altogether: worked, waited for input, or been held up."""
    workers: tuple[str, ...]
    """Of each subtask the process that it shares with others."""
    rows: int
    """Rows that have come in; of a source: that it has read, bad ones included, because `behind` counts those, too."""
    inputs: tuple[tuple[str, int], ...] = ()
    """Vertices that rows come from, and how many those have sent."""
    behind: int | None = None
    """Of a source: records that are there and not read; None where it cannot tell."""
    scales: bool = True
    """Whether its parallelism is that of the job; else it has one of its own."""
    key_groups: int = 128
    """No parallelism is higher."""
    slot_group: str = "default"


@dataclass(frozen=True, slots=True)
class VertexLoad:
    """What it does on average."""

    counts: VertexCounts
    """The newest."""
    busy: tuple[float, ...]
    """Of each subtask the share of its time that it works."""
    rows: float
    """Rows a second."""
    inputs: tuple[tuple[str, float], ...]
    """Vertices that rows come from, and how many a second those send."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """A job as it was measured once."""

    at_us: int
    running_since_us: int
    """When the last of its subtasks began to run."""
    parallelism: int
    vertices: tuple[VertexCounts, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What follows from the load."""

    parallelism: int
    """What the job should run at."""
    status: AutoscalerStatus


def problem_of(spec: Autoscaler, parallelism: int) -> str:
    """Why it makes no sense, beyond what Kubernetes checks; empty if it does.

    Raises:
        PipelineError: a duration is none.
    """
    for name, text, positive in (
        ("metricsWindow", spec.metrics_window, True),
        ("stabilizationInterval", spec.stabilization_interval, False),
        ("scaleDownInterval", spec.scale_down_interval, False),
        ("catchUpDuration", spec.catch_up_duration, False),
        ("restartTime", spec.restart_time, False),
    ):
        duration_us(text, f"autoscaler.{name}", positive=positive)
    if not 0 < spec.utilization_min < spec.utilization_target < spec.utilization_max:
        return (
            f"autoscaler: utilizationMin ({spec.utilization_min}), utilizationTarget ({spec.utilization_target}) and "
            f"utilizationMax ({spec.utilization_max}) must each be higher than the one before, the first than 0"
        )
    if not spec.min_parallelism <= parallelism <= spec.max_parallelism:
        return (
            f"parallelism ({parallelism}) must lie between autoscaler.minParallelism ({spec.min_parallelism}) and "
            f"autoscaler.maxParallelism ({spec.max_parallelism}): the job starts with it"
        )
    return ""


def kept_us(spec: Autoscaler) -> int:
    """How long measurements are needed."""
    return duration_us(spec.metrics_window) + 2 * HOLE_US


def measured_status(before: AutoscalerStatus | None, said: int, job: str, now_us: int) -> AutoscalerStatus:
    """What was made of the load of this job.

    Where somebody has said another parallelism, that counts, and nothing that was chosen before. Of another job it is not
    known what it does, but what was chosen for the one before counts.
    """
    if before is None or before.instead_of != said:
        return AutoscalerStatus(instead_of=said, job=job, since_us=now_us)
    if before.job == job:
        return before
    chosen = before.parallelism
    return AutoscalerStatus(
        instead_of=said, parallelism=chosen, recommended_parallelism=chosen, job=job, since_us=now_us,
        last_rescale=before.last_rescale,
    )  # fmt: skip


def evaluate(
    spec: Autoscaler, before: AutoscalerStatus, samples: Sequence[LoadSample], spare_slots: int | None, now_us: int
) -> Evaluation:
    """What a job should run at, whose subtasks all run and of which nothing else is wanted.

    Args:
        spec: how the user wants it scaled.
        before: what was made of its load last.
        samples: measurements, oldest first; the last one is of the parallelism that it runs at.
        spare_slots: slots that it could have besides its own, those of task managers that may come among them; None if
            that is not known.
        now_us: the time.
    """
    return _Evaluating(spec, before, samples, spare_slots, now_us).evaluation()


class _Evaluating:
    def __init__(
        self, spec: Autoscaler, before: AutoscalerStatus, samples: Sequence[LoadSample], spare: int | None, now_us: int
    ) -> None:
        self._spec, self._before, self._samples, self._spare, self._now_us = spec, before, samples, spare, now_us
        self._window_us = duration_us(spec.metrics_window)
        self._parallelism = samples[-1].parallelism if samples else 0
        self._changes: dict[str, Any] = {"parallelism": 0} if spec.dry_run else {}
        self._unjudged: Rescale | None = None
        """The rescale that has led here, if it has brought nothing and was too small to say that nothing will."""

    def evaluation(self) -> Evaluation:
        problem, used = self._window()
        if problem:
            return self._said("Collecting", problem)
        load = _Load(self._spec, used)
        if not load.scaling:
            return self._said("Limited", "every operator has a parallelism of its own")
        return self._evaluated(load)

    def _said(self, state: AutoscalerState, reason: str, parallelism: int | None = None) -> Evaluation:
        status = msgspec.structs.replace(self._before, state=state, reason=reason, **self._changes)
        return Evaluation(self._parallelism if parallelism is None else parallelism, status)

    # -- measurements ---------------------------------------------------------------------------------------------------

    def _window(self) -> tuple[str, list[LoadSample]]:
        """The measurements that count; or why there are too few."""
        if not self._samples or self._now_us - self._samples[-1].at_us > HOLE_US:
            return "the cluster has not measured what the job does lately", []
        settled_us = self._samples[-1].running_since_us + duration_us(self._spec.stabilization_interval)
        since_us = max(self._before.since_us, settled_us)
        counted = self._unbroken(since_us)
        begins_us = counted[0].at_us if counted else since_us
        if len(counted) < 2 or begins_us > self._now_us - self._window_us:
            full = rfc3339(begins_us + self._window_us)
            return f"measurements count from {rfc3339(begins_us)} on, and are complete at {full}", []
        first = max(n for n, sample in enumerate(counted) if sample.at_us <= self._now_us - self._window_us)
        used = counted[min(first, len(counted) - 2) :]  # two, if the window is shorter than the time between two looks
        return "", used

    def _unbroken(self, since_us: int) -> list[LoadSample]:
        """Those since then, as far back as there is no hole, the same subtasks ran, and the clock went forwards."""
        found: list[LoadSample] = []
        newest = self._samples[-1]
        for sample in reversed(self._samples):
            later_us = found[-1].at_us if found else self._now_us + 1
            others = (sample.parallelism, sample.running_since_us) != (newest.parallelism, newest.running_since_us)
            broken = others or not 0 < later_us - sample.at_us <= HOLE_US
            if broken or sample.at_us < since_us:
                break
            found.append(sample)
        return found[::-1]

    # -- what follows from them -----------------------------------------------------------------------------------------

    def _evaluated(self, load: _Load) -> Evaluation:
        now = self._parallelism
        too_many, _ = load.needed(self._spec.utilization_min)
        too_few, hottest = load.needed(self._spec.utilization_max)
        target = math.ceil(load.needed(self._spec.utilization_target, restarts=True)[0] - ROUNDING)
        in_vain = self._judge(load)
        if too_few > now + ROUNDING:
            if in_vain:
                self._note_in_vain(load)
            return self._up(load, max(target, now), load.described(hottest, now))
        if (slow := load.stuck()) is not None:  # it may wait for the event time of another one: that asks for more then
            return self._said("Collecting", f"source {slow!r} has records to read, and reads none")
        if too_many < now - ROUNDING and target < now:
            return self._down(load, target, load.described(hottest, now))
        self._changes |= {"recommended_parallelism": now, "scale_down_since_us": 0, "scale_down_to": 0}
        return self._said("Balanced", load.described(hottest, now))

    def _up(self, load: _Load, target: int, why: str) -> Evaluation:
        most, limit = self._most(load)
        wished = min(target, max(most, self._parallelism))
        self._changes |= {"recommended_parallelism": wished, "scale_down_since_us": 0, "scale_down_to": 0}
        if self._unjudged is not None:
            wished = min(max(wished, 2 * self._unjudged.base), max(most, self._parallelism))
        tried = self._changes.get("ineffective", self._before.ineffective)
        if tried is not None and self._now_us - tried.since_us < INEFFECTIVE_US and wished > tried.parallelism:
            wished = max(self._parallelism, tried.parallelism)
            self._changes["recommended_parallelism"] = wished
            if wished == self._parallelism:
                why = f"{why}; more than parallelism {tried.parallelism} did not make it faster"
                return self._said("Ineffective", why)
        if wished == self._parallelism:
            return self._said("Limited", f"{why}; parallelism {target} would be needed, and {limit}")
        return self._rescaled("ScaleUp", load, wished, why)

    def _most(self, load: _Load) -> tuple[int, str]:
        """The highest parallelism that there may be, and what forbids more."""
        groups = min(vertex.counts.key_groups for vertex in load.scaling)
        limits = [
            (self._spec.max_parallelism, f"autoscaler.maxParallelism is {self._spec.max_parallelism}"),
            (groups, f"the job has {groups} key groups"),
        ]
        if self._spare is not None:
            slots = load.affordable(self._parallelism, self._spare)
            limits.append((slots, f"the cluster has slots for {slots}"))
        return min(limits)

    def _judge(self, load: _Load) -> bool:
        """Whether the rescale that has led here made the job no faster. One that did is no longer judged: that rows cost
        more one day is no fault of it."""
        last, known = self._before.last_rescale, self._before.ineffective
        if last is None or last.at_us < self._before.since_us or not last.base < last.after == self._parallelism:
            return False
        if known is not None and known.since_us >= last.at_us:
            return False
        expected = last.capacity * (last.after / last.base - 1)
        in_vain = load.capacity - last.capacity < THRESHOLD * expected
        if not in_vain:
            self._changes["last_rescale"] = msgspec.structs.replace(last, base=last.after)
        return in_vain

    def _note_in_vain(self, load: _Load) -> None:
        """Nothing higher is tried.

        Splits and keys are dealt to subtasks whole: of four partitions two subtasks read two each, and of three one still
        reads two. Only twice as many subtasks have less to do for certain.
        """
        last = self._before.last_rescale
        assert last is not None
        if last.after < 2 * last.base and not load.waits_for_fixed:
            self._unjudged = last
        else:
            self._changes["ineffective"] = Ineffective(parallelism=last.base, since_us=self._now_us)

    def _down(self, load: _Load, target: int, why: str) -> Evaluation:
        target = max(target, min(self._spec.min_parallelism, self._parallelism))
        if target == self._parallelism:
            self._changes |= {"recommended_parallelism": target, "scale_down_since_us": 0, "scale_down_to": 0}
            return self._said("Limited", f"{why}; autoscaler.minParallelism is {self._spec.min_parallelism}")
        since_us = self._before.scale_down_since_us or self._now_us
        highest = max(self._before.scale_down_to, target)
        self._changes |= {
            "recommended_parallelism": target, "scale_down_since_us": since_us, "scale_down_to": highest,
        }  # fmt: skip
        due_us = since_us + duration_us(self._spec.scale_down_interval)
        if self._now_us < due_us:
            return self._said("ScaleDownDelayed", f"{why}; it is scaled down at {rfc3339(due_us)} if that stays so")
        return self._rescaled("ScaleDown", load, highest, why)

    def _rescaled(self, state: AutoscalerState, load: _Load, parallelism: int, why: str) -> Evaluation:
        if self._spec.dry_run:
            self._changes["recommended_parallelism"] = parallelism
            return self._said(state, why)
        judged = self._unjudged
        at = Rescale(
            at_us=self._now_us, time=rfc3339(self._now_us), before=self._parallelism, after=parallelism,
            base=self._parallelism if judged is None else judged.base,
            capacity=round(load.capacity, 3) if judged is None else judged.capacity,
        )  # fmt: skip
        self._changes |= {
            "recommended_parallelism": parallelism, "parallelism": parallelism, "last_rescale": at,
            "since_us": self._now_us, "scale_down_since_us": 0, "scale_down_to": 0,
        }  # fmt: skip
        return self._said(state, why, parallelism)


class _Load:
    """The averages of a window."""

    def __init__(self, spec: Autoscaler, samples: Sequence[LoadSample]) -> None:
        self._catch_up_us, self._restart_us = duration_us(spec.catch_up_duration), duration_us(spec.restart_time)
        seconds = (samples[-1].at_us - samples[0].at_us) / 1_000_000
        before = {vertex.id: vertex for vertex in samples[0].vertices}
        vertices = [_average(before[vertex.id], vertex, seconds) for vertex in samples[-1].vertices]
        self._by_id = {vertex.counts.id: vertex for vertex in vertices}
        self.scaling = [vertex for vertex in vertices if vertex.counts.scales]
        self._fixed = [vertex for vertex in vertices if not vertex.counts.scales]
        self._sources = {vertex.counts.id: vertex for vertex in vertices if not vertex.inputs}
        trends = {source: _trend(source, samples) for source in self._sources}
        self._behind = {source: behind for source, (behind, _) in trends.items()}
        self._written = {name: max(0.0, one.rows + trends[name][1]) for name, one in self._sources.items()}
        """Rows a second that a source would have to read not to fall behind."""
        self._processes = _shared(self.scaling)
        busiest = max((_work(_one_at_a_time(shares)) for shares in self._processes.values()), default=0.0)
        fixed = max((max(vertex.busy) for vertex in self._fixed), default=0.0)
        self.waits_for_fixed = fixed > busiest
        """Whether what is busiest is a subtask of a vertex that has a parallelism of its own."""
        self.capacity = sum(one.rows for one in self._sources.values()) / max(busiest, fixed, ROUNDING)
        """Rows a second that the sources could bring, with the busiest process at work all the time."""

    def stuck(self) -> str | None:
        """The name of a source that reads nothing, although there is something."""
        idle = [name for name, one in self._sources.items() if one.rows <= 0]
        stuck = (name for name in idle if self._written[name] > 0 or self._behind[name] >= 1)
        return next((self._by_id[name].counts.name for name in stuck), None)

    def needed(self, utilization: float, *, restarts: bool = False) -> tuple[float, VertexLoad]:
        """The parallelism, not rounded, at which no process works more than this share of its time; and the vertex that
        the busiest of them would work for most.

        Catching up may take the rest of its time. `restarts`: what is not read during a rescale belongs to it.
        """
        growth = {source: self._growth(source, utilization, restarts) for source in self._sources}
        grown = {vertex.counts.id: self._grown(vertex.counts.id, growth) for vertex in self.scaling}
        wants = [
            [(vertex, share * grown[vertex.counts.id]) for vertex, share in _one_at_a_time(shares)]
            for shares in self._processes.values()
        ]
        most = max(wants, key=_work)
        hottest, _ = max(most, key=lambda one: one[1])
        return hottest.counts.parallelism * _work(most), hottest

    def _growth(self, source: str, utilization: float, restarts: bool) -> float:
        """How many times as much a source should be able to read as it reads."""
        rows, written = self._sources[source].rows, self._written[source]
        if rows <= 0:
            return 0.0
        wanted = written / utilization
        if self._catch_up_us:
            missed = self._behind[source] + (written * self._restart_us / 1_000_000 if restarts else 0.0)
            wanted += missed * 1_000_000 / self._catch_up_us
        return wanted / rows

    def _grown(self, vertex: str, growth: dict[str, float]) -> float:
        """The same of what comes to a vertex: the more of it comes from an input, the more that one counts."""
        if vertex not in growth:
            parts = [(self._grown(one, growth), rows) for one, rows in self._by_id[vertex].inputs]
            total = sum(rows for _, rows in parts)
            if total > 0:
                growth[vertex] = sum(factor * rows for factor, rows in parts) / total
            else:
                growth[vertex] = max(factor for factor, _ in parts)
        return growth[vertex]

    def affordable(self, parallelism: int, spare: int) -> int:
        """The highest parallelism that the slots are enough for."""
        slots = self._slots(parallelism) + spare
        groups = {vertex.counts.slot_group for vertex in self.scaling}
        highest = parallelism + spare // len(groups)
        while self._slots(highest + 1) <= slots:  # where a vertex with a parallelism of its own has slots to share
            highest += 1
        return highest

    def _slots(self, parallelism: int) -> int:
        """Slots of the job at this parallelism: of each group as many as its widest vertex has subtasks."""
        width: dict[str, int] = {}
        for vertex in self._by_id.values():
            subtasks = parallelism if vertex.counts.scales else vertex.counts.parallelism
            width[vertex.counts.slot_group] = max(width.get(vertex.counts.slot_group, 0), subtasks)
        return sum(width.values())

    def described(self, hottest: VertexLoad, parallelism: int) -> str:
        """The load as a sentence for people."""
        written, behind = sum(self._written.values()), sum(self._behind.values())
        late = f" and are {behind:,.0f} records behind" if behind >= 1 else ""
        share, _ = self.needed(1.0)
        beside = ""
        if self.waits_for_fixed:
            fixed = max(self._fixed, key=lambda one: max(one.busy))
            beside = f"; {fixed.counts.name!r} is busier ({max(fixed.busy):.0%}), and has a parallelism of its own"
        return (
            f"sources get {written:,.0f} rows/s{late}, for which the busiest slot has to work {share / parallelism:.0%} "
            f"of its time at parallelism {parallelism}, most of it for {hottest.counts.name!r}{beside}"
        )


_Shares = list[tuple[VertexLoad, float]]
"""Vertices that have a subtask in a process, and the share of its time that each of them works."""


def _shared(vertices: Sequence[VertexLoad]) -> dict[str, _Shares]:
    """By process."""
    found: dict[str, _Shares] = {}
    for vertex in vertices:
        for worker, share in zip(vertex.counts.workers, vertex.busy, strict=True):
            found.setdefault(worker, []).append((vertex, share))
    return found


def _work(shares: _Shares) -> float:
    return sum(share for _, share in shares)


def _one_at_a_time(shares: _Shares) -> _Shares:
    """A subtask that waits in the middle of its work, for a thread or a server, counts that as work, and meanwhile others
    work: altogether a process works no more than all the time."""
    work = max(1.0, _work(shares))
    return [(vertex, share / work) for vertex, share in shares]


def _average(before: VertexCounts, after: VertexCounts, seconds: float) -> VertexLoad:
    """What a vertex did in between."""
    spent = [(b - a, d - c) for (a, c), (b, d) in zip(before.spent_us, after.spent_us, strict=True)]
    # Who counts nothing at all has worked all the time, on one piece of work.
    busy = tuple(worked / total if total > 0 else 1.0 for worked, total in spent)
    sent = dict(before.inputs)
    inputs = tuple((name, max(0, rows - sent[name]) / seconds) for name, rows in after.inputs)
    return VertexLoad(after, busy, max(0, after.rows - before.rows) / seconds, inputs)


def _trend(source: str, samples: Sequence[LoadSample]) -> tuple[float, float]:
    """How many records it is behind now, and how many more that become a second; 0 where it cannot tell."""
    known = [
        (sample.at_us / 1_000_000, one.behind)
        for sample in samples
        for one in sample.vertices
        if one.id == source and one.behind is not None
    ]
    if len(known) < 2:
        return float(known[-1][1]) if known else 0.0, 0.0
    began_s = known[0][0]
    slope, start = linear_regression([at - began_s for at, _ in known], [behind for _, behind in known])
    return max(0.0, start + slope * (known[-1][0] - began_s)), slope

"""Rows that come on too slowly: the backpressure chain to its cause, skew, calls that wait, input that limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.cli.diagnosis.facts import JobFacts, JobFinding, Load, named, operators
from penstock.coordination.cluster_view import TaskRates, TaskView
from penstock.protocol.keygroups import key_group_range

LOW: Final = 0.1
"""Shares of its time that a subtask is held up: Flink's levels, above 0.1 LOW and above 0.5 HIGH."""
HIGH: Final = 0.5
BUSY: Final = 0.5
"""Who works for so much of its time can hold up others: Flink's advice looks for the like."""
FULL: Final = 0.95
"""Who works for so much of its time takes no more, whether or not anybody is held up yet."""
UNEVEN: Final = 0.3
"""By so much of its time must one subtask be busier than the others are on average, to be alone the cause."""
SKEW: Final = 1.5
"""So many times the mean of the rows must it have, to be busier because of them."""
BEHIND_S: Final = 10
BEHIND_RECORDS: Final = 1_000
"""Who has less to read than that, or than it reads in so many seconds, does not lag."""
CALLING: Final = ("map_async", "lookup_join")
"""Verbs whose rows wait for answers."""
_PAGE: Final = "docs/operating.md"


def lags(facts: JobFacts) -> bool:
    """Whether more waits in the sources than is read in a few seconds."""
    behind = facts.records_behind() or 0
    return behind > max(BEHIND_RECORDS, BEHIND_S * sum(load.rate for load in facts.sources))


def amidst(facts: JobFacts) -> Iterator[JobFinding]:
    """Processes that are in the midst of one batch or call: nothing else in them comes on, nor is anything heard of it.

    Which of their subtasks it is nobody can tell.
    """
    found: dict[str, list[str]] = {}
    for load in facts.loads.values():
        for task in load.amidst:
            found.setdefault(task.worker, []).append(f"{load.vertex.id}[{task.index}]")
    for worker, subtasks in found.items():
        here = [load for load in facts.loads.values() if any(task.worker == worker for task in load.amidst)]
        names = " or ".join(load.name for load in here if not load.vertex.publishes)
        yield JobFinding(
            "long call", ok=False,
            seen=f"{named(subtasks)} on worker {worker or 'unknown'} have accounted for no time for some seconds"
            + _lag(facts),
            meaning="One of them is in the midst of a batch or a call of yours that takes that long; all others in its "
            f"process wait, and so do checkpoints. It is in {names or 'the sink'}.",
            advice="Look for the function that takes long per row, or does not return: the whole batch is done before "
            f"anything is told. penstock logs {facts.detail.summary.job[:8]} --workers shows what it has logged.",
            doc=f"{_PAGE}#slow-and-lagging-jobs",
        )  # fmt: skip


def bottleneck(facts: JobFacts) -> Iterator[JobFinding]:
    """Whom backpressure comes from, once for each; of a source that lags and waits for nobody, itself."""
    level = LOW if lags(facts) else HIGH
    chains: dict[str, list[Load]] = {}
    for load in facts.loads.values():
        if load.blocked >= level:
            chain = _chain(facts, load)
            chains.setdefault(chain[-1].vertex.id, chain)  # the first one found is the longest: sources come first
    if lags(facts) and not chains:
        chains = {load.vertex.id: [load] for load in facts.loads.values() if load.busy >= BUSY and load.records_behind}
    for load in facts.loads.values():  # what waits in an exchange holds up nobody until its credit is used up
        if load.busy >= FULL and load.blocked < LOW and not load.vertex.is_source:
            chains.setdefault(load.vertex.id, [load])
    for chain in chains.values():
        if not chain[-1].amidst:  # which is told of already
            yield _cause(facts, chain)


def _chain(facts: JobFacts, load: Load) -> list[Load]:
    """From a vertex that is held up along those that are, to the one that holds them up."""
    chain = [load]
    while True:
        after = [other for other in facts.consumers(chain[-1]) if other not in chain]
        held = [other for other in after if other.blocked >= LOW]
        if held:
            chain.append(max(held, key=lambda other: other.blocked))
            continue
        working = [other for other in after if other.busy >= BUSY or _backlog(other)]
        if not working and _calls_others(chain[-1]):
            return chain
        return [*chain, max(working or after, key=lambda other: (_backlog(other), other.busy))] if after else chain


def _calls_others(load: Load) -> bool:
    """Whether rows wait there for answers to calls, as many as may be at a time."""
    return any(operator.verb in CALLING for operator in load.vertex.operators)


def _backlog(load: Load) -> int:
    """Bytes that wait to be published, of a vertex that publishes."""
    return sum(task.progress.unpublished_bytes or 0 for task in load.tasks) if load.vertex.delivers else 0


def _cause(facts: JobFacts, chain: list[Load]) -> JobFinding:
    cause = chain[-1]
    seen = _held_up(chain) + _lag(facts)
    if _backlog(cause) and (cause.vertex.publishes or cause.blocked >= LOW):  # splits always have a little to publish
        return _slow_sink(cause, seen)
    if cause.blocked >= LOW and _calls_others(cause):
        return _calls(cause, seen)
    if cause.busy < BUSY:
        return _unclear(facts, cause, seen)
    return _uneven(cause, seen) or _slow(facts, cause, seen)


def _held_up(chain: list[Load]) -> str:
    *held, cause = chain
    links = [f"{load.name} is held up for {load.blocked:.0%} of its time" for load in held]
    links.append(f"{cause.name} works for {cause.busy:.0%} of its time, {cause.rate:,.0f} rows/s")
    return "; ".join(links)


def _lag(facts: JobFacts) -> str:
    behind = facts.records_behind()
    return f"; {behind:,} records to read" if behind else ""


def _slow(facts: JobFacts, cause: Load, seen: str) -> JobFinding:
    vertex, job = cause.vertex, facts.detail.summary
    own = vertex.parallelism != job.parallelism
    how = "its .parallelism(n) in the pipeline" if own else f"penstock rescale {job.job[:8]} N"
    more = (
        f"It has as many subtasks as key groups ({vertex.max_parallelism}): "
        if vertex.parallelism >= vertex.max_parallelism
        else f"Give it more subtasks ({how}, now {vertex.parallelism}), or "
    )
    return JobFinding(
        "bottleneck", ok=False, seen=seen,
        meaning=f"{cause.name} is the bottleneck: "
        + ("it reads no faster than it works" if vertex.is_source else "what is in front of it waits for it")
        + ", and it waits for nobody.",
        advice=f"{more}make its work cheaper: it runs {operators(cause)}. Functions of yours are the first suspects; "
        "expressions and map_batches take columns at once, map_async waits for many calls at the same time.",
        doc=f"{_PAGE}#slow-and-lagging-jobs",
    )  # fmt: skip


def _slow_sink(cause: Load, seen: str) -> JobFinding:
    return JobFinding(
        "bottleneck", ok=False, seen=f"{seen}; {_backlog(cause):,} bytes wait to be published",
        meaning=f"The sink {operators(cause)} publishes more slowly than rows come: at some backlog it holds them up.",
        advice="Look at the system that it writes to; more subtasks (penstock rescale) publish side by side.",
        doc=f"{_PAGE}#sinks-that-do-not-publish",
    )  # fmt: skip


def _calls(cause: Load, seen: str) -> JobFinding:
    failed = sum(counted.failed_calls for task in cause.tasks for counted in task.metrics.values())
    return JobFinding(
        "calls", ok=False, seen=f"{seen}; it waits for {cause.blocked:.0%}; {failed:,} calls failed",
        meaning=f"{cause.name} has as many calls under way as it may have, and waits for their answers.",
        advice="Look at who answers the calls; raise capacity= if they bear more calls at a time, "
        "lower timeout= if some hang.",
        doc="docs/async.md#options",
    )  # fmt: skip


def _unclear(facts: JobFacts, cause: Load, seen: str) -> JobFinding:
    return JobFinding(
        "bottleneck", ok=False, seen=seen,
        meaning=f"{cause.name} takes rows too slowly without being at work itself: its process, its machine or the "
        "brokers are what it waits for.",
        advice=f"Look at the CPU and memory of its workers and at the brokers: penstock doctor; penstock logs "
        f"{facts.detail.summary.job[:8]} --workers.",
        doc=f"{_PAGE}#slow-and-lagging-jobs",
    )  # fmt: skip


def _uneven(cause: Load, seen: str) -> JobFinding | None:
    """One subtask alone holds up all, because of its rows or of the machine on which it runs."""
    measured = sorted(cause.measured, key=lambda one: one[1].busy)
    if len(measured) < 2:
        return None
    (task, top), others = measured[-1], measured[:-1]
    mean = sum(rates.busy for _, rates in others) / len(others)
    if top.busy - mean < UNEVEN:
        return None
    times = cause.rows(top) * len(measured) / cause.rate if cause.rate else 0.0
    seen += f"; {cause.vertex.id}[{task.index}] works for {top.busy:.0%}, the others for {mean:.0%} on average"
    return _skewed(cause, task, top, times, seen) if times >= SKEW else _slow_worker(cause, task, seen)


def _skewed(cause: Load, task: TaskView, top: TaskRates, times: float, seen: str) -> JobFinding:
    rows = cause.rows(top)
    seen += f"; it takes {rows:,.0f} of {cause.rate:,.0f} rows/s, {times:.1f} times the mean"
    vertex = cause.vertex
    keys = next((edge.link.keys for edge in vertex.inputs if edge.ship == "hash" and edge.link.keys), ())
    if not keys:
        return JobFinding(
            "skew", ok=False, seen=seen, doc=f"{_PAGE}#skew",
            meaning=f"{'Its splits have' if vertex.is_source else 'What it reads from has'} most of the rows.",
            advice="Spread the rows over more partitions or files, or give the operator behind it a .parallelism(n) of "
            "its own: it then takes batches in turn.",
        )  # fmt: skip
    groups = key_group_range(task.index, vertex.parallelism, vertex.max_parallelism)
    return JobFinding(
        "skew", ok=False, seen=seen, doc=f"{_PAGE}#skew",
        meaning=f"Few values of {', '.join(keys)} have most of the rows, and are in its key groups, {groups.start} to "
        f"{groups.end - 1} of {vertex.max_parallelism}. More subtasks do not help: a key has one.",
        advice="Find the keys (count by them, or look for a default such as an empty one) and set them aside, or "
        "aggregate in two steps: first by the key and a number of your making, then by the key.",
    )  # fmt: skip


def _slow_worker(cause: Load, task: TaskView, seen: str) -> JobFinding:
    return JobFinding(
        "skew", ok=False, seen=f"{seen}; it has no more rows than they",
        meaning=f"The same work takes {cause.vertex.id}[{task.index}] longer, on worker {task.worker or 'unknown'}: its "
        "rows are dearer, or its machine is slower or shared.",
        advice="Look at the CPU of that machine; end the worker, and its slot is taken over elsewhere.",
        doc=f"{_PAGE}#skew",
    )  # fmt: skip


def input_limited(facts: JobFacts) -> Iterator[JobFinding]:
    """Sources lag although nobody is at work, nor held up."""
    loads = facts.loads.values()
    if not lags(facts) or not any(load.measured for load in loads):
        return
    if any(load.amidst or load.busy >= BUSY or load.blocked >= LOW for load in loads) or any(
        t.waits_for for v in loads for t in v.tasks
    ):
        return
    slow = [load for load in facts.sources if load.records_behind]
    idle = [f"{load.vertex.id}[{task.index}]" for load in slow for task, rates in load.measured if not load.rows(rates)]
    silent = f"; {named(idle)} read nothing" if idle else ""
    yield JobFinding(
        "input", ok=False,
        seen=f"{facts.records_behind() or 0:,} records to read, and {', '.join(load.name for load in slow)} reads "
        f"{sum(load.rate for load in slow):,.0f} rows/s; nobody works for more than "
        f"{max(load.busy for load in loads):.0%} of its time{silent}",
        meaning="Reading limits the job, not what it computes: more subtasks help only where each gets a partition.",
        advice=f"Look at the brokers and the network to them{_limits(slow)}; more partitions are read side by side.",
        doc=f"{_PAGE}#slow-and-lagging-jobs",
    )  # fmt: skip


def _limits(loads: list[Load]) -> str:
    """The settings of sources that have them wait."""
    found = [
        f"{name}={settings[name]} of {load.vertex.id}"
        for load in loads
        for settings in [load.vertex.operators[0].settings]
        for name in ("rate", "max_drift")
        if settings.get(name)
    ]
    return f", and whether {' and '.join(found)} is meant so" if found else ""

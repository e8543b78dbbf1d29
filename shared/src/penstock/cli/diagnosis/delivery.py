"""What comes late although rows come on: publishing, event time, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET

from penstock.cli.cluster import span
from penstock.cli.diagnosis.facts import JobFacts, JobFinding, Load, named, operators
from penstock.cli.diagnosis.progress import HIGH
from penstock.cli.display import watermark_text
from penstock.client.documents import CheckpointView, TaskView
from penstock.core.times import MIN_WATERMARK

BEHIND_CHECKPOINTS: Final = 3
"""A sink that is further behind is told of, as by the alert PenstockSinkBehind."""
STARTING_US: Final = 30_000_000
"""What a sink has published is not known at once."""
SLOW_US: Final = 10_000_000
SLOW_TIMES: Final = 3
"""A checkpoint is slow that takes longer than that, and so many times as long as the slowest of the newest."""
OLD_US: Final = 600_000_000
"""Without a complete one for so long, as by the alert PenstockNoCheckpoint."""
AHEAD_US: Final = 10_000_000
"""Who others wait for with event time is told of if they are so far ahead."""
_PAGE: Final = "docs/operating.md"


# -- sinks --------------------------------------------------------------------------------------------------------------


def sinks(facts: JobFacts) -> Iterator[JobFinding]:
    """Sinks that are refused, and those that are far behind what is complete."""
    for load in facts.loads.values():
        if load.vertex.has_sink:
            yield from _sink(facts, load)


def _sink(facts: JobFacts, load: Load) -> Iterator[JobFinding]:
    last = facts.detail.summary.last_checkpoint
    late = [task for task in load.tasks if _unpublished(facts, task) > BEHIND_CHECKPOINTS]
    refused = [task for task in load.tasks if task.waits_for and load.vertex.delivers]
    if not late and not refused:
        return
    shown = late or refused
    who = named(f"{load.vertex.id}[{task.index}]" for task in shown)
    waits = "; ".join(dict.fromkeys(f"{load.vertex.id}[{task.index}] waits: {task.waits_for}" for task in refused))
    size = sum(task.progress.unpublished_bytes or 0 for task in load.tasks)
    published = max(min(task.published for task in shown), facts.detail.restored or 0)
    seen = [
        f"{who} of {load.name}: checkpoint {last or 'none'} is complete, published up to {published or 'none'}",
        *([f"{size:,} bytes wait"] if size else []),
        *([waits] if waits else []),
    ]
    yield JobFinding(
        "sink", ok=False, seen="; ".join(seen),
        meaning=f"The system behind {operators(load)} "
        + ("does not take what is to be published" if refused else "is slow to take it, or does not answer")
        + ": rows are complete and safe, but nobody sees them yet.",
        advice="Look at that system: is it there, may this job write there (credentials, ACLs), is its disk full? "
        "Publishing goes on by itself; after five minutes in vain the attempt fails, and its restart strategy decides.",
        doc=f"{_PAGE}#sinks-that-do-not-publish",
    )  # fmt: skip


def _unpublished(facts: JobFacts, task: TaskView) -> int:
    """How many checkpoints a subtask of a sink is behind; 0 as long as that is not known."""
    running_us = task.since_us.get("running")
    if not task.published and (running_us is None or facts.ago(running_us) < STARTING_US):
        return 0
    return facts.detail.summary.last_checkpoint - max(task.published, facts.detail.restored or 0)


# -- event time ---------------------------------------------------------------------------------------------------------


def event_time(facts: JobFacts) -> Iterator[JobFinding]:
    """Silent splits that event time waits for, while others of the same rows come on."""
    for load in facts.sources:
        silent = [task for task in load.tasks if task.progress.silent_split is not UNSET and _holds(facts, load, task)]
        if silent:
            yield _held(facts, load, silent)


def _holds(facts: JobFacts, load: Load, silent: TaskView) -> bool:
    """Whether others wait for this subtask of a source: those whose rows come, and meet its own further on.

    Its own other splits may be among them, of which nobody tells how far they are. A split that never had a row holds
    back whatever has come, also after that has stopped.
    """
    meet = facts.behind(load)
    met = [other for other in facts.sources if meet & facts.behind(other)]
    if silent.progress.waiting_to is not UNSET and any(_has_come(task) for other in met for task in other.tasks):
        return True
    reading = [task for other in met for task, rates in other.measured if other.rows(rates) > 0]
    reached = silent.progress.watermark
    marks = [task.progress.watermark for task in reading if task is not silent]
    if reached > min(marks, default=reached):
        return False
    return any(task is silent for task in reading) or max(marks, default=reached) - reached >= AHEAD_US


def _has_come(task: TaskView) -> bool:
    """Whether a subtask of a source has had rows with which event time came on, or would have but for one split."""
    furthest = task.progress.waiting_to
    return (task.progress.watermark if furthest is UNSET else furthest) > MIN_WATERMARK


def _silence(load: Load, task: TaskView) -> str:
    silent_us = task.progress.silent_us
    lasts = "more than 10 s" if silent_us is UNSET else span(silent_us)
    never = "" if task.progress.waiting_to is UNSET else " and none before"
    return f"split {task.progress.silent_split} of {load.vertex.id}[{task.index}] (no row for {lasts}{never})"


def _held(facts: JobFacts, load: Load, silent: list[TaskView]) -> JobFinding:
    reached = min(task.progress.watermark for task in silent)
    most = max(task.progress.watermark for source in facts.sources for task in source.tasks)
    splits = named(_silence(load, task) for task in silent)
    ahead = f", other subtasks of sources at up to {watermark_text(most)}" if most > reached else ""
    said = load.vertex.operators[0].settings.get("idle_after")
    return JobFinding(
        "event time", ok=False,
        seen=f"event time waits for {splits}; it stands at {watermark_text(reached)}" + ahead,
        meaning="Event time goes by the slowest split: windows and timers that are due later wait for a row there, and "
        "keep their state meanwhile.",
        advice=f"The source {load.name} "
        + (
            f"goes on without such a split after {said} (idle_after=)"
            if said
            else "has no idle_after=: give it one, such as idle_after='1m', after which a silent split is not waited for"
        )
        + "; or find out why nobody writes there.",
        doc="docs/time.md#watermarks",
    )  # fmt: skip


# -- checkpoints --------------------------------------------------------------------------------------------------------


def newest_complete_us(facts: JobFacts) -> int | None:
    """When the newest complete checkpoint was complete; None if this leader has seen none."""
    newest = max(_complete(facts), key=lambda seen: seen.checkpoint, default=None)
    return None if newest is None else newest.triggered_us + (newest.duration_us or 0)


def checkpoints(facts: JobFacts) -> Iterator[JobFinding]:
    """One that waits for somebody, several that failed, and none for long."""
    if facts.detail.summary.state != "RUNNING":
        return
    found = [*_slow(facts), *_aborted(facts)]
    yield from found or _none_for_long(facts)


def _complete(facts: JobFacts) -> list[CheckpointView]:
    return [seen for seen in facts.detail.checkpoints if seen.state == "complete"]


def _slow(facts: JobFacts) -> Iterator[JobFinding]:
    pending = [seen for seen in facts.detail.checkpoints if seen.state == "in progress"]
    usual_us = max((seen.duration_us or 0 for seen in _complete(facts)[-5:]), default=0)
    for seen in pending[:1]:  # the oldest: others wait behind it
        taken_us = facts.ago(seen.triggered_us)
        if taken_us > max(SLOW_US, SLOW_TIMES * usual_us):
            yield _waits_for(facts, seen, f"checkpoint {seen.checkpoint} has taken {span(taken_us)} by now", usual_us)


def _waits_for(facts: JobFacts, seen: CheckpointView, begin: str, usual_us: int) -> JobFinding:
    usual = f" (usual: up to {span(usual_us)})" if usual_us else ""
    missing = [(load, task) for load in facts.loads.values() for task in load.tasks if not _acked(seen, load, task)]
    if not missing:
        return _checkpoint(
            f"{begin}{usual}; all subtasks that are known have acknowledged it",
            "Its manifest is being written to the store.",
            "Look at the store: penstock doctor.",
        )
    load = missing[0][0]  # vertices stand in the order of the rows: the barrier has come no further than here
    who = [task for other, task in missing if other is load]
    names = named(f"{load.vertex.id}[{task.index}]" for task in who)
    total = sum(len(other.tasks) for other in facts.loads.values())
    why, advice = _why(load, who)
    return _checkpoint(
        f"{begin}{usual}; {total - len(missing)} of {total} subtasks have acknowledged it, the first that it waits for: "
        f"{names} of {load.name}",
        why,
        advice,
    )


def _acked(seen: CheckpointView, load: Load, task: TaskView) -> bool:
    return task.state == "finished" or any(ack.index == task.index for ack in seen.acks.get(load.vertex.id, ()))


def _why(load: Load, who: list[TaskView]) -> tuple[str, str]:
    """What keeps the first that a checkpoint waits for, and what to do."""
    if any(task.waits_for for task in who):
        return "They wait for something that does not answer: " + next(
            t.waits_for for t in who if t.waits_for
        ) + ".", ""
    if load.amidst:
        return "They, or what shares their process, are in the midst of one batch or call.", "Mend that first."
    if load.blocked >= HIGH:
        return (
            f"They are held up by what is behind them for {load.blocked:.0%} of their time: no barrier passes rows.",
            "Mend the backpressure first.",
        )
    if load.busy >= HIGH:
        return (
            f"They work ({load.busy:.0%} of their time) on rows that stand before the barrier.",
            "Mend the bottleneck first: cheaper work, or more subtasks.",
        )
    size = sum(task.progress.state_bytes for task in who)
    return (
        f"They are not at work: their snapshot ({size:,} bytes in the newest one) is on its way to the store, or another "
        "input has not brought the barrier.",
        "Look at the store and the network to it; --incremental-checkpoints writes only changes, of functions' state "
        "with --state-backend rocksdb.",
    )


def _aborted(facts: JobFacts) -> Iterator[JobFinding]:
    newest = max((seen.checkpoint for seen in _complete(facts)), default=0)
    failed = [seen for seen in facts.detail.checkpoints if seen.state == "aborted" and seen.checkpoint > newest]
    if len(failed) > 1:
        last = failed[-1]
        yield _checkpoint(
            f"the newest {len(failed)} failed, the last of them ({last.checkpoint}): {last.reason or 'why is not known'}",
            "More in a row than --tolerable-failed-checkpoints fail the attempt.",
            "Mend what the reason names; penstock checkpoints lists them all.",
        )


def _none_for_long(facts: JobFacts) -> Iterator[JobFinding]:
    began = [
        task.since_us["running"] for load in facts.loads.values() for task in load.tasks if "running" in task.since_us
    ]
    since_us = newest_complete_us(facts) or max(began, default=facts.now_us)
    if facts.ago(since_us) > OLD_US:
        yield _checkpoint(
            f"no checkpoint was complete for {span(facts.ago(since_us))}",
            "None is triggered, or the interval is that long: a checkpoint waits while another one, or a savepoint, is "
            "published.",
            "Look at penstock checkpoints and at the coordinator's log.",
        )


def _checkpoint(seen: str, meaning: str, advice: str) -> JobFinding:
    meaning += " Exactly-once sinks show nothing new until one is complete."
    return JobFinding(
        "checkpoints", ok=False, seen=seen, meaning=meaning, advice=advice, doc=f"{_PAGE}#checkpoints-that-fail"
    )

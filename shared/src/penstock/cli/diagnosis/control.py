"""Jobs that do not run, or that nobody hears of: leader, brokers, store, slots, failures, what is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.cli.cluster import deaf_line, span
from penstock.cli.cluster import slots as more_slots
from penstock.cli.diagnosis.facts import JobFacts, JobFinding, named
from penstock.client.documents import FailedAttempt

RECENT_US: Final = 15 * 60_000_000
"""A failure is news for so long, as it is to the alert PenstockRestarts."""
NEW_US: Final = 10_000_000
"""What is shown of a job that is not older may not have reached everybody."""
OPENING_US: Final = 60_000_000
"""A subtask that takes longer to open is told of."""
_PAGE: Final = "docs/operating.md"


def ended(facts: JobFacts) -> Iterator[JobFinding]:
    """Nothing can be slow any more; how it ended."""
    job = facts.detail.summary
    reason = f": {job.reason}" if job.reason else ""
    if job.state != "FAILED":
        yield JobFinding("end", ok=True, seen=f"{job.state}{reason}", meaning="It has ended, and nothing is wrong.")
        return
    last = facts.failures.attempts[-1] if facts.failures.attempts else None
    yield JobFinding(
        "end", ok=False, seen=f"FAILED after {facts.detail.attempts} attempts{reason}",
        meaning="Its restart strategy allows no other attempt, or none could have gone better.",
        advice=f"Mend what the reason names, then start another in its place: penstock submit FILE --from-savepoint "
        f"{job.job[:8]}; penstock logs {job.job[:8]} shows what led there.",
        doc=f"{_PAGE}#what-an-ended-job-leaves", frames=last.frames if last is not None else "",
    )  # fmt: skip


def leader(facts: JobFacts) -> Iterator[JobFinding]:
    """Somebody must decide."""
    job, who = facts.detail.summary, facts.overview.leader
    if job.live or (who and facts.ago(job.submitted_us) < NEW_US):
        return
    yield JobFinding(
        "leader", ok=False,
        seen=f"{who} leads the cluster, but does not have this job yet" if who else "no coordinator leads the cluster",
        meaning="What is shown stands in the job's log. Nothing is checkpointed, restarted or carried out, and subtasks "
        "end when they have heard no leader for a minute.",
        advice="If it stays so: look whether a coordinator runs and reaches Redis, Kafka and the store: its log, its "
        "/readyz, and penstock doctor.",
        doc="docs/runbooks.md#penstocknoleader",
    )  # fmt: skip


def brokers(facts: JobFacts) -> Iterator[JobFinding]:
    """The leader must hear the workers."""
    if facts.detail.deaf_us:
        yield JobFinding(
            "brokers", ok=False, seen=deaf_line(facts.detail.deaf_us, facts.now_us),
            meaning="Subtasks wait for the brokers, too; no attempt is lost, and no row.",
            advice="Bring the brokers back; penstock doctor says which of them answer.",
            doc=f"{_PAGE}#while-brokers-are-away",
        )  # fmt: skip


def unopened(facts: JobFacts) -> Iterator[JobFinding]:
    """A leader must be able to read the job's log."""
    job = facts.detail.summary
    if job.state == "UNOPENED":
        yield JobFinding(
            "log", ok=False, seen=job.reason or "its log cannot be opened",
            meaning="No coordinator can look after the job; it is tried again and again, and holds up no other.",
            advice="Mend what the reason names; a log of a later version needs coordinators of that version.",
            doc=f"{_PAGE}#what-an-ended-job-leaves",
        )  # fmt: skip


def store(facts: JobFacts) -> Iterator[JobFinding]:
    """The dispatcher must be able to read it."""
    if facts.detail.missing:
        yield JobFinding(
            "store", ok=False, seen=facts.detail.missing,
            meaning="The store does not answer: jobs go on, but no checkpoint can be completed, and exactly-once sinks "
            "publish nothing new.",
            advice="Bring the store back; penstock doctor says what of it works.",
            doc=f"{_PAGE}#checkpoints-that-fail",
        )  # fmt: skip


def slots(facts: JobFacts) -> Iterator[JobFinding]:
    """There must be a slot for each subtask of a vertex."""
    job, cluster = facts.detail.summary, facts.overview
    if not job.missing_slots:
        return
    scaling = cluster.scaling
    limit = ""
    if scaling is not None and scaling.problem:
        limit = f"; task managers are not scaled: {scaling.problem}"
    elif scaling is not None and scaling.short:
        limit = f"; no more than {scaling.most} task managers are allowed"
    yield JobFinding(
        "slots", ok=False,
        seen=f"it waits for {more_slots(job.missing_slots)}; {cluster.free_slots} of the cluster's {cluster.slots} are "
        f"free{limit}",
        meaning="The job does not run until it has a slot for every subtask.",
        advice=f"Start task managers (penstock taskmanager), end another job, or let it run on fewer: penstock rescale "
        f"{job.job[:8]} N.",
        doc=f"{_PAGE}#without-slots",
    )  # fmt: skip


def restarts(facts: JobFacts) -> Iterator[JobFinding]:
    """Attempts should not fail."""
    again = facts.detail.summary.state == "RESTARTING"
    attempts = [one for one in facts.failures.attempts if facts.ago(one.at_us) <= RECENT_US]
    if not attempts and not (again and facts.failures.failures):
        return
    last = attempts[-1] if attempts else None
    what = _failure(facts, last) if last is not None else facts.failures.failures[-1]
    count = f"; {len(attempts)} attempts failed within {span(RECENT_US)}" if len(attempts) > 1 else ""
    yield JobFinding(
        "restarts", ok=False, seen=what + count,
        meaning=f"It {'starts again' if again else 'went on'} from the newest checkpoint; what was read since then is "
        "read again, and until that is done it lags.",
        advice="Mend what the last exception names: the input, the code (stop it with a savepoint, submit the "
        "mended file from it), or the worker: "
        f"penstock logs {facts.detail.summary.job[:8]} --workers shows what the workers logged.",
        doc=f"{_PAGE}#attempts-that-fail", frames=last.frames if last is not None else "",
    )  # fmt: skip


def _failure(facts: JobFacts, last: FailedAttempt) -> str:
    where = f" in {last.subtask}" if last.subtask else ""
    who = f" on {last.worker}" if last.worker else ""
    return f"attempt {last.attempt_number} failed {span(facts.ago(last.at_us))} ago{where}{who}: {last.reason}"


def ending(facts: JobFacts) -> Iterator[JobFinding]:
    """What was asked of it and goes on is no fault, but explains much."""
    job = facts.detail.summary
    if job.reason and job.state != "UNOPENED":
        yield JobFinding("request", ok=True, seen=job.reason, doc=f"{_PAGE}#jobs-that-are-cancelled")


def waiting(facts: JobFacts) -> Iterator[JobFinding]:
    """What subtasks wait for that does not answer, once for each such thing; what sinks wait for is told with them."""
    found: dict[str, list[str]] = {}
    for load in facts.loads.values():
        for task in load.tasks:
            if task.waits_for and not load.vertex.delivers:
                found.setdefault(task.waits_for, []).append(f"{load.vertex.id}[{task.index}]")
    for what, subtasks in found.items():
        yield JobFinding(
            "waiting", ok=False, seen=f"{named(subtasks)}: {what}",
            meaning="The subtasks go on by themselves once it answers; what is downstream of them waits, and so do "
            "checkpoints.",
            advice="Look at what is named there; penstock doctor checks Kafka, Redis and the store.",
            doc=f"{_PAGE}#while-brokers-are-away",
        )  # fmt: skip


def opening(facts: JobFacts) -> Iterator[JobFinding]:
    """A subtask restores its state and connects before it reads."""
    late: list[tuple[int, str]] = []
    for load in facts.loads.values():
        for task in load.tasks:
            since_us = task.since_us.get("deployed") or task.since_us.get("initializing")
            if task.state == "initializing" and since_us and not task.waits_for and facts.ago(since_us) >= OPENING_US:
                late.append((facts.ago(since_us), f"{load.vertex.id}[{task.index}]"))
    if late:
        yield JobFinding(
            "opening", ok=False, seen=f"{named(name for _, name in late)} open for {span(max(late)[0])} by now",
            meaning="They load the pipeline, restore their state, or connect to what they read from; no row is read "
            "before all of them have.",
            advice=f"penstock logs {facts.detail.summary.job[:8]} --workers shows what they do; much state takes long.",
            doc=f"{_PAGE}#attempts-that-fail",
        )  # fmt: skip

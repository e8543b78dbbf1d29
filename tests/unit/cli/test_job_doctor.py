"""What `penstock doctor JOB` makes of what a dispatcher shows: one test per diagnosis, and documents of any kind."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec.structs import replace
from tools.site_reference import anchor_of

from penstock import Pipeline, count, tumbling
from penstock.cli import cluster, main
from penstock.cli.diagnosis import JobFacts, JobFinding, diagnose
from penstock.client.documents import (
    CheckpointView,
    FailedAttempt,
    Failures,
    JobDetail,
    JobLoad,
    JobSummary,
    Overview,
    TaskView,
    VertexView,
)
from penstock.connectors import generate, kafka
from penstock.coordination.cluster_view import AckView, ScalingView, TaskRates
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.graph.jobgraph import JobGraph, build_job_graph
from penstock.protocol.messages import OperatorMetrics, TaskProgress

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
JOB = "ab" * 16
ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Row:
    key: int
    at: datetime


async def asked(row: Row) -> Row:
    return row


def graph(*, calls: bool = False, **options: Any) -> JobGraph:
    """A source (v0), windows of a key (v1), a publishing sink (v2); with `calls` one that waits for answers in v0."""
    pipeline = Pipeline("counts")
    source = generate.Source(lambda n: {"key": n, "at": n}, schema=Row, event_time="at", rows=1, **options)
    read = pipeline.read(source)
    rows = read.map_async(asked) if calls else read
    rows.key_by("key").window(tumbling("1s")).agg(n=count()).write(kafka.Sink("counts"))
    return build_job_graph(pipeline.plan, 2)


GRAPH = graph()
HEADS = {vertex.id: vertex.operators[0].id for vertex in GRAPH.vertices}


def task(
    vertex: str, index: int = 0, busy: float = 0.1, blocked: float = 0.0, rows: float = 100.0, **more: Any
) -> TaskView:
    """A subtask at work so and so much, with so many rows a second."""
    progress = TaskProgress(**more.pop("progress", {"watermark": NOW}))
    rates = TaskRates(busy, 1 - busy - blocked, blocked, rows={HEADS[vertex]: (rows, rows)})
    fields: dict[str, Any] = {
        "published": 7 if vertex == "v2" else 0,
        "since_us": {"running": NOW - 90 * SECOND},
        **more,
    }
    return TaskView(index, "running", f"w{index}", progress=progress, rates=rates, **fields)


def facts(*tasks: Sequence[TaskView], shape: JobGraph = GRAPH, summary: Any = (), **more: Any) -> JobFacts:
    """A job that is well, but for what is given: the subtasks of its vertices, and fields of its documents."""
    given = [*tasks, *([task(v.id, i) for i in range(2)] for v in shape.vertices[len(tasks) :])]
    vertices = tuple(VertexView(v.id, v.name, 2, tuple(t)) for v, t in zip(shape.vertices, given, strict=True))
    job = JobSummary(
        JOB, "counts", "RUNNING", 2, NOW - 100 * SECOND, running_tasks=6, tasks=6, last_checkpoint=7, live=True,
        attempts=1, load=JobLoad(200, 200, 0.1, 0.0),
    )  # fmt: skip
    complete = CheckpointView(7, "complete", NOW - 5 * SECOND, SECOND, 10, 1)
    detail = JobDetail(
        replace(job, **dict(summary)), 1, None, vertices, (complete, *more.pop("checkpoints", ())),
        more.pop("failures", ()), shape.to_json(), more.pop("missing", ""), more.pop("deaf_us", 0),
    )  # fmt: skip
    attempts = tuple(more.pop("attempts", ()))
    failures = Failures(JOB, tuple(one.reason for one in attempts) or detail.failures, "", attempts)
    overview = Overview("leader-1", "here", 1, 2, 8, 2, {"RUNNING": 1}, "1", **more)
    return JobFacts(detail, failures, overview, NOW)


def only(found: list[JobFinding]) -> JobFinding:
    """The one thing that is wrong: seen, explained, with something to do."""
    (finding,) = (finding for finding in found if not finding.ok)
    assert finding.seen
    assert finding.meaning
    assert finding.doc
    return finding


def test_a_job_that_is_well_is_said_to_be() -> None:
    """With the numbers by which it was judged."""
    (finding,) = diagnose(facts())
    assert finding.ok
    assert finding.seen == (
        "running, 6 of 6 subtasks at work; 200 rows/s in, 200 out; the busiest subtask works 10% of its time, "
        "backpressure 0%; newest checkpoint 7, 4.0s ago"
    )
    assert "no rates yet" in diagnose(facts(summary={"load": None}))[0].seen


def test_back_pressure_is_followed_to_its_cause() -> None:
    """The last busy operator that is not held up itself; what it runs is named."""
    slow = [task("v1", i, busy=0.97, rows=900) for i in range(2)]
    finding = only(diagnose(facts([task("v0", i, busy=0.1, blocked=0.85) for i in range(2)], slow)))
    assert finding.check == "bottleneck"
    assert finding.seen.startswith(
        "v0 (read) is held up for 85% of its time; v1 (window -> encode) works for 97% of its time, 1,800"
    )
    assert "v1 (window -> encode) is the bottleneck" in finding.meaning
    assert "penstock rescale abababab N, now 2" in finding.advice
    assert "window (n2-window)" in finding.advice


def test_a_little_back_pressure_is_wrong_only_where_sources_lag() -> None:
    """Flink's LOW: a job that keeps up is well."""
    held = [task("v0", i, blocked=0.3) for i in range(2)]
    working = [task("v1", i, busy=0.8) for i in range(2)]
    assert all(finding.ok for finding in diagnose(facts(held, working)))
    lagging = [replace(one, progress=TaskProgress(watermark=NOW, records_behind=50_000)) for one in held]
    finding = only(diagnose(facts(lagging, working)))
    assert "100,000 records to read" in finding.seen


def test_a_source_may_be_the_bottleneck_itself() -> None:
    """Its chain is all that works."""
    behind = {"watermark": NOW, "records_behind": 40_000}
    finding = only(diagnose(facts([task("v0", i, busy=0.95, progress=behind) for i in range(2)])))
    assert finding.check == "bottleneck"
    assert "it reads no faster than it works" in finding.meaning


def test_an_operator_may_be_at_its_limit_before_anybody_is_held_up() -> None:
    """Its rows wait in the exchange, for which there is credit left."""
    well = [task("v0", i) for i in range(2)]
    finding = only(diagnose(facts(well, [task("v1", i, busy=0.96) for i in range(2)])))
    assert finding.check == "bottleneck"
    assert finding.seen.startswith("v1 (window -> encode) works for 96% of its time")
    assert all(one.ok for one in diagnose(facts(well, [task("v1", i, busy=0.9) for i in range(2)])))
    assert all(one.ok for one in diagnose(facts([task("v0", i, busy=0.99) for i in range(2)])))


def test_a_process_in_the_midst_of_one_batch_is_told() -> None:
    """None of its subtasks has accounted for any time: that is neither idleness nor a limit of the input."""
    behind = TaskProgress(watermark=NOW, records_behind=5_000)
    rest = [[replace(task(v, 0), worker="w0", rates=TaskRates()), task(v, 1)] for v in ("v1", "v2")]
    source = [replace(task("v0"), progress=behind, rates=TaskRates()), task("v0", 1, blocked=0.9)]
    found = diagnose(facts(source, *rest, checkpoints=[pending(40)]))
    assert [one.check for one in found] == ["long call", "checkpoints"]
    assert found[0].seen.startswith("v0[0], v1[0], v2[0] on worker w0 have accounted for no time")
    assert "It is in v0 (read) or v1 (window -> encode)." in found[0].meaning
    assert "in the midst of one batch or call" in found[1].meaning
    waiting = [replace(task("v0", i), rates=TaskRates(), waits_for="append to x: no answer") for i in range(2)]
    assert only(diagnose(facts(waiting))).check == "waiting"


def test_a_skewed_key_is_told_by_its_subtask_and_key_groups() -> None:
    """One subtask is busy with most of the rows, and others have room."""
    skewed = [task("v1", 0, busy=0.2, rows=100), task("v1", 1, busy=0.99, rows=900)]
    finding = only(diagnose(facts([task("v0", i, blocked=0.8) for i in range(2)], skewed)))
    assert finding.check == "skew"
    assert (
        "v1[1] works for 99%, the others for 20% on average; it takes 900 of 1,000 rows/s, 1.8 times the mean"
        in finding.seen
    )
    assert "Few values of key" in finding.meaning
    assert "120 to 239 of 240" in finding.meaning


def test_skewed_splits_are_not_keys() -> None:
    """They have nothing to do with key groups."""
    behind = {"watermark": NOW, "records_behind": 40_000}
    skewed = [task("v0", 0, busy=0.9, rows=900, progress=behind), task("v0", 1, rows=100)]
    finding = only(diagnose(facts(skewed)))
    assert finding.check == "skew"
    assert finding.meaning.startswith("Its splits have")


def test_a_slow_worker_is_no_skew() -> None:
    """One subtask is busy with the same rows."""
    slow = [task("v1", 0, busy=0.2), task("v1", 1, busy=0.99)]
    finding = only(diagnose(facts([task("v0", i, blocked=0.8) for i in range(2)], slow)))
    assert finding.check == "skew"
    assert "on worker w1" in finding.meaning


def test_calls_that_wait_are_told() -> None:
    """Nothing works and nothing behind is full: as many calls are under way as may be."""
    shape = graph(calls=True)
    failed = {"n1-map_async": OperatorMetrics(failed_calls=3)}
    finding = only(diagnose(facts([task("v0", i, blocked=0.9, metrics=failed) for i in range(2)], shape=shape)))
    assert finding.check == "calls"
    assert "6 calls failed" in finding.seen
    assert "capacity=" in finding.advice


def test_a_vertex_that_takes_rows_slowly_without_working() -> None:
    """Then it is the machine, or the brokers."""
    finding = only(diagnose(facts([task("v0", i, blocked=0.9) for i in range(2)])))
    assert finding.check == "bottleneck"
    assert "without being at work" in finding.meaning


def test_a_sink_that_is_refused_says_by_whom() -> None:
    """What its system answered."""
    why = "publishing: topic counts: TopicAuthorizationFailed"
    refused = [task("v2", i, published=1, waits_for=why) for i in range(2)]
    finding = only(diagnose(facts([task("v0"), task("v0", 1)], [task("v1"), task("v1", 1)], refused)))
    assert finding.check == "sink"
    assert "v2[0], v2[1] of v2 (publish kafka): checkpoint 7 is complete, published up to 1" in finding.seen
    assert "TopicAuthorizationFailed" in finding.seen


def test_a_slow_sink_is_found_with_the_back_pressure_that_it_makes() -> None:
    """First the sink, then how far that is felt."""
    behind = {"unpublished_bytes": 300_000_000}
    sink = [task("v2", i, published=2, progress=behind) for i in range(2)]
    held = [[task(vertex, i, blocked=0.9) for i in range(2)] for vertex in ("v0", "v1")]
    first, second = diagnose(facts(*held, sink))
    assert (first.check, second.check) == ("sink", "bottleneck")
    assert "600,000,000 bytes wait" in first.seen
    assert "publishes more slowly than rows come" in second.meaning


def test_a_sink_that_has_just_begun_is_not_behind() -> None:
    """What it has published is not known yet; and what was restored is published."""
    fresh = [task("v2", i, published=0, since_us={"running": NOW - SECOND}) for i in range(2)]
    well = [[task(vertex, i) for i in range(2)] for vertex in ("v0", "v1")]
    assert all(finding.ok for finding in diagnose(facts(*well, fresh)))
    old = [task("v2", i, published=0) for i in range(2)]
    assert only(diagnose(facts(*well, old))).check == "sink"
    restored = facts(*well, old)
    restored = JobFacts(replace(restored.detail, restored=6), restored.failures, restored.overview, NOW)
    assert all(finding.ok for finding in diagnose(restored))


@pytest.mark.parametrize("idle_after", [None, "5m"])
def test_a_silent_split_holds_event_time(idle_after: str | None) -> None:
    """If others have rows and are ahead; what would help depends on what the source says."""
    silent = {"watermark": NOW - 3600 * SECOND, "silent_split": "3"}
    source = [task("v0", 0, rows=0, progress=silent), task("v0", 1)]
    finding = only(diagnose(facts(source, shape=graph(idle_after=idle_after))))
    assert finding.check == "event time"
    assert finding.seen.startswith("event time waits for split 3 of v0[0] (no row for more than 10 s)")
    assert ("after 5m" if idle_after else "has no idle_after=") in finding.advice


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param([(0, NOW, "3"), (0, NOW, "4")], id="nobody has rows"),
        pytest.param([(0, NOW - SECOND, "3"), (100, NOW, None)], id="the others are hardly ahead"),
        pytest.param([(0, NOW, "3"), (100, NOW - 60 * SECOND, None)], id="the others are behind"),
    ],
)
def test_a_silent_split_may_hold_nobody(tasks: list[tuple[float, int, str | None]]) -> None:
    """Silence alone is no fault."""
    progress = [{"watermark": mark, **({"silent_split": split} if split else {})} for _, mark, split in tasks]
    source = [task("v0", i, rows=tasks[i][0], progress=progress[i]) for i in range(2)]
    assert all(finding.ok for finding in diagnose(facts(source)))


def test_a_split_may_hold_the_others_of_its_subtask() -> None:
    """How far those are nobody tells; that they have rows is enough."""
    held = {"watermark": MIN_WATERMARK, "silent_split": "0"}
    finding = only(diagnose(facts([task("v0", i, progress=held) for i in range(2)])))
    assert finding.check == "event time"
    assert "none yet" in finding.seen


@pytest.mark.parametrize("rows", [0, 100], ids=["all is read", "rows come"])
@pytest.mark.parametrize("where", ["in its subtask", "in another", "in a subtask with such a split"])
def test_a_split_that_never_had_a_row_holds_event_time(where: str, rows: float) -> None:
    """Partitions were added: what has come waits, also where nothing comes any more, and after a restart."""
    empty = {"silent_split": "7", "silent_us": 3600 * SECOND, "waiting_to": MIN_WATERMARK, "watermark": MIN_WATERMARK}
    first, second = {
        "in its subtask": (empty | {"waiting_to": NOW}, {"watermark": MIN_WATERMARK}),
        "in another": (empty, {"watermark": NOW}),
        "in a subtask with such a split": (
            empty,
            empty | {"silent_us": SECOND, "waiting_to": NOW, "silent_split": "8"},
        ),
    }[where]
    finding = only(diagnose(facts([task("v0", 0, rows=rows, progress=first), task("v0", 1, progress=second)])))
    assert finding.check == "event time"
    assert "split 7 of v0[0] (no row for 1h and none before)" in finding.seen
    assert "idle_after='1m'" in finding.advice


def test_splits_without_rows_hold_nobody_where_nothing_has_come() -> None:
    """A source that waits for its first row is well."""
    empty = {"silent_split": "7", "silent_us": 3600 * SECOND, "waiting_to": MIN_WATERMARK, "watermark": MIN_WATERMARK}
    source = [task("v0", i, rows=0, progress=empty) for i in range(2)]
    assert all(finding.ok for finding in diagnose(facts(source)))


def pending(taken_s: int, **acks: Sequence[int]) -> CheckpointView:
    """A checkpoint that goes on for so long, with the subtasks that acknowledged it."""
    found = {v: tuple(AckView(i, NOW, 1, 1, 1, 1) for i in indexes) for v, indexes in acks.items()}
    return CheckpointView(8, "in progress", NOW - taken_s * SECOND, None, 0, 0, subtasks=6, acks=found)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"busy": 0.9}, "They work (90% of their time) on rows"),
        ({"blocked": 0.9}, "They are held up by what is behind them for 90%"),
        ({"waits_for": "append to x: no broker answers"}, "no broker answers"),
        ({"progress": {"state_bytes": 5_000}}, "their snapshot (5,000 bytes"),
    ],
)
def test_a_checkpoint_waits_for_somebody(state: dict[str, Any], why: str) -> None:
    """The first in the order of the rows that has not acknowledged it, and what it does."""
    slow = [task("v1", 0), task("v1", 1, **state)]
    given = facts([task("v0"), task("v0", 1)], slow, checkpoints=[pending(40, v0=(0, 1), v1=(0,))])
    finding = diagnose(given)[-1]
    assert finding.check == "checkpoints"
    assert finding.seen.startswith("checkpoint 8 has taken 40.0s by now (usual: up to 1.0s); 3 of 6 subtasks")
    assert "v1[1] of v1" in finding.seen
    assert "v1[0]" not in finding.seen
    assert why in finding.meaning


def test_a_checkpoint_may_wait_for_the_store() -> None:
    """All have acknowledged; and one that takes no longer than usual is well."""
    everyone = {"v0": (0, 1), "v1": (0, 1), "v2": (0, 1)}
    finding = only(diagnose(facts(checkpoints=[pending(40, **everyone)])))
    assert "Its manifest is being written" in finding.meaning
    assert all(one.ok for one in diagnose(facts(checkpoints=[pending(9)])))


def test_checkpoints_that_fail_and_those_that_do_not_come() -> None:
    """Several in a row since the newest complete one, with the reason of the last; or none for ten minutes."""
    aborted = [CheckpointView(n, "aborted", NOW, None, 0, 0, reason=f"reason {n}") for n in (8, 9)]
    finding = only(diagnose(facts(checkpoints=aborted)))
    assert "newest 2 failed, the last of them (9): reason 9" in finding.seen
    assert all(one.ok for one in diagnose(facts(checkpoints=aborted[:1])))
    later = facts()
    finding = only(diagnose(JobFacts(later.detail, later.failures, later.overview, NOW + 3600 * SECOND)))
    assert "no checkpoint was complete for 1h" in finding.seen


def test_input_may_be_what_limits() -> None:
    """Sources lag, and nobody is at work or held up: settings that have them wait are named."""
    behind = {"watermark": NOW, "records_behind": 90_000}
    source = [task("v0", 0, progress=behind), task("v0", 1, rows=0, progress={"watermark": NOW})]
    finding = only(diagnose(facts(source, shape=graph(rate=100))))
    assert finding.check == "input"
    assert finding.seen.startswith("90,000 records to read, and v0 (read) reads 100 rows/s")
    assert "v0[1] read nothing" in finding.seen
    assert "rate=100 of v0" in finding.advice


def test_missing_slots() -> None:
    """With what the cluster has, and why it does not get more."""
    given = facts(summary={"missing_slots": 2, "state": "CREATED"})
    finding = only(diagnose(given))
    assert finding.check == "slots"
    assert "it waits for 2 more slots; 2 of the cluster's 8 are free" in finding.seen
    scaled = facts(summary={"missing_slots": 2}, scaling=ScalingView(4, 4, 1, 4, short=2))
    assert "no more than 4 task managers are allowed" in only(diagnose(scaled)).seen
    broken = facts(summary={"missing_slots": 2}, scaling=ScalingView(None, 0, 1, 4, problem="forbidden"))
    assert "not scaled: forbidden" in only(diagnose(broken)).seen


def test_restarts_come_with_the_last_exception_in_the_users_frames() -> None:
    """Those of the last quarter of an hour; older ones are history."""
    failed = [
        FailedAttempt(n, f"ValueError: row {n}", "v1[0]", "w1", f'  File "job.py", line {n}\n', NOW - at_s * SECOND)
        for n, at_s in ((1, 3600), (2, 60), (3, 20))
    ]
    finding = only(diagnose(facts(attempts=failed)))
    assert finding.seen == "attempt 3 failed 20.0s ago in v1[0] on w1: ValueError: row 3; 2 attempts failed within 15m"
    assert finding.frames == '  File "job.py", line 3\n'
    assert all(one.ok for one in diagnose(facts(attempts=failed[:1])))
    again = facts(summary={"state": "RESTARTING"}, failures=("worker w1 is gone",))
    assert only(diagnose(again)).seen == "worker w1 is gone"


def test_what_is_waited_for_is_said_once() -> None:
    """For all subtasks that wait for the same."""
    waiting = [
        [task(vertex, i, waits_for="append to x: no broker answers") for i in range(2)] for vertex in ("v0", "v1")
    ]
    finding = only(diagnose(facts(*waiting)))
    assert finding.seen == "v0[0], v0[1], v1[0] and 1 more: append to x: no broker answers"


def test_subtasks_that_do_not_open() -> None:
    """For a minute and more."""
    late = replace(task("v1"), state="initializing", since_us={"deployed": NOW - 120 * SECOND}, rates=None)
    finding = only(diagnose(facts([task("v0"), task("v0", 1)], [late, task("v1", 1)])))
    assert finding.check == "opening"
    assert finding.seen == "v1[0] open for 2m by now"


@pytest.mark.parametrize(
    ("given", "check"),
    [
        ({"summary": {"live": False}}, "leader"),
        ({"deaf_us": 9 * SECOND}, "brokers"),
        ({"summary": {"state": "UNOPENED", "reason": "its log has version 9"}}, "log"),
        ({"missing": "the store does not answer"}, "store"),
        ({"summary": {"state": "FAILED", "reason": "ValueError"}}, "end"),
    ],
)
def test_what_comes_before_all_rows(given: dict[str, Any], check: str) -> None:
    """Of rows nothing is said then that is old."""
    assert only(diagnose(facts([task("v0", blocked=0.0)], **given))).check == check


def test_ended_jobs_are_well_and_requests_are_no_fault() -> None:
    """Why nothing moves is said all the same."""
    (finding,) = diagnose(facts(summary={"state": "STOPPED"}))
    assert finding.ok
    assert finding.seen == "STOPPED"
    found = diagnose(facts(summary={"reason": "it is being cancelled"}))
    assert [(one.check, one.ok) for one in found] == [("request", True), ("job", True)]


def test_causes_come_first() -> None:
    """A checkpoint waits because a vertex is slow, that because a sink is refused, that while an attempt fails."""
    failed = FailedAttempt(1, "lost", "", "", "", NOW)
    sink = [task("v2", i, published=1, waits_for="publishing: refused") for i in range(2)]
    held = [[task(vertex, i, blocked=0.9) for i in range(2)] for vertex in ("v0", "v1")]
    given = facts(*held, sink, attempts=[failed], checkpoints=[pending(60)], summary={"missing_slots": 1})
    assert [one.check for one in diagnose(given)] == ["slots", "restarts", "sink", "bottleneck", "checkpoints"]


def anchors(page: Path) -> set[str]:
    """Where links can lead in a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return set(map(anchor_of, titles))


def test_what_is_linked_to_exists() -> None:
    """Every page and every section."""
    code = "".join(file.read_text() for file in (ROOT / "shared/src/penstock/cli/diagnosis").glob("*.py"))
    linked = set(re.findall(r'doc=f?"(?:\{_PAGE\}|(docs/[\w.]+))#([\w-]+)"', code))
    assert len(linked) > 8
    for page, section in linked:
        assert section in anchors(ROOT / (page or "docs/operating.md")), section


# -- documents of any kind ----------------------------------------------------------------------------------------------


def any_task(choose: random.Random, index: int) -> TaskView:
    """A subtask as no job of ours is, perhaps."""
    busy, blocked = choose.random(), choose.random()
    mark = choose.choice([MIN_WATERMARK, 0, NOW, MAX_WATERMARK])
    progress = TaskProgress(watermark=mark, state_bytes=choose.randrange(9))
    for name in ("records_behind", "unpublished_bytes"):
        progress = replace(progress, **{name: choose.choice([0, 10**9, msgspec.UNSET])})
    progress = replace(progress, silent_split=choose.choice(["", "0", msgspec.UNSET]))
    progress = replace(progress, waiting_to=choose.choice([msgspec.UNSET, MIN_WATERMARK, NOW]))
    progress = replace(progress, silent_us=choose.choice([msgspec.UNSET, 0, 10**12]))
    rows = {choose.choice([*HEADS.values(), "gone"]): (choose.choice([0.0, 1e9]), choose.random())}
    rates = choose.choice([None, TaskRates(busy, 0.0, blocked, rows=rows), TaskRates()])
    state = choose.choice(["initializing", "running", "ended", "finished", "failed", "canceled", "unheard-of"])
    since = {name: choose.choice([0, NOW, 2 * NOW]) for name in ("deployed", "running") if choose.random() < 0.5}
    waits = choose.choice(["", "", "the store"])
    return TaskView(index, state, "w", choose.randrange(9), "", {}, progress, waits, since, rates)


def any_facts(choose: random.Random) -> JobFacts:
    """Documents whose parts need not fit."""
    vertices = tuple(
        VertexView(name, name, 2, tuple(any_task(choose, choose.randrange(5)) for _ in range(choose.randrange(4))))
        for name in choose.sample(["v0", "v1", "v2", "v9"], choose.randrange(5))
    )
    checkpoints = tuple(
        CheckpointView(
            n, choose.choice(["complete", "aborted", "in progress", "else"]), choose.choice([0, NOW, 2 * NOW]),
            choose.choice([None, 0, SECOND]), 0, 0, acks={"v0": (AckView(choose.randrange(4), 0, 0, 0, 0, 0),)},
        )
        for n in range(choose.randrange(5))
    )  # fmt: skip
    state: Any = choose.choice(
        ["CREATED", "RUNNING", "RUNNING", "RESTARTING", "FAILED", "SUSPENDED", "UNOPENED", "STOPPED"]
    )
    summary = JobSummary(
        JOB, "", state, choose.randrange(3), 0, reason=choose.choice(["", "so"]), missing_slots=choose.randrange(2),
        last_checkpoint=choose.randrange(99), live=choose.random() < 0.8, load=choose.choice([None, JobLoad(0, 0, 0, 0)]),
    )  # fmt: skip
    shape = choose.choice([{}, {"vertices": 3}, GRAPH.to_json(), graph(calls=True).to_json()])
    detail = JobDetail(
        summary,
        0,
        choose.choice([None, 5]),
        vertices,
        checkpoints,
        (),
        shape,
        choose.choice(["", "x"]),
        choose.choice([0, 5]),
    )
    failed = tuple(
        FailedAttempt(0, "", "", "", "", choose.choice([0, NOW, 2 * NOW])) for _ in range(choose.randrange(3))
    )
    return JobFacts(detail, Failures(JOB, (), "", failed), Overview("", "", 0, 0, 0, 0, {}, ""), NOW)


def test_no_document_is_too_odd() -> None:
    """Something is said of every one, all wrong things with what was seen."""
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"PENSTOCK_TEST_SEED={seed}")
    choose = random.Random(seed)
    for _ in range(500):
        found = diagnose(any_facts(choose))
        assert found
        assert all(one.seen and (one.ok or (one.meaning and one.doc)) for one in found)


# -- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Let the command speak to a dispatcher that shows a job so; the paths that it is asked for."""

    def show(given: JobFacts | None = None, kind: str = "job") -> list[str]:
        paths: list[str] = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            path = request.url.path.removeprefix("/penstock/v1")
            paths.append(str(request.url.query.decode()) if path == "/find" else path)
            if given is None:
                return httpx2.Response(404, json={"errors": ["there is no job 'lost'; penstock jobs lists them"]})
            found = {"kind": kind, "id": JOB, "name": "counts", "state": "RUNNING"}
            documents = {
                "/overview": given.overview,
                f"/jobs/{JOB}": given.detail,
                f"/jobs/{JOB}/failures": given.failures,
            }
            return httpx2.Response(200, content=msgspec.json.encode(found if path == "/find" else documents[path]))

        transport = httpx2.MockTransport(answer)
        monkeypatch.setattr(cluster, "client_of", lambda _: cluster.ClusterClient("http://one", transport))
        return paths

    return show


def test_the_command_prints_what_is_wrong_and_fails(shown: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """By a name or the beginning of an id, as other commands; with the user's frames and what to do."""
    failed = FailedAttempt(3, "ValueError: row", "v1[0]", "w1", '  File "job.py", line 3\n', 2 * NOW)
    paths = shown(facts(attempts=[failed]))
    assert main.main(["doctor", "counts"]) == 1
    assert paths[0] == "name=counts"
    assert len(paths) == 4
    out = capsys.readouterr().out
    assert out.startswith(f"counts ({JOB}): running\nWRONG   restarts: attempt 3 failed")
    assert (
        '        Traceback (your code, most recent call last):\n          File "job.py", line 3\n        Do: Mend'
        in out
    )
    assert "        See docs/operating.md#attempts-that-fail\n" in out


def test_the_command_says_that_all_is_well(shown: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Also as JSON, in the form of the other doctor."""
    ended = facts(summary={"state": "FINISHED"})
    shown(ended)
    assert main.main(["doctor", "abab"]) == 0
    assert "ok      end: FINISHED" in capsys.readouterr().out
    assert main.main(["doctor", JOB, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    assert said["job"] == JOB
    assert said["state"] == "FINISHED"
    assert said["checks"][0]["check"] == "end"


def test_what_the_command_refuses(shown: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that is not there, a run on Spark, and options of the cluster's parts."""
    shown()
    assert main.main(["doctor", "lost"]) == 1
    assert "there is no job 'lost'" in capsys.readouterr().err
    shown(facts(), kind="run")
    assert main.main(["doctor", "nightly"]) == 2
    assert "nightly is a run on Spark" in capsys.readouterr().err
    assert main.main(["doctor", "counts", "--create-bucket"]) == 2
    assert "leave the job out" in capsys.readouterr().err

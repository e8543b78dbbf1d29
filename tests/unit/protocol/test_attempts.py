"""What the leader knows of the subtasks of the newest attempt."""

from __future__ import annotations

from penstock.protocol.attempts import AttemptTasks
from penstock.protocol.jobevents import Topology
from penstock.protocol.messages import SubtaskId, TaskState, TaskStatus

SOURCE, SINK = SubtaskId("source", 0), SubtaskId("sink", 0)
TOPOLOGY = Topology(
    subtasks=(SINK, SOURCE),
    sources=frozenset({SOURCE}),
    sinks=frozenset({SINK}),
    exchanges={"sink": 1},
    publishers=frozenset(),
    slots={SOURCE: 0, SINK: 1},
    parallelism=1,
    max_parallelism=12,
)


def _status(subtask: SubtaskId, state: TaskState = "running", published: int = 0) -> TaskStatus:
    return TaskStatus("job", "attempt", subtask, state, published)


def _begun() -> AttemptTasks:
    tasks = AttemptTasks()
    assert tasks.begin(TOPOLOGY.slots, {"b": 1, "a": 1})
    return tasks


def test_slots_are_filled_in_order_of_the_workers() -> None:
    """Slot n of the job is the n-th free slot of the workers sorted by name."""
    tasks = _begun()
    assert [tasks.worker_of(SOURCE), tasks.worker_of(SINK)] == ["a", "b"]
    assert tasks.runs_on("b")
    assert not tasks.runs_on("c")


def test_too_few_slots_are_noticed() -> None:
    """An attempt that lost a slot while it began says so."""
    assert not AttemptTasks().begin(TOPOLOGY.slots, {"a": 1})


def test_only_the_assigned_worker_is_heard() -> None:
    """A status from a worker that does not run the subtask changes nothing."""
    tasks = _begun()
    assert not tasks.heard("b", _status(SOURCE))
    assert tasks.heard("a", _status(SOURCE))
    assert not tasks.all_run(TOPOLOGY.subtasks)
    assert tasks.heard("b", _status(SINK))
    assert tasks.all_run(TOPOLOGY.subtasks)


def test_what_is_published_never_falls() -> None:
    """A late heartbeat with an older state does not take back what a sink has made visible."""
    tasks = _begun()
    tasks.heard("b", _status(SINK, published=4))
    tasks.heard("b", _status(SINK, published=3))
    assert tasks.all_published(TOPOLOGY, 4)
    assert not tasks.all_published(TOPOLOGY, 5)


def test_a_subtask_that_is_no_longer_listed_is_lost() -> None:
    """Only a subtask that was heard before can be lost."""
    tasks = _begun()
    assert tasks.lost("a", ()) is None
    tasks.heard("a", _status(SOURCE))
    assert tasks.lost("a", (SOURCE,)) is None
    assert tasks.lost("a", ()) == SOURCE


def test_a_running_attempt_is_taken_over_as_it_is() -> None:
    """A new leader takes places, states and what is published from the heartbeats."""
    tasks = AttemptTasks()
    tasks.adopt({SOURCE: ("x", _status(SOURCE, "ended")), SINK: ("y", _status(SINK, published=2))})
    assert tasks.worker_of(SINK) == "y"
    assert tasks.all_run(TOPOLOGY.subtasks)
    assert tasks.all_sources_ended(TOPOLOGY)
    assert tasks.all_published(TOPOLOGY, 2)

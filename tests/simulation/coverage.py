"""What a thousand histories must have reached: every fault, every move, every event and command of the machines."""

from __future__ import annotations

from typing import get_args, get_origin

from tests.simulation.extras import TROUBLES
from tests.simulation.faults import DAMAGES, FAULTS
from tests.simulation.leading import COMMANDS, EVENTS

from penstock.protocol import (
    jobevents,
    joblog_writer,
    leader,
    messages,
    phases,
    publishing,
    split_publishing,
    subtask,
    worker,
)

EXCEPTIONS: dict[str, str] = {
    "worker reads UnknownCommand": "no simulated leader is of another version; see the tests of the worker machine",
    "leader command OfferLease": "simulated brokers answer all coordinators or none; see the tests of the leader machine",
    "split command FailJob": "no simulated mark is lost or changed by others; see the tests of the split's machine",
    "leader event TimePassed": "counted where it is handed in, by the leader command AskForLease",
}


def required() -> set[str]:
    """The names as the simulated shells report them."""
    names = {f"fault {name}" for name in (*FAULTS, *DAMAGES)} | {"end damaged log"}
    names |= {f"job move {a.name} {b.name}" for a, after in phases.MOVES.items() for b in after}
    names |= {f"leader phase {phase.name}" for phase in leader.LeaderPhase}
    names |= {f"publisher phase {phase.name}" for phase in publishing.PublisherPhase}
    names |= {f"split phase {phase.name}" for phase in split_publishing.MOVES}
    for prefix, union in (
        ("job event", jobevents.JobEvent),
        ("job command", jobevents.JobCommand),
        ("leader event", leader.LeaderEvent),
        ("leader command", leader.LeaderCommand),
        ("publisher event", publishing.PublisherEvent),
        ("publisher command", publishing.PublisherCommand),
        ("split event", split_publishing.SplitEvent),
        ("split command", split_publishing.SplitCommand),
        ("subtask event", subtask.SubtaskEvent),
        ("subtask command", subtask.SubtaskCommand),
        ("worker command", worker.WorkerCommand),
        ("worker reads", messages.AnyCommand),
        ("event", messages.AnyEvent),
        ("writer command", joblog_writer.WriterCommand),
    ):
        names |= {f"{prefix} {(get_origin(kind) or kind).__name__}" for kind in get_args(union)}
    names |= {f"append {trouble} {topic}" for trouble in TROUBLES for topic in (COMMANDS, EVENTS)}
    names |= {
        "ack larger than a record",
        "publisher goes on from its own mark",
        "stop without end",
        "cancel without end",
        "event time beside a subtask without splits",
        "delta",
        "empty delta",
    }
    states = ("FINISHED", "STOPPED", "CANCELED", "FAILED")
    return (names | {f"end {state}" for state in states}) - EXCEPTIONS.keys()

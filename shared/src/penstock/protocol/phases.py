"""Where a job stands and which moves are legal: the data of `penstock.protocol.jobmaster`."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Where the job stands. Legal moves are in `MOVES`."""

    OPENING = "opening"
    WAITING = "waiting for slots"
    CAPTURING = "capturing offsets"
    BEGINNING = "beginning"
    RUNNING = "running"
    RESTARTING = "restarting"
    ENDING = "recording the end"
    TERMINATED = "terminated"
    SUSPENDED = "suspended"


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.OPENING: frozenset({Phase.WAITING, Phase.RUNNING, Phase.TERMINATED}),
    Phase.WAITING: frozenset({Phase.CAPTURING, Phase.ENDING, Phase.SUSPENDED}),
    Phase.CAPTURING: frozenset({Phase.BEGINNING, Phase.ENDING}),
    Phase.BEGINNING: frozenset({Phase.RUNNING}),
    Phase.RUNNING: frozenset({Phase.RESTARTING, Phase.WAITING, Phase.ENDING, Phase.SUSPENDED}),
    Phase.RESTARTING: frozenset({Phase.WAITING, Phase.ENDING}),
    Phase.ENDING: frozenset({Phase.TERMINATED}),
    Phase.TERMINATED: frozenset(),
    Phase.SUSPENDED: frozenset(),
}

"""Where a job stands and which moves are legal: the data of `penstock.protocol.jobmaster`.

How the moves of any machine are checked stands here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import chain
from typing import TypeVar

from penstock.errors import ProtocolError

RECENT = 8
"""So many former phases an error tells."""

P = TypeVar("P", bound=Enum)


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


def check_move(who: str, moves: Mapping[P, frozenset[P]], recent: Iterable[P], phase: P) -> None:
    """Whether a machine may go on to `phase`; `recent` ends with the phase in which it is.

    Raises:
        ProtocolError: its table does not have this move.
    """
    former = list(recent)[-RECENT:]
    if phase not in moves[former[-1]]:
        path = " -> ".join(p.value for p in chain(former, [phase]))
        raise ProtocolError(f"{who}: {former[-1].value} -> {phase.value} is not a legal move; {path}")

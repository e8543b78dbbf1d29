"""Where a job stands, which moves are legal, and what an ending under way waits for: the data of `jobmaster`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from penstock.protocol.checkpoints import Purpose
from penstock.protocol.jobevents import Requested

CANCEL_DEADLINE_MS = 30_000
"""How long a cancelled job may still publish what is complete."""


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


@dataclass
class Ending:
    """An ending or savepoint under way. Once `checkpoint` is set it is COMPLETE and only publishing is waited for."""

    kind: Literal["finish", "savepoint", "stop", "rescale", "suspend", "cancel"]
    request: str = ""
    drain: bool = False
    reason: str = ""
    checkpoint: int | None = None
    deadline_ms: int | None = None
    requested: Requested | None = None

    @property
    def purpose(self) -> Purpose:
        """Of the checkpoint that the ending takes."""
        return "final" if self.kind == "finish" else "savepoint" if self.kind in ("savepoint", "cancel") else self.kind

"""What histories have beside their faults, drawn from generators of its own: other histories stay what they are.

Appends to `commands` and `events` without a certain answer, which are tried again; acks that are larger than a record
may be; sources that have no end.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.kernel import Violation
from tests.simulation.leading import COMMANDS, EVENTS
from tests.simulation.scenario import Request

from penstock.core.times import MIN_WATERMARK
from penstock.protocol import messages
from penstock.protocol.unsendable import instead_of

if TYPE_CHECKING:
    from tests.simulation.tasks import Task
    from tests.simulation.world import World

TROUBLES = ("error", "lost", "late")
"""Nothing was done; it was done, and is done again; it is done again, and the first time comes behind what follows."""
WAITED = 5
"""So many looks, 100 ms apart, at subtasks that have nothing to do, and nothing is under way between them."""
PATIENCE_MS = 8_000


class Extras:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scenario = world.scenario
        seed = world.scenario.seed
        self._uncertain = random.Random(f"{seed}/uncertain")
        self._sizes = random.Random(f"{seed}/sizes")
        self._ending = random.Random(f"{seed}/end")

    def retried(self, topic: str) -> tuple[str, int]:
        """What becomes of an append to a control topic: whoever sends there tries again until the answer is certain."""
        if "uncertain appends" not in self._scenario.extras:
            return "", 0
        if (
            topic not in (COMMANDS, EVENTS)
            or self._world.kernel.now >= self._scenario.heal_ms
            or self._uncertain.random() > 0.15
        ):
            return "", 0
        trouble = self._uncertain.choice(TROUBLES)
        self._world.coverage.add(f"append {trouble} {topic}")
        return trouble, self._uncertain.randint(10, 200)

    def sendable(self, message: messages.Acknowledged | messages.Declined) -> messages.Acknowledged | messages.Declined:
        """The answer, or what is said instead where it is larger than a record may be."""
        large = "large acks" in self._scenario.extras and self._world.kernel.now < self._scenario.heal_ms
        if not large or self._sizes.random() > 0.2 or isinstance(message, messages.Declined):
            return message
        said = instead_of(message, "it is larger than a record may be")
        assert isinstance(said, messages.Declined)
        self._world.coverage.add("ack larger than a record")
        return said

    def stop_endless(self, waited: int) -> None:
        """Once everything has been read for a while, or that takes too long, somebody ends a job that does not end."""
        if self._world.ended_at is not None:
            return
        tasks = self._live_tasks()
        waited = waited + 1 if tasks and all(task.waits for task in tasks) else 0
        if waited < WAITED and self._world.kernel.now < self._scenario.heal_ms + PATIENCE_MS:
            self._world.kernel.after(100, self.stop_endless, waited)
            return
        if waited:
            self._check_event_time(tasks)
        draw = self._ending
        kind = draw.choice(("stop", "cancel"))
        self._world.coverage.add(f"{kind} without end")
        self._end(Request(self._world.kernel.now, kind, drain=kind == "stop" and draw.random() < 0.5), 0)

    def _end(self, request: Request, asked: int) -> None:
        """Ask again under another id if that was refused: a job may be busy."""
        if self._world.ended_at is not None:
            return
        if not asked or f"end{asked}" in self._world.answers:
            asked += 1
            self._world.ask(f"end{asked}", request, 0)
        self._world.kernel.after(1_000, self._end, request, asked)

    def _live_tasks(self) -> list[Task]:
        """All subtasks of the newest attempt, or none if not all are there."""
        attempt = self._world.newest_attempt
        if not attempt:
            return []
        subtasks = self._scenario.topology(self._world.parallelism_of(attempt)).subtasks
        found = [self._world.live_task(attempt, subtask) for subtask in subtasks]
        return [task for task in found if task is not None] if all(found) else []

    def _check_event_time(self, tasks: list[Task]) -> None:
        """I14: the subtasks behind sources are as far as those that have splits, whatever others have not."""
        if any(task.paused for task in tasks):
            return  # a source that opens while it is paused says only behind it that it has no splits
        reached = [t.operator.watermark for t in tasks if t.vertex == "s" and t.source.progress is not None]
        if not reached:
            return  # no source has opened its splits in this attempt yet
        if len(reached) < sum(task.vertex == "s" for task in tasks) and min(reached) > MIN_WATERMARK:
            self._world.coverage.add("event time beside a subtask without splits")
        for task in tasks:
            if task.vertex in ("m", "k") and task.operator.watermark < min(reached):
                late = task.operator.watermark
                raise Violation(f"I14: {task.deploy.subtask} is held back at {late}, its sources are at {min(reached)}")

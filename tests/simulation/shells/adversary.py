"""A leader that says what a leader may say, in any order and number."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.protocol.messages import (
    AnyCommand,
    CancelAttempt,
    Deploy,
    EpochStarted,
    FinishAttempt,
    LeaderTick,
    SubtaskId,
)

if TYPE_CHECKING:
    from tests.simulation.shells.workers import WorkersWorld

JOBS = ("a" * 32, "b" * 32)


class Adversary:
    """The leader, and deposed ones: sends what a leader may send, in any order and number."""

    def __init__(self, world: WorkersWorld) -> None:
        self._world = world
        self.epoch = 1
        self.numbers = Counter[str]()
        self.attempts: dict[str, str] = {}
        self.sent: list[AnyCommand] = [EpochStarted(epoch=1, leader="c1")]

    def step(self) -> list[AnyCommand]:
        """Some commands that come together."""
        draw = self._world.draw
        action = draw.choice(("deploy",) * 4 + ("cancel", "finish", "again", "again", "old", "tick", "epoch"))
        job = draw.choice(JOBS)
        if action == "deploy":
            return self._deploy(job)
        if action == "epoch":
            self.epoch += 1
            return [EpochStarted(epoch=self.epoch, leader=f"c{self.epoch}")]
        if action == "again":
            return [draw.choice(self.sent)]
        if action == "old":
            return [c for c in [draw.choice(self.sent)] if isinstance(c, Deploy)] * 2
        attempt = self.attempts.get(job, "")
        if action == "cancel" and attempt:
            return [CancelAttempt(epoch=self.epoch, job=job, attempt=attempt, reason="the adversary")]
        if action == "finish" and attempt:
            return [FinishAttempt(epoch=self.epoch, job=job, attempt=attempt)]
        return [LeaderTick(epoch=self.epoch)]

    def _deploy(self, job: str) -> list[AnyCommand]:
        draw, world = self._world.draw, self._world
        self.numbers[job] += 1
        self.attempts[job] = attempt = world.new_id()
        workers = world.registered()
        commands: list[AnyCommand] = [
            Deploy(
                epoch=self.epoch, job=job, attempt=attempt, attempt_number=self.numbers[job],
                subtask=SubtaskId("v", index), worker=draw.choice(workers), generation=0, restore=None, start_offset=0,
            )
            for index in range(draw.randint(1, 2) if workers else 0)
        ]  # fmt: skip
        if draw.random() < 0.3:
            commands += [CancelAttempt(epoch=self.epoch, job=job, attempt=attempt, reason="at once")]
            world.coverage["deploy and cancel at once"] += 1
        if draw.random() < 0.2:
            commands *= 2
        return commands

    def last(self) -> list[AnyCommand]:
        """Both jobs end."""
        self.epoch += 1
        ends = [
            CancelAttempt(epoch=self.epoch, job=job, attempt=self.attempts.get(job, ""), final=True) for job in JOBS
        ]
        return [EpochStarted(epoch=self.epoch, leader="last"), *ends]

"""A worker process: which commands it obeys, which deployments it starts, when it stops without being told."""

from __future__ import annotations

from typing import assert_never

import msgspec

from penstock.protocol.messages import (
    AnyCommand,
    BarrierMarker,
    CancelAttempt,
    CheckpointAborted,
    CheckpointCompleted,
    Deploy,
    EpochStarted,
    FinishAttempt,
    LeaderTick,
    SubtaskId,
    UnknownCommand,
)

LEADER_SILENCE_MS = 60_000
"""A worker that has seen no leader for so long stops its tasks: nobody watches them."""


class StartTask(msgspec.Struct, frozen=True):
    """Start this subtask."""

    deploy: Deploy


class StopTasks(msgspec.Struct, frozen=True):
    """Stop all subtasks of this attempt of the job (of every attempt if empty) at once."""

    job: str
    attempt: str
    reason: str
    final: bool = False
    """No other attempt of the job follows."""


class HandToTasks(msgspec.Struct, frozen=True):
    """Hand this command to the subtasks of its attempt that are deployed now."""

    command: BarrierMarker | CheckpointCompleted | CheckpointAborted | FinishAttempt


WorkerCommand = StartTask | StopTasks | HandToTasks


class WorkerMachine:
    """Follows `commands` from the position that was fixed before the worker registered."""

    def __init__(self, worker: str, now_ms: int, leader_silence_ms: int = LEADER_SILENCE_MS) -> None:
        """`worker` names this process instance; a restarted process has another name."""
        self.worker = worker
        self.highest_epoch = 0
        self.highest_checkpoint = 0
        self._leader_silence_ms = leader_silence_ms
        self._leader_seen_ms = now_ms
        self._started: set[tuple[str, str, SubtaskId]] = set()
        self._live: dict[str, set[str]] = {}
        """Attempts per job that have tasks here."""
        self._newest: dict[str, int] = {}
        """The number of each job's newest attempt that was deployed anywhere."""

    def command_read(self, command: AnyCommand, now_ms: int) -> list[WorkerCommand]:
        """The next record of `commands`."""
        if command.epoch < self.highest_epoch:
            return []
        self.highest_epoch = command.epoch
        self._leader_seen_ms = now_ms
        match command:
            case EpochStarted() | LeaderTick() | UnknownCommand():
                return []
            case Deploy():
                return self._on_deploy(command)
            case BarrierMarker():
                self.highest_checkpoint = max(self.highest_checkpoint, command.checkpoint)
                return [HandToTasks(command)]
            case CheckpointCompleted() | CheckpointAborted():
                return [HandToTasks(command)]
            case FinishAttempt():
                self._forget(command.job, command.attempt)
                others = self._stop_others(command.job, command.attempt, "the job has ended") if command.final else []
                return [HandToTasks(command), *others]
            case CancelAttempt():
                # The end of a job ends what a leader that was deposed meanwhile could not cancel any more, too.
                attempt = "" if command.final else command.attempt
                self._forget(command.job, attempt)
                return [StopTasks(command.job, attempt, command.reason, command.final)]
            case _:
                assert_never(command)

    def time_passed(self, now_ms: int) -> list[WorkerCommand]:
        """Called from time to time."""
        if now_ms - self._leader_seen_ms < self._leader_silence_ms or not self._live:
            return []
        silent = [StopTasks(job, "", "no leader was heard of") for job in self._live]
        self._live.clear()
        return [*silent]

    def deaf(self, duration_ms: int) -> None:
        """`commands` could not be read for so long: that says nothing about the leader."""
        self._leader_seen_ms += duration_ms

    def _on_deploy(self, deploy: Deploy) -> list[WorkerCommand]:
        """Another instance's deploy is not for us; a newer attempt ends older ones of its job, a late one nothing."""
        if deploy.attempt_number < self._newest.get(deploy.job, 0):
            return []
        self._newest[deploy.job] = deploy.attempt_number
        commands = self._stop_others(deploy.job, deploy.attempt, "a newer attempt is deployed")
        identity = (deploy.job, deploy.attempt, deploy.subtask)
        if deploy.worker != self.worker or identity in self._started:
            return commands
        self._started.add(identity)
        self._live.setdefault(deploy.job, set()).add(deploy.attempt)
        return [*commands, StartTask(deploy)]

    def _stop_others(self, job: str, attempt: str, reason: str) -> list[WorkerCommand]:
        others = sorted(self._live.get(job, set()) - {attempt})
        for other in others:
            self._forget(job, other)
        return [StopTasks(job, other, reason) for other in others]

    def _forget(self, job: str, attempt: str) -> None:
        attempts = self._live.get(job)
        if attempts is not None:
            attempts.discard(attempt)
            if not attempts or not attempt:
                del self._live[job]

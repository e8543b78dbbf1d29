"""The mutants that these histories must kill: production's classes with one rule taken out."""

from __future__ import annotations

from tests.simulation.mutants import Mutant, Patch

from penstock.connectors.files import writing as file_writing
from penstock.connectors.files.writing import FileWriter
from penstock.coordination.job_catalog import JobCatalog
from penstock.jobmanager.coordinator import CoordinatorService
from penstock.jobmanager.job_shell import JobShell
from penstock.jobmanager.leadership import Leadership
from penstock.protocol.committing import StagedParts
from penstock.protocol.leader import LeaderMachine
from penstock.protocol.worker import WorkerMachine
from penstock.task import opening, sinks
from penstock.taskmanager import event_appender, worker
from penstock.taskmanager.worker import WorkerService

_SINKS = (
    Mutant(1, "recover_takes_newer_attempts_for_older", (
        Patch(file_writing, "_is_older", (("int(number[1]) <= attempt_number", "True"),)),
        Patch(sinks, "prepare_sink", (("    await _check_turn(deploy, store)\n", ""),), also=(opening,)),
    )),
    Mutant(2, "commit_without_complete", (
        Patch(StagedParts, "to_commit", (("if part.checkpoint <= self._complete", ""),)),
    )),
    Mutant(3, "commit_without_proof", (
        Patch(FileWriter, "commit", (("proof.touch()\n            _persist(proof)", "pass"),)),
    )),
    Mutant(4, "proof_is_not_durable", (Patch(FileWriter, "commit", (("            _persist(proof)\n", ""),)),)),
    Mutant(5, "rename_is_not_durable", (Patch(FileWriter, "commit", (
        ("    _fsync(self._folder)\n", ""), ("    _fsync(self._folder / STAGING)", "    pass"),
    )),)),
    Mutant(6, "staged_file_is_not_durable", (Patch(FileWriter, "prepare", ((
        "Prepared([committable], lambda: _persist(path))", "Prepared([committable])",
    ),)),)),
    Mutant(7, "proof_forgotten_at_once", (Patch(StagedParts, "to_forget", (
        ("[part for checkpoint, part in self._unlisted if checkpoint <= self._complete]", "list(self._visible)"),
    )),)),
    Mutant(8, "large_event_ends_who_sends_it", (Patch(event_appender, "append_events", (
        ("if len(events) == 1:", "raise\n        if len(events) == 1:"),
    ), also=(worker,)),)),
)  # fmt: skip
_LEADERS = (
    Mutant(11, "epoch_of_another_taken_for_own", (Patch(Leadership, "_create_epoch", ((
        "EpochCreated(epoch) if owner == self._name.encode() else EpochTaken(epoch)", "EpochCreated(epoch)",
    ),)),)),
    Mutant(12, "lease_is_not_watched", (
        Patch(LeaderMachine, "_overdue", (("return self._stop(\"the lease was not renewed in time\")", "return []"),)),
        Patch(LeaderMachine, "_on_lease", ((
            'return self._stop("the lease is held by another") if self._held_since_ms is not None else []', "return []",
        ),)),
    )),
    Mutant(13, "masters_outlive_leadership", (Patch(CoordinatorService, "_stop", (
        ("tasks = [*self._shells.values(), *([self._leading] if self._leading else [])]",
         "tasks = [self._leading] if self._leading else []"),
    )),)),
    Mutant(14, "one_job_ends_leadership", (Patch(CoordinatorService, "_open", ((
        "self._open_later(job, command, error, markers)\n        return", "raise",
    ),)),)),
    Mutant(15, "submission_lost_by_a_conflict", (Patch(JobCatalog, "create", ((
        "if not await self._exists(key):", "if False:",
    ),)),)),
    Mutant(16, "requests_noted_before_they_are_answered", (Patch(CoordinatorService, "_serve_requests", ((
        "handled = min(self._waiting, default=position)", "handled = position",
    ),)),)),
    Mutant(17, "slots_of_an_ended_job_kept", (
        Patch(CoordinatorService, "_closed", (("self._slots.release(job)", "pass"),)),
    )),
    Mutant(18, "a_candidate_counts_slots_as_it_heard_them", (
        Patch(CoordinatorService, "_work", (
            ("self._slots, self._to_open = SlotPool(), set(active)", "self._to_open = set(active)"),
        )),
        Patch(CoordinatorService, "_occupies_slot", ((
            "return status.job in self._to_open or self._unopened.get(status.job) is not None", "return True",
        ),)),
    )),
    Mutant(19, "a_master_that_fails_is_not_opened_again", (Patch(CoordinatorService, "_look_after", ((
        "self._open_later(shell.job, command, error, shell.markers, lived_ms)", "pass",
    ),)),)),
    Mutant(24, "rescaled_without_slots", (Patch(JobShell, "_waits_for_slots", (
        ("if lacking and not request.wait:", "if False:"), ("return lacking > 0", "return False"),
    )),)),
)  # fmt: skip
_WORKERS = (
    Mutant(21, "ended_subtask_stays_listed", (Patch(WorkerService, "_ended", (("del self._tasks[key]", "pass"),)),)),
    Mutant(22, "failing_while_stopped_stays_listed", (Patch(WorkerService, "_ended", ((
        "(task.stopped or not task.failed)", "not task.failed",
    ),)),)),
    Mutant(23, "older_deploy_wins", (Patch(WorkerMachine, "_on_deploy", ((
        "if deploy.attempt_number < self._newest.get(deploy.job, 0):", "if False:",
    ),)),)),
)  # fmt: skip
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in (*_SINKS, *_LEADERS, *_WORKERS)}
SET_OF: dict[str, str] = {
    **{mutant.name: "cluster" for mutant in (*_SINKS, *_LEADERS)}, **{mutant.name: "workers" for mutant in _WORKERS},
}  # fmt: skip
"""Which histories kill a mutant."""

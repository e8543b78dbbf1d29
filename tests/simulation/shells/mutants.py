"""The mutants that these histories must kill: production's classes with one rule taken out."""

from __future__ import annotations

from tests.simulation.mutating import Mutant, Patch, called, condition, returned, statement

from penstock.connectors.files.local import LocalParts
from penstock.connectors.files.writing import FileWriter
from penstock.coordination.job_catalog import JobCatalog
from penstock.jobmanager.coordinator import CoordinatorService
from penstock.jobmanager.job_shell import JobShell
from penstock.jobmanager.leadership import Leadership
from penstock.protocol.committing import StagedParts
from penstock.protocol.leader import LeaderMachine
from penstock.protocol.slots import SlotPool
from penstock.protocol.worker import WorkerMachine
from penstock.task import opening, sinks, snapshots, subtask_checkpoints
from penstock.task.exchange import ExchangeWriter
from penstock.task.exchange_io import ExchangeReader
from penstock.taskmanager import event_appender, worker
from penstock.taskmanager.worker import WorkerService

_SINKS = (
    Mutant(1, "recover_takes_newer_attempts_for_older", (
        Patch(sinks, "prepare_sink", statement("_check_turn"), also=(opening,)),
    )),
    Mutant(2, "commit_without_complete", (Patch(StagedParts, "to_commit", condition("_complete", becomes="True")),)),
    Mutant(3, "commit_without_proof", (Patch(LocalParts, "publish", statement("touch"), statement("_persist")),)),
    Mutant(4, "proof_is_not_durable", (Patch(LocalParts, "publish", statement("_persist")),)),
    Mutant(5, "rename_is_not_durable", (
        Patch(LocalParts, "publish", statement("_fsync", "STAGING"), statement("_fsync", "target", becomes="pass")),
    )),
    Mutant(6, "staged_file_is_not_durable", (
        Patch(FileWriter, "prepare", returned("persist", becomes="return Prepared(committables)")),
    )),
    Mutant(7, "proof_forgotten_at_once", (
        Patch(StagedParts, "to_forget", returned("_unlisted", becomes="return list(self._visible)")),
    )),
    Mutant(8, "large_event_ends_who_sends_it", (Patch(
        event_appender, "append_events", condition("len", becomes="True"), statement("_append_instead", becomes="raise"),
        also=(worker,),
    ),)),
    Mutant(9, "attempt_that_is_restored_replaces_again", (
        Patch(sinks, "prepare_sink", condition("restore", becomes="True"), also=(opening,)),
    )),
    Mutant(20, "credit_is_reported_once", (
        Patch(ExchangeReader, "report_credit", condition("due", "_is_news", becomes="not self._is_news(processed)")),
    )),
)  # fmt: skip
_SIZES = (
    Mutant(25, "frames_as_large_as_they_come", (Patch(ExchangeWriter, "_cut", called("int", becomes="MAX_ROWS")),)),
    Mutant(26, "large_lists_stand_in_the_ack", (Patch(snapshots, "upload", condition("MAX_BESIDE_BYTES"), also=(
        subtask_checkpoints,
    )),)),
)  # fmt: skip
_LEADERS = (
    Mutant(11, "epoch_of_another_taken_for_own", (
        Patch(Leadership, "_create_epoch", condition("owner", becomes="True")),
    )),
    Mutant(12, "lease_is_not_watched", (
        Patch(LeaderMachine, "_overdue", returned("_stop", becomes="return []")),
        Patch(LeaderMachine, "_on_lease", returned("_stop", becomes="return []")),
    )),
    Mutant(13, "masters_outlive_leadership", (Patch(CoordinatorService, "_stop", statement(
        "tasks", "_shells", becomes="tasks = [self._leading] if self._leading else []",
    )),)),
    Mutant(14, "one_job_ends_leadership", (Patch(CoordinatorService, "_open", statement(
        "_open_later", becomes="raise",
    )),)),
    Mutant(15, "submission_lost_by_a_conflict", (Patch(JobCatalog, "create", condition("_exists", "key")),)),
    Mutant(16, "requests_noted_before_they_are_answered", (Patch(CoordinatorService, "_serve_requests", statement(
        "handled", "_waiting", becomes="handled = position",
    )),)),
    Mutant(17, "slots_of_an_ended_job_kept", (Patch(CoordinatorService, "_closed", statement("_slots", "release")),)),
    Mutant(18, "a_candidate_counts_slots_as_it_heard_them", (
        Patch(CoordinatorService, "_work", statement("SlotPool", becomes="self._to_open = set(active)")),
        Patch(CoordinatorService, "_occupies_slot", returned("_to_open", becomes="return True")),
    )),
    Mutant(19, "a_master_that_fails_is_not_opened_again", (
        Patch(CoordinatorService, "_look_after", statement("_open_later")),
    )),
    Mutant(24, "rescaled_without_slots", (Patch(
        JobShell, "_waits_for_slots", condition("wait"), returned("lacking", becomes="return False"),
    ),)),
)  # fmt: skip
_COMPETING = (
    Mutant(27, "slots_that_contradict_their_worker_kept", (Patch(SlotPool, "heard", condition("bound_to", "job")),)),
)
_WORKERS = (
    Mutant(21, "ended_subtask_stays_listed", (Patch(WorkerService, "_ended", statement("_tasks")),)),
    Mutant(22, "failing_while_stopped_stays_listed", (Patch(WorkerService, "_ended", condition("stopped")),)),
    Mutant(23, "older_deploy_wins", (Patch(WorkerMachine, "_on_deploy", condition("attempt_number")),)),
)  # fmt: skip
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in (*_SINKS, *_SIZES, *_LEADERS, *_COMPETING, *_WORKERS)}
SET_OF: dict[str, str] = {
    **{mutant.name: "cluster" for mutant in (*_SINKS, *_SIZES, *_LEADERS)},
    **{mutant.name: "competing" for mutant in _COMPETING},
    **{mutant.name: "workers" for mutant in _WORKERS},
}  # fmt: skip
"""Which histories kill a mutant."""

"""The mutants that the simulation must kill: the production protocol with one rule taken out."""

from __future__ import annotations

from tests.simulation import snapshots
from tests.simulation.mutating import KEPT, Mutant, Patch, begins, called, condition, returned, statement, value

from penstock.protocol import completing, incremental, joblog, joblog_writer, jobmaster, manifests, restoring
from penstock.protocol.channels import InputGate
from penstock.protocol.checkpoints import CheckpointBook
from penstock.protocol.endings import Endings
from penstock.protocol.incremental import LiveObjects, SnapshotChains
from penstock.protocol.leader import LeaderMachine
from penstock.protocol.publishing import ProducerEpoch, PublisherMachine
from penstock.protocol.sinkcredit import SinkCredit
from penstock.protocol.split_publishing import SplitPublisherMachine
from penstock.protocol.subtask import SubtaskMachine
from penstock.protocol.trimming import PartitionHolds
from penstock.protocol.uploading import UploadMachine
from penstock.protocol.worker import WorkerMachine


def _mutant(number: int, name: str, *patches: Patch) -> Mutant:
    return Mutant(number, name, patches)


CARELESS = (
    Patch(SnapshotChains, "snapshot_stored", statement("_stored", becomes="self._base = dict(chains)")),
    Patch(SnapshotChains, "completed", begins("return")),
)
"""Alone they lose nothing: the leader does not let a checkpoint become COMPLETE that names what may be gone."""

_ALL = (
    _mutant(1, "publish_without_reading_the_mark", Patch(PublisherMachine, "_on_producer", returned(
        "ReadMark", becomes="return self._on_mark(self._mark) if self._announced else [ReadMark()]",
    ))),
    _mutant(2, "mark_outside_the_transaction",
        Patch(PublisherMachine, "_commit", returned(
            "CommitTransaction", becomes="self._second = mark if refs else None\n"
            "return [CommitTransaction(refs, self._mark if refs else mark)]",
        )),
        Patch(PublisherMachine, "_on_committed", statement(
            "_committing", becomes=f"{KEPT}\n"
            "second, self._second = self._second, None\n"
            "if second is not None:\n"
            "    return [CommitTransaction((), second)]",
        )),
    ),
    _mutant(3, "no_attempt_filter", Patch(PublisherMachine, "_on_frames", condition(
        "attempt", "last_seq", becomes="frame.attempt == attempt and frame.seq <= last_seq",
    ))),
    _mutant(4, "completions_keyed_by_number_alone",
        Patch(CheckpointBook, "_key", returned("checkpoint", becomes='return ("", pending.checkpoint, "")')),
        Patch(CheckpointBook, "acknowledged", called(
            "get", "checkpoint", becomes='self._pending.get(("", message.checkpoint, ""))',
        )),
    ),
    _mutant(5, "ack_before_upload_is_durable", Patch(UploadMachine, "unknown", statement(
        "_missing", becomes="return self.stored(key)",
    ))),
    _mutant(6, "ack_before_frames_are_confirmed", Patch(SubtaskMachine, "_acks", condition("all_confirmed"))),
    _mutant(7, "barrier_overtakes_data", Patch(SubtaskMachine, "_on_frozen", statement(
        "FlushRows", "SendBarrier",
        becomes="commands = [SendBarrier(checkpoint, nonce, flavour), FlushRows(), Upload(checkpoint, nonce)]",
    ))),
    _mutant(8, "duplicate_accepted", Patch(InputGate, "receive",
        condition("last_seq", "<=", becomes="frame.seq < state.last_seq"),
        condition("last_seq", "!=", becomes="frame.seq > state.last_seq + 1"),
        condition("ordinal", "!="),
    )),
    _mutant(9, "gap_accepted", Patch(InputGate, "receive", condition("last_seq", "!="), condition("ordinal", "!="))),
    _mutant(10, "credit_shared_by_a_partition", Patch(InputGate, "processed_bytes", returned(
        "_channels", becomes="return {c: s.processed_bytes - sum(i.size_bytes for i in self._stash"
        " if i.frame.channel != c) for c, s in self._channels.items()}",
    ))),
    _mutant(11, "sink_credit_returned_on_publish", Patch(SinkCredit, "processed_bytes", statement(
        "waiting_bytes", becomes="withheld = max(0, sum(size for _, size in self._frames))",
    ))),
    _mutant(12, "abort_drops_a_barrier",
        Patch(SubtaskMachine, "_on_aborted", begins(
            "self._dropped = {*getattr(self, '_dropped', ()), message.checkpoint}",
        )),
        Patch(SubtaskMachine, "_gate_commands", statement(
            "_freeze", becomes="if command.checkpoint in getattr(self, '_dropped', ()):\n"
            "    result += self._gate_commands(self.gate.resume())\n"
            f"else:\n    {KEPT}",
        )),
    ),
    _mutant(13, "sources_finish_without_final_checkpoint", Patch(jobmaster.JobMaster, "_while_running", statement(
        "sources_ended", becomes='return commands + self._terminate("FINISHED", "")',
    ))),
    _mutant(14, "savepoint_done_before_published", Patch(Endings, "published", condition(
        "_generation_published", becomes='self.current.kind == "savepoint"',
    ))),
    _mutant(15, "rescale_begins_before_published", Patch(Endings, "published", condition(
        "_generation_published", becomes='self.current.kind == "rescale"',
    ))),
    _mutant(16, "epoch_from_metadata_only", Patch(LeaderMachine, "_mint", returned(
        "CreateEpoch", becomes="return self._on_epoch_created(epoch)",
    ))),
    _mutant(17, "complete_accepted_for_an_old_begin",
        Patch(joblog.JobHistory, "_check_complete", condition("begin", "attempt")),
        Patch(jobmaster.JobMaster, "_on_begin_recorded", statement("_completions", "attempt_begins")),
    ),
    _mutant(18, "timeout_of_a_put_is_failure", Patch(joblog_writer.JobLogWriter, "unknown", returned(
        "CreateRecord", becomes="self._in_flight = None\nreturn self._next()",
    ))),
    _mutant(19, "trim_below_a_retained_position", Patch(PartitionHolds, "trim_to", called(
        "min", becomes="max(self._holds.values())",
    ))),
    _mutant(20, "restored_watermark_is_the_minimum", Patch(restoring, "key_group_watermarks", returned(
        "result", becomes="lowest = min((s.watermark for s in parts.values()), default=0)\n"
        "return dict.fromkeys(result, lowest)",
    ), also=(snapshots,))),
    _mutant(21, "old_deploy_executed_after_restart", Patch(WorkerMachine, "_on_deploy", condition(
        "worker", becomes='deploy.worker.split("#")[0] != self.worker.split("#")[0]',
    ))),
    _mutant(22, "terminated_job_resurrected",
        Patch(jobmaster.JobMaster, "_on_opened", condition("terminated")),
        Patch(joblog.JobHistory, "check", condition("terminated")),
    ),
    _mutant(23, "second_leader_deploys_again", Patch(jobmaster.JobMaster, "_adopt",
        statement("_move", becomes=f"{KEPT}\n"
        "others = sorted({w for w, _ in opened.statuses.values()})\n"
        "self._tasks.adopt({s: (others[(others.index(w) + 1) % len(others)], status)"
        " for s, (w, status) in opened.statuses.items()})\n"
        "again = [self._deploy(self.history.begin, s) for s in self.topology.subtasks]"),
        statement("commands", "JobCommand", becomes="commands = again"),
    )),
    _mutant(24, "complete_after_a_later_complete",
        Patch(CheckpointBook, "completed", statement("lower", "<", becomes="lower = []")),
        Patch(joblog.JobHistory, "_check_complete", condition("highest_checkpoint")),
        Patch(jobmaster.JobMaster, "_on_manifest", condition("highest_checkpoint")),
    ),
    _mutant(25, "objects_that_are_gone_are_not_missed", Patch(LiveObjects, "missing", begins("return []")), *CARELESS),
    _mutant(26, "newest_complete_is_not_repeated", Patch(jobmaster.JobMaster, "_adopt", statement(
        "_announce", "completed",
    ))),
    _mutant(27, "manifest_omits_unpublished_intervals", Patch(manifests, "open_intervals", statement(
        "kept", "visible", becomes="kept = []",
    ), also=(completing,))),
    _mutant(28, "gap_published", Patch(PublisherMachine, "_on_frames", condition("last_seq", "!=", "+"))),
    _mutant(29, "interval_without_its_barrier_published", Patch(PublisherMachine, "_on_frames", condition(
        "_ends_in_its_barrier",
    ))),
    _mutant(30, "failed_before_published", Patch(jobmaster.JobMaster, "_fail", called(
        "fails", becomes='self._terminate("FAILED", reason)',
    ))),
    _mutant(31, "changed_graph_begins_before_published", Patch(Endings, "opened", value("_newest", becomes="0"))),
    _mutant(32, "repeated_deploy_starts_again", Patch(WorkerMachine, "_on_deploy", condition("_started"))),
    _mutant(33, "idle_channel_holds_back_event_time", Patch(InputGate, "_accept", statement("rest"))),
    _mutant(34, "exchanges_in_another_shape_are_asked_for_again", Patch(
        jobmaster.JobMaster, "_on_exchanges_taken", returned(
            "CaptureOffsets", becomes="self._generation = event.generation\n"
            "return [CaptureOffsets(event.generation, self.topology.exchanges)]",
        ),
    )),
    _mutant(35, "objects_that_are_named_are_deleted",
        Patch(LiveObjects, "completed", statement("_named", becomes="self._named = []")),
        Patch(LiveObjects, "missing", begins("return []")),
    ),
    _mutant(36, "deltas_do_not_count_as_named", Patch(incremental, "named_objects", value("objects", "handles.parts"))),
    _mutant(37, "savepoint_names_objects_of_others",
        Patch(CheckpointBook, "flavour", condition("SELF_CONTAINED")),
        Patch(completing.Completions, "missing", condition("SELF_CONTAINED")),
        Patch(completing.Completions, "record", called("bool", becomes="False")),
    ),
    _mutant(38, "any_epoch_counts_as_the_next", Patch(ProducerEpoch, "follows", returned(
        "epoch", becomes="return other is not None",
    ))),
    _mutant(39, "doubtful_commit_counts_as_none", Patch(PublisherMachine, "_back_off", begins(
        "self._committed_as = self._granted",
    ))),
    _mutant(40, "doubtful_producer_goes_on", Patch(PublisherMachine, "_commit", statement("_ready"))),
    _mutant(41, "split_goes_on_without_reading_its_mark", Patch(SplitPublisherMachine, "_on_producer", condition(
        "alone", becomes="not alone and self._mark is None",
    ))),
    _mutant(42, "restored_position_of_a_split_wins", Patch(SplitPublisherMachine, "_opened", statement(
        "_mark", "SplitMark", becomes="self._mark, self._committing = SplitMark(mark.number if mark else 0, 0,"
        " self._restored), None",
    ))),
    _mutant(43, "ack_before_rows_of_splits_are_published", Patch(SplitPublisherMachine, "handle", statement(
        "offered", becomes=f"{KEPT}\nself.covered = self.offered",
    ))),
    _mutant(44, "doubtful_rows_of_a_split_are_published_again", Patch(SplitPublisherMachine, "_on_mark",
        condition("_committing", "=="),
        condition("mark", "!=", becomes="self.__dict__.update(_mark=mark)"),
    )),
    _mutant(45, "doubtful_rows_of_a_split_count_as_published", Patch(SplitPublisherMachine, "_on_mark", condition(
        "_committing", "==", becomes="self._announced",
    ))),
    _mutant(46, "newer_attempt_of_a_split_is_not_seen", Patch(SplitPublisherMachine, "_on_mark",
        condition("attempt_number", ">"),
    )),
    _mutant(47, "attempt_is_not_announced_in_the_mark", Patch(SplitPublisherMachine, "_go_on", condition(
        "_announced", becomes="self.__dict__.update(_announced=True)",
    ))),
    _mutant(48, "barrier_marks_no_position_without_rows", Patch(SplitPublisherMachine, "handle", statement(
        "_flushed", becomes="pass",
    ))),
)  # fmt: skip
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _ALL}

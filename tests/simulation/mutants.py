"""The mutants that the simulation must kill: the production protocol with one rule taken out.

A mutant replaces exact snippets of production functions and fails loudly if a snippet is no longer there.
"""

from __future__ import annotations
import __future__

import contextlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.simulation import snapshots

from penstock.protocol import completing, joblog, jobmaster, manifests, restoring
from penstock.protocol.channels import InputGate
from penstock.protocol.checkpoints import CheckpointBook
from penstock.protocol.endings import Endings
from penstock.protocol.incremental import IncrementalHandles, LiveObjects
from penstock.protocol.leader import LeaderMachine
from penstock.protocol.publishing import PublisherMachine
from penstock.protocol.sinkcredit import SinkCredit
from penstock.protocol.subtask import SubtaskMachine
from penstock.protocol.trimming import PartitionHolds
from penstock.protocol.uploading import UploadMachine
from penstock.protocol.worker import WorkerMachine


@dataclass(frozen=True)
class Patch:
    """Replacements in one function of a class or a module."""

    owner: Any
    function: str
    replacements: tuple[tuple[str, str], ...]
    also: tuple[Any, ...] = ()
    """Modules that imported the function by name."""

    def mutated(self) -> Any:
        """The function with the replacements made."""
        original = inspect.getattr_static(self.owner, self.function)
        function = original.__func__ if isinstance(original, staticmethod) else original
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in self.replacements:
            if source.count(old) != 1:
                raise AssertionError(f"{self.function}: {old!r} stands there {source.count(old)} times, expected once")
            source = source.replace(old, new)
        namespace: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(source, f"<mutant of {self.function}>", "exec", flags), function.__globals__, namespace)
        mutant = namespace[self.function]
        return staticmethod(mutant) if "@staticmethod" in source and not isinstance(mutant, staticmethod) else mutant


@dataclass(frozen=True)
class Mutant:
    """A broken protocol."""

    number: int
    name: str
    patches: tuple[Patch, ...]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """With the protocol broken."""
        with contextlib.ExitStack() as stack:
            for patch in self.patches:
                mutated = patch.mutated()
                for owner in (patch.owner, *patch.also):
                    original = inspect.getattr_static(owner, patch.function)
                    setattr(owner, patch.function, mutated)
                    stack.callback(setattr, owner, patch.function, original)
            yield


def _mutant(number: int, name: str, *patches: Patch) -> Mutant:
    return Mutant(number, name, patches)


_ALL = (
    _mutant(1, "publish_without_reading_the_mark", Patch(PublisherMachine, "handle", ((
        "return [ReadMark()]",
        "return self._on_mark(self._mark) if self._announced else [ReadMark()]",
    ),))),
    _mutant(2, "mark_outside_the_transaction",
        Patch(PublisherMachine, "_commit", ((
            "return [CommitTransaction(refs, mark)]",
            "self._second = mark if refs else None\n"
            "    return [CommitTransaction(refs, self._mark if refs else mark)]",
        ),)),
        Patch(PublisherMachine, "_on_committed", ((
            "self._mark = self._committing",
            "self._mark = self._committing\n"
            "    second, self._second = self._second, None\n"
            "    if second is not None:\n"
            "        return [CommitTransaction((), second)]",
        ),)),
    ),
    _mutant(3, "no_attempt_filter", Patch(PublisherMachine, "_on_frames", ((
        "if frame.attempt != attempt or frame.seq <= last_seq:",
        "if frame.attempt == attempt and frame.seq <= last_seq:",
    ),))),
    _mutant(4, "completions_keyed_by_number_alone",
        Patch(CheckpointBook, "_key", ((
            "return (pending.attempt, pending.checkpoint, pending.nonce)", 'return ("", pending.checkpoint, "")',
        ),)),
        Patch(CheckpointBook, "acknowledged", ((
            "(message.attempt, message.checkpoint, message.nonce)", '("", message.checkpoint, "")',
        ),)),
    ),
    _mutant(5, "ack_before_upload_is_durable", Patch(UploadMachine, "unknown", ((
        "self._missing[key] -= 1", "return self.stored(key)",
    ),))),
    _mutant(6, "ack_before_frames_are_confirmed", Patch(SubtaskMachine, "_acks", ((
        "if not self.ledger.all_confirmed(pending.barrier_seqs):", "if False:",
    ),))),
    _mutant(7, "barrier_overtakes_data", Patch(SubtaskMachine, "_on_frozen", ((
        "FlushRows(),\n        SendBarrier(checkpoint, nonce, flavour),",
        "SendBarrier(checkpoint, nonce, flavour),\n        FlushRows(),",
    ),))),
    _mutant(8, "duplicate_accepted", Patch(InputGate, "receive", (
        ("if frame.seq <= state.last_seq:", "if frame.seq < state.last_seq:"),
        ("if frame.seq != state.last_seq + 1:", "if frame.seq > state.last_seq + 1:"),
        ("if frame.ordinal != state.ordinal:", "if False:"),
    ))),
    _mutant(9, "gap_accepted", Patch(InputGate, "receive", (
        ("if frame.seq != state.last_seq + 1:", "if False:"), ("if frame.ordinal != state.ordinal:", "if False:"),
    ))),
    _mutant(10, "credit_shared_by_a_partition", Patch(InputGate, "processed_bytes", ((
        "{channel: state.processed_bytes for channel, state in self._channels.items()}",
        "{c: s.processed_bytes - sum(i.size_bytes for i in self._stash if i.frame.channel != c)"
        " for c, s in self._channels.items()}",
    ),))),
    _mutant(11, "sink_credit_returned_on_publish", Patch(SinkCredit, "processed_bytes", (
        ("self.waiting_bytes - self._limit_bytes", "sum(size for _, size in self._frames)"),
    ))),
    _mutant(12, "abort_drops_a_barrier",
        Patch(SubtaskMachine, "_on_aborted", ((
            "if message.attempt != self.attempt or",
            "self._dropped = {*getattr(self, '_dropped', ()), message.checkpoint}\n"
            "    if message.attempt != self.attempt or",
        ),)),
        Patch(SubtaskMachine, "_gate_commands", ((
            "case Align():\n",
            "case Align() if command.checkpoint in getattr(self, '_dropped', ()):\n"
            "                result += self._gate_commands(self.gate.resume())\n"
            "            case Align():\n",
        ),)),
    ),
    _mutant(13, "sources_finish_without_final_checkpoint", Patch(jobmaster.JobMaster, "_while_running", ((
        "self._endings.sources_ended()", 'return commands + self._terminate("FINISHED", "")',
    ),))),
    _mutant(14, "savepoint_done_before_published", Patch(Endings, "published", ((
        "return self._generation_published or tasks.",
        'return self.current.kind == "savepoint" or tasks.',
    ),))),
    _mutant(15, "rescale_begins_before_published", Patch(Endings, "published", ((
        "return self._generation_published or tasks.",
        'return self.current.kind == "rescale" or tasks.',
    ),))),
    _mutant(16, "epoch_from_metadata_only", Patch(LeaderMachine, "_mint", ((
        "return [CreateEpoch(epoch)]", "return self._on_epoch_created(epoch)",
    ),))),
    _mutant(17, "complete_accepted_for_an_old_begin",
        Patch(joblog.JobHistory, "_check_complete", ((
            "if self.begin is None or record.attempt != self.begin.attempt:", "if False:",
        ),)),
        Patch(jobmaster.JobMaster, "_on_begin_recorded", (("self._completions.attempt_begins()", "pass"),)),
    ),
    _mutant(18, "timeout_of_a_put_is_failure", Patch(joblog.JobLogWriter, "unknown", ((
        "return [CreateRecord(self._in_flight)]", "self._in_flight = None\n    return self._next()",
    ),))),
    _mutant(19, "trim_below_a_retained_position", Patch(PartitionHolds, "trim_to", ((
        "min(self._holds.values())", "max(self._holds.values())",
    ),))),
    _mutant(20, "restored_watermark_is_the_minimum", Patch(restoring, "key_group_watermarks", ((
        "return result", "lowest = min((s.watermark for s in parts.values()), default=0)\n"
        "    return dict.fromkeys(result, lowest)",
    ),), also=(snapshots,))),
    _mutant(21, "old_deploy_executed_after_restart", Patch(WorkerMachine, "_on_deploy", ((
        "deploy.worker != self.worker", 'deploy.worker.split("#")[0] != self.worker.split("#")[0]',
    ),))),
    _mutant(22, "terminated_job_resurrected",
        Patch(jobmaster.JobMaster, "_on_opened", (("if self.history.terminated is not None:", "if False:"),)),
        Patch(joblog.JobHistory, "check", (("if self.terminated is not None:", "if False:"),)),
    ),
    _mutant(23, "second_leader_deploys_again", Patch(jobmaster.JobMaster, "_adopt", ((
        "self._move(Phase.RUNNING)",
        "self._move(Phase.RUNNING)\n"
        "    others = sorted({w for w, _ in opened.statuses.values()})\n"
        "    self._tasks.adopt({s: (others[(others.index(w) + 1) % len(others)], status)"
        " for s, (w, status) in opened.statuses.items()})\n"
        "    again = [self._deploy(self.history.begin, s) for s in self.topology.subtasks]",
    ), ("commands: list[JobCommand] = []", "commands: list[JobCommand] = again"),
    ))),
    _mutant(24, "complete_after_a_later_complete",
        Patch(CheckpointBook, "completed", ((
            "lower = [p for p in self.pending if p.checkpoint < checkpoint]", "lower = []",
        ),)),
        Patch(joblog.JobHistory, "_check_complete", (("if record.checkpoint <= self.highest_checkpoint:", "if False:"),)),
        Patch(jobmaster.JobMaster, "_on_manifest", ((
            "if event.checkpoint <= self.history.highest_checkpoint:", "if False:",
        ),)),
    ),
    _mutant(25, "handle_of_an_aborted_checkpoint_reused", Patch(IncrementalHandles, "taken", ((
        "self._taken[checkpoint] = dict(handles)", "self._base = dict(handles)",
    ),)), Patch(LiveObjects, "missing", (("keys = self.keys", "return []"),))),
    _mutant(26, "newest_complete_is_not_repeated", Patch(jobmaster.JobMaster, "_adopt", ((
        "commands.append(self._announce.completed(complete))", "pass",
    ),))),
    _mutant(27, "manifest_omits_unpublished_intervals", Patch(manifests, "open_intervals", ((
        "[interval for interval in earlier if interval.checkpoint > visible]", "[]",
    ),), also=(completing,))),
    _mutant(28, "gap_published", Patch(PublisherMachine, "_on_frames", ((
        "if frame.seq != last_seq + 1:", "if False:",
    ),))),
    _mutant(29, "interval_without_its_barrier_published", Patch(PublisherMachine, "_on_frames", ((
        "if interval.end <= position and not _ends_in_its_barrier(interval, counted):", "if False:",
    ),))),
    _mutant(30, "failed_before_published", Patch(jobmaster.JobMaster, "_fail", ((
        "failed, *self._endings.fails(reason, now_ms)]", 'failed, *self._terminate("FAILED", reason)]',
    ),))),
    _mutant(31, "changed_graph_begins_before_published", Patch(Endings, "opened", ((
        "checkpoint=self._newest)", "checkpoint=0)",
    ),))),
    _mutant(32, "repeated_deploy_starts_again", Patch(WorkerMachine, "_on_deploy", ((
        "or identity in self._started", "",
    ),))),
    _mutant(33, "idle_channel_holds_back_event_time", Patch(InputGate, "_accept", ((
        "self._progress.rest(state)", "pass",
    ),))),
)  # fmt: skip
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _ALL}

"""The checkpoints of one subtask: what is frozen at a barrier, and made durable while the subtask goes on.

When that is to be done is decided by `SubtaskMachine`, what a snapshot consists of by `penstock.task.snapshots`. Flink
calls it the SubtaskCheckpointCoordinator.
"""

from __future__ import annotations

from penstock.errors import BadRecordError, ExternalError, PipelineError, described
from penstock.protocol.incremental import SnapshotChains
from penstock.protocol.manifests import blob_prefix
from penstock.protocol.restoring import watermarks_above
from penstock.protocol.subtask import Upload, Uploaded, UploadFailed
from penstock.task.chain import Chain
from penstock.task.committer import STAGED, Committer
from penstock.task.environment import TaskEnvironment
from penstock.task.opening import SPLITS
from penstock.task.operator import OperatorSnapshot
from penstock.task.snapshots import FrozenSubtask, chains_of, upload
from penstock.task.sources import SourceDriver
from penstock.task.split_publishing import SplitPublishing


class SubtaskCheckpoints:
    """Freezes the operators, the source and the sinks of a subtask, and writes what was frozen."""

    def __init__(
        self,
        environment: TaskEnvironment,
        chain: Chain,
        committer: Committer,
        source: SourceDriver | None,
        ahead: dict[str, dict[int, int]],
        splits: SplitPublishing | None = None,
    ) -> None:
        """`ahead`: per operator, key groups whose former owner had come further than this subtask has."""
        self.state_bytes = 0
        """How much the newest durable snapshot has."""
        self._environment = environment
        self._chain = chain
        self._committer = committer
        self._source = source
        self._published_splits = splits
        self._ahead = ahead
        self._frozen: dict[int, FrozenSubtask] = {}
        self._chains = SnapshotChains()
        self._aligning_since_us: int | None = None

    def aligning(self) -> None:
        """A barrier has come on some channels, not on all."""
        if self._aligning_since_us is None:
            self._aligning_since_us = self._micros()

    def freeze(self, checkpoint: int, watermark: int) -> None:
        """Capture everything as it is between two batches."""
        started = self._micros()
        snapshots = self._operator_snapshots()
        if self._source is not None:
            self._source.frozen(checkpoint)
        if self._published_splits is not None:
            self._published_splits.barrier(checkpoint)
        listed, persists = self._committer.prepare(checkpoint)
        for operator, entries in listed.items():
            snapshots[operator] = OperatorSnapshot(lists={STAGED: entries})
        alignment_us = started - self._aligning_since_us if self._aligning_since_us is not None else 0
        self._aligning_since_us = None
        sync_us = self._micros() - started
        self._ahead = {o: watermarks_above(groups, watermark) for o, groups in self._ahead.items()}
        self._frozen[checkpoint] = FrozenSubtask(snapshots, watermark, sync_us, alignment_us, self._ahead, persists)

    def _operator_snapshots(self) -> dict[str, OperatorSnapshot]:
        snapshots: dict[str, OperatorSnapshot] = {}
        for operator, link in self._chain.operators.items():
            snapshot = link.operator.snapshot()
            if snapshot is not None:
                snapshots[operator] = snapshot
        if self._source is not None:
            source = self._environment.vertex.operators[0].id
            snapshots[source] = OperatorSnapshot(unions={SPLITS: self._source.entries()})
        return snapshots

    async def upload(self, command: Upload) -> Uploaded | UploadFailed:
        """Make durable what was frozen for this checkpoint.

        Raises:
            BadRecordError, PipelineError: a sink's destination refuses a row, or all of them: no checkpoint helps.
        """
        frozen = self._frozen.pop(command.checkpoint)
        if self._published_splits is not None:
            await self._published_splits.covered(command.checkpoint)
        deploy, services = self._environment.deploy, self._environment.services
        prefix = blob_prefix(deploy.job, deploy.attempt, command.checkpoint, command.nonce)
        prefix += f"{deploy.subtask.vertex}-{deploy.subtask.index}-"
        try:
            incremental = services.settings.incremental and not command.canonical
            base = self._chains.base if incremental else None
            backend = services.settings.state_backend
            snapshot = await upload(frozen, prefix, services.blobs, backend, self._micros, base)
        except (BadRecordError, PipelineError):
            raise
        except Exception as error:  # a checkpoint that cannot be written is declined, whatever the reason
            away = isinstance(error, ExternalError) and error.retryable
            return UploadFailed(command.checkpoint, command.nonce, described(error), away)
        self._chains.snapshot_stored(command.checkpoint, chains_of(frozen, snapshot))
        self._committer.persisted(frozen.persist)
        self.state_bytes = snapshot.size_bytes
        return Uploaded(command.checkpoint, command.nonce, snapshot)

    def completed(self, checkpoint: int) -> None:
        """This one is COMPLETE."""
        self._chains.completed(checkpoint)
        if self._source is not None:
            self._source.completed(checkpoint)

    def _micros(self) -> int:
        return self._environment.services.clock.monotonic_us()

"""Making the results of a run visible, once, whatever happens: the run's manifest decides.

The manifest is a file `<folder>/<run id>.json` that names every staged part of the task attempts whose rows count. It
is created by an atomic link, so of two executions of the same run one wins, and the other finishes its commits. Until
it exists nothing of the run is visible; from then on everything is going to be: commits are idempotent, and the same
run id given again carries them to the end without computing anything. When all is visible, that is put on record in
`<folder>/<run id>.committed`; until then nothing that the manifest names is removed, whatever other runs are made.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.connectors.base import CommitsTogether, Sink, WriteContext
from penstock.connectors.files.local import LocalParts
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.ports import Clock
from penstock.runs.run_log import is_run_id
from penstock.spark.binding import Binding
from penstock.spark.publishing import StagedSink, forget, publish
from penstock.spark.savepoints import KeptState
from penstock.spark.staging import StagedPart, check_shared, publishes, remove_staged, staging_folder

_HERE: Final = "."


class RunManifest(msgspec.Struct, frozen=True):
    """What a run staged and what it counted."""

    run: str
    pipeline: str
    staged: dict[str, list[Any]]
    """Sink operator to committables."""
    counts: dict[str, dict[str, int]]
    kept: KeptState | None = None
    """The savepoint that it leaves."""
    binding: Binding | None = None
    """What it was computed from; None in manifests of a version of Penstock that did not put that down."""
    job: str = ""
    """The job of which it is a step, whose publishers have the same names in every step; empty if it is none."""
    staging: str = ""
    """Where its rows were staged, whatever a later start names; `.` is the folder of the manifest, which may be moved.
    Empty in manifests of a version of Penstock that did not put that down."""


class RunManifests:
    """The manifests of one pipeline in a folder."""

    def __init__(self, folder: Path, staging: str | None = None) -> None:
        """`staging` is as in `SparkSettings`.

        Raises:
            UsageError: it is a relative path, which means another folder on another machine.
            PipelineError: it is a URL without a bucket, or obstore is missing.
        """
        if staging is not None and isinstance(staging_folder(staging), LocalParts) and not os.path.isabs(staging):
            raise UsageError(
                f"--staging {staging}: name a place on an object store (s3://bucket/folder), or an absolute path that "
                "all machines share"
            )
        self._folder = folder
        self._staging = staging

    def find(self, run: str) -> RunManifest | None:
        """The manifest of a run, if it got that far."""
        path = self._path(run)
        try:
            return msgspec.json.decode(path.read_bytes(), type=RunManifest)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CorruptDataError(f"{path}: not a manifest of a run: {error}") from error

    def create(self, manifest: RunManifest) -> RunManifest:
        """Write the manifest of a run unless there is one; returns the one that counts."""
        create_once(self._path(manifest.run), msgspec.json.encode(manifest))
        found = self.find(manifest.run)
        assert found is not None
        return found

    @property
    def folder(self) -> Path:
        """Where they stand, as an absolute path."""
        return self._folder.absolute()

    @functools.cached_property
    def staging(self) -> str:
        """Where tasks stage rows of exactly-once sinks: nowhere that another folder's runs may take for leftovers."""
        if self._staging is None:
            return str(self.folder)
        create_once(self._note, secrets.token_hex(8).encode())
        return f"{self._staging.rstrip('/')}/{self._note.read_text()}"

    @property
    def staging_mark(self) -> str:
        """The same as `RunManifest.staging`."""
        return _HERE if self._staging is None else self.staging

    def staging_of(self, manifest: RunManifest) -> str:
        """Where the rows of a run were staged."""
        return str(self.folder) if manifest.staging == _HERE else manifest.staging or self.staging

    @property
    def is_apart(self) -> bool:
        """Whether something may be staged outside of the folder."""
        return self._staging is not None and self._note.exists()

    @property
    def _note(self) -> Path:
        return self._folder / "staging"

    def is_committed(self, run: str) -> bool:
        """Whether everything of a run is visible, and that is on record."""
        return self._record(run).exists()

    def note_committed(self, run: str) -> None:
        """Put on record, for good, that everything of a run is visible."""
        path = self._record(run)
        try:
            path.touch()
            _sync(path)
            _sync(self._folder)
        except OSError as error:
            raise ExternalError(f"cannot write {path}: {error}") from error

    def needed(self) -> dict[str, list[Any]]:
        """Sink operator to the parts of all runs that are decided and perhaps not visible."""
        parts: dict[str, list[Any]] = {}
        for path in sorted(self._folder.glob("*.json")):
            if not self.is_committed(path.stem):
                manifest = self.find(path.stem)
                for operator, staged in manifest.staged.items() if manifest is not None else ():
                    parts.setdefault(operator, []).extend(staged)
        return parts

    def _record(self, run: str) -> Path:
        return self._folder / f"{run}.committed"

    def _path(self, run: str) -> Path:
        return self._folder / f"{run}.json"


def create_once(path: Path, data: bytes) -> None:
    """Write a file unless it is there, whole and durable or not at all.

    Its folder is not made: a driver whose run is over and cleared away must not begin it anew.

    Raises:
        ExternalError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink()
        _sync(path.parent)
    except OSError as error:
        raise ExternalError(f"cannot write {path}: {error}") from error


def checked_run_id(run: str) -> str:
    """The id, if it can name a file.

    Raises:
        UsageError: it cannot.
    """
    if not is_run_id(run):
        raise UsageError(
            f"--run-id {run!r}: up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or digit"
        )
    return run


def execution_name(run: str) -> str:
    """A name for one execution of a run. Its first eight characters are the run's: sinks name visible parts by them."""
    return f"{hashlib.sha256(run.encode()).hexdigest()[:8]}-{secrets.token_hex(4)}"


def sinks_of(plan: LogicalPlan) -> dict[str, Write]:
    """Operator id to sink, of every sink of a plan."""
    return {node.operator_id: node.operation for node in plan if isinstance(node.operation, Write)}


def reach_sinks(plan: LogicalPlan) -> None:
    """Before anything is computed or removed: every sink's destination takes its rows, or says that it does not."""
    for node in plan:
        if isinstance(node.operation, Write):
            node.operation.sink.reach(node.schema)


def prepare_sinks(sinks: Mapping[str, Write], manifests: RunManifests, *, anew: bool) -> None:
    """Before anything is computed: make room if a run starts `anew`, and remove what executions that died had staged."""
    removals = [write.sink.begin() for write in sinks.values()] if anew else []  # one that refuses keeps all rows
    for remove in removals:
        remove()
    clean_sinks(sinks, manifests)


def clean_sinks(sinks: Mapping[str, Write], manifests: RunManifests, staging: str | None = None) -> None:
    """Remove everything staged that no manifest of a run needs which is not on record as committed; at `staging`, if it
    is not where tasks stage now."""
    needed = manifests.needed()
    for operator, write in sinks.items():
        if not publishes(write.sink):
            write.sink.recover(needed.get(operator, ()), operator)()
    files = {part["file"] for parts in needed.values() for part in parts if "file" in part}
    remove_staged(staging_folder(staging or manifests.staging), files)


def staged_parts(reports: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Sink operator to its committables, in the order of their subtasks."""
    staged: dict[str, list[Any]] = {}
    of_sinks = [report for report in reports if report["kind"] == "staged"]
    for report in sorted(of_sinks, key=lambda report: (report["operator"], report["subtask"])):
        staged.setdefault(report["operator"], []).extend(report["parts"])
    return staged


def check_staged(manifest: RunManifest, plan: LogicalPlan, manifests: RunManifests) -> None:
    """Before a run is decided: raise `ExternalError` if the driver could not publish what its tasks staged."""
    for operator, write in sinks_of(plan).items():
        if publishes(write.sink):
            check_shared(staging_folder(manifests.staging), _parts(manifest, operator))


def commit(manifest: RunManifest, plan: LogicalPlan, manifests: RunManifests, clock: Clock) -> None:
    """Make every part visible, put that on record, then remove leftovers.

    Raises:
        UsageError: the run is of another version of the pipeline.
        PenstockError: a sink's system cannot be reached, or refuses; the run is carried on when it is given again.
    """
    sinks = sinks_of(plan)
    unknown = [operator for operator in manifest.staged if operator not in sinks]
    if unknown:
        raise UsageError(
            f"--run-id {manifest.run}: that run wrote to {', '.join(unknown)}, which this pipeline does not have; "
            "give a new run another id"
        )
    published = [
        StagedSink(
            plan.name,
            manifest.run,
            operator,
            write.sink,
            _parts(manifest, operator),
            manifests.staging_of(manifest),
            clock,
            manifest.job,
            lambda: manifests.is_committed(manifest.run) or manifests.find(manifest.run) is None,
        )
        for operator, write in sinks.items()
        if publishes(write.sink)
    ]
    if not manifests.is_committed(manifest.run):
        for node in plan:
            operation = node.operation
            if isinstance(operation, Write) and node.operator_id in manifest.staged and not publishes(operation.sink):
                _commit(operation.sink, node.schema, node.operator_id, manifest)
        for staged in published:
            publish(staged, manifests.folder)
        manifests.note_committed(manifest.run)
    for staged in published:
        forget(staged, manifests.folder)
    clean_sinks(sinks, manifests, manifests.staging_of(manifest))


def _parts(manifest: RunManifest, operator: str) -> tuple[StagedPart, ...]:
    """What was staged for an exactly-once sink."""
    return msgspec.convert(manifest.staged.get(operator, ()), tuple[StagedPart, ...])


def _commit(sink: Sink, schema: Any, operator: str, manifest: RunManifest) -> None:
    writer = sink.open(schema, WriteContext(operator, 0, execution_name(manifest.run), 0, _now_us))
    try:
        if isinstance(writer, CommitsTogether):
            writer.commit_together(manifest.staged[operator])
            return
        for part in manifest.staged[operator]:
            writer.commit(part)
    finally:
        writer.close()


def _now_us() -> int:
    return time.time_ns() // 1_000


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

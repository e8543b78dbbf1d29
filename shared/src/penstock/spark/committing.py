"""Making the results of a run visible, once, whatever happens: the run's manifest decides.

The manifest is a file `<folder>/<run id>.json` that names every staged part of the task attempts whose rows count. It
is created by an atomic link, so of two executions of the same run one wins, and the other finishes its commits. Until
it exists nothing of the run is visible; from then on everything is going to be: commits are idempotent, and the same
run id given again carries them to the end without computing anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.connectors.base import Sink, WriteContext
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.graph.logical import LogicalPlan, Write

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunManifest(msgspec.Struct, frozen=True):
    """What a run staged and what it counted."""

    run: str
    pipeline: str
    staged: dict[str, list[Any]]
    """Sink operator to committables."""
    counts: dict[str, dict[str, int]]


class RunManifests:
    """The manifests of one pipeline in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
        path = self._path(manifest.run)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(msgspec.json.encode(manifest))
                file.flush()
                os.fsync(file.fileno())
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                temporary.unlink()
            _sync(self._folder)
        except OSError as error:
            raise ExternalError(f"cannot write {path}: {error}") from error
        found = self.find(manifest.run)
        assert found is not None
        return found

    def _path(self, run: str) -> Path:
        return self._folder / f"{run}.json"


def checked_run_id(run: str) -> str:
    """The id, if it can name a file.

    Raises:
        UsageError: it cannot.
    """
    if not _RUN_ID.fullmatch(run):
        raise UsageError(f"--run-id {run!r}: up to 100 letters, digits, dots, dashes and underscores, not a dot first")
    return run


def execution_name(run: str) -> str:
    """A name for one execution of a run. Its first eight characters are the run's: sinks name visible parts by them."""
    return f"{hashlib.sha256(run.encode()).hexdigest()[:8]}-{secrets.token_hex(4)}"


def sinks_of(plan: LogicalPlan) -> dict[str, Write]:
    """Operator id to sink, of every sink of a plan."""
    return {node.operator_id: node.operation for node in plan if isinstance(node.operation, Write)}


def prepare_sinks(sinks: Mapping[str, Write]) -> None:
    """Before anything is computed: make room, and remove what executions that died had staged."""
    for write in sinks.values():
        write.sink.begin()
    clean_sinks(sinks)


def clean_sinks(sinks: Mapping[str, Write]) -> None:
    """Remove everything staged: what counted was committed."""
    for operator, write in sinks.items():
        write.sink.recover((), operator)


def staged_parts(reports: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Sink operator to its committables, in the order of their subtasks."""
    staged: dict[str, list[Any]] = {}
    of_sinks = [report for report in reports if report["kind"] == "staged"]
    for report in sorted(of_sinks, key=lambda report: (report["operator"], report["subtask"])):
        staged.setdefault(report["operator"], []).extend(report["parts"])
    return staged


def commit(manifest: RunManifest, plan: LogicalPlan) -> None:
    """Make every part visible, then remove leftovers.

    Raises:
        UsageError: the run is of another version of the pipeline.
    """
    sinks = sinks_of(plan)
    unknown = [operator for operator in manifest.staged if operator not in sinks]
    if unknown:
        raise UsageError(
            f"--run-id {manifest.run}: that run wrote to {', '.join(unknown)}, which this pipeline does not have; "
            "give a new run another id"
        )
    for node in plan:
        if isinstance(node.operation, Write) and node.operator_id in manifest.staged:
            _commit(node.operation.sink, node.schema, node.operator_id, manifest)
    clean_sinks(sinks)


def _commit(sink: Sink, schema: Any, operator: str, manifest: RunManifest) -> None:
    writer = sink.open(schema, WriteContext(operator, 0, execution_name(manifest.run), 0, _now_us))
    try:
        for part in manifest.staged[operator]:
            writer.commit(part)
    finally:
        writer.close()


def _now_us() -> int:
    return time.time_ns() // 1_000


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

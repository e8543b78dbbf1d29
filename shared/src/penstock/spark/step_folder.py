"""The steps of a job on disk: a folder each, with the records of its run, what it stages, and the savepoint it leaves.

    <folder>/job.json                 the job (see `StepsJob`)
    <folder>/00000042/<run id>.begin  what the step reads, fixed before it does (see `splits`)
    <folder>/00000042/<run id>.json   what decides it (see `committing`)
    <folder>/00000042/savepoint/      what it leaves

Where rows are staged on an object store, savepoints go there, too, so that executors need no folder of the driver's:

    <staging>/<an id of the folder>/00000042/savepoint/
    <folder>/00000042/sealed          says that it is whole, so that nobody need ask the store

A step that nobody goes back to is renamed before it is removed: a driver that was thought dead, and is still at that
step, finds no folder to decide it in.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.connectors.files.local import LocalParts
from penstock.connectors.files.writing import STAGING
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.savepoint.folder import SEAL, SavepointPlace
from penstock.savepoint.places import LocalPlace, StoredPlace, place_of
from penstock.spark.committing import RunManifests
from penstock.spark.staging import remove_staged, staging_folder
from penstock.spark.steps import StepsJob, obsolete

_JOB: Final = "job.json"
_SAVEPOINT: Final = "savepoint"
_SEALED: Final = "sealed"
_GONE: Final = "removed-"


@dataclass(frozen=True)
class Stopped:
    """Where a job came to."""

    done: int | None
    """The newest step that is done; None if there is none."""
    savepoint: str | None
    """The folder or URL of what that step left."""
    undone: int | None = None
    """The step that was begun and is not done: the next one to be carried out, by the same command."""
    decided: bool = False
    """Whether some of that one may be visible, so that nothing may go on from `savepoint` before it is done."""


class StepFolder:
    """The folder of one pipeline's steps. Held by one process at a time (see `claimed`)."""

    def __init__(self, folder: Path, staging: str | None = None) -> None:
        """`staging` is as in `SparkSettings`.

        Raises:
            UsageError: it is a relative path.
            PipelineError: it is a URL without a bucket, or obstore is missing.
        """
        self.path: Final = folder.absolute()
        self._staging = staging
        self._runs = RunManifests(self.path, staging)

    def job(self, fresh_id: str, start: str | None, *, fresh: bool) -> StepsJob:
        """The job in the folder, or a new one if there is none or a `fresh` one is wanted.

        Args:
            fresh_id: 32 hex digits for a new job.
            start: the savepoint that a new one starts from; None: none was named.
            fresh: begin a new job whatever is there.

        Raises:
            UsageError: the job there started from another savepoint, or a step of it is only partly visible.
            CorruptDataError: there are steps, and the record of their job is damaged or gone.
        """
        found = self._job()
        if found is not None and not fresh:
            if start is not None and found.start not in (start, str(Path(start).absolute())):
                raise UsageError(
                    f"{self.path} holds a job that started from {found.start or 'no savepoint'}, not from {start}; leave "
                    "--from-savepoint out to go on with it, or begin a new one with --fresh"
                )
            return found
        done = self.steps()
        if done and found is None and not fresh:
            raise CorruptDataError(
                f"{self.path}: there are steps, and {_JOB}, which says whose they are, is not there (any more); bring it "
                "back, or begin a new job with --fresh, from a savepoint of theirs with --from-savepoint"
            )
        if half := [number for number in done if self.is_decided(number) and not done[number]]:
            raise UsageError(
                f"{self.path}: step {half[0]} is decided and perhaps only partly visible; carry it to its end first, by "
                "the command without --fresh"
            )
        job = StepsJob(fresh_id, max(done, default=0) + 1, start or "")
        self._write(job)
        return job

    def _job(self) -> StepsJob | None:
        path = self.path / _JOB
        try:
            return msgspec.json.decode(path.read_bytes(), type=StepsJob)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CorruptDataError(f"{path}: not the record of a job: {error}") from error

    def _write(self, job: StepsJob) -> None:
        temporary = self.path / f".{_JOB}"
        try:
            with open(temporary, "wb") as file:
                file.write(msgspec.json.encode(job))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / _JOB)
        except OSError as error:
            raise ExternalError(f"cannot write {self.path / _JOB}: {error}") from error

    def steps(self) -> dict[int, bool]:
        """The steps that were begun, and whether they are done."""
        return {number: self._is_done(number) for number in sorted(self._numbers())}

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in self.path.iterdir() if path.name.isdecimal() and path.is_dir()]

    def of(self, number: int) -> Path:
        """The folder of a step's run."""
        return self.path / f"{number:08d}"

    def savepoint(self, number: int) -> SavepointPlace:
        """Where a step leaves its state: where it began to, or where it would if it began now."""
        return self._begun(self.of(number)) or self._next(number)

    def _begun(self, step: Path) -> SavepointPlace | None:
        """Where the step in this folder, if it began, leaves its state."""
        for path in step.glob("*.begin"):
            try:
                target = msgspec.json.decode(path.read_bytes(), type=_Begun).target
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise CorruptDataError(f"{path}: does not say what a step reads: {error}") from error
            return place_of(target) if "://" in target else LocalPlace(step / _SAVEPOINT)  # folders may be moved
        return None

    def _next(self, number: int) -> SavepointPlace:
        if self._staging is None or "://" not in self._staging:
            return LocalPlace(self.of(number) / _SAVEPOINT)
        return place_of(f"{self._runs.staging}/{number:08d}/{_SAVEPOINT}", "--staging")

    def stopped(self) -> Stopped:
        """Where the job is. Nobody need hold the folder for that.

        Raises:
            CorruptDataError: what a step began with is damaged.
        """
        steps = self.steps() if self.path.is_dir() else {}
        done = max((number for number, is_done in steps.items() if is_done), default=None)
        undone = max((number for number, is_done in steps.items() if not is_done), default=None)
        if undone is not None and done is not None and undone < done:
            undone = None  # of another job, given up
        return Stopped(
            done,
            self.savepoint(done).address if done is not None else None,
            undone,
            undone is not None and self.is_decided(undone),
        )

    def is_decided(self, number: int) -> bool:
        """Whether the results of a step are decided, so that some of them may be visible."""
        return any(self.of(number).glob("*.json"))

    def _is_done(self, number: int) -> bool:
        sealed = [self.of(number) / name for name in (_SEALED, f"{_SAVEPOINT}/{SEAL}")]
        return any(self.of(number).glob("*.committed")) and any(path.is_file() for path in sealed)

    def note_sealed(self, number: int) -> None:
        """Put on record that the savepoint of a step in the store is whole. If that is lost the step is repeated, which
        changes nothing."""
        if not isinstance(self.savepoint(number), StoredPlace):
            return
        try:
            (self.of(number) / _SEALED).touch()
        except OSError as error:
            raise ExternalError(f"cannot write {self.of(number) / _SEALED}: {error}") from error

    def clean(self) -> None:
        """Remove the steps that nobody goes back to; what a process that died had begun to remove is removed, too.

        Raises:
            ExternalError: they cannot be removed, here or in the store.
        """
        try:
            # First: a task that nobody waits for may have made the folder of such a step anew, to be renamed, too.
            self._remove_gone()
            for number in obsolete(self.steps()):
                self.of(number).rename(self.path / f"{_GONE}{number:08d}")
            self._remove_gone()
        except OSError as error:
            raise ExternalError(f"{self.path}: a step that is over cannot be removed: {error}") from error

    def _remove_gone(self) -> None:
        for path in self.path.glob(f"{_GONE}*"):
            self._remove_stored(path)
            shutil.rmtree(path)

    def _remove_stored(self, step: Path) -> None:
        """Remove what a step has in the store: its savepoint, and rows that it staged and never decided about."""
        place = self._begun(step)
        if isinstance(place, StoredPlace):
            for name in sorted(place.sizes(), key=lambda name: name != SEAL):  # what is half removed is no savepoint
                place.remove(name)
        runs = RunManifests(step, self._staging)
        if runs.is_apart:
            folder = staging_folder(runs.staging)
            remove_staged(folder, set())
            if isinstance(folder, LocalParts):
                with contextlib.suppress(OSError):  # what somebody else has put there stays
                    (Path(runs.staging) / STAGING).rmdir()
                    Path(runs.staging).rmdir()


class _Begun(msgspec.Struct):
    """What of a `RunBeginning` is asked for here: the rest may name many files."""

    target: str = ""

"""The steps of a job on disk: a folder each, with the records of its run, what it stages, and the savepoint it leaves.

    <folder>/job.json                 the job (see `StepsJob`)
    <folder>/00000042/<run id>.begin  what the step reads, fixed before it does (see `splits`)
    <folder>/00000042/<run id>.json   what decides it (see `committing`)
    <folder>/00000042/savepoint/      what it leaves

A step that nobody goes back to is renamed before it is removed: a driver that was thought dead, and is still at that
step, finds no folder to decide it in.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.savepoint.folder import SEAL
from penstock.spark.steps import StepsJob, obsolete

_JOB: Final = "job.json"
_SAVEPOINT: Final = "savepoint"
_GONE: Final = "removed-"


class StepFolder:
    """The folder of one pipeline's steps. Held by one process at a time (see `claimed`)."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = folder.absolute()

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

    def savepoint(self, number: int) -> Path:
        """Where a step leaves its state."""
        return self.of(number) / _SAVEPOINT

    def is_decided(self, number: int) -> bool:
        """Whether the results of a step are decided, so that some of them may be visible."""
        return any(self.of(number).glob("*.json"))

    def _is_done(self, number: int) -> bool:
        return any(self.of(number).glob("*.committed")) and (self.savepoint(number) / SEAL).is_file()

    def clean(self) -> None:
        """Remove the steps that nobody goes back to; what a process that died had begun to remove is removed, too."""
        try:
            for number in obsolete(self.steps()):
                self.of(number).rename(self.path / f"{_GONE}{number:08d}")
            for path in self.path.glob(f"{_GONE}*"):
                shutil.rmtree(path)
        except OSError as error:
            raise ExternalError(f"{self.path}: a step that is over cannot be removed: {error}") from error

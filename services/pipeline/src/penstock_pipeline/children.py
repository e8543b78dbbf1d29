"""The processes of runs: one `spark-submit` (of steps, a driver) per attempt, in a session of its own, which outlives
this service.

Everything about an attempt lies in the work folder, so that the service finds it again after its own death:
`runs/<run>/<attempt>/` for what is at work, `manifests/<pipeline>/` for what makes runs repeatable, `steps/<run>/` for
the steps of a job that goes on for ever, `place` for the name that the log of a run knows this folder by.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Set
from pathlib import Path
from typing import Final

import msgspec
import structlog

from penstock.errors import PenstockError
from penstock.platform.processes import MARK_VARIABLE, ProcessId, identify, is_alive, marked, send, spawn, tail
from penstock.protocol.requests import RunOptions
from penstock.runs.run_log import AttemptBegan, RunHistory, Submitted
from penstock.runs.run_scheduler import RunFacts
from penstock.runs.run_views import RunProgress
from penstock.settings import ClusterSettings
from penstock.spark.step_folder import StepFolder
from penstock.spark.step_process import stopped_text
from penstock.spark.submitting import AttemptFolder, AttemptSpec, is_decided, submit_command, submit_environment

LAST_LINES: Final = 5
"""So much of the output is quoted where a process ended without a word."""
KEPT_LINES: Final = 400
"""So much of the output is kept."""

_log = structlog.get_logger("penstock.pipeline")


class Children:
    """The attempts in one work folder."""

    def __init__(
        self, folder: Path, new_place: str, settings: ClusterSettings, defaults: RunOptions, staging: str | None = None
    ) -> None:
        """`new_place` names the folder if it has no name yet; `defaults` are master and settings of all runs. `staging`
        is as in `SparkSettings`."""
        self._folder = folder.resolve()
        self._settings = settings
        self._defaults = defaults
        self._staging = staging
        name = self._folder / "place"
        if not name.exists():
            temporary = self._folder / ".place.tmp"
            temporary.write_text(new_place)
            temporary.replace(name)
        self.place = name.read_text()

    # -- looking --------------------------------------------------------------------------------------------------------

    def facts(self, history: RunHistory) -> RunFacts:
        """What is to be seen of a run. Ends what the dead process of an attempt left behind."""
        submitted, attempt = history.submitted, history.attempt
        decided = self._is_decided(submitted)
        if attempt is None or attempt.place != self.place:
            return RunFacts(history, decided=decided, stands=self._stands(submitted))
        files = self._files(submitted, attempt)
        alive = self._is_alive(files, submitted, attempt)  # before its outcome is read, which it may leave meanwhile
        if not alive:
            decided = self._is_decided(submitted)
        lines = " / ".join(self.output(history).splitlines()[-LAST_LINES:]) if not alive else ""
        step = (files.progress() or RunProgress()).step
        stands = self._stands(submitted) if not alive else ""
        return RunFacts(history, alive, files.outcome(), decided, lines, step, stands)

    def _stands(self, submitted: Submitted) -> str:
        """Where a job in steps is that nobody carries out, by what lies in its folder; empty where that is elsewhere."""
        folder = self._manifests(submitted)
        if not submitted.options.in_steps or not folder.is_dir():
            return ""
        try:
            return stopped_text(StepFolder(folder, self._staging).stopped())
        except (OSError, PenstockError) as error:
            return f"where it stands cannot be read: {error}"

    def _is_decided(self, submitted: Submitted) -> bool:
        """Whether the results of a run become visible whatever happens; steps are their driver's business."""
        return not submitted.options.in_steps and is_decided(self._manifests(submitted), submitted.run)

    def progress(self, history: RunHistory) -> RunProgress:
        """What Spark is at."""
        attempt = history.attempt
        if attempt is None or attempt.place != self.place:
            return RunProgress()
        return self._files(history.submitted, attempt).progress() or RunProgress()

    def output(self, history: RunHistory) -> str:
        """The last lines of what the attempt at work has printed."""
        attempt = history.attempt
        if attempt is None or attempt.place != self.place:
            return ""
        path = self._files(history.submitted, attempt).output
        return tail(path, KEPT_LINES) if path.exists() else ""

    # -- acting ---------------------------------------------------------------------------------------------------------

    def start(self, submitted: Submitted, attempt: AttemptBegan, sources: bytes) -> None:
        """Start the process of an attempt whose record is written. If that fails, the output says why."""
        files = self._files(submitted, attempt)
        given = submitted.options
        options = msgspec.structs.replace(
            given, master=given.master or self._defaults.master, conf={**self._defaults.conf, **given.conf}
        )
        spec = AttemptSpec(
            run=submitted.run, name=submitted.name, artifact=submitted.artifact, options=options,
            manifests=str(self._manifests(submitted)), staging=self._staging,
        )  # fmt: skip
        try:
            mark = self._mark(submitted, attempt)
            if options.in_steps:  # there may be any number of attempts
                self._forget_former(submitted.run, attempt)
            files.prepare(spec, sources, self._settings)
            (files.path / "mark").write_text(mark)
            process = spawn(
                submit_command(files, spec),
                folder=files.path,
                log=files.output,
                mark=mark,
                environment=submit_environment(options.master, os.environ),
            )
            _write_process(files, process)
        except (OSError, PenstockError) as error:
            _log.error("spark-submit cannot be started", run=submitted.run, error=str(error))
            if files.path.is_dir():
                files.output.write_text(f"spark-submit cannot be started: {error}\n")
            return
        _log.info("run began", run=submitted.run, name=submitted.name, attempt=attempt.attempt, pid=process.pid)

    def stop(self, history: RunHistory, *, forced: bool) -> None:
        """Signal all processes of the attempt at work."""
        attempt = history.attempt
        assert attempt is not None
        number = signal.SIGKILL if forced else signal.SIGTERM
        files = self._files(history.submitted, attempt)
        process = self._process(files, history.submitted, attempt)
        _log.info("stopping a run", run=history.submitted.run, signal=number.name)
        if process is not None and is_alive(process):
            if history.submitted.options.in_steps and not forced:
                _tell_once(files, process)
            else:
                os.killpg(process.pid, number)  # spawn made it the leader of a group of its own
        if forced:
            self._kill_marked(history.submitted, attempt)

    def forget(self, run: str) -> None:
        """Remove the files of all attempts at a run; what makes it repeatable stays."""
        shutil.rmtree(self._folder / "runs" / run, ignore_errors=True)

    def _forget_former(self, run: str, attempt: AttemptBegan) -> None:
        """Remove the files of earlier attempts at a run."""
        for folder in (self._folder / "runs" / run).glob("*"):
            if folder.name != str(attempt.attempt):
                shutil.rmtree(folder, ignore_errors=True)

    def forget_others(self, runs: Set[str]) -> None:
        """Remove what is left of runs that are not among these: their service died before it could."""
        for folder in (self._folder / "runs").glob("*"):
            if folder.name not in runs:
                self.forget(folder.name)

    # -- processes ------------------------------------------------------------------------------------------------------

    def _is_alive(self, files: AttemptFolder, submitted: Submitted, attempt: AttemptBegan) -> bool:
        process = self._process(files, submitted, attempt)
        if process is not None and is_alive(process):
            return True
        # Where Spark's JVM was killed alone, the driver's Python may still be at work; it must not meet the next attempt.
        return self._kill_marked(submitted, attempt)

    def _process(self, files: AttemptFolder, submitted: Submitted, attempt: AttemptBegan) -> ProcessId | None:
        """The process of an attempt; found by its mark if this service died before it could be noted."""
        try:
            return msgspec.json.decode((files.path / "process.json").read_bytes(), type=ProcessId)
        except (OSError, msgspec.DecodeError):
            pass
        for found in marked(self._mark(submitted, attempt)):
            if _leads_session(found):
                _write_process(files, found)
                return found
        return None

    def _kill_marked(self, submitted: Submitted, attempt: AttemptBegan) -> bool:
        """End everything that carries the mark of an attempt; whether there was anything."""
        left = marked(self._mark(submitted, attempt))
        for process in left:
            send(process, signal.SIGKILL)
        return bool(left)

    def _mark(self, submitted: Submitted, attempt: AttemptBegan) -> str:
        """What the environment of all processes of an attempt carries."""
        noted = self._files(submitted, attempt).path / "mark"
        if noted.exists():
            return noted.read_text()
        # Below the mark of this service, if it has one: `penstock down` ends runs with it.
        root = os.environ.get(MARK_VARIABLE) or str(self._folder)
        return f"{root}/runs/{submitted.run}/{attempt.attempt}"

    def _files(self, submitted: Submitted, attempt: AttemptBegan) -> AttemptFolder:
        return AttemptFolder(self._folder / "runs" / submitted.run / str(attempt.attempt))

    def _manifests(self, submitted: Submitted) -> Path:
        """What makes a run repeatable; of a job in steps, the folder of these."""
        if submitted.options.in_steps:
            return self._folder / "steps" / submitted.run
        return self._folder / "manifests" / submitted.name


def _write_process(files: AttemptFolder, process: ProcessId) -> None:
    temporary = files.path / ".process.json.tmp"
    temporary.write_bytes(msgspec.json.encode(process))
    temporary.replace(files.path / "process.json")


def _tell_once(files: AttemptFolder, process: ProcessId) -> None:
    """SIGTERM for a driver of steps, from the first service that wants its end: a second one would cancel the step that
    is to be finished. For the driver alone: its step needs Spark's JVM until it ends."""
    told = files.path / "told"
    if not told.exists():
        told.touch()
        os.kill(process.pid, signal.SIGTERM)


def _leads_session(process: ProcessId) -> bool:
    try:
        return os.getsid(process.pid) == process.pid and identify(process.pid) == process
    except ProcessLookupError:
        return False

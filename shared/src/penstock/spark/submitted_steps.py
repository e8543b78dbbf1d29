"""A job in steps as a child of the pipeline service: what `penstock run --every` is on a terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.api.pipeline import DeclaredPipeline
from penstock.errors import PenstockError
from penstock.observability.user_frames import shown_frames, shown_text
from penstock.ports import Clock
from penstock.runs.run_log import RunOutcome
from penstock.runs.run_views import RunProgress
from penstock.spark.code import TaskCode
from penstock.spark.continuous import ContinuousOptions, ContinuousRun, StepDone, StepWatch
from penstock.spark.session import DEFAULT_MASTER, SparkSettings, end_session, is_local, ui_address
from penstock.spark.step_process import Asked, ending, open_keeping_signals, stopped_text
from penstock.spark.submitting import AttemptFolder, AttemptSpec, is_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_steps(
    folder: AttemptFolder,
    spec: AttemptSpec,
    pipeline: DeclaredPipeline,
    code: TaskCode,
    clock: Clock,
    new_id: Callable[[], str],
    say: Callable[[str], None],
) -> RunOutcome:
    """Do steps until SIGTERM comes, or one fails for good; how it ended.

    The output of the attempt has no line per step: it would grow for as long as the job lives.
    """
    progress = _Progress(folder)
    run = ContinuousRun(
        pipeline,
        code,
        _options(folder, spec),
        clock,
        new_id,
        lambda: progress.opened(open_keeping_signals(spec.name, _settings(folder, spec))),
        StepWatch(progress.done, progress.failed, lambda text: say(f"warning: {text}")),
        end_session,
    )
    stop = Asked()
    try:
        with ending(stop, say):
            return RunOutcome("FINISHED", stopped_text(run.run(stop)))
    except KeyboardInterrupt:
        return RunOutcome("FINISHED", stopped_text(run.stopped()))
    except PenstockError as error:
        # A machine that shuts down takes away what a step needs, too; what fails for good fails in the next attempt.
        state = "FINISHED" if stop.is_set() else "FAILED"
        return RunOutcome(state, f"{shown_text(error)}; {stopped_text(run.stopped())}", shown_frames(error))


def _options(folder: AttemptFolder, spec: AttemptSpec) -> ContinuousOptions:
    options = spec.options
    return ContinuousOptions(
        options.every_us,
        Path(spec.manifests),
        options.restart,
        options.parallelism,
        options.from_savepoint or None,
        str(folder.cluster),
        spec.staging,
    )


def _settings(folder: AttemptFolder, spec: AttemptSpec) -> SparkSettings:
    """Those of the session; PySpark puts them on the command line of the JVM, so secrets go there by a file."""
    conf = {name: value for name, value in spec.options.conf.items() if not is_secret(name)}
    if secrets := {name: value for name, value in spec.options.conf.items() if is_secret(name)}:
        file = shlex.quote(str(folder.write_properties(secrets)))
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {file} --load-spark-defaults pyspark-shell"
    if is_local(spec.options.master or DEFAULT_MASTER):
        conf.setdefault("spark.local.dir", str(folder.path / "tmp"))  # nothing is left of a process that was killed
    return SparkSettings(spec.options.master, None, conf)


class _Progress:
    """What is shown of the job: its last step."""

    def __init__(self, folder: AttemptFolder) -> None:
        self._folder = folder
        self._now = RunProgress()

    def _change(self, **changes: object) -> None:
        self._now = msgspec.structs.replace(self._now, **changes)
        self._folder.write_progress(self._now)

    def opened(self, session: SparkSession) -> SparkSession:
        starts = self._now.at == RunProgress().at  # else it is told what the last step did, or why it is repeated
        self._change(at="looking for what is new" if starts else self._now.at, ui=ui_address(session) or "")
        return session

    def done(self, step: StepDone) -> None:
        self._change(at=step.line, step=step.number, parallelism=step.graph.parallelism)

    def failed(self, number: int, error: PenstockError, delay_ms: int) -> None:
        self._change(at=f"step {number} failed, and is repeated in {delay_ms / 1_000:g} s: {error}")

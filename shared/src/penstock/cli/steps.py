"""`penstock run --engine spark --every`: what it prints, and what SIGTERM and Ctrl-C mean."""

from __future__ import annotations

import os
import shlex
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from penstock.adapters.system_clock import SystemClock
from penstock.coordination.job_summary import row_lines
from penstock.core.times import duration_us
from penstock.errors import PenstockError, UsageError
from penstock.loading import load_pipeline, parse_parameters
from penstock.spark.code import pack_code
from penstock.spark.continuous import ContinuousOptions, ContinuousRun, StepDone, StepWatch
from penstock.spark.local_run import choose_cluster
from penstock.spark.session import end_session
from penstock.spark.step_process import Asked, ending, open_keeping_signals
from penstock.submission.restart_text import parse_restart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.spark import RunOnSpark
    from penstock.spark.step_folder import Stopped


def run_in_steps(command: RunOnSpark, every: str) -> int:
    """Run the pipeline step by step; the exit code."""
    console = Console(stderr=True, highlight=False)
    run = _run(command, every, console)
    stop = Asked()
    try:
        with ending(stop, lambda line: _say(console, line)):
            _say(console, *_stopped_lines(run.run(stop), command))
        return 0
    except KeyboardInterrupt:
        _say(console, "interrupted", *_stopped_lines(run.stopped(), command))
        return 130
    except UsageError:
        raise
    except PenstockError:
        _say(console, *_stopped_lines(run.stopped(), command))
        raise


def _run(command: RunOnSpark, every: str, console: Console) -> ContinuousRun:
    if command.to_savepoint or command.run_id:
        raise UsageError("--every names its runs and savepoints itself; leave --run-id and --to-savepoint out")
    choose_cluster(command.cluster)
    parameters = parse_parameters(command.param)
    pipeline = load_pipeline(command.file, parameters)
    start = command.from_savepoint
    options = ContinuousOptions(
        duration_us(every, "--every", positive=True),
        Path(command.dir) if command.dir else Path(".penstock") / pipeline.name / "steps",
        parse_restart(command.restart),
        command.parallelism,
        os.path.abspath(start) if start is not None and os.path.isdir(start) else start,
        command.cluster,
        command.staging,
        command.fresh,
    )
    watch = StepWatch(
        done=lambda step: _say(console, *step_lines(step)),
        failed=lambda number, error, delay_ms: _say(
            console, f"step {number} failed, and is repeated in {delay_ms / 1_000:g} s: {error}"
        ),
        warn=lambda text: _say(console, f"warning: {text}"),
    )
    _say(console, f"{pipeline.name}: on Spark, a step every {every}, kept in {options.folder}")

    def opened() -> SparkSession:
        return open_keeping_signals(pipeline.name, command.spark)

    code = pack_code(command.file, parameters)
    return ContinuousRun(pipeline, code, options, SystemClock(), lambda: uuid.uuid4().hex, opened, watch, end_session)


def step_lines(step: StepDone) -> list[str]:
    """What became of a step: one line, and others only for rows that were left out."""
    left_out = [
        text
        for text in row_lines(step.graph, step.result.total, None)
        if "came too late" in text or " bad rows " in text
    ]
    return [step.line, *left_out]


def _stopped_lines(stopped: Stopped, command: RunOnSpark) -> list[str]:
    """Where the job stands, and what may go on from where."""
    again = shlex.join(["penstock", *(part for part in sys.argv[1:] if part != "--fresh")])
    lines: list[str] = []
    if stopped.undone is not None:
        visible = "; it is decided and perhaps only partly visible" if stopped.decided else ""
        lines.append(f"step {stopped.undone} is not done{visible}")
    lines.append(f"go on with: {again}")
    if stopped.savepoint is not None and not stopped.decided:
        lines += [
            f"savepoint of step {stopped.done}: {stopped.savepoint}",
            f"or on task managers with: penstock submit {command.file} --from-savepoint {stopped.savepoint}",
        ]
    return lines


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)

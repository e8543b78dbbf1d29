"""`penstock run --engine spark --every`: what it prints, and what SIGTERM and Ctrl-C mean."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from penstock.adapters.system_clock import SystemClock
from penstock.api.loading import load_pipeline, parse_parameters
from penstock.cli.display import row_lines
from penstock.errors import PenstockError, UsageError
from penstock.spark.code import pack_code
from penstock.spark.continuous import ContinuousOptions, ContinuousRun, StepDone, StepWatch, Stopped
from penstock.spark.local_run import choose_cluster
from penstock.spark.session import end_session, open_session
from penstock.submission.restart_text import parse_restart
from penstock.times import duration_us

if TYPE_CHECKING:
    from penstock.cli.spark import RunOnSpark


def run_in_steps(command: RunOnSpark, every: str) -> int:
    """Run the pipeline step by step; the exit code."""
    console = Console(stderr=True, highlight=False)
    run = _run(command, every, console)
    stop = threading.Event()
    try:
        with _ending(stop, console):
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

    def opened() -> Any:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        session = open_session(pipeline.name, command.spark)
        for number, handler in before.items():
            signal.signal(number, handler)  # PySpark has its own idea of Ctrl-C
        return session

    code = pack_code(command.file, parameters)
    return ContinuousRun(pipeline, code, options, SystemClock(), lambda: uuid.uuid4().hex, opened, watch, end_session)


def step_lines(step: StepDone) -> list[str]:
    """What became of a step: one line, and others only for rows that were left out."""
    lag = "" if step.lag_us is None else f", event time {step.lag_us / 1_000_000:,.1f} s behind"
    again = "" if step.result.computed else ", computed before"
    line = f"step {step.number}: {step.rows_in:,} rows in, {step.rows_out:,} out, {step.seconds:.1f} s{lag}{again}"
    left_out = [
        text
        for text in row_lines(step.graph, step.result.total, None)
        if "came too late" in text or " bad rows " in text
    ]
    return [line, *left_out]


@contextmanager
def _ending(stop: threading.Event, console: Console) -> Generator[None]:
    """SIGTERM or Ctrl-C: the first one ends behind the step at work, the second one cancels that."""

    def asked(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        _say(console, "ending behind the step at work; once more cancels it")

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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

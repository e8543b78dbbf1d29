"""`penstock run`: a pipeline file, embedded, on one machine."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.api.pipeline import DeclaredPipeline
from penstock.cli.display import Rate, changed_lines, live_view, print_collected, start_lines
from penstock.cli.run_dashboard import dashboard, keep_dashboard
from penstock.coordination.job_progress import JobResult
from penstock.coordination.job_summary import summary_lines
from penstock.core.times import duration_us
from penstock.embedded import EmbeddedJob, EmbeddedSettings, PipelineFile, default_directory
from penstock.errors import ExternalError, PenstockError, UsageError, UserCodeError
from penstock.graph.jobgraph import graph_from_json
from penstock.loading import load_pipeline, parse_parameters
from penstock.observability.logs import LogFormat
from penstock.observability.metrics import Snapshot, samples
from penstock.plan.logical import LogicalPlan
from penstock.submission.options import check_incremental
from penstock.task.environment import SubtaskSettings

if TYPE_CHECKING:
    from penstock.savepoint.folder import SavepointPlace

REFRESH_S = 0.25
METRICS_S = 1.0


@dataclass(frozen=True)
class Run:
    """`penstock run`, embedded."""

    file: str
    parallelism: int | None
    param: list[str]
    at_least_once: bool
    checkpoint_interval: str
    dir: str | None
    resume: bool
    fresh: bool
    from_savepoint: str | None
    metrics: str | None
    state_backend: Literal["fs", "memory", "rocksdb"]
    incremental_checkpoints: bool
    no_fsync: bool
    ui: bool
    ui_port: int | None
    ui_keep: bool
    log_format: LogFormat
    log_level: str


def run_command(command: Run) -> int:
    """Run the pipeline; the exit code."""
    if command.resume and command.fresh:
        raise UsageError("--resume continues a run, --fresh discards it: give one of them")
    if command.resume and command.from_savepoint:
        raise UsageError(
            "--resume continues a run, --from-savepoint begins one with a savepoint's state: give one of them"
        )
    start = _start(command.from_savepoint)
    check_incremental(command.incremental_checkpoints, command.state_backend)
    pipeline = load_pipeline(command.file, parse_parameters(command.param))
    settings = EmbeddedSettings(
        parallelism=command.parallelism or 1,
        checkpoint_interval_ms=duration_us(command.checkpoint_interval, "--checkpoint-interval", positive=True)
        // 1_000,
        durable=not command.no_fsync,
        at_least_once=command.at_least_once,
        data=SubtaskSettings(state_backend=command.state_backend, incremental=command.incremental_checkpoints),
    )
    directory = Path(command.dir) if command.dir else default_directory(pipeline.name)
    return asyncio.run(_run(pipeline, directory, settings, command, start))


async def _run(
    pipeline: DeclaredPipeline,
    directory: Path,
    settings: EmbeddedSettings,
    command: Run,
    start: SavepointPlace | None,
) -> int:
    # Standard output belongs to the rows of console sinks: everything about the run goes to standard error.
    console = Console(stderr=True, highlight=False)
    code = PipelineFile(command.file, parse_parameters(command.param), command.log_format, command.log_level)
    job = EmbeddedJob(pipeline, directory, settings, code)
    await _announce(job, directory, command, console)
    if not (command.ui or command.ui_keep or command.ui_port is not None):
        return await _follow(job, pipeline.plan, command, console, "", start)
    async with dashboard(job, directory, command.ui_port or 0) as url:
        _say(console, f"dashboard: {url}")
        return await _follow(job, pipeline.plan, command, console, url, start)


def _start(name: str | None) -> SavepointPlace | None:
    """The place of the savepoint that a run begins with."""
    if name is None:
        return None
    from penstock.savepoint.places import find_place  # loads what reads states

    place = find_place(name)
    if place is None:
        raise UsageError(
            f"--from-savepoint {name}: there is no such folder; of a cluster's savepoint make one with "
            "penstock savepoint JOB --to DIR"
        )
    return place


async def _follow(
    job: EmbeddedJob, plan: LogicalPlan, command: Run, console: Console, url: str, start: SavepointPlace | None
) -> int:
    """Run the job, from a savepoint if there is one, and say how it ended; `url`: of its dashboard, if it has one."""
    started = time.monotonic()
    running = asyncio.ensure_future(job.run(resume=command.resume, from_savepoint=start))
    interrupts = _Interrupts(job, running, console)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupts.interrupt)
    watchers = [asyncio.create_task(_show(job, console))] if console.is_terminal else []
    if command.metrics is not None:
        watchers.append(asyncio.create_task(_write_metrics(job, Path(command.metrics))))
    try:
        await asyncio.wait([running])
    finally:
        for watcher in watchers:
            watcher.cancel()
        for failed in await asyncio.gather(*watchers, return_exceptions=True):
            if isinstance(failed, PenstockError):
                _say(console, f"warning: {failed}")
    if running.cancelled():
        _say(console, "stopped before the run had begun")
        return 130
    result = running.result()
    try:
        exit_code = _report(console, job, result, time.monotonic() - started, command)
        print_collected(plan)
    finally:
        if url and result.state != "SUSPENDED":  # whoever pressed Ctrl-C wants to leave
            await _keep(job, result, command, console, url)
    return exit_code


async def _keep(job: EmbeddedJob, result: JobResult, command: Run, console: Console, url: str) -> None:
    """Keep the dashboard, where that was asked for."""
    if not command.ui_keep:
        if console.is_terminal:
            _say(console, "the dashboard ends with the run; --ui-keep keeps it")
        return
    how = f"{result.state.lower()}: {result.reason}" if result.reason else result.state.lower()
    _say(console, f"{how}; the dashboard stays at {url} until Ctrl-C")
    await keep_dashboard(job)


async def _announce(job: EmbeddedJob, directory: Path, command: Run, console: Console) -> None:
    """Say what is about to run; refuse to start over an unfinished run."""
    found = await job.find()
    if found is not None and not found.finished and not command.resume and not command.fresh:
        raise UsageError(f"{directory} holds an unfinished run; continue it with --resume, or discard it with --fresh")
    restore = found.history.restore if found is not None and not found.finished and command.resume else None
    _say(console, *start_lines(job.graph, str(directory), restore.checkpoint if restore else None, job.processes))
    if command.resume and found is not None and not found.finished and restore is None:
        _say(console, "the earlier run had no complete checkpoint, so this one reads from the beginning")
    if found is not None and restore is not None:
        _say(console, *changed_lines(job.graph, graph_from_json(found.history.graph)))


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)


class _Interrupts:
    """Ctrl-C: the first stops at a checkpoint, the second at once."""

    def __init__(self, job: EmbeddedJob, running: asyncio.Future[JobResult], console: Console) -> None:
        self._job = job
        self._running = running
        self._console = console
        self._count = 0

    def interrupt(self) -> None:
        self._count += 1
        if not self._job.started:
            self._running.cancel()
        elif self._count == 1:
            _say(self._console, "stopping at a checkpoint; Ctrl-C again stops at once")
            self._job.suspend()
        else:
            self._console.show_cursor(True)
            _say(self._console, "stopped at once; --resume continues from the newest complete checkpoint")
            os._exit(130)


async def _show(job: EmbeddedJob, console: Console) -> None:
    rate = Rate()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        try:
            while True:
                await asyncio.sleep(REFRESH_S)
                if job.started:
                    live.update(live_view(job.graph, job.progress, rate, time.monotonic()), refresh=True)
        finally:
            if job.started:
                live.update(live_view(job.graph, job.progress, rate, time.monotonic()), refresh=True)


async def _write_metrics(job: EmbeddedJob, path: Path) -> None:
    """Keep a file of all metrics current, as node exporters read it; the last look is taken at the end."""
    try:
        while True:
            await asyncio.sleep(METRICS_S)
            _write_metrics_once(job, path)
    finally:
        _write_metrics_once(job, path)


def _write_metrics_once(job: EmbeddedJob, path: Path) -> None:
    from prometheus_client import write_to_textfile

    if job.started:
        try:
            write_to_textfile(str(path), Snapshot(samples(job.graph, job.progress, job.now_us())))
        except OSError as error:
            raise ExternalError(f"--metrics {path}: {error.strerror}") from error


def _report(console: Console, job: EmbeddedJob, result: JobResult, seconds: float, command: Run) -> int:
    go_on = shlex.join(["penstock", "run", command.file, *_repeated(command), "--resume"])
    if result.state == "FAILED":
        reached = result.progress.last_checkpoint
        if reached:
            _say(console, f"failed behind checkpoint {reached}; once the cause is removed, go on with: {go_on}")
        if isinstance(result.error, PenstockError):
            raise result.error
        raise UserCodeError(result.reason) from result.error
    _say(console, *summary_lines(job.graph, result.progress, seconds))
    if result.state == "SUSPENDED":
        reached = result.progress.last_checkpoint
        where = f"at checkpoint {reached}" if reached else "before the first checkpoint"
        _say(console, f"stopped {where}; go on with: {go_on}")
        return 130
    if result.state == "STOPPED":
        _say(console, f"stopped with a savepoint, checkpoint {result.progress.last_checkpoint}; go on with: {go_on}")
        return 0
    _say(console, f"{job.graph.name}: {result.state.lower()}")
    return 0


def _repeated(command: Run) -> list[str]:
    """The options without which `--resume` would mean something else."""
    options = [part for given in command.param for part in ("--param", given)]
    if command.dir:
        options += ["--dir", command.dir]
    if command.parallelism and command.parallelism > 1:
        options += ["--parallelism", str(command.parallelism)]
    return options

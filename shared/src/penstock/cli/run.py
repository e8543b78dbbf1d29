"""`penstock run`: a pipeline file, embedded, on one machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.api.loading import load_pipeline, parse_parameters
from penstock.api.pipeline import DeclaredPipeline
from penstock.cli.display import Rate, changed_lines, live_view, print_collected, start_lines, summary_lines
from penstock.coordination.job_progress import JobResult
from penstock.embedded import EmbeddedJob, EmbeddedSettings, PipelineFile, default_directory
from penstock.errors import ExternalError, PenstockError, UsageError, UserCodeError
from penstock.graph.jobgraph import graph_from_json
from penstock.observability.metrics import prometheus_text, samples
from penstock.task.environment import SubtaskSettings
from penstock.times import duration_us

REFRESH_S = 0.25
METRICS_S = 1.0


def run_command(arguments: argparse.Namespace) -> int:
    """Run the pipeline; the exit code."""
    pipeline = load_pipeline(arguments.file, parse_parameters(arguments.param))
    settings = EmbeddedSettings(
        parallelism=arguments.parallelism,
        checkpoint_interval_ms=duration_us(arguments.checkpoint_interval, "--checkpoint-interval", positive=True)
        // 1_000,
        durable=not arguments.no_fsync,
        at_least_once=arguments.at_least_once,
        data=SubtaskSettings(state_backend=arguments.state_backend),
    )
    directory = Path(arguments.dir) if arguments.dir else default_directory(pipeline.name)
    return asyncio.run(_run(pipeline, directory, settings, arguments))


async def _run(
    pipeline: DeclaredPipeline, directory: Path, settings: EmbeddedSettings, arguments: argparse.Namespace
) -> int:
    # Standard output belongs to the rows of console sinks: everything about the run goes to standard error.
    console = Console(stderr=True, highlight=False)
    code = PipelineFile(arguments.file, parse_parameters(arguments.param), arguments.log_format, arguments.log_level)
    job = EmbeddedJob(pipeline, directory, settings, code)
    await _announce(job, directory, arguments, console)
    started = time.monotonic()
    running = asyncio.ensure_future(job.run(resume=arguments.resume))
    interrupts = _Interrupts(job, running, console)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupts.interrupt)
    watchers = [asyncio.create_task(_show(job, console))] if console.is_terminal else []
    if arguments.metrics is not None:
        watchers.append(asyncio.create_task(_write_metrics(job, Path(arguments.metrics))))
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
    exit_code = _report(console, job, running.result(), time.monotonic() - started, arguments)
    print_collected(pipeline.plan)
    return exit_code


async def _announce(job: EmbeddedJob, directory: Path, arguments: argparse.Namespace, console: Console) -> None:
    """Say what is about to run; refuse to start over an unfinished run."""
    found = await job.find()
    if found is not None and not found.finished and not arguments.resume and not arguments.fresh:
        raise UsageError(f"{directory} holds an unfinished run; continue it with --resume, or discard it with --fresh")
    restore = found.history.restore if found is not None and not found.finished and arguments.resume else None
    _say(console, *start_lines(job.graph, str(directory), restore.checkpoint if restore else None, job.processes))
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
    if job.started:
        text = prometheus_text(samples(job.graph, job.progress, job.now_us()))
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            temporary.write_text(text)
            temporary.replace(path)
        except OSError as error:
            raise ExternalError(f"--metrics {path}: {error.strerror}") from error


def _report(
    console: Console, job: EmbeddedJob, result: JobResult, seconds: float, arguments: argparse.Namespace
) -> int:
    go_on = shlex.join(["penstock", "run", arguments.file, *_repeated(arguments), "--resume"])
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
    _say(console, f"{job.graph.name}: {result.state.lower()}")
    return 0


def _repeated(arguments: argparse.Namespace) -> list[str]:
    """The options without which `--resume` would mean something else."""
    options = [part for given in arguments.param for part in ("--param", given)]
    if arguments.dir:
        options += ["--dir", arguments.dir]
    if arguments.parallelism > 1:
        options += ["--parallelism", str(arguments.parallelism)]
    return options

"""`penstock run`: a pipeline file, embedded, on one machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from penstock.api.pipeline import Pipeline
from penstock.cli.display import Rate, live_view, print_start, print_summary
from penstock.cli.loading import load_pipeline
from penstock.cli.options import parse_parameters
from penstock.errors import PenstockError, UsageError, UserCodeError
from penstock.observability.metrics import prometheus_text, samples
from penstock.runtime.embedded import EmbeddedJob, EmbeddedSettings, JobResult, default_directory
from penstock.runtime.subtask import SubtaskSettings
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


async def _run(pipeline: Pipeline, directory: Path, settings: EmbeddedSettings, arguments: argparse.Namespace) -> int:
    console = Console(soft_wrap=True)
    job = EmbeddedJob(pipeline, directory, settings)
    found = await job.find()
    if found is not None and not found.finished and not arguments.resume and not arguments.fresh:
        raise UsageError(f"{directory} holds an unfinished run; continue it with --resume, or discard it with --fresh")
    restore = found.history.restore if found is not None and arguments.resume else None
    print_start(console, job.graph, str(directory), restore.checkpoint if restore else None)
    started = time.monotonic()
    interrupts = _Interrupts(job, console)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupts.interrupt)
    watchers = [asyncio.create_task(_show(job, console))] if console.is_terminal else []
    if arguments.metrics is not None:
        watchers.append(asyncio.create_task(_write_metrics(job, Path(arguments.metrics))))
    try:
        result = await job.run(resume=arguments.resume)
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    return _report(console, job, result, time.monotonic() - started, arguments.file)


class _Interrupts:
    """Ctrl-C: the first stops at a checkpoint, the second at once."""

    def __init__(self, job: EmbeddedJob, console: Console) -> None:
        self._job = job
        self._console = console
        self._count = 0

    def interrupt(self) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(130)  # nothing is lost: --resume continues from the newest complete checkpoint
        self._console.print("stopping at a checkpoint; Ctrl-C again stops at once")
        self._job.suspend()


async def _show(job: EmbeddedJob, console: Console) -> None:
    rate = Rate()
    with Live(console=console, refresh_per_second=8, transient=False) as live:
        while True:
            await asyncio.sleep(REFRESH_S)
            if job.started:
                live.update(live_view(job.graph, job.progress, rate, time.monotonic()))


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
        temporary.write_text(text)
        temporary.replace(path)


def _report(console: Console, job: EmbeddedJob, result: JobResult, seconds: float, file: str) -> int:
    if result.state == "FAILED":
        if isinstance(result.error, PenstockError):
            raise result.error
        raise UserCodeError(result.reason) from result.error
    print_summary(console, job.graph, result.progress, seconds)
    if result.state == "SUSPENDED":
        console.print(
            f"stopped at checkpoint {result.progress.last_checkpoint}; go on with: penstock run {file} --resume"
        )
        return 130
    console.print(f"{job.graph.name}: {result.state.lower()}", highlight=False)
    return 0

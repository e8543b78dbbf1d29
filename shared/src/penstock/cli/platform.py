"""`penstock up`, `penstock down`, `penstock doctor`: the local platform, and whether a cluster's parts are fit."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from penstock.platform.compose import Way, bring_down, bring_up
from penstock.platform.local import DownReport, UpReport
from penstock.platform.parts import Parts, fetch_parts
from penstock.platform.plan import Wishes
from penstock.spark.session import check_installed

T = TypeVar("T")


@dataclass(frozen=True)
class Up:
    """`penstock up`."""

    dir: str
    kafka_port: int | None
    minio_port: int | None
    redis_port: int | None
    rest_port: int | None
    slots: int | None
    coordinators: int | None
    pipeline: bool | None
    tls_certificate: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    way: Way | None
    json: bool
    fetch_only: bool


@dataclass(frozen=True)
class Down:
    """`penstock down`."""

    dir: str
    purge: bool
    json: bool


def up_command(command: Up) -> int:
    """Start the local platform; the exit code."""
    console = Console(stderr=True, highlight=False)
    progress = _Progress(console)

    async def parts() -> Parts:
        return await fetch_parts(progress=progress)

    started = time.monotonic()
    if command.fetch_only:
        fetched = _run(parts())
        print(f"fetched, or had: {fetched.kafka}, {fetched.minio}", file=sys.stderr)
        return 0
    if command.pipeline:
        check_installed(java=True)
    wishes = Wishes(
        kafka_port=command.kafka_port,
        minio_port=command.minio_port,
        redis_port=command.redis_port,
        rest_port=command.rest_port,
        slots=command.slots,
        coordinators=command.coordinators,
        pipeline=command.pipeline,
        tls_certificate=command.tls_certificate,
        tls_key=command.tls_key,
        tls_ca=command.tls_ca,
    )
    try:
        report = _run(bring_up(Path(command.dir), command.way, wishes, parts, progress))
    except KeyboardInterrupt:
        print("interrupted; what was started is stopped again", file=sys.stderr)
        return 130
    if command.json:
        print(json.dumps(_addresses(report), indent=2))
    else:
        _show(report, time.monotonic() - started)
    return 0


def down_command(command: Down) -> int:
    """Stop the local platform; the exit code."""
    progress = _Progress(Console(stderr=True, highlight=False))
    report = _run(bring_down(Path(command.dir), purge=command.purge, progress=progress))
    if command.json:
        print(json.dumps({"stopped": report.stopped, "had_ended": report.gone_before, "purged": report.purged}))
        return 0
    for line in _down_lines(report, command.dir):
        print(line)
    return 0


def _addresses(report: UpReport) -> dict[str, Any]:
    settings = report.settings
    return {
        "cluster": str(report.file),
        "kafka": settings.kafka.brokers,
        "redis": settings.redis.address.partition("/")[0],
        "store": settings.store.endpoint,
        "bucket": settings.store.bucket,
        "rest": None if "dispatcher" in report.absent else settings.rest,
        "started": list(report.started),
        "ran_already": list(report.ran_already),
        "absent": report.absent,
        "logs": {name: str(path) for name, path in report.logs.items()},
    }


def _show(report: UpReport, seconds: float) -> None:
    addresses = _addresses(report)
    if report.started:
        also = f"; {', '.join(report.ran_already)} ran already" if report.ran_already else ""
        print(f"started {', '.join(report.started)} in {seconds:.1f} s{also}")
    else:
        print(f"everything runs already: {', '.join(report.ran_already)}")
    notes = {"store": f" (bucket {report.settings.store.bucket})", "rest": " (in a browser: the dashboard)"}
    for name in ("kafka", "redis", "store", "rest"):
        if addresses[name] is not None:
            print(f"  {name:<8} {addresses[name]}{notes.get(name, '')}")
    print(f"  {'settings':<8} {_short(report.file)} (with the passwords)")
    if report.logs:
        print(f"  {'logs':<8} {_short(report.file.with_name('cluster.d'))}/*/*.log")
    for name, why in report.absent.items():
        print(f"{name} is not part of this installation: {why}")


def _down_lines(report: DownReport, folder: str) -> list[str]:
    lines = [f"stopped {', '.join(report.stopped)}"] if report.stopped else [f"nothing of {folder} ran"]
    if report.gone_before:
        lines.append(f"had ended before: {', '.join(report.gone_before)}")
    if report.purged:
        lines.append("removed its data")
    return lines


def _short(path: Path) -> str:
    """Relative to the current folder where that is shorter to read."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


class _Progress:
    """What is being done: a spinner on a terminal, a line each elsewhere. Several may be under way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._doing: list[str] = []
        self._status = console.status("")

    @contextmanager
    def __call__(self, text: str) -> Generator[None]:
        started = time.monotonic()
        self._doing.append(text)
        if not self._console.is_terminal:
            self._console.print(Text(f"{text} ..."), soft_wrap=True)
        self._update()
        try:
            yield
        finally:
            self._doing.remove(text)
            self._update()
        self._console.print(Text(f"{text}: done in {time.monotonic() - started:.1f} s"), soft_wrap=True)

    def _update(self) -> None:
        if not self._console.is_terminal:
            return
        self._status.update(Text(", ".join(self._doing)))
        (self._status.start if self._doing else self._status.stop)()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run it; SIGTERM, like Ctrl-C, lets it clean up behind itself first."""

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None

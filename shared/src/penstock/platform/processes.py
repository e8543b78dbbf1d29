"""Processes that outlive whoever started them: spawn, recognise, signal, wait.

A process is known by its id and the time it started, because ids are used again: a signal meant for a process that is
gone must never reach its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from penstock.platform.errors import PlatformError

_PAUSE_S: Final = 0.02
_PROC: Final = Path("/proc")
MARK_VARIABLE: Final = "PENSTOCK_PLATFORM"
"""In the environment of everything that is started, so that what a dead process leaves behind is recognised."""


@dataclass(frozen=True)
class ProcessId:
    """A process, and no other that gets the same number later."""

    pid: int
    started: str
    """When it started, in whatever form the system tells it; compared, never interpreted."""


def identify(pid: int) -> ProcessId | None:
    """The process that has this number now; None if there is none, or only its unburied remains."""
    seen = _look(pid)
    return None if seen is None or seen.state == "Z" else ProcessId(pid, seen.started)


def is_alive(process: ProcessId) -> bool:
    """Whether that very process still runs (or is suspended)."""
    seen = _look(process.pid)
    if seen is None or seen.started != process.started:
        return False
    if seen.state == "Z":
        _bury(process.pid)
        return False
    return True


def pid_namespace() -> str:
    """What tells where numbers of processes have been seen: on Linux the boot and the PID namespace, of which every
    container has its own, also one that has the host name of a former one; on other systems the machine's name."""
    try:
        return f"{_boot()}:{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def await_stopped(process: ProcessId, deadline_s: float = 1.0) -> None:
    """Wait the milliseconds that it takes until no thread of a process that was sent SIGSTOP runs any more."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            states = [path.read_text().rpartition(")")[2].split()[0] for path in _threads(process.pid)]
            if all(state in "Tt" for state in states):
                return
        time.sleep(0.001)


def _threads(pid: int) -> list[Path]:
    """Of each thread what Linux says of it; psutil knows no states of threads."""
    return list(Path(f"/proc/{pid}/task").glob("*/stat"))


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Send a signal to that very process; False if it is gone."""
    if not hasattr(os, "pidfd_open"):  # not Linux: a small gap between looking and sending remains
        return is_alive(process) and _kill(process.pid, number)
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


async def wait_until_gone(process: ProcessId, deadline_s: float) -> bool:
    """Wait for its end; False if it still runs after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while is_alive(process):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_PAUSE_S)
    return True


async def terminate(process: ProcessId, grace_s: float) -> None:
    """End a process: SIGTERM, after `grace_s` SIGKILL. One that is suspended is woken first.

    Raises:
        PlatformError: it does not even end by SIGKILL (it hangs in the kernel).
    """
    send(process, signal.SIGCONT)
    send(process, signal.SIGTERM)
    if not await wait_until_gone(process, grace_s):
        await kill(process)


async def kill(process: ProcessId) -> None:
    """End a process by SIGKILL and wait until it is gone.

    Raises:
        PlatformError: it does not end (it hangs in the kernel).
    """
    send(process, signal.SIGKILL)
    if not await wait_until_gone(process, 30):
        raise PlatformError(f"process {process.pid} does not end after SIGKILL; look at it with: ps -fp {process.pid}")


def spawn(
    command: Sequence[str], *, folder: Path, log: Path, mark: str, environment: Mapping[str, str] | None = None
) -> ProcessId:
    """Start a process in a session of its own, its output appended to `log`; it survives the end of this one.

    Raises:
        PlatformError: the program cannot be started.
    """
    with log.open("ab") as output:
        try:
            child = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**(os.environ if environment is None else environment), MARK_VARIABLE: mark},
            )
        except OSError as error:
            raise PlatformError(f"cannot start {command[0]}: {error.strerror}") from error
    # A daemon: waited for by its number, by this process or another, so Popen must not warn that it was abandoned.
    child.returncode = 0
    seen = _look(child.pid)  # its remains are still there even if it ended at once
    if seen is None:
        raise PlatformError(f"cannot see process {child.pid} ({command[0]}) that was just started: is /proc mounted?")
    return ProcessId(child.pid, seen.started)


def marked(mark: str) -> list[ProcessId]:
    """All processes that carry this mark or one that begins with it and a slash.

    Where the system does not show the environment of a process, or a program has written its title over it (Redis does),
    it is not seen.
    """
    seen = (identify(pid) for pid in psutil.pids() if _has_mark(pid, mark))
    return [process for process in seen if process is not None]


async def run_to_end(
    command: Sequence[str], folder: Path, log: Path, failed: str, deadline_s: float, environment: Mapping[str, str]
) -> None:
    """Run a program that ends by itself; its output goes to the end of a log.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        log: what its output is appended to.
        failed: what is said of it if it fails, such as "Maven could not fetch Kafka".
        deadline_s: after that it is killed.
        environment: all of its variables.

    Raises:
        PlatformError: it failed, or took too long; with the end of the log.
    """
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    try:
        code = await asyncio.wait_for(process.wait(), deadline_s)
    except TimeoutError as error:
        raise PlatformError(f"{failed} within {deadline_s:.0f} s:\n{tail(log)}") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise PlatformError(f"{failed} (exit code {code}): {' '.join(command)}\n{tail(log)}")


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 64_000))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:])


def _has_mark(pid: int, mark: str) -> bool:
    try:
        found = psutil.Process(pid).environ().get(MARK_VARIABLE, "")
    except (psutil.Error, OSError):  # it ended meanwhile, or belongs to somebody else
        return False
    return found == mark or found.startswith(f"{mark}/")


def _kill(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _bury(pid: int) -> None:
    """Take the exit status of a dead child, so that its remains do not stay for as long as this process lives."""
    with contextlib.suppress(ChildProcessError):  # somebody else's child
        os.waitpid(pid, os.WNOHANG)


@dataclass(frozen=True)
class _Seen:
    state: str
    started: str


def _look(pid: int) -> _Seen | None:
    if not _PROC.is_dir():
        return _look_elsewhere(pid)
    fields = _stat(pid)
    # Not psutil's time of creation: on Linux that moves when the clock is set, and a process that lives would be taken
    # for gone. Ticks since boot do not; they are only unique with the boot they count from.
    return None if fields is None else _Seen(fields[0], f"{_boot()}:{fields[19]}")


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; the second, the name, may contain anything."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _look_elsewhere(pid: int) -> _Seen | None:
    """Systems other than Linux keep the time at which a process started."""
    try:
        process = psutil.Process(pid)
        state = "Z" if process.status() == psutil.STATUS_ZOMBIE else "R"
        return _Seen(state, str(process.create_time()))
    except psutil.Error:
        return None

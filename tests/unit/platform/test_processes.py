"""Processes are recognised by number and start, signalled only if they are the ones meant, and ended for certain."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from penstock.platform import processes
from penstock.platform.errors import PlatformError
from penstock.platform.processes import (
    ProcessId,
    identify,
    is_alive,
    kill,
    marked,
    pid_namespace,
    send,
    spawn,
    tail,
    terminate,
    wait_until_gone,
)

Start = Callable[[str], ProcessId]

SLEEP = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    """Runs a piece of Python as a daemon, and waits until it printed something."""
    started: list[ProcessId] = []

    def run(code: str) -> ProcessId:
        log = tmp_path / f"{len(started)}.log"
        process = spawn([sys.executable, "-c", code], folder=tmp_path, log=log, mark=str(tmp_path))
        started.append(process)
        wait_for(lambda: log.stat().st_size > 0)
        return process

    yield run
    for process in started:
        send(process, signal.SIGKILL)
    wait_for(lambda: not any(is_alive(process) for process in started))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds; the test's own timeout is the deadline."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_a_process_is_known_until_it_is_gone(start: Start) -> None:
    """It is alive from the start to its end, and the end is noticed although nobody asked for its exit code."""
    process = start(SLEEP)
    assert identify(process.pid) == process
    assert is_alive(process)
    await kill(process)
    assert not is_alive(process)
    assert identify(process.pid) is None


def test_a_successor_with_the_same_number_is_left_alone(start: Start) -> None:
    """Same number, other start: not alive, and no signal reaches it."""
    process = start(SLEEP)
    former = ProcessId(process.pid, "some other start")
    assert not is_alive(former)
    assert not send(former, signal.SIGKILL)
    assert is_alive(process)


def test_a_signal_to_nobody_is_told() -> None:
    """No process has the largest number that there can be."""
    assert not send(ProcessId(2**22 - 1, "never"), signal.SIGTERM)


async def test_terminate_is_heard_before_it_is_forced(start: Start) -> None:
    """A process that cleans up on SIGTERM may; one that ignores it is killed after the grace."""
    polite = start(
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit()));"
        + SLEEP
    )
    await terminate(polite, 20)
    deaf = start("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP)
    started = time.monotonic()
    await terminate(deaf, 0.2)
    assert time.monotonic() - started >= 0.2
    assert not is_alive(polite)
    assert not is_alive(deaf)


async def test_a_suspended_process_hears_sigterm(start: Start) -> None:
    """It is woken first, else the signal would wait for ever."""
    process = start(SLEEP)
    send(process, signal.SIGSTOP)
    await terminate(process, 20)
    assert not is_alive(process)


async def test_waiting_has_a_deadline(start: Start) -> None:
    """A process that stays is reported as such."""
    assert not await wait_until_gone(start(SLEEP), 0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the environments of other processes")
async def test_what_a_killed_process_leaves_behind_is_found(start: Start, tmp_path: Path) -> None:
    """The child of a killed supervisor is found by the mark, whatever session it is in."""
    leader = start(
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True);" + SLEEP
    )
    await kill(leader)
    (child,) = marked(str(tmp_path))
    assert child != leader
    assert child in marked(str(tmp_path.parent))  # a mark covers the folders below it
    assert marked(f"{tmp_path}-other") == []
    await kill(child)


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    """The error says which program and why."""
    with pytest.raises(PlatformError, match=r"cannot start .*/nothing: No such file"):
        spawn([str(tmp_path / "nothing")], folder=tmp_path, log=tmp_path / "log", mark="m")


def test_the_tail_is_the_end_of_the_log(tmp_path: Path) -> None:
    """So many lines, not more; a log that is missing is said to be."""
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert tail(log, 2) == "line 98\nline 99"
    assert "no log" in tail(tmp_path / "other")


def test_we_know_ourselves() -> None:
    """The own process is recognised."""
    me = identify(os.getpid())
    assert me is not None
    assert is_alive(me)


async def test_a_process_is_known_where_there_is_no_proc(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time at which it started, on systems other than Linux; without a program to ask."""
    monkeypatch.setattr(processes, "_PROC", tmp_path / "nowhere")
    monkeypatch.setenv("PATH", "")
    process = start(SLEEP)
    assert identify(process.pid) == process
    assert is_alive(process)
    assert not is_alive(ProcessId(process.pid, "1.5"))
    await kill(process)
    assert identify(process.pid) is None


def test_processes_that_see_each_other_agree_on_their_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where there are no namespaces the machine's name is what they share."""
    asked = "from penstock.platform.processes import pid_namespace; print(pid_namespace())"
    other = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    assert pid_namespace() == other != socket.gethostname()
    monkeypatch.setattr(processes, "_PROC", tmp_path / "nowhere")
    assert pid_namespace() == socket.gethostname()

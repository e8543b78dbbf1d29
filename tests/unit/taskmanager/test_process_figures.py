"""What a task manager sees of its workers: their memory, and whether they are at work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.taskmanager.supervisor import activity_of
from penstock.taskmanager.worker import resident_bytes

PROGRAM = """
import sys
held = b""
for line in sys.stdin:
    held = b"x" * int(line)
    print(len(held), flush=True)
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    """A process that holds as many bytes as it is told."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def hold(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{count}\n"


def test_memory_is_what_a_process_holds(worker: subprocess.Popen[str]) -> None:
    """In bytes; of this process too, and nothing of one that is gone."""
    hold(worker, 1)
    before = resident_bytes(worker.pid)
    hold(worker, 64 << 20)
    assert 60 << 20 < resident_bytes(worker.pid) - before < 80 << 20
    assert resident_bytes() == pytest.approx(resident_bytes(os.getpid()), rel=0.05)
    worker.kill()
    worker.wait()
    assert resident_bytes(worker.pid) == 0


def test_work_is_a_sign_of_life(tmp_path: Path) -> None:
    """Time of the processor, counted in parts of a second."""
    before = activity_of(os.getpid(), tmp_path)
    end_s = time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    after = activity_of(os.getpid(), tmp_path)
    assert 50_000 < after[1] - before[1] < 1_000_000


def test_what_is_gone_shows_no_activity(tmp_path: Path) -> None:
    """No process has the largest number that there can be."""
    assert activity_of(2**22 + 1, tmp_path) == (0, 0)

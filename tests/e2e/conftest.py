"""The command as users run it: in a process of its own, which can be killed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


class Command:
    """Runs `penstock` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start without waiting."""
        command = [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "POLARS_MAX_THREADS": "1", "COLUMNS": "200"},
        )

    def run(self, *arguments: str | Path, code: int = 0, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run to the end and check the exit code."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"penstock {' '.join(map(str, arguments))} did not end in {timeout_s} s:\n{out}\n{err}")
        assert process.returncode == code, f"exit code {process.returncode}, expected {code}:\n{out}\n{err}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def python(self, script: Path) -> subprocess.CompletedProcess[str]:
        """Run a Python script."""
        return subprocess.run(
            [sys.executable, script], cwd=self.folder, capture_output=True, text=True, check=False, timeout=60
        )

    def terminal(
        self, *arguments: str | Path, keys: Callable[[str], str] = lambda screen: "", columns: int = 100
    ) -> tuple[int, str]:
        """Run on a pseudo terminal; `keys` says once what is typed when that is on the screen. Exit code and screen."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        command = [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CI")}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**environment, "TERM": "xterm", "POLARS_MAX_THREADS": "1"},
        )
        os.close(theirs)
        screen, typed = b"", False
        with contextlib.suppress(OSError):  # what Linux says when the other side is closed
            while data := os.read(ours, 65_536):
                screen += data
                wanted = "" if typed else keys(screen.decode(errors="replace"))
                if wanted:
                    typed = True
                    os.write(ours, wanted.encode())
        os.close(ours)
        return process.wait(timeout=30), screen.decode(errors="replace")

    def pipeline(self, name: str, text: str) -> Path:
        """Write a pipeline file."""
        path = self.folder / name
        path.write_text(text)
        return path

    def rows(self, folder: str) -> list[dict[str, Any]]:
        """All rows that a reader of an output folder sees."""
        return [
            json.loads(line)
            for path in sorted((self.folder / folder).glob("part-*.jsonl"))
            for line in path.read_text().splitlines()
        ]


@pytest.fixture
def penstock(tmp_path: Path) -> Command:
    """The command in an empty folder."""
    return Command(tmp_path)


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 30, pause_s: float = 0.001) -> None:
    """Poll a condition; fail after the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {deadline_s} s: {what}")
        time.sleep(pause_s)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait until it is gone."""
    process.send_signal(signal.SIGKILL)
    process.communicate()

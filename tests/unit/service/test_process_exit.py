"""How a process ends: its exit code, what it printed, and nothing behind that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import atexit
from penstock.service.process_exit import leave

def main():
    atexit.register(lambda: print("finalized"))
    print("shown", end="")
    {ending}

leave(main)
"""


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("return 3", 3, ""),
        ("return None", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(2)", 2, ""),
        ("raise SystemExit('why')", 1, "why"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
    ],
)
def test_the_exit_code_and_the_output_are_those_of_main(ending: str, code: int, said: str) -> None:
    """Everything printed is there although nothing is finalized."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(ending=ending)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "shown")
    assert done.stderr.strip().endswith(said)


def test_a_reader_that_has_gone_is_no_crash() -> None:
    """The pipe is closed before the output is flushed."""
    command = [sys.executable, "-c", CODE.format(ending="import sys; sys.stdin.read(); return 0")]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=buffered) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1

"""One run at a time in a directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.adapters.directory.claim import claimed
from penstock.errors import ExternalError, UsageError

HOLDER = """
import sys, time
from pathlib import Path
from penstock.adapters.directory.claim import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_kept_out_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    """The error names the process that is at work there."""
    with (
        claimed(tmp_path / "run"),
        pytest.raises(UsageError, match=f"in use by another run .process {os.getpid()}.*--dir"),
        claimed(tmp_path / "run"),
    ):
        pass


def test_the_directory_is_free_again_afterwards(tmp_path: Path) -> None:
    """Leaving the context gives it back."""
    for _ in range(2):
        with claimed(tmp_path / "run"):
            pass


def test_a_killed_holder_leaves_nothing_behind(tmp_path: Path) -> None:
    """The kernel gives the lock back with the process."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=str(holder.pid)), claimed(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with claimed(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_an_error_that_says_so(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ExternalError, match=r"cannot write in .*--dir"), claimed(tmp_path / "file" / "run"):
        pass

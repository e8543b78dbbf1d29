"""Task managers that a coordinator starts itself, for jobs that want their own, on its own machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import structlog

from penstock.runtime.coordinator import TaskManagerStarter
from penstock.settings import ClusterSettings, settings_to_toml

_log = structlog.get_logger("penstock.coordinator")


def task_manager_starter(settings: ClusterSettings, limit: int) -> TaskManagerStarter:
    """Starts at most `limit` processes at a time. They outlive this one: another leader finds them at work."""
    running: list[subprocess.Popen[bytes]] = []

    def start(job: str, slots: int) -> None:
        running[:] = [process for process in running if process.poll() is None]
        if len(running) >= limit:
            _log.warning("no further task manager may be started", limit=limit, job=job[:8])
            return
        descriptor, path = tempfile.mkstemp(prefix="penstock-", suffix=".toml")  # readable by its owner only
        with os.fdopen(descriptor, "w") as file:
            file.write(settings_to_toml(settings))
        command = [sys.executable, "-m", "penstock.cli.main", "taskmanager", "--cluster", path]
        command += ["--for-job", job, "--slots", str(slots), "--http", "127.0.0.1:0"]
        running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
        _log.info("task manager started", job=job[:8], slots=slots, pid=running[-1].pid)

    return start

"""Task managers that a coordinator starts itself, for jobs that want their own, on its own machine."""

from __future__ import annotations

import subprocess
import sys

import structlog

from penstock.jobmanager.coordinator import TaskManagerStarter

_log = structlog.get_logger("penstock.coordinator")


def task_manager_starter(cluster: str | None, limit: int) -> TaskManagerStarter:
    """Starts at most `limit` processes at a time. They outlive this one: another leader finds them at work.

    `cluster` is the file that this process was given; environment and working directory are this process's too, so that
    they come to the same settings.
    """
    running: list[subprocess.Popen[bytes]] = []

    def start(job: str, slots: int) -> None:
        running[:] = [process for process in running if process.poll() is None]
        if len(running) >= limit:
            _log.warning("no further task manager may be started", limit=limit, job=job[:8])
            return
        command = [sys.executable, "-m", "penstock.cli.main", "taskmanager"]
        command += ["--cluster", cluster] if cluster else []
        command += ["--for-job", job, "--slots", str(slots), "--http", "127.0.0.1:0"]
        running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
        _log.info("task manager started", job=job[:8], slots=slots, pid=running[-1].pid)

    return start

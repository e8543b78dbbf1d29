"""A container engine for tests: the one that runs or one started for them; images where none can be pulled."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
STAND_INS: Final = ROOT / "infra" / "standins" / "build.sh"
PROJECTS: Final = "penstock-test-"
"""Begins the names of all that compose makes for a test."""
START_S: Final = 60
PID_FILES: Final = (Path("/run/docker.pid"), Path("/run/docker/containerd/containerd.pid"))


def run(*command: str | Path, timeout_s: float = 120, check: bool = True, **environment: str) -> str:
    """What a command prints; it must succeed unless `check` is off."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**os.environ, **environment},
    )
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def answers() -> bool:
    """Whether an engine is there."""
    done = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=60)
    return done.returncode == 0


@contextlib.contextmanager
def engine(folder: Path) -> Generator[None]:
    """A running engine; one that was started here is ended."""
    if answers():
        yield
        return
    daemon = shutil.which("dockerd")
    assert daemon is not None, "no container engine runs, and dockerd is missing: make acceptance installs it"
    for file in PID_FILES:
        _remove_if_stale(file)
    with (folder / "dockerd.log").open("w") as log:
        process = subprocess.Popen([daemon], stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        end = time.monotonic() + START_S
        while not answers():
            log_text = (folder / "dockerd.log").read_text()[-2_000:]
            assert process.poll() is None, f"dockerd ended while it started:\n{log_text}"
            assert time.monotonic() < end, f"dockerd does not answer within {START_S} s:\n{log_text}"
            time.sleep(0.5)
        _remove_leftovers()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _remove_leftovers() -> None:
    """Containers, networks and volumes of tests that were killed: an engine that starts runs the containers again."""
    for kind, remove in (("container", ["--force"]), ("network", []), ("volume", [])):
        every = ["--all"] if kind == "container" else []
        if found := run("docker", kind, "ls", *every, "--quiet", "--filter", f"name={PROJECTS}").split():
            run("docker", kind, "rm", *remove, *found)


def _remove_if_stale(file: Path) -> None:
    """An engine that was killed leaves its number, which another process may have by now: no engine starts then."""
    if not file.exists():
        return
    name = Path(f"/proc/{file.read_text().strip()}/comm")
    if not name.exists() or name.read_text().strip() not in ("dockerd", "containerd"):
        file.unlink()


class Compose:
    """The compose file as a project of its own, on free ports."""

    def __init__(self, project: str, variables: Mapping[str, str]) -> None:
        self._project, self._variables = project, dict(variables)
        has_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
        self._command = [*(["docker", "compose"] if has_plugin else ["docker-compose"]), "--project-name", project]

    def __call__(self, *arguments: str, timeout_s: float = 600) -> str:
        """What `docker compose ...` prints. If it fails, the error has the last lines of every container, too."""
        try:
            return run(*self._command, *arguments, timeout_s=timeout_s, **self._variables)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            logs = run(*self._command, "logs", "--tail", "20", check=False, **self._variables)
            raise AssertionError(f"{error}\n{logs}") from error

    def down(self, *options: str, deadline_s: float = 60) -> None:
        """Remove everything. The engine frees the network of a container a moment after the container is gone.

        Where many end at once it sometimes never does: then the endpoints of containers that are gone are removed, and a
        network that is not freed by that is left to the engine, and said.
        """
        end = time.monotonic() + deadline_s
        while True:
            try:
                self(*options, "down", "--volumes", "--timeout", "10")
            except AssertionError as failed:
                late, gone = time.monotonic() > end, not self._has_containers()
                if "has active endpoints" not in str(failed) or (late and not gone):
                    raise
                if late:
                    print(f"the engine keeps a network of containers that are gone: {failed}")
                    return
                if gone:
                    self._free_network()
                time.sleep(1)
            else:
                return

    def _has_containers(self) -> bool:
        project = f"label=com.docker.compose.project={self._project}"
        return bool(run("docker", "ps", "--all", "--quiet", "--filter", project))

    def _free_network(self) -> None:
        """Of endpoints of containers that are gone."""
        network = f"{self._project}_default"
        described = json.loads(run("docker", "network", "inspect", network, check=False) or "[]")
        for endpoint in (each for found in described for each in found["Containers"].values()):
            run("docker", "network", "disconnect", "--force", network, endpoint["Name"], check=False)

    def containers(self, service: str) -> list[str]:
        """The ids of a service's containers that run."""
        return self("ps", "-q", service).split()

    def kill(self, service: str) -> None:
        """kill -9 of the main process of one container, so that its restart policy is what brings it back."""
        pid = int(run("docker", "inspect", "--format", "{{.State.Pid}}", self.containers(service)[0]))
        os.kill(pid, signal.SIGKILL)

    def restarts(self, service: str) -> int:
        """How often the containers of a service were restarted."""
        ids = self.containers(service)
        return sum(int(run("docker", "inspect", "--format", "{{.RestartCount}}", found)) for found in ids)

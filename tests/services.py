"""The services of one test, on servers that run already, and the commands that users type at them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.platform.free_ports import HOST, free_port
from penstock.platform.services import ServiceProcess
from penstock.settings import ClusterSettings, settings_to_toml

READY_S: Final = 90.0
VARIABLES: Final = {"POLARS_MAX_THREADS": "1"}


class Services:
    """Several services as processes, each with its folder and its log."""

    command_s = 120.0
    """How long a command may take."""

    def __init__(self, folder: Path, settings: ClusterSettings, wanted: Mapping[str, Sequence[str]]) -> None:
        """`wanted`: options by name; a name is that of a service, of several with a number: `coordinator-2`."""
        self.folder = folder
        self.file = folder / "cluster.toml"
        taken: set[int] = set()
        ports = {name: free_port(taken) for name in wanted}
        self.rest = f"http://{HOST}:{ports['dispatcher']}"
        self.file.write_text(settings_to_toml(settings).replace(f'rest = "{settings.rest}"', f'rest = "{self.rest}"'))
        self.services = {
            name: ServiceProcess(
                name, name.partition("-")[0], folder / name, ports[name], cluster=self.file, options=tuple(options),
                variables=VARIABLES,
            )
            for name, options in wanted.items()
        }  # fmt: skip

    # -- life -----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """All of them, ready."""
        for service in self.services.values():
            await service.spawn()
        await asyncio.gather(*(service.wait_until_ready(READY_S) for service in self.services.values()))

    async def end(self) -> None:
        """Nothing is left."""
        await asyncio.gather(*(service.stop() for service in self.services.values()))

    def logs(self) -> str:
        """The last lines of every service."""
        return "\n".join(
            f"== {s.name}\n{s.log_file.read_text()[-3_000:]}" for s in self.services.values() if s.log_file.exists()
        )

    # -- commands -------------------------------------------------------------------------------------------------------

    def start_command(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """`penstock ...` at this cluster."""
        words = 2 if arguments[0] == "schedule" else 1
        command = [
            sys.executable, "-m", "penstock.cli.main", *arguments[:words], "--cluster", self.file, *arguments[words:],
        ]  # fmt: skip
        return subprocess.Popen(
            list(map(str, command)), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **VARIABLES, "COLUMNS": "200"},
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], code: int = 0) -> subprocess.CompletedProcess[str]:
        """Wait for the end of a command, which must be with this exit code."""
        try:
            out, err = process.communicate(timeout=self.command_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"{process.args} did not end:\n{out}\n{err}\n{self.logs()}")
        assert process.returncode == code, f"{process.args}: {process.returncode}\n{out}\n{err}\n{self.logs()}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run(self, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return self.finish(self.start_command(*arguments), code)

    def json(self, *arguments: str | Path) -> Any:
        """What a command prints with --json."""
        return json.loads(self.run(*arguments, "--json").stdout)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All rows that a reader of an output folder of JSON lines sees."""
    return [json.loads(line) for path in sorted(folder.glob("part-*.jsonl")) for line in path.read_text().splitlines()]


def wait_for(condition: Callable[[], Any], what: str | Callable[[], Any], deadline_s: float = 120) -> None:
    """Wait until it holds; `what` tells what is missing."""
    end = time.monotonic() + deadline_s
    while not condition():
        said = what if isinstance(what, str) else what()
        assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {said}"
        time.sleep(0.1)

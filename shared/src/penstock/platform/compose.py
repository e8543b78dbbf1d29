"""The platform by docker compose: chosen where an engine answers and the compose file in the current folder is ours.

A compose file is ours if it has a line `x-penstock-cluster: FILE`: the settings of the cluster that it starts, relative
to the compose file. Any other project's docker-compose.yml is left alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import fields
from pathlib import Path
from typing import Final, Literal

from penstock.errors import UsageError
from penstock.platform.errors import PlatformError
from penstock.platform.local import DownReport, LocalPlatform, UpReport
from penstock.platform.parts import Parts, Progress, silent
from penstock.platform.plan import Wishes, write_private
from penstock.settings import load_settings

COMPOSE_FILE: Final = "docker-compose.yml"
TOKEN_VARIABLE: Final = "PENSTOCK_TOKEN"

_LINE: Final = re.compile(r"^x-penstock-cluster:\s*[\"']?([^\"'\s#]+)", re.MULTILINE)
_ANSWER_S: Final = 15
_UP_S: Final = 1_800

Way = Literal["native", "compose"]


async def choose_way(named: Way | None, folder: Path) -> Way:
    """How the platform is started: as named, else by compose where that is possible.

    Args:
        folder: where `docker-compose.yml` would lie.

    Raises:
        UsageError: compose was named and is not possible here; says why.
    """
    if named == "native":
        return named
    problem = _file_problem(folder / COMPOSE_FILE) or await _engine_problem()
    if problem and named == "compose":
        raise UsageError(f"--with compose: {problem}; --with native starts processes of this machine instead")
    return "native" if problem else "compose"


class ComposePlatform:
    """What `penstock up` started by compose, and wrote down in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.file = self.folder / "cluster.toml"
        self._record = self.folder / "cluster.d" / "compose"
        self._token_file = self.folder / "cluster.d" / "token"

    @property
    def exists(self) -> bool:
        """Whether `up` was by compose here, and no `down` since."""
        return self._record.exists()

    async def up(self, compose_file: Path, wishes: Wishes, progress: Progress = silent) -> UpReport:
        """Start everything in the compose file and wait until its health checks pass.

        Raises:
            UsageError: wishes that only a native platform can fulfil, or a native platform is in this folder.
            PlatformError: compose failed; with what it printed.
        """
        if named := [item.name for item in fields(wishes) if getattr(wishes, item.name) is not None]:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in named)
            raise UsageError(f"{options}: the compose file says that; change it there, or use --with native")
        if (self.folder / "cluster.d" / "plan.json").exists():
            raise UsageError(f"{self.folder} holds a native platform; penstock down --purge removes it")
        settings = _settings_file(compose_file)
        content = await asyncio.to_thread(settings.read_bytes)
        self._record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = self._make_token()
        self._record.write_text(str(compose_file.resolve()))
        try:
            with progress("docker compose up"):
                await _docker(
                    "compose", "--file", str(compose_file), "up", "--detach", "--wait", deadline_s=_UP_S, token=token
                )
        except BaseException:
            await self.down(progress=progress)
            raise
        write_private(self.file, f'token = "{token}"\n'.encode() + content)
        return UpReport(load_settings(self.file, {}), self.file, ("docker compose",), (), {})

    async def down(self, *, purge: bool = False, progress: Progress = silent) -> DownReport:
        """Stop what `up` started; with `purge` its volumes go too.

        Raises:
            PlatformError: compose failed; with what it printed.
        """
        compose_file = await asyncio.to_thread(self._record.read_text)
        with progress("docker compose down"):
            volumes = ["--volumes"] if purge else []
            await _docker(
                "compose", "--file", compose_file, "down", *volumes, deadline_s=_UP_S, token=self._make_token()
            )
        self._record.unlink()
        if purge:
            self.file.unlink(missing_ok=True)
            self._token_file.unlink(missing_ok=True)
        return DownReport(("docker compose",), (), purged=purge)

    def _make_token(self) -> str:
        """That of the environment, else of the last time, else a new one."""
        if given := os.environ.get(TOKEN_VARIABLE):
            return given
        if not self._token_file.exists():
            write_private(self._token_file, secrets.token_hex(32).encode())
        return self._token_file.read_text()


def _file_problem(path: Path) -> str:
    if not path.exists():
        return f"there is no {path.name} in {path.parent}"
    if not _LINE.search(path.read_text(errors="replace")):
        return f"{path} has no line x-penstock-cluster: FILE, so it is not Penstock's"
    return ""


def _settings_file(compose_file: Path) -> Path:
    found = _LINE.search(compose_file.read_text(errors="replace"))
    if found is None:
        raise UsageError(_file_problem(compose_file))
    path = compose_file.parent / found[1]
    if not path.exists():
        raise UsageError(f"{compose_file}: x-penstock-cluster names {path}, which does not exist")
    return path


async def _engine_problem() -> str:
    if shutil.which("docker") is None:
        return "there is no docker on PATH"
    try:
        await _docker("info", "--format", "{{.ServerVersion}}", deadline_s=_ANSWER_S)
        await _docker("compose", "version", deadline_s=_ANSWER_S)
    except PlatformError as error:
        return str(error)
    return ""


async def _docker(*arguments: str, deadline_s: float, token: str = "") -> None:
    process = await asyncio.create_subprocess_exec(
        "docker",
        *arguments,
        env={**os.environ, TOKEN_VARIABLE: token} if token else None,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), deadline_s)
    except TimeoutError as error:
        raise PlatformError(f"docker {' '.join(arguments)}: no answer within {deadline_s:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = printed.decode(errors="replace").strip().splitlines()[-20:] or [f"exit code {process.returncode}"]
        raise PlatformError(f"docker {' '.join(arguments)}: " + "\n".join(lines))


async def bring_up(
    folder: Path,
    named: Way | None,
    wishes: Wishes,
    parts: Callable[[], Awaitable[Parts]],
    progress: Progress = silent,
    *,
    here: Path | None = None,
) -> UpReport:
    """Start the platform of `folder`, the way that is named, or the one that is possible `here`, the current folder.

    Raises:
        UsageError: compose was named and is not possible, or the platform of `folder` runs by compose and is not to.
        PlatformError: something does not start.
    """
    here = here or Path.cwd()
    by_compose = ComposePlatform(folder)
    if await choose_way(named, here) == "compose":
        return await by_compose.up(here / COMPOSE_FILE, wishes, progress)
    if by_compose.exists:
        raise UsageError(f"{folder} holds a platform that runs by compose; penstock down ends it first")
    return await LocalPlatform(folder).up(wishes, parts, progress)


async def bring_down(folder: Path, *, purge: bool = False, progress: Progress = silent) -> DownReport:
    """End the platform of `folder`, whichever way it was started."""
    by_compose = ComposePlatform(folder)
    platform = by_compose if by_compose.exists else LocalPlatform(folder)
    return await platform.down(purge=purge, progress=progress)

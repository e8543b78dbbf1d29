"""Compose is used where an engine answers and the compose file is ours, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import program

from penstock.errors import UsageError
from penstock.platform.compose import ComposePlatform, bring_down, bring_up, choose_way
from penstock.platform.errors import PlatformError
from penstock.platform.parts import Parts
from penstock.platform.plan import Wishes

OURS = "x-penstock-cluster: settings.toml\nservices: {}\n"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker whose engine answers; the file of its calls."""
    calls = tmp_path / "calls"
    program(tmp_path / "bin", "docker", f'echo "$@" >> {calls}')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return calls


async def test_compose_where_it_is_possible_else_native(tmp_path: Path, docker: Path) -> None:
    """Without being asked; a compose file of another project is no reason."""
    assert await choose_way(None, tmp_path) == "native"
    (tmp_path / "docker-compose.yml").write_text("services: {}")
    assert await choose_way(None, tmp_path) == "native"
    (tmp_path / "docker-compose.yml").write_text(OURS)
    assert await choose_way(None, tmp_path) == "compose"
    assert await choose_way("native", tmp_path) == "native"


async def test_compose_that_is_not_possible_is_an_error_if_named(tmp_path: Path, docker: Path) -> None:
    """It says what is missing: the file, that it is ours, the engine."""
    with pytest.raises(UsageError, match=r"there is no docker-compose\.yml in"):
        await choose_way("compose", tmp_path)
    (tmp_path / "docker-compose.yml").write_text("services: {}")
    with pytest.raises(UsageError, match="is not Penstock's"):
        await choose_way("compose", tmp_path)
    (tmp_path / "docker-compose.yml").write_text(OURS)
    program(tmp_path / "bin", "docker", "echo Cannot connect to the Docker daemon; exit 1")
    with pytest.raises(UsageError, match="Cannot connect to the Docker daemon"):
        await choose_way("compose", tmp_path)
    assert await choose_way(None, tmp_path) == "native"
    (tmp_path / "bin" / "docker").unlink()
    with pytest.raises(UsageError, match="there is no docker on PATH"):
        await choose_way("compose", tmp_path)


async def test_up_and_down_are_compose_s(tmp_path: Path, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up waits for the health checks, makes a token that it keeps, and hands out the file's settings with it; down ends
    the same project."""
    file, platform, tokens = tmp_path / "docker-compose.yml", ComposePlatform(tmp_path / "state"), tmp_path / "tokens"
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    program(tmp_path / "bin", "docker", f'echo "$@" >> {docker}; echo $PENSTOCK_TOKEN >> {tokens}')
    file.write_text(OURS)
    (tmp_path / "settings.toml").write_text('name = "composed"\n')
    report = await platform.up(file, Wishes())
    assert report.settings.name == "composed"
    token = report.settings.token.reveal()
    assert len(token) >= 32
    assert tokens.read_text().split() == [token]
    (tmp_path / "settings.toml").write_text('name = "again"\n')
    assert (await platform.up(file, Wishes())).settings.token.reveal() == token
    assert platform.file.stat().st_mode & 0o777 == 0o600
    assert platform.exists
    await platform.down(purge=True)
    assert not platform.exists
    assert docker.read_text().splitlines() == [
        f"compose --file {file} up --detach --wait",
        f"compose --file {file} up --detach --wait",
        f"compose --file {file} down --volumes",
    ]


async def test_a_failed_up_is_taken_back(tmp_path: Path, docker: Path) -> None:
    """What compose printed is in the error, and what it started is ended."""
    file, platform = tmp_path / "docker-compose.yml", ComposePlatform(tmp_path / "state")
    file.write_text(OURS)
    (tmp_path / "settings.toml").write_text("")
    program(
        tmp_path / "bin", "docker", f'echo "$@" >> {docker}; [ "$4" != up ] || {{ echo kafka is unhealthy; exit 1; }}'
    )
    with pytest.raises(PlatformError, match="kafka is unhealthy"):
        await platform.up(file, Wishes())
    assert docker.read_text().splitlines()[-1] == f"compose --file {file} down"
    assert not platform.exists


async def test_wishes_are_the_compose_file_s_business(tmp_path: Path, docker: Path) -> None:
    """A port that compose would not use is refused instead of ignored; so is a file that names no settings."""
    file, platform = tmp_path / "docker-compose.yml", ComposePlatform(tmp_path / "state")
    file.write_text(OURS)
    with pytest.raises(UsageError, match=r"--kafka-port, --slots: the compose file says that"):
        await platform.up(file, Wishes(kafka_port=1, slots=2))
    with pytest.raises(UsageError, match=r"settings\.toml, which does not exist"):
        await platform.up(file, Wishes())


async def test_what_runs_by_compose_is_not_started_beside_it(
    tmp_path: Path, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up by compose, then natively: refused until down, which ends it the way it was started."""
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    (tmp_path / "docker-compose.yml").write_text(OURS)
    (tmp_path / "settings.toml").write_text('rest = "http://127.0.0.1:8081"\n')

    async def parts() -> Parts:
        pytest.fail("nothing is fetched")

    folder = tmp_path / "state"
    await bring_up(folder, None, Wishes(), parts, here=tmp_path)
    with pytest.raises(UsageError, match=r"state holds a platform that runs by compose; penstock down ends it first"):
        await bring_up(folder, "native", Wishes(), parts, here=tmp_path)
    report = await bring_down(folder)
    assert report.stopped
    assert "down" in docker.read_text()
    assert not (await bring_down(folder)).stopped

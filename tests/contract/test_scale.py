"""What every implementation of the TaskManagerScale port keeps; and what Kubernetes' says when it is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User

from penstock.adapters.kubernetes_scale import KubernetesScale, kubernetes_scale
from penstock.adapters.memory import MemoryScale
from penstock.errors import ExternalError, UsageError
from penstock.ports import ScaleChangedError, TaskManagerScale
from penstock.service.http_server import http_server

from .small_api_server import SmallApiServer

NAME = "demo-taskmanager"


@asynccontextmanager
async def connected(server: SmallApiServer, folder: Path, name: str = NAME) -> AsyncGenerator[KubernetesScale]:
    """The adapter, at a small server whose token lies in a file."""
    token = folder / "token"
    token.write_text(server.token)
    async with http_server(server.app, "127.0.0.1:0") as address:
        config = KubeConfig.from_one(
            cluster=Cluster(server=f"http://{address}"), user=User(token_file=str(token)), namespace="here"
        )
        async with kubernetes_scale(name, config) as scale:
            yield scale


@pytest.fixture
def server() -> SmallApiServer:
    """With one task manager."""
    return SmallApiServer()


@pytest.fixture
async def kubernetes(server: SmallApiServer, tmp_path: Path) -> AsyncGenerator[KubernetesScale]:
    """Connected to it."""
    async with connected(server, tmp_path) as scale:
        yield scale


@pytest.fixture(params=["memory", "kubernetes"])
def scale(request: pytest.FixtureRequest) -> TaskManagerScale:
    """One task manager is asked for."""
    return MemoryScale(NAME, 1) if request.param == "memory" else request.getfixturevalue("kubernetes")


async def test_what_is_written_is_read(scale: TaskManagerScale) -> None:
    """None at all is a number too."""
    for wanted in (3, 0, 2):
        known = await scale.read()
        written = await scale.write(wanted, known.version)
        assert written == await scale.read()
        assert written.task_managers == wanted
        assert written.version != known.version


async def test_of_two_writers_one_is_told(scale: TaskManagerScale) -> None:
    """Who knows an old version changes nothing."""
    known = await scale.read()
    await scale.write(4, known.version)
    with pytest.raises(ScaleChangedError):
        await scale.write(2, known.version)
    assert (await scale.read()).task_managers == 4


@pytest.mark.parametrize(
    ("host", "number"),
    [
        ("demo-taskmanager-0", 0),
        ("demo-taskmanager-12", 12),
        ("demo-taskmanager", None),
        ("demo-taskmanager-x", None),
        ("demo-coordinator-0", None),
        ("other-demo-taskmanager-1", None),
    ],
)
def test_numbers_stand_in_names(scale: TaskManagerScale, host: str, number: int | None) -> None:
    """Of one's own task managers only."""
    assert scale.number_of(host) == number


async def test_a_token_that_was_renewed(server: SmallApiServer, kubernetes: KubernetesScale, tmp_path: Path) -> None:
    """Kubernetes writes a new one into the file before the old one ends."""
    assert (await kubernetes.read()).task_managers == 1
    server.token = "second"
    (tmp_path / "token").write_text("second")
    assert (await kubernetes.read()).task_managers == 1
    server.token = "nobody's"
    with pytest.raises(ExternalError, match="does not know the token"):
        await kubernetes.read()


async def test_a_missing_right_is_named(server: SmallApiServer, kubernetes: KubernetesScale) -> None:
    """With the Role that is wanted."""
    server.allowed = {"GET"}
    known = await kubernetes.read()
    with pytest.raises(ExternalError, match=r"verbs get and patch for statefulsets/scale of the name demo-taskmanager"):
        await kubernetes.write(2, known.version)


async def test_a_missing_statefulset_is_named(server: SmallApiServer, tmp_path: Path) -> None:
    """With its namespace, and the option that names it."""
    async with connected(server, tmp_path, "else") as scale:
        with pytest.raises(ExternalError, match=r"StatefulSet else in namespace here: .*--scale-statefulset"):
            await scale.read()


async def test_what_is_no_answer(server: SmallApiServer, kubernetes: KubernetesScale) -> None:
    """A proxy's error page, and a server that is gone."""
    server.sick = True
    with pytest.raises(ExternalError, match="answers 502"):
        await kubernetes.read()


async def test_a_server_that_is_gone(tmp_path: Path) -> None:
    """Is an error that can be tried again."""
    async with connected(SmallApiServer(), tmp_path) as scale:
        pass
    nowhere = KubeConfig.from_one(cluster=Cluster(server="http://127.0.0.1:1"), user=User(token="x"), namespace="here")
    async with kubernetes_scale(NAME, nowhere) as scale:
        with pytest.raises(ExternalError, match="API server of Kubernetes"):
            await scale.read()


async def test_outside_of_a_pod_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no token there."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match="works in a pod of Kubernetes"):
        async with kubernetes_scale(NAME):
            pass

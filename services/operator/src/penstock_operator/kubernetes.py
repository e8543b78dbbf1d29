"""What the operator asks of Kubernetes' API server, as documents: looking, writing upon a known version, making things.

By lightkube, which coordinators use, too: kopf, which watches (`penstock_operator.watching`), hands out no client, and
its own patches overwrite what others have written meanwhile. Nothing here overwrites: Kubernetes refuses a document that
was made of an old version.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.types import PatchType

from penstock.errors import ExternalError, UsageError
from penstock_operator.definitions import KINDS, Kind
from penstock_operator.resources import FINALIZER, GROUP, VERSION

ANSWER_S: Final = 10.0
Document = dict[str, Any]

_OWN: Final[dict[str, Any]] = {
    kind.name: create_namespaced_resource(GROUP, VERSION, kind.name, kind.plural) for kind in KINDS
}
_JOB: Final[Any] = create_namespaced_resource("batch", "v1", "Job", "jobs")
_POD: Final[Any] = create_namespaced_resource("", "v1", "Pod", "pods")
_SECRET: Final[Any] = create_namespaced_resource("", "v1", "Secret", "secrets")
_CONFIG_MAP: Final[Any] = create_namespaced_resource("", "v1", "ConfigMap", "configmaps")
_EVENT: Final[Any] = create_namespaced_resource("", "v1", "Event", "events")
_LEASE: Final[Any] = create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases")


class KubernetesApi:
    """The API server. Every method raises `ExternalError` if it does not answer, or does not allow what is asked."""

    def __init__(self, client: AsyncClient) -> None:
        self._client: Any = client

    @property
    def namespace(self) -> str:
        """The operator's own."""
        return self._client.namespace

    # -- resources of the operator --------------------------------------------------------------------------------------

    async def read(self, kind: Kind, namespace: str, name: str) -> Document | None:
        """A resource as it is now; None if there is none."""
        return await _found(self._client.get(_OWN[kind.name], name, namespace=namespace))

    async def write_status(self, kind: Kind, read: Document, status: Document) -> Document | None:
        """Replace the status of a resource that is still as it was read; None if somebody has changed it meanwhile."""
        document = _OWN[kind.name].Status({**read, "status": status})
        name, namespace = read["metadata"]["name"], read["metadata"]["namespace"]
        return await _written(self._client.replace(document, name, namespace=namespace))

    async def hold(self, kind: Kind, read: Document) -> Document | None:
        """Have the resource wait for the operator when it is deleted; None if somebody has changed it meanwhile."""
        return await self._write_finalizers(kind, read, [*read["metadata"].get("finalizers", []), FINALIZER])

    async def release(self, kind: Kind, read: Document) -> Document | None:
        """Let it go; None if somebody has changed it meanwhile."""
        others = [one for one in read["metadata"].get("finalizers", []) if one != FINALIZER]
        return await self._write_finalizers(kind, read, others)

    async def _write_finalizers(self, kind: Kind, read: Document, finalizers: list[str]) -> Document | None:
        metadata = read["metadata"]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
        return await _written(
            self._client.patch(
                _OWN[kind.name], metadata["name"], patch, namespace=metadata["namespace"], patch_type=PatchType.MERGE
            )
        )

    async def tell(self, event: Document, namespace: str) -> None:
        """Make an event."""
        await _asked(self._client.create(_EVENT(event), namespace=namespace))

    # -- what belongs to them -------------------------------------------------------------------------------------------

    async def secret(self, namespace: str, name: str) -> Document | None:
        """A Secret."""
        return await _found(self._client.get(_SECRET, name, namespace=namespace))

    async def config_map(self, namespace: str, name: str) -> Document | None:
        """A ConfigMap."""
        return await _found(self._client.get(_CONFIG_MAP, name, namespace=namespace))

    async def config_maps(self, namespace: str, labels: dict[str, str]) -> list[Document]:
        """Those with these labels."""
        return await _listed(self._client.list(_CONFIG_MAP, namespace=namespace, labels=labels))

    async def make_config_map(self, document: Document, namespace: str) -> None:
        """Make one; nothing happens if there is one of that name."""
        await _written(self._client.create(_CONFIG_MAP(document), namespace=namespace))

    async def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete one."""
        await _found(self._client.delete(_CONFIG_MAP, name, namespace=namespace))

    async def job(self, namespace: str, name: str) -> Document | None:
        """A Job."""
        return await _found(self._client.get(_JOB, name, namespace=namespace))

    async def make_job(self, document: Document, namespace: str) -> bool:
        """Make one; False if there is one of that name."""
        return await _written(self._client.create(_JOB(document), namespace=namespace)) is not None

    async def suspend_job(self, namespace: str, name: str) -> None:
        """Have a Job end its pods, and make no others."""
        patch = {"spec": {"suspend": True}}
        await _found(self._client.patch(_JOB, name, patch, namespace=namespace, patch_type=PatchType.MERGE))

    async def pods_of_job(self, namespace: str, name: str) -> list[Document]:
        """The pods that a Job has made."""
        return await _listed(self._client.list(_POD, namespace=namespace, labels={"job-name": name}))

    # -- leases ---------------------------------------------------------------------------------------------------------

    async def lease(self, namespace: str, name: str) -> Document | None:
        """A Lease."""
        return await _found(self._client.get(_LEASE, name, namespace=namespace))

    async def write_lease(self, document: Document, namespace: str) -> Document | None:
        """Make it, or write it upon the version that it says; None if somebody else was faster."""
        lease = _LEASE(document)
        if "resourceVersion" in document["metadata"]:
            return await _written(self._client.replace(lease, namespace=namespace))
        return await _written(self._client.create(lease, namespace=namespace))


async def _asked(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except httpx2.HTTPStatusError as error:
        code = error.response.status_code
        hint = "; its service account lacks a right, see the chart's Role for the operator" if code == 403 else ""
        raise _RefusalError(f"the API server of Kubernetes answers {code}: {error}{hint}", code) from error
    except (httpx2.HTTPError, ConfigError) as error:
        raise ExternalError(f"the API server of Kubernetes: {str(error) or type(error).__name__}") from error


class _RefusalError(ExternalError):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


async def _found(work: Awaitable[Any]) -> Any:
    """What was asked for; None if it is not there."""
    try:
        return await _asked(work)
    except _RefusalError as error:
        if error.code == 404:
            return None
        raise


async def _written(work: Awaitable[Any]) -> Any:
    """What is there now; None if something else is there than was thought."""
    try:
        return await _asked(work)
    except _RefusalError as error:
        if error.code == 409:
            return None
        raise


async def _listed(listing: Any) -> list[Document]:
    async def all_of_it() -> list[Document]:
        return [item async for item in listing]

    return await _asked(all_of_it())


@asynccontextmanager
async def kubernetes_api(config: KubeConfig | None = None) -> AsyncGenerator[KubernetesApi]:
    """The API server, as the pod's service account; where this is no pod, as the current context of kubectl.

    Raises:
        UsageError: there is neither.
    """
    try:
        client = AsyncClient(config or KubeConfig.from_env(), timeout=httpx2.Timeout(ANSWER_S), trust_env=False)
    except (ConfigError, KeyError) as error:
        raise UsageError(f"penstock operator: this is no pod, and kubectl has no context: {error}") from error
    async with client:
        yield KubernetesApi(client)

"""Task managers as a StatefulSet of Kubernetes: their number is its `scale` subresource, their names are its pods'.

The pod's service account must be allowed to get and patch that one subresource, and nothing else; the chart does so with
`taskmanager.autoscaling.enabled`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ConfigError
from lightkube.resources.apps_v1 import StatefulSetScale
from lightkube.types import PatchType

from penstock.errors import ExternalError, UsageError
from penstock.ports import Scale, ScaleChangedError

ANSWER_S: Final = 10.0


class KubernetesScale:
    """The number of pods of one StatefulSet."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        """`client` has the namespace of the StatefulSet `name` as its own."""
        self._client = client
        self._name = name
        self._pod = re.compile(re.escape(name) + r"-(0|[1-9][0-9]*)")

    def number_of(self, host: str) -> int | None:
        """A pod's host name is its own name, which ends in its number."""
        found = self._pod.fullmatch(host)
        return int(found[1]) if found else None

    async def read(self) -> Scale:
        """The number that the StatefulSet asks for now."""
        return await self._done(self._client.get(StatefulSetScale, self._name))

    async def write(self, task_managers: int, version: str) -> Scale:
        """Set it, if nothing about the StatefulSet has changed since `version`."""
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": task_managers}}
        return await self._done(self._client.patch(StatefulSetScale, self._name, patch, patch_type=PatchType.MERGE))

    async def _done(self, asked: Awaitable[StatefulSetScale]) -> Scale:
        try:
            found = await asked
        except httpx2.HTTPStatusError as error:
            raise self._refusal(error) from error
        except (httpx2.HTTPError, ConfigError) as error:
            raise ExternalError(f"the API server of Kubernetes: {str(error) or type(error).__name__}") from error
        version = found.metadata.resourceVersion if found.metadata is not None else None
        # a number of 0 is left out by some servers
        replicas = found.spec.replicas if found.spec is not None else None
        return Scale(replicas or 0, version or "")

    def _refusal(self, error: httpx2.HTTPStatusError) -> ExternalError:
        where = f"StatefulSet {self._name} in namespace {self._client.namespace}"
        match error.response.status_code:
            case 409:
                return ScaleChangedError(f"{where}: somebody else changes it at the same time")
            case 401:
                return ExternalError(f"{where}: the API server does not know the token of this pod ({error})")
            case 403:
                return ExternalError(
                    f"{where}: not allowed ({error}); the service account needs a Role with the verbs get and patch for "
                    f"statefulsets/scale of the name {self._name}, as the chart makes one with "
                    "taskmanager.autoscaling.enabled=true"
                )
            case 404:
                return ExternalError(
                    f"{where}: there is none; name the one that the task managers run in (--scale-statefulset)"
                )
            case code:
                return ExternalError(f"{where}: the API server answers {code} ({error})")


@asynccontextmanager
async def kubernetes_scale(name: str, config: KubeConfig | None = None) -> AsyncGenerator[KubernetesScale]:
    """The StatefulSet `name` beside this pod, in its namespace, with its service account.

    Raises:
        UsageError: this is no pod, or it has no token.
    """
    try:
        client = AsyncClient(
            config or KubeConfig.from_service_account(), timeout=httpx2.Timeout(ANSWER_S), lazy=False, trust_env=False
        )
    except (ConfigError, KeyError) as error:
        raise UsageError(
            f"--scale-statefulset {name}: this works in a pod of Kubernetes whose service account's token is mounted "
            f"(automountServiceAccountToken: true): {error}"
        ) from error
    async with client:
        yield KubernetesScale(client, name)

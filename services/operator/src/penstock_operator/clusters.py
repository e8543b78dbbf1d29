"""The clusters that resources name: a client for each, made of what its `PenstockCluster` says while it says so."""

from __future__ import annotations

import base64
import ssl

import msgspec

from penstock.client.client import ClusterClient
from penstock.errors import ExternalError
from penstock.settings import Secret
from penstock_operator.definitions import CLUSTER
from penstock_operator.kubernetes import KubernetesApi
from penstock_operator.resources import ClusterSpec, SecretKey


class MissingError(ExternalError):
    """There is no such `PenstockCluster`."""


class Clusters:
    """Use it as an asynchronous context manager."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._clients: dict[tuple[str, str], tuple[tuple[str, str, str], ClusterClient]] = {}

    async def __aenter__(self) -> Clusters:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, client in self._clients.values():
            await client.close()

    async def client(self, namespace: str, name: str) -> tuple[ClusterClient, ClusterSpec]:
        """A client of the cluster, and what the resource says of it.

        Raises:
            MissingError: there is no such resource.
            ExternalError: it names a Secret that is not there.
        """
        found = await self._api.read(CLUSTER, namespace, name)
        if found is None:
            raise MissingError(f"there is no PenstockCluster {name} in namespace {namespace}")
        spec = msgspec.convert(found["spec"], ClusterSpec)
        token = await self._secret(namespace, spec.token) if spec.token is not None else ""
        authority = await self._secret(namespace, spec.authority) if spec.authority is not None else ""
        said = (spec.rest, token, authority)
        known = self._clients.get((namespace, name))
        if known is None or known[0] != said:
            if known is not None:
                await known[1].close()
            tls = ssl.create_default_context(cadata=authority) if authority else None
            known = self._clients[namespace, name] = (said, ClusterClient(spec.rest, token=Secret(token), tls=tls))
        return known[1], spec

    async def _secret(self, namespace: str, key: SecretKey) -> str:
        found = await self._api.secret(namespace, key.name)
        data = (found or {}).get("data") or {}
        if key.key not in data:
            raise ExternalError(f"there is no Secret {key.name} with a key {key.key} in namespace {namespace}")
        return base64.b64decode(data[key.key]).decode().strip()

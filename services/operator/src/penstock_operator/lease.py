"""Who of several operators works: a Lease of Kubernetes.

Nothing that must not happen twice depends on it (`penstock_operator.decision` does not rely on being alone); it spares
the cluster the questions of those who would only come second. Whether a holder is alive is judged by this machine's own
clock, from when the Lease last changed, so that clocks may differ.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import structlog

from penstock.errors import ExternalError
from penstock.ports import Clock
from penstock_operator.kubernetes import Document, KubernetesApi

NAME: Final = "penstock-operator"
HELD_S: Final = 15
RENEW_S: Final = 4
TRY_S: Final = 2

_log = structlog.get_logger("penstock.operator")


class Lease:
    """The lease, as one operator sees it."""

    def __init__(self, api: KubernetesApi, clock: Clock, namespace: str, holder: str) -> None:
        self._api, self._clock, self._namespace, self._holder = api, clock, namespace, holder
        self._known: Document | None = None
        self._changed_ms = 0
        self.held = False

    async def take(self) -> None:
        """Wait until it is this operator's; ends by cancellation."""
        waiting = False
        while not await self._tried():
            if not waiting:
                _log.info("another operator works; waiting for it to end")
                waiting = True
            await asyncio.sleep(TRY_S)
        self.held = True
        _log.info("this operator works", holder=self._holder)

    async def _tried(self) -> bool:
        try:
            found = await self._api.lease(self._namespace, NAME)
            if found is not None and not self._is_free(found):
                return False
            self._known = await self._api.write_lease(self._made(found), self._namespace)
        except ExternalError as error:
            _log.warning("the lease cannot be taken", error=str(error))
            return False
        return self._known is not None

    def _is_free(self, found: Document) -> bool:
        now_ms = self._clock.monotonic_ms()
        before = (self._known or {}).get("metadata", {}).get("resourceVersion")
        if found["metadata"]["resourceVersion"] != before:
            self._known, self._changed_ms = found, now_ms
        holder = found.get("spec", {}).get("holderIdentity")
        return not holder or now_ms - self._changed_ms > HELD_S * 1_000

    def _made(self, found: Document | None, *, free: bool = False) -> Document:
        now = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": "" if free else self._holder, "leaseDurationSeconds": HELD_S, "renewTime": now}
        metadata = found["metadata"] if found is not None else {"name": NAME}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    async def keep(self) -> None:
        """Renew it; ends by cancellation.

        Raises:
            ExternalError: it is lost, or could not be renewed in time.
        """
        renewed_ms = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(RENEW_S)
            problem = "another operator has it"
            try:
                self._known = await self._api.write_lease(self._made(self._known), self._namespace)
                if self._known is None:
                    break
                renewed_ms = self._clock.monotonic_ms()
            except ExternalError as error:
                problem = str(error)
                if self._clock.monotonic_ms() - renewed_ms > (HELD_S - RENEW_S) * 1_000:
                    break
                _log.warning("the lease could not be renewed", error=problem)
        self.held = False
        raise ExternalError(f"the operator's lease is lost: {problem}")

    async def give_back(self) -> None:
        """The next one need not wait."""
        if self.held and self._known is not None:
            self.held = False
            try:
                await self._api.write_lease(self._made(self._known, free=True), self._namespace)
            except ExternalError as error:
                _log.warning("the lease was not given back", error=str(error))

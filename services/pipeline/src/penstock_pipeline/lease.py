"""One pipeline service per cluster: a lease in the metadata store, so that a second one is refused and says why.

Nothing that must not happen twice depends on it: the log of a run is written conditionally, and only the service that
has the work folder of an attempt looks after it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from penstock.coordination.retrying_ports import retry_until_done
from penstock.errors import ExternalError, UsageError
from penstock.platform.processes import ProcessId, is_alive
from penstock.ports import Clock, Metadata

LEASE: Final = "pipeline-service"
TTL_MS: Final = 10_000
_POLL_MS: Final = 500

_log = structlog.get_logger("penstock.pipeline")


class Holder(msgspec.Struct, frozen=True):
    """Who has the lease."""

    name: str
    host: str
    process: ProcessId
    pid_namespace: str = ""
    """Where that process can be seen; empty of a service that did not say so yet."""


class Lease:
    """The lease, as one process sees it."""

    def __init__(self, metadata: Metadata, clock: Clock, holder: Holder) -> None:
        self._metadata = metadata
        self._clock = clock
        self._holder = holder
        self._value = msgspec.json.encode(holder)

    async def take(self) -> None:
        """Get the lease. What a service that was killed still holds is waited for, for as long as it lasts.

        Raises:
            UsageError: another service holds it and is alive.
        """
        deadline_ms = self._clock.monotonic_ms() + TTL_MS + _POLL_MS
        while not await retry_until_done("take the lease", self._clock, self._acquire):
            value = await retry_until_done("look at the lease", self._clock, lambda: self._metadata.get(LEASE))
            holder = _decoded(value)
            if value is not None and holder is not None and self._is_dead(holder):
                await self._end(value)
                continue
            if self._clock.monotonic_ms() >= deadline_ms:
                who = f"process {holder.process.pid} on {holder.host}" if holder is not None else "another process"
                raise UsageError(
                    f"{who} is the pipeline service of this cluster already; one is enough: it takes as many runs at a "
                    "time as --concurrent says"
                )
            await self._clock.sleep_ms(_POLL_MS)

    async def keep(self) -> None:
        """Renew the lease until cancelled, then give it back.

        Raises:
            ExternalError: another service has it.
        """
        try:
            while True:
                await self._clock.sleep_ms(TTL_MS / 4)
                try:
                    held = await self._metadata.renew(LEASE, self._value, TTL_MS) or await self._acquire()
                except ExternalError as error:
                    _log.warning("the lease could not be renewed", error=str(error))
                    continue
                if not held:
                    raise ExternalError("another pipeline service has taken over this cluster's runs")
        finally:
            try:
                await self._metadata.release(LEASE, self._value)
            except ExternalError as error:
                _log.warning("the lease could not be given back; it expires", error=str(error))

    async def _acquire(self) -> bool:
        return await self._metadata.acquire(LEASE, self._value, TTL_MS)

    async def _end(self, value: bytes) -> None:
        await retry_until_done(
            "end the lease of a dead service", self._clock, lambda: self._metadata.release(LEASE, value)
        )

    def _is_dead(self, holder: Holder) -> bool:
        """Not by the host's name: a pod that is cut off lives on while another one has come under its name."""
        return holder.pid_namespace == self._holder.pid_namespace and not is_alive(holder.process)


def _decoded(value: bytes | None) -> Holder | None:
    try:
        return msgspec.json.decode(value, type=Holder) if value is not None else None
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None

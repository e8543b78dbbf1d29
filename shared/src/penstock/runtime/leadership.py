"""Competes for the leadership of a cluster and carries out what `LeaderMachine` decides: lease, epoch, fencing."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, assert_never

import structlog

from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError, Blobs, Clock, Log, Metadata, NewRecord
from penstock.protocol.leader import (
    AppendEpoch,
    AskForLease,
    CommandRead,
    CreateEpoch,
    EpochCreated,
    EpochsListed,
    EpochTaken,
    EpochUnknown,
    Lead,
    LeaderCommand,
    LeaderMachine,
    LeaseAnswered,
    ListEpochs,
    StopLeading,
    TimePassed,
    epoch_key,
)
from penstock.protocol.messages import EpochStarted, decode_command, encode
from penstock.runtime.topics import COMMANDS

LEASE: Final = "leader"
TICK_MS: Final = 50
UNCERTAIN_PAUSE_MS: Final = 200

_log = structlog.get_logger("penstock.coordinator")


@dataclass(frozen=True)
class ControlPorts:
    """What a coordinator is given of the world."""

    log: Log
    blobs: Blobs
    metadata: Metadata
    clock: Clock
    new_id: Callable[[], str]
    """32 fresh hex digits."""


class Leadership:
    """One candidate. What it leads starts with `leads` and must stop when `stops` returns."""

    def __init__(
        self,
        name: str,
        ports: ControlPorts,
        lease_ttl_ms: int,
        leads: Callable[[Lead], Awaitable[None]],
        stops: Callable[[str], Awaitable[None]],
    ) -> None:
        """`name` is unique to this process instance: it is the nonce by which an epoch is known as one's own."""
        self._name = name
        self._ports = ports
        self._machine = LeaderMachine(name, lease_ttl_ms)
        self._leads = leads
        self._stops = stops
        self._lost: str | None = None

    def lost(self, reason: str) -> None:
        """The job log says that another leader acts."""
        self._lost = reason

    async def run(self) -> None:
        """Compete, and hold what was won; ends by cancellation and then gives the lease back."""
        clock = self._ports.clock
        try:
            while True:
                if self._lost is not None:
                    reason, self._lost = self._lost, None
                    await self._carry_out(self._machine.lost(reason))
                await self._carry_out(self._machine.handle(TimePassed(), clock.monotonic_ms()))
                await clock.sleep_ms(TICK_MS)
        finally:
            try:
                await self._ports.metadata.release(LEASE, self._name.encode())
            except ExternalError as error:
                _log.warning("the lease could not be given back; it expires", error=str(error))

    async def _carry_out(self, commands: list[LeaderCommand]) -> None:
        pending = deque(commands)
        while pending:
            command = pending.popleft()
            try:
                pending.extend(await self._obey(command))
            except ExternalError as error:
                _log.warning("not elected yet", step=type(command).__name__, error=str(error))
                await self._ports.clock.sleep_ms(UNCERTAIN_PAUSE_MS)
                if isinstance(command, AskForLease):  # asked again when its time has come
                    continue
                pending.extend(self._machine.handle(TimePassed(), self._ports.clock.monotonic_ms()))
                if not any(isinstance(later, StopLeading) for later in pending):
                    pending.append(command)

    async def _obey(self, command: LeaderCommand) -> list[LeaderCommand]:
        ports, machine = self._ports, self._machine
        now_ms = ports.clock.monotonic_ms
        match command:
            case AskForLease():
                asked_ms = now_ms()
                ask = ports.metadata.renew if command.renew else ports.metadata.acquire
                held = await ask(LEASE, self._name.encode(), machine.lease_ttl_ms)
                return machine.handle(LeaseAnswered(held, asked_ms), now_ms())
            case ListEpochs():
                keys = await ports.blobs.list("leaders/")
                highest = int(keys[-1].rsplit("/", 1)[1]) if keys else 0
                return machine.handle(EpochsListed(highest), now_ms())
            case CreateEpoch():
                return machine.handle(await self._create_epoch(command.epoch), now_ms())
            case AppendEpoch():
                started = EpochStarted(epoch=command.epoch, leader=self._name)
                await ports.log.append(COMMANDS, 0, [NewRecord(encode(started))])
                return await self._read_commands()
            case Lead():
                _log.info("leading", epoch=command.epoch)
                await self._leads(command)
                return []
            case StopLeading():
                _log.warning("leadership lost", reason=command.reason)
                await self._stops(command.reason)
                return []
            case _:
                assert_never(command)

    async def _create_epoch(self, epoch: int) -> EpochCreated | EpochTaken | EpochUnknown:
        """Create the epoch's object; a refusal counts only after reading back whose it is."""
        blobs = self._ports.blobs
        try:
            await blobs.create(epoch_key(epoch), self._name.encode())
        except BlobExistsError:
            try:
                owner = await blobs.get(epoch_key(epoch))
            except BlobNotFoundError:  # a conflict that wrote nothing
                return await self._epoch_unknown(epoch)
            return EpochCreated(epoch) if owner == self._name.encode() else EpochTaken(epoch)
        except ExternalError:
            return await self._epoch_unknown(epoch)
        return EpochCreated(epoch)

    async def _epoch_unknown(self, epoch: int) -> EpochUnknown:
        """Asked again at once the store would give the same answer."""
        await self._ports.clock.sleep_ms(UNCERTAIN_PAUSE_MS)
        return EpochUnknown(epoch)

    async def _read_commands(self) -> list[LeaderCommand]:
        """Everything kept in `commands` up to the end as it is now."""
        log = self._ports.log
        position, end = await log.offsets(COMMANDS, 0)
        result: list[LeaderCommand] = []
        while position < end:
            for record in await log.read(COMMANDS, 0, position, timeout_s=1.0):
                position = record.next_offset
                command = CommandRead(decode_command(record.value))
                result += self._machine.handle(command, self._ports.clock.monotonic_ms())
        return result

"""Competes for the leadership of a cluster and carries out what `LeaderMachine` decides: lease, epoch, fencing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

import structlog

from penstock.coordination.control_topics import COMMANDS
from penstock.errors import ExternalError
from penstock.ports import (
    BlobExistsError,
    BlobNotFoundError,
    Blobs,
    Clock,
    Log,
    Metadata,
    NewRecord,
    OffsetOutOfRangeError,
)
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
    LeaderPhase,
    LeaseAnswered,
    ListEpochs,
    OfferLease,
    StopLeading,
    TimePassed,
    epoch_key,
)
from penstock.protocol.messages import EpochStarted, decode_command, encode

LEASE: Final = "leader"
TICK_MS: Final = 50
UNCERTAIN_PAUSE_MS: Final = 200
READ_BYTES: Final = 1 << 20
"""Of `commands` at a time: the event loop is held up for no longer than decoding that takes."""

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
        deaf_ms: Callable[[], int],
    ) -> None:
        """
        Args:
            name: unique to this process instance: it is the nonce by which an epoch is known as one's own.
            ports: the world.
            lease_ttl_ms: how long a lease lasts that is not renewed.
            leads: starts what is led.
            stops: ends it; gets the reason.
            deaf_ms: how long no broker has been heard.
        """
        self._name = name
        self._ports = ports
        self._machine = LeaderMachine(name, lease_ttl_ms)
        self._leads = leads
        self._stops = stops
        self._deaf_ms = deaf_ms
        self._lost: str | None = None
        self._pending: deque[LeaderCommand] = deque()
        self._wake = asyncio.Event()
        self._known_to = 0
        """Up to where `commands` were read at the takeover."""

    @property
    def epoch(self) -> int:
        """The newest epoch that it has tried to begin."""
        return self._machine.epoch

    def lost(self, reason: str) -> None:
        """The job log says that another leader acts."""
        self._lost = reason

    async def run(self) -> None:
        """Compete, and hold what was won; ends by cancellation and then gives the lease back."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lease())
                group.create_task(self._carry_out())
                group.create_task(self._watch_for_higher_epochs())
        finally:
            try:
                await self._ports.metadata.release(LEASE, self._name.encode())
            except ExternalError as error:
                _log.warning("the lease could not be given back; it expires", error=str(error))

    async def _keep_lease(self) -> None:
        """Ask for the lease, renew it, give up in time; it waits for nothing that is done under the lease."""
        clock = self._ports.clock
        while True:
            if self._lost is not None:
                reason, self._lost = self._lost, None
                self._order(self._machine.lost(reason))
            for command in self._machine.handle(TimePassed(self._deaf_ms()), clock.monotonic_ms()):
                if isinstance(command, AskForLease):
                    await self._ask_for_lease(command)
                else:
                    self._order([command])
            await clock.sleep_ms(TICK_MS)

    async def _ask_for_lease(self, command: AskForLease) -> None:
        """Once; without an answer in time it is asked again when its time has come."""
        ports, machine = self._ports, self._machine
        asked_ms = ports.clock.monotonic_ms()
        lease = LEASE, self._name.encode(), machine.lease_ttl_ms
        try:
            async with asyncio.timeout(machine.lease_ttl_ms / 3_000):
                held = command.renew and await ports.metadata.renew(*lease)
                if not held and (command.offered or not command.renew):
                    held = await ports.metadata.acquire(*lease)
        except (ExternalError, TimeoutError) as error:
            _log.warning("no answer about the lease", error=str(error) or "not in time")
            return
        self._order(machine.handle(LeaseAnswered(held, asked_ms), ports.clock.monotonic_ms()))

    async def _offer_lease(self) -> None:
        """Where that fails nobody can take it, and it is renewed as ever."""
        _log.warning("no broker is heard; the lease is offered to candidates that hear one", deaf_ms=self._deaf_ms())
        try:
            await self._ports.metadata.release(LEASE, self._name.encode())
        except ExternalError as error:
            _log.warning("the lease could not be offered", error=str(error))

    def _order(self, commands: Sequence[LeaderCommand]) -> None:
        """Have these carried out behind what is under way; the end of leadership makes what waits void."""
        for command in commands:
            if isinstance(command, StopLeading):
                self._pending.clear()
            self._pending.append(command)
        self._wake.set()

    async def _carry_out(self) -> None:
        while True:
            while self._pending:
                command = self._pending.popleft()
                try:
                    self._order(await self._obey(command))
                except ExternalError as error:
                    _log.warning("not elected yet", step=type(command).__name__, error=str(error))
                    await self._ports.clock.sleep_ms(UNCERTAIN_PAUSE_MS)
                    if not any(isinstance(later, StopLeading) for later in self._pending):
                        self._pending.appendleft(command)
            self._wake.clear()
            await self._wake.wait()

    async def _obey(self, command: LeaderCommand) -> list[LeaderCommand]:
        ports, machine = self._ports, self._machine
        now_ms = ports.clock.monotonic_ms
        match command:
            case AskForLease():
                await self._ask_for_lease(command)
                return []
            case OfferLease():
                await self._offer_lease()
                return []
            case ListEpochs():
                names = [key.removeprefix("leaders/") for key in await ports.blobs.list("leaders/")]
                highest = max((int(name) for name in names if name.isdecimal()), default=0)
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
        """Everything kept in `commands` up to the end as it is now, unless leadership is lost meanwhile."""
        log, machine = self._ports.log, self._machine
        position, end = await log.offsets(COMMANDS, 0)
        result: list[LeaderCommand] = []
        while position < end and machine.phase is LeaderPhase.FENCING:
            for record in await log.read(COMMANDS, 0, position, max_bytes=READ_BYTES, timeout_s=1.0):
                position = record.next_offset
                command = CommandRead(decode_command(record.value))
                result += machine.handle(command, self._ports.clock.monotonic_ms())
            await self._ports.clock.sleep_ms(0)  # the lease is renewed meanwhile
        self._known_to = position
        return result

    async def _watch_for_higher_epochs(self) -> None:
        """A candidate that had the lease for a moment may have begun one.

        Then nobody obeys this leader any more, and nothing else tells it: it has the lease, and would keep it for ever.
        """
        while True:
            try:
                await self._follow(self._machine.epoch, self._known_to)
            except ExternalError as error:
                _log.warning("cannot see whether another leader acts", error=str(error))
            await self._ports.clock.sleep_ms(UNCERTAIN_PAUSE_MS)

    async def _follow(self, epoch: int, position: int) -> None:
        """Read `commands` on as long as this epoch is led."""
        log, machine = self._ports.log, self._machine
        while self._leads_in(epoch):
            try:
                records = await log.read(COMMANDS, 0, position, max_bytes=READ_BYTES, timeout_s=1.0)
            except OffsetOutOfRangeError:  # trimmed by another leader, whose commands are what is left
                position, _ = await log.offsets(COMMANDS, 0)
                continue
            for record in records if self._leads_in(epoch) else ():
                position = record.next_offset
                command = CommandRead(decode_command(record.value))
                self._order(machine.handle(command, self._ports.clock.monotonic_ms()))

    def _leads_in(self, epoch: int) -> bool:
        return (self._machine.phase, self._machine.epoch) == (LeaderPhase.LEADING, epoch)

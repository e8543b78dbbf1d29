"""What is done to the cluster. A fault tells `Cycle.struck` when it falls, and heals what it broke before it returns."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from tests.chaos.cluster import LEASE_S, PARALLELISM, WORKER_TIMEOUT_S, ChaosCluster, ChaosError, Part, until
from tests.chaos.links import DISTURBANCES, Disturbance

from penstock.adapters.kafka.connection import ANSWER_TIMEOUT_MS
from penstock.coordination import failpoints
from penstock.platform.processes import ProcessId, send, wait_until_gone
from penstock.platform.server import Server
from penstock.platform.services import ServiceProcess
from penstock.protocol.leader import OFFERS_MS
from penstock.protocol.requests import Answer

STEP_S: Final = 30.0
"""A named step must be reached within this time."""
ORPHANS_S: Final = 5.0
"""Workers notice within this time that their supervisor is gone."""
OVER_S: Final = 2.0
"""How much longer than a lease or timeout something is paused."""
SHOWN_S: Final = 10.0
"""It is shown within this time that Kafka does not answer a service."""
MET_S: Final = 10.0
"""A service says something to a part within this time."""
MOMENT_S: Final = 1.5
"""A fault falls at a random moment within this time."""


class Cycle(Protocol):
    """What a fault knows of the cycle it is part of."""

    cluster: ChaosCluster
    job: str
    rng: random.Random

    def struck(self) -> None:
        """The fault has fallen: recovery is measured from here."""
        ...

    async def recovered(self) -> None:
        """Wait until rows come again that were produced after the fault."""
        ...

    def note(self, text: str) -> None:
        """For the line that is printed."""
        ...


Strike = Callable[[Cycle], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    strike: Strike
    leader: bool = False
    """Whether it hits the leader."""
    step: str = ""
    """The named step at which it falls; at a random moment if empty."""
    brokers: int = 1
    """How many there must be for results to survive it."""


# -- processes ----------------------------------------------------------------------------------------------------------


async def moment(cycle: Cycle) -> None:
    """A random moment later. The only wait for time itself: the moment is what is being tried."""
    await asyncio.sleep(cycle.rng.uniform(0, MOMENT_S))


async def kill_worker(cycle: Cycle) -> None:
    """kill -9 of a worker process; its supervisor lives."""
    await moment(cycle)
    victim = await _some_worker(cycle)
    _signal(victim, signal.SIGKILL)
    cycle.struck()


async def crash_task_manager(cycle: Cycle) -> None:
    """kill -9 of a supervisor: its workers must end by themselves."""
    await moment(cycle)
    victim = cycle.rng.choice(cycle.cluster.task_managers)
    workers = cycle.cluster.workers(victim)
    await victim.crash()
    cycle.struck()
    gone = await asyncio.gather(*(wait_until_gone(worker, ORPHANS_S) for worker in workers))
    if not all(gone):
        raise ChaosError(f"workers of {victim.name} outlived it by {ORPHANS_S:.0f} s: {workers}")
    await victim.start()


async def crash_leader(cycle: Cycle) -> None:
    """kill -9 of the leader; it comes back as a candidate."""
    await moment(cycle)
    leader = await cycle.cluster.leader()
    await leader.crash()
    cycle.struck()
    await leader.start()


async def crash_everybody(cycle: Cycle) -> None:
    """kill -9 of all coordinators and task managers at once."""
    await moment(cycle)
    services = cycle.cluster.services
    await asyncio.gather(*(service.crash() for service in services))
    cycle.struck()
    await asyncio.gather(*(service.start() for service in services))


async def pause_leader(cycle: Cycle) -> None:
    """SIGSTOP of the leader past its lease: another one leads when it wakes up, still believing."""
    await moment(cycle)
    leader = await cycle.cluster.leader()
    leader.pause()
    cycle.struck()
    try:
        await asyncio.sleep(LEASE_S + OVER_S)
    finally:
        leader.resume()


async def pause_task_manager(cycle: Cycle) -> None:
    """SIGSTOP of a supervisor past its timeout: its workers go on and do not know that they are replaced."""
    await moment(cycle)
    victim = cycle.rng.choice(cycle.cluster.task_managers)
    victim.pause()
    cycle.struck()
    try:
        await asyncio.sleep(WORKER_TIMEOUT_S + OVER_S)
    finally:
        victim.resume()


# -- named steps --------------------------------------------------------------------------------------------------------


async def kill_leader_at(step: str, cycle: Cycle) -> None:
    """The leader kills itself at a step."""
    leader = await cycle.cluster.leader()
    await _order(cycle, step, signal.SIGKILL)
    cycle.struck()
    dead = await until(f"the leader dead at {step}", 5, partial(_dead, cycle.cluster.coordinators))
    if dead is not leader:
        cycle.note("another leader by then")
    await dead.start()


async def kill_worker_at(step: str, cycle: Cycle) -> None:
    """A worker kills itself at a step."""
    await _order(cycle, step, signal.SIGKILL)
    cycle.struck()


async def zombie_at(step: str, cycle: Cycle) -> None:
    """A publisher stands still at a step, and its supervisor too, until others have taken over and published.

    Then it goes on where it stood: it must publish nothing twice.
    """
    cluster = cycle.cluster
    await _order(cycle, step, signal.SIGSTOP)
    cycle.struck()
    owner, zombie = await until(f"the process that stopped at {step}", 5, partial(_stopped, cluster))
    owner.pause()
    try:
        await cycle.recovered()
    finally:
        send(zombie, signal.SIGCONT)
        try:
            await moment(cycle)  # the zombie acts while nobody hears it
        finally:
            owner.resume()


async def _order(cycle: Cycle, step: str, number: signal.Signals) -> None:
    folder = cycle.cluster.steps
    hit = (folder / step).with_suffix(".hit")
    hit.unlink(missing_ok=True)
    draft = folder / f"{step}.draft"
    draft.write_text(number.name)
    draft.rename(folder / step)

    async def look() -> bool:
        return hit.exists()

    try:
        await until(f"step {step}: not hit", STEP_S, look)
    finally:
        (folder / step).unlink(missing_ok=True)


async def _dead(services: Sequence[ServiceProcess]) -> ServiceProcess | None:
    return next((service for service in services if not service.is_running), None)


async def _stopped(cluster: ChaosCluster) -> tuple[ServiceProcess, ProcessId] | None:
    for owner in cluster.task_managers:
        for worker in cluster.workers(owner):
            if _state(worker) == "T":
                return owner, worker
    return None


def _state(process: ProcessId) -> str:
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def _some_worker(cycle: Cycle) -> ProcessId:
    """A worker that runs something of the job."""

    async def look() -> list[ProcessId]:
        managers = [manager for manager in cycle.cluster.task_managers if manager.is_running]
        return [worker for manager in managers for worker in cycle.cluster.workers(manager)]

    return cycle.rng.choice(await until("a worker process", 30, look))


def _signal(process: ProcessId, number: signal.Signals) -> None:
    if not send(process, number):
        raise ChaosError(f"process {process.pid} was gone before {number.name}")


# -- servers ------------------------------------------------------------------------------------------------------------


async def restart_redis(cycle: Cycle, *, by_force: bool = False, wipe: bool = False) -> None:
    """Redis ends and comes back, with or without what it knew."""
    await moment(cycle)
    cycle.struck()
    await cycle.cluster.servers.redis.restart(by_force=by_force, wipe=wipe)


async def kill_minio(cycle: Cycle) -> None:
    """kill -9 of the store."""
    await moment(cycle)
    cycle.struck()
    await cycle.cluster.servers.minio.restart(by_force=True)


async def pause_minio(cycle: Cycle) -> None:
    """The store keeps its connections and does not answer for 5 s."""
    await _pause(cycle, cycle.cluster.servers.minio)


async def pause_broker(cycle: Cycle) -> None:
    """A broker keeps its connections and does not answer for longer than its session with the controller."""
    await _pause(cycle, cycle.rng.choice(cycle.cluster.servers.kafka.nodes))


async def _pause(cycle: Cycle, server: Server) -> None:
    await moment(cycle)
    server.pause()
    cycle.struck()
    try:
        await asyncio.sleep(5)
    finally:
        server.resume()


async def kill_broker(cycle: Cycle) -> None:
    """kill -9 of one of three brokers; not of one that is alone: see "A single broker" in docs/kafka.md."""
    await moment(cycle)
    broker = cycle.rng.choice(cycle.cluster.servers.kafka.nodes)
    await broker.kill()
    cycle.struck()
    await broker.start()


# -- links --------------------------------------------------------------------------------------------------------------


async def disturb(part: Part, how: Disturbance, cycle: Cycle, *, leader: bool = False) -> None:
    """The links between one service and a part are disturbed past the lease, from when they have met something.

    Those to Kafka sometimes for longer than a client waits for an answer: it gives the connection up, and what it has
    sent arrives later than what it says on the next one. And as long as they hold anything back, people are told.
    """
    await moment(cycle)
    cluster = cycle.cluster
    victim = await cluster.leader() if leader else cycle.rng.choice(cluster.task_managers)
    links = cluster.links[victim.name, part]
    before = links.met
    lasts_s = LEASE_S + OVER_S
    if part == "kafka" and cycle.rng.random() < 0.5:
        lasts_s = ANSWER_TIMEOUT_MS / 1_000 + OVER_S

    async def met() -> bool:
        return links.met > before

    links.disturb(how)
    cycle.struck()
    try:
        await until(f"{victim.name} speaks to its {part}, whose link is {how}", MET_S, met)
        end = time.monotonic() + lasts_s
        if part == "kafka" and how != "slow":
            await until(
                f"it is shown that Kafka does not answer {victim.name}", SHOWN_S, partial(_shown, cluster, victim)
            )
            if leader and lasts_s > OFFERS_MS / 1_000 + LEASE_S:
                await until(
                    f"who hears Kafka leads instead of {victim.name}", lasts_s, partial(_gave_way, cluster, victim)
                )
        await asyncio.sleep(max(0, end - time.monotonic()))
    finally:
        links.heal()
    cycle.note(f"{victim.name}, {links.met - before} pieces late in {lasts_s:.0f} s")


async def _shown(cluster: ChaosCluster, victim: ServiceProcess) -> bool:
    """Its probe names Kafka and nothing else, and what a leader shows says that it hears nothing; nobody else's does."""
    lacking = {service.name: await asyncio.to_thread(_lacking, service) for service in cluster.services}
    view = await cluster.view()
    deaf = view is not None and view.deaf_us > 0
    if any("kafka" in parts for name, parts in lacking.items() if name != victim.name):
        raise ChaosError(f"Kafka does not answer {victim.name} alone, and yet services lack {lacking}")
    if deaf and victim not in cluster.coordinators:
        raise ChaosError("the leader hears Kafka, and yet shows that it has heard nothing")
    return deaf == (victim in cluster.coordinators) and lacking[victim.name] == ["kafka"]


async def _gave_way(cluster: ChaosCluster, victim: ServiceProcess) -> bool:
    return await cluster.leader() is not victim


def _lacking(service: ServiceProcess) -> list[str]:
    """The parts because of which a service says that it is not ready."""
    try:
        with urllib.request.urlopen(f"http://{service.address}/readyz", timeout=STEP_S):
            return []
    except urllib.error.HTTPError as answer:
        return [error.partition(":")[0] for error in json.load(answer)["errors"]]


# -- requests -----------------------------------------------------------------------------------------------------------


async def rescale(cycle: Cycle, meanwhile: Strike | None = None) -> None:
    """2 -> 3 or 3 -> 2."""
    before = await until("the job", 30, lambda: cycle.cluster.job(cycle.job))
    target = PARALLELISM + 1 if before.parallelism == PARALLELISM else PARALLELISM
    request = await cycle.cluster.rescale(cycle.job, target)
    answer = await _answered(cycle, request, meanwhile)
    if answer.outcome == "completed":

        async def look() -> bool:
            found = await cycle.cluster.job(cycle.job)
            return found is not None and found.parallelism == target

        await until(f"parallelism {target}", 30, look)
    cycle.note(f"{before.parallelism} -> {target} {answer.outcome} {answer.reason}".strip())


async def savepoint(cycle: Cycle, meanwhile: Strike | None = None) -> None:
    """A savepoint; the job goes on."""
    request = await cycle.cluster.savepoint(cycle.job)
    answer = await _answered(cycle, request, meanwhile)
    if answer.outcome == "completed" and answer.savepoint is None:
        raise ChaosError(f"the savepoint is reported done, but nothing says where it is: {answer}")
    cycle.note(f"savepoint {answer.outcome} {answer.reason}".strip())


async def _answered(cycle: Cycle, request: str, meanwhile: Strike | None) -> Answer:
    """Every request is answered; without a fault in the middle by what was asked for."""
    if meanwhile is None:
        cycle.struck()
    else:
        await meanwhile(cycle)
    answer = await cycle.cluster.answer(cycle.job, request)
    if meanwhile is None and answer.outcome != "completed":
        raise ChaosError(f"nothing was in the way, and yet: {answer}")
    return answer


# -- all ----------------------------------------------------------------------------------------------------------------


def _at(step: str, what: str, strike: Callable[[str, Cycle], Awaitable[None]], *, leader: bool = False) -> Fault:
    return Fault(what, partial(strike, step), leader, step)


FAULTS: Final[tuple[Fault, ...]] = (
    Fault("kill-leader", crash_leader, leader=True),
    Fault("pause-leader", pause_leader, leader=True),
    _at(failpoints.BEFORE_COMPLETE, "kill-leader", kill_leader_at, leader=True),
    _at(failpoints.AFTER_COMPLETE, "kill-leader", kill_leader_at, leader=True),
    Fault("rescale+kill-leader", partial(rescale, meanwhile=crash_leader), leader=True),
    Fault("savepoint+kill-leader", partial(savepoint, meanwhile=crash_leader), leader=True),
    Fault("kill-worker", kill_worker),
    Fault("kill-taskmanager", crash_task_manager),
    Fault("kill-all-services", crash_everybody),
    Fault("pause-taskmanager", pause_task_manager),
    *(
        _at(step, "kill-worker", kill_worker_at)
        for step in (failpoints.BEFORE_INIT, failpoints.AFTER_INIT, failpoints.BEFORE_COMMIT, failpoints.AFTER_COMMIT)
    ),
    *(
        _at(step, "zombie-sink", zombie_at)
        for step in (failpoints.BEFORE_INIT, failpoints.AFTER_INIT, failpoints.BEFORE_COMMIT)
    ),
    Fault("restart-redis", restart_redis),
    Fault("kill-redis", partial(restart_redis, by_force=True)),
    Fault("wipe-redis", partial(restart_redis, by_force=True, wipe=True)),
    Fault("kill-minio", kill_minio),
    Fault("pause-minio", pause_minio),
    Fault("pause-broker", pause_broker),
    Fault("kill-broker", kill_broker, brokers=3),
    *(
        Fault(f"{how}-kafka-of-leader", partial(disturb, "kafka", how, leader=True), leader=True)
        for how in DISTURBANCES
    ),
    *(Fault(f"{how}-kafka-of-taskmanager", partial(disturb, "kafka", how)) for how in DISTURBANCES),
    *(
        Fault(f"{how}-redis-of-leader", partial(disturb, "redis", how, leader=True), leader=True)
        for how in DISTURBANCES
    ),
    *(
        Fault(f"{how}-store-of-leader", partial(disturb, "store", how, leader=True), leader=True)
        for how in DISTURBANCES
    ),
    *(Fault(f"{how}-store-of-taskmanager", partial(disturb, "store", how)) for how in DISTURBANCES),
    Fault("rescale", rescale),
    Fault("savepoint", savepoint),
    Fault("rescale+kill-worker", partial(rescale, meanwhile=kill_worker)),
    Fault("savepoint+kill-worker", partial(savepoint, meanwhile=kill_worker)),
)


def fault(name: str, step: str = "") -> Fault:
    """The fault of this name, and at this step."""
    return next(found for found in FAULTS if found.name == name and found.step == step)


def drawn(cycles: int, leader: int, brokers: int, rng: random.Random) -> list[Fault]:
    """So many faults, `leader` of them against the leader, every kind equally often as far as that goes, shuffled."""
    possible = [found for found in FAULTS if found.brokers <= brokers]
    chosen = _spread([found for found in possible if found.leader], min(leader, cycles), rng)
    chosen += _spread([found for found in possible if not found.leader], cycles - len(chosen), rng)
    rng.shuffle(chosen)
    return chosen


def _spread(kinds: Sequence[Fault], number: int, rng: random.Random) -> list[Fault]:
    chosen: list[Fault] = []
    while len(chosen) < number:
        chosen += rng.sample(kinds, min(len(kinds), number - len(chosen)))
    return chosen


BRIEF: Final[tuple[Fault, ...]] = (
    fault("kill-worker", failpoints.AFTER_INIT),
    fault("kill-leader", failpoints.BEFORE_COMPLETE),
    fault("kill-worker", failpoints.BEFORE_COMMIT),
    fault("kill-taskmanager"),
    fault("kill-leader", failpoints.AFTER_COMPLETE),
    fault("zombie-sink", failpoints.BEFORE_INIT),
    fault("wipe-redis"),
    fault("rescale+kill-worker"),
    fault("pause-leader"),
    fault("kill-worker", failpoints.AFTER_COMMIT),
    fault("kill-minio"),
    fault("pause-broker"),
)
"""On one broker: each named step once, each main kind once."""
_LINKS: Final[tuple[Fault, ...]] = (
    fault("cut-kafka-of-leader"),
    fault("mute-kafka-of-taskmanager"),
    fault("deaf-kafka-of-taskmanager"),
    fault("cut-redis-of-leader"),
    fault("deaf-store-of-leader"),
    fault("mute-store-of-taskmanager"),
    fault("slow-store-of-taskmanager"),
)


def brief(rng: random.Random) -> list[Fault]:
    """What `make acceptance` does: each named step, and of other kinds and links some that another run may not meet."""
    others = rng.sample([each for each in BRIEF if not each.step], 3)
    return [*(each for each in BRIEF if each.step or each in others), *rng.sample(_LINKS, 2)]

"""`python -m benchmarks.hops`: what it costs that subtasks write their decisions into a log before they act on them.

The machines of `penstock.protocol.determinate` run over a real Kafka broker. A source and some keyed vertices behind each
other pass rows on, each from one subtask to all of the next vertex; their operators only deal the rows, so that what is
measured is the way and not the work. The last vertex says how old rows are, after a transaction with them if asked for.

Decisions stand in one log per slot, in one per subtask, or (to see what they cost) nowhere: then they are obeyed at once.
Slots are dealt to a few processes, which share the machine's cores with the broker. Credit is not reported.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from benchmarks.kafka import missing_parts
from benchmarks.kafka_events import create_topic
from benchmarks.kafka_jobs import cpu_seconds
from benchmarks.report import keep, machine
from penstock.ports import Log, NewRecord
from penstock.protocol.decisions import AnyDecision, Decisions, DecisionWriter
from penstock.protocol.determinate import (
    Determinate,
    DeterminateCommand,
    DeterminateSource,
    DeterminateSubtask,
    Output,
    Process,
    SendPart,
    SourceBatch,
)
from penstock.protocol.frames import Channel
from penstock.protocol.outputs import OutputId
from penstock.protocol.units import UnitLedger, UnitPart

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from numpy.typing import NDArray

WARM_S: Final = 4.0
DRAIN_S: Final = 3.0
FETCH_S: Final = 0.005
"""How often a source looks for rows."""
_UNLIMITED: Final = 1 << 60
_PLACES: Final = ("slot", "subtask", "nowhere")


@dataclass(frozen=True)
class Trial:
    """The settings of one measurement."""

    slots: int
    hops: int
    """Exchanges between the source and the last vertex."""
    rate: int
    """Rows a second, of all sources together."""
    decisions: str
    """Where they stand: in a log per `slot` or `subtask`, or `nowhere`."""
    transactions: bool
    cut_ms: int
    """The least time between two decisions of a subtask."""
    seconds: float
    processes: int
    row_bytes: int
    brokers: str = ""
    begins_at: float = 0.0

    def exchange(self, vertex: int) -> str:
        """The topic of what a vertex reads."""
        return f"hops-{self.begins_at:.0f}-{vertex}"

    @property
    def decision_topic(self) -> str:
        """The topic of the decision logs."""
        return f"hops-{self.begins_at:.0f}-decisions"

    @property
    def results(self) -> str:
        """The topic of transactions."""
        return f"hops-{self.begins_at:.0f}-results"

    def decision_log(self, slot: int, vertex: int) -> int:
        """Which of them a subtask reads."""
        return slot * (self.hops + 1) + vertex if self.decisions == "subtask" else slot


@dataclass
class Measured:
    """What a process has seen between warming up and the end."""

    taken: int = 0
    arrived: int = 0
    """Of all rows, those of the beginning included, as `taken`."""
    records: int = 0
    """Of decision logs."""
    cpu_s: float = 0.0
    ages_ms: Any = None
    """Of the rows that the last vertex processed in that time."""


class DecisionLog:
    """Appends the decisions of subtasks to a log, reads it, and gives each subtask what it reads."""

    def __init__(self, log: Log, trial: Trial, partition: int) -> None:
        self.records = 0
        self._log = log
        self._trial = trial
        self._partition = partition
        self._writer = DecisionWriter()
        self._subtasks: list[Subtask[Any]] = []
        self._appends: set[asyncio.Task[None]] = set()

    def add(self, subtask: Subtask[Any]) -> None:
        """One that decides here."""
        self._subtasks.append(subtask)

    def propose(self, vertex: int, decisions: Iterable[AnyDecision]) -> None:
        """Append these, together with what others have proposed meanwhile."""
        for decision in decisions:
            self._writer.propose((vertex, type(decision)), decision)
        self._append()

    def _append(self) -> None:
        record = self._writer.next()
        if not record:
            return
        if self._trial.decisions == "nowhere":
            asyncio.get_running_loop().call_soon(self._obey_at_once, record)
            return
        task = asyncio.ensure_future(self._appended(record))
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)

    def _obey_at_once(self, record: Decisions) -> None:
        self._heard(self.records, record)
        self._writer.appended()
        self._append()

    async def _appended(self, record: Decisions) -> None:
        value = NewRecord(msgspec.msgpack.encode(record))
        await self._log.append(self._trial.decision_topic, self._partition, [value])
        self._writer.appended()
        self._append()

    async def read(self) -> None:
        """Until cancelled."""
        if self._trial.decisions == "nowhere":
            return
        decoder, offset = msgspec.msgpack.Decoder(Decisions), 0
        while True:
            for record in await self._log.read(self._trial.decision_topic, self._partition, offset, timeout_s=5):
                offset = record.next_offset
                self._heard(record.offset, decoder.decode(record.value))

    def _heard(self, offset: int, record: Decisions) -> None:
        self.records += 1
        for subtask in self._subtasks:
            subtask.did(subtask.machine.decisions(offset, record))


M = TypeVar("M", bound=Determinate)


class Subtask(ABC, Generic[M]):
    """One machine, and what it commands."""

    def __init__(
        self, trial: Trial, log: Log, decisions: DecisionLog, vertex: int, slot: int, measured: Measured
    ) -> None:
        self.vertex = vertex
        self.slot = slot
        self.machine: M
        self._trial = trial
        self._log = log
        self._decisions = decisions
        self._measured = measured
        count = range(trial.slots) if vertex < trial.hops else ()
        self._outputs = [OutputId(str(vertex + 1), 0, partition) for partition in count]
        self._ledger = UnitLedger(slot, 1, self._outputs, _UNLIMITED)
        self._not_before = 0.0
        self._proposes_later = False
        self._parts: deque[SendPart] = deque()
        self._sends = asyncio.Event()
        decisions.add(self)

    def did(self, commands: list[DeterminateCommand]) -> None:
        """Carry out, and propose what follows."""
        waiting = deque(commands)
        while waiting:
            command = waiting.popleft()
            if isinstance(command, Process):
                waiting.extend(self.machine.processed(self._outputs_of(self.process(command))))
            elif isinstance(command, SendPart):
                self._parts.append(command)
                self._sends.set()
        self.propose()

    def propose(self) -> None:
        """Now, or as soon as enough time has passed since the last decision."""
        now = time.monotonic()
        if now >= self._not_before:
            if decisions := self.proposals():
                self._not_before = now + self._trial.cut_ms / 1_000
                self._decisions.propose(self.vertex, decisions)
        elif not self._proposes_later:
            self._proposes_later = True
            asyncio.get_running_loop().call_later(self._not_before - now, self._propose_later)

    def _propose_later(self) -> None:
        self._proposes_later = False
        self.propose()

    @abstractmethod
    def proposals(self) -> list[AnyDecision]:
        """What the machine would decide now."""

    @abstractmethod
    def process(self, command: Process) -> Mapping[int, NDArray[np.float64]]:
        """When rows were made, by the partition of the next vertex."""

    def _outputs_of(self, dealt: Mapping[int, NDArray[np.float64]]) -> dict[OutputId, Output]:
        return {
            self._outputs[partition]: Output(((times, len(times) * self._trial.row_bytes),))
            for partition, times in dealt.items()
        }

    async def send(self) -> None:
        """Append what is to be sent; until cancelled."""
        encode, padding = msgspec.msgpack.encode, bytes(self._trial.row_bytes)
        while True:
            await self._sends.wait()
            self._sends.clear()
            by_output: dict[OutputId, list[NewRecord]] = {}
            while self._parts:
                part = self._parts.popleft()
                header = encode(part.part)
                payload = part.ref.tobytes() + padding * len(part.ref)
                value = len(header).to_bytes(2, "big") + header + payload
                by_output.setdefault(part.output, []).append(NewRecord(value))
            await asyncio.gather(*(self._append(output, records) for output, records in by_output.items()))

    async def _append(self, output: OutputId, records: list[NewRecord]) -> None:
        await self._log.append(self._trial.exchange(self.vertex + 1), output.partition, records)
        for _ in records:
            self.did(self.machine.confirmed(output))

    @abstractmethod
    async def read(self) -> None:
        """Take input; until cancelled."""

    def _dealt(self, times: NDArray[np.float64]) -> dict[int, NDArray[np.float64]]:
        """By a key that no other row has."""
        owners = (times * 1e6).astype(np.int64) * 2_654_435_761 % 4_294_967_291 % self._trial.slots
        return {int(owner): times[owners == owner] for owner in np.unique(owners)}


class Source(Subtask[DeterminateSource]):
    """Makes rows at its rate."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._per_s = self._trial.rate / self._trial.slots
        self.machine = DeterminateSource("0", {"s": 0}, self._ledger, 0)

    def proposals(self) -> list[AnyDecision]:
        return self.machine.proposals(time.time_ns() // 1_000)

    def process(self, command: Process) -> Mapping[int, NDArray[np.float64]]:
        batch = command.batch
        if not isinstance(batch, SourceBatch) or batch.rows is None:
            return {}
        self._measured.taken += batch.rows.end - batch.rows.start
        times = self._trial.begins_at + np.arange(batch.rows.start, batch.rows.end) / self._per_s
        return self._dealt(times)

    async def read(self) -> None:
        ends_at = self._trial.begins_at + WARM_S + self._trial.seconds
        while (now := time.time()) < ends_at:
            there, stands = int((now - self._trial.begins_at) * self._per_s), self.machine.positions["s"]
            if there > stands:
                self.did(self.machine.fetched("s", stands, there))
            await asyncio.sleep(FETCH_S)


class Inner(Subtask[DeterminateSubtask]):
    """Deals rows on, or says how old they are."""

    def __init__(self, *arguments: Any, arrived: Callable[[NDArray[np.float64]], None]) -> None:
        super().__init__(*arguments)
        self._arrived = arrived
        channels = [Channel(0, producer) for producer in range(self._trial.slots)]
        self.machine = DeterminateSubtask(str(self.vertex), channels, self._ledger, 0)

    def proposals(self) -> list[AnyDecision]:
        return self.machine.proposals(time.time_ns() // 1_000)

    def process(self, command: Process) -> Mapping[int, NDArray[np.float64]]:
        batch = command.batch
        assert not isinstance(batch, SourceBatch)
        frames = [ref for unit in batch.units for ref in unit.refs]
        if not frames:
            return {}
        times = np.concatenate(frames)
        if self.vertex < self._trial.hops:
            return self._dealt(times)
        self._arrived(times)
        return {}

    async def read(self) -> None:
        decoder, topic, offset = msgspec.msgpack.Decoder(UnitPart), self._trial.exchange(self.vertex), 0
        row_bytes = 8 + self._trial.row_bytes
        while True:
            for record in await self._log.read(topic, self.slot, offset, timeout_s=5):
                offset, value = record.next_offset, memoryview(record.value)
                behind = 2 + int.from_bytes(value[:2], "big")
                rows = (len(value) - behind) // row_bytes
                part, times = decoder.decode(value[2:behind]), np.frombuffer(value, np.float64, rows, behind)
                self.did(self.machine.data(record.offset, part, times))


class Visible:
    """Rows are visible when their transaction has committed; each takes what has come meanwhile."""

    def __init__(self, trial: Trial, slot: int, seen: Callable[[NDArray[np.float64]], None]) -> None:
        self._trial = trial
        self._slot = slot
        self._seen = seen
        self._waiting: list[NDArray[np.float64]] = []
        self._wake = asyncio.Event()

    def arrived(self, times: NDArray[np.float64]) -> None:
        """They are processed."""
        self._waiting.append(times)
        self._wake.set()

    async def publish(self) -> None:
        """Until cancelled."""
        from confluent_kafka import Producer

        name = f"{self._trial.results}-{self._slot}"
        producer = Producer({"bootstrap.servers": self._trial.brokers, "transactional.id": name, "linger.ms": 0})
        await asyncio.to_thread(producer.init_transactions)
        while True:
            await self._wake.wait()
            self._wake.clear()
            taken, self._waiting = self._waiting, []
            await asyncio.to_thread(self._commit, producer, sum(map(len, taken)))
            for times in taken:
                self._seen(times)

    def _commit(self, producer: Any, rows: int) -> None:
        producer.begin_transaction()
        for _ in range(rows):
            producer.produce(self._trial.results, bytes(self._trial.row_bytes))
        producer.produce(self._trial.results, b"mark")
        producer.commit_transaction()


async def _process(trial: Trial, number: int) -> Measured:
    """The slots of one process."""
    from penstock.adapters.kafka.log import KafkaLog
    from penstock.settings import KafkaSettings

    log = KafkaLog(KafkaSettings(brokers=trial.brokers), "hops")
    measured, ages = Measured(), list[Any]()
    warm_at = trial.begins_at + WARM_S

    def seen(times: NDArray[np.float64]) -> None:
        measured.arrived += len(times)
        if (now := time.time()) >= warm_at:
            ages.append((now - times) * 1_000)

    work: list[Any] = []
    logs: dict[int, DecisionLog] = {}
    for slot in range(number, trial.slots, trial.processes):
        visible = Visible(trial, slot, seen)
        if trial.transactions:
            work.append(visible.publish())
        for vertex in range(trial.hops + 1):
            partition = trial.decision_log(slot, vertex)
            if partition not in logs:
                logs[partition] = DecisionLog(log, trial, partition)
            place = trial, log, logs[partition], vertex, slot, measured
            subtask = (
                Inner(*place, arrived=visible.arrived if trial.transactions else seen) if vertex else Source(*place)
            )
            work += [subtask.read(), subtask.send()]
    work += [each.read() for each in logs.values()]
    await asyncio.sleep(trial.begins_at - time.time())
    running = asyncio.gather(*work)
    await asyncio.sleep(warm_at - time.time())
    before, records = time.process_time(), sum(each.records for each in logs.values())
    await asyncio.sleep(warm_at + trial.seconds - time.time())
    measured.cpu_s = time.process_time() - before
    measured.records = sum(each.records for each in logs.values()) - records
    await asyncio.wait([running], timeout=DRAIN_S)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await log.close()
    measured.ages_ms = np.concatenate(ages) if ages else np.zeros(0)
    return measured


def _child(trial: Trial, number: int, answers: Queue[Measured]) -> None:
    answers.put(asyncio.run(_process(trial, number)))


async def _measure(trial: Trial, broker: int) -> dict[str, Any]:
    """One trial; its figures."""
    from penstock.adapters.kafka.log import KafkaLog
    from penstock.settings import KafkaSettings

    trial = replace(trial, begins_at=time.time() + 6)
    log = KafkaLog(KafkaSettings(brokers=trial.brokers), "hops")
    for vertex in range(1, trial.hops + 1):
        await log.create_topic(trial.exchange(vertex), trial.slots)
    await log.create_topic(trial.decision_topic, trial.slots * (trial.hops + 1 if trial.decisions == "subtask" else 1))
    create_topic(trial.brokers, trial.results)
    await log.close()
    context = multiprocessing.get_context("spawn")
    answers: Queue[Measured] = context.Queue()
    children = [context.Process(target=_child, args=(trial, number, answers)) for number in range(trial.processes)]
    for child in children:
        child.start()
    await asyncio.sleep(trial.begins_at + WARM_S - time.time())
    before = cpu_seconds(broker)
    await asyncio.sleep(trial.seconds)
    broker_s = cpu_seconds(broker) - before
    timeout_s = DRAIN_S + 60
    parts = [await asyncio.to_thread(answers.get, True, timeout_s) for _ in children]
    for child in children:
        await asyncio.to_thread(child.join, timeout_s)
    ages = np.concatenate([part.ages_ms for part in parts])
    records = sum(part.records for part in parts)
    return {
        **{key: value for key, value in asdict(trial).items() if key not in ("brokers", "begins_at")},
        "p50_ms": float(np.percentile(ages, 50)),
        "p99_ms": float(np.percentile(ages, 99)),
        "decision_records_per_s": records / trial.seconds,
        "cores": sum(part.cpu_s for part in parts) / trial.seconds,
        "broker_cores": broker_s / trial.seconds,
        "missing": sum(part.taken - part.arrived for part in parts),
        "load": os.getloadavg()[0],
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hops", description=__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[2], help="parallelism (2)")
    parser.add_argument("--hops", type=int, nargs="+", default=[1], help="exchanges (1)")
    parser.add_argument("--rate", type=int, default=10_000, help="rows a second (10000)")
    parser.add_argument("--decisions", nargs="+", choices=_PLACES, default=[*_PLACES], help="where they stand")
    parser.add_argument("--transactions", action="store_true", help="rows are visible when a transaction has committed")
    parser.add_argument("--cut-ms", type=int, default=20, help="least time between two decisions of a subtask (20)")
    parser.add_argument("--seconds", type=float, default=15, help="how long each trial is measured (15)")
    parser.add_argument("--processes", type=int, default=2, help="to which slots are dealt (2)")
    parser.add_argument("--row-bytes", type=int, default=100, help="bytes of a row beside its time (100)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, in turn (1)")
    arguments = parser.parse_args()
    if why := missing_parts():
        print(f"no broker: {why}", file=sys.stderr)
        return 1
    print(f"load before: {os.getloadavg()[0]:.1f}; {machine()['processor']}, {os.cpu_count()} cores for everything")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        results = asyncio.run(_all(Path(folder), arguments))
    print(f"kept in {keep(results, None, {'broker': 'the same machine'})}")
    return 0 if all(result["missing"] == 0 for result in results) else 1


async def _all(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from penstock.platform.parts import cached_parts
    from penstock.platform.servers import Servers, plan_servers

    servers = Servers(cached_parts(), folder / "servers", plan_servers(heap_mb=1_024))
    results: list[dict[str, Any]] = []
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(servers.kill)
        await servers.kafka.start()
        broker = servers.kafka.nodes[0].pid
        assert broker is not None
        kinds = list[tuple[int, int, str]](itertools.product(arguments.slots, arguments.hops, arguments.decisions))
        for slots, hops, decisions in kinds * arguments.repeat:
            trial = Trial(
                slots, hops, arguments.rate, decisions, arguments.transactions, arguments.cut_ms, arguments.seconds,
                min(arguments.processes, slots), arguments.row_bytes, servers.kafka.settings.brokers,
            )  # fmt: skip
            result = await _measure(trial, broker)
            where = "obeyed at once" if decisions == "nowhere" else f"in a log per {decisions}"
            results.append(result)
            print(
                f"{slots:3} slots, {hops} hops, decisions {where}: p50 {result['p50_ms']:6.1f}, p99 "
                f"{result['p99_ms']:6.1f} ms; {result['decision_records_per_s']:6.0f} decision records/s; cores: "
                f"{result['cores']:.2f} and the broker's {result['broker_cores']:.2f}; {result['missing']} rows missing",
                flush=True,
            )
    return results


if __name__ == "__main__":
    sys.exit(main())

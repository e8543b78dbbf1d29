"""One job of determinate subtasks in a world in which everything fails."""

from __future__ import annotations

import copy
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.determinate.logs import Appender, Cluster, Log
from tests.simulation.kernel import Kernel, Node, Violation

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.protocol import determinate as d
from penstock.protocol import publishing as p
from penstock.protocol import split_publishing as sp
from penstock.protocol.decisions import AlignedBarrier, AnyDecision, Decisions, DecisionWriter
from penstock.protocol.frames import Channel
from penstock.protocol.messages import SubtaskId
from penstock.protocol.outputs import OutputId
from penstock.protocol.restore_points import START, RestorePoint, RestorePoints
from penstock.protocol.units import UnitLedger, UnitPart

SOURCES = ("a", "b")
FAULTS = ("kill", "stop", "subtask", "leader", "quiet", "store", "credit")
"""A worker is killed, or stopped for a while; one subtask fails; another leader; a worker is given up for dead without
a reason; the store is away; consumers report nothing."""
TIMER_MS = 40
WINDOW = 8
STEPS = 50_000
"""More than any history that gets on."""

Id = tuple[int, str, int]
"""Generation, vertex, index."""
Row = tuple[Any, ...]


@dataclass
class Scenario:
    """What a history is drawn from."""

    parallelism: int
    depth: int
    """Vertices behind the sources."""
    splits: int
    rows: int
    keys: int
    credit: int
    lost: float
    faults: list[tuple[int, str]]
    interval: int
    part_rows: int
    rescale: int | None
    """The parallelism after it."""


def draw(seed: int, kernel: Kernel) -> Scenario:
    """The scenario of a seed."""
    rng = kernel.random
    return Scenario(
        parallelism=rng.randint(1, 3),
        depth=rng.randint(1, 2),
        splits=rng.randint(1, 3),
        rows=rng.randint(3, 40),
        keys=rng.randint(1, 6),
        credit=rng.choice((2, 8, 1_000)),
        lost=rng.choice((0, 0, 0.05, 0.2)),
        faults=sorted((rng.randint(5, 900), rng.choice(FAULTS)) for _ in range(rng.randint(0, 8))),
        interval=rng.randint(30, 300),
        part_rows=rng.choice((1, 2, 5)),
        rescale=rng.choice((None, None, 1, 2, 3)),
    )


@dataclass
class Facts:
    """What must be the same whoever computes it, and what has been seen of it first."""

    seen: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def same(self, invariant: str, key: Any, value: Any) -> None:
        """Raises Violation if another value was seen before."""
        if (first := self.seen.setdefault(key, value)) != value:
            raise Violation(f"{invariant}: {key} was {first} and is {value}")


class World:
    """The job, its leader and the infrastructure."""

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.kernel = Kernel(seed, verbose=verbose)
        self.scenario = draw(seed, self.kernel)
        self.cluster = Cluster(self.kernel)
        self.facts = Facts()
        self.reached: Counter[str] = Counter()
        self.generation = 0
        self.parallelism = self.scenario.parallelism
        self.logs: dict[Id, Log] = {}
        self.decisions: dict[tuple[int, int], Log] = {}
        self.leader = Leader(self)
        self.finished = False
        self.store: set[str] = set()
        """The names of the snapshots that are durable."""
        self.store_away_until = 0

    def run(self) -> None:
        """Until the job has finished and everything was compared."""
        for at, fault in self.scenario.faults:
            self.kernel.after(at, self._inject, fault)
        self.leader.begin_generation({}, {})
        while not self.finished:
            if self.kernel.steps > STEPS or not self.kernel.step():
                raise Violation(f"D7: the job does not get on: {self.leader.describe()}")
        self._compare()

    def vertices(self) -> list[str]:
        """In the order of the data."""
        return [*SOURCES, *(f"t{depth}" for depth in range(self.scenario.depth))]

    def log(self, id_: Id) -> Log:
        """The exchange partition of a subtask."""
        if id_ not in self.logs:
            self.logs[id_] = Log(self.kernel, f"{id_}", self.scenario.lost)
        return self.logs[id_]

    def decision_log(self, generation: int, slot: int) -> Log:
        """Of a slot."""
        key = generation, slot
        if key not in self.decisions:
            self.decisions[key] = Log(self.kernel, f"decisions {key}", self.scenario.lost)
        return self.decisions[key]

    def row(self, source: str, split: str, position: int) -> Row:
        """The row of a split: key, event time, and what it is known by."""
        mixed = (position * 7 + len(split) + ord(split[-1]) * 3 + ord(source)) % 97
        return mixed % self.scenario.keys, position + mixed % 3, (source, split, position)

    def splits(self, source: str, index: int, parallelism: int) -> list[str]:
        """Of a subtask."""
        return [f"{source}{n}" for n in range(self.scenario.splits) if n % parallelism == index]

    def _inject(self, fault: str) -> None:
        workers = [w for w in self.leader.workers.values() if w.node.alive and not w.node.stopped]
        if self.finished or not workers:
            return
        worker = self.kernel.random.choice(workers)
        self.kernel.note("fault", f"{fault} of slot {worker.slot}")
        self.reached[fault] += 1
        match fault:
            case "kill":
                worker.node.kill()
                self.kernel.after(self.kernel.short(5, 60), self.leader.lost, worker)
            case "stop":
                worker.node.stop()
                self.kernel.after(self.kernel.short(5, 60), self.leader.lost, worker)
                self.kernel.after(self.kernel.short(20, 400), worker.node.resume)
            case "quiet":  # it only seems to be dead
                self.leader.lost(worker)
            case "subtask":
                tasks = [task for task in worker.tasks.values() if not task.gone]
                if tasks:
                    task = self.kernel.random.choice(tasks)
                    task.gone = True
                    self.kernel.after(self.kernel.short(), self.leader.failed, task)
            case "leader":
                self.leader.change()
            case "store":
                self.store_away_until = self.kernel.now + 200
            case _:
                for task in worker.tasks.values():
                    task.silent_until = self.kernel.now + 150

    def _compare(self) -> None:
        """Every row has had its effect once."""
        expected: dict[int, Counter[Any]] = {}
        for source in SOURCES:
            for n in range(self.scenario.splits):
                for position in range(self.scenario.rows):
                    key, _, name = self.row(source, f"{source}{n}", position)
                    expected.setdefault(key, Counter())[name] += 1
        found: dict[int, int] = {}
        names: dict[int, Counter[Any]] = {}
        for name in sorted(self.cluster.committed):
            for kind, key, count, more in self.cluster.committed[name]:
                if kind != "total":
                    continue
                if count <= found.get(key, 0):
                    raise Violation(f"D4: {name} published {count} of key {key} after {found[key]}")
                found[key] = count
                names.setdefault(key, Counter()).update(more)
        if names != expected:
            raise Violation(f"D4: published {names}, expected {expected}")


class Leader:
    """Deploys, asks for checkpoints, completes them, and restarts what failed, and nothing else."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.node = Node(world.kernel, "leader 0")
        self.workers: dict[int, Worker] = {}
        """Whom it believes to have each slot."""
        self.term = 1
        # what is recorded:
        self.points = RestorePoints()
        self.complete: dict[Id, Snapshot] = {}
        self.completed = 0
        self.number = 0
        self.stopping: AlignedBarrier | None = None
        # what a leader that comes anew does not know:
        self.acks: dict[tuple[int, str], dict[Id, Snapshot]] = {}

    def describe(self) -> str:
        """For a report."""
        return f"{[task.describe() for worker in self.workers.values() for task in worker.tasks.values()]}"

    def ids(self) -> list[Id]:
        """All subtasks of the generation."""
        world = self.world
        return [(world.generation, v, i) for v in world.vertices() for i in range(world.parallelism)]

    def begin_generation(self, positions: Mapping[str, int], states: Mapping[str, State]) -> None:
        """All subtasks, from the merged state of the generation before."""
        self.positions, self.states = dict(positions), dict(states)
        self.points, self.complete, self.acks, self.stopping = RestorePoints(), {}, {}, None
        self.open_appenders()
        for slot in range(self.world.parallelism):
            self.give_slot(slot)
        self.tick(self.term, self.world.generation)

    def give_slot(self, slot: int) -> None:
        """A new worker has the slot, with a new incarnation of each subtask in it."""
        worker = self.workers[slot] = Worker(self.world, slot)
        for vertex in self.world.vertices():
            self.deploy(worker, vertex)

    def deploy(self, worker: Worker, vertex: str) -> None:
        """A new incarnation of a subtask begins at the newest snapshot that is complete."""
        id_ = self.world.generation, vertex, worker.slot
        number, point = self.points.begin(subtask(id_))
        snapshot = self.complete.get(id_)
        assert point == (snapshot.point if snapshot is not None else START)
        worker.deliver(worker.start, id_, number, snapshot)

    def lost(self, worker: Worker) -> None:
        """A worker is silent: its slot goes to another one."""
        if self.world.finished or self.workers.get(worker.slot) is not worker:
            return
        self.give_slot(worker.slot)

    def failed(self, task: Task) -> None:
        """One subtask failed: one subtask begins anew, in the same worker."""
        worker = self.workers.get(task.id[2])
        if (
            worker is not None
            and task.worker is worker
            and task.id[0] == self.world.generation
            and not self.world.finished
        ):
            self.deploy(worker, task.id[1])

    def change(self) -> None:
        """Another leader, which knows what is recorded; it is not sure of some workers."""
        if self.world.kernel.random.random() < 0.5:
            self.node.kill()
        else:  # it does not know that it has been replaced
            self.reached_zombie()
        self.term += 1
        self.acks = {}
        self.node = Node(self.world.kernel, f"leader {self.term}")
        self.open_appenders()
        for worker in list(self.workers.values()):
            if self.world.kernel.random.random() < 0.3:
                self.lost(worker)
        if self.stopping is not None:
            self.send_barrier(self.stopping)
        self.tick(self.term, self.world.generation)

    def reached_zombie(self) -> None:
        """A leader that was replaced asks for one more savepoint."""
        self.world.reached["leader goes on"] += 1
        barrier = AlignedBarrier(
            self.term, self.number + self.world.kernel.random.randint(1, 3), self.world.kernel.new_id()
        )
        for appender in self.appenders:
            self.world.kernel.after(self.world.kernel.short(1, 300), appender.append, (barrier,), lambda: None)

    def open_appenders(self) -> None:
        """To the decision logs of the generation."""
        world = self.world
        logs = [world.decision_log(world.generation, slot) for slot in range(world.parallelism)]
        self.appenders = [log.appender(self.node) for log in logs]

    def tick(self, term: int, generation: int) -> None:
        """Checkpoints at an interval, and a barrier when it is time."""
        world = self.world
        if world.finished or (term, generation) != (self.term, world.generation):
            return
        self.number += 1
        nonce = world.kernel.new_id()
        for worker in self.workers.values():
            worker.deliver(worker.marker, self.number, nonce)
            worker.deliver(worker.heartbeat)
        wanted = world.scenario.rescale is not None and generation == 0 and world.kernel.random.random() < 0.3
        if self.stopping is None and (wanted or self.all_ended()):
            self.stopping = AlignedBarrier(self.term, self.number, world.kernel.new_id(), stops=True)
            self.send_barrier(self.stopping)
        elif self.stopping is None and world.kernel.random.random() < 0.2:
            self.send_barrier(AlignedBarrier(self.term, self.number, nonce))
        world.kernel.after(world.scenario.interval, self.tick, term, generation)

    def all_ended(self) -> bool:
        """Whether the sources have nothing left."""
        tasks = [task for worker in self.workers.values() for task in worker.tasks.values() if task.id[1] in SOURCES]
        count = len(SOURCES) * self.world.parallelism
        return len(tasks) == count and all(task.ended() for task in tasks)

    def send_barrier(self, barrier: AlignedBarrier) -> None:
        """Into the decision log of every slot, unless this leader dies on the way; another one sends those that stop."""
        for slot in range(self.world.parallelism):
            self.appenders[slot].append((barrier,), lambda: None)

    def acknowledged(self, id_: Id, command: d.AcknowledgeSnapshot, snapshot: Snapshot) -> None:
        """A snapshot of a subtask can be restored."""
        if id_[0] != self.world.generation or self.world.finished:
            return
        if command.aligned:
            self.aligned(id_, command, snapshot)
            return
        acks = self.acks.setdefault((command.checkpoint, command.nonce), {})
        acks[id_] = snapshot
        if acks.keys() == set(self.ids()):
            self.complete_one(command.checkpoint, acks)

    def complete_one(self, checkpoint: int, acks: dict[Id, Snapshot]) -> None:
        """COMPLETE: subtasks begin there from now on, and what is before is trimmed."""
        if checkpoint <= self.completed:
            return
        self.completed = checkpoint
        self.world.reached["complete"] += 1
        if missing := [id_ for id_, snapshot in acks.items() if snapshot.name not in self.world.store]:
            raise Violation(f"I9: checkpoint {checkpoint} is complete without the snapshots of {missing}")
        newer = self.points.complete({subtask(id_): snapshot.point for id_, snapshot in acks.items()})
        self.world.reached["older snapshot"] += len(acks) - len(newer)
        self.complete |= {id_: snapshot for id_, snapshot in acks.items() if subtask(id_) in newer}
        for id_ in acks:
            self.world.log(id_).trim(self.points.trim(subtask(id_)))
        for slot in range(self.world.parallelism):
            self.world.decision_log(self.world.generation, slot).trim(self.points.trim_decisions(slot))

    def reads(self, id_: Id, incarnation: int, read: int, decided: int) -> None:
        """How far a subtask has read."""
        if id_[0] == self.world.generation:
            self.points.reads(subtask(id_), incarnation, read, decided)

    def aligned(self, id_: Id, command: d.AcknowledgeSnapshot, snapshot: Snapshot) -> None:
        """A barrier has passed a subtask, and all before it is published."""
        acks = self.acks.setdefault((-command.checkpoint, command.nonce), {})
        acks[id_] = snapshot
        if acks.keys() != set(self.ids()):
            return
        self.world.reached["savepoint"] += 1
        positions, states = self.merged(acks)
        self.check_cut(positions, states)
        stopping = self.stopping
        if stopping is None or (command.checkpoint, command.nonce) != (stopping.checkpoint, stopping.nonce):
            return
        if all(position >= self.world.scenario.rows for position in positions.values()):
            self.world.finished = True
            return
        self.world.reached["rescale"] += 1
        self.world.generation += 1
        self.world.parallelism = self.world.scenario.rescale or 1
        self.workers = {}
        self.begin_generation(positions, states)

    def merged(self, acks: dict[Id, Snapshot]) -> tuple[dict[str, int], dict[str, State]]:
        """The state of all subtasks of each vertex."""
        positions: dict[str, int] = {}
        states: dict[str, State] = {}
        for (_, vertex, _), snapshot in acks.items():
            if vertex in SOURCES:
                positions |= snapshot.place["positions"]
            else:
                states.setdefault(vertex, State()).merge(snapshot.state)
        return positions, states

    def check_cut(self, positions: Mapping[str, int], states: Mapping[str, State]) -> None:
        """What a savepoint holds is the effect of the rows before the positions of its sources, and of no others."""
        expected: Counter[Any] = Counter()
        for split, end in positions.items():
            for position in range(end):
                expected[self.world.row(split[0], split, position)[2]] += 1
        for vertex, state in states.items():
            found: Counter[Any] = sum(state.names.values(), Counter())
            if found != expected:
                raise Violation(f"savepoint: {vertex} has {found - expected} too much and misses {expected - found}")


@dataclass
class State:
    """Of the operators of a subtask. Everything is a function of the batches."""

    names: dict[int, Counter[Any]] = field(default_factory=dict[int, Counter[Any]])
    timers: dict[int, int] = field(default_factory=dict[int, int])
    windows: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    watermark: int = MIN_WATERMARK
    splits: dict[str, tuple[int, bool]] = field(default_factory=dict[str, tuple[int, bool]])
    """Of a source: the highest event time of each split, and whether it rests."""

    def merge(self, other: State) -> None:
        """Of another subtask, with other keys."""
        self.names |= copy.deepcopy(other.names)
        self.timers |= other.timers
        self.windows |= other.windows

    def of_subtask(self, index: int, parallelism: int) -> State:
        """The part with its keys."""
        mine = State()
        mine.names = {k: copy.deepcopy(v) for k, v in self.names.items() if k % parallelism == index}
        mine.timers = {k: v for k, v in self.timers.items() if k % parallelism == index}
        mine.windows = {k: v for k, v in self.windows.items() if k[0] % parallelism == index}
        return mine

    def canonical(self) -> Any:
        """To be compared."""
        return (
            sorted((k, sorted(v.items())) for k, v in self.names.items()),
            sorted(self.timers.items()),
            sorted(self.windows.items()),
            self.watermark,
            sorted(self.splits.items()),
        )


@dataclass(frozen=True)
class Snapshot:
    """In the store."""

    point: RestorePoint
    place: Mapping[str, Any]
    state: State
    name: str


class Worker:
    """A process that has a slot."""

    def __init__(self, world: World, slot: int) -> None:
        self.world = world
        self.slot = slot
        self.node = Node(world.kernel, f"worker of slot {slot}")
        self.tasks: dict[Id, Task] = {}
        self.writer = DecisionWriter()
        self.appender = world.decision_log(world.generation, slot).appender(self.node)
        self.generation = world.generation
        self.tick()

    def deliver(self, action: Any, *args: Any) -> None:
        """A command, which may be late."""
        self.node.later(self.world.kernel.short(1, 15), action, *args)

    def start(self, id_: Id, incarnation: int, snapshot: Snapshot | None) -> None:
        """Begin an incarnation; one before ends."""
        if id_[0] != self.world.generation:
            return
        if (old := self.tasks.get(id_)) is not None:
            if old.incarnation > incarnation:
                return
            old.gone = True
        self.tasks[id_] = Task(self, id_, incarnation, snapshot)

    def marker(self, checkpoint: int, nonce: str) -> None:
        """The leader's marker."""
        for task in self.tasks.values():
            if not task.gone:
                task.obey(task.machine.marker(checkpoint, nonce))

    def heartbeat(self) -> None:
        """The newest snapshots of its subtasks and what they have processed, for who has not heard of it."""
        for task in self.tasks.values():
            if not task.gone:
                read = task.machine.read if isinstance(task.machine, d.DeterminateSubtask) else 0
                report = task.id, task.incarnation, read, task.machine.decided
                self.world.kernel.after(self.world.kernel.short(1, 30), self.world.leader.reads, *report)
                for command, snapshot in task.acknowledged[-8:]:
                    task.tell(command, snapshot)
                if isinstance(task.machine, d.DeterminateSubtask):
                    for channel, number in task.machine.credited.items():
                        task.report(channel, number)

    def tick(self) -> None:
        """Look whether something is to be decided."""
        if self.world.finished or self.world.generation > self.generation + 1:
            return
        for task in self.tasks.values():
            if not task.gone:
                for decision in task.proposals():
                    self.writer.propose((task.id[1], getattr(decision, "split", "")), decision)
        if decisions := self.writer.next():
            self.appender.append(decisions, self.writer.appended)
        self.node.later(self.world.kernel.short(3, 15), self.tick)


class Task:
    """An incarnation of a subtask."""

    machine: d.DeterminateSource | d.DeterminateSubtask

    def __init__(self, worker: Worker, id_: Id, incarnation: int, snapshot: Snapshot | None) -> None:
        self.worker, self.world, self.id, self.incarnation = worker, worker.world, id_, incarnation
        self.gone = False
        self.silent_until = 0
        self.parallelism = worker.world.parallelism
        self.rows: dict[int, tuple[Row, ...]] = {}
        """Of the parts that were read."""
        self.reading: dict[str, int] = {}
        """The number of the newest fetch of each split."""
        self.fetched_to: dict[str, int] = {}
        self.snapshots: dict[tuple[int, str, bool], Snapshot] = {}
        self.acknowledged: list[tuple[d.AcknowledgeSnapshot, Snapshot]] = []
        world, (generation, vertex, index) = self.world, id_
        vertices = world.vertices()
        behind = vertices[vertices.index("t0") :] if vertex in SOURCES else vertices[vertices.index(vertex) + 1 :]
        edge = SOURCES.index(vertex) if vertex in SOURCES else 0
        outputs = [OutputId(behind[0], edge, n) for n in range(self.parallelism)] if behind else []
        ledger = UnitLedger(index, incarnation, outputs, world.scenario.credit)
        self.publisher = None if behind else Publisher(self, snapshot)
        place = snapshot.place if snapshot is not None else None
        decisions = world.decision_log(generation, index)
        restored = world.leader.states.get(vertex, State()).of_subtask(index, self.parallelism)
        self.state = copy.deepcopy(snapshot.state) if snapshot is not None else restored
        if vertex in SOURCES:
            splits = {s: world.leader.positions.get(s, 0) for s in world.splits(vertex, index, self.parallelism)}
            self.machine = d.DeterminateSource(vertex, splits, ledger, decisions.end, place)
            for split in splits:
                self.fetch(split, self.machine.positions[split])
        else:
            inputs = SOURCES if vertex == "t0" else (vertex,)
            channels = [Channel(e, n) for e in range(len(inputs)) for n in range(self.parallelism)]
            self.machine = d.DeterminateSubtask(
                vertex, channels, ledger, decisions.end, place, publishes=self.publisher is not None
            )
            if place is not None and snapshot is not None:
                if snapshot.point.needs < world.log(id_).base:
                    self.out_of_range("its partition")
                    return
                self.rows = {offset: world.log(id_).at(offset)[1] for offset in kept(place)}
            world.log(id_).reader(worker.node, self.machine.read, self.data)
        self.appenders: dict[OutputId, Appender] = {
            output: world.log((generation, output.exchange, output.partition)).appender(worker.node)
            for output in outputs
        }
        decisions.reader(worker.node, self.machine.decided, self.decided)
        if self.publisher is not None:
            self.publisher.start()

    def describe(self) -> str:
        """For a report."""
        m = self.machine
        return f"{self.id}#{self.incarnation}{' gone' if self.gone else ''} batch {m.number} stopped {m.stopped}"

    def ended(self) -> bool:
        """Whether a source has read everything."""
        assert isinstance(self.machine, d.DeterminateSource)
        return all(position >= self.world.scenario.rows for position in self.machine.positions.values())

    # -- what is read --------------------------------------------------------------------------------------------------

    def data(self, offset: int, record: tuple[UnitPart, tuple[Row, ...]] | None) -> bool:
        """A record of the partition."""
        assert isinstance(self.machine, d.DeterminateSubtask)
        if self.gone:
            return False
        if record is None:
            self.out_of_range("its partition")
            return False
        self.rows[offset] = record[1]
        self.obey(self.machine.data(offset, record[0], offset))
        return not self.gone

    def decided(self, offset: int, record: Decisions | None) -> bool:
        """A record of the slot's decision log."""
        if self.gone:
            return False
        if record is None:
            self.out_of_range("its decisions")
            return False
        self.obey(self.machine.decisions(offset, record))
        return not self.gone

    def out_of_range(self, what: str) -> None:
        """Somebody else is the newest, or what is needed was trimmed."""
        if (
            self.incarnation == self.world.leader.points.incarnation(subtask(self.id))
            and self.id[0] == self.world.generation
        ):
            raise Violation(f"D6: {what} of {self.id} was trimmed, and the newest incarnation needs it")
        self.gone = True

    def fetch(self, split: str, position: int) -> None:
        """Some of the rows that are there; one fetch of a split is under way at a time."""
        self.reading[split] = self.reading.get(split, 0) + 1
        self.fetched_to[split] = end = min(self.world.scenario.rows, position + self.world.kernel.random.randint(1, 6))
        if end > position:
            number, delay = self.reading[split], self.world.kernel.short(1, 20)
            self.worker.node.later(delay, self.fetched, number, split, position, end)

    def fetched(self, number: int, split: str, start: int, end: int) -> None:
        """Rows are at hand, unless others are wanted by now."""
        assert isinstance(self.machine, d.DeterminateSource)
        if not self.gone and number == self.reading[split]:
            self.obey(self.machine.fetched(split, start, end))

    def proposals(self) -> list[AnyDecision]:
        """What this subtask would decide now, by the clock of its process."""
        now = self.worker.node.monotonic_ms if self.world.kernel.random.random() < 0.2 else self.world.kernel.now
        due = any(at <= now for at in self.state.timers.values())
        if isinstance(self.machine, d.DeterminateSource):
            rests = [split for split in self.machine.positions if self.world.kernel.random.random() < 0.01]
            return self.machine.proposals(now, resting=rests)
        return self.machine.proposals(now, due=due)

    # -- what is done --------------------------------------------------------------------------------------------------

    def obey(self, commands: Iterable[d.DeterminateCommand]) -> None:
        """Carry commands out."""
        for command in commands:
            self.world.reached[type(command).__name__] += 1
            match command:
                case d.Process():
                    self.worker.node.later(self.world.kernel.short(1, 6), self.process, command)
                case d.SendPart():
                    self.send(command)
                case d.TakeSnapshot():
                    self.snapshot(command)
                case d.AcknowledgeSnapshot(checkpoint, nonce, aligned):
                    self.acknowledged.append((command, self.snapshots[checkpoint, nonce, aligned]))
                    self.tell(*self.acknowledged[-1])
                case d.SeekSplit():
                    self.fetch(command.split, command.position)

    def tell(self, command: d.AcknowledgeSnapshot, snapshot: Snapshot) -> None:
        """An acknowledgement is on its way, whatever becomes of who sent it."""
        leader = self.world.leader
        self.world.kernel.after(self.world.kernel.short(1, 30), leader.acknowledged, self.id, command, snapshot)

    def send(self, command: d.SendPart) -> None:
        """Append a part."""
        output = command.output
        rows: tuple[Row, ...] = command.ref or ()
        self.appenders[output].append((command.part, rows), lambda: self.confirmed(output))

    def confirmed(self, output: OutputId) -> None:
        """It is in the log."""
        if not self.gone:
            self.obey(self.machine.confirmed(output))

    def snapshot(self, command: d.TakeSnapshot) -> None:
        """Write it; the store may be away for a while."""
        key = command.checkpoint, command.nonce, command.aligned
        place = copy.deepcopy(dict(command.place))
        self.snapshots[key] = Snapshot(
            RestorePoint(command.checkpoint, place["number"], needed(place), place["decided"]), place,
            copy.deepcopy(self.state), self.world.kernel.new_id(),
        )  # fmt: skip
        if self.publisher is not None:
            self.publisher.flush()
        away = max(0, self.world.store_away_until - self.world.kernel.now)
        self.worker.node.later(away + self.world.kernel.short(2, 40), self.stored, key)

    def stored(self, key: tuple[int, str, bool]) -> None:
        """The objects are durable."""
        self.world.store.add(self.snapshots[key].name)
        if not self.gone:
            self.obey(self.machine.stored(*key))

    def process(self, command: d.Process) -> None:
        """Give a batch to the operators."""
        if self.gone:
            return
        batch, number = command.batch, command.number
        named = (*self.id, number)
        if isinstance(batch, d.SourceBatch):
            self.world.facts.same("D3", ("batch", named), batch)
            rows, out = self.source(batch)
        else:
            rows = self.payload(batch)
            units = tuple((unit.channel, unit.number) for unit in batch.units)
            self.world.facts.same(
                "D3", ("batch", named), (units, sorted(rows), batch.time, batch.watermark, batch.idle)
            )
            out = self.operate(rows, batch)
        self.world.facts.same("D2", ("output", named), sorted(map(repr, out)))
        self.world.facts.same("D5", ("state", named), self.state.canonical())
        if self.publisher is not None:
            self.publisher.offer(number, tuple(out))
            self.obey(self.machine.processed({}))
        else:
            self.obey(self.machine.processed(self.dealt(out)))
        if isinstance(batch, d.Batch):
            for unit in batch.units:
                self.report(unit.channel, unit.number)
        elif batch.rows is not None and not batch.rests and batch.rows.end == self.fetched_to[batch.rows.split]:
            self.fetch(batch.rows.split, batch.rows.end)

    def payload(self, batch: d.Batch) -> list[Row]:
        """The rows of a batch."""
        return [row for unit in batch.units for ref in unit.refs for row in self.rows[ref]]

    def report(self, channel: Channel, number: int) -> None:
        """Credit for the producer of a channel, whoever it is by now."""
        vertex = SOURCES[channel.input] if self.id[1] == "t0" else "t0"
        producer = self.id[0], vertex, channel.producer
        output = OutputId(self.id[1], channel.input, self.id[2])
        delay = max(0, self.silent_until - self.world.kernel.now) + self.world.kernel.short(1, 20)
        self.world.kernel.after(delay, credit, self.world, producer, output, number)

    def source(self, batch: d.SourceBatch) -> tuple[list[Row], list[Row]]:
        """Rows of a split, and how far event time has come."""
        state, world = self.state, self.world
        if batch.rows is None:
            return [], []
        split = batch.rows.split
        read = [world.row(self.id[1], split, at) for at in range(batch.rows.start, batch.rows.end)]
        highest, _ = state.splits.get(split, (MIN_WATERMARK, False))
        ended = batch.rows.end >= world.scenario.rows
        highest = MAX_WATERMARK if ended else max([highest, *(row[1] - 3 for row in read)])
        state.splits[split] = highest, batch.rests
        mine = world.splits(self.id[1], self.id[2], self.parallelism)
        counts = [state.splits.get(each, (MIN_WATERMARK, False)) for each in mine]
        state.watermark = max(state.watermark, min((at for at, rests in counts if not rests), default=MIN_WATERMARK))
        return read, [("row", key, at, (name,)) for key, at, name in read]

    def operate(self, rows: list[Row], batch: d.Batch) -> list[Row]:
        """Totals per key, timers of the clock, and windows of event time."""
        state, out = self.state, list[Row]()
        changed: dict[int, Counter[Any]] = {}
        for kind, key, at, names in rows:
            if kind == "row":
                changed.setdefault(key, Counter()).update(names)
                if at > state.watermark or state.watermark == MIN_WATERMARK:
                    window = key, at // WINDOW
                    state.windows[window] = state.windows.get(window, 0) + len(names)
        for key, names in changed.items():
            state.names.setdefault(key, Counter()).update(names)
            state.timers.setdefault(key, batch.time + TIMER_MS)
            kind = "total" if self.publisher is not None else "row"
            count = state.names[key].total() if kind == "total" else max(row[2] for row in rows)
            out.append((kind, key, count, tuple(sorted(names.elements()))))
        for key in sorted(key for key, at in state.timers.items() if at <= batch.time):
            del state.timers[key]
            out.append(("timer", key, state.names[key].total(), ()))
        state.watermark = max(state.watermark, batch.watermark)
        for window in sorted(w for w in state.windows if (w[1] + 1) * WINDOW <= state.watermark):
            out.append(("window", window[0], state.windows.pop(window), ()))
        return out

    def dealt(self, out: list[Row]) -> dict[OutputId, d.Output]:
        """Rows to the consumers of their keys, in parts. Of one batch they come in any order."""
        self.world.kernel.random.shuffle(out)
        size = self.world.scenario.part_rows
        made: dict[OutputId, d.Output] = {}
        for output in self.machine._ledger.outputs:
            mine = [row for row in out if row[1] % self.parallelism == output.partition]
            parts = tuple((tuple(mine[at : at + size]), len(mine[at : at + size])) for at in range(0, len(mine), size))
            made[output] = d.Output(parts, self.state.watermark)
        return made


def subtask(id_: Id) -> SubtaskId:
    """Without its generation."""
    return SubtaskId(id_[1], id_[2])


def kept(place: Mapping[str, Any]) -> list[int]:
    """The offsets of parts that were read and are in no batch."""
    opened = [ref for _, parts in place["gate"].values() for _, refs in parts.values() for ref in refs]
    units = [unit for _, unit in place["units"]] + place["held"]
    return [*opened, *(ref for unit in units for ref in unit.refs)]


def needed(place: Mapping[str, Any]) -> int:
    """The lowest offset of its partition that a restored subtask reads."""
    return min([place["read"], *kept(place)]) if "read" in place else 0


def credit(world: World, producer: Id, output: OutputId, number: int) -> None:
    """A report of a consumer, heard by everyone who is or was that producer."""
    worker = world.leader.workers.get(producer[2])
    task = worker.tasks.get(producer) if worker is not None else None
    if worker is not None and task is not None:
        worker.node.deliver(lambda: None if task.gone else task.obey(task.machine.credit(output, number)))


class Publisher:
    """The sink of a subtask."""

    def __init__(self, task: Task, snapshot: Snapshot | None) -> None:
        self._task, self._world = task, task.world
        self._name = f"{task.id[0]}/{task.id[2]}"
        self._epoch = -1
        self._waiting: list[tuple[int, tuple[Row, ...]]] = []
        self._flush = False
        self._machine = sp.SplitPublisherMachine(
            task.incarnation,
            lambda below: self._world.kernel.random.randrange(below),
            snapshot.place["processed"] if snapshot is not None else 0,
            must_have_mark=snapshot is not None,
            chunk_bytes=4,
        )

    def start(self) -> None:
        """Announce the incarnation."""
        self._obey(self._machine.start())

    def offer(self, number: int, rows: tuple[Row, ...]) -> None:
        """What a batch has for the sink; batches that the mark stands behind are dropped."""
        self._waiting.append((number, rows))
        self._offer()

    def flush(self) -> None:
        """A snapshot waits for the mark."""
        self._flush = True
        self._offer()
        self._tell()

    def _offer(self) -> None:
        if self._machine.announced:
            waiting, self._waiting = self._waiting, []
            for number, rows in waiting:
                if number > self._machine.position and not self._task.gone:
                    self._handle(sp.Offered(tuple((number, row) for row in rows), number, len(rows)))
            if self._flush:
                self._flush = False
                self._handle(sp.Flush())

    def _tell(self) -> None:
        if self._machine.announced and not self._task.gone:
            self._task.obey(self._task.machine.made_visible(self._machine.position))

    def _handle(self, event: sp.SplitEvent) -> None:
        if not self._task.gone:
            self._obey(self._machine.handle(event))

    def _obey(self, commands: Iterable[sp.SplitCommand]) -> None:
        for command in commands:
            self._world.reached[type(command).__name__] += 1
            match command:
                case p.InitProducer():
                    self._later(self._init)
                case p.ReadMark():
                    self._later(lambda: p.MarkRead(self._world.cluster.marks.get(self._name)))
                case p.CommitTransaction():
                    self._later(lambda command=command: self._commit(command))
                case p.BackOff():
                    self._task.worker.node.later(command.delay_ms, self._handle, p.BackedOff())
                case p.Exit():
                    self._task.gone = True
                case p.FailJob():
                    raise Violation(f"the job fails: {command.reason}")

    def _later(self, operation: Any) -> None:
        """The cluster does it, and then this process hears of it, or not for certain."""

        def do() -> None:
            if self._task.gone or not self._task.worker.node.alive:
                return
            answer = operation()
            if self._world.kernel.random.random() < 0.05:
                answer = p.Doubtful("lost")
            self._task.worker.node.later(self._world.kernel.short(1, 6), self._answered, answer)

        self._world.kernel.after(self._world.kernel.short(1, 6), do)

    def _answered(self, answer: Any) -> None:
        self._handle(answer)
        if not self._task.gone:
            self._offer()
            self._tell()

    def _init(self) -> Any:
        self._epoch = self._world.cluster.init_producer(self._name)
        return p.ProducerReady(None)

    def _commit(self, command: p.CommitTransaction[Any]) -> Any:
        before = self._world.cluster.marks.get(self._name)
        if not self._world.cluster.commit(self._name, self._epoch, tuple(row for _, row in command.refs), command.mark):
            return p.Fenced()
        first = min((number for number, _ in command.refs), default=command.mark.position + 1)
        if before is not None and (first <= before.position or command.mark.position < before.position):
            raise Violation(f"D4: {self._name} publishes batch {first} behind the mark {before}")
        return p.Committed()


def run_seed(seed: int, *, verbose: bool = False) -> tuple[str, Counter[str]]:
    """What failed, if anything did, and how often the history came to what."""
    world = World(seed, verbose=verbose)
    try:
        world.run()
    except Exception as error:  # what a broken machine raises is a finding as well
        what = str(error) if isinstance(error, Violation) else "".join(traceback.format_exception(error)[-3:])
        recent = "\n  ".join(list(world.kernel.history)[-40:])
        return f"seed {seed}: {what}\n{world.scenario}\n  {recent}", world.reached
    return "", world.reached

"""Task managers under a leader that says anything: production's supervisors and workers, simulated processes and runners.

The leader here is the adversary. Its commands come in any order that a log with several writers, retries and losses can
hold: deploys twice, older attempts behind newer ones, a cancel together with its deploy, commands of a deposed leader,
commands that never come. What is looked at: what workers start, and what a leader would know from their events.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import Callable, Generator, MutableMapping, Sequence
from types import SimpleNamespace
from typing import Any

import structlog
from tests.simulation.kernel import Violation
from tests.simulation.shells.adversary import JOBS, Adversary
from tests.simulation.shells.children import Runner, SimulatedChild
from tests.simulation.shells.loop import Process, SeededLoop, current
from tests.simulation.shells.ports import WORLD, SimulatedBlobs, SimulatedLog, VirtualClock, Wire

from penstock.coordination.control_topics import COMMANDS, EVENTS, create_control_topics
from penstock.errors import ExternalError
from penstock.graph.executiongraph import credits_topic
from penstock.ports import NewRecord
from penstock.protocol.messages import (
    AnyCommand,
    Deploy,
    Heartbeat,
    LeaderTick,
    SubtaskId,
    TaskChanged,
    TaskStatus,
    decode_event,
    encode,
)
from penstock.taskmanager import supervisor as supervisor_module
from penstock.taskmanager import worker as worker_module
from penstock.taskmanager.supervisor import Supervisor
from penstock.taskmanager.worker import WorkerService

HEAL_S = 8.0
SETTLED_S = 30.0
ENDED = ("finished", "failed", "canceled")


class WorkersWorld:
    """One history."""

    def __init__(self, loop: SeededLoop, seed: int, note: Callable[[str, object], None]) -> None:
        self.loop, self.note = loop, note
        self.draw = random.Random(seed ^ 0x30B)
        self.coverage: Counter[str] = Counter()
        self.wire = Wire(loop)
        self.clock = VirtualClock(loop)
        self.log = SimulatedLog(self.wire)
        self.blobs = SimulatedBlobs(self.wire)
        self.processes: dict[str, Process] = {}
        self.services: dict[str, WorkerService] = {}
        self.child_of: dict[int, SimulatedChild] = {}
        self.children = 0
        self.supervisors: list[Supervisor] = []
        self.violation: Violation | None = None
        self.known: dict[str, dict[tuple[str, str, SubtaskId], TaskStatus]] = {}
        """What a leader would know: worker to its subtasks."""
        self.left: set[str] = set()
        self.ended = False
        """Whether both jobs have ended, as far as the leader is concerned."""
        self.heavy: set[int] = set()
        """Process ids of workers that use more memory than they may."""
        self._begun: set[tuple[str, str, SubtaskId]] = set()
        self._ends: set[tuple[str, str, SubtaskId]] = set()
        self._newest: dict[tuple[str, str], int] = {}
        self._too_long: dict[tuple[str, str], float] = {}
        self.log.landed = self._landed
        loop.set_exception_handler(self._raised)

    def later(self, delay_s: float, action: Callable[..., object], *args: Any) -> None:
        """In the world's own time."""
        self.loop.call_later(delay_s, action, *args, context=WORLD)

    def new_id(self) -> str:
        """A fresh id of 32 hex digits."""
        return f"{self.draw.getrandbits(128):032x}"

    def registered(self) -> list[str]:
        """Workers that the leader has heard of."""
        return sorted(self.known.keys() - self.left)

    def violated(self, what: str) -> None:
        """An invariant does not hold; the first finding counts."""
        self.note("VIOLATION", what)
        self.violation = self.violation or Violation(what)

    def _raised(self, _: object, context: dict[str, Any]) -> None:
        if not self.loop.over:
            self.violated(f"W7: {context.get('message')}: {context.get('exception')!r}")

    # -- what is looked at ----------------------------------------------------------------------------------------------

    def started(self, worker: str, deploy: Deploy) -> None:
        """W1, W2: a subtask is started once, and never behind one of a newer attempt."""
        identity = (deploy.job, deploy.attempt, deploy.subtask)
        self.note(worker, f"starts {deploy.subtask} of {deploy.job[:4]} attempt {deploy.attempt_number}")
        self.coverage["started"] += 1
        if (worker, *identity[1:]) in self._begun:
            self.violated(f"W2: {worker} starts {deploy.subtask} of attempt {deploy.attempt_number} a second time")
        self._begun.add((worker, *identity[1:]))
        newest = self._newest.get((worker, deploy.job), 0)
        if deploy.attempt_number < newest:
            self.violated(f"W1: {worker} starts attempt {deploy.attempt_number} of {deploy.job[:4]} behind {newest}")
        self._newest[worker, deploy.job] = max(newest, deploy.attempt_number)

    def _landed(self, topic: str, partition: int, records: Sequence[NewRecord], who: str) -> None:
        """Follow what workers say, as a leader does; W5: nobody speaks for a worker that has left."""
        if topic != EVENTS:
            return
        for record in records:
            event = decode_event(record.value)
            self.coverage[f"event {type(event).__name__}"] += 1
            if isinstance(event, Heartbeat) and event.leaving:
                self.left.add(event.worker)
                self.known.pop(event.worker, None)
            elif isinstance(event, Heartbeat):
                self.known[event.worker] = {(s.job, s.attempt, s.subtask): s for s in event.tasks}
            elif isinstance(event, TaskChanged):
                status = event.status
                self.note(event.worker, f"tells {status.subtask} {status.state}")
                if status.state == "canceled" and (event.worker, status.attempt, status.subtask) not in self._begun:
                    self.coverage["cancelled before its first step"] += 1
                if status.state in ENDED:
                    self._ends.add((event.worker, status.attempt, status.subtask))
        for worker in self.left & self.known.keys():  # together they may come twice
            self.violated(f"W5: a heartbeat of {worker}, which has left")

    def _look(self) -> None:
        """W3: subtasks of an older attempt do not live on beside a newer one that was started in the same worker."""
        for name, worker in self.services.items():
            child = next((c for c in self.child_of.values() if c.name == name), None)
            if child is None or not child.process.runs:
                continue
            for status in worker.statuses():
                deploy = next(t.deploy for k, t in worker._tasks.items() if k[1] == status.attempt)
                key = (name, status.attempt)
                if deploy.attempt_number >= self._newest.get((name, deploy.job), 0):
                    self._too_long.pop(key, None)
                    continue
                since = max(self._too_long.setdefault(key, self.loop.now_s), child.process.ran_again_at)
                if self.loop.now_s - since > 2.0:
                    self.violated(f"W3: attempt {deploy.attempt_number} lives on in {name} beside a newer one")

    # -- the history ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until both jobs have ended and every slot is free again."""
        await create_control_topics(SimpleNamespace(create_topic=self.log.create_topic))  # pyright: ignore
        for job in JOBS:
            await self.log.create_topic(credits_topic(job), 1, compacted=True)
        self.slots = self.draw.randint(1, 2)
        for number in range(2):
            self._start_supervisor(f"tm-{number}")
        leader = Process(self.loop, "leader")
        self.processes["leader"] = leader
        leader.start(self._lead())
        for _ in range(self.draw.randint(0, 6)):
            self.later(self.draw.uniform(0.5, HEAL_S - 1), self._fault)
        while self.loop.now_s < HEAL_S:
            self._check()
            await asyncio.sleep(0.1)
        self._heal()
        end_s = self.loop.now_s + SETTLED_S
        while missing := self._unsettled():
            if self.loop.now_s > end_s:
                self.violated(f"W4: not settled: {missing}")
            self._check()
            await asyncio.sleep(0.1)
        self._check()

    def _check(self) -> None:
        self._look()
        if self.violation is not None:
            raise self.violation

    def _start_supervisor(self, name: str) -> None:
        process = self.processes[name] = Process(self.loop, name)

        def spec(worker: str, events_fd: int, folder: str) -> Any:
            return worker

        supervisor = Supervisor(name, self.slots, spec, self.log, self.clock, memory_mb=100)
        self.supervisors.append(supervisor)
        process.start(supervisor.run())

    async def _lead(self) -> None:
        adversary = Adversary(self)
        await self._say(adversary.sent)
        while self.loop.now_s < HEAL_S:
            await asyncio.sleep(self.draw.choice((0.0, 0.05, 0.3)))
            commands = adversary.step()
            adversary.sent += commands
            if commands and self.draw.random() < 0.9:
                await self._say(commands)
        await asyncio.sleep(0.5)
        await self._say(adversary.last())
        self.ended = True
        while True:
            await self._say([LeaderTick(epoch=adversary.epoch)])
            await asyncio.sleep(1)

    async def _say(self, commands: Sequence[AnyCommand]) -> None:
        """Without an answer it is said again: some of it may come twice, and late."""
        for command in commands:
            self.coverage[f"command {type(command).__name__}"] += 1
        while True:
            with contextlib.suppress(ExternalError):
                await self.log.append(COMMANDS, 0, [NewRecord(encode(command)) for command in commands])
                return
            await asyncio.sleep(0.1)

    def _fault(self) -> None:
        draw = self.draw
        name = draw.choice(("kill", "stop", "stop", "memory", "uncertain", "unreadable", "stop supervisor"))
        self.note("fault", name)
        self.coverage[f"fault {name}"] += 1
        living = [child for child in self.child_of.values() if child.returncode is None]
        if name in ("uncertain", "unreadable"):
            self._trouble(("append",) if name == "uncertain" else ("read", "offsets"))
        elif name == "stop supervisor":
            self._stop(self.processes[f"tm-{draw.randrange(2)}"], draw.uniform(0.5, 4))
        elif living:
            child = draw.choice(living)
            if name == "kill":
                child.end(-signal.SIGKILL)
            elif name == "stop":
                self._stop(child.process, draw.choice((0.5, 3.0, 7.0)))
            else:
                self.heavy.add(child.pid)

    def _stop(self, process: Process, seconds: float) -> None:
        if process.runs:
            process.stop()
            self.later(seconds, process.go_on)

    def _trouble(self, actions: tuple[str, ...]) -> None:
        end_s = self.loop.now_s + self.draw.uniform(0.5, 2.0)
        draw = self.loop.random

        def trouble(action: str, what: str) -> str:
            if self.loop.now_s > end_s or action not in actions or draw.random() > 0.5:
                return ""
            kind = draw.choice(("error", "lost", "late") if what.startswith(COMMANDS) else ("error", "lost"))
            self.coverage[f"{kind} {action} {what}"] += 1
            return kind

        self.wire.trouble = trouble

    def _heal(self) -> None:
        self.wire.trouble = lambda action, what: ""
        self.heavy.clear()
        for process in self.processes.values():
            if process.alive and process.stopped:
                process.go_on()

    def _unsettled(self) -> str:
        """W4: every slot has a living worker without subtasks, and that is what a leader knows; it has also heard of the
        end of every subtask that began, or that its worker is gone."""
        if not self.ended:
            return "the jobs have not ended"
        living = sorted(child.name for child in self.child_of.values() if child.returncode is None)
        if len(living) != 2 * self.slots:
            return f"{living} live, there are {2 * self.slots} slots"
        if self.registered() != living:
            return f"{living} live, a leader knows {self.registered()}"
        listed = {name: [str(s.subtask) for s in self.services[name].statuses()] for name in living}
        if any(listed.values()):
            return f"subtasks are left: {listed}"
        if any(self.known[name] for name in living):
            return f"a leader believes that there are {self.known}"
        silent = [begun for begun in sorted(self._begun - self._ends) if begun[0] not in self.left]
        return f"nobody says what became of {silent}" if silent else ""

    # -- under production's classes -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def installed(self) -> Generator[None]:
        """Processes, what is known of them, and subtasks are simulated."""
        former = {
            name: getattr(supervisor_module, name) for name in ("asyncio", "uuid", "resident_bytes", "activity_of")
        }
        runner_of, resident = worker_module._runner_of, worker_module.resident_bytes
        config = structlog.get_config()
        world = self

        class Asyncio:
            """`asyncio` with simulated processes."""

            def __getattr__(self, name: str) -> Any:
                return getattr(asyncio, name)

            @staticmethod
            async def create_subprocess_exec(*arguments: str, pass_fds: Sequence[int], **options: Any) -> Any:
                owner = current()
                return SimulatedChild(world, owner.name if owner else "", pass_fds[0])

        def activity(pid: int, folder: object) -> tuple[int, int]:
            child = self.child_of[pid]
            return (round(self.loop.now_s * 1_000), 0) if child.process.runs else (-1, 0)

        supervisor_module.asyncio = Asyncio()  # pyright: ignore
        supervisor_module.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=self.new_id()))  # pyright: ignore
        supervisor_module.resident_bytes = lambda pid=None: 200 << 20 if pid in self.heavy else 1 << 20
        supervisor_module.activity_of = activity
        worker_module.resident_bytes = lambda pid=None: 1 << 20
        worker_module._runner_of = lambda deploy, graph: (
            lambda environment: Runner(self, environment.deploy, environment.inbox, environment.status_changed)
        )
        structlog.configure(processors=[self._logged], cache_logger_on_first_use=False)
        try:
            yield
        finally:
            for name, value in former.items():
                setattr(supervisor_module, name, value)
            worker_module._runner_of, worker_module.resident_bytes = runner_of, resident
            structlog.configure(**config)
            for child in self.child_of.values():
                child.end(0)

    def _logged(self, _: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self.note("log", f"{level} {event}")
        raise structlog.DropEvent

"""The world of one history: parts, nodes, a client, faults, and the loop that checks everything after every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.extras import Extras
from tests.simulation.faults import DAMAGES, FAULTS
from tests.simulation.invariants import Invariants
from tests.simulation.kernel import Kernel, Node, Violation
from tests.simulation.leading import EVENTS, Coordinator
from tests.simulation.parts import Folder, Partition, SimulatedBlobs, SimulatedLog, SimulatedMetadata, SinkCluster
from tests.simulation.scenario import Request, Scenario
from tests.simulation.tasks import Task
from tests.simulation.working import Worker

from penstock.errors import ExternalError
from penstock.protocol import jobevents as job
from penstock.protocol import joblog, messages
from penstock.protocol.channels import Deliver, GapError
from penstock.protocol.frames import Channel, Frame
from penstock.protocol.messages import SubtaskId
from penstock.protocol.outputs import OutputId
from penstock.protocol.restarts import ExponentialDelay
from penstock.protocol.subtask import CreditReported

QUIET_MS = 500
AFTERMATH_MS = 5_000
"""How long the world is watched after the job has ended: nothing may come back."""
PROGRESS_MS = 20_000
BLOCKED_HEARTBEATS = 2
CANCEL_PROGRESS_MS = 60_000

_CHECKPOINT = "checkpoint"
"""The id of a request for a checkpoint."""


class World:
    """One history."""

    def __init__(self, scenario: Scenario, *, verbose: bool = False) -> None:
        self.scenario = scenario
        self.kernel = Kernel(scenario.seed, verbose=verbose)
        self.coverage: set[str] = set()
        self.job = self.kernel.new_id()
        self.log = SimulatedLog(self.kernel)
        self.blobs = SimulatedBlobs(self.kernel)
        self.metadata = SimulatedMetadata(self.kernel)
        self.cluster = SinkCluster(self.kernel)
        self.folder = Folder()
        self.invariants = Invariants(self)
        self.extras = Extras(self)
        self.ghost = Node(self.kernel, "ghost")
        self.event_loss = 0.0
        self.lost_event_type: type | None = None
        self.slow_commit_ms = 0
        self.damaged = False
        self.log_damaged = False
        """Whether the log has lost what COMPLETE covers: then the job may fail for that, and must before rows miss."""
        self._found_out = False
        self.trimmed_marker: messages.BarrierMarker | None = None
        self._sent_acks: dict[str, list[messages.Acknowledged]] = {}
        self._traps: list[tuple[str, Callable[[Node], None], str]] = []
        self._injecting = ""
        self._parallelism: dict[str, int] = {}
        self.ended_at: int | None = None
        self._takes_over = False
        self.answers: dict[str, job.RequestDone] = {}
        self._connect()
        self._submit()
        self.coordinators = [Coordinator(self, f"c{n}#0") for n in range(scenario.candidates)]
        self.workers = [Worker(self, f"w{n}#0", scenario.slots, from_start=False) for n in range(scenario.workers)]
        self._restarts = 0
        for at_ms, name in scenario.faults:
            self.kernel.after(at_ms, self._inject, name)
        for number, request in enumerate(scenario.requests):
            self.kernel.after(request.at_ms, self.ask, f"r{number}", request, 0)
        if scenario.asks_checkpoint_ms is not None:
            self.kernel.after(scenario.asks_checkpoint_ms, self._ask_checkpoint, 0)
        self.kernel.after(scenario.heal_ms, self._heal)
        if scenario.endless:
            self.kernel.after(scenario.heal_ms, self.extras.stop_endless, 0)

    def _connect(self) -> None:
        self.log.landed = self._landed
        self.blobs.created = self._created
        self.cluster.committed = self.invariants.transaction
        self.folder.committed = self.invariants.part_visible
        self.folder.lost = self._part_lost
        self.log.retried = self.extras.retried

    def _submit(self) -> None:
        graph = {"parallelism": self.scenario.parallelism}
        submit = joblog.Submit(seq=0, nonce="submit", job=self.job, name="simulated", graph=graph)
        self.blobs.objects[joblog.log_key(self.job, 0)] = joblog.encode_record(submit)
        self.invariants.recorded(submit)

    # -- the loop -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the job has ended and stayed so; raises `Violation`."""
        cancels = self.scenario.endless or any(request.kind == "cancel" for request in self.scenario.requests)
        limit = self.scenario.heal_ms + (CANCEL_PROGRESS_MS if cancels else PROGRESS_MS)
        while self.kernel.step():
            if self._found_out:
                self.coverage.add("end damaged log")
                return
            if self.ended_at is not None and self._is_over(self.kernel.now - self.ended_at):
                break
            if self.kernel.now > limit:
                raise Violation(f"I10: no end after {self.kernel.now} ms: {self._situation()}")
        self._final()

    def _is_over(self, since_ms: int) -> bool:
        if since_ms < QUIET_MS:
            return False
        return since_ms > AFTERMATH_MS or not (self._takes_over or self._running())

    def _running(self) -> list[str]:
        return [str(t.deploy.subtask) for w in self.workers if w.alive for t in w.tasks.values() if not t.gone]

    def _final(self) -> None:
        terminated = self.invariants.terminated
        assert terminated is not None
        published = "not fully published" not in terminated.reason
        self.invariants.final_output(terminated.state, complete=published)
        if terminated.state == "FAILED" and isinstance(self.scenario.restarts, ExponentialDelay):
            raise Violation(f"I10: FAILED although restarts are unbounded: {terminated.reason}")
        if terminated.state == "FINISHED" and self.scenario.endless:
            raise Violation("I14: FINISHED, although its sources have no end")
        if terminated.state == "FAILED" and not self.scenario.troubled:
            raise Violation(f"I10: FAILED without a fault: {terminated.reason}")
        running = self._running()
        if running:
            raise Violation(f"I13: the job is {terminated.state}, {running} still run")
        self.coverage.add(f"end {terminated.state}")

    def _situation(self) -> str:
        masters = [
            f"{c.name}: epoch {c.epoch}, {c.master.phase.name}, pending {[p.checkpoint for p in c.master.book.pending]}"
            for c in self.coordinators
            if c.master is not None
        ]
        tasks = [
            f"{t.deploy.subtask}@{w.name} {t.state} published {t.published} blocked {len(t.ledger.blocked())}"
            for w in self.workers
            for t in w.tasks.values()
        ]
        return f"{masters}; {tasks}"

    # -- facts ----------------------------------------------------------------------------------------------------------

    def _landed(self, topic: str, partition: int, value: Any, offset: int) -> None:
        if isinstance(value, tuple) and isinstance(value[0], Frame):
            self.invariants.frame_landed(topic, partition, value[0], offset)

    def _created(self, key: str, data: bytes) -> None:
        if not key.startswith(joblog.log_prefix(self.job)):
            return
        record = joblog.decode_record(data, key)
        self.kernel.note("job log", record)
        if isinstance(record, joblog.Begin):
            graph = record.graph or self._graph()
            self._parallelism[record.attempt] = graph["parallelism"]
        self.invariants.recorded(record)
        if isinstance(record, joblog.Terminated):
            self.ended_at = self.kernel.now
            self._heal()
            self.kernel.after(QUIET_MS, self._traps.clear)
            self._aftermath()

    def _graph(self) -> dict[str, Any]:
        graphs = [r.graph for r in self.invariants.records if isinstance(r, (joblog.Submit, joblog.Begin)) and r.graph]
        return graphs[-1]

    def _aftermath(self) -> None:
        """Another leader may take over a job that has ended."""
        self._takes_over = self.kernel.random.random() < 0.2
        if self._takes_over:
            self.kernel.after(self.kernel.random.randint(0, 200), lambda: self.kill_coordinator(self.some_leader()))

    def parallelism_of(self, attempt: str) -> int:
        """What BEGIN of the attempt says."""
        return self._parallelism[attempt]

    @property
    def newest_attempt(self) -> str:
        """By the job log."""
        return self.invariants.begin.attempt if self.invariants.begin else ""

    def starts(self, worker: Worker, deploy: messages.Deploy) -> None:
        """A worker starts a subtask."""
        self.invariants.starts(deploy.attempt, deploy.subtask)

    def delivered(self, task: Task, command: Deliver) -> None:
        """Rows reached an operator."""
        counts = task.delivered
        counts[command.channel] = counts.get(command.channel, 0) + len(command.ref[0])

    def froze(self, task: Task, checkpoint: int) -> None:
        """A snapshot was captured."""
        self.invariants.froze(task, checkpoint, task.delivered)

    def acked(self, task: Task, message: messages.Acknowledged | messages.Declined) -> None:
        """A subtask answers a checkpoint."""
        if isinstance(message, messages.Acknowledged):
            self._sent_acks.setdefault(message.nonce, []).append(message)
            self.invariants.acknowledged(task, message)

    def _part_lost(self, name: str) -> None:
        raise Violation(f"I12: part {name} is to be made visible and is nowhere")

    def unpublished_frames(self) -> list[tuple[Partition, list[int]]]:
        """Partitions of the sink's exchange, and the offsets there of what is COMPLETE and not published."""
        manifest = self.invariants.manifest
        found: list[tuple[Partition, list[int]]] = []
        for index, intervals in manifest.intervals.get("w", {}).items() if manifest else ():
            topic = f"w.g{manifest.generation}"
            mark, partition = self.cluster.marks.get(f"{topic}/{index}"), self.log.partition(topic, index)
            position = mark.position if mark is not None else 0
            offsets = [
                offset
                for offset, (frame, _) in zip(partition.offsets, partition.values, strict=True)
                if any(i.attempt == frame.attempt and max(i.start, position) <= offset < i.end for i in intervals)
            ]
            if offsets:
                found.append((partition, offsets))
        return found

    def publisher_fails(self, task: Task, reason: str) -> None:
        """Publishing would lose or double rows; with an undamaged log that cannot be."""
        if not self.log_damaged:
            raise Violation(f"I1: {task.deploy.subtask}: {reason}")
        self.kernel.note(str(task.deploy.subtask), reason)
        self._found_out = True

    def publisher_exited(self, task: Task) -> None:
        """Only a publisher of an old attempt may leave."""
        if task.deploy.attempt == self.newest_attempt and self.invariants.terminated is None:
            raise Violation(f"I10: the publisher of the newest attempt exited: {task.deploy.subtask}")

    def check_failure(self, task: Task, error: BaseException) -> None:
        """A subtask may fail because of a fault, never because of the protocol."""
        self.kernel.note(str(task.deploy.subtask), f"fails: {error!r}")
        if isinstance(error, GapError):
            if not self.damaged:
                raise Violation(f"I6: {task.deploy.subtask}: {error}") from error
        elif not isinstance(error, ExternalError):
            raise Violation(f"{task.deploy.subtask}: {type(error).__name__}: {error}") from error
        if not self.scenario.faults:
            raise Violation(f"{task.deploy.subtask} fails without a fault: {error}") from error

    def report_credit(self, attempt: str, producer: SubtaskId, output: OutputId, processed: int) -> None:
        """A credit report reaches the producer after a while."""
        for worker in self.workers:
            task = worker.tasks.get((attempt, producer))
            if task is not None:
                worker.later(self.kernel.short(2, 8), task.put, CreditReported(output, processed))

    def slow_task_ms(self, subtask: SubtaskId) -> int:
        """How much longer a subtask takes for a step."""
        slow = str(subtask) == self.scenario.slow_subtask and self.kernel.now < self.scenario.heal_ms
        return 40 if slow else 0

    def check_credit(self, task: Task) -> None:
        """I10: a producer is never blocked for long by a consumer that has processed all of its rows."""
        output = next((o for o in task.ledger.blocked() if o.exchange != "w"), None)
        if output is None or task.gone or task.has_events:  # credit may wait in the inbox of a slow one
            task.blocked_since = (0, -1)
            return
        rows = task.rows_cut.get(output, 0)
        consumer = self.live_task(task.deploy.attempt, SubtaskId(output.exchange, output.partition))
        idle = consumer is not None and consumer.delivered.get(Channel(0, task.index), 0) == rows
        count = task.blocked_since[0] + 1 if idle and task.blocked_since[1] == rows else 0
        task.blocked_since = (count, rows)
        if count >= BLOCKED_HEARTBEATS and not self.log.slow_ms:
            raise Violation(f"I10: {task.deploy.subtask} has no credit for {output}, where nothing of it waits")

    def live_task(self, attempt: str, subtask: SubtaskId) -> Task | None:
        for worker in self.workers:
            task = worker.tasks.get((attempt, subtask))
            if task is not None and worker.alive and not worker.stopped and not task.gone:
                return task
        return None

    def fail_some_task(self) -> None:
        """The disk of a worker is full, its code raises: one subtask fails."""
        running = [t for w in self.workers if w.alive and not w.stopped for t in w.tasks.values() if not t.gone]
        if running:
            self.kernel.random.choice(running).fail(ExternalError("injected"))

    def announced(self, command: messages.AnyCommand) -> None:
        """A leader uses the number of a forgotten checkpoint again: its acks come once more."""
        forgotten = self.trimmed_marker
        if forgotten is None or not isinstance(command, messages.BarrierMarker):
            return
        if command.checkpoint == forgotten.checkpoint and command.nonce != forgotten.nonce:
            for ack in self._sent_acks.get(forgotten.nonce, []):
                self.log.append(self.ghost, EVENTS, 0, ack)(lambda value=None, error=None: None)

    def loses_event(self, event: messages.AnyEvent) -> bool:
        """Whether a fault swallows this event."""
        if not self.event_loss or (self.lost_event_type is not None and not isinstance(event, self.lost_event_type)):
            return False
        return self.kernel.random.random() < self.event_loss

    # -- nodes ----------------------------------------------------------------------------------------------------------

    def some_worker(self) -> Worker | None:
        """A live one."""
        alive = [worker for worker in self.workers if worker.alive]
        return self.kernel.random.choice(alive) if alive else None

    def some_leader(self) -> Coordinator | None:
        """Who leads, or thinks so."""
        leading = [c for c in self.coordinators if c.alive and c.epoch]
        return self.kernel.random.choice(leading) if leading else None

    def some_node(self) -> Node:
        """Any live process."""
        return self.kernel.random.choice([n for n in (*self.coordinators, *self.workers) if n.alive] or [self.ghost])

    def kill_worker(self, worker: Any, *, from_start: bool) -> None:
        """SIGKILL; another instance starts later."""
        if worker is None or not worker.alive:
            return
        self.kernel.note(worker.name, "is killed")
        worker.kill()
        self._restarts += 1
        name = f"{worker.name.split('#')[0]}#{self._restarts}"
        delay = self.kernel.random.randint(50, 700)

        def restart() -> None:
            self.workers.append(Worker(self, name, self.scenario.slots, from_start=from_start))

        self.kernel.after(delay, restart)

    def kill_coordinator(self, coordinator: Any) -> None:
        """SIGKILL; another instance starts later."""
        if coordinator is None or not coordinator.alive:
            return
        self.kernel.note(coordinator.name, "is killed")
        coordinator.kill()
        self.restart_coordinator()

    def restart_coordinator(self) -> None:
        """Start another instance after a while."""
        self._restarts += 1
        name = f"c{self._restarts}#{self._restarts}"
        self.kernel.after(
            self.kernel.random.randint(50, 700), lambda: self.coordinators.append(Coordinator(self, name))
        )

    def stop_node(self, node: Any, duration_ms: int) -> None:
        """SIGSTOP, later SIGCONT."""
        if node is None or not node.alive or node.stopped:
            return
        self.kernel.note(node.name, f"is stopped for {duration_ms} ms")
        node.stop()

        def go_on() -> None:
            if node.alive:
                self.kernel.note(node.name, "goes on")
                node.resume()

        self.kernel.after(duration_ms, go_on)

    # -- faults ---------------------------------------------------------------------------------------------------------

    def _inject(self, name: str) -> None:
        if self.ended_at is not None:
            return
        self.kernel.note("fault", name)
        self._injecting = name
        if " at " not in name:
            self.coverage.add(f"fault {name}")
        (FAULTS | DAMAGES)[name](self)

    def trap(self, step: str, act: Callable[[Node], None]) -> None:
        """Do something to the process that reaches this step next."""
        self._traps.append((step, act, self._injecting))

    def step(self, node: Node, name: str) -> None:
        """A process reaches a named step."""
        for trap in self._traps:
            if trap[0] == name and node.alive and not node.stopped:
                self._traps.remove(trap)
                self.coverage.add(f"fault {trap[2]}")
                self.kernel.note("fault", trap[2])
                trap[1](node)
                return

    def _heal(self) -> None:
        self.event_loss, self.lost_event_type, self.slow_commit_ms = 0.0, None, 0
        self.metadata.down = False
        self.blobs.down, self.blobs.slow_ms, self.blobs.trouble = False, 0, lambda action, key: ""
        self.log.slow_ms, self.log.damage = 0, lambda topic, value: ""
        self.log.lose_confirmation = lambda node, topic: False
        self.cluster.lose_answer, self.cluster.time_out = lambda: False, lambda: False
        self.cluster.delay_commit = lambda: 0
        for worker in self.workers:
            worker.slow_ms = 0

    # -- the client -----------------------------------------------------------------------------------------------------

    def ask(self, name: str, request: Request, tries: int) -> None:
        """Ask whoever leads until there is an answer, as a dispatcher that repeats a request with its id."""
        if name in self.answers or self.ended_at is not None or tries > 60:
            return
        changed = None
        if request.kind == "rescale":
            topology = self.scenario.topology(request.parallelism)
            changed = job.ChangedGraph(topology, {"parallelism": request.parallelism})
        requested = job.Requested(
            name,
            request.kind,
            drain=request.drain,
            changed=changed,
            reason="asked",
        )
        for coordinator in self.coordinators:
            if coordinator.alive and coordinator.epoch:
                coordinator.request(requested)
        self.kernel.after(400, self.ask, name, request, tries + 1)

    def _ask_checkpoint(self, tries: int) -> None:
        if _CHECKPOINT in self.answers or self.ended_at is not None or tries > 60:
            return
        for coordinator in self.coordinators:
            if coordinator.alive and coordinator.epoch:
                coordinator.request(job.CheckpointAsked(_CHECKPOINT))
        self.kernel.after(400, self._ask_checkpoint, tries + 1)

    def answered(self, command: job.RequestDone) -> None:
        """A request is done."""
        self.kernel.note("client", command)
        if command.request == _CHECKPOINT and command.outcome == "completed":
            completes = [r for r in self.invariants.records if isinstance(r, joblog.Complete)]
            if command.savepoint is None or command.savepoint.manifest not in {r.manifest for r in completes}:
                raise Violation("told that a checkpoint is complete, but no COMPLETE says so")
        if command.outcome == "rescaled":
            asked = self.scenario.requests[int(command.request[1:])].parallelism
            # not only the newest BEGIN: a leader that was stopped after its BEGIN answers late, and is right
            begins = [r.graph for r in self.invariants.records if isinstance(r, joblog.Begin) and r.graph]
            if not any(graph["parallelism"] == asked for graph in begins):
                raise Violation(f"I11: told that the job is rescaled to {asked}, but no BEGIN says so")
        self.answers[command.request] = command

    def job_ended(self, coordinator: Coordinator, command: job.JobEnded) -> None:
        """The leader says that the job has ended."""
        self.coverage.add(f"job ended {command.state}")
        if command.state == "SUSPENDED" or (command.state == "FAILED" and self.scenario.resumable):
            self.kernel.after(self.kernel.random.randint(50, 400), self._resume)

    def _resume(self) -> None:
        for coordinator in self.coordinators:
            if coordinator.alive and coordinator.master and coordinator.master.phase.name == "SUSPENDED":
                coordinator.reopen(self.kernel.random.choice((0, 0, 1, 2, 3)))

    def led(self, coordinator: Coordinator) -> None:
        """A candidate leads."""
        self.coverage.add("leads")

"""The registry of faults: each has a name, is injected into a world, and ends by itself or when the world heals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.leading import COMMANDS, LEASE_TTL_MS

from penstock.protocol.messages import BarrierMarker, CancelAttempt, EpochStarted, Heartbeat

if TYPE_CHECKING:
    from tests.simulation.world import World

Fault = Callable[["World"], None]
FAULTS: dict[str, Fault] = {}
DAMAGES: dict[str, Fault] = {}
"""What nothing survives: the log loses what it had confirmed and COMPLETE covers. It must be found out."""

LEADER_STEPS = (
    "create epoch", "append epoch", "take over",
    "write Leader", "write Begin", "write AttemptFailed", "write Complete", "write Savepoint", "write Terminated",
    "recorded Leader", "recorded Begin", "recorded AttemptFailed", "recorded Complete", "recorded Savepoint",
    "recorded Terminated",
    "announce Deploy", "announce BarrierMarker", "announce CheckpointCompleted", "announce FinishAttempt",
    "announce CancelAttempt", "store manifest",
)  # fmt: skip
PUBLISHER_STEPS = ("covered", "init producer", "producer ready", "commit transaction")


def _fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


def _for_a_while(world: World, low: int, high: int, end: Callable[[], None]) -> None:
    world.kernel.after(world.kernel.random.randint(low, high), end)


@_fault
def kill_worker(world: World) -> None:
    world.kill_worker(world.some_worker(), from_start=False)


@_fault
def kill_worker_that_rereads_commands(world: World) -> None:
    world.kill_worker(world.some_worker(), from_start=True)


@_fault
def stop_worker(world: World) -> None:
    world.stop_node(world.some_worker(), world.kernel.random.randint(100, 1800))


@_fault
def kill_leader(world: World) -> None:
    world.kill_coordinator(world.some_leader())


@_fault
def stop_leader_past_its_lease(world: World) -> None:
    world.stop_node(world.some_leader(), LEASE_TTL_MS + world.kernel.random.randint(0, 1500))


def _leader_step(step: str, *, kill: bool) -> Fault:
    def inject(world: World) -> None:
        def act(node: object) -> None:
            if kill:
                world.kill_coordinator(node)
            else:
                world.stop_node(node, LEASE_TTL_MS + world.kernel.random.randint(0, 1500))

        world.trap(step, act)

    return inject


for _step in LEADER_STEPS:
    FAULTS[f"kill_leader at {_step}"] = _leader_step(_step, kill=True)
    FAULTS[f"stop_leader at {_step}"] = _leader_step(_step, kill=False)


def _publisher_step(step: str, *, kill: bool) -> Fault:
    def inject(world: World) -> None:
        def act(node: object) -> None:
            if kill:
                world.kill_worker(node, from_start=False)
            else:
                world.stop_node(node, world.kernel.random.randint(300, 2000))

        world.trap(step, act)

    return inject


for _step in PUBLISHER_STEPS:
    FAULTS[f"kill_publisher at {_step}"] = _publisher_step(_step, kill=True)
    FAULTS[f"stop_publisher at {_step}"] = _publisher_step(_step, kill=False)


@_fault
def metadata_wiped(world: World) -> None:
    world.metadata.wipe()


@_fault
def metadata_old_value(world: World) -> None:
    world.metadata.restore_old(LEASE_TTL_MS)


@_fault
def metadata_down(world: World) -> None:
    world.metadata.down = True
    _for_a_while(world, 100, 1500, lambda: setattr(world.metadata, "down", False))


@_fault
def store_down(world: World) -> None:
    world.blobs.down = True
    _for_a_while(world, 50, 800, lambda: setattr(world.blobs, "down", False))


@_fault
def store_slow(world: World) -> None:
    world.blobs.slow_ms = world.kernel.random.choice((60, 300, 900))
    _for_a_while(world, 200, 900, lambda: setattr(world.blobs, "slow_ms", 0))


def _store_trouble(kind: str, actions: tuple[str, ...], only: str = "") -> Fault:
    def inject(world: World) -> None:
        draw = world.kernel.random

        def trouble(action: str, key: str) -> str:
            return kind if action in actions and only in key and draw.random() < 0.6 else ""

        world.blobs.trouble = trouble
        _for_a_while(world, 200, 900, lambda: setattr(world.blobs, "trouble", lambda action, key: ""))

    return inject


FAULTS["store_reply_lost"] = _store_trouble("lost", ("create", "put"))
FAULTS["store_late_write"] = _store_trouble("late", ("create", "put"))
FAULTS["store_conflict_without_write"] = _store_trouble("conflict", ("create",))
FAULTS["upload_fails"] = _store_trouble("error", ("put",), ".state")
FAULTS["upload_answer_unknown"] = _store_trouble("late", ("put",), ".state")
FAULTS["store_read_fails"] = _store_trouble("error", ("get",))


@_fault
def log_slow(world: World) -> None:
    world.log.slow_ms = world.kernel.random.choice((20, 100, 300))
    _for_a_while(world, 200, 800, lambda: setattr(world.log, "slow_ms", 0))


@_fault
def events_lost(world: World) -> None:
    world.event_loss = world.kernel.random.choice((0.3, 0.7, 1.0))
    _for_a_while(world, 100, 700, lambda: setattr(world, "event_loss", 0.0))


@_fault
def heartbeats_lost(world: World) -> None:
    world.lost_event_type = Heartbeat
    world.event_loss = 1.0

    def heal() -> None:
        world.event_loss, world.lost_event_type = 0.0, None

    _for_a_while(world, 300, 1500, heal)


@_fault
def confirmation_lost(world: World) -> None:
    left = [1]

    def lose(node: object, topic: str) -> bool:
        if left[0] and ".g" in topic:
            left[0] = 0
            return True
        return False

    world.log.lose_confirmation = lose


@_fault
def clock_jumps(world: World) -> None:
    world.some_node().skew_ms += world.kernel.random.randint(500, 8000)


@_fault
def slow_consumer(world: World) -> None:
    worker = world.some_worker()
    if worker is not None:
        worker.slow_ms = world.kernel.random.choice((20, 60, 150))
        _for_a_while(world, 300, 1500, lambda: setattr(worker, "slow_ms", 0))


@_fault
def slow_publishing(world: World) -> None:
    world.slow_commit_ms = world.kernel.random.choice((50, 200))
    world.cluster.delay_commit = lambda: 0
    _for_a_while(world, 300, 1500, lambda: setattr(world, "slow_commit_ms", 0))


def _damage(kind: str) -> Fault:
    def inject(world: World) -> None:
        left = [world.kernel.random.randint(1, 2)]

        def damage(topic: str, value: object) -> str:
            if left[0] and world.kernel.random.random() < 0.3:
                left[0] -= 1
                world.damaged = True
                return kind
            return ""

        world.log.damage = damage

    return inject


def _loses_covered_frames(kind: str) -> Fault:
    """A publisher hears of a COMPLETE, and before it publishes a frame, the barrier, or all from a frame on is gone."""

    def inject(world: World) -> None:
        def act(node: object) -> None:
            found = world.unpublished_frames()
            if not found:
                world.trap("covered", act)
                return
            partition, offsets = world.kernel.random.choice(found)
            offset = offsets[-1] if kind == "barrier" else world.kernel.random.choice(offsets)
            world.kernel.note("log", f"loses {kind} at {offset}")
            world.log_damaged = world.damaged = True
            if kind == "tail":
                partition.truncate(offset)
            else:
                partition.lose(offset)
            if world.kernel.random.random() < 0.5:
                world.fail_some_task()

        world.trap("covered", act)

    return inject


for _kind in ("frame", "barrier", "tail"):
    DAMAGES[f"publisher_log_loses {_kind} at covered"] = _loses_covered_frames(_kind)

FAULTS["frame_duplicated"] = _damage("duplicate")
FAULTS["frame_missing"] = _damage("gap")


@_fault
def commit_answer_lost(world: World) -> None:
    world.cluster.lose_answer = lambda: world.kernel.random.random() < 0.6
    _for_a_while(world, 200, 1200, lambda: setattr(world.cluster, "lose_answer", lambda: False))


@_fault
def commit_delayed(world: World) -> None:
    draw = world.kernel.random
    world.cluster.delay_commit = lambda: draw.choice((0, draw.randint(30, 600)))
    _for_a_while(world, 200, 1200, lambda: setattr(world.cluster, "delay_commit", lambda: 0))


@_fault
def transaction_timed_out(world: World) -> None:
    world.cluster.time_out = lambda: world.kernel.random.random() < 0.5
    _for_a_while(world, 200, 900, lambda: setattr(world.cluster, "time_out", lambda: False))


@_fault
def files_consumed(world: World) -> None:
    world.folder.consume()


@_fault
def command_of_a_deposed_leader(world: World) -> None:
    epochs = [c.epoch for c in world.log.partition(COMMANDS, 0).values if isinstance(c, EpochStarted)]
    if len(epochs) > 1:
        old = CancelAttempt(epoch=epochs[0], job=world.job, attempt=world.newest_attempt, reason="old")
        world.log.append(world.ghost, COMMANDS, 0, old)(lambda value=None, error=None: None)


@_fault
def commands_trimmed(world: World) -> None:
    """Retention removes a marker that no COMPLETE followed, the leader is killed, and the acks come late, or twice."""

    def act(node: object) -> None:
        def trim() -> None:
            partition = world.log.partition(COMMANDS, 0)
            markers = [c for c in partition.values if isinstance(c, BarrierMarker)]  # none if the log is slow
            if markers and not any(marker.pause for marker in markers):
                partition.trimmed = partition.end
                world.trimmed_marker = markers[-1]
                world.kill_coordinator(node)
                if world.kernel.random.random() < 0.7:
                    world.stop_node(world.some_worker(), world.kernel.random.randint(1400, 2600))

        world.blobs.slow_ms = 3000
        _for_a_while(world, 100, 300, lambda: setattr(world.blobs, "slow_ms", 0))
        world.kernel.after(world.kernel.random.randint(10, 25), trim)

    world.trap("announce BarrierMarker", act)


@_fault
def worker_hears_nothing(world: World) -> None:
    """A partition in one direction: it still sends, but reads no commands, while the attempt fails elsewhere."""
    worker = world.some_worker()
    if worker is not None:
        worker.deaf_until_ms = world.kernel.now + world.kernel.random.randint(300, 1500)
        if world.kernel.random.random() < 0.7:
            world.kernel.after(world.kernel.random.randint(5, 100), world.fail_some_task)


@_fault
def task_fails(world: World) -> None:
    world.fail_some_task()


def _fails_at_manifest(world: World) -> None:
    """The attempt fails while its manifest is being stored, and that takes long."""

    def act(node: object) -> None:
        world.blobs.trouble = lambda action, key: "error" if action == "put" and key.endswith("manifest.json") else ""
        _for_a_while(world, 150, 600, lambda: setattr(world.blobs, "trouble", lambda action, key: ""))
        world.fail_some_task()

    world.trap("store manifest", act)


FAULTS["attempt_fails at store manifest"] = _fails_at_manifest

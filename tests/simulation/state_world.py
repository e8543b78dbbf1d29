"""Histories of incremental checkpoints with the real state backend: random writes, barriers, aborts, failures, rescales.

Production freezes, writes, restores and decides what may be named and deleted; a dictionary says what must be found.
The store is one in memory and there is no log: how barriers and messages travel is `tests.simulation.world`'s business.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.simulation.kernel import Violation
from tests.simulation.mutating import Mutant, Patch, begins, called, condition, returned, statement

from penstock.adapters.memory import MemoryBlobs
from penstock.expressions import Accumulator
from penstock.functions.process_functions import (
    AggregatingState,
    KeyedProcess,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from penstock.protocol.incremental import LiveObjects, SnapshotChains, foreign_objects, named_objects
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.manifests import (
    Manifest,
    blob_prefix,
    checkpoint_of,
    checkpoints_prefix,
    decode_manifest,
    encode_manifest,
)
from penstock.protocol.messages import SubtaskSnapshot
from penstock.protocol.retention import retired_objects
from penstock.state import deltas
from penstock.state.declarations import declared_states, describe_states
from penstock.state.hashing import key_group_of
from penstock.state.keyed_state import KeyCursor
from penstock.state.rocks.backend import IncrementalRocks
from penstock.state.rocks.changed import ChangedKeys, ClosedEpochs
from penstock.task import snapshots
from penstock.task.keyed_states import keyed_backend
from penstock.task.operator import OperatorContext, OperatorSnapshot
from penstock.task.snapshot_objects import RestoreFolder
from penstock.task.snapshots import FrozenSubtask, chains_of, restore_operator, upload
from penstock.types import INT64, Field, Schema

KEYS = Schema((Field("key", INT64),))
GROUPS = 16
COUNT = 40
TTL_US = 25
NAMES = "abc"
JOB = "ab" * 16


class Collected(Accumulator[list[int], list[int]]):
    """All values; the accumulator is changed in place."""

    accumulator_type = list[int]

    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], /, *values: Any, **unused: Any) -> list[int]:
        accumulator.extend(values)
        return accumulator

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return left + right

    def result(self, accumulator: list[int]) -> list[int]:
        return accumulator


class Every(KeyedProcess[int, int]):
    """Every kind of state."""

    value = ValueState(int)
    items = ListState(int)
    entries = MapState(str, int)
    total = ReducingState(lambda old, new: old + new, int)
    collected = AggregatingState(Collected())
    brief = ValueState(int, ttl=f"{TTL_US}us")
    brief_items = ListState(int, ttl=f"{TTL_US}us")


@dataclass
class Model:
    """What a key has."""

    value: int | None = None
    items: list[int] = field(default_factory=list[int])
    entries: dict[str, int] = field(default_factory=dict[str, int])
    total: int | None = None
    collected: list[int] | None = None
    brief: tuple[int, int] | None = None
    brief_items: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    timers: set[int] = field(default_factory=set[int])

    def seen(self, now: int) -> tuple[Any, ...]:
        """What can be read at that time."""
        brief = self.brief[1] if self.brief is not None and self.brief[0] > now else None
        listed = [value for until, value in self.brief_items if until > now]
        return self.value, self.items, self.entries, self.total, self.collected, brief, listed


class Subtask:
    """The operator of one subtask, and what it may name again."""

    def __init__(self, world: World, index: int, incremental: bool, local: Path | None) -> None:
        self.world = world
        self.index = index
        self.key_groups = key_group_range(index, world.parallelism, GROUPS)
        self.chains = SnapshotChains()
        self.frozen: dict[int, FrozenSubtask] = {}
        self.cursor = KeyCursor()
        context = OperatorContext(
            "op", index, world.parallelism, GROUPS, self.key_groups, lambda: world.now, local_state=local,
            incremental=incremental,
        )  # fmt: skip
        self.backend = keyed_backend("op", KEYS, self.cursor, context)
        self.states: dict[str, Any] = {
            name: self.backend.bind(declaration, describe_states(Every)[name])
            for name, declaration in declared_states(Every).items()
        }

    def seen(self, key: int) -> tuple[Any, ...]:
        """All that a key has."""
        self.cursor.key = key
        of = self.states
        return (
            of["value"].get(), of["items"].get(), dict(of["entries"].items()), of["total"].get(), of["collected"].get(),
            of["brief"].get(), of["brief_items"].get(),
        )  # fmt: skip

    def change(self, rng: random.Random, key: int, model: Model) -> None:
        """One thing, to the state and to the model."""
        self.cursor.key = key
        number, name, of, until = rng.randrange(100), rng.choice(NAMES), self.states, self.world.now + TTL_US
        match rng.randrange(16):
            case 0 | 1:
                of["value"].set(number)
                model.value = number
            case 2:
                of["value"].clear()
                model.value = None
            case 3 | 4:
                of["items"].add(number)
                model.items.append(number)
            case 5:
                some = [number] * rng.randrange(3)
                of["items"].update(some)
                model.items = list(some)
            case 6:
                of["entries"].set(name, number)
                model.entries[name] = number
            case 7:
                of["entries"].remove(name)
                model.entries.pop(name, None)
            case 8:
                of["total"].add(number)
                model.total = (model.total or 0) + number
            case 9:
                of["total"].clear()
                model.total = None
            case 10:
                of["brief"].set(number)
                model.brief = (until, number)
            case 11:
                of["brief_items"].add(number)
                model.brief_items.append((until, number))
            case 12:
                of["collected"].add(number, number + 1)
                model.collected = [*(model.collected or []), number, number + 1]
            case 13:
                of["collected"].clear()
                model.collected = None
            case 14:
                self.backend.event_timers.set(key, number)
                model.timers.add(number)
            case _:
                self.backend.event_timers.delete(key, number)
                model.timers.discard(number)


@dataclass
class Pending:
    """A checkpoint under way."""

    number: int
    nonce: str
    canonical: bool
    model: dict[int, Model]
    acks: dict[int, SubtaskSnapshot] = field(default_factory=dict[int, SubtaskSnapshot])


class World:
    """A job of one operator: its subtasks, its leader and its store."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.now = 1_000
        self.blobs = MemoryBlobs()
        self.parallelism = 1
        self.numbers = count(1)
        self.subtasks: list[Subtask] = []
        self.model: dict[int, Model] = {}
        self.attempt = ""
        self.pending: list[Pending] = []
        self.untold: list[int] = []
        self.complete: tuple[Manifest, dict[int, Model]] | None = None
        self.saved: list[tuple[Manifest, dict[int, Model]]] = []
        self.live = LiveObjects(None)
        self.happened = Counter[str]()

    # -- the subtasks ---------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """A new attempt, from the newest COMPLETE or a savepoint, at any parallelism and on any backend."""
        self.close()
        self.parallelism = self.rng.randint(1, 3)
        self.attempt = f"{self.rng.getrandbits(128):032x}"
        self.pending.clear()
        self.untold.clear()
        start = self.rng.choice(self.saved) if self.saved and self.rng.random() < 0.1 else self.complete
        incremental, on_disk = self.rng.random() < 0.85, self.rng.random() < 0.9
        local = self.folder if on_disk else None
        self.subtasks = [Subtask(self, index, incremental, local) for index in range(self.parallelism)]
        self.model = copy.deepcopy(start[1]) if start is not None else {}
        if start is not None:
            self.happened["incremental restores"] += any(
                handles.deltas for s in start[0].subtasks["v"].values() for handles in s.operators.values()
            )
        for subtask in self.subtasks:
            await self._restore(subtask, start[0] if start is not None else None)
        self.check()

    async def _restore(self, subtask: Subtask, manifest: Manifest | None) -> None:
        folder = RestoreFolder(self.folder / "restored") if self.rng.random() < 0.5 else None
        restored = None
        if manifest is not None:
            restored = await restore_operator(
                manifest, "op", subtask.key_groups, subtask.index, self.parallelism, self.blobs, folder
            )
        subtask.backend.restore(restored.keyed if restored is not None else ())
        if folder is not None:
            folder.close()

    def check(self) -> None:
        """The state is what the model says, timers included."""
        timers = Counter[tuple[int, int]]()
        for subtask in self.subtasks:
            timers.update(timer for timer in _timers_of(subtask.backend))
        for key in range(COUNT):
            model = self.model.get(key, Model())
            found = self._owner(key).seen(key)
            if found != model.seen(self.now):
                raise Violation(f"key {key} has {found}, not {model.seen(self.now)}")
        wanted = Counter((key, time) for key, model in self.model.items() for time in model.timers)
        if timers != wanted:
            raise Violation(f"timers: {timers - wanted} too many, {wanted - timers} missing")

    def _owner(self, key: int) -> Subtask:
        group = key_group_of((key,), [INT64], GROUPS)
        return next(subtask for subtask in self.subtasks if group in subtask.key_groups)

    def batch(self) -> None:
        """Some rows."""
        self.now += self.rng.randrange(6)
        for _ in range(self.rng.randrange(8)):
            key = self.rng.randrange(COUNT)
            self._owner(key).change(self.rng, key, self.model.setdefault(key, Model()))
        for subtask in self.subtasks:
            subtask.backend.maintain(self.rng.choice((0, 4, 100)))

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """All freeze."""
        pending = Pending(
            next(self.numbers), f"{self.rng.getrandbits(64):016x}", self.rng.random() < 0.1, copy.deepcopy(self.model)
        )
        for subtask in self.subtasks:
            subtask.frozen[pending.number] = FrozenSubtask({"op": OperatorSnapshot(subtask.backend.freeze())}, 0, 0)
        self.pending.append(pending)

    async def upload(self, pending: Pending, subtask: Subtask) -> None:
        """One subtask writes."""
        frozen = subtask.frozen.pop(pending.number, None)
        if frozen is None:
            return
        base = None if pending.canonical else subtask.chains.base
        prefix = f"{self._prefix(pending)}v-{subtask.index}-"
        snapshot = await upload(frozen, prefix, self.blobs, "fs", lambda: 0, base)
        subtask.chains.snapshot_stored(pending.number, chains_of(frozen, snapshot))
        pending.acks[subtask.index] = snapshot

    def _prefix(self, pending: Pending) -> str:
        return blob_prefix(JOB, self.attempt, pending.number, pending.nonce)

    async def finish(self, pending: Pending) -> None:
        """All upload; the checkpoint becomes COMPLETE, unless it names what may be gone."""
        for subtask in self.subtasks:
            await self.upload(pending, subtask)
        manifest = Manifest(
            job=JOB, checkpoint=pending.number, attempt=self.attempt, parallelism=self.parallelism,
            max_parallelism=GROUPS, subtasks={"v": dict(pending.acks)}, operators={"op": "{}"},
        )  # fmt: skip
        manifest = decode_manifest(encode_manifest(manifest), "m")
        foreign = foreign_objects(manifest, self._prefix(pending))
        self.pending = [other for other in self.pending if other.number > pending.number]
        if foreign if pending.canonical else self.live.missing(foreign):
            if pending.canonical:
                raise Violation(f"savepoint {pending.number} names {foreign[0]}")
            self.happened["aborted because something may be gone"] += 1
            return
        self.live.completed(manifest)
        self.happened["complete"] += 1
        self.happened["deltas"] += bool(foreign)
        self.complete = (manifest, pending.model)
        if pending.canonical:
            self.saved.append(self.complete)
        self.untold.append(pending.number)
        await self._retire(pending.number)

    async def _retire(self, complete: int) -> None:
        saved = [manifest for manifest, _ in self.saved]
        keys = list(await self.blobs.list(checkpoints_prefix(JOB)))
        kept = {manifest.checkpoint for manifest in saved}
        for key in retired_objects(keys, complete, kept, self.live.keys):
            await self.blobs.delete(key)
        left = set(await self.blobs.list(checkpoints_prefix(JOB)))
        assert self.complete is not None
        needed = named_objects(self.complete[0]).union(*map(named_objects, saved))
        if needed - left:
            raise Violation(f"{min(needed - left)} is needed and deleted")
        idle = left - needed - self.live.keys
        if any((checkpoint_of(key) or 0) < complete and checkpoint_of(key) not in kept for key in idle):
            raise Violation("what nobody needs is not deleted")

    def tell(self) -> None:
        """The subtasks hear of a COMPLETE."""
        number = self.untold.pop(0)
        for subtask in self.subtasks:
            subtask.chains.completed(number)

    # -- all of it ------------------------------------------------------------------------------------------------------

    async def run(self, steps: int = 120) -> None:
        """Whatever may happen; raises `Violation`."""
        try:
            await self.begin()
            for _ in range(steps):
                await self._step()
            await self.begin()
        finally:
            self.close()

    async def _step(self) -> None:
        draw = self.rng.random()
        if draw < 0.45:
            self.batch()
        elif draw < 0.6 and len(self.pending) < 3:
            self.barrier()
        elif draw < 0.7 and self.pending:
            await self.upload(self.rng.choice(self.pending), self.rng.choice(self.subtasks))
        elif draw < 0.82 and self.pending:
            await self.finish(self.rng.choice(self.pending))
        elif draw < 0.86 and self.pending:
            self.pending.remove(self.rng.choice(self.pending))  # the leader gave it up; the subtasks know nothing of it
        elif draw < 0.95 and self.untold:
            self.tell()
        elif draw > 0.985:
            await self.begin()
        elif draw > 0.975 and self.complete is not None:
            self.live = LiveObjects(self.complete[0])  # another leader

    def close(self) -> None:
        """The subtasks end."""
        for subtask in self.subtasks:
            subtask.backend.close()
        self.subtasks = []


def _timers_of(backend: Any) -> list[tuple[int, int]]:
    """Those that a copy of the backend's state would fire."""
    found: list[tuple[int, int]] = []
    for _, data in backend.freeze().segments():
        header, rows = deltas.decode_segment(data, "op")
        index = header["names"].index(deltas.EVENT_TIMERS)
        found += rows.filter(rows["__state"] == index).select("key", "__time_us").rows()
    return found


def run(seed: int, folder: Path) -> Counter[str]:
    """A history; what happened in it. Raises `Violation`."""
    world = World(seed, folder)
    asyncio.run(world.run())
    return world.happened


MUTANTS = tuple(
    Mutant(number, name, patches)
    for number, (name, patches) in enumerate(
        {
            "delta_based_on_what_is_not_complete": (
                Patch(SnapshotChains, "snapshot_stored", statement("_stored", becomes="self._base = dict(chains)")),
                Patch(LiveObjects, "missing", begins("return []")),
            ),
            "delta_since_the_newest_snapshot": (
                Patch(ClosedEpochs, "since", condition("number", ">", "epoch", becomes="number == self.number")),
            ),
            "named_object_deleted": (
                Patch(LiveObjects, "completed", statement("_named", becomes="self._named = []")),
                Patch(LiveObjects, "missing", begins("return []")),
            ),
            "deltas_are_not_counted_as_named": (
                Patch(LiveObjects, "completed", statement("_named", becomes=(
                    "self._named = [frozenset(handle.key for s in manifest.subtasks['v'].values()"
                    " for o in s.operators.values() for handle in o.parts)]"
                ))),
                Patch(LiveObjects, "missing", begins("return []")),
            ),
            "tombstone_not_restored": (
                Patch(deltas, "_newest", called("unique", becomes=(
                    "rows.filter(pl.col('__value').is_not_null())"
                    ".with_columns(pl.when(timer).then('__time_us').alias(_TIME))"
                    ".unique(entry, keep='last', maintain_order=True)"
                ))),
            ),
            "removals_are_not_written": (
                Patch(IncrementalRocks, "delta", returned("encoded", becomes=(
                    "return self.encoded((p, v) for p in self._changed.since(epoch)"
                    " if (v := entries.get(p)) is not None)"
                ))),
            ),
            "deltas_in_the_wrong_order": (
                Patch(snapshots, "_upload_incremental", returned("delta", "runs", becomes=(
                    "return Chain((base.runs[0], tuple(delta), *base.runs[1:]) if delta else base.runs, part.epoch)"
                ))),
            ),
            "first_row_counts": (
                Patch(deltas, "_newest", called("unique", becomes=(
                    "rows.with_columns(pl.when(timer).then('__time_us').alias(_TIME))"
                    ".unique(entry, keep='first', maintain_order=True)"
                ))),
            ),
            "elements_in_any_order": (
                Patch(deltas, "_newest", returned("sort", becomes=(
                    "return rows.with_columns(pl.when(timer).then('__time_us').alias(_TIME)).sort('__subkey',"
                    " descending=True, maintain_order=True).unique(entry, keep='last', maintain_order=True)"
                    ".filter(pl.col('__value').is_not_null()).sort('__state', maintain_order=True).drop(_TIME)"
                ))),
            ),
            "expired_entries_are_not_removed": (
                Patch(ChangedKeys, "note", statement("update", becomes=(
                    "self._current.update(key for key, value in changes.items() if value is not None)"
                ))),
            ),
            "savepoint_is_a_base": (
                Patch(SnapshotChains, "completed", statement("_base", becomes=(
                    "self._base = self._stored.get(checkpoint) or self._base"
                ))),
                Patch(LiveObjects, "missing", begins("return []")),
            ),
            "what_was_changed_meanwhile_is_forgotten": (
                Patch(ChangedKeys, "close", statement("asked_since", "_parts", becomes=(
                    "self._parts = [part for part in self._parts if part[0] >= self._closed]"
                ))),
            ),
            "unknown_changes_are_taken_for_none": (
                Patch(IncrementalRocks, "knows_since", begins("return True")),
                Patch(ChangedKeys, "close", begins("self._most_bytes = 2_000")),
            ),
        }.items(),
        start=1,
    )
)  # fmt: skip
"""Each breaks one rule, in some cases with the leader's check that would have caught it."""

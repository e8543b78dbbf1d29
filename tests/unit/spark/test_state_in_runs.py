"""State handed on from step to step in runs: what is stored is what whole savepoints would hold, and does not grow.

The operator and its tasks are a model here: rows set or remove what a key has, timers fire, values expire, tasks die
anywhere, and the parallelism changes. Everything between them is production code.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pytest

from penstock import Pipeline, count
from penstock.connectors import iterables
from penstock.plan.operations.deduplicate import Deduplicate
from penstock.plan.operations.running_aggregate import RunningAggregate
from penstock.plan.operations.running_reduce import RunningReduce
from penstock.plan.operations.to_changes import ToChanges
from penstock.plan.operations.top import Top
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Handle, SubtaskSnapshot
from penstock.savepoint.places import LocalPlace
from penstock.savepoint.segments import segments_of
from penstock.spark import state_passthrough
from penstock.spark.state import ADOPTED_AT_ONCE, Keeping, Restoring, SavedState, kept_runs
from penstock.spark.state_passthrough import ActiveKeys, StatePassthrough, is_by_key_alone
from penstock.state import deltas
from penstock.state.keyed_backend import EVENT_TIMERS, PROCESSING_TIMERS
from penstock.state.segments import decode_segment, encode_segments
from penstock.task.operator import OperatorSnapshot
from penstock.types import INT64, Field, Schema

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
GROUPS = 6
KEYS = Schema((Field("key", INT64, nullable=True),))
NAMES = ["seen", EVENT_TIMERS, PROCESSING_TIMERS]
SEEN, TIMER = 0, 1
COLUMNS = {"key": pl.Int64(), "__state": pl.UInt16(), "__value": pl.Binary(), "__time_us": pl.Int64()}
Entries = dict[tuple[int, int], tuple[bytes, int | None]]
"""Key and state to value and time: the state of an operator."""


def frame_of(entries: Entries) -> pl.DataFrame:
    rows = [(key, which, value, time) for (key, which), (value, time) in sorted(entries.items())]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def entries_of(frame: pl.DataFrame) -> Entries:
    found = {(key, which): (value, time) for key, which, value, time in frame.rows()}
    assert len(found) == frame.height, "something is there twice"
    return found


def after(entries: Entries, rows: dict[int, tuple[bytes, int | None] | None], watermark: int, now_us: int) -> Entries:
    """What a step makes of the state: what is due or has expired is gone, and rows say what their keys have."""
    kept = {
        (key, which): (value, time)
        for (key, which), (value, time) in entries.items()
        if key not in rows and (time is None or time > (watermark if which == TIMER else now_us))
    }
    for key, said in rows.items():
        if said is not None:
            value, time = said
            kept[key, SEEN] = (value, None if time is None else time + now_us)
            if time is not None and time % 2:
                kept[key, TIMER] = (b"", watermark + time)
    return kept


class Job:
    """Steps of a job, each in a folder."""

    def __init__(self, root: Path, *, form: int = 1) -> None:
        self.root, self.number, self.form = root, 0, form
        self.manifest: Manifest | None = None
        self.flows = False
        """Whether rows come as they are read, so that nobody knows beforehand of which keys."""

    def folder(self, number: int) -> Path:
        return self.root / str(number)

    def step(self, attempt: str, rows: dict[int, Any], watermark: int, parallelism: int, killed: int | None) -> bool:
        """Do the next step; `killed` is how many objects it has when it dies. Whether it came to its end."""
        number, lives = self.number + 1, [killed]
        place = LocalPlace(self.folder(number))
        subtasks: dict[int, SubtaskSnapshot] = {}
        for subtask in range(parallelism):
            try:
                subtasks[subtask] = self._task(attempt, number, rows, watermark, subtask, parallelism, lives)
            except Killed:
                return False
        self.manifest, self.number = Manifest("j", number, "a", 1, GROUPS, {"v": subtasks}, {}), number
        wanted = {handle.key for part in subtasks.values() for handle in part.operators["op"].objects}
        for name in place.sizes():
            if name not in wanted:
                place.remove(name)
        shutil.rmtree(self.folder(number - 1), ignore_errors=True)
        return True

    def _task(
        self,
        attempt: str,
        number: int,
        rows: dict[int, Any],
        watermark: int,
        subtask: int,
        parallelism: int,
        lives: Any,
    ) -> SubtaskSnapshot:
        owned = key_group_range(subtask, parallelism, GROUPS)
        keeping = Keeping(str(self.folder(number)), f"{attempt}-{subtask}")
        keeping._place = Mortal(self.folder(number), lives)
        others, given, now_us = StatePassthrough("op"), list[tuple[int, bytes]](), number * 10
        if self.manifest is not None:
            former = str(self.folder(self.number))
            restoring = Restoring(SavedState(msgspec.json.encode(self.manifest), former), subtask, parallelism)
            runs = restoring.runs("op", owned)
            others = StatePassthrough("op", kept_runs(runs, number))
            if others.kept:
                keeping.build_on("op", runs[: others.kept], LocalPlace(Path(former)))
            asked = ActiveKeys.by(
                [pl.DataFrame({"key": pl.Series(list(rows), dtype=pl.Int64)})], ["key"], watermark, now_us
            )
            given = others.take_active(restoring.stored("op", owned), None if self.flows else asked)
        held: Entries = {}
        for _, data in given:
            held |= entries_of(decode_segment(data, "op")[1].select(*COLUMNS))
        mine = {key: said for key, said in rows.items() if group_of(key) in owned}
        held = after(held, mine, watermark, now_us)
        written = self._encoded(held)
        chain: Any = SimpleNamespace(
            operators={"op": SimpleNamespace(operator=SimpleNamespace(snapshot=lambda: snapshot(written)))}
        )
        keeping.keep(chain, others, self._again)
        return keeping.snapshot(watermark, {})

    def _encoded(self, entries: Entries) -> list[tuple[int, bytes]]:
        header = {"kind": "objects", "names": NAMES, "states": {}, "form": self.form}
        return list(encode_segments(header, [frame_of(entries)], KEYS, GROUPS))

    def _again(self, segments: Any) -> list[tuple[int, bytes]]:
        entries: Entries = {}
        for _, data in segments:
            entries |= entries_of(decode_segment(data, "op")[1].select(*COLUMNS))
        return self._encoded(entries)

    def stored(self) -> Entries:
        """What a savepoint has, as its readers see it."""
        assert self.manifest is not None
        found: Entries = {}
        objects = LocalPlace(self.folder(self.number)).objects()
        for part in self.manifest.subtasks["v"].values():
            for group, data in segments_of(objects, "op", part.operators["op"], range(GROUPS)):
                frame = decode_segment(data, "op")[1].select(*COLUMNS)
                assert all(group_of(key) == group for key in frame["key"])
                more = entries_of(frame)
                assert not found.keys() & more.keys()
                found |= more
        return found


class Killed(BaseException):
    """The task is gone."""


class Mortal(LocalPlace):
    """A folder whose writer dies when it has so many objects."""

    def __init__(self, folder: Path, lives: list[int | None]) -> None:
        super().__init__(folder)
        object.__setattr__(self, "lives", lives)

    def _die(self) -> None:
        lives: list[int | None] = self.__dict__["lives"]
        if lives[0] is not None:
            if lives[0] <= 0:
                raise Killed
            lives[0] -= 1

    def put(self, name: str, data: bytes) -> None:
        self._die()
        super().put(name, data)

    def adopt(self, name: str, former: Any, key: str) -> None:
        self._die()
        super().adopt(name, former, key)


class Slow(LocalPlace):
    """A place that has no object of another one before it was asked for so many at once."""

    def __init__(self, folder: Path, together: int) -> None:
        super().__init__(folder)
        object.__setattr__(self, "meeting", threading.Barrier(together))
        object.__setattr__(self, "at_once", [0, 0])
        object.__setattr__(self, "counting", threading.Lock())

    def adopt(self, name: str, former: Any, key: str) -> None:
        at_once: list[int] = self.__dict__["at_once"]
        with self.__dict__["counting"]:
            at_once[0] += 1
            at_once[1] = max(at_once)
        self.__dict__["meeting"].wait(30)
        super().adopt(name, former, key)
        with self.__dict__["counting"]:
            at_once[0] -= 1


def snapshot(written: list[tuple[int, bytes]]) -> OperatorSnapshot:
    part: Any = SimpleNamespace(segments=lambda: written)
    return OperatorSnapshot(keyed=part)


def group_of(key: int) -> int:
    from penstock.state.hashing import key_group_of

    return key_group_of([key], [INT64], GROUPS)


def history(root: Path, number: int, steps: int = 10) -> None:
    """Random steps; after each, and after every death, the savepoint is that of the model."""
    rng = random.Random(f"{SEED} {number}")
    job, model, parallelism = Job(root), Entries(), rng.randrange(1, 4)
    many, watermark = rng.choice([10, 200]), 0
    for step in range(1, steps + 1):
        touched = many if step == 1 else rng.choice([0, 1, 3, many // 2])
        rows: dict[int, Any] = {}
        for _ in range(touched):
            said = (rng.randbytes(4), rng.choice([None, None, rng.randrange(1, 90)]))
            rows[rng.randrange(many)] = said if rng.random() < 0.8 else None
        watermark += rng.randrange(30)
        if rng.random() < 0.1:
            parallelism = rng.randrange(1, 4)
        if rng.random() < 0.1:
            job.form += 1  # another version of Penstock writes something else beside the rows
        job.flows = rng.random() < 0.1
        for attempt in range(3):
            killed = rng.randrange(4) if attempt < 2 and rng.random() < 0.3 else None
            if job.step(f"{step}-{attempt}", rows, watermark, parallelism, killed):
                break
            assert job.manifest is None or job.stored() == model, "what another step starts from has changed"
        model = after(model, rows, watermark, step * 10)
        assert job.number == step
        assert job.stored() == model
        check_size(job)


def check_size(job: Job) -> None:
    """As few deltas as the number of steps has digits, and no object that the savepoint does not name."""
    assert job.manifest is not None
    sizes = LocalPlace(job.folder(job.number)).sizes()
    named = [part.operators["op"] for part in job.manifest.subtasks["v"].values()]
    assert set(sizes) == {handle.key for part in named for handle in part.objects}, "nothing else is there"
    for part in named:
        assert len(part.deltas) <= job.number.bit_length()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the tests."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.parametrize("number", range(25))
def test_runs_hold_what_whole_savepoints_would(number: int, tmp_path: Path) -> None:
    """Whatever rows, timers and the clock do, however parallel steps are, and wherever tasks die."""
    print(f"repeat with PENSTOCK_TEST_SEED={SEED}")
    history(tmp_path, number)


def test_a_step_writes_what_it_changes(tmp_path: Path) -> None:
    """Of many keys few are touched: it writes little, but for steps in which much has come together."""
    rng, job = random.Random(1), Job(tmp_path)
    job.step("0", dict.fromkeys(range(20000), (b"once", None)), 0, 1, None)
    whole = sum(LocalPlace(job.folder(1)).sizes().values())
    written, deltas_read = list[int](), list[int]()
    inodes = {path.stat().st_ino for path in (job.folder(1) / "objects").iterdir()}
    for number in range(2, 34):
        assert job.step(str(number), {rng.randrange(20_000): (b"more", None) for _ in range(200)}, 0, 1, None)
        files = list((job.folder(number) / "objects").iterdir())
        written.append(sum(path.stat().st_size for path in files if path.stat().st_ino not in inodes))
        inodes = {path.stat().st_ino for path in files}
        assert job.manifest is not None
        deltas_read.append(len(job.manifest.subtasks["v"][0].operators["op"].deltas))
        assert sum(path.stat().st_size for path in files) < 2.5 * whole
    assert sorted(written)[len(written) // 2] < whole / 20
    assert sum(written) / len(written) < whole / 8
    assert sum(deltas_read) / len(deltas_read) < 4


_REPLACED = state_passthrough._Group.replaced
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "later runs replace nothing": (deltas, "counted", list),
    "a delta does not say what it replaces": (
        state_passthrough, "delta_by_key", lambda header, rows, replaced: deltas.delta_by_key(header, rows, replaced[:0]),
    ),
    "a delta forgets what the deltas it takes in replace": (
        state_passthrough._Group, "replaced", lambda it, first: _REPLACED(dataclasses.replace(
            it, layers=[dataclasses.replace(layer, replaced=None) for layer in it.layers]), first),
    ),
    "a delta forgets the rows of the deltas that it takes in": (state_passthrough._Group, "left", lambda it, first: []),
    "other forms are put beside each other": (state_passthrough, "_are_alike", lambda parts: True),
    "key groups of others are named, too": (
        Restoring, "runs", lambda it, operator, owned: it._parts[operator][0].runs if operator in it._parts else (),
    ),
}  # fmt: skip


def test_objects_of_the_former_savepoint_are_had_several_at_a_time(tmp_path: Path) -> None:
    """In the order of their runs, and never more than a store can be asked for."""
    former, many = LocalPlace(tmp_path / "1"), 2 * ADOPTED_AT_ONCE
    handles: list[Handle] = []
    for number in range(many):
        former.put(f"objects/{number}", b"%d" % number)
        handles.append(Handle(f"objects/{number}", "", 1, {number: (0, 1)}))
    keeping = Keeping(str(tmp_path / "2"), "a-0")
    place = Slow(tmp_path / "2", ADOPTED_AT_ONCE)
    keeping._place = place
    keeping.build_on("op", (tuple(handles[:3]), tuple(handles[3:])), former)
    chain: Any = SimpleNamespace(operators={"op": SimpleNamespace(operator=SimpleNamespace(snapshot=OperatorSnapshot))})
    keeping.keep(chain)
    runs = keeping.snapshot(0, {}).operators["op"].runs
    assert [place.read(handle.key) for run in runs for handle in run] == [b"%d" % number for number in range(many)]
    assert [len(run) for run in runs] == [3, many - 3]
    assert place.__dict__["at_once"][1] == ADOPTED_AT_ONCE


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_rules_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Production code with one rule taken out holds something else after some history."""
    holder, attribute, wrong = MUTANTS[name]
    monkeypatch.setattr(holder, attribute, wrong)
    for number in range(40):
        try:
            history(tmp_path / str(number), number)
        except Exception:
            return
    pytest.fail("nothing was found")


def test_an_operator_that_forgets_keys_is_given_all_of_them():
    """A key may be over that has no row in the step."""
    asked = {
        ttl: {node.verb: is_by_key_alone(node, 0) for node in kept_for(ttl).plan if isinstance(node.operation, KEEPING)}
        for ttl in (None, "1h")
    }
    verbs = ["agg", "changes", "top", "reduce", "deduplicate"]
    assert asked == {None: dict.fromkeys(verbs, True), "1h": dict.fromkeys(verbs, False)}


KEEPING = (RunningAggregate, ToChanges, Top, RunningReduce, Deduplicate)


def kept_for(ttl: str | None) -> Pipeline:
    p = Pipeline("p", state_ttl=ttl)
    rows = p.read(iterables.Source([{"key": 1}], schema=KEYS)).key_by("key")
    rows.agg(n=count()).changes().key_by("n").top(1, by="key")
    rows.reduce(lambda one, _: one)
    rows.deduplicate()
    return p

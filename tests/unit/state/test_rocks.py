"""State on the local disk: the same as objects in memory, whatever is flushed when; its folder; its timers."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ExternalError, UsageError
from penstock.expressions import Accumulator
from penstock.functions.process_functions import (
    AggregatingState,
    KeyedProcess,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from penstock.protocol.keygroups import KeyGroupRange
from penstock.state.declarations import declared_states, describe_states
from penstock.state.keyed_state import KeyCursor
from penstock.state.rocks.layout import Places, end_of, size_of_msgpack, time_bytes, time_of
from penstock.state.rocks.store import RocksStore
from penstock.state.rocks.timers import HEAD
from penstock.state.timers import TimerQueue
from penstock.submission.options import job_settings
from penstock.task.keyed_states import keyed_backend
from penstock.task.operator import OperatorContext
from penstock.types import DATE, DURATION, FLOAT64, INT64, STRING, TIMESTAMP, DecimalType, Field, Schema

KEYS = Schema((Field("key", INT64),))
GROUPS = 16
MOMENTS = st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0))


class Item(msgspec.Struct):
    tags: list[int]


class Collected(Accumulator[Item, list[int]]):
    accumulator_type = Item

    def create(self):
        return Item([])

    def add(self, accumulator, value):
        accumulator.tags.append(value)
        return accumulator

    def merge(self, left, right):
        return Item(left.tags + right.tags)

    def result(self, accumulator):
        return accumulator.tags


class Every(KeyedProcess[Item, Item]):
    value = ValueState(int)
    record = ValueState(Item)
    items = ListState(int)
    records = ListState(Item)
    entries = MapState(float, int)
    boxes = MapState(str, Item)
    total = ReducingState(lambda old, new: old + new, int)
    collected = AggregatingState(Collected(), ttl="40us")
    brief = ValueState(int, ttl="20us")
    brief_items = ListState(int, ttl="20us")
    brief_entries = MapState(str, int, ttl="20us")
    kept = ValueState(int, ttl="20us", renew="read")
    kept_items = ListState(int, ttl="20us", renew="read")
    kept_records = ListState(Item, ttl="20us", renew="read")
    kept_entries = MapState(str, int, ttl="20us", renew="read")


class Bound:
    """All states of `Every` on one backend."""

    def __init__(self, local_state=None):
        self.now = 0
        self.cursor = KeyCursor()
        context = OperatorContext(
            "op", 0, 1, GROUPS, KeyGroupRange(0, GROUPS), lambda: self.now, local_state=local_state
        )
        self.backend = keyed_backend("op", KEYS, self.cursor, context)
        descriptions = describe_states(Every)
        for name, declaration in declared_states(Every).items():
            setattr(self, name, self.backend.bind(declaration, descriptions[name]))

    def do(self, rng):
        """One thing that a process may do; what it sees of it."""
        self.cursor.key = rng.randrange(12)
        number, subkey = rng.randrange(100), rng.choice([0.0, -0.0, 1, 1.0, 2.5])
        name = rng.choice("abc")
        match rng.randrange(31):
            case 0:
                return self.value.set(number)
            case 1:
                return self.value.clear()
            case 2:
                return self.record.set(Item([number]))
            case 3:
                return found.tags.append(number) if (found := self.record.get()) is not None else None
            case 4:
                return self.items.add(number)
            case 5:
                return self.items.update([number, number + 1])
            case 6:
                return self.items.clear()
            case 7:
                return self.records.add(Item([number]))
            case 8:
                return [one.tags.append(number) for one in self.records.get()]
            case 9:
                return self.entries.set(subkey, number)
            case 10:
                return self.entries.remove(subkey)
            case 11:
                return self.entries.clear()
            case 12:
                return self.boxes.set(name, Item([]))
            case 13:
                return [one.tags.append(number) for one in self.boxes.values()]
            case 14:
                return found.tags.append(number) if (found := self.boxes.get(name)) is not None else None
            case 15:
                return self.total.add(number)
            case 16:
                return self.brief.set(number)
            case 17:
                return self.brief_items.add(number)
            case 18:
                return self.brief_entries.set(name, number)
            case 19:
                return self.boxes.remove(name)
            case 20:
                return [self.entries.get(subkey, "none"), self.boxes.contains(name), self.brief_entries.get(name)]
            case 21:
                return self.kept.set(number)
            case 22:
                return self.kept_items.add(number)
            case 23:
                return self.kept_records.add(Item([number]))
            case 24:
                return self.kept_entries.set(name, number)
            case 25:
                return [self.kept.get(), self.kept_items.get(), self.kept_records.get(), self.kept_entries.get(name)]
            case 26:
                return [self.kept_entries.remove(name), self.kept_entries.contains("c")]
            case 27:
                return self.collected.add(number)
            case 28:
                return found.append(number) if (found := self.collected.get()) is not None else None
            case 29:
                return self.collected.clear()
            case _:
                return self.seen()

    def seen(self):
        """All that the current key has."""
        return [
            self.value.get(), self.record.get(), self.items.get(), self.records.get(), dict(self.entries.items()),
            dict(self.boxes.items()), self.total.get(), self.brief.get(), self.brief_items.get(),
            sorted(self.brief_entries.keys()), self.kept.get(), self.kept_items.get(), self.kept_records.get(),
            dict(self.kept_entries.items()), self.collected.get(),
        ]  # fmt: skip


@pytest.mark.parametrize("seed", random.sample(range(10**6), 2))
def test_whatever_a_process_does_it_sees_the_same_on_both_backends(seed, tmp_path):
    """In-place changes and expiry included; caches are written and emptied at any time between two batches."""
    print("seed", seed)
    disk, memory = Bound(tmp_path), Bound()
    choose = random.Random(seed)
    for step in range(1_500):
        assert disk.do(random.Random(seed + step)) == memory.do(random.Random(seed + step)), f"step {step}"
        if choose.random() < 0.1:
            disk.now = memory.now = disk.now + choose.randrange(10)
        if choose.random() < 0.1:
            disk.backend.flush()
            disk.backend.maintain(choose.choice([0, 5, 1_000]))
        if choose.random() < 0.05:
            disk.backend.flush()
            for state in disk.backend._states.values():
                state.forget()
        if choose.random() < 0.01:
            before = disk
            disk = Bound(tmp_path)
            disk.now = before.now
            disk.backend.restore(before.backend.freeze().segments())
            before.backend.close()
    for key in range(12):
        disk.cursor.key = memory.cursor.key = key
        assert disk.seen() == memory.seen()
    disk.backend.close()


@pytest.mark.parametrize("seed", random.sample(range(10**6), 2))
def test_timers_come_in_order_of_time_however_many_there_are(seed, tmp_path):
    """Many at one moment, set while others fire, deleted, set again: those that the queue in memory gives."""
    print("seed", seed)
    rng, bound, model = random.Random(seed), Bound(tmp_path), TimerQueue()
    timers = bound.backend.event_timers
    timers.open(group.to_bytes(2) for group in range(GROUPS))
    reached = 0
    for _ in range(30):
        for _ in range(rng.randrange(20 * HEAD)):
            key, time = rng.randrange(3_000), reached + rng.choice([5, 5, 5, rng.randrange(1, 40)])
            doing = rng.choice(["set", "set", "set", "delete"])
            getattr(timers, doing)(key, time)
            getattr(model, doing)(key, time)
        if rng.random() < 0.3:
            bound.backend.flush()
        assert timers.next_time() == model.next_time()
        assert timers.earliest <= (model.next_time() or timers.earliest)
        reached += rng.randrange(12)
        found, expected = [], []
        for fired, queue in ((found, timers), (expected, model)):
            for key, at in queue.due(reached):
                fired.append((at, key))
                if (key + at) % 7 == 0 and key < 1_000:
                    queue.set(key, at + 1 + key % 3)
                if key % 5 == 0 and key >= 1_000:
                    queue.delete(key + 1, at + 1)
        assert [at for at, _ in found] == sorted(at for at, _ in found)
        assert sorted(found) == sorted(expected)
    bound.backend.close()


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(), st.floats(), st.booleans(), st.none(),
                 st.lists(st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(max_size=300)), max_size=20)))  # fmt: skip
def test_the_size_of_a_key_is_read_from_its_bytes(value):
    """Whatever follows it."""
    data = msgspec.msgpack.encode(value)
    assert size_of_msgpack(b"1234" + data + b"rest", 4) == len(data)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats()), st.dates(), MOMENTS,
            st.timedeltas(timedelta(days=-100_000_000), timedelta(days=100_000_000)),
            st.decimals(-1000, 1000, places=2), st.text(max_size=3),
        ), min_size=1, max_size=5,
    )
)  # fmt: skip
def test_keys_of_every_type_come_back(keys):
    """As `key_values` spells them."""
    kinds = (FLOAT64, DATE, TIMESTAMP, DURATION, DecimalType(10, 2), STRING)
    places = Places(Schema(tuple(Field(f"f{n}", kind, nullable=True) for n, kind in enumerate(kinds))), GROUPS)
    for key in keys:
        assert repr(places.decode(places.encode(key))) == repr(key)
        assert [type(part) for part in key][1:] == [date, datetime, timedelta, Decimal, str]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_times_as_bytes_are_in_order_of_time(first, second):
    """Those before 1970 as well."""
    assert (time_bytes(first) < time_bytes(second)) == (first < second)
    assert time_of(time_bytes(first)) == first


@given(st.binary(min_size=1).filter(lambda data: data.strip(b"\xff")), st.binary())
def test_the_end_of_a_prefix_is_above_all_that_begins_with_it(prefix, rest):
    """And not above what does not."""
    assert prefix + rest < end_of(prefix)
    assert end_of(prefix) <= prefix[:-1] + b"\xff\xff" or end_of(prefix)[: len(prefix)] > prefix


def test_key_groups_learned_are_those_of_single_keys():
    """Both ways lead to the same place."""
    keys = list(range(1_000))
    learned, single = Places(KEYS, GROUPS), Places(KEYS, GROUPS)
    learned.learn(pl.DataFrame({"key": keys}), keys)
    assert [learned.of(key) for key in keys] == [single.of(key) for key in keys]


def test_the_folder_goes_with_its_operator_and_what_a_killed_process_left_with_the_next_one(tmp_path):
    """Nothing of a former life is ever opened."""
    store = RocksStore("op", tmp_path)
    code = (
        "import os, pathlib, sys; from penstock.state.rocks.store import RocksStore;"
        "s = RocksStore('op', pathlib.Path(sys.argv[1])); s.write({b'a': b'b'}); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 2
    another = RocksStore("op", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2, "those that are in use stay"
    assert another.get(b"a") is None
    for each in (store, another):
        each.close()
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    """With the operator and the folder."""
    (tmp_path / "file").touch()
    with pytest.raises(ExternalError, match=r"operator 'op': no folder for its state can be made in .*file"):
        RocksStore("op", tmp_path / "file")


def test_without_the_package_the_backend_is_refused_before_anything_runs(monkeypatch):
    """It says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package rocksdict.*penstock-streaming\[rocksdb\]"):
        job_settings(state_backend="rocksdb")

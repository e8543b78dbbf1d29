"""Object state as tables: equal to what operators hold, there and back, at any parallelism."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from stored import UID, dicts, export, restored

from penstock import (
    Accumulator,
    AggregatingState,
    KeyedContext,
    KeyedProcess,
    ListState,
    MapState,
    OperatorListState,
    ReducingState,
    ValueState,
    savepoint,
)
from penstock.errors import CorruptDataError, IncompatibleStateError, UsageError
from penstock.state.rocks import backend as rocks
from penstock.task import snapshot_objects
from penstock.task.keyed_states import keyed_backend
from penstock.task.operators import process
from penstock.testing.harness import OperatorHarness, process_node

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Event:
    account: str | None
    branch: int
    amount: int
    at: datetime


@dataclass
class Item:
    name: str
    tags: list[str]
    seen: datetime
    note: str | None = None


@dataclass
class Sums:
    sum: int
    count: int


class Mean(Accumulator[Sums, float]):
    accumulator_type = Sums

    def create(self) -> Sums:
        return Sums(0, 0)

    def add(self, accumulator: Sums, value: int) -> Sums:
        accumulator.sum += value
        accumulator.count += 1
        return accumulator

    def merge(self, left: Sums, right: Sums) -> Sums:
        return Sums(left.sum + right.sum, left.count + right.count)

    def result(self, accumulator: Sums) -> float:
        return accumulator.sum / accumulator.count


class Everything(KeyedProcess[Event, Event]):
    last = ValueState(float)
    record = ValueState(Item)
    items = ListState(int)
    entries = MapState(int, Item)
    total = ReducingState(lambda old, new: old + new, int)
    mean = AggregatingState(Mean())
    brief = ValueState(int, ttl="1h")
    brief_items = ListState(int, ttl="1h")

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        item = Item(f"n{row.amount}", [str(row.branch)], row.at)
        self.last.set(row.amount / 2)
        self.record.set(item)
        self.items.add(row.amount)
        if row.amount % 5 == 0:
            self.items.clear()
        self.entries.set(row.amount % 3, item)
        self.total.add(row.amount)
        self.mean.add(row.amount)
        self.brief.set(row.amount)
        self.brief_items.add(row.amount)
        ctx.event_timer(row.at + timedelta(hours=1))
        if row.amount % 2:
            ctx.processing_timer(row.at)

    def on_timer(self, at: datetime, ctx: KeyedContext[Event]) -> None:
        ctx.emit(Event(None, int(self.mean.get(default=0.0)), self.total.get(0), at))


KEYS = ("account", "branch")
NODE = process_node(Everything(), Event, keys=KEYS)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "ä", None]), st.integers(-2, 2), st.integers(-50, 50)), max_size=60
)


@dataclass
class Model:
    """What the process holds, in plain dictionaries."""

    last: dict = field(default_factory=dict)
    items: dict = field(default_factory=lambda: defaultdict(list))
    entries: dict = field(default_factory=lambda: defaultdict(dict))
    total: dict = field(default_factory=lambda: defaultdict(int))
    sums: dict = field(default_factory=dict)
    timers: set = field(default_factory=set)

    def take(self, row: Event) -> None:
        key = (row.account, row.branch)
        self.last[key] = row.amount / 2
        self.items[key].append(row.amount)
        if row.amount % 5 == 0:
            del self.items[key]
        shown = {"name": f"n{row.amount}", "tags": [str(row.branch)], "seen": row.at, "note": None}
        self.entries[key][row.amount % 3] = shown
        self.total[key] += row.amount
        before = self.sums.get(key, {"sum": 0, "count": 0})
        self.sums[key] = {"sum": before["sum"] + row.amount, "count": before["count"] + 1}
        self.timers.add((*key, "event", row.at + timedelta(hours=1)))
        if row.amount % 2:
            self.timers.add((*key, "processing", row.at))


def filled(events, parallelism):
    """A harness that has seen the events, and the model of it."""
    harness = OperatorHarness.of_process(
        Everything(), Event, keys=KEYS, parallelism=parallelism, max_parallelism=16, now_us=1_000_000
    )
    model = Model()
    rows = [Event(account, branch, n, START + timedelta(seconds=i)) for i, (account, branch, n) in enumerate(events)]
    if rows:
        harness.rows(*rows)
    for row in rows:
        model.take(row)
    return harness, model


def check(sp: savepoint.Savepoint, model: Model) -> None:
    """Every table is what the model holds."""
    assert dicts(sp.table(UID, "last"), *KEYS) == model.last
    assert dicts(sp.table(UID, "total"), *KEYS) == dict(model.total)
    assert dicts(sp.table(UID, "mean"), *KEYS) == model.sums
    elements = {(*key, n): value for key, values in model.items.items() for n, value in enumerate(values)}
    assert dicts(sp.table(UID, "items"), *KEYS, "index") == elements
    entries = {(*key, name): value for key, values in model.entries.items() for name, value in values.items()}
    assert dicts(sp.table(UID, "entries"), *KEYS, "map_key") == entries
    assert set(sp.timers(UID).iter_rows()) == model.timers
    assert set(sp.keys(UID).iter_rows()) == set(model.last)
    wide = sp.table(UID)
    assert wide.columns == [*KEYS, "brief", "brief_items", "entries", "items", "last", "mean", "record", "total"]
    assert dicts(wide.select(*KEYS, "total"), *KEYS) == dict(model.total)
    assert {key: value for key, value in dicts(wide.select(*KEYS, "items"), *KEYS).items() if value} == dict(
        model.items
    )


def raw(sp: savepoint.Savepoint) -> pl.DataFrame:
    """All stored rows with the names of their states, in an order of their own."""
    frames = [
        rows.with_columns(pl.Series("__state", [header["names"][index] for index in rows["__state"]], pl.String))
        for _, header, rows in sp.segments(UID)
    ]
    assert frames
    return pl.concat(frames).sort(pl.all())


def again(sp: savepoint.Savepoint) -> savepoint.EditedSavepoint:
    """Every state and all timers replaced by what they are."""
    edited = sp.edit()
    for name in sp.operator(UID).states:
        edited.replace(UID, name, sp.table(UID, name))
    return edited.replace_timers(UID, sp.timers(UID))


@settings(max_examples=25, deadline=None)
@given(
    events=EVENTS,
    parallelism=st.integers(1, 3),
    later=st.integers(1, 3),
    backend=st.sampled_from(["fs", "memory"]),
)
def test_tables_are_what_operators_hold_and_go_back_byte_by_byte(events, parallelism, later, backend):
    """Read, replaced by itself, restored at another parallelism, read again: the same rows, the same bytes."""
    harness, model = filled(events, parallelism)
    with tempfile.TemporaryDirectory() as folder:
        sp = savepoint.read(export(harness, NODE, Path(folder) / "one", backend))
        check(sp, model)
        copied = again(sp).write(Path(folder) / "two")
        check(copied, model)
        if events:
            assert_frame_equal(raw(sp), raw(copied))
        successor = restored(Path(folder) / "two", NODE, later, now_us=1_000_000)
        check(savepoint.read(export(successor, NODE, Path(folder) / "three")), model)


def test_key_groups_can_be_read_apart(tmp_path):
    """All groups together are the whole table; one at a time each has its own keys."""
    harness, _ = filled([("a", n, n) for n in range(40)], 3)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    whole = sp.table(UID, "total").sort(KEYS)
    apart = list(sp.tables(UID, "total"))
    assert len({group for group, _ in apart}) == len(apart) > 3
    assert_frame_equal(pl.concat(frame for _, frame in apart).sort(KEYS), whole)
    halves = [sp.table(UID, "total", key_groups=bounds) for bounds in ((0, 7), (7, 16))]
    assert all(half.height for half in halves)
    assert_frame_equal(pl.concat(halves).sort(KEYS), whole)
    assert sp.timers(UID, key_groups=(0, 7)).height < sp.timers(UID).height
    with pytest.raises(UsageError, match="from 0 to 16"):
        sp.table(UID, "total", key_groups=(3, 17))


def test_state_in_many_objects_is_read_edited_and_restored_like_that_in_one(monkeypatch, tmp_path):
    """Every row of a key group in an object of its own, as large state has it in more than one."""

    def on_disk(operator, keys, cursor, context):
        return keyed_backend(operator, keys, cursor, replace(context, local_state=tmp_path / "local"))

    monkeypatch.setattr(snapshot_objects, "OBJECT_BYTES", 1)
    monkeypatch.setattr(rocks, "_SEGMENT_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(process, "keyed_backend", on_disk)
        harness, model = filled([("abc"[n % 3], n % 5, n) for n in range(60)], 2)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    stored = [group for group, _, _ in sp.segments(UID)]
    assert len(list((tmp_path / "one" / "objects").iterdir())) == len(stored) > 3 * len(set(stored))
    check(sp, model)
    apart = list(sp.tables(UID))
    assert [group for group, _ in apart] == sorted(set(stored))
    assert_frame_equal(pl.concat(frame for _, frame in apart).sort(KEYS), sp.table(UID).sort(KEYS))
    copied = again(sp).write(tmp_path / "two")
    check(copied, model)
    untouched = sp.edit().write(tmp_path / "three")
    assert_frame_equal(raw(untouched), raw(sp))
    for number, folder in enumerate(("one", "two", "three")):
        successor = restored(tmp_path / folder, NODE, number + 1, now_us=1_000_000)
        check(savepoint.read(export(successor, NODE, tmp_path / f"again-{folder}")), model)


def test_an_edited_value_is_what_the_job_goes_on_with(tmp_path):
    """New keys, changed and removed ones; lists from plain rows; a timer that was never set fires."""
    harness, _ = filled([("a", 1, 7), ("b", 2, 9)], 2)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    totals = pl.DataFrame({"account": ["a", "new"], "branch": [1, 5], "value": [100, 500]})
    items = pl.DataFrame({"account": ["new"] * 2, "branch": [5] * 2, "value": [3, 4]})
    timers = pl.DataFrame({"account": ["new"], "branch": [5], "domain": ["event"], "timestamp": [START]}).with_columns(
        pl.col("timestamp").cast(pl.Datetime("us", "UTC"))
    )
    sums = pl.DataFrame({"account": ["new"], "branch": [5], "value": [{"sum": 21, "count": 3}]})
    edited = sp.edit().replace(UID, "total", totals).replace(UID, "items", items).replace_timers(UID, timers)
    edited.replace(UID, "mean", sums)
    copied = edited.write(tmp_path / "two")
    assert dicts(copied.table(UID, "total"), *KEYS) == {("a", 1): 100, ("new", 5): 500}
    assert copied.table(UID, "items")["index"].to_list() == [0, 1]
    successor = restored(tmp_path / "two", NODE, 3, now_us=1_000_000)
    successor.watermark(START + timedelta(days=1))
    assert [(row["branch"], row["amount"]) for row in successor.output()] == [(7, 500)]


def test_tables_of_pandas_and_arrow_are_tables_too(tmp_path):
    """Their narrower numbers and other units of time are the same values; what is no table is refused."""
    harness, model = filled([("a", 1, 2), ("b", 2, 7), (None, 1, 9)], 2)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    totals = sp.table(UID, "total").with_columns(pl.col("value") * 10, pl.col("branch").cast(pl.Int16))
    timers = sp.timers(UID).to_pandas().astype({"timestamp": "datetime64[ns, UTC]"})
    edited = sp.edit().replace(UID, "total", totals.to_pandas()).replace(UID, "last", sp.table(UID, "last").to_arrow())
    copied = edited.replace_timers(UID, timers).write(tmp_path / "two")
    model.total = defaultdict(int, {key: 10 * value for key, value in model.total.items()})
    check(copied, model)
    with pytest.raises(UsageError, match="a table is a DataFrame of Polars' or pandas', or of Arrow's, not dict"):
        sp.edit().replace(UID, "total", {"value": [1]})


class Doubled(Mean):
    accumulator_type = float


class Wider(KeyedProcess[Event, Event]):
    """`Everything` after a change: the total has become a record, the mean another one, and there is another state."""

    total = ValueState(Item)
    mean = AggregatingState(Doubled())
    fresh = MapState(str, int)

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        pass


def test_a_state_can_be_migrated_to_another_type(tmp_path):
    """What a restore would refuse is taken once the table has the new type."""
    harness, _ = filled([("a", 1, 7), ("b", 2, 9)], 2)
    node = process_node(Wider(), Event, keys=KEYS)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    with pytest.raises(IncompatibleStateError, match=r"'(total|mean)'"):
        restored(tmp_path / "one", node, 1)
    item = pl.struct(
        pl.col("value").cast(pl.String).alias("name"),
        pl.lit(["x"]).alias("tags"),
        pl.lit(START).cast(pl.Datetime("us", "UTC")).alias("seen"),
        pl.lit(None, pl.String).alias("note"),
    )
    frame = sp.table(UID, "total").with_columns(item.alias("value"))
    with pytest.raises(UsageError, match=r"column 'value' is Struct.*, need Int64"):
        sp.edit().replace(UID, "total", frame)
    fresh = pl.DataFrame({"account": ["z"], "branch": [9], "map_key": ["k"], "value": [5]})
    with pytest.raises(UsageError, match="no state 'fresh'"):
        sp.edit().replace(UID, "fresh", fresh)
    with pytest.raises(UsageError, match="it has a key, where OperatorListState does not belong"):
        sp.edit().replace(UID, "fresh", fresh, declared=OperatorListState(int))
    edited = sp.edit().replace(UID, "total", frame, declared=ValueState(Item))
    means = sp.table(UID, "mean").with_columns(value=pl.col("value").struct.field("sum").cast(pl.Float64))
    edited = edited.replace(UID, "mean", means, declared=AggregatingState(Doubled()))
    copied = edited.replace(UID, "fresh", fresh, declared=MapState(str, int)).write(tmp_path / "two")
    assert copied.table(UID, "fresh").equals(fresh)
    assert copied.table(UID, "last").equals(sp.table(UID, "last"))
    again = savepoint.read(export(restored(tmp_path / "two", node, 1), node, tmp_path / "three"))
    assert sorted(again.table(UID, "total")["value"].struct["name"]) == ["7", "9"]
    assert again.table(UID, "fresh").equals(fresh)
    assert sorted(again.table(UID, "mean")["value"]) == [7.0, 9.0]


@pytest.mark.parametrize(
    ("state", "change", "message"),
    [
        ("total", lambda f: f.drop("value"), "column 'value' is missing"),
        ("total", lambda f: f.rename({"value": "valu"}), "no column 'valu'; did you mean 'value'"),
        ("total", lambda f: f.with_columns(value=pl.lit("x")), "'value' is String, need Int64"),
        ("total", lambda f: f.with_columns(branch=pl.lit(1.0)), "'branch' is Float64, need Int64"),
        ("total", lambda f: f.with_columns(branch=pl.lit(1 << 63, pl.UInt64)), "'branch' is UInt64, need Int64"),
        ("total", lambda f: f.with_columns(value=pl.lit(None, pl.Int64)), "value is null"),
        ("total", lambda f: pl.concat([f, f]), "has the same entry twice"),
        ("items", lambda f: f.with_columns(index=pl.lit(0, pl.Int64)), "has the same entry twice"),
        ("entries", lambda f: f.with_columns(map_key=pl.lit(0, pl.Int64)), "has the same entry twice"),
        ("record", lambda f: f.with_columns(pl.col("value").struct.with_fields(name=pl.lit(None, pl.String))),
         "in field 'name' is null"),
        ("totl", lambda f: f, "no state 'totl'; did you mean 'total'"),
        (None, lambda f: f, "has states by name: brief"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(tmp_path, state, change, message):
    """Before anything is written."""
    harness, _ = filled([("a", 1, 7), ("a", 1, 8)], 1)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    frame = sp.table(UID, state if state in sp.operator(UID).states else "total")
    with pytest.raises(UsageError, match=message):
        sp.edit().replace(UID, state, change(frame))


def test_wrong_names_and_folders_are_refused(tmp_path):
    """The nearest operator, what has no timers or splits, a folder that is in use, a savepoint that is none."""
    harness, _ = filled([("a", 1, 7)], 1)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    for attempt in (lambda: sp.table("testd"), lambda: sp.edit().replace("testd", "total", pl.DataFrame())):
        with pytest.raises(UsageError, match="did you mean 'tested'"):
            attempt()
    with pytest.raises(UsageError, match="has no splits"):
        sp.splits(UID)
    timers = sp.timers(UID)
    with pytest.raises(UsageError, match="domain is 'wall'"):
        sp.edit().replace_timers(UID, timers.with_columns(domain=pl.lit("wall")))
    with pytest.raises(UsageError, match="there is something already"):
        sp.edit().write(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"it has no savepoint\.json"):
        savepoint.read(tmp_path / "empty")


@dataclass
class Named:
    value: str
    index: int


class OddNames(KeyedProcess[Named, Named]):
    value = ListState(int)

    def on_row(self, row: Named, ctx: KeyedContext[Named]) -> None:
        self.value.add(row.index)


def test_columns_make_way_for_keys_of_the_same_name(tmp_path):
    """An underscore behind what is not a key; the table goes back as it came."""
    keys = ("value", "index")
    node = process_node(OddNames(), Named, keys=keys)
    harness = OperatorHarness.of_process(OddNames(), Named, keys=keys, max_parallelism=16)
    harness.rows(Named("a", 1), Named("a", 1), Named("b", 2))
    sp = savepoint.read(export(harness, node, tmp_path / "one"))
    table = sp.table(UID, "value")
    assert table.columns == ["value", "index", "index_", "value_"]
    assert sorted(table.rows()) == [("a", 1, 0, 1), ("a", 1, 1, 1), ("b", 2, 0, 2)]
    assert sp.table(UID).columns == ["value", "index", "value_"]
    copied = sp.edit().replace(UID, "value", table).write(tmp_path / "two")
    assert_frame_equal(raw(copied), raw(sp))


def test_damage_is_named_when_it_is_met(tmp_path):
    """A changed object does not become rows, and no copy of it is sealed."""
    harness, _ = filled([("a", n, n) for n in range(9)], 1)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    (path,) = (tmp_path / "one" / "objects").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptDataError, match=f"{path.name}: not what was written"):
        sp.table(UID, "total")
    with pytest.raises(CorruptDataError, match=path.name):
        sp.edit().write(tmp_path / "two")
    with pytest.raises(UsageError, match="neither a folder that is there"):
        savepoint.read(tmp_path / "two")


def test_times_to_live_are_columns(tmp_path):
    """`expires` is shown and kept; without it the time to live begins anew with the job."""
    harness, _ = filled([("a", 1, 7)], 1)
    sp = savepoint.read(export(harness, NODE, tmp_path / "one"))
    table = sp.table(UID, "brief")
    hour = datetime(1970, 1, 1, 1, 0, 1, tzinfo=UTC)
    assert table.rows() == [("a", 1, 7, hour)]
    sooner = table.with_columns(pl.col("expires") - timedelta(minutes=30))
    edited = sp.edit().replace(UID, "brief", sooner).replace(UID, "brief_items", sp.table(UID, "brief_items"))
    edited.write(tmp_path / "two")
    late = restored(tmp_path / "two", NODE, 1, now_us=3_000_000_000)
    again = savepoint.read(export(late, NODE, tmp_path / "three"))
    assert again.table(UID, "brief").height == 0
    assert again.table(UID, "brief_items")["expires"].to_list() == [hour]
    sp.edit().replace(UID, "brief", table.drop("expires")).write(tmp_path / "four")
    anew = restored(tmp_path / "four", NODE, 1, now_us=3_000_000_000)
    again = savepoint.read(export(anew, NODE, tmp_path / "five"))
    assert again.table(UID, "brief")["expires"].to_list() == [datetime(1970, 1, 1, 1, 50, tzinfo=UTC)]

"""Keyed state bound to an operator: the objects that stand in for the declarations while a pipeline runs.

Each bound state is a subclass of its declaration that works on a `Table` for the current key of a `KeyCursor`. The
operator sets the cursor before it calls user code. Entries with a time to live are stored as `(expires_us, value)`;
expired ones are never returned, and are removed when they are met and when a snapshot finds them (Flink: StateTtlConfig
with OnCreateAndWrite, or OnReadAndWrite where the declaration says so, and NeverReturnExpired).

Responsible for the meaning of get, set and the others, and for turning a state into neutral rows and back. Gathering
the states of an operator into segments is `penstock.state.keyed_backend`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import msgspec
import polars as pl

from penstock.errors import UserCodeError, nearest
from penstock.state.backend import ABSENT, FrozenTable, Table
from penstock.state.batch_keys import BatchKeys, ValueColumn
from penstock.state.codec import ValueCodec
from penstock.state.declarations import AggregatingState, ListState, MapState, ReducingState, State, ValueState

StoredRow = tuple[Any, bytes | None, bytes, int | None]
"""Key, map key, value and expiry of one row of a segment."""


class _NoKey:
    __slots__ = ()

    def __hash__(self) -> int:
        raise UserCodeError(
            "keyed state was used where there is no key (in open, close or on_broadcast); use it in on_row and on_timer, "
            "and where rows come in batches by get_many, set_many and clear_many, or behind ctx.set_current_key(key)"
        )


NO_KEY: Final = _NoKey()


class KeyCursor:
    """The key whose row or timer is being processed; while a batch is, its keys."""

    __slots__ = ("batch", "key")

    def __init__(self) -> None:
        self.key: Any = NO_KEY
        self.batch: BatchKeys | None = None

    def keys_of(self, keys: pl.Series) -> list[Any]:
        """Keys of the batch as states know them.

        Raises:
            UserCodeError: they are not of the batch, or there is none.
        """
        if self.batch is None:
            raise UserCodeError("get_many, set_many and clear_many are for batches; here use get, set and clear")
        return self.batch.of(keys)


class Binding:
    """What bound states share: the cursor, the clock, and how values are stored."""

    def __init__(self, declaration: State, cursor: KeyCursor, now_us: Callable[[], int], operator: str) -> None:
        self.cursor = cursor
        self.now_us = now_us
        self.ttl_us = declaration.ttl_us
        self.renewed_by_reads = declaration.renewed_by_reads
        where = f"operator {operator!r}, state {declaration.name!r}"
        self.codecs = [ValueCodec(hint, where) for hint in declaration.types]
        self.column = ValueColumn(declaration.types[-1], where)

    def until(self) -> int | None:
        """When what is written now expires."""
        return None if self.ttl_us is None else self.now_us() + self.ttl_us


_CALLED_ELSEWHERE: Final = {"value": "get", "update": "set", "put": "set", "append": "add"}
"""What Flink and Python call methods of states."""


class BoundState:
    """The side of a bound state that the backend sees."""

    table: Table

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or name == "table":
                raise AttributeError(name)
            known = [each for each in dir(State) + list(vars(type(self))) if not each.startswith("_")]
            meant = _CALLED_ELSEWHERE.get(name)
            advice = f"did you mean {meant!r}?" if meant in known else nearest(name, sorted(known))
            raise AttributeError(f"a {type(self).__name__.removeprefix('Bound')} has no {name!r}; {advice}")

    def stored(self, frozen: FrozenTable, now_us: int) -> Iterator[StoredRow]:
        """The rows of a frozen table; runs in the background."""
        raise NotImplementedError

    def load(self, rows: Sequence[StoredRow]) -> None:
        """Add rows that `stored` made, perhaps in a former life."""
        raise NotImplementedError

    def purge(self, key: Any) -> None:
        """Remove what has expired of a key."""


# -- one value ----------------------------------------------------------------------------------------------------------


class BoundValueState(ValueState[Any], BoundState):
    """One value per key."""

    def __init__(self, declaration: State, binding: Binding) -> None:
        State.__init__(self, *declaration.types)
        self.name = declaration.name
        self._binding = binding
        self._cursor = binding.cursor
        self._codec = binding.codecs[0]
        self._column = binding.column
        self._exact = self._codec.exact
        self.table = Table(None if self._codec.immutable else self._codec.copy)

    def get(self, default: Any = None) -> Any:
        key = self._cursor.key
        value = self.table.live.get(key, ABSENT)
        if value is ABSENT:
            value = self.table.find(key)
            if value is ABSENT:
                return default
        return value

    def set(self, value: Any) -> None:
        if value.__class__ is not self._exact:
            value = self._codec.checked(value)
        self.table.live[self._cursor.key] = value

    def clear(self) -> None:
        self.table.remove(self._cursor.key)

    def get_many(self, keys: pl.Series, default: Any = None) -> pl.Series:
        return self._column.series(self._found(self._cursor.keys_of(keys), default))

    def _found(self, keys: list[Any], default: Any) -> list[Any]:
        found = self.table.get_many(keys)
        return [default if value is ABSENT else value for value in found] if ABSENT in found else found

    def set_many(self, keys: pl.Series, values: pl.Series) -> None:
        of = self._cursor.keys_of(keys)
        self.table.live.update(zip(of, self._column.values(values, len(of)), strict=True))

    def clear_many(self, keys: pl.Series) -> None:
        for key in self._cursor.keys_of(keys):
            self.table.remove(key)

    def stored(self, frozen: FrozenTable, now_us: int) -> Iterator[StoredRow]:
        encode = self._codec.encode
        for key, value in frozen:
            yield key, None, encode(value), None

    def load(self, rows: Sequence[StoredRow]) -> None:
        decode = self._codec.decode
        for key, _, value, _ in rows:
            self.table.live[key] = decode(value)


class BoundExpiringValueState(BoundValueState):
    """One value per key with a time to live."""

    def __init__(self, declaration: State, binding: Binding) -> None:
        super().__init__(declaration, binding)
        copy = self._codec.copy
        self.table = Table(None if self._codec.immutable else lambda entry: (entry[0], copy(entry[1])))
        self._ttl_us = cast("int", binding.ttl_us)

    def get(self, default: Any = None) -> Any:
        key = self._cursor.key
        entry = self.table.get(key)
        if entry is ABSENT:
            return default
        if entry[0] <= self._binding.now_us():
            self.table.remove(key)
            return default
        if self._binding.renewed_by_reads:
            self.table.live[key] = (self._binding.until(), entry[1])
        return entry[1]

    def set(self, value: Any) -> None:
        if value.__class__ is not self._exact:
            value = self._codec.checked(value)
        self.table.live[self._cursor.key] = (self._binding.now_us() + self._ttl_us, value)

    def _found(self, keys: list[Any], default: Any) -> list[Any]:
        table, now, renews = self.table, self._binding.now_us(), self._binding.renewed_by_reads
        found: list[Any] = []
        for key, entry in zip(keys, table.get_many(keys), strict=True):
            if entry is not ABSENT and entry[0] <= now:
                table.remove(key)
            elif entry is not ABSENT and renews:
                table.live[key] = (now + self._ttl_us, entry[1])
            found.append(default if entry is ABSENT or entry[0] <= now else entry[1])
        return found

    def set_many(self, keys: pl.Series, values: pl.Series) -> None:
        of = self._cursor.keys_of(keys)
        until = repeat(self._binding.until())
        entries = zip(until, self._column.values(values, len(of)), strict=False)
        self.table.live.update(zip(of, entries, strict=True))

    def stored(self, frozen: FrozenTable, now_us: int) -> Iterator[StoredRow]:
        encode = self._codec.encode
        for key, (expires, value) in frozen:
            if expires <= now_us:
                frozen.expired(key)
            else:
                yield key, None, encode(value), expires

    def load(self, rows: Sequence[StoredRow]) -> None:
        fresh = self._binding.until()
        for key, _, value, expires in rows:
            self.table.live[key] = (fresh if expires is None else expires, self._codec.decode(value))

    def purge(self, key: Any) -> None:
        entry = self.table.get(key)
        if entry is not ABSENT and entry[0] <= self._binding.now_us():
            self.table.remove(key)


# -- one folded value, on a value state of any backend ------------------------------------------------------------------


class BoundReducingState(ReducingState[Any]):
    """The folded value is that of a value state."""

    def __init__(self, declaration: ReducingState[Any], value: ValueState[Any]) -> None:
        ReducingState.__init__(self, declaration.function, declaration.types[0])
        self.name = declaration.name
        self._value = value

    def get(self, default: Any = None) -> Any:
        return self._value.get(default)

    def add(self, value: Any) -> None:
        old = self._value.get(ABSENT)
        self._value.set(value if old is ABSENT else self.function(old, value))

    def clear(self) -> None:
        self._value.clear()


class BoundAggregatingState(AggregatingState[Any]):
    """The accumulator is that of a value state."""

    def __init__(self, declaration: AggregatingState[Any], value: ValueState[Any], copy: Callable[[Any], Any]) -> None:
        AggregatingState.__init__(self, declaration.accumulator)
        self.name = declaration.name
        self._value = value
        self._copy = copy

    def get(self, default: Any = None) -> Any:
        held = self._value.get(ABSENT)
        # A copy, because `result` may change what it is given, or give it to the user, and this one stays.
        return default if held is ABSENT else self.accumulator.result(self._copy(held))

    def add(self, *values: Any) -> None:
        held = self._value.get(ABSENT)
        self._value.set(self.accumulator.add(self.accumulator.create() if held is ABSENT else held, *values))

    def clear(self) -> None:
        self._value.clear()


def folding(declaration: State, bound: State, binding: Binding) -> State:
    """What users have of a bound state: itself, or what folds values into it."""
    value = cast("ValueState[Any]", bound)
    if isinstance(declaration, ReducingState):
        return BoundReducingState(cast("ReducingState[Any]", declaration), value)
    if isinstance(declaration, AggregatingState):
        return BoundAggregatingState(cast("AggregatingState[Any]", declaration), value, binding.codecs[0].copy)
    return bound


# -- many values per key ------------------------------------------------------------------------------------------------


class BoundListState(ListState[Any], BoundState):
    """A list of (expiry or None, value) per key."""

    def __init__(self, declaration: State, binding: Binding) -> None:
        State.__init__(self, *declaration.types)
        self.name = declaration.name
        self._binding = binding
        self._cursor = binding.cursor
        self._codec = binding.codecs[0]
        self.table = Table(self._copied)

    def _copied(self, entries: list[tuple[int | None, Any]]) -> list[tuple[int | None, Any]]:
        copy = self._codec.copy
        return [(expires, copy(value)) for expires, value in entries]

    def _entries(self) -> list[tuple[int | None, Any]]:
        """The entries of the current key that live, in place."""
        key = self._cursor.key
        entries = self.table.get(key)
        if entries is ABSENT:
            return []
        if self._binding.ttl_us is None:
            return entries
        now = self._binding.now_us()
        if any(expires is not None and expires <= now for expires, _ in entries):
            entries = [entry for entry in entries if entry[0] is None or entry[0] > now]
            self._replace(key, entries)
        return entries

    def _replace(self, key: Any, entries: list[tuple[int | None, Any]]) -> None:
        if entries:
            self.table.live[key] = entries
        else:
            self.table.remove(key)

    def _entry(self, value: Any) -> tuple[int | None, Any]:
        if value.__class__ is not self._codec.exact:
            value = self._codec.checked(value)
        return (self._binding.until(), value)

    def get(self) -> list[Any]:
        values = [value for _, value in self._entries()]
        if self._binding.renewed_by_reads:
            until = self._binding.until()
            self._replace(self._cursor.key, [(until, value) for value in values])
        return values

    def add(self, value: Any) -> None:
        entries = self._entries()
        entries.append(self._entry(value))
        if len(entries) == 1:
            self.table.live[self._cursor.key] = entries

    def update(self, values: list[Any]) -> None:
        self._replace(self._cursor.key, [self._entry(value) for value in values])

    def clear(self) -> None:
        self.table.remove(self._cursor.key)

    def stored(self, frozen: FrozenTable, now_us: int) -> Iterator[StoredRow]:
        """One row per run of elements that expire together: a msgpack array of them."""
        for key, entries in frozen:
            run: list[bytes] = []
            run_expires: int | None = None
            for expires, value in cast("list[tuple[int | None, Any]]", entries):
                if expires is not None and expires <= now_us:
                    frozen.expired(key)
                    continue
                if run and expires != run_expires:
                    yield key, None, array_of(run), run_expires
                    run = []
                run.append(self._codec.encode(value))
                run_expires = expires
            if run:
                yield key, None, array_of(run), run_expires

    def load(self, rows: Sequence[StoredRow]) -> None:
        ttl = self._binding.ttl_us
        fresh = self._binding.until()
        for key, _, data, expires in rows:
            until = None if ttl is None else (fresh if expires is None else expires)
            entries = self.table.live.setdefault(key, [])
            entries.extend((until, self._codec.decode(item)) for item in items_of(data))

    def purge(self, key: Any) -> None:
        current, self._cursor.key = self._cursor.key, key
        self._entries()
        self._cursor.key = current


class BoundMapState(MapState[Any, Any], BoundState):
    """A dictionary of (expiry or None, value) per key."""

    def __init__(self, declaration: State, binding: Binding) -> None:
        State.__init__(self, *declaration.types)
        self.name = declaration.name
        self._binding = binding
        self._cursor = binding.cursor
        self._key_codec, self._codec = binding.codecs
        self.table = Table(self._copied)

    def _copied(self, entries: dict[Any, tuple[int | None, Any]]) -> dict[Any, tuple[int | None, Any]]:
        if self._codec.immutable:
            return entries.copy()
        copy = self._codec.copy
        return {subkey: (expires, copy(value)) for subkey, (expires, value) in entries.items()}

    def _entries(self) -> dict[Any, tuple[int | None, Any]]:
        """The entries of the current key, in place, the expired ones included."""
        entries = self.table.get(self._cursor.key)
        return {} if entries is ABSENT else entries

    def _lives(self, entry: tuple[int | None, Any]) -> bool:
        return entry[0] is None or entry[0] > self._binding.now_us()

    def get(self, key: Any, default: Any = None) -> Any:
        entries = self.table.get(self._cursor.key)
        entry = None if entries is ABSENT else entries.get(key)
        if entry is None:
            return default
        if not self._lives(entry):
            self.remove(key)
            return default
        if self._binding.renewed_by_reads:
            entries[key] = (self._binding.until(), entry[1])
        return entry[1]

    def set(self, key: Any, value: Any) -> None:
        if key.__class__ is not self._key_codec.exact:
            key = self._key_codec.checked(key)
        if value.__class__ is not self._codec.exact:
            value = self._codec.checked(value)
        entries = self._entries()
        entries[key] = (self._binding.until(), value)
        if len(entries) == 1:
            self.table.live[self._cursor.key] = entries

    def remove(self, key: Any) -> None:
        entries = self._entries()
        if entries.pop(key, None) is not None and not entries:
            self.table.remove(self._cursor.key)

    def contains(self, key: Any) -> bool:
        return self.get(key, ABSENT) is not ABSENT

    def items(self) -> Iterator[tuple[Any, Any]]:
        # A list first: users may change the state while they iterate.
        entries = self._entries()
        living = [(key, entry[1]) for key, entry in entries.items() if self._lives(entry)]
        if self._binding.renewed_by_reads:
            until = self._binding.until()
            entries.update((key, (until, value)) for key, value in living)
        return iter(living)

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def clear(self) -> None:
        self.table.remove(self._cursor.key)

    def stored(self, frozen: FrozenTable, now_us: int) -> Iterator[StoredRow]:
        for key, entries in frozen:
            for subkey, (expires, value) in cast("dict[Any, tuple[int | None, Any]]", entries).items():
                if expires is not None and expires <= now_us:
                    frozen.expired(key)
                else:
                    yield key, self._key_codec.encode(subkey), self._codec.encode(value), expires

    def load(self, rows: Sequence[StoredRow]) -> None:
        ttl = self._binding.ttl_us
        fresh = self._binding.until()
        for key, subkey, value, expires in rows:
            until = None if ttl is None else (fresh if expires is None else expires)
            entries = self.table.live.setdefault(key, {})
            entries[self._key_codec.decode(cast("bytes", subkey))] = (until, self._codec.decode(value))

    def purge(self, key: Any) -> None:
        entries = self.table.get(key)
        if entries is ABSENT:
            return
        for subkey in [subkey for subkey, entry in entries.items() if not self._lives(entry)]:
            del entries[subkey]
        if not entries:
            self.table.remove(key)


def bind(declaration: State, binding: Binding) -> State:
    """The bound state of a keyed declaration; of one that folds that of its value (see `folding`)."""
    if isinstance(declaration, ListState):
        return BoundListState(declaration, binding)
    if isinstance(declaration, MapState):
        return BoundMapState(declaration, binding)
    bound = BoundValueState if binding.ttl_us is None else BoundExpiringValueState
    return bound(declaration, binding)


# -- the elements of list state: msgpack arrays -------------------------------------------------------------------------


def array_of(items: Sequence[bytes]) -> bytes:
    """A msgpack array of encoded items."""
    return msgspec.msgpack.encode([msgspec.Raw(item) for item in items])


def items_of(data: bytes) -> list[bytes]:
    """The encoded items of a msgpack array."""
    return [bytes(item) for item in msgspec.msgpack.decode(data, type=list[msgspec.Raw])]

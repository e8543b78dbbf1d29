"""State declarations: what users write on the class of a process function, and how a state's type is described.

A declaration (`last = ValueState(float, ttl="1h")`) says name, kind, type and time to live before a row arrives. When an
operator opens, each declaration is replaced on the operator's own copy of the process by a bound state of the same
class (`penstock.state.keyed_state`), so what users call is always a method declared here. Responsible for
declarations: how they compare with those of a snapshot is in `penstock.state.compatibility`, and where values live is
the backend's business.

Imports neither numpy nor Polars: this module is part of `import penstock`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, TypeVar, overload

from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError

if TYPE_CHECKING:
    import polars as pl

    from penstock.expressions import Accumulator

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
R = TypeVar("R")

Renew = Literal["write", "read"]
"""What a time to live begins anew with: a write, or a read as well (Flink: OnCreateAndWrite, OnReadAndWrite)."""


class State(ABC):
    """Base of all state declarations."""

    kind: ClassVar[str]
    keyed: ClassVar[bool] = True
    exact: bool = False
    """Whether ints that a snapshot has must not become floats, because they mean something else than these."""

    def __init__(self, *types: Any, ttl: Duration | None = None, renew: Renew = "write") -> None:
        self.name = ""
        self.types: tuple[Any, ...] = types
        self.ttl_us: int | None = (
            None if ttl is None else duration_us(ttl, f"{type(self).__name__}: ttl", positive=True)
        )
        self.renewed_by_reads = renew == "read"
        if self.renewed_by_reads and ttl is None:
            raise PipelineError(f'{type(self).__name__}: renew="read" is of a time to live; give ttl= as well')

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def _unbound(self) -> NoReturn:
        if not self.name:
            kind = type(self).__name__
            raise PipelineError(
                f"a {kind} was made in a method or outside a class, where it belongs to no operator; declare it in the "
                f"class of the process, beside the methods: name = {kind}(...)"
            )
        raise PipelineError(
            f"state {self.name!r} was used outside a running pipeline; it exists only in the "
            "methods of a process that Penstock runs, such as on_row (penstock.testing runs one in a test)"
        )

    @abstractmethod
    def clear(self) -> None:
        """Forget the content."""


class ValueState(State, Generic[T]):
    """One value per key.

    Args:
        value_type: type of the value: a scalar, dataclass, `msgspec.Struct`, or list or dict of such.
        ttl: how long a value lives after it was written, in processing time; it is never returned after that.
        renew: what begins it anew: `"write"`, or `"read"` as well (Flink's OnReadAndWrite), which then costs as much.

    Example:
        >>> class Each(KeyedProcess[Bid, Total]):
        ...     highest = ValueState(float, ttl="1h")
        ...     def on_row(self, row, ctx):
        ...         self.highest.set(max(row.price, self.highest.get(default=0.0)))
        ...         ctx.emit(Total(row.auction, self.highest.get(default=0.0)))
        >>> bids.key_by("auction").process(Each()).collect().rows()
        [(1, 50.0), (2, 250.0), (1, 120.0), (2, 250.0)]
    """

    kind = "value"

    @checked
    def __init__(self, value_type: type[T], *, ttl: Duration | None = None, renew: Renew = "write") -> None:
        super().__init__(value_type, ttl=ttl, renew=renew)

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: D) -> T | D: ...
    def get(self, default: Any = None) -> Any:
        """The value of the current key, or `default`."""
        self._unbound()

    def set(self, value: T) -> None:
        """Replace the value of the current key."""
        self._unbound()

    def clear(self) -> None:
        """Forget the value of the current key."""
        self._unbound()

    def get_many(self, keys: pl.Series, default: T | None = None) -> pl.Series:
        """In `on_batch`: the value of each of `keys`, or `default`; null where there is none.

        Raises:
            UserCodeError: a key is not of the batch, or values of this type are no column.
        """
        self._unbound()

    def set_many(self, keys: pl.Series, values: pl.Series) -> None:
        """In `on_batch`: replace the value of each of `keys`; of a key that comes several times the last one stays.

        Raises:
            UserCodeError: a key is not of the batch, there are not as many values, or some are null or of another type.
        """
        self._unbound()

    def clear_many(self, keys: pl.Series) -> None:
        """In `on_batch`: forget the value of each of `keys`.

        Raises:
            UserCodeError: a key is not of the batch.
        """
        self._unbound()


class ListState(State, Generic[T]):
    """A list of values per key; with a time to live, each element has its own, and `renew="read"` renews all at once.

    Example:
        >>> class Each(KeyedProcess[Bid, Total]):
        ...     prices = ListState(float)
        ...     def on_row(self, row, ctx):
        ...         self.prices.add(row.price)
        ...         ctx.emit(Total(row.auction, sum(self.prices.get())))
        >>> bids.key_by("auction").process(Each()).collect().rows()
        [(1, 50.0), (2, 250.0), (1, 170.0), (2, 330.0)]
    """

    kind = "list"

    @checked
    def __init__(self, element_type: type[T], *, ttl: Duration | None = None, renew: Renew = "write") -> None:
        super().__init__(element_type, ttl=ttl, renew=renew)

    def get(self) -> list[T]:
        """The elements of the current key in the order in which they were added: a new list."""
        self._unbound()

    def add(self, value: T) -> None:
        """Append an element."""
        self._unbound()

    def update(self, values: list[T]) -> None:
        """Replace all elements."""
        self._unbound()

    def clear(self) -> None:
        """Forget the elements of the current key."""
        self._unbound()


class MapState(State, Generic[K, V]):
    """A dictionary per key; with a time to live, each entry has its own, and `renew="read"` renews those that are read.

    Example:
        >>> class Each(KeyedProcess[Bid, Total]):
        ...     seen = MapState(str, int)
        ...     def on_row(self, row, ctx):
        ...         for tag in row.tags:
        ...             self.seen.set(tag, self.seen.get(tag, default=0) + 1)
        ...         ctx.emit(Total(row.auction, len(list(self.seen.keys()))))
        >>> bids.key_by("auction").process(Each()).collect().rows()
        [(1, 1.0), (2, 0.0), (1, 3.0), (2, 1.0)]
    """

    kind = "map"

    @checked
    def __init__(
        self, key_type: type[K], value_type: type[V], *, ttl: Duration | None = None, renew: Renew = "write"
    ) -> None:
        super().__init__(key_type, value_type, ttl=ttl, renew=renew)

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value of an entry of the current key, or `default`."""
        self._unbound()

    def set(self, key: K, value: V) -> None:
        """Add or replace an entry."""
        self._unbound()

    def remove(self, key: K) -> None:
        """Remove an entry; nothing happens if there is none."""
        self._unbound()

    def contains(self, key: K) -> bool:
        """Whether there is an entry."""
        self._unbound()

    def items(self) -> Iterator[tuple[K, V]]:
        """All entries of the current key, as they are now."""
        self._unbound()

    def keys(self) -> Iterator[K]:
        """The keys of all entries."""
        self._unbound()

    def values(self) -> Iterator[V]:
        """The values of all entries."""
        self._unbound()

    def clear(self) -> None:
        """Forget all entries of the current key."""
        self._unbound()


class ReducingState(State, Generic[T]):
    """One value per key, into which `function` folds every added one: `function(old, added)`.

    Example:
        >>> class Each(KeyedProcess[Bid, Total]):
        ...     highest = ReducingState(max, float)
        ...     def on_row(self, row, ctx):
        ...         self.highest.add(row.price)
        ...         ctx.emit(Total(row.auction, self.highest.get(default=0.0)))
        >>> bids.key_by("auction").process(Each()).collect().rows()
        [(1, 50.0), (2, 250.0), (1, 120.0), (2, 250.0)]
    """

    kind = "reducing"

    @checked
    def __init__(
        self, function: Callable[[T, T], T], value_type: type[T], *, ttl: Duration | None = None, renew: Renew = "write"
    ) -> None:
        super().__init__(value_type, ttl=ttl, renew=renew)
        self.function = function

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: D) -> T | D: ...
    def get(self, default: Any = None) -> Any:
        """The folded value of the current key, or `default` if nothing was added."""
        self._unbound()

    def add(self, value: T) -> None:
        """Fold a value in."""
        self._unbound()

    def clear(self) -> None:
        """Forget the value of the current key."""
        self._unbound()


class AggregatingState(State, Generic[R]):
    """What an accumulator makes of the values that were added to a key.

    The accumulator is what is stored, and what a savepoint shows. `result` is given a copy of it; `merge` is not called.

    Args:
        accumulator: an instance of a class of yours, see `Accumulator`; `aggregate` takes the same.
        ttl: how long it lives after the last value was added, in processing time.
        renew: whether reads renew that, too ("read").

    Raises:
        PipelineError: it has no `accumulator_type`.

    Example:
        >>> class Mean(Accumulator[tuple[float, int], float]):
        ...     accumulator_type = tuple[float, int]
        ...     def create(self) -> tuple[float, int]:
        ...         return 0.0, 0
        ...     def add(self, accumulator: tuple[float, int], value: float) -> tuple[float, int]:
        ...         return accumulator[0] + value, accumulator[1] + 1
        ...     def merge(self, left: tuple[float, int], right: tuple[float, int]) -> tuple[float, int]:
        ...         return left[0] + right[0], left[1] + right[1]
        ...     def result(self, accumulator: tuple[float, int]) -> float:
        ...         return accumulator[0] / accumulator[1]
        >>> class Each(KeyedProcess[Bid, Total]):
        ...     mean = AggregatingState(Mean())
        ...     def on_row(self, row, ctx):
        ...         self.mean.add(row.price)
        ...         ctx.emit(Total(row.auction, self.mean.get(default=0.0)))
        >>> bids.key_by("auction").process(Each()).collect().rows()
        [(1, 50.0), (2, 250.0), (1, 85.0), (2, 165.0)]
    """

    kind = "aggregating"

    @checked
    def __init__(
        self, accumulator: Accumulator[Any, R], *, ttl: Duration | None = None, renew: Renew = "write"
    ) -> None:
        of = type(accumulator)
        if of.accumulator_type is None:
            raise PipelineError(
                f"AggregatingState: {of.__name__} does not say what its accumulator is; add for example "
                "`accumulator_type = float`"
            )
        super().__init__(of.accumulator_type, ttl=ttl, renew=renew)
        self.accumulator = accumulator

    @overload
    def get(self) -> R | None: ...
    @overload
    def get(self, default: D) -> R | D: ...
    def get(self, default: Any = None) -> Any:
        """The result of the current key, or `default` if nothing was added."""
        self._unbound()

    def add(self, *values: Any) -> None:
        """Have the accumulator take a value: as many as its `add` takes beside the accumulator."""
        self._unbound()

    def clear(self) -> None:
        """Forget the accumulator of the current key."""
        self._unbound()


class OperatorListState(State, Generic[T]):
    """A list per subtask, without key. When the parallelism changes, its elements are dealt out anew.

    Example:
        >>> class Each(Process[Bid, Total]):
        ...     prices = OperatorListState(float)
        ...     def on_row(self, row, ctx):
        ...         self.prices.add(row.price)
        ...         ctx.emit(Total(row.auction, sum(self.prices.get())))
        >>> bids.process(Each()).collect().rows()
        [(1, 50.0), (2, 300.0), (1, 420.0), (2, 500.0)]
    """

    kind = "operator_list"
    keyed = False

    @checked
    def __init__(self, element_type: type[T]) -> None:
        super().__init__(element_type)

    def get(self) -> list[T]:
        """The elements of this subtask: a new list."""
        self._unbound()

    def add(self, value: T) -> None:
        """Append an element."""
        self._unbound()

    def update(self, values: list[T]) -> None:
        """Replace all elements."""
        self._unbound()

    def clear(self) -> None:
        """Forget all elements."""
        self._unbound()


class UnionListState(OperatorListState[T]):
    """A list per subtask; after a restore every subtask gets the elements of all of them.

    Example:
        >>> class Each(Process[Bid, Total]):
        ...     prices = UnionListState(float)
        ...     def on_row(self, row, ctx):
        ...         self.prices.add(row.price)
        ...         ctx.emit(Total(row.auction, sum(self.prices.get())))
        >>> bids.process(Each()).collect().rows()
        [(1, 50.0), (2, 300.0), (1, 420.0), (2, 500.0)]
    """

    kind = "union_list"


class BroadcastState(State, Generic[K, V]):
    """A dictionary without key that is the same in every subtask: what the rows of a broadcast stream make of it.

    `on_broadcast` writes it, everything else reads it. Its values are not to be changed in place. When the parallelism
    changes, every subtask gets a copy.

    Example:
        >>> class Above(BroadcastProcess[Bid, Total, Total]):
        ...     limits = BroadcastState(int, float)
        ...     def on_broadcast(self, row, ctx):
        ...         self.limits.set(row.auction, row.price)
        ...     def on_row(self, row, ctx):
        ...         if row.price > self.limits.get(row.auction, default=100.0):
        ...             ctx.emit(Total(row.auction, row.price))
        >>> limits = bids.filter(col("price") < 0).map(lambda bid: Total(bid.auction, 0.0), returns=Total)
        >>> sorted(bids.connect(limits.broadcast()).process(Above()).collect().rows())
        [(1, 120.0), (2, 250.0)]
    """

    kind = "broadcast"
    keyed = False

    @checked
    def __init__(self, key_type: type[K], value_type: type[V]) -> None:
        super().__init__(key_type, value_type)

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value of an entry, or `default`."""
        self._unbound()

    def contains(self, key: K) -> bool:
        """Whether there is an entry."""
        self._unbound()

    def items(self) -> Iterator[tuple[K, V]]:
        """All entries, as they are now."""
        self._unbound()

    def keys(self) -> Iterator[K]:
        """The keys of all entries."""
        self._unbound()

    def values(self) -> Iterator[V]:
        """The values of all entries."""
        self._unbound()

    def set(self, key: K, value: V) -> None:
        """Add or replace an entry; only in `on_broadcast`."""
        self._unbound()

    def remove(self, key: K) -> None:
        """Remove an entry, if there is one; only in `on_broadcast`."""
        self._unbound()

    def clear(self) -> None:
        """Forget all entries; only in `on_broadcast`."""
        self._unbound()


# -- declarations of a class --------------------------------------------------------------------------------------------


def declared_states(process: object) -> dict[str, State]:
    """The state declarations of a process (instance or class) by name, those of base classes included."""
    cls = process if isinstance(process, type) else type(process)
    found: dict[str, State] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, State):
                found[name] = value
            else:
                found.pop(name, None)
    return found


def describe_states(process: object) -> dict[str, Any]:
    """A JSON value per declared state: kind, types, time to live and what renews it. What a savepoint keeps.

    A restore compares kind and types.

    Raises:
        PipelineError: a type cannot be stored.
    """
    cls = process if isinstance(process, type) else type(process)
    return {name: _describe(state, f"{cls.__name__}.{name}") for name, state in declared_states(cls).items()}


def _describe(state: State, where: str) -> dict[str, Any]:
    names = ("key", "value") if state.kind in ("map", "broadcast") else ("value",)
    described: dict[str, Any] = {"kind": state.kind}
    described.update((name, describe_type(hint, where)) for name, hint in zip(names, state.types, strict=True))
    if state.ttl_us is not None:
        described["ttl_us"] = state.ttl_us
    if state.renewed_by_reads:
        described["renew"] = "read"
    if state.exact:
        described["exact"] = True
    return described


def describe_type(hint: Any, where: str) -> Any:
    """A JSON value that names the type of stored values as msgspec writes them.

    Raises:
        PipelineError: msgspec cannot store such values; `where` names the state.
    """
    import msgspec

    try:
        info: Any = msgspec.inspect.type_info(hint)
    except (TypeError, NameError) as error:
        raise PipelineError(f"state {where}: values of type {hint!r} cannot be stored: {error}") from error
    return _describe_info(info, where, ())


def _describe_info(info: Any, where: str, above: tuple[Any, ...]) -> Any:
    from msgspec import inspect

    match info:
        case inspect.Metadata():
            return _describe_info(info.type, where, above)
        case inspect.CustomType() | inspect.RawType():
            raise PipelineError(
                f"state {where}: values of type {getattr(info, 'cls', 'Raw')!r} cannot be stored; use scalars, "
                "dataclasses, msgspec.Structs, lists and dicts"
            )
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            if info.cls in above:
                return {"recursive": info.cls.__name__}
            return _describe_record(info, where, (*above, info.cls))
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType():
            return {"list": _describe_info(info.item_type, where, above)}
        case inspect.TupleType():
            return {"tuple": [_describe_info(item, where, above) for item in info.item_types]}
        case inspect.DictType():
            return {"dict": [_describe_info(part, where, above) for part in (info.key_type, info.value_type)]}
        case inspect.UnionType():
            return {"union": [_describe_info(part, where, above) for part in info.types]}
        case inspect.EnumType():
            return {"enum": sorted(str(member.value) for member in info.cls)}
        case inspect.LiteralType():
            return {"enum": sorted(str(value) for value in info.values)}
        case _:
            return type(info).__name__.removesuffix("Type").lower()


def _describe_record(info: Any, where: str, above: tuple[Any, ...]) -> dict[str, Any]:
    from msgspec import inspect

    fields = [
        {
            "name": field.encode_name,
            "type": _describe_info(field.type, where, above),
            "required": field.required,
        }
        for field in info.fields
    ]
    described: dict[str, Any] = {"struct": info.cls.__name__, "fields": fields}
    if getattr(info, "array_like", isinstance(info, inspect.NamedTupleType)):
        described["array_like"] = True
    if getattr(info, "tag", None) is not None:
        described["tag"] = info.tag
    return described

"""Operator state without key, bound to an operator.

Lists are dealt out anew, or given to all, after a restore; broadcast state is one dictionary, the same in every subtask.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import UserCodeError
from penstock.state.codec import ValueCodec
from penstock.state.declarations import BroadcastState, OperatorListState, State, UnionListState

if TYPE_CHECKING:
    from penstock.task.operator import RestoredState


class BoundOperatorList(OperatorListState[Any]):
    """The list of one subtask."""

    def __init__(self, declaration: State, operator: str) -> None:
        State.__init__(self, *declaration.types)
        self.name = declaration.name
        self._codec = ValueCodec(declaration.types[0], f"operator {operator!r}, state {declaration.name!r}")
        self._values: list[Any] = []

    def get(self) -> list[Any]:
        return list(self._values)

    def add(self, value: Any) -> None:
        self._values.append(self._checked(value))

    def update(self, values: list[Any]) -> None:
        self._values = [self._checked(value) for value in values]

    def clear(self) -> None:
        self._values = []

    def _checked(self, value: Any) -> Any:
        return value if value.__class__ is self._codec.exact else self._codec.checked(value)

    def encoded(self) -> list[bytes]:
        """Every element as bytes."""
        return [self._codec.encode(value) for value in self._values]

    def load(self, elements: Sequence[bytes]) -> None:
        """Begin with the elements of a snapshot."""
        self._values = [self._codec.decode(element) for element in elements]


class OperatorStates:
    """The operator state of one subtask of a `Process`.

    Snapshots copy it, so it should stay small: positions, not data.
    """

    def __init__(self, operator: str, declared: Mapping[str, State]) -> None:
        self._unions = frozenset(name for name, state in declared.items() if isinstance(state, UnionListState))
        self.bound = {
            name: BoundOperatorList(state, operator)
            for name, state in declared.items()
            if isinstance(state, OperatorListState)
        }

    def restore(self, restored: RestoredState) -> None:
        """Take the elements that are this subtask's."""
        for name, state in self.bound.items():
            state.load((restored.unions if name in self._unions else restored.lists).get(name, ()))

    def encoded(self, *, unions: bool) -> dict[str, Sequence[bytes]]:
        """The elements of the union lists, or of the others."""
        return {name: state.encoded() for name, state in self.bound.items() if (name in self._unions) == unions}


# -- broadcast state ----------------------------------------------------------------------------------------------------


class BoundBroadcastState(BroadcastState[Any, Any]):
    """The dictionary of one subtask."""

    def __init__(self, declaration: State, operator: str, writable: Callable[[], bool]) -> None:
        State.__init__(self, *declaration.types)
        self.name = declaration.name
        self._where = f"operator {operator!r}, state {declaration.name!r}"
        self._key_codec, self._codec = (ValueCodec(hint, self._where) for hint in declaration.types)
        self._writable = writable
        self._entries: dict[Any, Any] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        return self._entries.get(key, default)

    def contains(self, key: Any) -> bool:
        return key in self._entries

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._entries.items()))  # users may change the state while they iterate

    def keys(self) -> Iterator[Any]:
        return iter(list(self._entries))

    def values(self) -> Iterator[Any]:
        return iter(list(self._entries.values()))

    def set(self, key: Any, value: Any) -> None:
        self._check_writable()
        self._entries[self._key_codec.checked(key)] = self._codec.checked(value)

    def remove(self, key: Any) -> None:
        self._check_writable()
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._check_writable()
        self._entries.clear()

    def _check_writable(self) -> None:
        if not self._writable():
            raise UserCodeError(
                f"{self._where} is broadcast state, which only on_broadcast may write, so that it is the same in every "
                "subtask; elsewhere read it, and keep what belongs to a key in keyed state"
            )

    def encoded(self) -> bytes:
        """All entries as bytes; see `broadcast_entries`."""
        key, value = self._key_codec.encode, self._codec.encode
        return encode_broadcast((key(k), value(v)) for k, v in self._entries.items())

    def load(self, data: bytes) -> None:
        """Begin with the entries of a snapshot."""
        key, value = self._key_codec.decode, self._codec.decode
        self._entries = {key(k): value(v) for k, v in broadcast_entries(data)}


class BroadcastStates:
    """The broadcast states of one subtask.

    Snapshots hold all of it, of every subtask, so it should stay small: rules, not data.
    """

    def __init__(self, operator: str, declared: Mapping[str, State]) -> None:
        self._writable = False
        self.bound = {
            name: BoundBroadcastState(state, operator, lambda: self._writable)
            for name, state in declared.items()
            if isinstance(state, BroadcastState)
        }
        self._encoded: dict[str, bytes] | None = None
        """What the last snapshot wrote, if nothing can have changed since."""

    @contextmanager
    def writing(self) -> Generator[None]:
        """While this lasts the states may be written."""
        self._encoded, self._writable = None, True
        try:
            yield
        finally:
            self._writable = False

    def restore(self, restored: RestoredState) -> None:
        """Begin with the entries of a snapshot."""
        for name, state in self.bound.items():
            if name in restored.broadcast:
                state.load(restored.broadcast[name])

    def encoded(self) -> dict[str, bytes]:
        """Every state as bytes."""
        if self._encoded is None:
            self._encoded = {name: state.encoded() for name, state in self.bound.items()}
        return self._encoded


_ENTRIES = msgspec.msgpack.Decoder(list[tuple[msgspec.Raw, msgspec.Raw]])


def encode_broadcast(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A broadcast state as a snapshot has it, of its keys and values, each as msgpack bytes."""
    return msgspec.msgpack.encode([(msgspec.Raw(key), msgspec.Raw(value)) for key, value in entries])


def broadcast_entries(data: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of a broadcast state of a snapshot, each as msgpack bytes.

    Raises:
        msgspec.MsgspecError: that is not such a state.
    """
    return [(bytes(key), bytes(value)) for key, value in _ENTRIES.decode(data)]

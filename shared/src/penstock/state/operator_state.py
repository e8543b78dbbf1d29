"""Operator state without key, bound to an operator: lists that are dealt out anew, or given to all, after a restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.state.codec import ValueCodec
from penstock.state.declarations import OperatorListState, State, UnionListState

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
        self.bound = {name: BoundOperatorList(state, operator) for name, state in declared.items()}

    def restore(self, restored: RestoredState) -> None:
        """Take the elements that are this subtask's."""
        for name, state in self.bound.items():
            state.load((restored.unions if name in self._unions else restored.lists).get(name, ()))

    def encoded(self, *, unions: bool) -> dict[str, Sequence[bytes]]:
        """The elements of the union lists, or of the others."""
        return {name: state.encoded() for name, state in self.bound.items() if (name in self._unions) == unions}

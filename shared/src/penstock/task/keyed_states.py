"""Which backend holds the keyed object state of an operator."""

from __future__ import annotations

from penstock.state.keyed_backend import KeyedObjectBackend
from penstock.state.keyed_state import KeyCursor
from penstock.state.rocks.backend import KeyedRocksBackend
from penstock.task.operator import OperatorContext
from penstock.types import Schema

KeyedBackend = KeyedObjectBackend | KeyedRocksBackend


def keyed_backend(operator: str, keys: Schema, cursor: KeyCursor, context: OperatorContext) -> KeyedBackend:
    """The backend that the subtask was told to use."""
    if context.local_state is None:
        return KeyedObjectBackend(operator, keys, context.max_parallelism, cursor, context.now_us)
    return KeyedRocksBackend(
        operator, keys, context.max_parallelism, cursor, context.now_us, context.local_state, context.key_groups,
        incremental=context.incremental,
    )  # fmt: skip

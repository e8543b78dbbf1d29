"""`key_by`, and which columns can be keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, col
from penstock.expressions.nodes import Column
from penstock.plan.building.rows import Rows
from penstock.plan.operations.key_by import KeyBy
from penstock.types import ListType, MapType, Schema, StructType, can_be_key

ALL_TOGETHER: Final = "or .key_by(all=lit(1)) for all rows together"


def key_by(rows: Rows, names: Sequence[str]) -> Rows:
    """The rows of a key meet in one subtask, in order.

    Raises:
        PipelineError: no column is named, or one is not there or cannot be a key.
    """
    if not names:
        raise PipelineError(f"key_by: name at least one column, {ALL_TOGETHER}")
    rows.check_unread("key_by", {name: col(name) for name in names})
    return keyed(rows, names)


def keyed(rows: Rows, names: Sequence[str]) -> Rows:
    """The same, for verbs that need a key of their own."""
    node = rows.node
    check_keys(node.schema, names, "key_by")
    return rows.derive(KeyBy(), node.schema, node.row_type, keys=tuple(names), mode=node.mode)


def check_new_keys(rows: Rows, named: Iterable[str]) -> None:
    """Raise `PipelineError` if a key that is computed has the name of a column."""
    for name in named:
        if name in rows.schema:
            raise PipelineError(f"key_by: there is a column {name!r} already; give {name}= another name")


def check_keys(schema: Schema, names: Iterable[str], verb: str) -> None:
    """Columns by which `verb` tells rows apart.

    Raises:
        PipelineError: one is not there, or of a type that cannot be a key.
    """
    for name in names:
        field = schema.field(name, verb)
        if isinstance(field.type, ListType):
            raise PipelineError(f"{verb}: {name} is {field.type}; a list cannot be a key, join its elements first")
        if isinstance(field.type, MapType):
            raise PipelineError(f"{verb}: {name} is {field.type}; a map cannot be a key, take a value: .map.get(...)")
        if isinstance(field.type, StructType):
            raise PipelineError(
                f"{verb}: {name} is {field.type}; a struct cannot be a key, key by its fields: "
                f"col({name!r}).struct.field(...)"
            )
        if not can_be_key(field.type):
            raise PipelineError(f"{verb}: {name} is {field.type}, which cannot be a key; key by its text: .cast(str)")


def key_names(columns: Iterable[str | Expr]) -> list[str]:
    """The columns that keys are, of those that there are."""
    return [_key_name(column) for column in columns]


def _key_name(column: str | Expr) -> str:
    if isinstance(column, str):
        return column
    if isinstance(column.node, Column):
        return column.node.name
    raise PipelineError(f"key_by: {column} has no name; write key_by(name={column})")

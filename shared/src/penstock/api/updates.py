"""What a row of a stream of updates replaces: the row with the same key, and where that stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.connectors.base import ChangeSource
from penstock.errors import PipelineError
from penstock.expressions import columns_of
from penstock.expressions.nodes import Column, without_alias
from penstock.graph.logical import (
    RANK,
    RETRACTED,
    AggregateChanges,
    AssignEventTime,
    Filter,
    Materialize,
    Node,
    Project,
    Read,
    RegularJoin,
    ToChanges,
    Top,
    Union,
    WindowAggregate,
    WindowRows,
    ancestors,
)


def check_ends(node: Node) -> None:
    """Raise `PipelineError` if a source has no end: no row is the last one then."""
    for above in ancestors(node):
        if isinstance(above.operation, Read) and not above.operation.source.bounded:
            raise PipelineError(
                f"final: the {above.operation.source.kind} source {above.operator_id} has no end, so no row is the last "
                "one; write the updates, or aggregate in windows, whose results are final"
            )


def known_keys(node: Node) -> tuple[str, ...] | None:
    """As `update_keys`, or None where no columns tell which row is replaced."""
    try:
        return update_keys(node, "")[0]
    except PipelineError:
        return None


def update_keys(node: Node, verb: str) -> tuple[tuple[str, ...], str | None]:
    """The columns that tell which row is replaced, and the one that tells that it is replaced by none.

    Raises:
        PipelineError: such a column is not there any more; `verb` needs it.
    """
    match node.operation:
        case Project(columns=columns):
            keys, retracted = update_keys(node.inputs[0], verb)
            names: dict[str, str] = {}
            for name, expr in columns:
                inner = without_alias(expr.node)
                if isinstance(inner, Column):
                    names.setdefault(inner.name, name)
            for key in (*keys, *([] if retracted is None else [retracted])):
                if key not in names:
                    raise PipelineError(
                        f"{verb}: {key}, which says which row a row replaces, is not there any more behind {node.verb}; "
                        f"keep it, or write .{verb}(...) before .{node.verb}(...)"
                    )
            return tuple(names[key] for key in keys), None if retracted is None else names[retracted]
        case Filter():
            return update_keys(node.inputs[0], verb)
        case AssignEventTime():
            raise PipelineError(
                f"{verb}: the rows of changes with a time of their own replace no others by a key, because Spark sorts "
                f"by it, so that a row may come before the one that it replaces; write .{verb} before .{node.verb}"
            )
        case WindowAggregate() | WindowRows() as window:
            said = [field.name for field in window.window_fields]
            bounds = [name for name in said if name != RETRACTED]
            return (*node.keys, *bounds), RETRACTED if RETRACTED in said else None
        case Top():
            return (*node.keys, RANK), RETRACTED if node.mode == "retract" else None
        case Read(source=ChangeSource(keys=keys)):
            return keys, RETRACTED
        case RegularJoin() if not node.keys:
            raise PipelineError(
                f"{verb}: the rows of this join replace no others by a key, because a joined stream is of facts; make it "
                'one of newest rows before, such as .key_by("id").deduplicate("last")'
            )
        case Union():
            raise PipelineError(
                f"{verb}: the rows of a union replace no others by a key, because two of its streams may have the same "
                "one"
            )
        case ToChanges() | AggregateChanges() | RegularJoin() | Materialize():
            return node.keys, RETRACTED
        case _:
            return node.keys, None


def moves(node: Node, key: Iterable[str]) -> bool:
    """Whether an update may stand under another key of these columns than the row that it replaces: a row is left there
    then, unless it is taken back."""
    updates, parts = _made_of(node)
    return not parts(key) <= {*update_keys(updates, "write")[0]}


def takes_back(node: Node, key: Iterable[str]) -> bool:
    """Whether rows with `retracted` true say of a key of these columns that it has none.

    So they do where the key says which window it is: the newest row of another one may be that of another window.

    Raises:
        PipelineError: they do, and `retracted`, or the key of the updates, is not there any more.
    """
    updates, parts = _made_of(node)
    retracted = update_keys(updates, "write")[1]
    if retracted is None or parts(key) <= {*updates.keys}:
        return False
    name = update_keys(node, "write")[1]
    if name != RETRACTED:
        raise PipelineError(
            f"write: {name!r} says which sessions are no more, which sinks look for under the name {RETRACTED!r}; leave "
            "it that name"
        )
    return True


def _made_of(node: Node) -> tuple[Node, Callable[[Iterable[str]], set[str]]]:
    """What sends the updates that a node shapes, and of which of its columns some of the node's are made."""
    if not isinstance(node.operation, Project):
        return node, set
    updates, parts = _made_of(node.inputs[0])
    read = {name: columns_of(expr) for name, expr in node.operation.columns}
    return updates, lambda names: parts({each for name in names for each in read[name]})

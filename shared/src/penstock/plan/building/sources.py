"""Where rows come from and where they go: sources, their bad records, and sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import ChangeSource
from penstock.core.interactive import of_cells
from penstock.core.times import Duration
from penstock.errors import PipelineError
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.changes import changes_by, known_keys, moves, takes_back, to_changes
from penstock.plan.building.keys import keyed
from penstock.plan.building.rows import Rows
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.dead_letters import DeadLetters
from penstock.plan.operations.materialize import Materialize
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write
from penstock.types import BINARY, BOOLEAN, STRING, Field, Schema, row_class

if TYPE_CHECKING:
    from penstock.connectors.base import Sink, Source

BAD_RECORD_SCHEMA: Final = Schema((Field("error", STRING), Field("raw", BINARY), Field("where", STRING)))
"""Columns of `dead_letters()`: what is wrong, the bytes of the record, and where it was read."""


def read(plan: LogicalPlan, source: Source[Any]) -> Rows:
    """The rows of a source; those of a source of changes as changes, which are made behind it if it has not all."""
    if not isinstance(source, ChangeSource):
        row_type: type[Any] = source.row_type or row_class(source.schema)
        timed = source.event_time is not None
        return Rows(plan, plan.add(Read(source), (), source.schema, row_type, event_time=timed))
    node = plan.add(
        Read(source), (), source.schema, row_class(source.schema), event_time=False,
        mode="retract" if source.complete else "upsert",
    )  # fmt: skip
    rows = Rows(plan, node)
    if source.complete:
        return rows
    return changes_by(rows, source.keys, RETRACTED, Schema((*source.rows, Field(RETRACTED, BOOLEAN))))


def dead_letters(read_rows: Rows) -> Rows:
    """The records of a source that could not become rows.

    Raises:
        PipelineError: the source does not keep them.
    """
    operation = read_rows.node.operation
    assert isinstance(operation, Read)
    if operation.source.bad_rows != "dead_letter":
        raise PipelineError(
            f"dead_letters: the source's policy is bad_rows={operation.source.bad_rows!r}; say bad_rows='dead_letter'"
        )
    return read_rows.derive(DeadLetters(), BAD_RECORD_SCHEMA, event_time=False)


def write(rows: Rows, sink: Sink, ttl: Duration | None = None) -> Rows:
    """Rows handed to a sink: facts and changes as they are, updates as the sink takes them.

    Args:
        rows: any.
        sink: where they go.
        ttl: how long rows are kept that the sink needs.

    Raises:
        PipelineError: it cannot take rows of this schema, or another sink of the plan writes to its place; or a column is
            not there any more that says what a row replaces there; or `ttl` is given and no row is kept.
    """
    node, key = rows.node, sink.upsert_key
    if node.mode == "upsert" and key is not None:
        if sink.wants_changes or moves(node, key):
            return _written(to_changes(rows, "changes", ttl), sink, ttl)
        sink = sink.of_changes() if takes_back(node, key) else sink
    written = _written(rows, sink, ttl)
    if ttl is not None and written.node.inputs[0] is node:
        raise PipelineError(
            "write: no rows are kept for this sink, so ttl= says nothing; leave it out, or give it to what is before"
        )
    return written


def _written(rows: Rows, sink: Sink, ttl: Duration | None) -> Rows:
    node = rows.node
    sink.check(node.schema, updates=node.updates)
    if node.mode == "retract":
        rows, sink = _by_key_of(rows, sink.upsert_key, ttl), sink.of_changes()
    for other in rows.plan:
        if isinstance(other.operation, Write) and (conflict := sink.conflict(other.operation.sink)):
            raise PipelineError(f"write: {conflict}{of_cells()}")
    return rows.derive(Write(sink), node.schema, node.row_type)


def _by_key_of(rows: Rows, wanted: Sequence[str] | None, ttl: Duration | None) -> Rows:
    """The changes by which rows of a sink with this key are replaced; all are rows there, if it has none."""
    if wanted is None:
        return rows
    known = known_keys(rows.node)
    if known is not None and {*known} <= {*wanted}:
        return rows
    by_key = keyed(rows, tuple(wanted))
    operation = Materialize(rows.ttl_us(ttl, "write"))
    return by_key.derive(operation, rows.schema, keys=tuple(wanted), mode="retract")

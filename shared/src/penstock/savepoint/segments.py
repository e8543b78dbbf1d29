"""The keyed state of one operator of one subtask in a savepoint, key group by key group, whatever runs it consists of."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import polars as pl

from penstock.errors import UsageError
from penstock.protocol.messages import Handle, OperatorHandles
from penstock.savepoint.objects import Objects
from penstock.state.deltas import merged
from penstock.state.freezes import ADDS
from penstock.state.segments import decode_segment


def segments_of(
    objects: Objects, operator: str, part: OperatorHandles, groups: Container[int]
) -> Iterator[tuple[int, bytes]]:
    """Key groups, which rise, and their segments, one at a time; deltas are put together with what they belong to.

    Args:
        objects: where the bytes are.
        operator: its id, for messages.
        part: what it put into the savepoint.
        groups: which key groups.

    Raises:
        CorruptDataError: an object is missing or damaged.
    """
    stored: dict[int, list[Handle]] = {}
    for handle in (handle for run in part.runs for handle in run):
        for group in handle.key_groups:
            if group in groups:
                stored.setdefault(group, []).append(handle)
    for group, handles in sorted(stored.items()):
        segments = [objects.segment(handle, group) for handle in handles]
        yield from ((group, data) for data in ([merged(operator, segments)] if part.incremental else segments))


def table_of(segment: bytes, operator: str) -> tuple[dict[str, Any], pl.DataFrame]:
    """Header and rows of a segment that are read as a table, or edited.

    Raises:
        CorruptDataError: it is damaged.
        UsageError: rows of it are to be brought together first, which only the operator can.
    """
    header, rows = decode_segment(segment, operator)
    if ADDS in header:
        raise UsageError(
            f"operator {operator!r}: this checkpoint is incremental, and what it adds to earlier ones is put together "
            "only by a job that starts from it; take a savepoint, which can be read as tables and edited"
        )
    return header, rows

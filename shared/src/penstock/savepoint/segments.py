"""The keyed state of one operator of one subtask in a savepoint, key group by key group, whatever runs it consists of."""

from __future__ import annotations

from collections.abc import Container, Iterator

from penstock.protocol.messages import Handle, OperatorHandles
from penstock.savepoint.objects import Objects
from penstock.state.deltas import merged


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

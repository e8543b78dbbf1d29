"""Which objects of a job's checkpoints nobody needs any more."""

from __future__ import annotations

from collections.abc import Container, Iterable

from penstock.protocol.manifests import checkpoint_of


def retired_objects(
    keys: Iterable[str], complete: int, retained: Container[int], referenced: Container[str] = ()
) -> list[str]:
    """The objects to delete once COMPLETE of `complete` stands in the job log.

    A checkpoint below the newest COMPLETE is never restored again, unless it is `retained` (a savepoint, the checkpoint
    that the job was restored from). Objects at or above it stay: a pending checkpoint may still need them, and what a
    dead attempt left there goes with the next COMPLETE.

    Args:
        keys: keys of objects under the checkpoints of one job.
        complete: the newest COMPLETE.
        retained: checkpoint numbers that are kept.
        referenced: keys of older objects that the newest COMPLETE names (incremental snapshots).
    """
    numbered = ((checkpoint_of(key), key) for key in keys)
    return [
        key
        for number, key in numbered
        if number is not None and number < complete and number not in retained and key not in referenced
    ]

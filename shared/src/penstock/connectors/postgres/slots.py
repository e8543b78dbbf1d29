"""The replication slot of a source of changes: it keeps the log of the server from where the job has read up to.

The slot is made where a job begins, moves on with checkpoints that are complete, and is never dropped here: only whoever
ends a job for good knows that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.connectors.postgres.captured_table import Capture
from penstock.connectors.postgres.tables import only_row
from penstock.errors import ExternalError, PipelineError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

CREATE_TIMEOUT: Final = " -c statement_timeout=60000"
"""A slot is only there when all transactions have ended that were open; the error then says which ones are."""
_SLOT: Final = """
select s.plugin, s.database = current_database(), s.wal_status, (s.confirmed_flush_lsn - '0/0')::bigint, s.active_pid,
    a.application_name
from pg_replication_slots s left join pg_stat_activity a on a.pid = s.active_pid where s.slot_name = %s
"""
_FENCE: Final = "select pg_current_xact_id()::text::bigint, gen_random_uuid()::text"
"""Behind all ids that were given, also to open transactions: the xmax of a snapshot may be before some of them."""
_OLDEST: Final = """
select pid, application_name from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()
order by xact_start limit 1
"""


class NotYetError(ExternalError):
    """Somebody else has to come to an end first: waited for, but not for ever."""


class Slot(msgspec.Struct, frozen=True):
    """A slot as it is."""

    plugin: str | None
    here: bool
    """Whether it is of this database."""
    wal_status: str | None
    confirmed_lsn: int | None
    """What is before is gone; None while it is being made."""
    active_pid: int | None
    user: str | None
    """What the session calls itself that reads from it."""


def application_name(owner: str) -> str:
    """How the sessions of one job are known to the server."""
    return f"penstock-changes-{owner}"


async def _slot(capture: Capture, connection: AsyncConnection[Any]) -> Slot | None:
    found = await (await connection.execute(_SLOT, [capture.slot])).fetchone()
    return None if found is None else Slot(*found)


async def made_slot(capture: Capture, connection: AsyncConnection[Any]) -> tuple[int, int, str]:
    """Where reading from the slot begins, which is made if there is none; the fence; and a name for the job.

    The fence is the first transaction id that no transaction has that the slot does not give: a snapshot that is taken
    when all before it are over has what the slot has not.

    Raises:
        PipelineError: the slot cannot serve, or the user may not make one.
        ExternalError: transactions are open for too long.
    """
    slot = await _slot(capture, connection)
    if slot is not None and slot.active_pid is not None:
        raise _in_use(capture, slot)
    lsn = await _make(capture, connection) if slot is None else _checked(capture, slot, None)
    fence, name = await only_row(connection, _FENCE)
    return lsn, fence, name


async def _make(capture: Capture, connection: AsyncConnection[Any]) -> int:
    import psycopg

    query = "select (lsn - '0/0')::bigint from pg_create_logical_replication_slot(%s, 'pgoutput')"
    try:
        row = await (await connection.execute(query, [capture.slot])).fetchone()
    except psycopg.errors.QueryCanceled as error:
        raise ExternalError(
            f"{capture.where}replication slot {capture.slot} cannot be made while {await _open_transaction(connection)}"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise PipelineError(
            f"{capture.where}the user may not read the log ({error}); run: alter role ... replication"
        ) from error
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise PipelineError(
            f"{capture.where}{error}; raise max_replication_slots, or drop slots that nobody reads "
            "(select slot_name, active from pg_replication_slots)"
        ) from error
    assert row is not None
    return row[0]


async def _open_transaction(connection: AsyncConnection[Any]) -> str:
    row = await (await connection.execute(_OLDEST)).fetchone()
    return "a transaction is open" if row is None else f"a transaction of process {row[0]} ({row[1]!r}) is open"


async def check_fence(capture: Capture, connection: AsyncConnection[Any], fence: int) -> None:
    """Raise `NotYetError` while a transaction is open that may be neither in a snapshot nor in what the slot gives."""
    query = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
    (oldest,) = await only_row(connection, query)
    if oldest < fence:
        raise NotYetError(
            f"{capture.where}the rows that are there cannot be read while {await _open_transaction(connection)} "
            "that began before the replication slot was made; end it"
        )


async def claimed_slot(
    capture: Capture, connection: AsyncConnection[Any], lsn: int, owner: str, *, takes_over: bool
) -> None:
    """See to it that the slot can be read from `lsn` on; `takes_over`: a session that this job left behind is ended.

    Raises:
        PipelineError: what comes then is not there any more; says what to do.
        NotYetError: somebody reads from it.
    """
    slot = await _slot(capture, connection)
    if slot is None:
        raise PipelineError(
            f"{capture.where}replication slot {capture.slot} is not there any more, so changes since the last checkpoint "
            "may be lost. Nothing was skipped. Start the job anew, without its former state"
        )
    _checked(capture, slot, lsn)
    await _check_log(capture, connection, lsn)
    if slot.active_pid is None:
        return
    if takes_over and slot.user == application_name(owner):
        await connection.execute("select pg_terminate_backend(%s)", [slot.active_pid])
    raise _in_use(capture, slot)


async def _check_log(capture: Capture, connection: AsyncConnection[Any], lsn: int) -> None:
    """A log that has not come so far yet is another one, and would be read from there on only."""
    (end,) = await only_row(connection, "select (pg_current_wal_flush_lsn() - '0/0')::bigint")
    if end < lsn:
        raise PipelineError(
            f"{capture.where}the log of the server ends before the checkpoint that the job goes on from: the server was "
            "set back, or another one has taken its place that had not all. Start the job anew, without its former state"
        )


def _in_use(capture: Capture, slot: Slot) -> NotYetError:
    return NotYetError(
        f"{capture.where}replication slot {capture.slot} is read by process {slot.active_pid} of the server "
        f"({slot.user!r}); end that, or name another slot="
    )


def _checked(capture: Capture, slot: Slot, lsn: int | None) -> int:
    """Where the slot begins."""
    what = f"{capture.where}replication slot {capture.slot}"
    anew = (
        f"Drop it (select pg_drop_replication_slot('{capture.slot}')) and start the job anew, without its former state"
    )
    if slot.plugin != "pgoutput" or not slot.here:
        raise PipelineError(f"{what} is of another plugin or database ({slot.plugin}); name another slot=")
    if slot.confirmed_lsn is None:
        raise NotYetError(f"{what} is just being made")
    if slot.wal_status == "lost":
        raise PipelineError(
            f"{what} is lost: the server removed the log that was not read (max_slot_wal_keep_size). Nothing was "
            f"skipped. {anew}"
        )
    if lsn is not None and slot.confirmed_lsn > lsn:
        raise PipelineError(
            f"{what} begins behind the checkpoint that the job goes on from: another job has read from it, or the "
            f"checkpoint is an old savepoint. Nothing was skipped. {anew}"
        )
    return slot.confirmed_lsn

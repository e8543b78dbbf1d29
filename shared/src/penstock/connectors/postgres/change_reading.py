"""Reads a table and its changes: the rows that are there, then the log from a replication slot, as one stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from penstock.connectors.base import A_MOMENT_S, BadRow, Fetched, Position, ReadContext
from penstock.connectors.change_rows import ImagesOfRows
from penstock.connectors.postgres.captured_table import Capture, CapturedTable
from penstock.connectors.postgres.change_log import Change, ChangeLog, Image
from penstock.connectors.postgres.change_positions import ChangePosition, Part
from penstock.connectors.postgres.replication_stream import ReplicationStream
from penstock.connectors.postgres.slots import NotYetError, claimed_slot
from penstock.connectors.postgres.table_rows import TableRows, parts_of_keys
from penstock.connectors.postgres.text_values import RowImages, RowTexts
from penstock.errors import ExternalError, PipelineError

if TYPE_CHECKING:
    from penstock.connectors.postgres.change_source import ChangeSource
    from penstock.connectors.postgres.pgoutput import Values

MOST_CHANGES: Final = 8_192
MOST_BYTES: Final = 8 << 20
PATIENCE_S: Final = 120.0
"""How long the server may be away, or the slot be read by another, before the attempt fails."""
_log = structlog.get_logger("penstock.source")

AGAIN_S: Final = 0.5
"""How long until it is asked again."""
CHECK_S: Final = 60.0
"""How often the publication is looked at: nothing in the log says that a table was taken out of it."""


class ChangeReader:
    """The `SplitReader` of a table."""

    def __init__(self, source: ChangeSource[Any], position: Position, context: ReadContext) -> None:
        self._source = source
        self._capture: Final[Capture] = source.capture
        self._position = msgspec.convert(position, ChangePosition)
        self._confirmed = 0
        self._other_work = context.other_work
        self._texts = {False: RowTexts(source.rows), True: RowTexts(source.retracted_rows)}
        self._keeping = RowTexts(source.rows, keeps=True)
        self._images = {False: RowImages(source.rows, source.zone), True: RowImages(source.retracted_rows, source.zone)}
        self._table: CapturedTable | None = None
        self._rows: TableRows | None = None
        self._stream: ReplicationStream | None = None
        self._log: ChangeLog | None = None
        self._changes: list[Change] = []
        """Of what was fed to the log and is not handed out yet."""
        self._fed = False
        self._heard_of = False
        """Whether the last read brought a message, if only that there is nothing."""
        self._heard_s: float | None = None
        self._waiting_since_s: float | None = None
        self._takes_over = True
        """Whether a session that has the slot is one that was left behind. Whose own was ended is perhaps left behind."""
        self._again_s = float("-inf")
        self._checked_s = float("-inf")

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`. A server that is away is asked again for a while, from the position on."""
        if time.monotonic() < self._again_s:
            await asyncio.sleep(A_MOMENT_S)
            return None
        try:
            with self._capture.place.errors(self._capture.where):
                fetched = await (self._next_changes(max_rows) if self._position.read else self._next_rows())
        except ExternalError as error:
            await self._wait_for(error)
            return None
        self._heard_s = time.monotonic()
        if fetched is not None or self._heard_of:  # not yet where only a connection was made
            self._waiting_since_s = None
        return fetched

    async def _wait_for(self, error: ExternalError) -> None:
        """Begin anew at the position, in a while; raises where it has lasted too long, or has not even begun."""
        await self._drop()
        self._heard_of = False
        now_s = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
            _log.warning("Postgres cannot be read, trying again", error=str(error))
        begun = self._heard_s is not None or isinstance(error, NotYetError)
        self._takes_over = self._takes_over and not _is_ended(error)
        if not begun or now_s - self._waiting_since_s > PATIENCE_S:
            raise error
        self._again_s = now_s + AGAIN_S

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return msgspec.to_builtins(self._position)

    def confirm(self, position: Position) -> None:
        """See `ConfirmsPositions.confirm`: the server need not keep what is before."""
        self._confirmed = max(self._confirmed, msgspec.convert(position, ChangePosition).lsn)
        if self._stream is not None:
            self._stream.report(self._confirmed)

    async def close(self) -> None:
        """See `SplitReader.close`."""
        await self._drop()

    async def _drop(self) -> None:
        """Give back the connections, and forget what was not handed out."""
        rows, stream = self._rows, self._stream
        self._rows, self._stream, self._log = None, None, None
        self._changes, self._fed = [], False
        if rows is not None:
            await rows.close()
        if stream is not None:
            await stream.close()

    async def _looked_at(self, *, slot: bool) -> CapturedTable:
        """The table as it is now, if all is well with it and its publication; `slot`: and the slot is ours."""
        async with self._capture.place.connection() as connection:
            table = await self._capture.table(connection)
            if table.oid != self._position.table:
                raise PipelineError(
                    f"{self._capture.where}the table was made anew; start the job anew, without its former state"
                )
            await self._capture.check_publication(connection, table)
            if slot:
                lsn, owner = self._position.lsn, self._position.owner
                await claimed_slot(self._capture, connection, lsn, owner, takes_over=self._takes_over)
        self._checked_s = time.monotonic()
        return table

    # -- rows that are there --------------------------------------------------------------------------------------------

    async def _next_rows(self) -> Fetched | None:
        if self._rows is None:
            self._table = await self._looked_at(slot=False)
            self._rows = TableRows(self._capture, self._table, self._position)
        try:
            rows, part = await self._rows.read()
        except asyncio.CancelledError:
            await self._drop()  # what a query brings for a call that is cancelled goes with its connection
            raise
        fetched = self._fetched_rows(rows)
        self._position = self._position.with_rows(part)
        if self._position.read:
            ended, self._rows = self._rows, None
            await ended.close()
        return fetched

    def _fetched_rows(self, rows: Sequence[Values]) -> Fetched | None:
        assert self._table is not None
        places = [self._source.rows.names.index(name) for name in self._table.key]
        changes = [
            Change(0, 0, number, [Image(tuple(_text(row[place]) for place in places), row, retracted=False)])
            for number, row in enumerate(rows, 1)
        ]
        return self._fetched(changes)

    # -- changes --------------------------------------------------------------------------------------------------------

    async def _next_changes(self, max_rows: int) -> Fetched | None:
        if self._stream is None:
            await self._open_stream()
        elif time.monotonic() - self._checked_s > CHECK_S:
            await self._looked_at(slot=False)
        stream, log = self._stream, self._log
        assert stream is not None
        assert log is not None
        if not self._fed:
            self._changes = self._drain_stream(stream, log, min(max_rows, MOST_CHANGES))
        self._heard_of = self._fed
        if not self._fed:
            await stream.wait(self._other_work)
            return None
        if log.retyped:
            async with self._capture.place.connection() as connection:
                await self._capture.check_types(connection, log.retyped)
            log.retyped.clear()
        fetched = self._fetched(await self._unread(self._changes))
        self._position, self._changes, self._fed = log.position, [], False
        return fetched

    async def _open_stream(self) -> None:
        self._table = await self._looked_at(slot=True)
        stream = ReplicationStream(self._capture, self._position.owner)
        self._stream, self._log = stream, ChangeLog(self._capture, self._table, self._position)
        await stream.start(self._position.lsn)
        stream.report(self._confirmed)

    def _drain_stream(self, stream: ReplicationStream, log: ChangeLog, most: int) -> list[Change]:
        """What is at hand. Nothing is awaited between, so that no message is lost."""
        messages = stream.take(most, MOST_BYTES)
        self._fed = bool(messages)
        return [change for lsn, data in messages if (change := log.feed(lsn, data)) is not None]

    async def _unread(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Without what the rows have in them that were read: no row goes back in time."""
        parts, settled = self._position.parts, self._position.settled_lsn
        early = [change for change in changes if change.commit_lsn < settled]
        if not early:
            return changes
        assert self._table is not None
        bounds = [part.upto for part in parts[:-1] if part.upto is not None]
        keys = [image.key for change in early for image in change.images]
        numbers = dict(zip(keys, await parts_of_keys(self._capture, self._table, bounds, keys), strict=True))
        left = [_left(change, parts, numbers) if change.commit_lsn < settled else change for change in changes]
        return [change for change in left if change.images or change.truncates]

    # -- what both make -------------------------------------------------------------------------------------------------

    def _fetched(self, changes: Sequence[Change]) -> Fetched | None:
        if not changes:
            return None
        made = ImagesOfRows(self._source.schema, self._images[False], self._images[True])
        bad: dict[int, str] = {}
        size = 0
        for record, change in enumerate(changes):
            if change.truncates:
                bad[record] = "the table was truncated, and nobody knows which rows that took back"
            for image in change.images:
                try:
                    texts = self._keeping if image.has_former else self._texts[image.retracted]
                    data = texts.image(image.values)
                except ValueError as error:
                    bad[record] = str(error)
                    continue
                made.add(data, record, retracted=image.retracted)
                size += len(data)
        frame = made.rows(bad)
        return Fetched(frame, [self._bad(changes[record], error) for record, error in sorted(bad.items())], size)

    def _bad(self, change: Change, error: str) -> BadRow:
        assert self._table is not None
        where = f"{self._capture.place.name}, " + (
            f"transaction {change.xid}, change {change.number}" if change.xid else "a row that was there"
        )
        key = dict(zip(self._table.key, change.images[-1].key, strict=True)) if change.images else {}
        return BadRow(error, msgspec.json.encode(key), where)


def _is_ended(error: ExternalError) -> bool:
    """Whether the session was ended: the server was stopped, or a newer attempt of the job has taken the slot over."""
    return getattr(error.__cause__, "sqlstate", None) == "57P01"


def _left(change: Change, parts: Sequence[Part], numbers: Mapping[tuple[str | None, ...], int]) -> Change:
    """What of a change is not in the rows that were read."""
    images = [image for image in change.images if not parts[numbers[image.key]].sees(change.xid)]
    truncates = change.truncates and not all(part.sees(change.xid) for part in parts)
    return Change(change.commit_lsn, change.xid, change.number, images, truncates)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()

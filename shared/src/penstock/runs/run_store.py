"""Where runs on Spark are kept: their logs, an index of them, and the last lines that their attempts printed.

The log of a run decides. The index only saves reading all logs: `runs/active/<run>` from the submission to the end,
`runs/ended/<run>/...` with a summary from then on. Tells what an answer of the store means, decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError, Blobs, Clock
from penstock.runs.run_log import AnyRunRecord, RunHistory, decode_run_record, history_of
from penstock.runs.run_views import RunSummary, summary_of_run

ACTIVE: Final = "runs/active/"
ENDED: Final = "runs/ended/"
UNCERTAIN_PAUSE_MS: Final = 200
"""How long to wait before an uncertain write is repeated."""
READS: Final = 16
"""How many objects are read at once."""

_log = structlog.get_logger("penstock.runs")


class RunStore:
    """The runs of one cluster. Reads and writes raise `ExternalError` as the store does."""

    def __init__(self, blobs: Blobs, clock: Clock, new_id: Callable[[], str]) -> None:
        """`new_id` gives 32 fresh hex digits."""
        self._blobs = blobs
        self._clock = clock
        self._new_id = new_id

    async def history(self, run: str) -> RunHistory:
        """The log of a run; empty if there is no such run."""
        some = asyncio.Semaphore(READS)

        async def read(key: str) -> AnyRunRecord:
            async with some:
                return decode_run_record(await self._blobs.get(key), key)

        return history_of(await asyncio.gather(*map(read, await self._blobs.list(_log_prefix(run)))))

    async def append(self, run: str, history: RunHistory, record: AnyRunRecord) -> RunHistory | None:
        """Add a record to a log that is known up to `history`; None if another one stands there already.

        Returns only when that is certain, however often the store has to be asked.

        Raises:
            ProtocolError: the record may not follow.
        """
        made = msgspec.structs.replace(record, seq=history.next_seq, nonce=self._new_id(), at_us=self._clock.now_us())
        extended = history.after(made)
        while True:
            try:
                await self._blobs.create(_log_key(run, made.seq), msgspec.json.encode(made))
                return extended
            except BlobExistsError:
                found = await self._record(run, made.seq)
                if found is not None:
                    return extended if found.nonce == made.nonce else None
            except ExternalError as error:
                _log.warning("no certain answer, trying again", run=run, error=str(error))
            await self._clock.sleep_ms(UNCERTAIN_PAUSE_MS)

    async def _record(self, run: str, seq: int) -> AnyRunRecord | None:
        key = _log_key(run, seq)
        try:
            return decode_run_record(await self._blobs.get(key), key)
        except BlobNotFoundError:
            return None

    # -- the index ------------------------------------------------------------------------------------------------------

    async def active(self) -> list[str]:
        """Runs that have not ended; also one whose end, or whose beginning, is not in the index yet."""
        return [key.removeprefix(ACTIVE) for key in await self._blobs.list(ACTIVE)]

    async def ended(self) -> dict[str, str]:
        """Runs that have ended, each with the key of its summary, which never changes; one that was submitted again
        may be active, too."""
        keys = await self._blobs.list(ENDED)
        return {key.removeprefix(ENDED).partition("/")[0]: key for key in keys}  # sorted: the newest end counts

    async def ended_summary(self, key: str) -> RunSummary:
        """A run that has ended, in short; raises `BlobNotFoundError` if it is not there any more."""
        try:
            return msgspec.json.decode(await self._blobs.get(key), type=RunSummary)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise CorruptDataError(f"{key}: not readable: {error}") from error

    async def announce(self, run: str) -> None:
        """Note a run as active; before its log gets its first record, so that none is ever overlooked."""
        await self._blobs.put(ACTIVE + run, b"")

    async def retire(self, run: str, history: RunHistory) -> None:
        """Note what has ended, or was never submitted after all."""
        if history.records:
            key = f"{ENDED}{run}/{history.next_seq:020d}"
            await self._blobs.put(key, msgspec.json.encode(summary_of_run(history)))
        await self._blobs.delete(ACTIVE + run)

    # -- output ---------------------------------------------------------------------------------------------------------

    async def put_output(self, run: str, text: str) -> None:
        """Keep the last lines that an attempt printed, in place of those of the one before."""
        await self._blobs.put(_output_key(run), text.encode())

    async def output(self, run: str) -> str:
        """The last lines that an attempt printed; empty if none was kept."""
        try:
            return (await self._blobs.get(_output_key(run))).decode(errors="replace")
        except BlobNotFoundError:
            return ""


def _log_prefix(run: str) -> str:
    return f"runs/log/{run}/"


def _log_key(run: str, seq: int) -> str:
    return f"{_log_prefix(run)}{seq:020d}"


def _output_key(run: str) -> str:
    return f"runs/output/{run}"

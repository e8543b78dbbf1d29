"""The Log port on a local directory, for several appending processes: the log of embedded mode.

    root/<topic>/topic.json            number of partitions, whether compacted
    root/<topic>/<partition>/...       see `records`; made when first used

This module is the asyncio side: names and topics, one lock per partition within the process, waiting for records, and
moving long work to threads. `partition` does the files. An append is confirmed once it is in the kernel's
page cache, which survives the death of any process; `sync` makes it survive a power loss. Readers are woken at once by
appends of their own process and poll for those of others. An instance belongs to one event loop and one process: open
it after a fork, never before.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from penstock.adapters.directory.file_lock import file_lock
from penstock.adapters.directory.partition import READ_BYTES, LargeRecord, PartitionFiles
from penstock.adapters.directory.records import HEADER_BYTES, MAX_RECORD_BYTES, fsync_path
from penstock.adapters.directory.state import current_boot
from penstock.adapters.naming import checked_topic
from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import LogRecord, NewRecord, TopicMismatchError, TopicNotFoundError

T = TypeVar("T")

_TOPIC_FILE: Final = "topic.json"
_DELETED: Final = ".deleted-"
_OPEN_PARTITIONS: Final = 100
"""Partitions whose files stay open while nobody uses them; each holds at most six descriptors."""
_FIRST_POLL_MS: Final = 1.0


@dataclass(eq=False, slots=True)
class _Partition:
    files: PartitionFiles
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Beside the file lock, which does not exclude tasks of one process."""
    users: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list["asyncio.Future[None]"])
    seen: bytes = b""
    """The version for which the waiters wait to change."""

    def wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


@dataclass(frozen=True, slots=True)
class _Topic:
    partitions: int
    compacted: bool


class DirectoryLog:
    """A `Log` of files under `root`, which is created if need be.

    `sync` covers what this instance appended (each process syncs its own before it acknowledges a checkpoint).

    Args:
        segment_bytes: size of a segment file, the unit of trimming and compaction.
        durable: whether `sync` does anything; False trades the survival of a power loss for speed.
        poll_ms: the longest pause between two looks for appends of other processes.
    """

    def __init__(
        self, root: Path, *, segment_bytes: int = 64 << 20, durable: bool = True, poll_ms: float = 5.0
    ) -> None:
        self._root = Path(root)
        self._segment_bytes = segment_bytes
        self._durable = durable
        self._poll_ms = poll_ms
        self._pause_ms = _FIRST_POLL_MS
        self._boot = current_boot()
        self._topics: dict[str, _Topic] = {}
        self._partitions: OrderedDict[tuple[str, int], _Partition] = OrderedDict()
        self._dirty: set[tuple[str, int]] = set()
        self._dirty_folders: set[Path] = {self._root}
        self._syncing = asyncio.Lock()
        self._waiting: set[_Partition] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            for left in self._root.glob(_DELETED + "*"):
                self._remove(left)
        except OSError as error:
            raise ExternalError(f"cannot use {self._root} as a log: {error}") from error

    # -- topics -------------------------------------------------------------------------------------------------------

    @property
    def largest_record_bytes(self) -> int:
        """See `Log.largest_record_bytes`."""
        return MAX_RECORD_BYTES - HEADER_BYTES

    async def create_topic(
        self, topic: str, partitions: int, *, compacted: bool = False, retention_ms: int | None = None
    ) -> None:
        """See `Log.create_topic`."""
        folder = self._root / checked_topic(topic)
        wanted = _Topic(partitions, compacted)
        try:
            if not folder.exists():
                self._create(folder, wanted)
        except OSError as error:
            raise ExternalError(f"cannot create topic {topic} in {self._root}: {error}") from error
        there = self._load(topic)
        if there != wanted:
            raise TopicMismatchError(
                f"topic {topic} exists with {there.partitions} partitions (compacted: {there.compacted}); "
                f"asked for were {partitions} (compacted: {compacted})"
            )
        self._dirty_folders |= {folder, self._root}

    def _create(self, folder: Path, topic: _Topic) -> None:
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=self._root))
        made.chmod(0o755)
        content = {"partitions": topic.partitions, "compacted": topic.compacted}
        (made / _TOPIC_FILE).write_text(json.dumps(content))
        try:
            made.rename(folder)
        except OSError:
            shutil.rmtree(made)
            if not folder.exists():
                raise  # otherwise somebody was faster, which the caller checks

    async def delete_topic(self, topic: str) -> None:
        """See `Log.delete_topic`."""
        folder = self._root / checked_topic(topic)
        doomed = self._root / f"{_DELETED}{uuid.uuid4().hex}"
        try:
            folder.rename(doomed)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ExternalError(f"cannot delete topic {topic}: {error}") from error
        await asyncio.to_thread(self._remove, doomed)
        self._topics.pop(topic, None)
        for (name, _), partition in self._partitions.items():
            if name == topic:
                partition.wake()

    def _remove(self, doomed: Path) -> None:
        """Tell every process that has partitions of a deleted topic open, then remove the files."""
        for state in doomed.glob("*/state"):
            files = PartitionFiles(state.parent, self._segment_bytes, compacted=False, boot=self._boot)
            with suppress(TopicNotFoundError, CorruptDataError, OSError):
                try:
                    files.mark_deleted()
                finally:
                    files.close()
        shutil.rmtree(doomed, ignore_errors=True)

    async def topics(self) -> list[str]:
        """See `Log.topics`."""
        return sorted(
            name for name in os.listdir(self._root) if name[0] != "." and (self._root / name / _TOPIC_FILE).exists()
        )

    def _load(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        if known is None:
            path = self._root / checked_topic(topic) / _TOPIC_FILE
            try:
                content = json.loads(path.read_bytes())
                known = _Topic(int(content["partitions"]), bool(content["compacted"]))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise TopicNotFoundError(f"there is no topic {topic} in {self._root}") from error
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptDataError(f"{path} does not describe a topic: {error}") from error
            self._topics[topic] = known
        return known

    # -- partitions ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _using(self, topic: str, partition: int) -> Generator[_Partition]:
        """The partition, open, and kept open while it is used. Forgets it if its topic turns out to be deleted."""
        key = (topic, partition)
        found = self._partitions.get(key)
        if found is not None and found.files.is_open and found.files.is_deleted():
            self._forget(key)
            found = None
        if found is None or not found.files.is_open:
            found = self._opened(key)
        self._partitions.move_to_end(key)
        found.users += 1
        try:
            yield found
        except TopicNotFoundError:
            if self._partitions.get(key) is found:
                self._forget(key)
            raise
        finally:
            found.users -= 1
            if not found.users and (self._closed or self._partitions.get(key) is not found):
                found.files.close()

    def _opened(self, key: tuple[str, int]) -> _Partition:
        topic, partition = key
        if self._closed:
            raise ExternalError(f"the log in {self._root} is closed")
        there = self._load(topic)
        if not 0 <= partition < there.partitions:
            raise TopicNotFoundError(f"topic {topic} has {there.partitions} partitions, there is no {partition}")
        found = self._partitions.get(key)
        if found is None:
            folder = self._root / topic / str(partition)
            files = PartitionFiles(folder, self._segment_bytes, compacted=there.compacted, boot=self._boot)
            found = self._partitions[key] = _Partition(files)
        try:
            found.files.open()
        except TopicNotFoundError:
            self._forget(key)
            raise
        self._close_idle()
        return found

    def _forget(self, key: tuple[str, int]) -> None:
        """The topic was deleted; its name may be in use again."""
        self._topics.pop(key[0], None)
        forgotten = self._partitions.pop(key)
        if not forgotten.users:  # else the last user closes it
            forgotten.files.close()

    def _close_idle(self) -> None:
        excess = len(self._partitions) - _OPEN_PARTITIONS
        for key in list(self._partitions)[: max(0, excess)]:
            if not self._partitions[key].users:
                self._partitions.pop(key).files.close()

    # -- appending ----------------------------------------------------------------------------------------------------

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """See `Log.append`."""
        with self._using(topic, partition) as found:
            files = found.files
            async with found.lock, file_lock(files.open()):
                if files.is_full():
                    await in_thread(files.roll) if files.compacts else files.roll()
                if sum(len(record.value) for record in records) > READ_BYTES:
                    end = await in_thread(lambda: files.append(records))
                else:
                    end = files.append(records)
            if self._durable:
                self._dirty.add((topic, partition))
            found.wake()
            return end

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        """See `Log.read`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        with self._using(topic, partition) as found:
            while True:
                version = found.files.version()
                records = found.files.read(offset, max_bytes)
                if isinstance(records, LargeRecord):
                    large = records
                    records = await in_thread(lambda: PartitionFiles.read_large(large))  # noqa: B023 (awaited here)
                    if not records:
                        continue
                if records or timeout_s <= 0 or (remaining := deadline - loop.time()) <= 0:
                    return records
                await self._changed(found, version, remaining)
                if self._closed:
                    raise ExternalError(f"the log in {self._root} was closed while {topic}/{partition} was read")

    async def _changed(self, partition: _Partition, version: bytes, timeout_s: float) -> None:
        """Wait until the partition differs from `version`, at most `timeout_s`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, lambda: waiter.done() or waiter.set_result(None))
        if partition.seen != version:
            partition.wake()  # those wait for a change that this reader has already seen
        partition.waiters.append(waiter)
        partition.seen = version
        self._waiting.add(partition)
        if self._timer is None:
            self._timer = loop.call_later(self._pause_ms / 1_000, self._poll)
        try:
            await waiter
        finally:
            timer.cancel()
            partition.waiters.remove(waiter)
            if not partition.waiters:
                self._waiting.discard(partition)

    def _poll(self) -> None:
        """Wake the readers of partitions that another process has changed. One timer serves all waiting readers."""
        changed = [partition for partition in self._waiting if partition.files.version() != partition.seen]
        for partition in changed:
            partition.wake()
        self._pause_ms = _FIRST_POLL_MS if changed else min(2 * self._pause_ms, self._poll_ms)
        self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(self._pause_ms / 1_000, self._poll)

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """See `Log.offsets`."""
        with self._using(topic, partition) as found:
            state = found.files.state()
            return state.start, state.end

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """See `Log.trim`. Whole segments are deleted; the others stay readable."""
        with self._using(topic, partition) as found:
            files = found.files
            async with found.lock, file_lock(files.open()):
                await in_thread(lambda: files.trim(before))

    async def sync(self) -> None:
        """See `Log.sync`; what this instance appended and the topics it made."""
        if not self._durable:
            return
        async with (
            self._syncing
        ):  # what was appended before this call may be in the hands of another one, which may fail
            dirty, self._dirty = self._dirty, set()
            folders, self._dirty_folders = self._dirty_folders, set()
            try:
                await in_thread(lambda: _sync_folders(folders))
                await asyncio.gather(*(self._sync_partition(topic, partition) for topic, partition in dirty))
            except BaseException:
                self._dirty |= dirty
                self._dirty_folders |= folders
                raise

    async def _sync_partition(self, topic: str, partition: int) -> None:
        with suppress(TopicNotFoundError), self._using(topic, partition) as found:
            files = found.files
            end = await in_thread(files.sync)
            async with found.lock, file_lock(files.open()):
                files.mark_synced(end)

    async def close(self) -> None:
        """See `Log.close`. Waiting readers get an error."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._partitions.values():
            partition.wake()
            if not partition.users:
                partition.files.close()


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread; a cancelled caller still waits for its end, because it holds locks for it."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        running.exception()
        raise
    except OSError as error:
        raise ExternalError(f"the log's directory: {error}") from error


def _sync_folders(folders: set[Path]) -> None:
    for folder in folders:
        with suppress(FileNotFoundError):  # the topic was deleted
            fsync_path(folder / _TOPIC_FILE if (folder / _TOPIC_FILE).exists() else folder)
            fsync_path(folder)

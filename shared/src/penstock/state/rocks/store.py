"""The database of one operator of one subtask: opened in a folder of its own, which is deleted when it is closed.

Responsible for how RocksDB is set up and spoken to; what keys and values mean is `penstock.state.rocks.layout`'s
business. It is a working copy: without a log of its own, never opened again after a crash. What must survive is in the
snapshots.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.core.extras import install
from penstock.core.scratch import Scratch
from penstock.errors import ExternalError, UsageError

if TYPE_CHECKING:
    from rocksdict import Cache, Rdict, RdictIter, ReadOptions

_WRITE_BUFFER_BYTES: Final = 32 << 20
"""Of every operator; two at most, while one is being written."""
_BLOCK_CACHE_BYTES: Final = 128 << 20
"""Of the process: all operators share it."""
MOST_HELD_BYTES: Final = 64 << 20
"""What the cache of objects in front of a database holds after a batch at most, about."""
_BLOOM_BITS: Final = 10
_FOLDER: Final = "penstock-rocksdb-"

Pairs = Iterator[tuple[bytes, bytes]]
"""Keys and values in the order of keys."""
Changes = Mapping[bytes, bytes | None]
"""What is to be written by key; None: removed."""

_shared: list[Cache] = []


def require_rocksdb() -> None:
    """Refuse where the package behind the backend is not installed.

    Raises:
        UsageError: it is not.
    """
    if importlib.util.find_spec("rocksdict") is None:
        raise UsageError(
            "the state backend rocksdb needs the package rocksdict, which is not installed here; "
            f"{install('rocksdb')}, or choose the backend fs"
        )


class FrozenEntries:
    """Single entries of a database as it was at one moment."""

    def __init__(self, cursor: RdictIter, failed: Callable[[Exception], ExternalError]) -> None:
        self._cursor = cursor
        self._failed = failed

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None; fastest for rising keys."""
        cursor = self._cursor
        try:
            cursor.seek(key)
            if cursor.valid():
                return cursor.value() if cursor.key() == key else None
            cursor.status()  # at the end, or broken
        except Exception as error:
            raise self._failed(error) from error
        return None


class RocksStore:
    """Sorted bytes on the local disk.

    Args:
        operator: whose they are, for messages.
        root: where the folder is made.

    Raises:
        UsageError: `rocksdict` is not installed.
        ExternalError: the folder cannot be made or used.
    """

    def __init__(self, operator: str, root: Path) -> None:
        require_rocksdb()
        from rocksdict import WriteOptions

        self._operator = operator
        self._closed = False
        self._folder = _folder(operator, root)
        self._unlogged = WriteOptions()
        cast("Any", self._unlogged).disable_wal = True  # a property, whatever its stub says
        try:
            self._database = self._opened(self._folder.folder / "db")
        except BaseException:
            self._folder.close()
            raise

    def _opened(self, path: Path) -> Rdict:
        from rocksdict import Rdict

        try:
            return Rdict(str(path), _options())
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ExternalError:
        return ExternalError(
            f"operator {self._operator!r}: its state in the local folder {self._folder.folder} cannot be used: {error}; "
            "look whether the disk is full or broken"
        )

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        try:
            return self._database.get(key)
        except Exception as error:
            raise self._failed(error) from error

    def scan(self, begin: bytes, end: bytes) -> Pairs:
        """Keys and values from `begin` up to before `end`, as they are now."""
        yield from self._read(cast("Any", self._database.items(read_opt=_before(end), from_key=begin)))

    def write(self, changes: Changes) -> None:
        """Apply all changes at once."""
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in changes.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            self._database.write(batch, self._unlogged)
        except Exception as error:
            raise self._failed(error) from error

    def frozen(self) -> Pairs:
        """All content as it is now, for another thread to read; takes microseconds.

        An iterator sees what was there when it was made. (What `Rdict.snapshot` gives does not: its iterators see what
        is there when they are made.)
        """
        return self._read(cast("Any", self._database.items(read_opt=_read_once())))

    def frozen_entries(self) -> FrozenEntries:
        """The same, to be asked for single keys."""
        return FrozenEntries(self._database.iter(read_opt=_read_once()), self._failed)

    def _read(self, pairs: Pairs) -> Pairs:
        try:
            yield from pairs
        except Exception as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Forget everything; nothing happens if that is done."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(
                Exception
            ):  # it writes first what nobody will read, perhaps to a disk that is full
                self._database.close()
            self._folder.close()

    def __del__(self) -> None:
        # An operator that fails while it opens is never closed.
        if hasattr(self, "_database"):
            self.close()


def _before(end: bytes) -> ReadOptions:
    from rocksdict import ReadOptions

    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def _options() -> Any:
    from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, Options

    if not _shared:
        _shared.append(Cache(_BLOCK_CACHE_BYTES))
    blocks = BlockBasedOptions()
    blocks.set_block_cache(_shared[0])
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    # Otherwise index and filters of every file stay in memory beside the cache: 12 MB per 10 M keys.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    # In pieces: whole ones of a file with a million keys are larger than what a shard of the cache holds, so that every
    # look-up would read them anew (Flink: state.backend.rocksdb.memory.partitioned-index-filters).
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    return options


def _folder(operator: str, root: Path) -> Scratch:
    try:
        root.mkdir(parents=True, exist_ok=True)
        return Scratch(root, _FOLDER)
    except OSError as error:
        raise ExternalError(f"operator {operator!r}: no folder for its state can be made in {root}: {error}") from error


def _read_once() -> ReadOptions:
    """What is read once, by a snapshot, does not drive out of the cache what is in use."""
    from rocksdict import ReadOptions

    once = ReadOptions()
    cast("Any", once).fill_cache(False)
    return once

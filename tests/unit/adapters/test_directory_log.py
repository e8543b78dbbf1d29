"""The directory log beyond the contract: several processes, killed writers, damage, power loss, files on disk."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.adapters.directory import log as directory_log
from penstock.adapters.directory import partition as directory_partition
from penstock.adapters.directory.log import DirectoryLog
from penstock.adapters.directory.records import HEADER_BYTES
from penstock.adapters.directory.state import PartitionState
from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import LogRecord, NewRecord, OffsetOutOfRangeError, TopicNotFoundError

APPENDER = """
import asyncio, sys
from pathlib import Path
from penstock.adapters.directory.log import DirectoryLog
from penstock.ports import NewRecord

async def main(root, name, count, size):
    log = DirectoryLog(Path(root), segment_bytes=200_000)
    for number in range(count):
        end = await log.append("t", 0, [NewRecord(b"%s %d %d " % (name.encode(), number, part) + b"x" * size)
                                        for part in range(3)])
        print(number, end, flush=True)
    await log.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


def appender(root: Path, name: str, count: int, size: int) -> subprocess.Popen[bytes]:
    """A process that appends `count` times three records."""
    arguments = [sys.executable, "-c", APPENDER, str(root), name, str(count), str(size)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE)


async def everything(log: DirectoryLog, topic: str = "t") -> list[LogRecord]:
    offset, end = await log.offsets(topic, 0)
    found: list[LogRecord] = []
    while offset < end:
        found += await log.read(topic, 0, offset)
        offset = found[-1].next_offset
    return found


def segment(root: Path, topic: str = "t") -> Path:
    return sorted((root / topic / "0").glob("*.log"))[-1]


def another_boot(root: Path) -> None:
    """Make the state block look as if it was written before the machine last booted."""
    path = root / "t" / "0" / "state"
    state = PartitionState.unpack(path.read_bytes())
    assert state is not None
    path.write_bytes(replace(state, boot=b"another boot....").pack())


async def test_two_processes_append_at_once(tmp_path: Path) -> None:
    """Calls of two processes stay whole, none is lost, each process's order is kept, over many segments."""
    log = DirectoryLog(tmp_path, segment_bytes=200_000)
    await log.create_topic("t", 1)
    processes = [appender(tmp_path, name, 300, 1_000) for name in ("a", "b")]
    found: list[tuple[bytes, int, int]] = []
    offset = 0
    while len(found) < 1_800:
        records = await log.read("t", 0, offset, timeout_s=20)
        assert records
        for record in records:
            name, number, part, _ = record.value.split()
            found.append((name, int(number), int(part)))
        offset = records[-1].next_offset
    for process in processes:
        assert await asyncio.to_thread(process.wait) == 0
        assert process.stdout
        process.stdout.close()
    for first in range(0, 1_800, 3):
        assert found[first : first + 3] == [(*found[first][:2], part) for part in range(3)]
    for name in (b"a", b"b"):
        assert [number for who, number, part in found if (who, part) == (name, 0)] == list(range(300))
    assert (await log.offsets("t", 0))[1] == offset
    await log.close()


async def test_killed_appender_leaves_no_trace_of_a_torn_record(tmp_path: Path) -> None:
    """SIGKILL in the middle of appending: everything confirmed is there, nothing torn is read, the log goes on."""
    log = DirectoryLog(tmp_path, segment_bytes=200_000)
    await log.create_topic("t", 1)
    for round_ in range(3):
        process = appender(tmp_path, f"r{round_}", 10**6, 30_000)
        assert process.stdout
        confirmed = [await asyncio.to_thread(process.stdout.readline) for _ in range(5 + round_)]
        process.send_signal(signal.SIGKILL)
        confirmed += process.stdout.read().splitlines()
        process.stdout.close()
        process.wait()
        number, end = map(int, next(line for line in reversed(confirmed) if len(line.split()) == 2).split())
        assert (await log.offsets("t", 0))[1] >= end
        values = [record.value.split()[:3] for record in await everything(log)]
        mine = [value for value in values if value[0] == b"r%d" % round_]
        assert [value for value in mine if int(value[1]) <= number] == [
            [b"r%d" % round_, b"%d" % call, b"%d" % part] for call in range(number + 1) for part in range(3)
        ]
        assert len(mine) % 3 == 0
        await log.append("t", 0, [NewRecord(b"between 0 0")])
        assert (await everything(log))[-1].value == b"between 0 0"
    await log.close()


@pytest.mark.parametrize("left", [b"\x07", b"\x00" * 100, bytes(range(256)) * 40])
async def test_torn_tail_is_invisible_and_removed(tmp_path: Path, left: bytes) -> None:
    """Bytes behind the confirmed end are never read and are gone after the next append."""
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    end = await log.append("t", 0, [NewRecord(b"a")])
    segment(tmp_path).write_bytes(segment(tmp_path).read_bytes() + left)
    other = DirectoryLog(tmp_path)
    assert await other.offsets("t", 0) == (0, end)
    assert [record.value for record in await other.read("t", 0, 0)] == [b"a"]
    end = await other.append("t", 0, [NewRecord(b"b")])
    assert [record.value for record in await log.read("t", 0, 0)] == [b"a", b"b"]
    assert segment(tmp_path).stat().st_size == end
    await log.close()
    await other.close()


@settings(max_examples=60, deadline=None)
@given(record=st.integers(0, 4), byte=st.integers(0, HEADER_BYTES + 60 - 1), flip=st.integers(1, 255))
async def test_damage_below_the_end_is_never_skipped(
    tmp_path_factory: pytest.TempPathFactory, record: int, byte: int, flip: int
) -> None:
    """Whichever byte of whichever confirmed record changes, reading it is an error that names file and position."""
    root = tmp_path_factory.mktemp("damage")
    log = DirectoryLog(root)
    await log.create_topic("t", 1)
    await log.append("t", 0, [NewRecord(b"v%d" % number * 25, b"k" * 10) for number in range(5)])
    path = segment(root)
    content = bytearray(path.read_bytes())
    size = len(content) // 5
    content[record * size + byte % size] ^= flip
    path.write_bytes(content)
    reader = DirectoryLog(root)
    if record:
        first = await reader.read("t", 0, 0, max_bytes=size)
        assert first[0].value == b"v0" * 25
    with pytest.raises(CorruptDataError, match=rf"{path.name}.*position {record * size}\b"):
        await reader.read("t", 0, record * size)
    with pytest.raises(CorruptDataError):
        await everything(reader)
    await log.close()
    await reader.close()


async def test_missing_bytes_below_the_end_are_an_error(tmp_path: Path) -> None:
    """A segment that lost confirmed bytes, or is gone, is an error and not an end."""
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    await log.append("t", 0, [NewRecord(b"a" * 50), NewRecord(b"b" * 50)])
    path = segment(tmp_path)
    os.truncate(path, path.stat().st_size - 10)
    assert len(await log.read("t", 0, 0)) == 1
    with pytest.raises(CorruptDataError, match="position 70"):
        await log.read("t", 0, 70)
    path.unlink()
    await log.close()
    log = DirectoryLog(tmp_path)
    with pytest.raises(CorruptDataError, match="missing"):
        await log.read("t", 0, 0)
    await log.close()


async def test_a_position_inside_a_record_is_refused(tmp_path: Path) -> None:
    """Reading from an offset that no append returned is an error."""
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    await log.append("t", 0, [NewRecord(b"a" * 50)])
    with pytest.raises(CorruptDataError, match="no record begins here"):
        await log.read("t", 0, 7)
    await log.close()


async def test_power_loss_keeps_what_was_synced(tmp_path: Path) -> None:
    """After a boot the log ends at the first damage behind what was synced, and goes on from there."""
    log = DirectoryLog(tmp_path, segment_bytes=1_000)
    await log.create_topic("t", 1)
    for number in range(30):
        synced = await log.append("t", 0, [NewRecord(b"%03d" % number * 30)])
    await log.sync()
    ends = [await log.append("t", 0, [NewRecord(b"%03d" % number * 30)]) for number in range(30, 60)]
    await log.close()
    another_boot(tmp_path)
    bases = sorted(int(path.stem) for path in (tmp_path / "t" / "0").glob("*.log"))
    lost = next(base for base in bases if base > ends[10])
    (tmp_path / "t" / "0" / f"{lost:020d}.log").write_bytes(bytes(500))
    log = DirectoryLog(tmp_path, segment_bytes=1_000)
    assert await log.offsets("t", 0) == (0, lost)
    assert lost > synced
    records = await everything(log)
    assert [record.value[:3] for record in records] == [b"%03d" % number for number in range(len(records))]
    await log.append("t", 0, [NewRecord(b"on")])
    assert (await log.read("t", 0, lost))[0].value == b"on"
    assert len(await everything(log)) == len(records) + 1
    await log.close()


async def test_power_loss_may_not_take_what_was_synced(tmp_path: Path) -> None:
    """After a boot, a segment shorter than what was synced is an error."""
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    await log.append("t", 0, [NewRecord(b"a" * 50)])
    await log.sync()
    await log.close()
    another_boot(tmp_path)
    os.truncate(segment(tmp_path), 20)
    log = DirectoryLog(tmp_path)
    with pytest.raises(CorruptDataError, match="had been synced"):
        await log.offsets("t", 0)
    await log.close()


class Fsyncs:
    """What the log has fsynced; some calls fail, or wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[Path] = []
        self.fails_at = -1
        self.wait: Callable[[], object] = lambda: None
        self.calls = 0
        self._fsync = directory_log.fsync_path
        for module in (directory_log, directory_partition):
            monkeypatch.setattr(module, "fsync_path", self._called)

    def _called(self, path: Path) -> None:
        self.wait()
        self.calls += 1
        if self.calls - 1 == self.fails_at:
            raise OSError("the disk does not answer")
        self._fsync(path)
        self.done.append(path)


@pytest.mark.parametrize("fails_at", range(8))
async def test_what_a_sync_failed_on_is_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Folders and partitions alike, those that were not reached, too."""
    fsyncs, synced = Fsyncs(monkeypatch), list[set[Path]]()
    for name, failing in (("whole", -1), ("failing", fails_at)):
        log = DirectoryLog(tmp_path / name)
        await log.create_topic("t", 2)
        for partition in (0, 1):
            await log.append("t", partition, [NewRecord(b"a")])
        fsyncs.done, fsyncs.fails_at, fsyncs.calls = [], failing, 0
        if failing < 0:
            await log.sync()
        else:
            with pytest.raises(ExternalError, match="does not answer"):
                await log.sync()
            await log.sync()
        synced.append({path.relative_to(tmp_path / name) for path in fsyncs.done})
        await log.close()
    assert synced[0] == synced[1]
    assert len(synced[0]) > 4


async def test_a_sync_waits_for_one_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was confirmed before the call may be in the hands of the other one, which may also fail."""
    fsyncs, go_on = Fsyncs(monkeypatch), threading.Event()
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    await log.append("t", 0, [NewRecord(b"a")])
    fsyncs.done, fsyncs.wait, fsyncs.fails_at, fsyncs.calls = [], lambda: go_on.wait(30), 0, 0
    first, second = asyncio.create_task(log.sync()), asyncio.create_task(log.sync())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    go_on.set()
    with pytest.raises(ExternalError, match="does not answer"):
        await first
    await second
    assert segment(tmp_path) in fsyncs.done
    await log.close()


async def test_lost_state_block_is_rebuilt(tmp_path: Path) -> None:
    """Where the state block never reached the disk the names and records of the segments say what there is."""
    log = DirectoryLog(tmp_path, segment_bytes=500)
    await log.create_topic("t", 1)
    for number in range(30):
        await log.append("t", 0, [NewRecord(b"%d" % number * 30)])
    await log.trim("t", 0, 900)
    offsets, records = await log.offsets("t", 0), await everything(log)
    await log.close()
    (tmp_path / "t" / "0" / "state").write_bytes(b"")
    log = DirectoryLog(tmp_path, segment_bytes=500)
    assert await log.offsets("t", 0) == offsets
    assert await everything(log) == records
    await log.close()


async def test_large_record_survives_recovery(tmp_path: Path) -> None:
    """Recovery validates records larger than its read buffer, and cuts one that is incomplete."""
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    end = await log.append("t", 0, [NewRecord(b"a"), NewRecord(b"b" * (9 << 20)), NewRecord(b"c")])
    await log.append("t", 0, [NewRecord(b"d" * (9 << 20))])
    await log.close()
    another_boot(tmp_path)
    os.truncate(segment(tmp_path), end + (8 << 20))
    log = DirectoryLog(tmp_path)
    assert await log.offsets("t", 0) == (0, end)
    assert [record.value[:1] for record in await everything(log)] == [b"a", b"b", b"c"]
    await log.close()


async def test_trim_deletes_segments(tmp_path: Path) -> None:
    """Trimmed segments are gone from the disk, also the active one when everything is trimmed."""
    log = DirectoryLog(tmp_path, segment_bytes=1_000)
    await log.create_topic("t", 1)
    for _ in range(50):
        end = await log.append("t", 0, [NewRecord(b"x" * 80)])
    before = len(list((tmp_path / "t" / "0").glob("*.log")))
    await log.trim("t", 0, end // 2)
    assert len(list((tmp_path / "t" / "0").glob("*.log"))) <= before // 2 + 1
    await log.trim("t", 0, end)
    assert list((tmp_path / "t" / "0").glob("*.log")) == []
    assert await log.offsets("t", 0) == (end, end)
    other = DirectoryLog(tmp_path)
    with pytest.raises(OffsetOutOfRangeError):
        await other.read("t", 0, 0)
    await other.append("t", 0, [NewRecord(b"y")])
    assert [record.value for record in await log.read("t", 0, end)] == [b"y"]
    await log.close()
    await other.close()


async def test_reader_of_another_instance_follows_compaction_and_trimming(tmp_path: Path) -> None:
    """An instance that read before files were rewritten or removed by another one reads on correctly."""
    writer, reader = DirectoryLog(tmp_path, segment_bytes=1_000), DirectoryLog(tmp_path)
    await writer.create_topic("t", 1, compacted=True)
    seen: dict[bytes | None, bytes] = {}
    offset = 0
    for number in range(500):
        await writer.append("t", 0, [NewRecord(b"%d" % number, b"k%d" % (number % 3))])
        if number % 7 == 0:
            for record in await reader.read("t", 0, offset):
                seen[record.key] = record.value
                offset = record.next_offset
    for record in await reader.read("t", 0, offset):
        seen[record.key] = record.value
    assert seen == {b"k0": b"498", b"k1": b"499", b"k2": b"497"}
    assert len(list((tmp_path / "t" / "0").glob("*.compacted"))) == 1
    await writer.close()
    await reader.close()


async def test_damaged_compacted_file_is_an_error(tmp_path: Path) -> None:
    """A compacted file is checked like a segment."""
    log = DirectoryLog(tmp_path, segment_bytes=500)
    await log.create_topic("t", 1, compacted=True)
    for number in range(100):
        await log.append("t", 0, [NewRecord(b"%d" % number, b"k%d" % (number % 3))])
    await log.close()
    path = next((tmp_path / "t" / "0").glob("*.compacted"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    log = DirectoryLog(tmp_path)
    with pytest.raises(CorruptDataError, match="compacted"):
        await log.read("t", 0, 0)
    await log.close()


async def test_many_partitions_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors are bounded by a constant, whatever the number of partitions."""
    monkeypatch.setattr(directory_log, "_OPEN_PARTITIONS", 10)
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 60)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(2):
        for partition in range(60):
            await log.append("t", partition, [NewRecord(b"%d" % turn)])
    for partition in range(60):
        assert [record.value for record in await log.read("t", partition, 0)] == [b"0", b"1"]
    assert len(os.listdir("/proc/self/fd")) - before <= 60
    await log.sync()
    await log.close()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_deletion_reaches_another_instance(tmp_path: Path) -> None:
    """A topic deleted elsewhere ends a waiting reader here, and its successor of the same name is found."""
    one, two = DirectoryLog(tmp_path), DirectoryLog(tmp_path)
    await one.create_topic("t", 1)
    await two.append("t", 0, [NewRecord(b"old")])
    waiting = asyncio.create_task(one.read("t", 0, (await one.offsets("t", 0))[1], timeout_s=30))
    await asyncio.sleep(0)
    await two.delete_topic("t")
    with pytest.raises(TopicNotFoundError):
        await asyncio.wait_for(waiting, 5)
    await two.create_topic("t", 2)
    await two.append("t", 1, [NewRecord(b"new")])
    assert [record.value for record in await one.read("t", 1, 0)] == [b"new"]
    await one.append("t", 0, [NewRecord(b"again")])
    assert [record.value for record in await two.read("t", 0, 0)] == [b"again"]
    await one.close()
    await two.close()


async def test_cancelled_append_is_whole_or_absent(tmp_path: Path) -> None:
    """An append that is cancelled while a thread writes does not mix with the next one."""
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    big = asyncio.create_task(log.append("t", 0, [NewRecord(b"x" * (6 << 20))]))
    small = asyncio.create_task(log.append("t", 0, [NewRecord(b"y")]))
    for _ in range(3):
        await asyncio.sleep(0)
    big.cancel()
    with pytest.raises(asyncio.CancelledError):
        await big
    await small
    values = [record.value[:1] for record in await everything(log)]
    assert values in ([b"x", b"y"], [b"y"])
    await log.close()


async def test_refused_write_confirms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is an external error; what was written of the record is cut by the next append."""
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    await log.append("t", 0, [NewRecord(b"a")])
    with monkeypatch.context() as patched:

        def full(descriptor: int, pieces: list[bytes], position: int) -> int:
            os.pwrite(descriptor, pieces[0], position)
            raise OSError(28, "No space left on device")

        patched.setattr(os, "pwritev", full)
        with pytest.raises(ExternalError, match="No space left"):
            await log.append("t", 0, [NewRecord(b"b")])
    assert len(await everything(log)) == 1
    await log.append("t", 0, [NewRecord(b"c")])
    assert [record.value for record in await everything(log)] == [b"a", b"c"]
    await log.close()


async def test_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that the system cut short is continued."""
    log = DirectoryLog(tmp_path)
    await log.create_topic("t", 1)
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, position: os.pwrite(fd, pieces[0][:5], position))
    await log.append("t", 0, [NewRecord(b"hello"), NewRecord(b"world")])
    assert [record.value for record in await everything(log)] == [b"hello", b"world"]
    await log.close()


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    """A root that cannot be a folder is reported with its name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ExternalError, match="cannot use"):
        DirectoryLog(tmp_path / "file" / "log")

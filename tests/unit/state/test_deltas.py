"""What incremental checkpoints refuse, and what is refused of them."""

from __future__ import annotations

import msgspec
import polars as pl
import pytest

from penstock.errors import CorruptDataError, UsageError
from penstock.protocol.checkpoints import CheckpointBook, CheckpointSettings
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Handle, OperatorHandles, SubtaskSnapshot
from penstock.savepoint.folder import handles_of, with_keys
from penstock.state.deltas import CHANGES, NUMBERED, merged
from penstock.state.rocks.changed import ChangedKeys
from penstock.state.segments import encode_segment
from penstock.submission.options import job_settings


def manifest(*runs: str) -> Manifest:
    handles = OperatorHandles().with_runs([(Handle(key, "sha", 1),) for key in runs])
    return Manifest(
        job="j", checkpoint=7, attempt="a", parallelism=1, max_parallelism=1, operators={},
        subtasks={"v": {0: SubtaskSnapshot(operators={"op": handles})}},
    )  # fmt: skip


def test_snapshots_without_objects_are_not_incremental():
    """Whoever asks for that is told."""
    with pytest.raises(UsageError, match=r"the state backend memory keeps .*: choose fs or rocksdb"):
        job_settings(state_backend="memory", incremental_checkpoints=True)
    for backend in ("fs", "rocksdb"):
        assert job_settings(state_backend=backend, incremental_checkpoints=True).checkpoints.incremental


def test_savepoints_are_canonical_and_other_checkpoints_are_not():
    """Only where checkpoints are incremental: programs of earlier versions do not know the word."""
    incremental, full = (CheckpointBook(CheckpointSettings(incremental=how), str) for how in (True, False))
    assert [incremental.flavour(why) for why in ("savepoint", "stop", "periodic", "rescale", "final")] == [
        "canonical", "canonical", "aligned", "aligned", "aligned"
    ]  # fmt: skip
    assert {full.flavour(why) for why in ("savepoint", "stop", "periodic")} == {"aligned"}


def test_an_incremental_checkpoint_is_copied_whole():
    """Programs that do not know the form refuse it by the format of its manifest."""
    data = encode_manifest(manifest("full", "delta"))
    assert msgspec.json.decode(data)["version"] == 4
    found = decode_manifest(data, "m")
    assert [handle.key for handle in handles_of(with_keys(found, str.upper))] == ["FULL", "DELTA"]
    assert with_keys(found, str.upper).subtasks["v"][0].operators["op"].incremental


def segment(kind, names=("value", "__event_timers", "__processing_timers"), value=b"1"):
    header = {"kind": kind, "names": list(names), "states": {"value": {"kind": "value"}}, "keys": [{"name": "key"}]}
    rows = pl.DataFrame({"key": [1], "__state": [0], "__subkey": [None], "__value": [value], "__time_us": [None]},
                        {"key": pl.Int64, "__state": pl.UInt16, "__subkey": pl.Binary, "__value": pl.Binary,
                         "__time_us": pl.Int64})  # fmt: skip
    return encode_segment(header, rows)


def test_what_does_not_belong_into_a_snapshot_is_named():
    """A segment of another form, or of other states."""
    assert merged("op", [segment(NUMBERED), segment(CHANGES, value=None)])
    with pytest.raises(CorruptDataError, match=r"operator 'op': a segment of objects .* does not belong"):
        merged("op", [segment("objects"), segment(CHANGES)])
    with pytest.raises(CorruptDataError, match="does not belong"):
        merged("op", [segment(NUMBERED, ("other", "__event_timers", "__processing_timers")), segment(CHANGES)])


def test_changed_keys_are_known_as_long_as_there_is_room_for_them():
    """Where there is none the next snapshot is a full one, and the one after it need not be."""
    changed = ChangedKeys(most_bytes=10_000)
    changed.note({b"before": b""})
    assert changed.close().known_from == 1
    changed.note({b"one": b"", b"two": None})
    second = changed.close()
    assert (second.number, list(second.since(1))) == (2, [b"one", b"two"])
    changed.note({b"%d" % number: b"" for number in range(1_000)})
    assert changed.close().known_from == 3
    changed.note({b"three": b""})
    fourth = changed.close()
    assert fourth.known_from == 3
    assert list(fourth.since(3)) == [b"three"]


def test_many_changed_keys_are_given_up_between_two_freezes():
    """They are not held until the next one; what comes behind it is known again."""
    changed = ChangedKeys(most_bytes=100_000)
    changed.close()
    changed.note({b"%d" % number: b"" for number in range(100_000)})
    assert changed.close().known_from == 2
    changed.note({b"again": b""})
    assert list(changed.close().since(2)) == [b"again"]

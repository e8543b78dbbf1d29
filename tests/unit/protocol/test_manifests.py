"""The form of manifests: what this version writes is read by the one before wherever that can understand it."""

from __future__ import annotations

import msgspec
import pytest

from penstock.errors import CorruptDataError
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Handle, OperatorHandles, SubtaskSnapshot


def _manifest(handles: OperatorHandles) -> Manifest:
    snapshot = SubtaskSnapshot(operators={"op": handles})
    return Manifest("j", 1, "a", 1, 240, {"v": {0: snapshot}}, {})


def test_a_manifest_has_the_newer_form_only_where_it_must() -> None:
    """A program that does not know lists in objects of their own must refuse them, and read everything else."""
    plain = _manifest(OperatorHandles(lists={"splits": (b"a",)}))
    assert msgspec.json.decode(encode_manifest(plain))["version"] == 1
    apart = _manifest(OperatorHandles(beside=Handle("key", "sha", 1)))
    assert msgspec.json.decode(encode_manifest(apart))["version"] == 2
    for manifest in (plain, apart):
        assert decode_manifest(encode_manifest(manifest), "key").subtasks == manifest.subtasks


def test_a_manifest_of_a_later_version_is_refused() -> None:
    """It names the object and what this program reads."""
    later = msgspec.json.encode({**msgspec.to_builtins(_manifest(OperatorHandles())), "version": 3})
    with pytest.raises(CorruptDataError, match="some/key: manifest format 3, this program reads up to 2"):
        decode_manifest(later, "some/key")

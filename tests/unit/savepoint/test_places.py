"""What a folder holds whose writer dies at any moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.savepoint.folder import SEAL, is_sealed
from penstock.savepoint.places import LocalPlace


class KilledError(Exception):
    """Stands for SIGKILL: nothing that handles errors of the system sees it."""


def test_a_part_whose_writer_dies_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal of no bytes would make a step count as done that nothing can go on from."""
    place = LocalPlace(tmp_path / "savepoint")

    def die(_descriptor: int) -> None:
        raise KilledError

    place.write("other/part", b"there")
    (place.folder / "other" / "part").unlink()
    (place.folder / "other").rmdir()
    with monkeypatch.context() as dying:
        dying.setattr(os, "fsync", die)
        with pytest.raises(KilledError):
            place.write(SEAL, b"{}")
    assert [path.name.startswith(".") for path in place.folder.iterdir()] == [True]
    assert (is_sealed(place), place.is_free(), place.sizes()) == (False, True, {})
    place.write(SEAL, b"{}")
    assert (place.sizes(), place.is_free()) == ({SEAL: 2}, False)
    assert (place.folder / SEAL).stat().st_mode & 0o777 == 0o600

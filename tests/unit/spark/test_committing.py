"""Where a run that is decided has its staged rows, whatever a later start names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.spark.committing import RunManifest, RunManifests


def test_a_decided_run_is_published_from_where_it_staged(tmp_path: Path) -> None:
    """With another --staging, without one, and with one that there was not."""
    shared, folder = RunManifests(tmp_path, str(tmp_path / "shared")), RunManifests(tmp_path)
    there = RunManifest("a", "p", {}, {}, staging=shared.staging_mark)
    here = RunManifest("b", "p", {}, {}, staging=folder.staging_mark)
    for now in (shared, folder, RunManifests(tmp_path, str(tmp_path / "other"))):
        assert now.staging_of(there) == shared.staging
        assert now.staging_of(here) == str(tmp_path)


def test_the_folder_of_a_decided_run_may_be_moved(tmp_path: Path) -> None:
    """What it staged beside its manifest has gone with it; old manifests do not say where that was."""
    mark = RunManifests(tmp_path / "before").staging_mark
    moved = RunManifests(tmp_path / "now")
    assert moved.staging_of(RunManifest("a", "p", {}, {}, staging=mark)) == str(tmp_path / "now")
    old = msgspec.json.decode(b'{"run": "a", "pipeline": "p", "staged": {}, "counts": {}}', type=RunManifest)
    assert moved.staging_of(old) == str(tmp_path / "now")

"""Savepoints of runs on Spark that no folder is shared for: tasks and driver read and write them in MinIO."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import pytest
from embedded_runs import counted, finish, rows
from pipelines import ROWS
from spark_runs import rounded
from standalone import penstock_run
from state_runs import STATE_FILE, continue_embedded, merged, run_part, write_part

from penstock import savepoint
from penstock.connectors.files import store_clients
from penstock.errors import CorruptDataError, ExternalError, PenstockError
from penstock.loading import load_pipeline
from penstock.savepoint.places import place_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    return {"case": "tumbling", "in": str(tmp_path / "in"), "out": str(tmp_path / "out")}


def in_one_run(given: dict[str, str], root: Path) -> list[str]:
    """What a streaming run over everything comes to."""
    write_part(root / "all", "", 0, ROWS)
    finish(load_pipeline(str(STATE_FILE), given | {"in": str(root / "all"), "out": str(root / "one")}), root / "state")
    return rounded(counted(rows(root / "one")))


def test_runs_go_from_savepoint_to_savepoint_in_a_store(spark, minio, given, tmp_path, monkeypatch):
    """At another parallelism, from the command's way and from p.run(); then a stream goes on. Nothing but whole
    savepoints is left there."""
    for name, value in minio.environment.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)  # what tasks are started with
    write_part(tmp_path / "in", "a-", 0, 900)
    run_part(spark, tmp_path, given, target=f"{minio.url}/a", run="a")
    write_part(tmp_path / "in", "b-", 900, 2_100)
    run_part(spark, tmp_path, given, start=f"{minio.url}/a", target=f"{minio.url}/b", run="b", parallelism=3)
    write_part(tmp_path / "in", "c-", 2_100, 2_400)
    pipeline = load_pipeline(str(STATE_FILE), given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        done = pipeline.run(
            engine="spark", spark=spark, directory=tmp_path / "c", from_savepoint=f"{minio.url}/b",
            to_savepoint=f"{minio.url}/c",
        )  # fmt: skip
    assert done.total("w", "late_rows") == 0
    write_part(tmp_path / "in", "d-", 2_400, ROWS)
    last = load_pipeline(str(STATE_FILE), given | {"out": str(tmp_path / "streamed")})
    continue_embedded(last, f"{minio.url}/c", tmp_path / "job", 2)
    found = merged([tmp_path / "out", tmp_path / "streamed"], tmp_path / "whole")
    assert rounded(counted(rows(found))) == in_one_run(given, tmp_path)
    kept = {name for run in "abc" for name in _parts(f"{minio.url}/{run}", run)}
    assert minio.names() == kept


def _parts(url: str, name: str) -> set[str]:
    """What a savepoint there consists of."""
    manifest = savepoint.read(url).manifest
    named = {h.key for part in manifest.subtasks["v1"].values() if (h := part.operators["w"].keyed)}
    assert len(named) > 1
    return {f"{name}/{part}" for part in named | {"manifest.json", "savepoint.json"}}


def test_a_savepoint_has_objects_of_another_one_by_copies_that_the_store_makes(minio, tmp_path):
    """They stay when the other one goes; from a folder they are sent."""
    before, place, folder = place_of(f"{minio.url}/1"), place_of(f"{minio.url}/2"), place_of(tmp_path)
    before.put("objects/a.state", b"state")
    place.adopt("objects/b.state", before, "objects/a.state")
    folder.adopt("objects/c.state", before, "objects/a.state")
    before.remove("objects/a.state")
    assert place.read("objects/b.state") == folder.read("objects/c.state") == b"state"
    place.adopt("objects/d.state", folder, "objects/c.state")
    assert minio.names() == {"2/objects/b.state", "2/objects/d.state"}
    for former in (before, folder):
        with pytest.raises(CorruptDataError, match=r"missing.state: a part of the savepoint is missing"):
            place.adopt("objects/e.state", former, "objects/missing.state")


def test_executors_and_driver_share_nothing_but_the_store(standalone, minio, given, tmp_path):
    """The command, on a real cluster, whose executors know the store by their own environment."""
    write_part(tmp_path / "in", "a-", 0, 1_500)
    command = penstock_run(standalone, STATE_FILE, given, minio.conf)
    for options in (
        ["--to-savepoint", f"{minio.url}/one"],
        ["--from-savepoint", f"{minio.url}/one", "--to-savepoint", f"{minio.url}/two/"],
    ):
        done = subprocess.run(
            [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        write_part(tmp_path / "in", "b-", 1_500, ROWS)
    assert f"penstock submit FILE --from-savepoint {minio.url}/two" in done.stderr
    last = load_pipeline(str(STATE_FILE), given | {"out": str(tmp_path / "streamed")})
    continue_embedded(last, f"{minio.url}/two", tmp_path / "job", 2)
    found = merged([tmp_path / "out", tmp_path / "streamed"], tmp_path / "whole")
    assert rounded(counted(rows(found))) == in_one_run(given, tmp_path)


def test_a_bucket_that_is_not_there_and_keys_that_do_not_fit_are_named(minio, request, monkeypatch):
    """Before anything is computed: by the URL, with where to look."""
    with pytest.raises(PenstockError, match=r"Bucket.*create the bucket or correct the URL"):
        place_of("s3://nowhere/kept").is_free()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    store_clients._client.cache_clear()  # a process has one client, by the environment that it began with
    request.addfinalizer(store_clients._client.cache_clear)
    with pytest.raises(ExternalError, match="check the keys in the environment") as raised:
        place_of(f"{minio.url}/kept", "--to-savepoint").is_free()
    assert "another-secret" not in str(raised.value)

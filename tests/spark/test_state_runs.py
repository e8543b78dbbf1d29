"""A run that leaves a savepoint does so once, whatever is tried again; what cannot be is refused by name."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedded_runs import rows
from pipelines import ROWS, events
from spark_runs import CASES_FILE
from state_runs import STATE_FILE, merged, run_part, write_part

from penstock import savepoint
from penstock.adapters.memory import MemoryBlobs
from penstock.cli.main import main
from penstock.errors import ExternalError, IncompatibleStateError, UsageError
from penstock.graph.jobgraph import build_job_graph
from penstock.loading import load_pipeline
from penstock.savepoint.folder import SEAL, SavepointPlace
from penstock.savepoint.places import LocalPlace, StoredPlace, place_of
from penstock.savepoint.transfer import import_savepoint
from penstock.spark import engine, lowering, savepoints
from penstock.spark.starting import starting_point
from penstock.submission.admission import check_compatible

pytestmark = pytest.mark.acceptance


class Killed(BaseException):
    """The process is gone, as far as a run can tell."""


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """Half of the rows are there."""
    write_part(tmp_path / "in", "a-", 0, ROWS // 2)
    return {"case": "tumbling", "in": str(tmp_path / "in"), "out": str(tmp_path / "out")}


def kill_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    def killed_at_the_last(place: SavepointPlace, name: str, data: bytes) -> None:
        if name == SEAL:
            raise Killed
        write[type(place)](place, name, data)

    write = {kind: kind.write for kind in (LocalPlace, StoredPlace)}
    if step == "write":
        for kind in write:
            monkeypatch.setattr(kind, step, killed_at_the_last)
    else:
        monkeypatch.setattr(savepoints if step == "seal_folder" else engine, step, killed)


@pytest.fixture(params=["a folder", "a store"])
def kept(request: pytest.FixtureRequest, bucket: Path) -> Path | str:
    """A place for a savepoint, whose parts stand in the folder `bucket / "kept"` either way."""
    return bucket / "kept" if request.param == "a folder" else "s3://bucket/kept"


@pytest.mark.parametrize("step", ["staged_parts", "commit", "seal", "seal_folder", "write"])
def test_a_run_that_died_is_carried_to_its_end(step, given, local, kept, bucket, tmp_path, monkeypatch):
    """Given again it leaves the one savepoint, with nothing of the dead attempt beside it, and reads what it would have
    read then. A third time nothing happens."""
    with monkeypatch.context() as patch:
        kill_at(patch, step)
        with pytest.raises(Killed):
            run_part(local, tmp_path, given, target=kept, run="nightly")
        with pytest.raises(UsageError, match="no savepoint is there"):
            savepoint.read(kept)
    write_part(tmp_path / "in", "b-", ROWS // 2, ROWS)
    again = run_part(local, tmp_path, given, target=kept, run="nightly")
    assert again.computed == (step == "staged_parts")
    sp = savepoint.read(kept)
    assert sorted(sp.splits()["split"]) == ["a-0.jsonl", "a-1.jsonl", "a-2.jsonl"]
    named = {handle.key for part in sp.manifest.subtasks["v1"].values() if (handle := part.operators["w"].keyed)}
    assert named | {"manifest.json", "savepoint.json"} == place_of(kept).sizes().keys()
    found = rows(tmp_path / "out")
    assert sum(row["n"] for row in found) + sp.table("w")["__p0"].sum() == ROWS // 2
    assert not run_part(local, tmp_path, given, target=kept, run="nightly").computed
    assert rows(tmp_path / "out") == found


def test_a_run_id_has_one_beginning_and_one_end(given, local, tmp_path):
    """Another savepoint to start from or to leave is another run."""
    run_part(local, tmp_path, given, target=tmp_path / "monday", run="monday")
    with pytest.raises(UsageError, match=r"left its savepoint in .*monday, this one is to use .*tuesday"):
        run_part(local, tmp_path, given, target=tmp_path / "tuesday", run="monday")
    with pytest.raises(UsageError, match="that run read by --source none"):
        run_part(local, tmp_path, given, target=tmp_path / "monday", run="monday", archives={"n0-read": given["in"]})
    with pytest.raises(UsageError, match="started from savepoint none"):
        run_part(local, tmp_path, given, start=tmp_path / "monday", target=tmp_path / "monday", run="monday")


@pytest.mark.parametrize("root", ["", "s3://bucket/runs/"])
def test_runs_follow_each_other(root, given, local, bucket, tmp_path):
    """Every run starts from the savepoint of the one before; windows come once, and no row is late."""
    cuts = [ROWS // 2, 1_700, 1_701, 2_400, ROWS]
    previous = None
    for number, name in enumerate(("mon", "tue", "wed", "thu", "fri")):
        if number:
            write_part(tmp_path / "in", f"{name}-", cuts[number - 1], cuts[number])
        target = f"{root or f'{tmp_path}/'}{name}" if name != "fri" else None
        result = run_part(local, tmp_path, given, start=previous, target=target, run=name)
        assert result.total("w", "late_rows") == 0
        previous = target
    found = rows(tmp_path / "out")
    assert sum(row["n"] for row in found) == ROWS
    assert len({(row["key"], row["window_start"]) for row in found}) == len(found)


def test_a_folder_in_which_something_is_is_not_written_to(given, local, kept, bucket, tmp_path):
    """Nothing is computed before that is found, and what is there stays."""
    mine = bucket / "kept" / "objects" / "mine"
    mine.parent.mkdir(parents=True)
    mine.touch()
    with pytest.raises(UsageError, match="there is something already"):
        run_part(local, tmp_path, given, target=kept)
    assert not (tmp_path / "out").exists()
    mine.unlink()
    run_part(local, tmp_path, given, target=kept, run="monday")
    with pytest.raises(UsageError, match="there is something already"):
        run_part(local, tmp_path, given, target=kept, run="tuesday")


@pytest.mark.usefixtures("bucket")
def test_of_two_drivers_of_one_run_none_removes_what_the_other_has_left(given, local, tmp_path, monkeypatch):
    """The second one seals its savepoint while the first one is about to."""
    kept, seal_folder = "s3://bucket/kept", savepoints.seal_folder

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(savepoints, "seal_folder", seal_folder)
        write_part(tmp_path / "in", "b-", ROWS // 2, ROWS)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "check_free", lambda *_: None)  # it was free when that one looked
            run_part(local, tmp_path, {**given, "out": str(tmp_path / "2")}, target=kept, folder=tmp_path / "2r")
        seal_folder(*arguments)

    monkeypatch.setattr(savepoints, "seal_folder", overtaken)
    with pytest.raises(UsageError, match=r"somebody else has written manifest.json there"):
        run_part(local, tmp_path, given, target=kept)
    sp = savepoint.read(kept)
    assert sum(row["n"] for row in rows(tmp_path / "2")) + sp.table("w")["__p0"].sum() == ROWS


@pytest.mark.parametrize("run", ["nightly", "another"])
def test_of_two_runs_that_leave_a_savepoint_in_one_place_one_is_told(run, given, local, kept, tmp_path, monkeypatch):
    """Neither sees the other before it computes; whoever is first has the place, and what it left stays readable."""
    seal = engine.seal

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(engine, "seal", seal)
        write_part(tmp_path / "in", "b-", ROWS // 2, ROWS)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "check_free", lambda *_: None)  # it was free when that one looked
            run_part(
                local, tmp_path, {**given, "out": str(tmp_path / "2")}, target=kept, run=run, folder=tmp_path / "2r"
            )
        seal(*arguments)

    monkeypatch.setattr(engine, "seal", overtaken)
    whose = "the same run, begun in another folder" if run == "nightly" else "another run"
    with pytest.raises(UsageError, match=f"{whose}.* has left its savepoint there meanwhile"):
        run_part(local, tmp_path, given, target=kept, run="nightly")
    sp = savepoint.read(kept)
    assert sp.splits().height == 6
    assert sum(row["n"] for row in rows(tmp_path / "2")) + sp.table("w")["__p0"].sum() == ROWS


def test_a_savepoint_of_a_store_goes_to_the_embedded_engine_and_into_state(given, local, bucket, tmp_path, capsys):
    """Spark's half, then a stream's, from one URL; `penstock state` reads it there, and edits go there."""
    kept = "s3://bucket/kept"
    run_part(local, tmp_path, given, target=kept)
    assert main(["state", kept, "--uid", "w"]) == 0
    assert "w: window" in capsys.readouterr().out
    savepoint.read(kept).edit().write("s3://bucket/edited")
    shutil.rmtree(tmp_path / "in")
    write_part(tmp_path / "in", "b-", ROWS // 2, ROWS)
    pipeline = load_pipeline(str(STATE_FILE), {**given, "out": str(tmp_path / "streamed")})
    assert pipeline.run(directory=tmp_path / "job", from_savepoint="s3://bucket/edited").state == "FINISHED"
    found = rows(merged([tmp_path / "out", tmp_path / "streamed"], tmp_path / "whole"))
    assert sum(row["n"] for row in found) == ROWS
    assert len({(row["key"], row["window_start"]) for row in found}) == len(found)


def test_a_folder_that_is_not_shared_decides_nothing(given, local, tmp_path, monkeypatch):
    """What tasks wrote is not there for the driver: nothing becomes visible, and the run can be made again."""
    kept = tmp_path / "kept"

    class Elsewhere(lowering.Lowering):
        def run(self) -> list[dict[str, Any]]:
            reports = super().run()
            (kept / "objects").rename(tmp_path / "elsewhere")
            return reports

    with monkeypatch.context() as patch:
        patch.setattr(lowering, "Lowering", Elsewhere)
        with pytest.raises(ExternalError, match="the driver and all executors share"):
            run_part(local, tmp_path, given, target=kept, run="nightly")
    assert rows(tmp_path / "out") == []
    assert run_part(local, tmp_path, given, target=kept, run="nightly").computed
    assert main(["state", str(kept), "--uid", "w"]) == 0


def test_rows_behind_the_savepoint_are_late(given, local, tmp_path):
    """As in streaming: they are counted, and make no second result of a window."""
    run_part(local, tmp_path, given, target=tmp_path / "kept")
    reached = savepoint.read(tmp_path / "kept").watermarks()["watermark"].max()
    write_part(tmp_path / "in", "b-", 0, 100)
    again = run_part(local, tmp_path, given, start=tmp_path / "kept")
    late = again.total("w", "late_rows")
    early = events(np.arange(100))
    assert late == early.filter(early["at"].dt.truncate("10s").dt.offset_by("10s") <= reached).height > 80
    found = rows(tmp_path / "out")
    assert len({(row["key"], row["window_start"]) for row in found}) == len(found)


def test_the_savepoint_is_one_of_the_pipeline(given, local, tmp_path):
    """What a coordinator checks before it starts a job from it holds; another pipeline is refused with the operator."""
    run_part(local, tmp_path, given, target=tmp_path / "kept")
    manifest = savepoint.read(tmp_path / "kept").manifest
    check_compatible(build_job_graph(load_pipeline(str(STATE_FILE), given).plan, 5), manifest)
    other = {**given, "case": "other-windows"}
    with pytest.raises(IncompatibleStateError, match=r"--from-savepoint: .*operator 'w'.*window changed"):
        run_part(local, tmp_path, other, start=tmp_path / "kept")


def test_of_a_store_only_what_is_published_is_started_from(given, local, tmp_path, monkeypatch):
    """A checkpoint may cover rows that its job has not made visible; a savepoint that was brought there is whole."""
    run_part(local, tmp_path, given, target=tmp_path / "kept")
    blobs = MemoryBlobs()
    monkeypatch.setattr("penstock.spark.starting.load_settings", lambda _: blobs)
    imported = asyncio.run(import_savepoint(blobs, tmp_path / "kept"))
    start = starting_point(imported.manifest)
    assert start.savepoint.table("w").equals(savepoint.read(tmp_path / "kept").table("w"))
    checkpoint = f"jobs/{start.savepoint.job}/checkpoints/0000000001-a-b/manifest.json"
    asyncio.run(blobs.put(checkpoint, asyncio.run(blobs.get(imported.manifest))))
    with pytest.raises(UsageError, match="a checkpoint, not a savepoint"):
        starting_point(checkpoint)


def test_a_folder_without_a_savepoint_says_so(tmp_path, capsys):
    """On the command line, before Spark is started."""
    chosen = ["run", str(CASES_FILE), "--engine", "spark", "--from-savepoint", str(tmp_path)]
    assert main(chosen) == 2
    assert "no savepoint is there" in capsys.readouterr().err
    assert main(["run", str(CASES_FILE), "--to-savepoint", "x"]) == 2
    assert "only --engine spark has --to-savepoint" in capsys.readouterr().err
    with pytest.raises(UsageError, match="neither a folder"):
        starting_point("nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "events"], "write --source UID=PATH"),
        (["--source", "a=x", "--source", "a=y"], "given twice; name a folder, or a pattern"),
        (["--source", "n0-raed=x"], "there is no such source; did you mean 'n0-read'"),
        (["--source", "n0-read=nowhere"], "neither a file nor a folder 'nowhere'"),
        (["--conf", "x"], "write --conf spark.name=value"),
    ],
)
def test_what_a_backfill_cannot_read_is_said_before_spark_starts(options, message, given, tmp_path, capsys):
    """By name, with what to write."""
    parameters = [part for name, value in given.items() for part in ("--param", f"{name}={value}")]
    command = ["backfill", str(STATE_FILE), *parameters, "--to-savepoint", str(tmp_path / "kept"), *options]
    assert main(command) == 2
    assert message in capsys.readouterr().err

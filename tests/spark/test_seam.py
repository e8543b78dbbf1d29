"""The seam between history on Spark and the stream: files first, then a topic that goes on growing, then the job."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import obstore
import polars as pl
import pytest
from embedded_runs import finish
from event_topics import PARTITIONS, Topic
from pipelines import ROWS, events, several_sinks
from spark_runs import HERE, QUICK, rounded
from state_runs import continue_embedded, merged, run_part, write_part

from penstock import Pipeline, savepoint
from penstock.adapters.s3_blobs import s3_store
from penstock.errors import PipelineError, UsageError
from penstock.loading import load_pipeline
from penstock.settings import settings_to_toml

pytestmark = pytest.mark.timeout(300)
FILE = HERE / "seam_pipeline.py"
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))


@pytest.fixture
def topic(platform) -> Topic:
    """A topic of this test."""
    return Topic(platform.settings("seam").kafka, platform.settings("seam").name)


def given(topic: Topic, out: Path, **more: str) -> dict[str, str]:
    return {"brokers": topic.settings.brokers, "topic": topic.name, "out": str(out), **more}


def declared(topic: Topic, out: Path, **more: str) -> Pipeline:
    return load_pipeline(str(FILE), given(topic, out, **more))


def write_archive(folder: Path, end: int) -> None:
    """Rows before `end`: text files, and the last quarter as Parquet."""
    write_part(folder, "old-", 0, end * 3 // 4)
    events(np.arange(end * 3 // 4, end, dtype=np.int64)).write_parquet(folder / "young.parquet")


def in_one_run(tmp_path: Path, topic: Topic) -> Counter[str]:
    """What one streaming run over everything comes to."""
    everything = Topic(topic.settings, f"{topic.name}-all")
    everything.send(0, ROWS)
    finish(declared(everything, tmp_path / "whole", end="latest"), tmp_path / "state")
    return rounded(several_sinks(tmp_path / "whole"))


def check_open(kept: Path) -> None:
    """The cut lies in the middle of something."""
    sp = savepoint.read(kept)
    for uid in ("windows", "sessions", "minutes"):
        assert sp.table(uid).height, f"nothing of {uid} is open"
    assert sp.timers("minutes").height
    assert sp.splits()["finished"].to_list() == [False] * PARTITIONS


def ends_of(beginning: Path) -> dict[str, int]:
    """Where a run was to end in the topic."""
    splits = json.loads(beginning.read_bytes())["splits"]["events"]
    return {split["split"]: split["position"]["end"] for split in splits if not split["archive"]}


def offsets_of(kept: Path) -> dict[str, int]:
    """Where a savepoint goes on in the topic."""
    positions = {row["split"]: json.loads(row["position"]) for row in savepoint.read(kept).splits().rows(named=True)}
    assert {position["end"] for position in positions.values()} == {None}
    return {split: position["offset"] for split, position in positions.items()}


def test_history_then_the_stream_is_one_run(topic, local, tmp_path):
    """Files and a growing topic, cut wherever it was; an hour later a second run; then the job, wider, to the end."""
    rng = random.Random(f"{SEED} history")
    archived, first = sorted(rng.sample(range(200, ROWS - 900), 2))
    second = first + 700
    print(f"archive up to {archived}, cuts {first}, {second}: repeat with PENSTOCK_TEST_SEED={SEED}")
    write_archive(tmp_path / "archive", archived)
    topic.send(archived, first)
    with topic.growing(first, first + 400):
        run_part(
            local, tmp_path, given(topic, tmp_path / "0"), file=FILE, target=tmp_path / "kept-0", run="history",
            archives={"events": str(tmp_path / "archive")},
        )  # fmt: skip
    check_open(tmp_path / "kept-0")
    assert offsets_of(tmp_path / "kept-0") == ends_of(tmp_path / "runs/history.begin")
    with topic.growing(first + 400, second):
        run_part(
            local, tmp_path, given(topic, tmp_path / "1"), file=FILE, parallelism=1,
            start=tmp_path / "kept-0", target=tmp_path / "kept-1",
        )  # fmt: skip
    check_open(tmp_path / "kept-1")
    topic.send(second, ROWS)
    continue_embedded(declared(topic, tmp_path / "2", end="latest"), tmp_path / "kept-1", tmp_path / "job", 2)
    got = several_sinks(merged([tmp_path / str(part) for part in range(3)], tmp_path / "all"))
    assert rounded(got) == in_one_run(tmp_path, topic)


def test_a_backfill_that_is_killed_and_repeated(topic, spark, tmp_path):
    """The driver gets SIGKILL; the same run id reads to the same offsets, though the topic has grown meanwhile."""
    rng = random.Random(f"{SEED} killed")
    archived, first = sorted(rng.sample(range(200, ROWS - 500), 2))
    jobs = rng.randrange(1, 4)
    print(f"archive up to {archived}, cut {first}, killed at job {jobs}: repeat with PENSTOCK_TEST_SEED={SEED}")
    write_archive(tmp_path / "archive", archived)
    topic.send(archived, first)
    parameters = given(topic, tmp_path / "0")
    command = [sys.executable, "-m", "penstock.cli.main", "backfill", str(FILE), "--to-savepoint", "kept"]
    command += [
        "--source",
        f"events={tmp_path}/archive",
        "--until",
        "kafka",
        "--run-id",
        "history",
        "--parallelism",
        "2",
    ]
    command += [part for name, value in parameters.items() for part in ("--param", f"{name}={value}")]
    command += [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]
    command += ["--master", "local[2]"]
    shown = ""
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            shown += line
            if shown.count("\ncomputing") == jobs:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL, shown
    fixed = ends_of(tmp_path / ".penstock/seam/spark/history.begin")
    topic.send(first, first + 300)
    run_part(
        spark, tmp_path, parameters, file=FILE, target=tmp_path / "kept", run="history",
        archives={"events": str(tmp_path / "archive")}, folder=tmp_path / ".penstock/seam/spark",
    )  # fmt: skip
    check_open(tmp_path / "kept")
    assert offsets_of(tmp_path / "kept") == fixed
    topic.send(first + 300, ROWS)
    continue_embedded(declared(topic, tmp_path / "1", end="latest"), tmp_path / "kept", tmp_path / "job", 1)
    got = several_sinks(merged([tmp_path / "0", tmp_path / "1"], tmp_path / "all"))
    assert rounded(got) == in_one_run(tmp_path, topic)


def test_a_silent_partition_holds_event_time_back(topic, local, tmp_path):
    """As in streaming, and the run says so; idle_after lets the others go on."""
    rows = events(np.arange(300, dtype=np.int64)).filter(pl.col("number") % PARTITIONS != 0)
    for number in rows["number"]:
        topic.send(number, number + 1)
    warned: list[str] = []
    run_part(local, tmp_path, given(topic, tmp_path / "0"), file=FILE, target=tmp_path / "kept-0", warned=warned)
    assert "no row has come from 0 yet" in warned[0]
    assert savepoint.read(tmp_path / "kept-0").watermarks()["watermark"].null_count() > 0
    assert [*(tmp_path / "0").rglob("part-*")] == []
    patient = given(topic, tmp_path / "1", idle="1s")
    run_part(local, tmp_path, patient, file=FILE, target=tmp_path / "kept-1", warned=(quiet := []))
    assert quiet == []
    sp = savepoint.read(tmp_path / "kept-1")
    assert sp.splits().sort("split")["idle"].to_list() == [True, False, False]
    assert sp.watermarks().filter(pl.col("uid") == "windows")["watermark"].null_count() == 0


def test_a_topic_without_end_needs_a_savepoint_to_leave(topic, local, tmp_path):
    """A run that leaves none would end event time for good; a source that is not there is named."""
    with pytest.raises(PipelineError, match="--to-savepoint"):
        run_part(local, tmp_path, given(topic, tmp_path / "0"), file=FILE)
    with pytest.raises(UsageError, match=r"--source event=.*events"):
        run_part(
            local, tmp_path, given(topic, tmp_path / "0"), file=FILE, target=tmp_path / "kept", archives={"event": "x"}
        )


def test_history_lies_in_an_object_store(topic, platform, local, tmp_path, monkeypatch):
    """Objects below a prefix, and those of a pattern, in the store of the cluster's settings; what else lies there is
    not read."""
    settings = platform.settings("archive")
    monkeypatch.setenv("PENSTOCK_CLUSTER", str(tmp_path / "cluster.toml"))
    (tmp_path / "cluster.toml").write_text(settings_to_toml(settings))
    write_archive(tmp_path / "archive", 1_000)
    store = s3_store(settings.store)
    for file in (tmp_path / "archive").iterdir():
        obstore.put(store, f"{settings.name}/history/{file.name}", file.read_bytes())
    obstore.put(store, f"{settings.name}/history/_SUCCESS", b"")
    obstore.put(store, f"{settings.name}/history/_old/young.jsonl", b"broken")
    topic.send(1_000, 1_100)
    place = f"s3://{settings.store.bucket}/{settings.name}/history"
    for number, (path, count) in enumerate(((place, 1_100), (f"{place}/old-[01].jsonl", 600))):
        kept = tmp_path / f"kept-{number}"
        result = run_part(
            local, tmp_path, given(topic, tmp_path / str(number)), file=FILE, target=kept, archives={"events": path}
        )
        assert result.total("events", "rows_in") == count
        assert sorted(savepoint.read(kept).splits()["split"]) == ["0", "1", "2"]
    with pytest.raises(PipelineError, match=r"neither an object nor a folder s3://.*/nothing"):
        run_part(
            local, tmp_path, given(topic, tmp_path / "2"), file=FILE, target=tmp_path / "none",
            archives={"events": f"{place}/nothing"},
        )  # fmt: skip

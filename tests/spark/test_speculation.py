"""Tasks that run twice on a real cluster: two attempts side by side, and again because an executor was killed."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from embedded_runs import rows
from kafka_reading import committed
from spark_runs import HERE
from standalone import penstock_run

from penstock import savepoint
from penstock.savepoint.places import place_of

pytestmark = pytest.mark.timeout(300)
ROWS = 2_000
DEADLINE_S = 120
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "1s",
}


@pytest.mark.parametrize("place", ["a folder", "a store"])
async def test_second_attempts_and_killed_executors_double_nothing(place, platform, standalone, minio, tmp_path):
    """A straggler before the exchange is overtaken; behind it an executor is killed with what it had shuffled."""
    target, staging = ("kept", []) if place == "a folder" else (f"{minio.url}/kept", ["--staging", f"{minio.url}/rows"])
    brokers = platform.settings("straggling").kafka.brokers
    mark = secrets.token_hex(4)
    topics = {"before": f"before-{mark}", "behind": f"behind-{mark}"}
    notes = tmp_path / "notes"
    given = {"out": str(tmp_path / "out"), "notes": str(notes), "brokers": brokers, "rows": str(ROWS), **topics}
    command = penstock_run(standalone, HERE / "straggling_pipelines.py", given, SPECULATION | minio.conf)
    command += ["--to-savepoint", target, *staging]
    code = await asyncio.to_thread(run_and_kill, command, notes / "behind", tmp_path)
    assert code == 0, (tmp_path / "driver.log").read_text()
    for side in ("before", "behind"):
        assert len(list((notes / side).iterdir())) > 1, f"there was one attempt {side} the exchange"
    once = Counter(range(ROWS))
    numbered = Counter((f"k{key}", n) for key in range(7) for n in range(len(range(key, ROWS, 7))))
    assert Counter(row["number"] for row in rows(tmp_path / "out" / "before")) == once
    assert Counter((row["key"], row["number"]) for row in rows(tmp_path / "out" / "behind")) == numbered
    kept = savepoint.read(target if staging else tmp_path / "kept")
    assert dict(kept.table("numbered", "seen").rows()) == {f"k{key}": len(range(key, ROWS, 7)) for key in range(7)}
    handles = [part.operators["numbered"].keyed for part in kept.manifest.subtasks["v1"].values()]
    found = place_of(target if staging else tmp_path / "kept").sizes().keys()
    assert found == {h.key for h in handles if h} | {"manifest.json", "savepoint.json"}
    assert minio.names() == ({f"kept/{name}" for name in found} if staging else set())
    published = {side: await committed(brokers, topic, 2) for side, topic in topics.items()}
    values = {side: [json.loads(record.value) for record in records] for side, records in published.items()}
    assert Counter(row["number"] for row in values["before"]) == once
    assert Counter((row["key"], row["number"]) for row in values["behind"]) == numbered


def run_and_kill(command: list[str], notes: Path, folder: Path) -> int:
    """Kill the executor of the first task that leaves a note; what became of the driver."""
    with open(folder / "driver.log", "w") as log, subprocess.Popen(command, cwd=folder, stderr=log) as driver:
        executor = noted(notes, driver, folder / "driver.log")
        assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
        os.kill(executor, signal.SIGKILL)
        return driver.wait(DEADLINE_S)


def noted(folder: Path, driver: subprocess.Popen[bytes], log: Path) -> int:
    """The executor of the first attempt that left a note."""
    deadline = time.monotonic() + DEADLINE_S
    while not folder.exists() or not any(folder.iterdir()):
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "no task got to the row"
        time.sleep(0.05)
    return int(min(path.name for path in folder.iterdir()).rpartition("-")[2])


def test_input_may_be_larger_than_an_executor(standalone, tmp_path):
    """640 MB through an exchange between executors of 512 MiB; the task behind it holds a fraction of that."""
    count, width = 200_000, 3_200
    given = {"out": str(tmp_path / "out"), "rows": str(count), "width": str(width)}
    # Spark's own plan would send a partial per key instead of the rows.
    command = [*penstock_run(standalone, HERE / "wide_pipelines.py", given, {}), "--native", "off"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "out")
    assert {(row["key"], row["n"], row["longest"]) for row in found} == {
        (k, count // 1_000, width) for k in range(1_000)
    }
    assert len(found) == 1_000
    # It was 429 at most where it was tried, libraries included; the rows alone would be 610.
    assert max(row["peak_mib"] for row in found) < 512

"""One measurement in a process of its own, pinned to one core: `python -m benchmarks.child CASE MODE FOLDER ROWS CORE`.

Mode is `prepare` (write the input), `penstock`, the name of a peer, or `check` (compare all results in the folder).
Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.catalogue import CASES, pipeline_of

TOUCHED_BYTES = 1536 << 20
"""Memory that is touched before the clock starts: in a virtual machine that gives free pages back to its host, the first
touch of a page costs many times that of the next ones, and which run pays for it would be chance."""


def main() -> None:
    """Do what the arguments say."""
    name, mode, folder, rows, core = sys.argv[1:6]
    os.sched_setaffinity(0, {int(core)})
    case = next(case for case in CASES if case.name == name)
    place = Path(folder)
    if mode == "prepare":
        assert case.prepare is not None
        case.prepare(place, int(rows))
        figures: dict[str, Any] = {}
    elif mode == "check":
        figures = {"equal": check(case, place, int(rows))}
    elif mode == "penstock":
        figures = run_engine(case, place, int(rows))
    else:
        figures = run_peer(case, mode, place, int(rows))
    print(json.dumps(figures))


def touch_memory() -> None:
    """Make the machine ready to give memory, and forget the peak that this was."""
    memory = bytearray(TOUCHED_BYTES)
    del memory
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> int:
    """The most memory that the process has had since `touch_memory`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) // 1024 if found else 0


def run_engine(case: Case, folder: Path, rows: int) -> dict[str, Any]:
    """Run the pipeline of the case. The clock starts when the source is opened and stops when the job has finished."""
    started = time.perf_counter()
    from penstock.embedded import EmbeddedJob, EmbeddedSettings
    from penstock.observability.logs import configure_logging
    from penstock.task.environment import SubtaskSettings

    configure_logging("text", "warning")
    sources = [source(folder, rows) for source in (case.source, case.right) if source is not None]
    opened = note_opening(sources)
    out = folder / case.name / "penstock"
    settings = EmbeddedSettings(
        parallelism=case.parallelism,
        checkpoint_interval_ms=case.checkpoint_interval_ms,
        data=SubtaskSettings(state_backend=case.backend, incremental=case.incremental),
    )
    job = EmbeddedJob(pipeline_of(case, sources, out), folder / case.name / "job", settings)
    touching = time.perf_counter()
    touch_memory()
    started += time.perf_counter() - touching
    more: dict[str, Any] = {}
    result = asyncio.run(job.run(resume=False))
    checkpoints = list(result.progress.completed_checkpoints)
    if case.fails_once:
        if result.state != "FAILED":
            raise SystemExit(f"{case.name}: {result.state}, though its source fails once")
        failed, lives = time.perf_counter(), len(opened)
        job = EmbeddedJob(pipeline_of(case, sources, out), folder / case.name / "job", settings)
        result = asyncio.run(job.run(resume=True))
        if checkpoints:  # without one it began anew
            more["restore_seconds"] = opened[lives][0] - failed
        checkpoints += result.progress.completed_checkpoints
    ended, cpu = time.perf_counter(), time.process_time()
    if result.state != "FINISHED":
        raise SystemExit(f"{case.name}: {result.state}: {result.reason}")
    if case.incremental:
        more["checkpoint_mib"] = [
            (checkpoint.written_bytes / 2**20, checkpoint.size_bytes / 2**20, (checkpoint.duration_us or 0) / 1e6)
            for checkpoint in checkpoints
        ]
    return {
        "seconds": ended - opened[0][0],
        "cpu_seconds": cpu - opened[0][1],
        "start_seconds": opened[0][0] - started,
        "checkpoints": len(checkpoints),
        "sync_ms": max(checkpoint.sync_us for checkpoint in checkpoints) / 1_000,
        "background_ms": max(checkpoint.duration_us or 0 for checkpoint in checkpoints) / 1_000,
        "state_mib": max(checkpoint.size_bytes for checkpoint in checkpoints) / 2**20,
        "peak_mib": peak_mib(),
        "stages": stages(result.progress.statuses.values()),
        **more,
    }


def note_opening(sources: list[Any]) -> list[tuple[float, float]]:
    """Wall and CPU time of each opening of a split, in a list that grows."""
    opened: list[tuple[float, float]] = []

    def noting(open_split: Any) -> Any:
        def open_and_note(*arguments: Any) -> Any:
            opened.append((time.perf_counter(), time.process_time()))
            return open_split(*arguments)

        return open_and_note

    for source in sources:
        object.__setattr__(source, "open", noting(source.open))  # a source is a frozen dataclass
    return opened


def stages(statuses: Any) -> list[dict[str, Any]]:
    """What the subtasks say of their time, summed per vertex."""
    found: dict[str, dict[str, Any]] = {}
    for status in statuses:
        one = found.setdefault(status.subtask.vertex, {"vertex": status.subtask.vertex})
        for name in ("busy_us", "idle_us", "blocked_us"):
            one[name] = one.get(name, 0) + getattr(status.progress, name)
    return list(found.values())


def run_peer(case: Case, peer: str, folder: Path, rows: int) -> dict[str, Any]:
    """Let a peer make the same result. Its imports are not counted."""
    import duckdb
    import polars
    import pyarrow.ipc

    assert all((duckdb, polars, pyarrow.ipc))
    out = folder / case.name / peer
    out.mkdir(parents=True, exist_ok=True)
    touch_memory()
    started, cpu = time.perf_counter(), time.process_time()
    case.peers[peer](folder, out, rows)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak_mib()}


def check(case: Case, folder: Path, rows: int) -> bool:
    """Whether all results are equal, and made of all rows."""
    ours = case.result(folder / case.name / "penstock", rows)
    counted = case.counted(ours) if case.counted is not None else rows
    if counted != rows:
        print(f"{case.name}: {counted} of {rows} rows are in the result", file=sys.stderr)
        return False
    for peer in case.peers:
        theirs = case.result(folder / case.name / peer, rows)
        equal = ours == theirs if isinstance(ours, dict) else ours.equals(theirs)
        if not equal:
            print(f"{case.name}: penstock and {peer} differ:\n{ours}\n{theirs}", file=sys.stderr)
            return False
    return True


if __name__ == "__main__":
    main()

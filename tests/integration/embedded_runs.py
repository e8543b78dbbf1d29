"""Runs pipelines embedded, in this process, and interrupts them: what the tests of this folder share."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Pipeline
from penstock.embedded import EmbeddedJob, EmbeddedSettings, JobResult
from penstock.errors import UsageError
from penstock.protocol.joblog import StateBackend
from penstock.task.environment import SubtaskSettings

Row = dict[str, Any]
Make = Callable[[Path], Pipeline]
"""Declares a pipeline whose file sinks write below a folder."""


def settings(parallelism: int = 1, interval_ms: int = 10_000, **more: Any) -> EmbeddedSettings:
    """Settings of a run that need not survive a power loss."""
    return EmbeddedSettings(parallelism=parallelism, checkpoint_interval_ms=interval_ms, durable=False, **more)


def run(pipeline: Pipeline, directory: Path, how: EmbeddedSettings | None = None, *, resume: bool = False) -> JobResult:
    """Run to the end, whatever the end is."""
    return asyncio.run(EmbeddedJob(pipeline, directory, how or settings()).run(resume=resume))


def finish(
    pipeline: Pipeline, directory: Path, how: EmbeddedSettings | None = None, *, resume: bool = False
) -> JobResult:
    """Run to the end of the input."""
    result = run(pipeline, directory, how, resume=resume)
    assert result.state == "FINISHED", (result.state, result.reason, result.error)
    return result


@dataclass
class Attempt:
    """One start of a job in a stress."""

    parallelism: int
    interval_ms: int
    after_s: float
    """How long it runs, or how long after `after_checkpoints`."""
    after_checkpoints: int | None
    backend: StateBackend = "fs"

    def is_over(self, job: EmbeddedJob, late: bool) -> bool:
        """Whether the moment has come; `late` says that `after_s` is over."""
        if self.after_checkpoints is None:
            return late
        return job.started and len(job.progress.completed_checkpoints) >= self.after_checkpoints


def interrupt(pipeline: Pipeline, directory: Path, attempt: Attempt, *, resume: bool) -> JobResult | None:
    """Cancel the run in the middle of whatever it does, when `attempt` says; its result if it ended before.

    The loop is closed behind it, so nothing of the run is at work when this returns.
    """

    async def until() -> JobResult | None:
        data = SubtaskSettings(state_backend=attempt.backend, incremental=attempt.backend != "memory")
        job = EmbeddedJob(pipeline, directory, settings(attempt.parallelism, attempt.interval_ms, data=data))
        run = asyncio.create_task(job.run(resume=resume))
        deadline = asyncio.get_running_loop().time() + attempt.after_s
        while not run.done() and not attempt.is_over(job, asyncio.get_running_loop().time() >= deadline):
            await asyncio.wait([run], timeout=0.001)
        if run.done():
            return run.result()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        return None

    return asyncio.run(until())


@dataclass
class Stress:
    """Runs a pipeline with seeded interruptions until it has finished."""

    make: Make
    root: Path
    seed: str
    interruptions: int = 4
    longest_s: float = 0.3
    parallelisms: tuple[int, ...] = (1, 2, 3)
    planned: tuple[Attempt, ...] = ()
    """The first attempts, where they are not left to chance."""
    history: list[Attempt] = field(default_factory=list[Attempt])
    resumed: int = 0
    """How many attempts had a checkpoint to continue from."""

    def run(self) -> Path:
        """The folder with the outputs."""
        rng = random.Random(self.seed)
        out, directory = self.root / "out", self.root / "state"
        while True:
            attempt = self._attempt(rng)
            self.history.append(attempt)
            try:
                ended = interrupt(self.make(out), directory, attempt, resume=self._resumable(directory))
            except UsageError as error:
                if "has finished" not in str(error):
                    raise
                return out  # the interruption before came after the end was recorded
            if ended is not None:
                assert ended.state == "FINISHED", (self, ended.reason, ended.error)
                return out

    def _attempt(self, rng: random.Random) -> Attempt:
        if len(self.history) < len(self.planned):
            return self.planned[len(self.history)]
        backend: StateBackend = rng.choice(("fs", "rocksdb"))
        if len(self.history) == self.interruptions:
            return Attempt(rng.choice(self.parallelisms), 15, 60, None, backend)
        after = None if rng.random() < 0.4 else rng.randint(1, 4)
        interval_ms, after_s = rng.choice((5, 15, 40)), rng.uniform(0.02, self.longest_s)
        return Attempt(rng.choice(self.parallelisms), interval_ms, after_s, after, backend)

    def _resumable(self, directory: Path) -> bool:
        self.resumed += any(directory.glob("blobs/jobs/*/checkpoints/*"))
        return (directory / "blobs" / "current-job").exists()


def rows(folder: Path) -> list[Row]:
    """All visible rows of a file sink, oldest first."""
    return [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]


def counted(found: Iterable[Row]) -> Counter[str]:
    """Rows as a multiset."""
    return Counter(json.dumps(row, sort_keys=True) for row in found)


def newest(found: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], Row]:
    """The last row of every key: what a stream of updates comes to."""
    return {tuple(row[key] for key in keys): row for row in found}


def assert_same(got: Counter[str], expected: Counter[str], what: object) -> None:
    """Compare multisets with a message that shows the difference."""
    if got != expected:
        more, less = got - expected, expected - got
        raise AssertionError(
            f"{what}: {more.total()} too many, e.g. {list(more)[:3]}; {less.total()} missing, e.g. {list(less)[:3]}"
        )


def compare(got: Counter[str] | dict[Any, Any], expected: Counter[str] | dict[Any, Any], what: object) -> None:
    """Compare what cases come to with such a message, or key by key."""
    if isinstance(expected, Counter):
        assert_same(Counter(got), expected, what)
    else:
        assert got == expected, what

"""The jobs beside the tormented one: between them they have every operator, and what they come to is known.

They are the cases of the integration tests, dealt to a few jobs. One of them runs whenever a fault falls, and all do in
turn; when one has ended, its results must be those of a run that nobody interrupts.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.chaos.cluster import CHECKPOINT_BESIDE_MS, ChaosCluster, ChaosError, until

INTEGRATION: Final = Path(__file__).parent.parent / "integration"
sys.path.insert(0, str(INTEGRATION))

from embedded_runs import compare  # noqa: E402 # both are found by the path above
from pipelines import CASES, Case, Result, write_files  # noqa: E402

JOBS: Final = 4
RATE: Final = 150
"""Rows per second of each source: a job lasts 20 s, and as long as faults hold it up."""
BEGUN_S: Final = 90.0
ENDED_S: Final = 180.0

FILE: Final = INTEGRATION / "together.py"


def dealt(cases: Iterable[Case], jobs: int) -> list[tuple[Case, ...]]:
    """The cases of each job."""
    every = tuple(cases)
    return [every[number::jobs] for number in range(jobs)]


def parameters(cases: Iterable[Case], out: Path) -> dict[str, str]:
    """Of the file, for a job of these cases below that folder."""
    return {"cases": ",".join(case.name for case in cases), "out": str(out), "rate": str(RATE)}


class Beside:
    """Begins one job after the other, in the calm before a fault."""

    def __init__(self, cluster: ChaosCluster, seed: int, most: int | None = None) -> None:
        """`most`: how many jobs, of which each takes up to a minute; None for as many as there is time for."""
        self.ended: dict[str, int] = {}
        """Jobs whose results were right: the names of their cases, and how often they were started in all."""
        self._cluster = cluster
        self._most = most
        self._jobs = dealt(CASES, JOBS)
        random.Random(seed).shuffle(self._jobs)
        self._begun = 0
        self._job = ""
        self._attempts = 0
        self._expected: dict[str, dict[str, Result]] = {}

    async def go_on(self, faults: int) -> None:
        """See that one runs, with so many faults to come: each of the jobs is to be there for one of them."""
        to_come = (JOBS if self._most is None else self._most) - self._begun
        if self._job and (to_come >= faults or await self._has_ended()):
            await self.end()
        if not self._job and (self._most is None or to_come > 0):
            await self._begin()

    async def end(self) -> None:
        """Wait until the one that runs has ended, and compare.

        Raises:
            ChaosError: it does not end, or its results are wrong.
        """
        if not self._job:
            return
        await until(f"the end of the job beside, {self._name}", ENDED_S, self._has_ended)
        finished = await self._cluster.finished(self._job)
        if finished is None or finished.state != "FINISHED":
            raise ChaosError(f"the job beside, {self._name}, has not finished: {finished}")
        self._job = ""
        expected = await self._known()
        for case in self._cases:
            try:
                compare(case.result(self._out / case.name), expected[case.name], f"{case.name} in {self._out}")
            except AssertionError as wrong:
                raise ChaosError(f"the job beside: {wrong}") from wrong
        self.ended[self._name] = self.ended.get(self._name, 0) + self._attempts

    async def is_calm(self) -> bool:
        """Whether there is none that does not run."""
        view = await self._cluster.job(self._job) if self._job else None
        return view is None or view.state == "RUNNING"

    # -- one job --------------------------------------------------------------------------------------------------------

    @property
    def _cases(self) -> tuple[Case, ...]:
        return self._jobs[(self._begun - 1) % JOBS]

    @property
    def _name(self) -> str:
        return ",".join(case.name for case in self._cases)

    @property
    def _out(self) -> Path:
        return self._cluster.folder / "beside" / str(self._begun)

    async def _begin(self) -> None:
        """Returns when it runs and a checkpoint is complete."""
        self._begun += 1
        self._attempts = 0
        write_files(self._out / "in")
        given = parameters(self._cases, self._out)
        self._job = await self._cluster.submit_file(FILE, given, CHECKPOINT_BESIDE_MS)

        async def running() -> bool:
            view = await self._cluster.job(self._job)
            begun = view is not None and view.state == "RUNNING" and view.last_checkpoint > 0
            return begun or await self._has_ended()

        await until(f"the job beside, {self._name}, running with a checkpoint", BEGUN_S, running)

    async def _has_ended(self) -> bool:
        view = await self._cluster.job(self._job)
        self._attempts = max(self._attempts, view.attempts if view is not None else 0)
        return view is None and await self._cluster.finished(self._job) is not None

    async def _known(self) -> dict[str, Result]:
        """What they come to in one process, with one subtask per operator, where nothing happens."""
        if self._name not in self._expected:
            folder = self._out.parent / f"expected-{(self._begun - 1) % JOBS}"
            write_files(folder / "in")
            with (folder.parent / f"{folder.name}.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "penstock.cli.main", "run", str(FILE), "--param", f"cases={self._name}",
                    "--param", f"out={folder}", "--dir", str(folder / "state"), "--no-fsync", stdout=log, stderr=log,
                )  # fmt: skip
            if await process.wait():
                raise ChaosError(f"{self._name}: nobody interrupted it, and it failed")
            self._expected[self._name] = {case.name: case.result(folder / case.name) for case in self._cases}
        return self._expected[self._name]

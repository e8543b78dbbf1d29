"""Runs the history of a seed in one of the sets, with or without a mutant, and says how it went."""

from __future__ import annotations

import contextlib
import hashlib
import traceback
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.simulation.kernel import Violation
from tests.simulation.shells.cluster import ClusterWorld
from tests.simulation.shells.faults import draw_faults
from tests.simulation.shells.loop import Process, SeededLoop, installed
from tests.simulation.shells.workers import WorkersWorld


@dataclass
class Result:
    """What became of a seed."""

    seed: int
    failure: str = ""
    virtual_s: float = 0.0
    coverage: Counter[str] = field(default_factory=Counter[str])
    digest: str = ""
    """Of everything that happened: the same for the same seed."""


class Story:
    """What happened, for the report of a failure."""

    def __init__(self, loop: SeededLoop, verbose: bool) -> None:
        self.recent: deque[str] = deque(maxlen=60)
        self.digest = hashlib.sha256()
        self._loop = loop
        self._verbose = verbose

    def note(self, who: str, what: object) -> None:
        """Remember it."""
        line = f"{self._loop.now_s:9.4f} {who}: {what}"
        self.digest.update(line.encode())
        self.recent.append(line)
        if self._verbose:
            print(line)


def run_seed(kind: str, seed: int, *, mutant: str = "", verbose: bool = False) -> Result:
    """Run the history of a seed."""
    patch = contextlib.nullcontext()
    if mutant:
        from tests.simulation.shells.mutants import MUTANTS

        patch = MUTANTS[mutant].applied()
    with patch:
        return SETS[kind](seed, mutant, verbose)


def _run_cluster(seed: int, mutant: str, verbose: bool, *, compete: bool = False) -> Result:
    loop = SeededLoop(seed)
    story = Story(loop, verbose)
    with installed(loop):
        world = ClusterWorld(loop, seed, story.note, compete=compete)
        with world.installed():
            return _run("competing" if compete else "cluster", loop, story, mutant, Result(seed, coverage=world.coverage),
                        lambda: world.run(draw_faults(seed)), lambda: world.processes)  # fmt: skip


def _run_workers(seed: int, mutant: str, verbose: bool) -> Result:
    loop = SeededLoop(seed)
    story = Story(loop, verbose)
    with installed(loop):
        world = WorkersWorld(loop, seed, story.note)
        with world.installed():
            return _run("workers", loop, story, mutant, Result(seed, coverage=world.coverage),
                        world.run, lambda: list(world.processes.values()))  # fmt: skip


def _run(
    kind: str,
    loop: SeededLoop,
    story: Story,
    mutant: str,
    result: Result,
    work: Callable[[], Coroutine[Any, Any, None]],
    processes: Callable[[], list[Process]],
) -> Result:
    try:
        loop.run_until_complete(work())
    except Violation as violation:
        result.failure = str(violation)
    except Exception as error:  # whatever else broken code raises is a finding as well
        result.failure = f"{type(error).__name__}: {error}\n" + "".join(traceback.format_exception(error)[-3:])
    finally:
        result.virtual_s, result.digest = loop.now_s, story.digest.hexdigest()
        try:
            loop.finish(processes())
        except Violation as violation:  # something that was told to end never does
            result.failure = result.failure or str(violation)
    if result.failure:
        result.failure = _report(kind, result.seed, mutant, result.failure, story)
    return result


def _report(kind: str, seed: int, mutant: str, what: str, story: Story) -> str:
    recent = "\n  ".join(story.recent)
    return f"{what}\nseed {seed}; replay with: {replay_command(kind, seed, mutant)}\nrecent history:\n  {recent}"


def replay_command(kind: str, seed: int, mutant: str = "") -> str:
    """The one command that shows what happened."""
    return f"python -m tests.simulation.shells --set {kind} --seed {seed} --verbose" + (
        f" --mutant {mutant}" if mutant else ""
    )


SETS: dict[str, Callable[[int, str, bool], Result]] = {
    "cluster": _run_cluster,
    "competing": partial(_run_cluster, compete=True),
    "workers": _run_workers,
}

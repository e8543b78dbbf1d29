"""Runs one seed, with or without a mutant, and says how it went."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, field

from tests.simulation.faults import DAMAGES, FAULTS
from tests.simulation.kernel import Violation
from tests.simulation.scenario import draw_scenario
from tests.simulation.world import World


@dataclass
class Result:
    """What became of a seed."""

    seed: int
    failure: str = ""
    steps: int = 0
    sim_ms: int = 0
    coverage: set[str] = field(default_factory=set[str])


def run_seed(seed: int, *, mutant: str = "", verbose: bool = False) -> Result:
    """Run the history of a seed."""
    patch = contextlib.nullcontext()
    if mutant:
        from tests.simulation.mutants import MUTANTS

        patch = MUTANTS[mutant].applied()
    with patch:
        return _run(seed, mutant, verbose)


def _run(seed: int, mutant: str, verbose: bool) -> Result:
    scenario = draw_scenario(seed, tuple(FAULTS), tuple(DAMAGES))
    if verbose:
        print(scenario)
    world = World(scenario, verbose=verbose)
    result = Result(seed, coverage=world.coverage)
    try:
        world.run()
    except Violation as violation:
        result.failure = _report(seed, mutant, str(violation), world)
    except Exception as error:  # whatever else a broken protocol raises is a finding as well
        where = "".join(traceback.format_exception(error)[-3:])
        result.failure = _report(seed, mutant, f"{type(error).__name__}: {error}\n{where}", world)
    result.steps, result.sim_ms = world.kernel.steps, world.kernel.now
    return result


def _report(seed: int, mutant: str, what: str, world: World) -> str:
    recent = "\n  ".join(list(world.kernel.history)[-40:])
    return f"{what}\nseed {seed}; replay with: {replay_command(seed, mutant)}\nrecent history:\n  {recent}"


def replay_command(seed: int, mutant: str = "") -> str:
    """The one command that shows what happened."""
    return f"python -m tests.simulation --seed {seed} --verbose" + (f" --mutant {mutant}" if mutant else "")

"""Plays a history: an hour of edits, deaths and old copies; then peace, in which all must become as the spec says."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.lifecycle.world import GOOD, BrokenInvariantError, World

STORM = 220
PEACE = 260


def play(seed: int) -> World:
    """One history; raises `BrokenInvariantError` with the seed where a rule is broken."""
    world = World(seed)
    try:
        _storm(world)
        _peace(world)
        _deletion(world)
    except BrokenInvariantError as error:
        raise BrokenInvariantError(f"{error}; repeat with: PENSTOCK_TEST_SEED={seed}") from error
    return world


def _storm(world: World) -> None:
    """Two operators at work, neither of which knows of the other."""
    at_work: list[Iterator[None]] = [world.operator(), world.operator()]
    for _ in range(STORM):
        chance = world.random.random()
        if chance < 0.3:
            world.tick()
        elif chance < 0.34:
            world.edit()
        else:
            number = world.random.randrange(2)
            died = world.random.random() < 0.04
            if died:
                world.reached.add("died")
            if died or not _goes_on(at_work[number]):
                at_work[number] = world.operator()


def _goes_on(at_work: Iterator[None]) -> bool:
    for _ in at_work:
        return True
    return False


def _peace(world: World) -> None:
    """One operator, fresh looks, time enough."""
    world.failures = 0.0
    for _ in range(PEACE):
        world.tick()
        for _ in world.operator(calm=True):
            pass
    _check_converged(world)


def _check_converged(world: World) -> None:
    stored = world.stored
    assert stored is not None
    spec, status = stored.spec, stored.status
    alive = [job for job in world.jobs.values() if job.alive]
    known = {one.manifest for one in status.savepoints} | world.gone
    if lost := [
        job for job in world.jobs.values() if job.state == "STOPPED" and job.left and job.left.manifest not in known
    ]:
        raise BrokenInvariantError(f"nobody knows of the savepoint {lost[0].left}")
    if status.step is not None and status.step.kind in ("submit", "stop", "cancel"):
        raise BrokenInvariantError(f"it comes to no end: {status.step}")
    if spec.state == "suspended":
        if alive:
            raise BrokenInvariantError("suspended, and a job is alive")
        return
    if status.doubtful and not world.meddled and spec.upgrade_mode != "stateless":
        raise BrokenInvariantError(f"nothing is doubtful: {status.doubtful}")
    if status.problem_reason in ("StateUnknown", "EndedElsewhere"):
        return
    deployed, stable = status.deployed, status.last_stable
    if deployed is not None and world.jobs[deployed.job].state == "FAILED":
        works = stable is not None and stable.version.parameters["kind"] == GOOD
        if spec.rollback and works and not deployed.stable and stable.version != deployed.version:
            raise BrokenInvariantError("it failed before it was stable, and was not rolled back")
        return
    if status.nonce != spec.restart_nonce:
        raise BrokenInvariantError("nobody has carried out the nonce")
    if spec.parameters["kind"] == GOOD and not status.failed:
        if not alive or alive[0].deployed.version.parameters != spec.parameters:
            raise BrokenInvariantError(f"what the spec says does not run: {status.problem_reason} {status.problem}")
        scaled = status.autoscaler
        chosen = scaled.parallelism if scaled is not None and scaled.instead_of == spec.parallelism else 0
        if alive[0].parallelism != (chosen or spec.parallelism):
            raise BrokenInvariantError("another parallelism is wanted")
        world.reached.add("runs")
    elif spec.rollback and status.last_stable is not None and spec.parameters["kind"] != GOOD:
        if not alive or alive[0].deployed.version != status.last_stable.version:
            raise BrokenInvariantError(f"it was not rolled back: {status.problem_reason} {status.problem}")
        world.reached.add("rolled back")


def _deletion(world: World) -> None:
    world.delete()
    for _ in range(PEACE):
        world.tick()
        for _ in world.operator(calm=True):
            pass
        if world.stored is None:
            return
    raise BrokenInvariantError("a resource that was deleted stays")

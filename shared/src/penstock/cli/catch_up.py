"""`penstock catch-up`: a job stops with a savepoint, Spark does what waits for it, and the job goes on from there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock.cli.cluster import print_json, timeout_s
from penstock.cli.spark import ConsoleWatch, SessionOptions
from penstock.spark.catching_up import catch_up


@dataclass(frozen=True)
class CatchUp(SessionOptions):
    """`penstock catch-up`."""

    job: str
    parallelism: int | None
    timeout: str
    json: bool


def catch_up_command(command: CatchUp) -> int:
    """Stop the job, catch up, let it go on; the exit code."""
    watch = ConsoleWatch()
    going_on = catch_up(
        command.job,
        command.cluster,
        spark=command.spark,
        parallelism=command.parallelism,
        timeout=timedelta(seconds=timeout_s(command.timeout)),
        watch=watch,
    )
    if going_on is None:
        return 130
    job = going_on.requested.job
    if command.json:
        print_json(going_on.requested)
    else:
        print(job)
    watch.say(f"{job[:8]}: goes on where Spark has come to, parallelism {going_on.parallelism}")
    return 0

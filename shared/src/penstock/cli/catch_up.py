"""`penstock catch-up`: a job stops with a savepoint, Spark does what waits for it, and the job goes on from there."""

from __future__ import annotations

import argparse
from datetime import timedelta

from penstock.cli.cluster import print_json, timeout_s
from penstock.cli.spark import ConsoleWatch
from penstock.spark.catching_up import catch_up
from penstock.spark.session import SparkSettings, parse_conf


def catch_up_command(arguments: argparse.Namespace) -> int:
    """Stop the job, catch up, let it go on; the exit code."""
    watch = ConsoleWatch()
    going_on = catch_up(
        arguments.job,
        arguments.cluster,
        spark=SparkSettings(arguments.master, arguments.remote, parse_conf(arguments.conf)),
        parallelism=arguments.parallelism,
        timeout=timedelta(seconds=timeout_s(arguments)),
        watch=watch,
    )
    if going_on is None:
        return 130
    job = going_on.requested.job
    if arguments.json:
        print_json(going_on.requested)
    else:
        print(job)
    watch.say(f"{job[:8]}: goes on where Spark has come to, parallelism {going_on.parallelism}")
    return 0

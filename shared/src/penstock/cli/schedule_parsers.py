"""The options of `penstock schedule`; what it does is in `schedules` and `schedule_add`."""

from __future__ import annotations

import argparse

from penstock.cli.cluster_parsers import cluster_parser
from penstock.cli.commands import Command
from penstock.cli.options import Commands
from penstock.cli.spark_options import add_run_options
from penstock.service.option_types import count, positive


def add_schedule_commands(commands: Commands) -> None:
    """Register the commands."""
    summary = "Run a pipeline on Spark again and again, by a cluster's pipeline service."
    parser: argparse.ArgumentParser = commands.add_parser(
        "schedule", help=summary, description=summary, allow_abbrev=False
    )
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_add(actions)
    listing = cluster_parser(
        actions, "list", "List all schedules.", ["penstock schedule list", "penstock schedule list --json"]
    )
    listing.set_defaults(command=Command("penstock.cli.schedules:list_command"))
    for name, text in (
        ("show", "Show a schedule: its next runs, and the results of the last ones."),
        ("pause", "Pause a schedule: no further runs begin; running ones continue."),
        ("resume", "Resume a schedule after a pause, or after a run has failed."),
        ("remove", "Remove a schedule; running runs continue."),
    ):
        one = cluster_parser(actions, name, text, [f"penstock schedule {name} orders"])
        one.add_argument("name", metavar="NAME", help="of the schedule")
        one.set_defaults(command=Command(f"penstock.cli.schedules:{name}_command"))


def _add_add(actions: Commands) -> None:
    parser = cluster_parser(
        actions,
        "add",
        "Add a schedule: a pipeline file over bounded input, and when it runs. Added again as it is, nothing happens.",
        [
            "penstock schedule add orders orders.py --cron '0 2 * * *' --timezone Europe/Berlin --param day={day}",
            "penstock schedule add orders orders.py --cron '0 2 * * *' --start 2026-11-01 --param day={day} --replace",
            "penstock schedule add clicks clicks.py --cron '0 * * * *' --param from={start} --param to={end}",
        ],
    )
    parser.add_argument("name", metavar="NAME", help="the name of the schedule; the ids of its runs begin with it")
    parser.add_argument("file", metavar="FILE", help="a pipeline file, or file.py:name if it declares several")
    parser.add_argument(
        "--cron", required=True, metavar="TIMES",
        help="minute, hour, day of month, month, day of week; between two times is a period, with a run at its end",
    )  # fmt: skip
    parser.add_argument(
        "--timezone", default="UTC", metavar="ZONE", help="the time zone of --cron and of parameters (UTC)"
    )
    parser.add_argument(
        "--start", metavar="TIME",
        help="no period begins before this day or time; missed ones are caught up (the period that is now)",
    )  # fmt: skip
    parser.add_argument("--end", metavar="TIME", help="no period begins on this day or later (never)")
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE",
        help="a value for param(NAME, ...) in the file, with {day}, {start} and {end} of the run's period in it; "
        "@env:VARIABLE and @file:PATH as for submit",
    )  # fmt: skip
    parser.add_argument("--retries", type=count, default=2, metavar="N", help="how often a failed run is retried (2)")
    parser.add_argument("--retry-pause", default="5m", metavar="TIME", help="the pause before each retry (5m)")
    parser.add_argument(
        "--on-failure", choices=("stop", "skip"), default="stop",
        help="a run has failed for good: begin no other until resumed, or go on with the next (stop)",
    )  # fmt: skip
    parser.add_argument("--replace", action="store_true", help="replace a schedule of this name")
    parser.add_argument(
        "--parallelism", type=positive, metavar="N", help="subtasks per operator (as many as Spark runs)"
    )
    parser.add_argument("--from-savepoint", metavar="SAVEPOINT", help="all runs start from it")
    add_run_options(parser)
    parser.set_defaults(command=Command("penstock.cli.schedule_add:add_command"))

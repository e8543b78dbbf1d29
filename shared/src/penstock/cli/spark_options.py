"""The options of commands that know Spark."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli.commands import Command
from penstock.cli.options import Commands, add_command
from penstock.service.option_types import positive
from penstock.submission.restart_text import RESTART_USAGE

DEFAULT_STEP_RESTART = "fixed-delay:3:10s"
"""How often a step that failed is repeated."""


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """`--engine`, of commands that know both."""
    parser.add_argument(
        "--engine",
        choices=("embedded", "spark"),
        help="what runs it: this process and its workers, or Spark over bounded input (what the file says by "
        'Pipeline(engine=...), or the cluster\'s settings by engine = "spark"; else embedded)',
    )
    add_native_option(parser)


def add_native_option(parser: argparse._ActionsContainer) -> None:
    """`--native`, of commands that run pipelines on Spark."""
    parser.add_argument(
        "--native",
        choices=("auto", "off"),
        default="auto",
        help="on Spark: let its own plan compute the windows for which that is proven equal, where no savepoint is read "
        "or left, or replay everything (auto)",
    )


def add_run_options(group: argparse._ActionsContainer) -> None:
    """Of runs by a cluster's pipeline service: what they leave, and where Spark is."""
    group.add_argument(
        "--to-savepoint",
        metavar="DIR",
        help="leave the state as a savepoint in this (absolute) folder, or s3://bucket/folder",
    )
    group.add_argument("--master", metavar="URL", help="instead of the pipeline service's, if that allows it")
    group.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="likewise, a setting of Spark")
    add_native_option(group)


def add_spark_options(parser: argparse.ArgumentParser) -> None:
    """Where Spark is, which run this is, and where its state comes from and goes to."""
    group = parser.add_argument_group("options of --engine spark")
    add_session_options(group)
    _add_run_id(group)
    parser.add_argument(
        "--from-savepoint",
        metavar="SAVEPOINT",
        help="start with its state: the folder of a savepoint, its s3://bucket/folder, or on Spark the key of its "
        "manifest in a cluster's store",
    )
    group.add_argument(
        "--to-savepoint",
        metavar="DIR",
        help="leave the state as a savepoint in a new folder, or s3://bucket/folder; topics without an end are read up "
        "to now",
    )
    add_cluster_option(group)
    group.add_argument(
        "--every",
        metavar="TIME",
        help="go on for ever, with a step so often: each reads what is new and leaves a savepoint in DIR "
        "(.penstock/NAME/steps); the same command again goes on from there",
    )
    group.add_argument(
        "--restart",
        default=DEFAULT_STEP_RESTART,
        metavar="STRATEGY",
        help=f"with --every, when a step that failed is repeated: {RESTART_USAGE} ({DEFAULT_STEP_RESTART})",
    )


def add_backfill(commands: Commands) -> None:
    """`penstock backfill`."""
    parser = add_command(
        commands,
        "backfill",
        "Run the history of a pipeline on Spark, and write a savepoint from which a job continues.",
        [
            "penstock backfill trades.py --to-savepoint history",
            "penstock backfill trades.py --source trades='archive/*.parquet' --until kafka --to-savepoint history",
            "penstock submit trades.py --from-savepoint history",
        ],
    )
    parser.add_argument("file", metavar="FILE", help="a pipeline file, or file.py:name if it declares several")
    parser.add_argument(
        "--parallelism", type=positive, metavar="N", help="subtasks per operator (as many as Spark runs)"
    )
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="UID=PATH",
        help="read these files before the source of that uid: a file, a folder, a pattern, or s3://bucket/prefix",
    )
    parser.add_argument(
        "--until",
        choices=("kafka",),
        default="kafka",
        help="where history ends: at the end of the topics when the run begins (kafka)",
    )
    parser.add_argument(
        "--to-savepoint", required=True, metavar="DIR", help="the folder of the savepoint, a new one, or s3://..."
    )
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="a value for param(NAME, ...) in the file"
    )
    add_session_options(parser)
    add_native_option(parser)
    _add_run_id(parser)
    add_cluster_option(parser)
    parser.set_defaults(log_format="text", log_level="error")

    parser.set_defaults(command=Command("penstock.cli.spark:backfill_command"))


def add_catch_up(commands: Commands) -> None:
    """`penstock catch-up`."""
    parser = add_command(
        commands,
        "catch-up",
        "Stop a job, process its backlog on Spark, and start it again from there.",
        ["penstock catch-up hot-auctions", "penstock catch-up 3f9a1c --master spark://spark:7077"],
    )
    parser.add_argument("job", metavar="JOB", help="its id, the first six or more digits of it, or its name")
    parser.add_argument(
        "--parallelism", type=positive, metavar="N", help="subtasks per operator on Spark (the job's parallelism)"
    )
    parser.add_argument(
        "--timeout", default="5m", metavar="TIME", help="how long to wait for the cluster, each time (5m)"
    )
    parser.add_argument("--json", action="store_true", help="what is printed as JSON")
    add_session_options(parser)
    add_cluster_option(parser)
    parser.set_defaults(log_format="text", log_level="error")

    parser.set_defaults(command=Command("penstock.cli.catch_up:catch_up_command"))


def add_session_options(group: Any) -> None:
    """Where Spark is."""
    group.add_argument("--master", metavar="URL", help="local[*], spark://host:port, k8s://... (local[*])")
    group.add_argument("--remote", metavar="URL", help="sc://host:port of a Spark Connect server instead of --master")
    group.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    group.add_argument(
        "--staging",
        metavar="URL",
        help="where executors hand rows of exactly-once Kafka sinks to the driver if they share no folder: "
        "s3://bucket/folder",
    )


def _add_run_id(group: Any) -> None:
    group.add_argument(
        "--run-id",
        metavar="ID",
        help="the id of this run: a run with the same id is continued, or left alone if it has finished (a fresh id)",
    )


def add_cluster_option(group: Any) -> None:
    """Whose topics and store are meant."""
    group.add_argument(
        "--cluster", metavar="FILE", help="the cluster's settings ($PENSTOCK_CLUSTER, or .penstock/cluster.toml)"
    )


def refusal(engine: str, options: str) -> str:
    """What is wrong with options of `run` and `plan` that the chosen engine does not have."""
    if engine == "spark":
        return f"--engine spark has no {options}: a batch run has no checkpoints"
    return f"only --engine spark has {options}"

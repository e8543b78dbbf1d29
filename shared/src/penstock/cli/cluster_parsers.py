"""The options of the commands that talk to a cluster; what they do is in `submit`, `jobs`, `operate` and `state`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from penstock.cli.commands import ByEngine, Command
from penstock.cli.options import Commands, add_command
from penstock.cli.spark_options import add_run_options
from penstock.protocol.checkpoints import TOLERABLE_FAILED
from penstock.service.option_types import count, positive
from penstock.submission.restart_text import RESTART_USAGE

JOB = "its id, the first six or more digits of it, or its name if only one job has it"
JOB_OR_RUN = f"{JOB}; or a run on Spark, likewise"


def add_cluster_commands(commands: Commands) -> None:
    """Register the commands."""
    _add_submit(commands)
    _add_looking(commands)
    _add_operating(commands)
    _add_state(commands)


def cluster_parser(commands: Commands, name: str, summary: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """A command that talks to a cluster."""
    parser = add_command(commands, name, summary, examples)
    parser.add_argument(
        "--cluster", metavar="FILE", help="the cluster's settings ($PENSTOCK_CLUSTER, or .penstock/cluster.toml)"
    )
    parser.add_argument("--json", action="store_true", help="what is printed as JSON")
    parser.set_defaults(log_format="text", log_level="error")
    return parser


def _add_submit(commands: Commands) -> None:
    parser = cluster_parser(
        commands,
        "submit",
        "Run a pipeline on a cluster and follow it until its end; Ctrl-C leaves it running.",
        [
            "penstock submit hot_auctions.py --parallelism 4",
            "penstock submit hot_auctions.py --detach --param topic=bids --checkpoint-interval 1s",
            "penstock submit hot_auctions.py --from-savepoint hot-auctions --allow-non-restored",
            "penstock submit daily.py --engine spark --run-id daily-2026-11-21 --param day=2026-11-21",
        ],
    )
    parser.add_argument("file", metavar="FILE", help="a pipeline file, or file.py:name if it declares several")
    parser.add_argument(
        "--engine",
        choices=("penstock", "spark"),
        help="what runs it: the task managers, or Spark, once over bounded input, by the pipeline service (what the file "
        'says by Pipeline(engine=...), or the cluster\'s settings by engine = "spark"; else penstock)',
    )
    parser.add_argument(
        "--parallelism", type=positive, metavar="N", help="subtasks per operator (1; on Spark as many as it runs)"
    )
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a value for param(NAME, ...) in the file; @env:VARIABLE and @file:PATH keep it off the command line",
    )
    parser.add_argument(
        "--from-savepoint",
        metavar="SAVEPOINT",
        help="start from this savepoint: its path, an exported folder or s3://bucket/folder, or a job (its newest)",
    )
    parser.add_argument(
        "--allow-non-restored", action="store_true", help="drop state of operators that the pipeline does not have"
    )
    parser.add_argument(
        "--allow-unpublished",
        action="store_true",
        help="start although rows of the checkpoint's job were not published; they are lost",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="submit nothing: write a submission file, which the dashboard takes (parameters stand in it as given)",
    )
    parser.add_argument("--detach", action="store_true", help="print the job's id and return once it is accepted")
    parser.add_argument(
        "--job-id",
        metavar="ID",
        help="the id that the job gets, 32 hexadecimal digits: the same submission sent twice by it is one job",
    )
    parser.add_argument(
        "--per-job", action="store_true", help="run it on task managers that are started for it and end with it"
    )
    parser.add_argument(
        "--at-least-once",
        action="store_true",
        help="at-least-once results: barriers are not aligned, and rows may be doubled after a failure",
    )
    parser.add_argument(
        "--checkpoint-interval", default="10s", metavar="TIME", help="the time between checkpoints (10s)"
    )
    parser.add_argument(
        "--tolerable-failed-checkpoints",
        type=count,
        default=TOLERABLE_FAILED,
        metavar="N",
        help="how many checkpoints may fail in a row, a store that is away aside, until the job starts again "
        f"({TOLERABLE_FAILED})",
    )
    parser.add_argument("--restart", default="exponential", metavar="STRATEGY", help=f"{RESTART_USAGE} (exponential)")
    parser.add_argument(
        "--state-backend",
        choices=("fs", "memory", "rocksdb"),
        default="fs",
        help="fs: state in memory, snapshots in the store; memory: small ones in the checkpoint's metadata; rocksdb: "
        "state of process functions and running aggregates on the local disk of the task managers (fs)",
    )
    parser.add_argument(
        "--incremental-checkpoints",
        action="store_true",
        help="checkpoints store what has changed since an earlier one, where state is in columns or on rocksdb",
    )
    _add_timeout(parser, "60s", "for the cluster to accept it")
    spark = parser.add_argument_group("options of --engine spark")
    spark.add_argument(
        "--run-id", metavar="ID", help="the id of this run: a run of this id that has finished is not run again"
    )
    add_run_options(spark)
    spark.add_argument(
        "--every",
        metavar="TIME",
        help="go on for ever, with a step so often, until penstock cancel; --restart: when one that failed is repeated",
    )

    engines = {
        "penstock": Command("penstock.cli.submit:submit_command"),
        "spark": Command("penstock.cli.submit_run:submit_run_command"),
    }
    refusal = "--engine {} has no {}".format
    parser.set_defaults(command=ByEngine(parser, engines, refusal))


def _add_looking(commands: Commands) -> None:
    parser = cluster_parser(
        commands,
        "jobs",
        "List the jobs of a cluster, runs on Spark among them.",
        ["penstock jobs", "penstock jobs --all --json"],
    )
    parser.add_argument("--all", action="store_true", help="include jobs that have ended")
    parser.set_defaults(command=Command("penstock.cli.jobs:jobs_command"))
    for name, summary in (
        ("status", "Show the state of a job: vertices, rates, what it waits for."),
        ("checkpoints", "List the newest checkpoints and savepoints of a job."),
        ("metrics", "Print the metrics of a job in Prometheus' text format."),
    ):
        parser = cluster_parser(
            commands, name, summary, [f"penstock {name} hot-auctions", f"penstock {name} 3f9a1c --json"]
        )
        parser.add_argument("job", metavar="JOB", help=JOB_OR_RUN if name == "status" else JOB)
        parser.set_defaults(command=Command(f"penstock.cli.jobs:{name}_command"))
    _add_logs(commands)


def _add_logs(commands: Commands) -> None:
    parser = cluster_parser(
        commands,
        "logs",
        "Show what happened to a job: attempts, checkpoints, failures, its end.",
        ["penstock logs hot-auctions --follow", "penstock logs 3f9a1c --workers --lines 200"],
    )
    parser.add_argument("job", metavar="JOB", help=JOB_OR_RUN)
    parser.add_argument("--follow", action="store_true", help="go on until the job ends, or until Ctrl-C")
    parser.add_argument(
        "--workers", action="store_true", help="show the last log lines of its worker processes instead"
    )
    parser.add_argument(
        "--lines",
        type=positive,
        default=100,
        metavar="N",
        help="with --workers, the number of lines of each process (100)",
    )

    parser.set_defaults(command=Command("penstock.cli.logs:logs_command"))


def _add_operating(commands: Commands) -> None:
    parser = _operation(
        commands,
        "savepoint",
        "Take a savepoint of a job, which continues to run.",
        ["penstock savepoint hot-auctions", "penstock savepoint 3f9a1c --to backup/monday"],
    )
    parser.add_argument(
        "--to", metavar="DIR", help="also copy it to this folder or s3://..., from where it can be moved"
    )
    parser = _operation(
        commands,
        "stop",
        "Stop a job with a savepoint.",
        ["penstock stop hot-auctions", "penstock stop hot-auctions --drain", "penstock stop --all"],
    )
    parser.add_argument("--all", action="store_true", help="all running jobs instead of one")
    parser.add_argument(
        "--drain", action="store_true", help="fire all windows and timers first, as at the end of the input"
    )
    _operation(
        commands,
        "cancel",
        "End a job without a savepoint; rows of complete checkpoints are published.",
        ["penstock cancel 3f9a1c"],
    )
    parser = _operation(
        commands,
        "rescale",
        "Change the parallelism of a job, keeping its state.",
        ["penstock rescale hot-auctions 4", "penstock rescale hot-auctions 12 --wait --timeout 1h"],
    )
    parser.add_argument("parallelism", type=positive, metavar="N", help="subtasks per operator")
    parser.add_argument(
        "--wait", action="store_true", help="if slots are missing, keep the job running and wait for them"
    )


def _operation(commands: Commands, name: str, summary: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    parser = cluster_parser(commands, name, summary, examples)
    one = "?" if name == "stop" else None
    parser.add_argument("job", metavar="JOB", nargs=one, help=JOB_OR_RUN if name == "cancel" else JOB)
    # The step at work of a job in steps may end in five minutes; then its process is killed.
    _add_timeout(
        parser,
        "6m" if name in ("stop", "cancel") else "5m",
        "until it is done; it is completed even if the command stops waiting",
    )

    parser.set_defaults(command=Command(f"penstock.cli.operate:{name}_command"))
    return parser


def _add_timeout(parser: argparse.ArgumentParser, default: str, what: str) -> None:
    parser.add_argument("--timeout", default=default, metavar="TIME", help=f"how long to wait {what} ({default})")


def _add_state(commands: Commands) -> None:
    parser = cluster_parser(
        commands,
        "state",
        "Read a savepoint: its operators, their state, one key.",
        [
            "penstock state hot-auctions",
            "penstock state backup/monday --uid totals --key 17",
            "penstock state jobs/3f9.../manifest.json --uid totals --to totals.parquet",
        ],
    )
    parser.add_argument(
        "savepoint", metavar="SAVEPOINT", help="its path, the folder of an exported one or its URL, or a job"
    )
    parser.add_argument("--uid", metavar="UID", help="only this operator, with its keys and values")
    parser.add_argument("--key", metavar="KEY", help='only this key: JSON, or plain text; several columns as [1, "a"]')
    parser.add_argument("--to", metavar="FILE", help="write keys and values to this .parquet file")

    parser.set_defaults(command=Command("penstock.cli.state:state_command"))

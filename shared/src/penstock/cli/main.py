"""The entry point: parses, dispatches, and turns errors into one clear line and an exit code.

Exit codes: 0, 1 (failed), 2 (used wrongly), 130 (interrupted).
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from penstock import __version__
from penstock.cli.cluster_parsers import add_cluster_commands
from penstock.cli.commands import ByEngine, Command
from penstock.cli.options import add_command
from penstock.cli.platform_parsers import add_platform_commands
from penstock.cli.schedule_parsers import add_schedule_commands
from penstock.cli.services import SERVICES, add_service_commands, run_service_command
from penstock.cli.spark_options import add_backfill, add_catch_up, add_engine_option, add_spark_options, refusal
from penstock.core.extras import missing_package
from penstock.errors import IncompatibleStateError, PenstockError, PipelineError, UsageError, UserCodeError
from penstock.observability.user_frames import shown_frames, shown_text
from penstock.service.option_types import add_log_options, port, positive
from penstock.service.process_exit import leave


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        return _main(argv)
    except KeyboardInterrupt:  # while Python still imports; a run that has begun handles Ctrl-C itself
        print("interrupted before anything ran", file=sys.stderr)
        return 130


def _main(argv: Sequence[str] | None) -> int:
    parser = _parser()
    given = sys.argv[1:] if argv is None else argv
    if not given:
        parser.print_help(sys.stderr)
        return 2
    if given[0] in SERVICES:
        return _run_service(given[0], given[1:])
    arguments = parser.parse_args(given)
    try:
        from penstock.observability.logs import configure_logging

        configure_logging(arguments.log_format, arguments.log_level)
        return arguments.command(arguments)
    except (UsageError, PipelineError, IncompatibleStateError) as error:
        return _fail(error, 2, arguments.debug)
    except UserCodeError as error:
        _print_user_frames(error)
        return _fail(error, 1, arguments.debug)
    except PenstockError as error:
        return _fail(error, 1, arguments.debug)
    except BrokenPipeError:
        # Whoever read the output (head, less) has seen enough; keep Python from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # the outermost supervisor: what a pipeline file raised, or a defect of ours
        if (missing := missing_package(error)) is not None:
            return _fail(missing, 2, arguments.debug)
        _print_user_frames(error)
        return _fail(error, 1, arguments.debug)


def _run_service(name: str, options: Sequence[str]) -> int:
    try:
        return run_service_command(name, options)
    except UsageError as error:
        return _fail(error, 2, debug=False)


def _fail(error: Exception, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    print(f"error: {shown_text(error)}", file=sys.stderr)
    return code


def _print_user_frames(error: BaseException) -> None:
    """The part of the traceback that is the user's own code, here or in a worker process."""
    frames = shown_frames(error)
    if frames:
        print("Traceback (your code, most recent call last):", file=sys.stderr)
        print(frames, end="", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of repeating all options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="penstock",
        description="Apache Flink's semantics for Python teams.",
        epilog="penstock COMMAND --help shows the options of a command, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_plan(commands)
    _add_sql(commands)
    _add_sql_gateway(commands)
    _add_test(commands)
    add_backfill(commands)
    add_catch_up(commands)
    add_cluster_commands(commands)
    add_schedule_commands(commands)
    add_service_commands(commands)
    add_platform_commands(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[_Parser],  # argparse gives this type no public name
    name: str,
    summary: str,
    examples: Sequence[str],
) -> argparse.ArgumentParser:
    parser = add_command(commands, name, summary, examples)
    parser.add_argument("file", metavar="FILE", help="a pipeline file, or file.py:name if it declares several")
    parser.add_argument(
        "--parallelism", type=positive, metavar="N", help="subtasks per operator (1; on Spark as many tasks as it runs)"
    )
    add_engine_option(parser)
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a value for param(NAME, ...) in the file; @env:VARIABLE and @file:PATH keep it off the command line",
    )
    parser.add_argument(
        "--at-least-once",
        action="store_true",
        help="at-least-once results: barriers are not aligned, and rows may be doubled after a failure",
    )
    add_log_options(parser, "error")
    return parser


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = _command(
        commands,
        "run",
        "Run a pipeline on this machine until its input ends.",
        [
            "penstock run examples/departures.py",
            "penstock run examples/departures.py --fresh --param rate=5000 --checkpoint-interval 1s",
            "penstock run examples/departures.py --resume --parallelism 2",
            "penstock run examples/departures.py --fresh --param rate=5000 --ui",
            "penstock run examples/departures.py --engine spark --master local[4]",
            "penstock run trades.py --engine spark --from-savepoint monday --to-savepoint tuesday --run-id tuesday",
            "penstock run trades.py --engine spark --every 30s --master spark://spark:7077",
        ],
    )
    parser.add_argument(
        "--checkpoint-interval", default="10s", metavar="TIME", help="the time between checkpoints (10s)"
    )
    parser.add_argument("--dir", metavar="DIR", help="the folder for log and snapshots (.penstock/NAME)")
    parser.add_argument("--resume", action="store_true", help="continue the run that DIR holds")
    parser.add_argument("--fresh", action="store_true", help="discard the unfinished run that DIR holds")
    parser.add_argument(
        "--metrics", metavar="FILE", help="write all metrics to FILE in Prometheus' text format, and keep it current"
    )
    parser.add_argument(
        "--state-backend",
        choices=("fs", "memory", "rocksdb"),
        default="fs",
        help="fs: state in memory, snapshots in DIR; memory: small ones in the checkpoint's metadata; rocksdb: state of "
        "process functions and running aggregates on the local disk (fs)",
    )
    parser.add_argument(
        "--incremental-checkpoints",
        action="store_true",
        help="checkpoints store what has changed since an earlier one, where state is in columns or on rocksdb",
    )
    parser.add_argument(
        "--no-fsync",
        action="store_true",
        help="do not sync to disk: survive the death of the process, but not a power loss",
    )
    parser.add_argument(
        "--ui",
        action="store_true",
        help="serve a dashboard of the run, as long as it lasts, on a free port of 127.0.0.1",
    )
    parser.add_argument("--ui-port", type=port, metavar="PORT", help="the same on this port")
    parser.add_argument(
        "--ui-keep", action="store_true", help="the same, and keep serving it after the end until Ctrl-C"
    )

    add_spark_options(parser)

    engines = {
        "embedded": Command("penstock.cli.run:run_command"),
        "spark": Command("penstock.cli.spark:run_on_spark"),
    }
    parser.set_defaults(command=ByEngine(parser, engines, refusal))


def _add_sql(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = add_command(
        commands,
        "sql",
        "Run statements in Flink's SQL on this machine: from a file, from the command line, or at a prompt.",
        [
            "penstock sql examples/departures.sql",
            "penstock sql -e \"SELECT origin, COUNT(*) FROM read_jsonl('examples/data/flights.jsonl') GROUP BY origin\"",
            "penstock sql",
        ],
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="a file of statements; a prompt if neither is given")
    parser.add_argument("-e", "--execute", metavar="TEXT", help="statements instead of a file")
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="the value of ${NAME} in quoted texts"
    )
    parser.add_argument("--parallelism", type=positive, metavar="N", help="subtasks per operator (1)")
    parser.add_argument("--json", action="store_true", help="rows as lines of JSON, also on a terminal")
    parser.set_defaults(command=Command("penstock.cli.sql:sql_command"), log_format="text", log_level="error")


def _add_sql_gateway(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = add_command(
        commands,
        "sql-gateway",
        "Serve SQL over REST as Flink's SQL Gateway does, for its SQL client and others; statements run on this machine.",
        ["penstock sql-gateway", "PENSTOCK_TOKEN=... penstock sql-gateway --host 0.0.0.0 --parallelism 2"],
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="the address to listen on; others than loopback need "
        "PENSTOCK_TOKEN, because statements run code (127.0.0.1)",
    )  # fmt: skip
    parser.add_argument("--port", type=port, default=8083, metavar="PORT", help="the port; 0 is any free one (8083)")
    parser.add_argument("--parallelism", type=positive, metavar="N", help="subtasks per operator (1)")
    parser.add_argument(
        "--session-idle-timeout", default="10m", metavar="TIME",
        help="close a session and end its runs after this time without a request (10m)",
    )  # fmt: skip
    parser.set_defaults(
        command=Command("penstock.cli.sql_gateway:sql_gateway_command"), log_format="text", log_level="error"
    )


def _add_test(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = add_command(
        commands,
        "test",
        "Run tests of SQL files. Tests are SQL files with input rows and expected results.",
        [
            "penstock test examples",
            "penstock test examples/departures.test.sql -k late",
            "penstock test examples/departures.test.sql --update",
        ],
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="a file of tests, or a folder: all *.test.sql below it"
    )
    parser.add_argument("-k", "--keyword", metavar="TEXT", help="only tests whose name or file contains this text")
    parser.add_argument(
        "--update", action="store_true", help="write the actual results into the files where they differ"
    )
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="the value of ${NAME} in quoted texts"
    )
    parser.set_defaults(
        command=Command("penstock.cli.sql_tests:sql_tests_command"), log_format="text", log_level="error"
    )


def _add_plan(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = _command(
        commands,
        "plan",
        "Show what a pipeline becomes: chains, exchanges, key groups, schemas, state, guarantees.",
        [
            "penstock plan examples/departures.py --parallelism 4",
            "penstock plan examples/departures.py --dot | dot -Tsvg > plan.svg",
            "penstock plan examples/departures.py --engine spark",
        ],
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="the job graph as JSON")
    shape.add_argument("--dot", action="store_true", help="a Graphviz digraph")
    parser.add_argument(
        "--submitted", action="store_true", help="show it as a cluster runs it: some sinks need no exchange there"
    )

    engines = {
        "embedded": Command("penstock.cli.plan:plan_command"),
        "spark": Command("penstock.cli.spark:plan_on_spark"),
    }
    parser.set_defaults(command=ByEngine(parser, engines, refusal))


def run() -> NoReturn:
    """The command `penstock`."""
    leave(main)


if __name__ == "__main__":
    run()

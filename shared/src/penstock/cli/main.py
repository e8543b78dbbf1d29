"""The entry point: parses, dispatches, and turns errors into one clear line and an exit code.

Exit codes: 0, 1 (failed), 2 (used wrongly), 130 (interrupted).
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from penstock import __version__
from penstock.cli.options import positive
from penstock.errors import IncompatibleStateError, PenstockError, PipelineError, UsageError, UserCodeError

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = _parser().parse_args(argv)
    from penstock.observability.logs import configure_logging

    configure_logging(arguments.log_format, arguments.log_level)
    try:
        return arguments.command(arguments)
    except (UsageError, PipelineError, IncompatibleStateError) as error:
        return _fail(error, 2, arguments.debug)
    except UserCodeError as error:
        _print_user_frames(error.__cause__ or error)
        return _fail(error, 1, arguments.debug)
    except PenstockError as error:
        return _fail(error, 1, arguments.debug)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the outermost supervisor: what a pipeline file raised, or a defect of ours
        _print_user_frames(error)
        return _fail(error, 1, arguments.debug)


def _fail(error: Exception, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    print(f"error: {text}", file=sys.stderr)
    return code


def _print_user_frames(error: BaseException) -> None:
    """The part of the traceback that is the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if frames:
        print("Traceback (your code, most recent call last):", file=sys.stderr)
        print("".join(traceback.format_list(frames)), end="", file=sys.stderr)


def _is_users(filename: str) -> bool:
    return not (filename.startswith((_LIBRARY, "<frozen", sys.prefix)) or "site-packages" in filename)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock", description="Apache Flink's semantics for Python teams.")
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_plan(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],  # argparse gives this type no public name
    name: str,
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=summary, description=summary, epilog=f"example: {example}", allow_abbrev=False
    )
    parser.add_argument("file", metavar="FILE", help="a pipeline file, or file.py:name if it declares several")
    parser.add_argument("--parallelism", type=positive, default=1, metavar="N", help="subtasks per operator (1)")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the file")
    parser.add_argument("--at-least-once", action="store_true", help="do not align barriers: rows may be doubled")
    parser.add_argument("--debug", action="store_true", help="print whole tracebacks")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="how log lines look (text)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "run",
        "Run a pipeline on this machine until its input ends.",
        "penstock run examples/departures.py --checkpoint-interval 5s",
    )
    parser.add_argument("--checkpoint-interval", default="10s", metavar="TIME", help="between checkpoints (10s)")
    parser.add_argument("--dir", metavar="DIR", help="log, snapshots, job log (.penstock/<pipeline>)")
    parser.add_argument("--resume", action="store_true", help="continue the run that DIR holds")
    parser.add_argument("--fresh", action="store_true", help="discard the unfinished run that DIR holds")
    parser.add_argument(
        "--metrics", metavar="FILE", help="keep FILE current with all metrics, in Prometheus' text format"
    )
    parser.add_argument(
        "--state-backend",
        choices=("fs", "memory"),
        default="fs",
        help="where snapshots go: files in DIR, or (small state only) the checkpoint's metadata (fs)",
    )
    parser.add_argument("--no-fsync", action="store_true", help="survive the death of the process, not a power loss")

    def run(arguments: argparse.Namespace) -> int:
        from penstock.cli.run import run_command

        if arguments.resume and arguments.fresh:
            raise UsageError("--resume continues a run, --fresh discards it: give one of them")
        return run_command(arguments)

    parser.set_defaults(command=run)


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "plan",
        "Show what a pipeline becomes: chains, exchanges, key groups, schemas, state, guarantees.",
        "penstock plan examples/departures.py --parallelism 4",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="the job graph as JSON")
    shape.add_argument("--dot", action="store_true", help="a Graphviz digraph")

    def plan(arguments: argparse.Namespace) -> int:
        from penstock.cli.plan import plan_command

        return plan_command(arguments)

    parser.set_defaults(command=plan)


if __name__ == "__main__":
    sys.exit(main())

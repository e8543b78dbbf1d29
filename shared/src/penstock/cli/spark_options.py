"""The options of `run` and `plan` that choose an engine, and which options belong to which."""

from __future__ import annotations

import argparse
from typing import Final

from penstock.errors import UsageError

_SPARK_ONLY: Final = ("master", "remote", "conf", "run_id")
_EMBEDDED_ONLY: Final = (
    "checkpoint_interval",
    "dir",
    "resume",
    "fresh",
    "metrics",
    "state_backend",
    "no_fsync",
    "at_least_once",
)


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """`--engine`, of commands that know both."""
    parser.add_argument(
        "--engine",
        choices=("embedded", "spark"),
        default="embedded",
        help="what runs it: this process and its workers, or Spark over bounded input (embedded)",
    )


def add_spark_options(parser: argparse.ArgumentParser) -> None:
    """Where Spark is, and which run this is."""
    group = parser.add_argument_group("options of --engine spark")
    group.add_argument("--master", metavar="URL", help="local[*], spark://host:port, k8s://... (local[*])")
    group.add_argument("--remote", metavar="URL", help="sc://host:port of a Spark Connect server instead of --master")
    group.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    group.add_argument(
        "--run-id", metavar="ID", help="names this run: given again, it is only carried to its end (a fresh one)"
    )


def check_engine(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Raise `UsageError` naming every option that the chosen engine does not have."""
    spark = arguments.engine == "spark"
    others = _EMBEDDED_ONLY if spark else _SPARK_ONLY
    given = [
        "--" + name.replace("_", "-")
        for name in others
        if hasattr(arguments, name) and getattr(arguments, name) != parser.get_default(name)
    ]
    if given:
        which = "--engine spark has" if spark else "only --engine spark has"
        what = f"no {', '.join(given)}: a batch run has no checkpoints" if spark else ", ".join(given)
        raise UsageError(f"{which} {what}")

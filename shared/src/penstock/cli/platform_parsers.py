"""The options of `penstock up`, `penstock down`, `penstock doctor` and `penstock token`; what they do is in
`penstock.cli.platform`, `penstock.cli.doctor` and `penstock.cli.token`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from penstock.cli.cluster_parsers import JOB
from penstock.cli.commands import Command
from penstock.cli.options import Commands, add_command
from penstock.service.option_types import positive


def add_platform_commands(commands: Commands) -> None:
    """Register the commands."""
    _add_up(commands)
    _add_down(commands)
    _add_doctor(commands)
    _add_token(commands)


def _parser(commands: Commands, name: str, summary: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    parser = add_command(commands, name, summary, examples)
    parser.set_defaults(log_format="text", log_level="error")
    return parser


def _add_up(commands: Commands) -> None:
    parser = _parser(
        commands,
        "up",
        "Start a local platform: Kafka, MinIO, Redis and the services. Parts that run already are left alone.",
        ["penstock up", "penstock up --slots 4 --kafka-port 9092", "penstock up --json"],
    )
    _add_folder(parser)
    for server in ("kafka", "minio", "redis", "rest"):
        parser.add_argument(
            f"--{server}-port",
            type=port,
            metavar="N",
            help="the port of Kafka on 127.0.0.1 (a free port at first, then the same)",
        )
    parser.add_argument("--slots", type=positive, metavar="N", help="of the task manager (2)")
    parser.add_argument("--coordinators", type=positive, metavar="N", help="how many; one of them leads (1)")
    parser.add_argument(
        "--pipeline",
        action="store_true",
        default=None,
        help="a pipeline service too, for submit --engine spark: it needs Java and PySpark (not at first)",
    )
    for name, text in (
        (
            "certificate",
            "the dispatcher speaks TLS with this certificate, which names 127.0.0.1 (it speaks plain HTTP)",
        ),
        ("key", "its key, if that is in another file"),
        ("ca", "the authority that has signed it, for clients, if it is none of the public ones"),
    ):
        parser.add_argument(f"--tls-{name}", type=Path, metavar="FILE", help=text)
    parser.add_argument(
        "--with",
        dest="way",
        choices=("native", "compose"),
        help="processes of this machine, or docker compose (native, unless an engine and docker-compose.yml are there)",
    )
    parser.add_argument("--json", action="store_true", help="the addresses as JSON")
    parser.add_argument("--fetch-only", action="store_true", help="only fetch what is needed, start nothing")

    parser.set_defaults(command=Command("penstock.cli.platform:up_command"))


def _add_down(commands: Commands) -> None:
    parser = _parser(
        commands,
        "down",
        "Stop exactly what `penstock up` started.",
        ["penstock down", "penstock down --purge"],
    )
    _add_folder(parser)
    parser.add_argument("--purge", action="store_true", help="remove its data, logs and settings too")
    parser.add_argument("--json", action="store_true", help="what was stopped as JSON")

    parser.set_defaults(command=Command("penstock.cli.platform:down_command"))


def _add_doctor(commands: Commands) -> None:
    parser = _parser(
        commands,
        "doctor",
        "Check Kafka, Redis and the store; with JOB, say why that job is slow or stuck.",
        ["penstock doctor", "penstock doctor --cluster cluster.toml --json", "penstock doctor hot-auctions"],
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help=f"look at this job instead: {JOB}")
    parser.add_argument(
        "--cluster", metavar="FILE", help="the cluster's settings ($PENSTOCK_CLUSTER, or .penstock/cluster.toml)"
    )
    parser.add_argument("--create-bucket", action="store_true", help="create the store's bucket first if it is missing")
    parser.add_argument(
        "--settle-transactions",
        action="store_true",
        help="first end the transactions of sinks that hang, the way they were decided (docs/kafka.md)",
    )
    parser.add_argument("--json", action="store_true", help="the results as JSON")

    parser.set_defaults(command=Command("penstock.cli.doctor:doctor_command"))


def _add_token(commands: Commands) -> None:
    parser = _parser(
        commands,
        "token",
        "Make an access token with a role: printed once, with the line by which dispatchers know it.",
        ["penstock token ann --role view", "penstock token ci --role submit --expires 2027-06-30 --json"],
    )
    parser.add_argument("name", metavar="NAME", help="the name of its owner in the audit log")
    parser.add_argument(
        "--role", required=True, choices=("view", "operate", "submit"),
        help="view: see everything; operate: also cancel, stop, rescale and the like; submit: also run code",
    )  # fmt: skip
    parser.add_argument(
        "--expires", metavar="DATE", help="its last day in UTC, such as 2027-06-30 (it does not expire)"
    )
    parser.add_argument("--json", action="store_true", help="both as JSON")

    parser.set_defaults(command=Command("penstock.cli.token:token_command"))


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", default=".penstock", metavar="DIR", help="the folder of its data, logs and settings (.penstock)"
    )


def port(text: str) -> int:
    """An argparse type: a port number."""
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number from 1 to 65535")
    return int(text)

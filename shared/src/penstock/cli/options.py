"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

Commands = Any  # argparse gives the type of what add_subparsers returns no public name


def positive(text: str) -> int:
    """An argparse type: a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def count(text: str) -> int:
    """An argparse type: a whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def port(text: str) -> int:
    """An argparse type: the number of a TCP port; 0 is any free one."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def add_command(commands: Commands, name: str, summary: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """A command, with examples below its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="print whole tracebacks")
    return parser

"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

Commands = Any  # argparse gives the type of what add_subparsers returns no public name


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

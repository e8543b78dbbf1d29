"""Options and the command line's own answers."""

from __future__ import annotations

import argparse

import pytest

from penstock.cli.main import main
from penstock.errors import UsageError
from penstock.loading import parse_parameters
from penstock.service.option_types import port, positive


def test_parameters_are_split_at_the_first_equals_sign() -> None:
    """A value may hold more of them, or be empty; the last of a name wins."""
    assert parse_parameters(["a=1", "b=x=y", "c=", "a=2"]) == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_a_parameter_without_name_or_value_is_refused(text: str) -> None:
    """The message says what to write."""
    with pytest.raises(UsageError, match="write --param name=value"):
        parse_parameters([text])


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two", "", "²"])
def test_positive_takes_whole_numbers_from_one(text: str) -> None:
    """Everything else is named in the message."""
    assert positive("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number from 1"):
        positive(text)


@pytest.mark.parametrize("text", ["-1", "65536", "http", ""])
def test_a_port_is_one(text: str) -> None:
    """0 is any free one."""
    assert (port("0"), port("65535")) == (0, 65_535)
    with pytest.raises(argparse.ArgumentTypeError, match="is not a port, 0 to 65535"):
        port(text)


def test_no_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, as a wrong use."""
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Run a pipeline on this machine" in captured.err


@pytest.mark.parametrize(
    "arguments", [["run"], ["walk", "x.py"], ["run", "x.py", "--parallel", "2"], ["plan", "--json"]]
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It names the help that tells more."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("--help")

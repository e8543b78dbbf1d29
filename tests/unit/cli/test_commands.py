"""Every command and every service has a dataclass with exactly the options of its parser, of the types that it gives."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.cli.commands import COMMON, ByEngine, Command
from penstock.cli.main import _parser, main
from penstock.cli.services import SERVICES
from penstock.service.typed_options import option_names, typed_options


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command but those of the services, whose packages have them."""
    return {name: parser for name, parser in commands_of(_parser()).items() if name not in SERVICES}


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Those below a parser, by all their words."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found: dict[str, argparse.ArgumentParser] = {}
    for name, one in commands.choices.items():
        if any(isinstance(action, argparse._SubParsersAction) for action in one._actions):
            found |= {f"{name} {word}": below for word, below in commands_of(one).items()}
        else:
            found[name] = one
    return found


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {action.dest for action in parser._actions} - COMMON


def written(parser: argparse.ArgumentParser, *, every: bool) -> list[str]:
    """A command line that gives every option, or only what must be given; of options that exclude each other one."""
    words: list[str] = []
    taken = {action.dest for group in parser._mutually_exclusive_groups for action in group._group_actions[1:]}
    for action in parser._actions:
        if action.dest == "help" or action.dest in taken:
            continue
        if action.option_strings and (every or action.required):
            words.append(action.option_strings[0])
        if (every or action.required) and action.nargs != 0:
            words.append(next(iter(action.choices)) if action.choices else "1")
    return words


@pytest.mark.parametrize("name", sorted(parsers()))
def test_a_command_has_the_options_of_its_parser(name: str) -> None:
    """None more, none less; those that only one engine has are fields of that engine's command alone."""
    parser = parsers()[name]
    command = parser.get_default("command")
    if isinstance(command, ByEngine):
        names = set[str]().union(*(one.names() for one in command.engines.values())) | {"engine"}
        assert set(command.engines) == set(next(a for a in parser._actions if a.dest == "engine").choices or ())
    else:
        assert isinstance(command, Command)
        names = command.names()
    assert names - COMMON == options_of(parser)


@pytest.mark.parametrize("name", sorted(parsers()))
@pytest.mark.parametrize("every", [False, True])
def test_what_a_parser_gives_is_of_the_declared_types(name: str, every: bool) -> None:
    """With everything given, and with nothing but what must be."""
    parser = parsers()[name]
    command = parser.get_default("command")
    arguments = parser.parse_args(written(parser, every=every))
    for one in command.engines.values() if isinstance(command, ByEngine) else [command]:
        options = typed_options(arguments, one.options())
        assert {field: getattr(options, field) for field in one.names()} == {
            field: getattr(arguments, field) for field in one.names()
        }


@pytest.mark.parametrize("service", sorted(SERVICES))
@pytest.mark.parametrize("every", [False, True])
def test_a_service_has_the_options_of_its_parser(service: str, every: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of `penstock coordinator` and the others."""
    module = import_module(f"penstock_{service}.__main__")
    caught: list[tuple[argparse.ArgumentParser, type[Any]]] = []
    monkeypatch.setattr(module, "run_service", lambda parser, _, kind, __: caught.append((parser, kind)))
    module.main([])
    ((parser, kind),) = caught
    assert option_names(kind) - COMMON == options_of(parser) | {"service"}
    assert typed_options(parser.parse_args(written(parser, every=every)), kind)


def test_an_option_of_another_type_is_no_command() -> None:
    """What a function would misread is not handed to it."""

    @dataclass(frozen=True)
    class Lines:
        lines: int

    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        typed_options(argparse.Namespace(lines="1"), Lines)


HOME = """
from dataclasses import dataclass
from penstock import Pipeline
from penstock.connectors import console, iterables

@dataclass
class Row:
    a: int

print("imported")
p = Pipeline("at-home"{})
p.read(iterables.Source([Row(1)], schema=Row)).write(console.Sink())
"""


@pytest.mark.parametrize(
    ("file", "settings", "words", "chosen"),
    [
        ("", "", [], "embedded"),
        (', engine="spark"', "", [], "spark"),
        (', engine="spark"', "", ["--engine", "embedded"], "embedded"),
        ("", 'engine = "spark"', [], "spark"),
        (', engine="embedded"', 'engine = "spark"', [], "embedded"),
        (', engine="spark"', "", ["--native", "off"], "spark"),
    ],
)
def test_a_file_or_the_settings_say_the_engine(
    file: str,
    settings: str,
    words: list[str],
    chosen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command line before the file, the file before the settings; the file is imported once."""
    monkeypatch.chdir(tmp_path)
    Path("home.py").write_text(HOME.format(file))
    Path("cluster.toml").write_text(settings)
    monkeypatch.setenv("PENSTOCK_CLUSTER", "cluster.toml")
    assert main(["plan", "home.py", *words]) == 0
    first, shown = capsys.readouterr().out.split("\n", 1)
    assert first == "imported"
    assert "imported" not in shown
    assert ("on Spark" in shown) is (chosen == "spark")


def refused() -> Iterator[tuple[list[str], str]]:
    """Command lines, and what is said of them."""
    yield ["submit", "x.py", "--run-id", "x", "--native", "off"], "--engine penstock has no --run-id, --native"
    yield ["submit", "x.py", "--engine", "spark", "--per-job"], "--engine spark has no --per-job"
    yield ["run", "x.py", "--conf", "a=b"], "only --engine spark has --conf"
    yield ["run", "x.py", "--every", "1s", "--resume"], "only --engine spark has --every"
    yield (
        ["run", "x.py", "--engine", "spark", "--dir", "x", "--fresh"],
        "--dir, --fresh: for a job on Spark that runs in steps; leave it out, or give --every; without "
        "--every each run begins anew",
    )
    yield (
        ["run", "x.py", "--engine", "spark", "--every", "1s", "--run-id", "x"],
        "leave --run-id and --to-savepoint out",
    )
    yield ["plan", "x.py", "--engine", "spark", "--at-least-once"], "--engine spark has no --at-least-once: a batch run"


@pytest.mark.parametrize(("words", "message"), list(refused()))
def test_options_of_another_engine_are_refused_by_name(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the file is looked at."""
    assert main(words) == 2
    assert message in capsys.readouterr().err

"""How the one pipeline of a file is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.loading import load_pipeline, parse_parameters


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    """Files that a test imports leave no trace."""
    modules, paths = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = paths


def write(folder: Path, text: str, name: str = "declared.py") -> str:
    path = folder / name
    path.write_text("from penstock import *\n" + text)
    return str(path)


def test_the_only_pipeline_is_found_under_any_name(tmp_path: Path) -> None:
    """A second name of the same object does no harm."""
    path = write(tmp_path, "jobs = Pipeline('a')\nalias = jobs\n")
    assert load_pipeline(path, {}).name == "a"


def test_one_of_several_is_named_behind_a_colon(tmp_path: Path) -> None:
    """Without that the message offers one."""
    path = write(tmp_path, "first = Pipeline('a')\nsecond = Pipeline('b')\n")
    assert load_pipeline(f"{path}:second", {}).name == "b"
    with pytest.raises(UsageError, match=r"say which: .*:first"):
        load_pipeline(path, {})
    with pytest.raises(UsageError, match="did you mean 'second'"):
        load_pipeline(f"{path}:secnd", {})


def test_modules_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    """As `python file.py` would."""
    write(tmp_path, "NAME = 'from-helper'\n", "helper_of_test.py")
    path = write(tmp_path, "from helper_of_test import NAME\np = Pipeline(NAME)\n")
    assert load_pipeline(path, {}).name == "from-helper"


def test_parameters_reach_the_file_as_values_of_their_defaults_type(tmp_path: Path) -> None:
    """A parameter that the file never asks for is refused with the nearest one."""
    path = write(tmp_path, "p = Pipeline(f\"p{param('days', 7) + 1}{param('deep', False)}\")\n")
    assert load_pipeline(path, {}).name == "p8False"
    assert load_pipeline(path, {"days": "30", "deep": "yes"}).name == "p31True"
    with pytest.raises(UsageError, match="no such parameter; did you mean 'days'"):
        load_pipeline(path, {"day": "1"})
    with pytest.raises(UsageError, match="not an int"):
        load_pipeline(path, {"days": "many"})


def test_run_in_the_file_does_nothing_while_it_is_loaded(tmp_path: Path) -> None:
    """So that a script is a pipeline file too."""
    path = write(tmp_path, "p = Pipeline('script')\nassert p.run().state == 'NOT_RUN'\n")
    assert load_pipeline(path, {}).name == "script"


def test_what_the_file_raises_comes_through(tmp_path: Path) -> None:
    """It is the user's error, not ours."""
    with pytest.raises(ZeroDivisionError):
        load_pipeline(write(tmp_path, "1 / 0\n"), {})


@pytest.mark.parametrize("name", ["nothing.py", "notes.txt"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    """Missing, or no Python."""
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UsageError, match=name):
        load_pipeline(str(tmp_path / name), {})


def test_a_value_may_come_from_elsewhere_than_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment or a file; what is not there is named, and no value."""
    monkeypatch.setenv("DB", "hunter2")
    (tmp_path / "value").write_text("from a file\n")
    given = ["a=@env:DB", f"b=@file:{tmp_path / 'value'}", "c=@home", "d=x=@env:DB"]
    assert parse_parameters(given) == {"a": "hunter2", "b": "from a file", "c": "@home", "d": "x=@env:DB"}
    for missing in ("a=@env:NOWHERE", f"a=@file:{tmp_path / 'none'}"):
        with pytest.raises(UsageError, match="--param a=@"):
            parse_parameters([missing])

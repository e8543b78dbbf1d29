"""Each test runs in the lane that what it starts calls for, and the first lane starts nothing but Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.acceptance.test_incremental_state import PARTS
from tests.lanes import LONGEST, PROGRAMS, SHARED, VARIABLE, arrange, demand_servers, group_of, lane_of, shadow_servers

ROOT = Path(__file__).parents[2]


def an_item(request: pytest.FixtureRequest, path: str, *fixtures: str, marks: tuple[str, ...] = ()) -> pytest.Item:
    """A test of this path that asks for these fixtures."""
    item = pytest.Function.from_parent(request.node.parent, name="test_it", callobj=lambda: None)
    item.path = ROOT / path
    item.fixturenames = list(fixtures)
    for mark in marks:
        item.add_marker(mark)
    return item


@pytest.mark.parametrize(
    ("path", "fixtures", "marks", "lane"),
    [
        ("tests/unit/test_it.py", ["tmp_path"], [], "python"),
        ("tests/unit/test_it.py", ["tmp_path", "browser"], [], "servers"),
        ("tests/spark/test_it.py", ["spark"], [], "servers"),
        ("tests/spark/test_it.py", ["local"], [], "python"),
        ("tests/integration/test_it.py", [], ["servers"], "servers"),
        ("tests/acceptance/test_it.py", [], [], "acceptance"),
        ("tests/e2e/test_it.py", ["own_platform"], ["acceptance"], "acceptance"),
    ],
)
def test_a_test_runs_where_what_it_starts_runs(request, path, fixtures, marks, lane) -> None:
    assert lane_of(an_item(request, path, *fixtures, marks=tuple(marks))) == lane


def test_tests_of_one_server_run_in_one_process(request) -> None:
    """Others run with those of their file, or of the group that a mark names."""
    assert group_of(an_item(request, "tests/spark/test_it.py", "spark")) == "spark"
    assert group_of(an_item(request, "tests/spark/test_it.py", "local")) == "tests/spark/test_it.py"
    marked = an_item(request, "tests/spark/test_it.py")
    marked.add_marker(pytest.mark.group("containers"))
    assert group_of(marked) == "containers"


def test_the_longest_groups_begin_first(request, tmp_path, monkeypatch) -> None:
    """The order of the others is that in which they came."""
    monkeypatch.delenv(VARIABLE, raising=False)
    names = ["tests/unit/test_b.py", LONGEST[2], "tests/unit/test_a.py", LONGEST[3]]
    items = [an_item(request, name) for name in names]
    arrange(request.config, items, tmp_path)
    assert [group_of(item) for item in items] == [LONGEST[2], LONGEST[3], *names[::2]]


def test_the_list_of_the_longest_names_what_is_there() -> None:
    groups = {*SHARED.values(), "containers", *(f"incremental {part}" for part in PARTS)}
    assert [name for name in LONGEST if name not in groups and not (ROOT / name).exists()] == []


def test_the_first_lane_starts_no_server(tmp_path, monkeypatch) -> None:
    """Neither in a test's own process nor in one that it starts; whoever tries is told what to do."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    shadow_servers(tmp_path / "shadows")
    for name in PROGRAMS:
        done = subprocess.run(["/bin/sh", "-c", name], capture_output=True, text=True, check=False)
        assert done.returncode == 97
        assert f"{name}: `make test` starts nothing but Python" in done.stderr
    monkeypatch.setenv(VARIABLE, "python")
    with pytest.raises(AssertionError, match=r"starts Postgres; .*mark this test"):
        demand_servers("Postgres")
    monkeypatch.setenv(VARIABLE, "servers")
    demand_servers("Postgres")

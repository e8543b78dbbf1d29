"""`make check` chooses the tests that are near a change, and fails when one of its checks does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import check

JOIN, STORE, CLI = Path("join.py"), Path("store.py"), Path("cli.py")
FILES = {"penstock.task.join": JOIN, "penstock.task.store": STORE, "penstock.task.chain": Path("chain.py")}
FILES |= {"penstock.cli.main": CLI}
IMPORTS = {
    "penstock.task.join": {"penstock.task.store"},
    "penstock.task.chain": {"penstock.task.join"},
    "penstock.cli.main": {"penstock.task.chain"},
    "penstock.task.store": set[str](),
}
TESTS = {
    Path("test_chain.py"): {"penstock.task.chain"},
    Path("test_join.py"): {"penstock.task.join"},
    Path("test_store.py"): {"penstock.task.store"},
    Path("test_cli.py"): {"penstock.cli.main"},
    Path("test_other.py"): set[str](),
}


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ([STORE], ["test_store.py", "test_join.py", "test_chain.py"]),
        ([JOIN], ["test_join.py", "test_chain.py"]),
        ([CLI], ["test_cli.py"]),
        ([JOIN, Path("test_other.py")], ["test_other.py", "test_join.py", "test_chain.py"]),
        ([Path("elsewhere.py")], []),
    ],
)
def test_the_tests_near_a_change_are_chosen_nearest_first(changed, chosen) -> None:
    """Those of other rooms only where they import a changed module themselves."""
    assert [str(test) for test in check.nearest_tests(changed, FILES, IMPORTS, TESTS)] == chosen


def test_what_a_test_imports(tmp_path) -> None:
    """A name of a package may be a module or something in one."""
    test = tmp_path / "test_it.py"
    test.write_text("from penstock.task import join, Chain\nimport penstock.cli.main\n")
    assert check.imported_by(test, FILES.keys()) == {"penstock.task.join", "penstock.cli.main"}


def test_whatever_fails_is_shown(monkeypatch, capsys) -> None:
    """And the exit code says so."""
    monkeypatch.setattr(check, "changed_files", lambda since: [check.ROOT / "tools" / "check.py"])
    monkeypatch.setattr(
        check, "check_style", lambda changed: [check.run("style", ["false"]), check.run("types", ["true"])]
    )
    monkeypatch.setattr(check, "check_tests", lambda tests, seconds: [check.run("tests", ["true"])])
    assert check.main([]) == 1
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if line] == ["FAILED", "ok", "ok"]


def test_a_revision_that_is_not_there() -> None:
    with pytest.raises(SystemExit, match="cannot tell what was changed since nowhere"):
        check.main(["--since", "nowhere"])

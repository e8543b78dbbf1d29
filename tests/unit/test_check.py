"""`make check` chooses the tests that are near a change, says what it left out, and fails when one of its checks does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools import check, near, time_budget

IMPORTS: dict[str, set[str]] = {
    "penstock.errors": set(),
    "penstock.task.store": {"penstock.errors"},
    "penstock.task.equal_join": {"penstock.task.store"},
    "penstock.task.chain": {"penstock.task.equal_join"},
    "penstock.testing.harness": {"penstock.task.chain"},
    "tests.conftest": {"penstock.errors", "penstock.task.store"},
    "tests.unit.task.conftest": set(),
    "tests.unit.task.cases": {"penstock.testing.harness"},
    "tests.unit.task.test_chain": {"penstock.task.chain"},
    "tests.unit.task.test_equal_joins": {"tests.unit.task.cases"},
    "tests.unit.task.test_joins": {"tests.unit.task.cases"},
    "tests.unit.task.test_store": {"penstock.task.store"},
    "tests.unit.state.test_rows": {"tests.unit.task.cases"},
    "tests.unit.state.test_store_of_rows": {"penstock.task.store"},
    "tests.unit.test_lines": {"tools.lines"},
    "tests.e2e.test_kill": {"penstock.task.store"},
    "tools.lines": set(),
}
CODE = near.Code({module: Path(module) for module in IMPORTS}, IMPORTS)
OF_JOIN = ["task.test_equal_joins", "task.test_joins", "task.test_chain"]


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ("penstock.task.equal_join", OF_JOIN),
        ("penstock.task.store", ["state.test_store_of_rows", "task.test_store", *OF_JOIN[2:], *OF_JOIN[:2]]),
        ("penstock.testing.harness", ["state.test_rows", *OF_JOIN[:2]]),
        ("penstock.errors", []),
        ("tests.unit.task.cases", ["state.test_rows", *OF_JOIN[:2]]),
        ("tests.unit.task.conftest", ["task.test_chain", *OF_JOIN[:2], "task.test_store"]),
        ("tests.unit.state.test_rows", ["state.test_rows"]),
        ("tools.lines", ["test_lines"]),
    ],
)
def test_the_tests_near_a_change_are_chosen_nearest_first(changed: str, chosen: list[str]) -> None:
    """Those of the room however they reach it, the ones of its name first; others over modules of the room alone."""
    assert near.nearest_tests({changed}, CODE) == [f"tests.unit.{test}" for test in chosen]


def test_a_changed_test_is_near_wherever_it_stands() -> None:
    assert near.nearest_tests({"tests.e2e.test_kill"}, CODE) == ["tests.e2e.test_kill"]


def test_the_tests_of_an_operator_are_the_nearest() -> None:
    """In the code as it is."""
    code = near.code_of_tree("tests.unit.task.")
    chosen = near.nearest_tests({"penstock.task.operators.regular_join"}, code)
    assert chosen[0] == "tests.unit.task.test_regular_joins"


def test_what_a_test_imports(tmp_path: Path) -> None:
    """A name of a package may be a module or something in one; helpers beside a test have bare names."""
    test = tmp_path / "test_it.py"
    test.write_text("from penstock.task import store, Chain\nfrom cases import x\nimport tools.lines\n")
    imported = {"penstock.task.store", "tests.unit.task.cases", "tools.lines"}
    assert near.imported_by("tests.unit.task.test_it", test, IMPORTS.keys()) == imported


def test_the_types_of_importers_are_checked_unless_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of files that `make lint` checks; what is left out is said."""
    files = {module: check.ROOT / "shared" / "src" / module for module in IMPORTS if module.startswith("penstock")}
    code = near.Code({**CODE.files, **files}, IMPORTS)
    chosen, left_out = check.typed({"penstock.task.store"}, code)
    assert [file.name for file in chosen] == ["penstock.task.equal_join", "penstock.task.store"]
    assert left_out == ""
    monkeypatch.setattr(check, "MOST_IMPORTERS", 0)
    chosen, left_out = check.typed({"penstock.task.store"}, code)
    assert [file.name for file in chosen] == ["penstock.task.store"]
    assert left_out.startswith("types of 1 module that")


def test_no_test_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(time_budget.UNTIL, "0")
    with pytest.raises(pytest.skip.Exception, match=time_budget.NO_TIME):
        time_budget.pytest_runtest_setup()


def test_what_there_was_no_time_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that did not begin, and files that were not even collected, nearest first."""
    cases = [("b", True), ("a", False), ("b", False), ("a", False)]
    assert check._left_out(cases, ["b", "a", "c"], ["c"]) == "3 tests of 2 files and all of 1 further file: b, a, c"
    assert check._left_out([("b", True)], ["b", "a", "c"], ["a", "c"]) == "all of 2 further files: a, c"
    monkeypatch.setattr(check, "MOST_NAMED", 1)
    assert check._left_out([("b", False), ("a", False)], ["b", "a"], []) == "2 tests of 2 files: b and 1 more"
    assert check._left_out([("b", True), ("a", True)], ["b", "a"], []) == ""


def test_tests_run_in_batches_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each twice as large as the one before; a failure in any of them is one of the whole, and only it is shown."""
    names = [f"test_{number}" for number in range(15)]
    assert list(map(len, check.batches(names))) == [4, 8, 3]
    now = iter([0.0, 1.0, 41.0, 81.0, 121.0])
    monkeypatch.setattr(check.time, "time", lambda: next(now))
    monkeypatch.setattr(
        check, "run_tests", lambda files, until: check.Tested(True, "a bad one", [(str(file), True) for file in files])
    )
    outcome = check.check_tests(names, near.Code({name: Path(name) for name in names}, {}), 40)
    assert (outcome.what, outcome.failed, outcome.output) == ("4 tests of 4 files", True, "a bad one")
    assert outcome.left_out.startswith("all of 11 further files: test_4, ")


def test_whatever_fails_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it printed, and what was left out; and the exit code says so."""
    bad = check.run("style", [sys.executable, "-c", "import sys; print('a bad line'); sys.exit(3)"])
    good = check.Outcome("1 test of 1 file", False, "a long story", 0.1, "2 tests of 1 file: b")
    monkeypatch.setattr(check, "changed_files", lambda since: {Path(check.__file__), check.ROOT / "gone.py"})
    monkeypatch.setattr(check, "check", lambda files, seconds: [bad, good])
    assert check.main([]) == 1
    said = capsys.readouterr().out
    assert "a bad line" in said
    assert "a long story" not in said
    assert [line.split()[0] for line in said.splitlines() if line] == ["FAILED", "a", "ok", "left", "left"]
    assert "left out: 2 tests of 1 file: b" in said
    assert "gone.py, which is gone" in said


def test_tests_that_did_not_begin_are_not_called_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time may be over before the first one."""
    monkeypatch.setattr(check, "run_tests", lambda files, until: check.Tested(False, "", [("test_a", False)]))
    outcome = check.check_tests(["test_a"], near.Code({"test_a": Path("test_a")}, {}), 40)
    assert next(check.summary([outcome])).startswith("NONE ")
    assert outcome.left_out == "1 test of 1 file: test_a"


def test_changed_files_are_those_that_git_sees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Staged, unstaged, new and deleted ones; none when nothing was changed."""
    monkeypatch.setattr(check, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    names = ["staged.py", "unstaged.py", "gone.py", "same.py"]
    for name in names:
        (tmp_path / name).touch()
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "First"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    assert check.changed_files("HEAD") == set()
    assert check.main([]) == 0
    (tmp_path / "staged.py").write_text("1")
    subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "unstaged.py").write_text("1")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "new.py").touch()
    assert {file.name for file in check.changed_files("HEAD")} == {*names[:3], "new.py"}


def test_a_revision_that_is_not_there() -> None:
    with pytest.raises(SystemExit, match="cannot tell what was changed since nowhere"):
        check.main(["--since", "nowhere"])

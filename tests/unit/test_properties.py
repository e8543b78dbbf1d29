"""A property test plays fewer examples while nothing has changed since it passed, and all of them otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import SHARE, UNCHANGED_SHARE, Recorder, deal_examples, digests_of
from tools.near import Code

TEST = "tests/unit/test_it.py::test_that[a]"
FILES = {
    "penstock.state": "import penstock.types",
    "penstock.types": "",
    "penstock.other": "",
    "tests.conftest": "import penstock.other",
    "tests.unit.test_it": "import tests.helper",
    "tests.helper": "import penstock.state",
    "tests.unit.test_types": "import penstock.types",
}
IMPORTS = {module: {name} for module, text in FILES.items() if (name := text.removeprefix("import "))}


def digests(root: Path, **changed: str) -> dict[str, str]:
    """Of the test modules of a small tree, some of whose files were changed."""
    files: dict[str, Path] = {}
    for module, text in FILES.items():
        files[module] = root / f"{module.replace('.', '/')}.py"
        files[module].parent.mkdir(parents=True, exist_ok=True)
        files[module].write_text(changed.get(module.rpartition(".")[2], text))
    for name in ("pyproject.toml", "requirements.lock"):
        (root / name).write_text(changed.get(name.partition(".")[0], ""))
    return digests_of(Code(files, cast("dict[str, set[str]]", IMPORTS)), root)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("types", {"tests/unit/test_it.py", "tests/unit/test_types.py"}),
        ("state", {"tests/unit/test_it.py"}),
        ("helper", {"tests/unit/test_it.py"}),
        ("test_types", {"tests/unit/test_types.py"}),
        ("conftest", {"tests/unit/test_it.py", "tests/unit/test_types.py"}),
        ("other", {"tests/unit/test_it.py", "tests/unit/test_types.py"}),
        ("requirements", {"tests/unit/test_it.py", "tests/unit/test_types.py"}),
    ],
)
def test_a_digest_is_that_of_all_that_a_test_imports(tmp_path, changed, expected) -> None:
    before, after = digests(tmp_path), digests(tmp_path, **{changed: "changed"})
    assert {file for file in before if before[file] != after[file]} == expected
    assert digests(tmp_path) == before


def report(outcome: str, *, test: str = TEST, when: str = "call", is_property: bool = True) -> Any:
    """What pytest says of a test, as it comes from another process."""
    properties = [["property test", True]] if is_property else []
    return SimpleNamespace(
        nodeid=test, when=when, user_properties=properties, passed=outcome == "passed", failed=outcome == "failed"
    )


def after(folder: Path, digest: str, *reports: Any) -> list[str]:
    """Which tests a run finds unchanged that then has these reports."""
    recorder = Recorder(folder, {TEST.partition("::")[0]: digest}, folder / "cache" / "properties.json")
    for each in reports:
        recorder.pytest_runtest_logreport(each)
    recorder.pytest_sessionfinish()
    return json.loads((folder / "unchanged.json").read_text())


def test_what_has_passed_is_unchanged_until_its_code_changes(tmp_path) -> None:
    assert after(tmp_path, "one", report("passed", when="setup"), report("passed")) == []
    assert after(tmp_path, "one") == [TEST]
    assert after(tmp_path, "two") == []
    assert after(tmp_path, "one", report("passed")) == [TEST]


@pytest.mark.parametrize(
    "reports",
    [
        [report("passed", when="setup")],
        [report("skipped")],
        [report("failed")],
        [report("passed"), report("failed", when="teardown")],
        [report("passed", is_property=False)],
        [report("passed", test="tests/unit/test_new.py::test_this")],
    ],
)
def test_what_has_not_passed_is_not_recorded(tmp_path, reports) -> None:
    after(tmp_path, "one", *reports)
    assert after(tmp_path, "one") == []


def test_a_failure_takes_the_record_back(tmp_path) -> None:
    after(tmp_path, "one", report("passed"))
    after(tmp_path, "one", report("failed"))
    assert after(tmp_path, "one") == []


@pytest.mark.parametrize(("unchanged", "share"), [(False, SHARE), (True, SHARE * UNCHANGED_SHARE)])
def test_an_unchanged_test_plays_a_tenth(request, tmp_path, unchanged, share) -> None:
    @settings(max_examples=300)
    @given(st.integers())
    def asked(number: int) -> None:
        pass

    item = pytest.Function.from_parent(request.node.parent, name="test_that[a]", callobj=asked)
    (tmp_path / "unchanged.json").write_text(json.dumps([item.nodeid] * unchanged))
    deal_examples([item], tmp_path)
    assert asked._hypothesis_internal_use_settings.max_examples == 300 // share

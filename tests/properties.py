"""A property test whose code has not changed since it last passed plays a tenth of its examples in `make test`.

Its examples are derived from its code, so that playing all of them again shows little. What has passed with all of its
examples is recorded in `.cache/properties.json`, under the digest of everything that the test's module imports, directly
or over other modules, with its conftests and the locked requirements. A fresh clone has no record: CI plays all examples.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest
from hypothesis import is_hypothesis_test, settings
from tools.near import Code
from tools.rooms import ROOT

RECORD: Final = ROOT / ".cache" / "properties.json"
SHARE: Final = 3
"""A test plays one in so many of the examples that it asks for; `make properties` plays all of them."""
UNCHANGED_SHARE: Final = 10
"""Of those, a test that has passed with the same code plays one in so many."""
_EVERYWHERE: Final = ("pyproject.toml", "requirements.lock")
_KNOWN: Final = "unchanged.json"
_MARK: Final = "property test"


class Recorder:
    """Tells the processes of a run which tests are unchanged, and records at its end what has passed.

    Args:
        folder: of the run, where its processes find what is unchanged.
        digests: see `digests_of`.
        record: the file with the digest with which each test has passed.
    """

    def __init__(self, folder: Path, digests: Mapping[str, str], record: Path = RECORD) -> None:
        self._digests, self._record = digests, record
        self._passed: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
        folder.mkdir(parents=True, exist_ok=True)
        unchanged = [test for test, digest in self._passed.items() if digest == self._digest(test)]
        (folder / _KNOWN).write_text(json.dumps(unchanged))

    def _digest(self, test: str) -> str | None:
        return self._digests.get(test.partition("::")[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a property test has ended: also called for tests of other processes."""
        if (_MARK, True) not in map(tuple, report.user_properties):
            return
        digest = self._digest(report.nodeid)
        if report.failed:
            self._passed.pop(report.nodeid, None)
        elif report.when == "call" and report.passed and digest is not None:
            self._passed[report.nodeid] = digest

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        self._record.parent.mkdir(exist_ok=True)
        written = self._record.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(self._passed, indent=0, sort_keys=True))
        written.replace(self._record)


def digests_of(code: Code, root: Path = ROOT) -> dict[str, str]:
    """For the file of each test module, relative to the root, the digest of all code that its tests may run."""
    contents = {module: hashlib.sha256(file.read_bytes()).digest() for module, file in code.files.items()}
    everywhere = b"".join((root / name).read_bytes() for name in _EVERYWHERE)
    found: dict[str, str] = {}
    for module, file in code.files.items():
        if module.rpartition(".")[2].startswith("test_"):
            digest = hashlib.sha256(everywhere)
            for each in sorted(_reached({module, *_conftests(file, root)} & code.files.keys(), code)):
                digest.update(each.encode() + contents[each])
            found[file.relative_to(root).as_posix()] = digest.hexdigest()
    return found


def _conftests(file: Path, root: Path) -> Iterable[str]:
    return (".".join((*folder.parts, "conftest")) for folder in file.relative_to(root).parents)


def _reached(modules: Collection[str], code: Code) -> set[str]:
    """The modules and what they import, directly or not."""
    found, waiting = set(modules), list(modules)
    for module in waiting:
        new = code.imports.get(module, set()) - found
        found |= new
        waiting += new
    return found


def deal_examples(items: Iterable[pytest.Item], folder: Path) -> None:
    """Divide the numbers of examples of property tests, but in a search (`make properties`)."""
    if settings.get_current_profile_name() == "fresh":
        return
    unchanged = _unchanged(folder)
    shares: dict[object, int] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not is_hypothesis_test(item.obj):
            continue
        item.user_properties.append((_MARK, True))
        test = getattr(item.obj, "__func__", item.obj)
        share = SHARE * UNCHANGED_SHARE if item.nodeid in unchanged else SHARE
        shares[test] = min(share, shares.get(test, share))  # the cases of one test share their settings
    for test, share in shares.items():
        given = test._hypothesis_internal_use_settings
        divided = settings(given, max_examples=-(-given.max_examples // share))
        test._hypothesis_internal_use_settings = divided


def _unchanged(folder: Path) -> frozenset[str]:
    file = folder / _KNOWN
    return frozenset(json.loads(file.read_text())) if file.exists() else frozenset()

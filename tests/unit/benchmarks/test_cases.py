"""The benchmarks measure what they say: on few rows, engine and peers give the same results."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import child
from benchmarks.cases import Case
from benchmarks.catalogue import CASES


@pytest.mark.parametrize("case", [case for case in CASES if "few-keys" not in case.name], ids=lambda case: case.name)
def test_engine_and_peers_agree(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark whose outputs differ would measure different work."""
    monkeypatch.setattr(child, "TOUCHED_BYTES", 1)
    rows = 3_000
    if case.prepare is not None:
        case.prepare(tmp_path, rows)
    figures = child.run_engine(case, tmp_path, rows)
    assert figures["seconds"] > 0
    assert figures["checkpoints"] >= 1
    for peer in case.peers:
        child.run_peer(case, peer, tmp_path, rows)
    assert child.check(case, tmp_path, rows)


def test_a_wrong_result_is_noticed(tmp_path: Path) -> None:
    """The check fails when a peer's sums are others."""
    case = next(case for case in CASES if case.name == "map")
    for system, price in (("penstock", 2), ("polars", 2), ("python", 3)):
        folder = tmp_path / case.name / system
        folder.mkdir(parents=True)
        (folder / "sums-0.json").write_text(f'{{"rows": 1, "total": {price}}}')
    assert not child.check(case, tmp_path, 1)

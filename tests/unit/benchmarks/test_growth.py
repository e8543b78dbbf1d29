"""The benchmark of growth measures its smallest points, and tells of them in tables and pictures."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import child, curves, growth, growth_points, latency


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is touched, and nothing watched for long."""
    monkeypatch.setattr(child, "TOUCHED_BYTES", 1)
    for name in ("SETTLED_S", "IDLE_S", "IDLE_WITH_CHECKPOINTS_S"):
        monkeypatch.setattr(growth_points, name, 0.2)
    monkeypatch.setattr(growth_points, "WATCHED_S", 2)
    monkeypatch.setattr(growth_points, "SPARE", 2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("name", "size"), [("subtasks", 2), ("keys", 100), ("keys-in-rocksdb", 100), ("jobs", 2)])
def test_a_point_has_all_figures_of_its_curve(name: str, size: int, tmp_path: Path) -> None:
    """Each with the result checked; what the table names is measured."""
    found = growth_points.CURVES[name](size, 2_000, tmp_path)
    assert growth.CURVES[name].columns.keys() <= found.keys()
    assert found.get("cpu_s_per_m", 1) > 0


def test_every_curve_can_be_measured() -> None:
    assert growth.CURVES.keys() == growth_points.CURVES.keys()


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5])
def test_steepness_is_the_exponent(power: float) -> None:
    """Of a straight line through the logarithms."""
    assert growth.steepness([(x, 3 * x**power) for x in (1, 10, 100)]) == pytest.approx(power)
    assert math.isnan(growth.steepness([(1, 1)]))


POINTS = {
    "keys": [
        {"size": 1_000, "runs": [{"cpu_s_per_m": 0.1, "peak_mib": 100, "checkpoints": 1}], "over": ""},
        {"size": 10_000, "runs": [{"cpu_s_per_m": 1.0, "peak_mib": 150, "checkpoints": 2}], "over": ""},
        {"size": 100_000, "runs": [], "over": "more than 20 GiB"},
    ]
}


def test_a_table_has_all_runs_and_what_was_too_much() -> None:
    lines = growth.table("keys", POINTS["keys"]).splitlines()
    assert lines[2] == "| 1,000 | 0.100 | 100 | 1 |"
    assert "more than 20 GiB" in lines[4]
    assert lines[5].startswith("| grows as size to the power of | 1.00 | 0.18 |")


def test_a_picture_has_every_line_and_nothing_from_elsewhere() -> None:
    """And is XML; sizes that were too much are left out."""
    text = growth.pictures({**POINTS, "keys-in-rocksdb": POINTS["keys"]})["growth-keys"]
    root = ElementTree.fromstring(text)
    assert len(root.findall("{*}circle")) == 2 * 2 * 2
    assert "KeyedProcess on rocksdb" in text
    assert "href" not in text


def test_bars_are_as_long_as_their_values() -> None:
    root = ElementTree.fromstring(curves.bars("title", "ms", {"a": {"one": 100, "two": 50}, "b": {"two": 25}}))
    widths = [float(bar.attrib["width"]) for bar in root.findall("{*}rect")[1:]]
    assert widths == [widths[0], widths[0] / 2, widths[0] / 4]


def test_the_picture_of_latencies_is_that_of_the_table() -> None:
    """`python -m benchmarks.latency` draws it anew."""
    assert latency.PICTURE.read_text(encoding="utf-8") == latency.picture(), "run: python -m benchmarks.latency"

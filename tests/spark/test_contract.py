"""The contract of `docs/spark.md`: what is equal embedded and on Spark, line by line of its table."""

from __future__ import annotations

import ast
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from embedded_runs import assert_same, counted, finish, newest, rows
from spark_runs import HERE, rounded, run

from penstock.loading import load_pipeline
from penstock.spark.result import SparkResult

FILE = HERE / "contract_pipelines.py"
DOCS = HERE.parents[1] / "docs" / "spark.md"
SEED = os.environ.get("PENSTOCK_TEST_SEED", "2026")
Row = dict[str, Any]

TESTS = {
    "rows by themselves": "test_rows_by_themselves",
    "`map_batches`": "test_functions_of_batches",
    "aggregates of windows": "test_aggregates_of_windows",
    "aggregates that look at the order of rows": "test_aggregates_that_look_at_the_order",
    "windows that fire more than once": "test_windows_that_are_sent_more_than_once",
    "running results": "test_running_results",
    "changes": "test_changes",
    "`over`": "test_rows_over_rows",
    "`join` within a time or in windows": "test_joins_in_time",
    "`join(as_of=True)`": "test_joins_as_of_a_time",
    "`join` by key alone": "test_regular_joins",
    "`join` with a lookup": "test_joins_with_a_lookup",
    "operators that depend on the order of arrival": "test_what_goes_by_arrival",
    "the same without event time": "test_what_goes_by_arrival_without_event_time",
    "late rows that nobody reads": "test_late_rows_that_nobody_reads",
    "late rows that the pipeline reads": "test_late_rows_that_the_pipeline_reads",
    "late rows of several splits": "test_late_rows_of_several_splits",
    "late rows of a file that is read in parts": "test_large_files.py::test_late_rows_of_parts",
    "`with_event_time` where the source is read": "test_event_time_where_the_source_is_read",
    "`with_event_time` behind an exchange": "test_event_time_behind_an_exchange",
    "rows of a DataFrame": "test_dataframes.py::test_late_rows_have_a_way_of_their_own",
    "rows behind the savepoint that a run starts from": "test_state_runs.py::test_rows_behind_the_savepoint_are_late",
}
"""First cell of a line of the table to its test."""


def test_every_line_of_the_contract_has_its_test() -> None:
    """And every test its line."""
    section = DOCS.read_text().partition("## What is equal")[2].partition("\n## ")[0]
    table = [line.split("|") for line in section.splitlines() if line.startswith("|")]
    lines = [cells[1].split(":")[0].strip() for cells in table[2:]]
    assert lines == list(TESTS)
    for place in TESTS.values():
        file, _, name = place.rpartition("::")
        module = ast.parse((HERE / (file or Path(__file__).name)).read_text())
        assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}, place


class Runs:
    """What the pipelines of the contract wrote, each run once."""

    def __init__(self, spark: Any, root: Path) -> None:
        self._spark, self.root = spark, root
        self._made: dict[str, SparkResult | None] = {}
        print(f"PENSTOCK_TEST_SEED={SEED}")

    def embedded(self, case: str, order: str = "mixed") -> Path:
        out = self.root / f"embedded-{case}-{order}"
        if out.name not in self._made:
            parameters = {"case": case, "out": str(out), "seed": SEED, "order": order}
            finish(load_pipeline(str(FILE), parameters), self.root / f"state-{out.name}")
            self._made[out.name] = None
        return out

    def on_spark(self, case: str) -> tuple[Path, SparkResult]:
        out = self.root / f"spark-{case}"
        if out.name not in self._made:
            parameters = {"case": case, "out": str(out), "seed": SEED}
            self._made[out.name] = run(self._spark, FILE, self.root / f"root-{case}", parameters)
        result = self._made[out.name]
        assert result is not None
        return out, result


@pytest.fixture(scope="module")
def runs(spark, tmp_path_factory) -> Runs:
    return Runs(spark, tmp_path_factory.mktemp("contract"))


def every_row(folder: Path) -> Counter[str]:
    return rounded(counted(rows(folder)))


def of_window(folder: Path) -> Any:
    """The last result of every key and window."""
    return rounded(newest(rows(folder), "key", "window_start"))


def same(runs: Runs, case: str, names: Iterable[str], result: Callable[[Path], Any] = every_row) -> None:
    """Both engines come to this, and to something."""
    embedded, (on_spark, _) = runs.embedded(case), runs.on_spark(case)
    for name in names:
        expected = result(embedded / name)
        assert expected, name
        assert result(on_spark / name) == expected, name


def test_rows_by_themselves(runs):
    same(runs, "kinds", ["rowwise"])


def test_functions_of_batches(runs):
    same(runs, "kinds", ["batches"])


def test_aggregates_of_windows(runs):
    same(runs, "kinds", ["tumbling", "sliding", "cumulative", "sessions"])


def test_aggregates_that_look_at_the_order(runs):
    """What is of one event time may stand in another order; the best value and the bounds of time are the same."""

    def without_ties(folder: Path) -> Any:
        return {key: {**row, "all": sorted(row["all"])} for key, row in of_window(folder).items()}

    same(runs, "kinds", ["ties"], without_ties)
    # Rows of a split that have one event time keep their order: sorted as a stable sort does it.
    embedded, (on_spark, _) = runs.embedded("kinds", "sorted"), runs.on_spark("kinds")
    assert of_window(on_spark / "ties") == of_window(embedded / "ties")


def test_windows_that_are_sent_more_than_once(runs):
    same(runs, "kinds", ["early", "patient"], of_window)


def test_running_results(runs):
    same(runs, "kinds", ["running"], lambda folder: newest(rows(folder), "key"))
    same(
        runs,
        "kinds",
        ["top"],
        lambda folder: {key: row["value"] for key, row in newest(rows(folder), "key", "rank").items()},
    )
    same(runs, "kinds", ["newest"], lambda folder: {key: row["at"] for key, row in newest(rows(folder), "key").items()})


def test_changes(runs):
    """What holds at the end; a row that was taken back last holds no more."""

    def held(*keys: str) -> Callable[[Path], Any]:
        return lambda folder: {
            key: row for key, row in rounded(newest(rows(folder), *keys)).items() if not row["retracted"]
        }

    same(runs, "kinds", ["filtered-updates"], held("key"))
    same(runs, "kinds", ["aggregated-updates"], held("rest"))
    same(runs, "kinds", ["distinct-updates"], held("n"))
    same(runs, "kinds", ["rows-of-one"], held("key"))

    def copies(folder: Path) -> Any:
        left = Counter[str]()
        for row in rows(folder):
            left[row["key"]] += -1 if row["retracted"] else 1
        return +left

    same(runs, "kinds", ["copies-of-rows"], copies)


def test_rows_over_rows(runs):
    same(runs, "kinds", ["over"])
    in_order, (on_spark, _) = runs.embedded("kinds", "sorted"), runs.on_spark("kinds")
    assert_same(every_row(on_spark / "over-rows"), every_row(in_order / "over-rows"), "over-rows")


def test_joins_in_time(runs):
    same(runs, "kinds", ["joined"])


def test_regular_joins(runs):
    """What holds at the end, each row as often as it does."""

    def held(folder: Path) -> Counter[str]:
        found: Counter[str] = Counter()
        for row in rows(folder):
            sign = -1 if row.pop("retracted", False) else 1
            found[json.dumps(row, sort_keys=True)] += sign
        assert min(found.values()) >= 0
        return +found

    same(runs, "kinds", ["regular", "unmet"], held)


def test_joins_with_a_lookup(runs):
    same(runs, "kinds", ["looked-up"])


def test_joins_as_of_a_time(runs):
    """Of several right rows with that event time the last that arrived counts: on Spark the last in order."""
    in_order, (on_spark, _) = runs.embedded("kinds", "sorted"), runs.on_spark("kinds")

    def without_ties(folder: Path) -> Any:
        return Counter((row["key"], row["at"], row["number"], row["other"] is None) for row in rows(folder))

    same(runs, "kinds", ["as-of"], without_ties)
    assert every_row(on_spark / "as-of") == every_row(in_order / "as-of")


def test_what_goes_by_arrival(runs):
    """On Spark it comes to what it comes to embedded over the same rows in order of event time."""
    mixed, in_order, (on_spark, _) = runs.embedded("kinds"), runs.embedded("kinds", "sorted"), runs.on_spark("kinds")
    finals: dict[str, Callable[[Path], Any]] = {"reduce": lambda folder: newest(rows(folder), "key")}
    for name in ("process", "reduce", "first", "apply", "count-windows", "by-rows", "accumulated"):
        result = finals.get(name, every_row)
        assert result(on_spark / name) == result(in_order / name), name
        assert result(on_spark / name) != result(mixed / name), f"{name}: the order of arrival decides nothing here"


def test_what_goes_by_arrival_without_event_time(runs):
    """The rows of one split come in their order."""
    same(runs, "timeless", ["reduce"], lambda folder: newest(rows(folder), "key"))


# -- late rows ----------------------------------------------------------------------------------------------------------


def late_of(events: list[Row], *, size_ms: int, lateness_ms: int = 0, bound_ms: int = 1_000) -> int:
    """How many rows of one split come when their window is over, by a loop; windows of 0 ms end with their row."""
    millisecond, epoch = timedelta(milliseconds=1), datetime(1970, 1, 1, tzinfo=UTC)
    reached, late = epoch, 0
    for event in events:
        at = datetime.fromisoformat(event["at"])
        reached = max(reached, at - bound_ms * millisecond)
        end = at
        if size_ms:
            end = (
                epoch
                + ((at - epoch) // (size_ms * millisecond) + 1) * size_ms * millisecond
                - timedelta(microseconds=1)
            )
        late += end + lateness_ms * millisecond < reached
    return late


def read_of(runs: Runs) -> list[Row]:
    """The rows of the source in their order."""
    parameters = {"case": "late", "seed": SEED, "out": str(runs.root / "unused")}
    read: Any = next(iter(load_pipeline(str(FILE), parameters).plan)).operation
    return [{"at": event.at.isoformat()} for event in read.source.data]


def test_late_rows_that_nobody_reads(runs):
    """They are in the results, and counted by the operator for which they would have been late."""
    out, result = runs.on_spark("late")
    read = read_of(runs)
    expected = {
        "kept": late_of(read, size_ms=1_000),
        "replayed": late_of(read, size_ms=1_000),
        "applied": late_of(read, size_ms=1_000),
        "patient": late_of(read, size_ms=1_000, lateness_ms=1_000),
        "over": late_of(read, size_ms=0),
    }
    unread = [result.total(name, "late_rows_kept") for name in ("unread", "unread-replayed")]
    assert unread[0] == unread[1] > 0
    replayed = [{name: row[name] for name in row if name != "all"} for row in rows(out / "unread-replayed")]
    assert sorted(map(str, rows(out / "unread"))) == sorted(map(str, replayed))
    assert {name: result.total(name, "late_rows_kept") for name in expected} == expected
    assert all(expected.values()), expected
    assert 0 < result.total("sessions", "late_rows_kept") <= expected["over"]
    for name in ("kept", "sessions"):
        assert sum(row["n"] for row in rows(out / name)) == len(read)
    assert len(rows(out / "over")) == len(read)
    assert sum(len(row["numbers"]) for row in rows(out / "applied")) == len(read)
    assert not any(counts.get("late_rows") for counts in result.counts.values())


def test_late_rows_that_the_pipeline_reads(runs):
    """They go where the embedded run sends them, and all else comes to the same."""
    names = ("aside", "aside-sliding", "aside-sessions", "aside-applied", "aside-over", "aside-process")
    same(runs, "late", [*names, *(f"{name}-late" for name in names), "corrected-late"])
    same(runs, "late", ["corrected"], of_window)


def test_late_rows_of_several_splits(runs, spark):
    """On Spark each split is judged by itself; embedded the one that is behind holds the other back."""
    rng = random.Random(SEED)
    folder = runs.root / "in"
    folder.mkdir()
    expected = 0
    for split, ahead in enumerate((0, 3_600)):
        times = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=ahead + n - rng.randrange(5)) for n in range(100)]
        found = [{"number": n, "key": "k", "value": 0, "at": at.isoformat()} for n, at in enumerate(times)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
        expected += late_of(found, size_ms=1_000)
    out, result = runs.on_spark("split")
    assert result.total("kept", "late_rows_kept") == expected > 0
    assert sum(row["n"] for row in rows(out)) == 200
    embedded = sum(row["n"] for row in rows(runs.embedded("split")))
    assert embedded > 200 - expected, "the embedded run, too, judges each split by itself"


def test_event_time_where_the_source_is_read(runs):
    """Watermarks follow the order of the split: what is late is aside, or counted where nobody reads it."""
    same(runs, "retimed", ["aside", "aside-late"])
    _, result = runs.on_spark("retimed")
    assert result.total("near", "late_rows_kept") == late_of(read_of(runs), size_ms=1_000) > 0


def test_event_time_behind_an_exchange(runs):
    """No stream has the order in which rows come there, so nothing is late."""
    out, result = runs.on_spark("retimed")
    assert rows(runs.embedded("retimed") / "far-late")
    assert rows(out / "far-late") == []
    assert sum(row["n"] for row in rows(out / "far")) == len(read_of(runs))
    assert result.total("far", "late_rows_kept") == 0

"""Small files share a task, in order; large ones are read in parts; those of unknown size have a task of their own."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock import Pipeline
from penstock.connectors import console, files, http, kafka, redis
from penstock.connectors.base import EndOfSplit
from penstock.errors import PipelineError, UsageError
from penstock.graph.jobgraph import JobGraph
from penstock.spark.arrival_order import ArrivalOrderAnalysis
from penstock.spark.engine import batch_graph
from penstock.spark.packing import Packing, divided, packs
from penstock.spark.progress import SplitReport, split_reports
from penstock.spark.reading import _open
from penstock.spark.sinks import TaskSinks
from penstock.spark.splits import RunSplit
from penstock.task.sources import SplitEntry

MIB = 1 << 20


def splits(*sizes: int | None) -> list[RunSplit]:
    return [RunSplit(str(number), size_bytes=size) for number, size in enumerate(sizes)]


def test_small_files_share_tasks() -> None:
    """As with Spark: 4 MiB for each file, 128 MiB for a task, as many tasks as run at a time at least."""
    found = packs(splits(*[1_000] * 1_000), 2)
    assert len(found) == 33
    assert [number for pack in found for number in pack] == list(range(1_000))
    assert packs(splits(10, 10, 10, 10), 2) == [range(2), range(2, 4)]


def test_large_files_and_others_have_tasks_of_their_own() -> None:
    assert packs(splits(200 * MIB, 200 * MIB, 10), 2) == [range(1), range(1, 2), range(2, 3)]
    assert packs(splits(None, None), 2) == [range(1), range(1, 2)]
    assert packs(splits(10, None, 10), 1) == [range(1), range(1, 2), range(2, 3)]
    assert packs([], 2) == []


def test_any_splits_are_read_once_and_in_order() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        given = splits(*[chance.choice([None, 0, 1, MIB, 100 * MIB, 300 * MIB]) for _ in range(chance.randrange(40))])
        found = packs(given, chance.randrange(1, 9))
        assert [number for pack in found for number in pack] == list(range(len(given)))


@dataclass
class Row:
    id: int


def test_large_files_are_read_in_parts(tmp_path: Path) -> None:
    """As with Spark: one for each task, none larger than the setting, none much smaller than the open cost."""
    source = files.Source(tmp_path, schema=Row)
    large = RunSplit("a.parquet", size_bytes=1_000 * MIB)
    found = list(divided(source, [large, *splits(10)], Packing().limit([large], 2)))
    assert [split.size_bytes for split in found] == [*[128 * MIB] * 7, 104 * MIB, 10]
    assert [(split.split, split.part) for split in found[:8]] == [("a.parquet", number) for number in range(8)]
    assert [split.position["range"] for split in found[6:8]] == [
        [768 * MIB, 896 * MIB, 1_000 * MIB],
        [896 * MIB, 1_000 * MIB, 1_000 * MIB],
    ]
    assert packs(found, 2) == [*(range(number, number + 1) for number in range(7)), range(7, 9)]
    assert Packing().limit([RunSplit("a", size_bytes=20 * MIB)], 2) == 12 * MIB
    assert Packing().limit([RunSplit("a", size_bytes=5 * MIB)], 2) == 4 * MIB + MIB // 2


def test_what_was_begun_or_has_no_parts_is_read_as_a_whole(tmp_path: Path) -> None:
    source = files.Source(tmp_path, schema=Row)
    begun = SplitEntry("a.jsonl", {"offset": 1}, finished=False, watermark=0, idle=False, generator=None)
    given = [
        RunSplit("a.jsonl", size_bytes=10, former=begun),
        RunSplit("a.jsonl", position={"offset": 1}, size_bytes=10),
        RunSplit("a.jsonl.gz", size_bytes=10),
        RunSplit("a.jsonl", size_bytes=None),
        RunSplit("a.jsonl", size_bytes=4),
    ]
    assert list(divided(source, given, 4)) == given
    archived = RunSplit("a.jsonl", archive=str(tmp_path / "archive"), size_bytes=10)
    assert [split.part for split in divided(source, [archived], 4)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("134217728b", 128 * MIB), ("128MB", 128 * MIB), ("64m", 64 * MIB), ("2g", 2048 * MIB), (" 1K ", 1024)],
)
def test_the_settings_of_the_session_count(text: str, expected: int) -> None:
    conf = {"spark.sql.files.maxPartitionBytes": text, "spark.sql.files.openCostInBytes": "7"}
    session: Any = SimpleNamespace(conf=conf)
    assert Packing.of(session) == Packing(expected, 7)


def test_a_setting_that_is_no_size_is_refused() -> None:
    session: Any = SimpleNamespace(conf={"spark.sql.files.maxPartitionBytes": "much"})
    with pytest.raises(UsageError, match="maxPartitionBytes is 'much', which is no number of bytes"):
        Packing.of(session)


def test_parts_are_reported_as_one_split(tmp_path: Path) -> None:
    """In whatever order tasks end: the file as a stream would have it behind its last row."""
    source = files.Source(tmp_path, schema=Row)

    def report(part: int, **entry: Any) -> dict[str, Any]:
        default = {"watermark": 0, "idle": False, "generator": None}
        found = SplitEntry(split="a.jsonl", finished=True, **default | entry)
        return {"kind": "split", "split": msgspec.to_builtins(SplitReport(found, 5, archive=False, part=part))}

    def position(part: int, offset: int) -> dict[str, Any]:
        return {"offset": offset, "line": 5, "identity": offset, "end": 90, "edges": [part, part + 1]}

    reports = [
        report(2, position=position(2, 90), idle=True),
        report(0, position=position(0, 30), watermark=70),
        report(1, position=position(1, 60), watermark=50),
    ]
    (joined,) = split_reports([*reports, {"kind": "counts"}], source)
    assert joined.rows == 15
    assert joined.entry.position == {"offset": 90, "line": 15, "identity": 90, "end": 90}
    assert (joined.entry.watermark, joined.entry.idle, joined.entry.finished) == (70, False, True)


def test_parts_of_csv_wait_for_a_survey(tmp_path: Path) -> None:
    """Without one the file is read as a whole; what all parts have is told to each of them."""
    source = files.Source(tmp_path, schema=Row)
    given = [RunSplit("a.csv", size_bytes=10), RunSplit("b.jsonl", size_bytes=10), RunSplit("c.csv", size_bytes=10)]
    assert [(split.split, split.part) for split in divided(source, given, 6)] == [
        ("a.csv", 0), ("b.jsonl", 0), ("b.jsonl", 1), ("c.csv", 0),
    ]  # fmt: skip
    asked: list[Any] = []

    def survey(parts: Any) -> list[Any]:
        asked.extend((split.split, position["range"]) for split, position in parts)
        regular = [True, True]
        return [
            [3, 1, 0, 2, regular, ["a", "b"]],
            [5, 2, 6, 9, regular, ["b", "c"]],
            [5, 0, 0, 4, regular, []],
            [7, 0, 6, 9, regular, []],
        ]

    found = list(divided(source, given, 6, survey))
    assert asked == [(name, part) for name in ("a.csv", "c.csv") for part in ([0, 6, 10], [6, 10, 10])]
    assert [split.position.get("survey") for split in found] == [
        [0, 3, 0, ["a", "b"]],
        [3, 8, 1, ["b", "c"]],
        None,
        None,
        [0, 5, 0, []],
        [5, 12, 0, []],
    ]


def test_an_archive_is_read_in_parts(tmp_path: Path) -> None:
    """Each of its rows once, though it is files and what a stream goes on with a topic."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id":{n}}}\n' for n in range(1_000)))
    size = (tmp_path / "a.jsonl").stat().st_size
    source = kafka.Source("orders", schema=Row)
    parts = list(divided(source, [RunSplit("a.jsonl", archive=str(tmp_path), size_bytes=size)], size // 3 + 1))

    async def read(split: RunSplit) -> tuple[list[int], Any]:
        reader, rows = _open(source, split), []
        try:
            while True:
                rows += (await reader.read(5_000)).frame["id"].to_list()
        except EndOfSplit:
            return rows, reader.position()
        finally:
            await reader.close()

    found = [asyncio.run(read(split)) for split in parts]
    assert [row for rows, _ in found for row in rows] == list(range(1_000))

    def report(part: int, position: Any) -> dict[str, Any]:
        entry = SplitEntry("a.jsonl", position, finished=True, watermark=0, idle=False, generator=None)
        return {"kind": "split", "split": msgspec.to_builtins(SplitReport(entry, 5, archive=True, part=part))}

    reports = [report(part, position) for part, (_, position) in enumerate(found)]
    (joined,) = split_reports(reports, source)
    assert joined.entry.position["offset"] == size
    reports[1]["split"]["entry"]["position"]["edges"][0] = "another file"
    with pytest.raises(PipelineError, match="was replaced or rewritten while the run read it in parts"):
        split_reports(reports, source)


def graph_of(sink: Any) -> tuple[JobGraph, ArrivalOrderAnalysis]:
    p = Pipeline("p")
    p.read(files.Source("in", schema=Row)).write(sink)
    graph = batch_graph(p.plan, 2)
    return graph, ArrivalOrderAnalysis(graph, p.plan)


def test_parts_of_a_file_have_one_publisher(tmp_path: Path) -> None:
    """Which has them in order: an older row of a key would replace a newer one."""
    graph, arrival = graph_of(redis.Sink("t:{id}", url="redis://localhost"))
    (vertex,) = graph.vertices
    assert arrival.read_as_a_whole(vertex, keeps=False) == ""
    source = files.Source(tmp_path, schema=Row)
    found = list(divided(source, [RunSplit("a.jsonl", size_bytes=70), RunSplit("b.jsonl", size_bytes=30)], 10))
    sinks = [TaskSinks(vertex, arrival.plan, n, "a", 1, "", print, split.part) for n, split in enumerate(found)]
    assert [each._partition for each in sinks] == [0] * 7 + [1] * 3


@pytest.mark.parametrize(
    "sink",
    [http.Sink("http://h/{id}", method="PUT"), kafka.Sink("t", delivery="at-least-once"), console.Sink()],
)
def test_what_tasks_send_at_once_is_read_in_one(sink: Any) -> None:
    """Tasks would send the parts of a file beside each other."""
    graph, arrival = graph_of(sink)
    said = arrival.read_as_a_whole(graph.vertices[0], keeps=False)
    assert said == "tasks send the rows of a split one after the other to a sink"

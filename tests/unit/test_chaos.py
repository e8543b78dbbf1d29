"""The jobs that are tormented on the real parts have, between them, everything that a graph can have."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, get_args

import pytest
from tests.chaos import beside, cluster, pipeline

from penstock.api.pipeline import DeclaredPipeline
from penstock.coordination.job_catalog import FinishedJob
from penstock.errors import ProtocolError
from penstock.functions.windows.definitions import AsOf, RowWindow, SlidingWindow, TumblingWindow, Within
from penstock.graph import jobgraph
from penstock.loading import load_pipeline
from penstock.plan import operations as of_plans
from penstock.plan.logical import Node
from penstock.plan.operation import Operation
from penstock.plan.operations.join import Join, JoinKind
from penstock.plan.operations.regular_join import RegularJoin
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.plan.operations.window_rows import WindowRows
from penstock.task import operators

Nodes = list[Node]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[DeclaredPipeline]:
    """The tormented one and those beside it."""
    out = tmp_path_factory.mktemp("beside")
    beside.write_files(out / "in")
    jobs = beside.dealt(beside.CASES, beside.JOBS)
    return [pipeline.p, *(load_pipeline(str(beside.FILE), beside.parameters(cases, out)) for cases in jobs)]


@pytest.fixture
def nodes(plans: list[DeclaredPipeline]) -> Nodes:
    return [node for each in plans for node in each.plan]


def named(union: Any) -> Iterator[type[Any]]:
    """The classes of a union of unions."""
    for each in get_args(union):
        yield from named(each) if isinstance(each, UnionType) else (each,)


def every_operation() -> set[type[Operation]]:
    """Those of all modules of the room."""
    for module in pkgutil.iter_modules(of_plans.__path__, f"{of_plans.__name__}."):
        importlib.import_module(module.name)
    waiting = [Operation]
    for each in waiting:
        waiting += each.__subclasses__()
    found = {each for each in waiting if not inspect.isabstract(each)}
    assert len(found) > 30
    return found


def test_every_operation_is_in_one(nodes: Nodes) -> None:
    assert every_operation() - {type(node.operation) for node in nodes} == set()


def test_every_operator_is_in_one(nodes: Nodes) -> None:
    """Those that are built, whatever they are called in the graph."""
    assert operators_of(operators) - set(built(nodes)) == set()


def operators_of(module: ModuleType) -> set[str]:
    """What `build_operator` can give."""
    tree = ast.parse(inspect.getsource(module.build_operator))
    found = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(operators.__name__)
        for alias in node.names
    }
    assert len(found) > 30
    return found


def built(nodes: Nodes) -> Iterator[str]:
    for node in nodes:
        with suppress(ProtocolError):  # structure
            yield type(operators.build_operator(node)).__name__


def test_every_kind_of_window_and_of_join_is_in_one(nodes: Nodes) -> None:
    operations = [node.operation for node in nodes]
    windows = {type(each.window) for each in operations if isinstance(each, WindowAggregate | WindowRows)}
    assert set(named(RowWindow)) - windows == set()
    joins = [each for each in operations if isinstance(each, Join)]
    assert {Within, AsOf, TumblingWindow, SlidingWindow} <= {type(each.time) for each in joins}
    kinds = set(get_args(JoinKind))
    assert {each.how for each in joins} == kinds
    assert {each.how for each in operations if isinstance(each, RegularJoin)} == kinds


def test_rows_go_every_way(plans: list[DeclaredPipeline]) -> None:
    """From subtask to subtask."""
    graphs = [jobgraph.build_job_graph(each.plan, cluster.PARALLELISM) for each in plans]
    ways = {edge.ship for graph in graphs for vertex in graph.vertices for edge in vertex.inputs}
    assert ways == set(get_args(jobgraph.Ship))


def test_every_case_is_in_one_job_and_no_job_is_much_larger_than_another(
    plans: list[DeclaredPipeline], tmp_path: Path
) -> None:
    dealt = beside.dealt(beside.CASES, beside.JOBS)
    assert sorted(case.name for cases in dealt for case in cases) == sorted(case.name for case in beside.CASES)
    graphs = [jobgraph.build_job_graph(each.plan, cluster.PARALLELISM) for each in plans[1:]]
    assert max(len(graph.vertices) for graph in graphs) <= 36


def beside_nothing(
    monkeypatch: pytest.MonkeyPatch, most: int | None, *, ended: bool
) -> tuple[beside.Beside, list[str]]:
    """Jobs of which each has ended as soon as one looks, or none ever; and those that were waited for."""
    running = beside.Beside(None, 3, most)  # pyright: ignore[reportArgumentType] # nothing is asked of the cluster
    waited_for: list[str] = []

    async def begin() -> None:
        running._begun += 1
        running._job = running._name

    async def end() -> None:
        waited_for.append(running._job)
        running._job = ""

    async def has_ended() -> bool:
        return ended

    monkeypatch.setattr(running, "_begin", begin)
    monkeypatch.setattr(running, "end", end)
    monkeypatch.setattr(running, "_has_ended", has_ended)
    return running, waited_for


@pytest.mark.parametrize("faults", [1, 3, 4, 5, 11])
async def test_each_job_is_there_for_a_fault(faults: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are as many faults as jobs, however long each takes."""
    running, _ = beside_nothing(monkeypatch, None, ended=False)
    there: list[str] = []
    for left in range(faults, 0, -1):
        await running.go_on(left)
        there.append(running._job)
    assert len(set(there)) == min(faults, beside.JOBS)
    assert all(there)


async def test_no_more_jobs_are_begun_than_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon they end."""
    running, ended = beside_nothing(monkeypatch, 2, ended=True)
    for left in range(5, 0, -1):
        await running.go_on(left)
    assert len(set(ended)) == len(ended) == 2
    assert not running._job


class Ended:
    """A cluster on which the job has ended, somehow."""

    def __init__(self, folder: Path, state: str) -> None:
        self.folder = folder
        self._state = state

    async def job(self, _: str) -> None:
        return None

    async def finished(self, job: str) -> FinishedJob:
        return FinishedJob(job, "together", self._state)


@pytest.mark.parametrize(
    ("wanted", "state", "wrong"),
    [
        ({"n": 1}, "FINISHED", None),
        ({"n": 2}, "FINISHED", r"tumbling in .*: 1 too many, e.g. .*n.*1.*; 1 missing, e.g. .*n.*2"),
        ({"n": 1}, "FAILED", "the job beside, tumbling, has not finished: .*FAILED"),
    ],
)
async def test_what_a_job_has_written_is_compared(
    wanted: dict[str, int], state: str, wrong: str | None, tmp_path: Path
) -> None:
    ended: Any = Ended(tmp_path, state)
    running = beside.Beside(ended, 3)
    case = next(case for case in beside.CASES if case.name == "tumbling")
    running._jobs, running._begun, running._job = [(case,)] * beside.JOBS, 1, "j"
    running._expected = {"tumbling": {"tumbling": Counter([json.dumps(wanted)])}}
    written = running._out / "tumbling" / "part-0"
    written.parent.mkdir(parents=True)
    written.write_text('{"n": 1}\n')
    with nullcontext() if wrong is None else pytest.raises(cluster.ChaosError, match=wrong):
        await running.end()
    assert list(running.ended) == (["tumbling"] if wrong is None else [])

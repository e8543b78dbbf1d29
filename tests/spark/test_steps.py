"""A job in steps: whatever dies, rows come out once, as in one run; nothing grows; it moves to a stream and back."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from embedded_runs import counted, finish, rows
from pipelines import ROWS
from spark_runs import rounded
from state_runs import STATE_FILE, begin_embedded, continue_embedded, interrupt_embedded, merged, write_part

from penstock import savepoint
from penstock.adapters.directory.claim import claimed
from penstock.adapters.system_clock import SystemClock
from penstock.errors import CorruptDataError, ExternalError, PenstockError, UsageError
from penstock.loading import load_pipeline
from penstock.ports import Clock
from penstock.protocol.messages import OperatorHandles
from penstock.protocol.restarts import FixedDelay, NoRestart, RestartStrategy
from penstock.savepoint.places import LocalPlace, StoredPlace
from penstock.spark import engine, step_folder, taskwork
from penstock.spark.code import pack_code
from penstock.spark.committing import RunManifest, RunManifests
from penstock.spark.continuous import ContinuousOptions, ContinuousRun, StepDone, StepWatch
from penstock.spark.splits import RunBeginnings
from penstock.spark.staging import staging_folder
from penstock.spark.state import Keeping
from penstock.spark.state_passthrough import StatePassthrough
from penstock.spark.step_folder import Stopped

pytestmark = pytest.mark.timeout(300)
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
POINTS: list[tuple[Any, str]] = [
    (RunBeginnings, "fix"),
    (engine, "prepare_sinks"),
    (engine, "staged_parts"),
    (RunManifests, "create"),
    (engine, "commit"),
    (RunManifests, "note_committed"),
    (engine, "seal"),
    (step_folder.StepFolder, "note_sealed"),
    (step_folder.StepFolder, "clean"),
    (step_folder.StepFolder, "_remove_stored"),
    (shutil, "rmtree"),
]
"""What a driver does in a step, in this order; it dies in its place."""


NO_RESTART = NoRestart()
STAGING = "s3://bucket/staged"


class Killed(BaseException):
    """The process is gone, as far as a job can tell."""


class Rounds(threading.Event):
    """Asks for the end after so many waits, which take no time."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._left = rounds

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        if self._left <= 0:
            self.set()
        return self.is_set()


class Job:
    """A pipeline over files that grow in number, in steps without Spark."""

    def __init__(
        self,
        session: Any,
        root: Path,
        case: str = "tumbling",
        *,
        restart: RestartStrategy = NO_RESTART,
        parallelism: int = 2,
        staging: str | None = None,
    ) -> None:
        self.root, self._session, self._restart, self._parallelism = root, session, restart, parallelism
        self.staging = staging
        self.given = {"case": case, "in": str(root / "in"), "out": str(root / "out"), "marker": str(root / "marker")}
        self.folder = root / "steps"
        self.done: list[StepDone] = []
        self.failed: list[tuple[int, PenstockError, int]] = []
        self.warned: list[str] = []

    def run(self, rounds: int = 1, *, start: Path | None = None, fresh: bool = False) -> Stopped:
        """As one process, which looks so many times whether there is something to do."""
        return self.made(start=start, fresh=fresh).run(Rounds(rounds))

    def made(
        self, *, start: Path | None = None, fresh: bool = False, clock: Clock | None = None, every_us: int = 1_000
    ) -> ContinuousRun:
        given = str(start) if start is not None else None
        options = ContinuousOptions(
            every_us, self.folder, self._restart, self._parallelism, given, staging=self.staging, fresh=fresh
        )
        watch = StepWatch(self.done.append, lambda *failure: self.failed.append(failure), self._warn)
        pipeline, code = load_pipeline(str(STATE_FILE), self.given), pack_code(str(STATE_FILE), self.given)
        return ContinuousRun(pipeline, code, options, clock or SystemClock(), new_id, lambda: self._session, watch)

    def _warn(self, text: str) -> None:
        if "no row has come from" not in text:
            self.warned.append(text)

    def feed(self, name: str, first: int, end: int) -> None:
        write_part(self.root / "in", name, first, end)

    def found(self) -> Counter[str]:
        return rounded(counted(rows(self.root / "out")))


def in_one_run(root: Path, case: str = "tumbling", end: int = ROWS) -> Counter[str]:
    """What a streaming run over everything comes to: it also closes what steps leave open."""
    write_part(root / "all", "", 0, end)
    given = {"case": case, "in": str(root / "all"), "out": str(root / "one"), "marker": str(root / "marker")}
    finish(load_pipeline(str(STATE_FILE), given), root / "one-state")
    return rounded(counted(rows(root / "one")))


def to_the_end(job: Job) -> Counter[str]:
    """What the steps have made visible, and what a stream that goes on from their savepoint adds."""
    stopped = job.made().stopped()
    assert stopped.undone is None
    assert stopped.savepoint is not None
    assert stopped.savepoint.startswith(job.staging or str(job.folder))
    given = job.given | {"out": str(job.root / "streamed")}
    continue_embedded(load_pipeline(str(STATE_FILE), given), stopped.savepoint, job.root / "job", 2)
    return rounded(counted(rows(merged([job.root / "out", job.root / "streamed"], job.root / "whole"))))


@pytest.mark.acceptance
@pytest.mark.parametrize("staging", [None, STAGING])
@pytest.mark.parametrize("case", ["tumbling", "sessions"])
def test_a_driver_that_dies_anywhere_loses_and_doubles_nothing(case, staging, local, bucket, tmp_path, monkeypatch):
    """Every step is carried on under its id by the next process, and reads what it was to read."""
    rng = random.Random(f"{SEED} {case}")
    kills = 0
    print(f"repeat with PENSTOCK_TEST_SEED={SEED}")
    job, cuts = Job(local, tmp_path, case, staging=staging), sorted(rng.sample(range(100, ROWS), 5))
    for number, (first, end) in enumerate(zip([0, *cuts], [*cuts, ROWS], strict=True)):
        job.feed(f"p{number}-", first, end)
        for _ in range(rng.randrange(4)):
            place, name = rng.choice(POINTS)
            with monkeypatch.context() as patch:
                patch.setattr(place, name, killed)
                try:
                    job.run()
                except Killed:
                    kills += 1
        job.run()
    assert kills
    assert len({path.relative_to(bucket).parts[2] for path in bucket.rglob("*.state")}) == (2 if staging else 0)
    assert to_the_end(job) == in_one_run(tmp_path, case)


def test_what_a_driver_fixed_is_read_by_the_next_one(local, tmp_path, monkeypatch):
    """Rows that come between the death and the repetition belong to the step behind it."""
    job = Job(local, tmp_path)
    job.feed("a-", 0, 1_000)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "staged_parts", killed)
        with pytest.raises(Killed):
            job.run()
    job.feed("b-", 1_000, 1_500)
    job.run(2)
    assert [(step.number, step.rows_in) for step in job.done] == [(1, 1_000), (2, 500)]
    written = [path.name[: len("part-00000001")] for path in sorted((tmp_path / "out").glob("part-*"))]
    assert sorted(set(written)) == ["part-00000001", "part-00000002"], "the order of names is that of steps"


def new_id() -> str:
    return uuid.uuid4().hex


def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.acceptance
@pytest.mark.parametrize("staging", [None, STAGING])
def test_nothing_grows_with_the_number_of_steps(staging, local, bucket, tmp_path, monkeypatch):
    """After many steps there are as many files as after four, apart from what the sink has written; in the store, too,
    where they are savepoints and nothing else."""
    steps = 200 if staging is None else 40
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the time of the test
    job = Job(local, tmp_path, parallelism=1, staging=staging)
    trails: list[int] = []
    made = job.made()
    for number in range(steps):
        job.feed(f"{number}-", number * 10, number * 10 + 10)
        made.run(Rounds(1))
        for path in (tmp_path / "in").iterdir():  # what is to be read next has another name
            path.unlink()
        kept = [path for path in (tmp_path / "steps").rglob("*") if path.is_file()]
        stored = [path for path in bucket.rglob("*") if path.is_file()]
        trails.append(len(kept) + len(list((tmp_path / "out").glob(".staging/*"))) + len(stored))
    assert len(job.done) == steps
    numbers = {int(path.relative_to(bucket).parts[2]) for path in stored}
    assert numbers == ({steps - 1, steps} if staging else set())
    assert any("savepoint" in path.parts for path in kept) == (staging is None)
    assert set(trails[4:]) == {trails[4]}
    assert sorted(path.name for path in (tmp_path / "steps").glob("0*")) == [f"{steps - 1:08d}", f"{steps:08d}"]


def test_a_job_whose_savepoints_go_elsewhere_from_now_on_goes_on(local, bucket, tmp_path):
    """A step that began in the folder ends there, the next one leaves its state in the store; and back again. What is
    over goes in either place."""
    job = Job(local, tmp_path)
    job.feed("a-", 0, 1_000)
    for number, staging in enumerate([None, STAGING, STAGING, None, None], 1):
        job.staging = staging
        stopped = job.run()
        assert stopped.done == number
        assert stopped.savepoint is not None
        assert stopped.savepoint.startswith(staging or str(job.folder))
        job.feed(f"{number}-", 1_000 + number * 100, 1_100 + number * 100)
    assert [path for path in bucket.rglob("*") if path.is_file()] == []
    assert [step.rows_in for step in job.done] == [1_000, 100, 100, 100, 100]


def test_a_step_that_was_given_up_leaves_nothing_in_the_store(local, bucket, tmp_path, monkeypatch):
    """Another job began in its place; two steps later what it had written is gone."""
    job = Job(local, tmp_path, staging=STAGING)
    job.feed("a-", 0, 1_000)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "staged_parts", killed)
        with pytest.raises(Killed):
            job.run()
    assert any("00000001" in path.parts for path in bucket.rglob("*.state"))
    rows = RunManifests(job.folder / "00000001", STAGING).staging.removeprefix("s3://bucket/")
    (bucket / rows / ".staging").mkdir(parents=True)
    (bucket / rows / ".staging" / "n1-write--0-x.arrow").touch()
    job.run(fresh=True)
    for number in range(2):
        job.feed(f"{number}-", 1_000 + number, 1_001 + number)
        job.run()
    assert {path.relative_to(bucket).parts[2] for path in bucket.rglob("*") if path.is_file()} == {
        "00000003",
        "00000004",
    }


def test_a_store_that_is_away_costs_repetitions_and_then_the_cause_is_told(local, bucket, tmp_path, monkeypatch):
    """As of a disk; when it is back the same step is next."""
    job = Job(local, tmp_path, restart=FixedDelay(attempts=2, delay_ms=5), staging=STAGING)
    job.feed("a-", 0, 100)
    job.run()
    job.feed("b-", 100, 200)
    with monkeypatch.context() as patch:
        for name in ("put", "sizes", "read", "write"):
            patch.setattr(StoredPlace, name, fail)
        with pytest.raises(ExternalError, match="the disk is full"):
            job.run(10)
        stopped = job.made().stopped()
    assert (stopped.done, stopped.undone, stopped.decided) == (1, None, False)
    job.run()
    assert [step.number for step in job.done] == [1, 2]


def test_what_cannot_be_removed_costs_no_step(local, bucket, tmp_path, monkeypatch):
    """The store refuses to delete: it is said, steps go on, and what is over goes when it can be removed."""
    job = Job(local, tmp_path, staging=STAGING)
    with monkeypatch.context() as patch:
        patch.setattr(StoredPlace, "remove", fail)
        for number in range(4):
            job.feed(f"{number}-", number * 100, number * 100 + 100)
            job.run()
    assert [step.number for step in job.done] == [1, 2, 3, 4]
    assert job.warned == ["the disk is full"] * 2, "once per process"
    job.run()
    assert {path.relative_to(bucket).parts[2] for path in bucket.rglob("*") if path.is_file()} == {
        "00000003",
        "00000004",
    }
    assert list(job.folder.glob("removed-*")) == []


def test_what_is_in_the_way_of_a_removal_is_removed(local, tmp_path):
    """A folder of the same step, half removed."""
    job = Job(local, tmp_path)
    for number in range(5):
        job.feed(f"{number}-", number * 100, number * 100 + 100)
        (job.folder / f"removed-{number:08d}").mkdir(parents=True)
        (job.folder / f"removed-{number:08d}/part").touch()
        job.run()
    assert [step.number for step in job.done] == [1, 2, 3, 4, 5]
    assert job.warned == []
    assert list(job.folder.glob("removed-*")) == []
    assert job.found() <= in_one_run(tmp_path, end=500)


def test_nothing_is_left_in_a_folder_that_all_machines_share(tmp_path):
    """Of steps that staged rows there, other than what was never a part."""
    steps = step_folder.StepFolder(tmp_path / "steps", str(tmp_path / "shared"))
    for number in range(1, 6):
        steps.of(number).mkdir(parents=True)
        runs = RunManifests(steps.of(number), str(tmp_path / "shared"))
        staged = staging_folder(runs.staging)
        staged.open()
        staged.writable("x--0-a-0.arrow").touch()  # pyright: ignore[reportAttributeAccessIssue]
        (steps.of(number) / "savepoint").mkdir()
        for name in ("run.begin", "run.committed", "savepoint/savepoint.json"):
            (steps.of(number) / name).touch()
        (steps.of(number) / "run.begin").write_text("{}")
        steps.clean()
    assert len(list((tmp_path / "shared").iterdir())) == len(list(steps.path.iterdir())) == 2


def test_one_process_at_a_time_has_a_job(local, tmp_path):
    """A second one is told who has it. One that was thought dead cannot decide a step that is over and cleared away."""
    job = Job(local, tmp_path)
    job.feed("a-", 0, 100)
    with claimed(job.folder), pytest.raises(UsageError, match="in use by another run"):
        job.run()
    job.run()
    shutil.rmtree(job.folder / "00000001")
    with pytest.raises(ExternalError, match="cannot write"):
        RunManifests(job.folder / "00000001").create(RunManifest("x-00000001", "tumbling", {}, {}))


def test_steps_without_the_record_of_their_job_are_not_done_again(local, tmp_path):
    """A folder that lost its job.json would otherwise begin with nothing, and publish everything once more."""
    job = Job(local, tmp_path)
    job.feed("a-", 0, 100)
    job.run()
    (job.folder / "job.json").unlink()
    with pytest.raises(CorruptDataError, match=r"job.json, .* is not there"):
        job.run()
    job.feed("b-", 100, 200)
    shutil.rmtree(tmp_path / "out")  # a job that begins anew does not write beside the rows of another
    job.run(fresh=True)
    assert [step.number for step in job.done] == [1, 2]


def test_a_clock_that_goes_back_keeps_no_split_awake(local, tmp_path):
    """How long a split has been silent is not asked of the wall clock; nor is a wait too long for the system refused."""
    job = Job(local, tmp_path)
    clock = SystemClock()
    made = job.made(clock=_SetBack(), every_us=10**17)
    made._silence.with_awake_splits = lambda beginning, now_us: seen.append(now_us) or beginning
    seen: list[int] = []
    before = clock.monotonic_us()
    job.feed("a-", 0, 100)
    stop = threading.Event()
    waited = threading.Thread(target=made.run, args=(stop,))
    waited.start()
    deadline = time.monotonic() + 60
    while not job.done and time.monotonic() < deadline:
        stop.wait(0.01)
    stop.set()
    waited.join(60)
    assert len(job.done) == 1
    assert before <= seen[0] <= clock.monotonic_us()


class _SetBack(SystemClock):
    """Somebody has set it to 1970."""

    def now_us(self) -> int:
        return 0


def test_a_step_that_fails_is_repeated_and_then_the_cause_is_told(local, tmp_path, monkeypatch):
    """Three times at most here; what is done stays done, and the same step is next."""
    job = Job(local, tmp_path, restart=FixedDelay(attempts=2, delay_ms=5))
    job.feed("a-", 0, 100)
    job.run()
    job.feed("b-", 100, 200)
    with monkeypatch.context() as patch:
        patch.setattr(RunManifests, "create", fail)
        with pytest.raises(ExternalError, match="the disk is full"):
            job.run(10)
    assert [(number, delay_ms) for number, _, delay_ms in job.failed] == [(2, 5), (2, 5)]
    stopped = job.made().stopped()
    assert (stopped.done, stopped.undone, stopped.decided) == (1, 2, False)
    job.run()
    assert [step.number for step in job.done] == [1, 2]


def fail(*_: object) -> None:
    raise ExternalError("the disk is full")


def test_rows_behind_what_a_step_has_come_to_are_late(local, tmp_path):
    """Event time is handed on from step to step; it does not end with one."""
    job = Job(local, tmp_path)
    job.feed("a-", 0, 2_000)
    job.run()
    open_windows = job.made().stopped().savepoint
    assert open_windows is not None
    assert savepoint.read(open_windows).table("w").height
    job.feed("late-", 0, 50)
    job.run()
    assert job.done[1].rows_in == 50
    assert job.done[1].result.total("w", "late_rows") == 50


@pytest.mark.acceptance
@pytest.mark.parametrize("case", ["running", "reduced", "ranked", "keyed-process"])
def test_operators_have_the_state_of_keys_that_something_happens_to(case, local, tmp_path, monkeypatch):
    """Steps of a few rows; what comes of them, and what they leave, is the same as if operators had everything."""
    passed: list[StatePassthrough] = []
    merge_back = StatePassthrough.merge_back
    monkeypatch.setattr(
        StatePassthrough, "merge_back", lambda it, *given: (passed.append(it), merge_back(it, *given))[1]
    )
    left: list[tuple[Counter[str], dict[str, Counter[str]]]] = []
    for least_bytes in (0, 1 << 40):
        monkeypatch.setattr(taskwork, "LEAST_BYTES", least_bytes)
        job = Job(local, tmp_path / str(least_bytes), case)
        for number, (first, end) in enumerate(itertools.pairwise([0, 400, 403, 404, 409, 1_202])):
            job.feed(f"p{number}-", first, end)
            stopped = job.run()
        assert stopped.savepoint is not None
        left.append((job.found(), _tables(stopped.savepoint)))
        assert len(job.done) == 5
    assert any(each.whole or each.groups for each in passed), "operators had everything"
    assert left[0] == left[1]


@pytest.mark.parametrize(("case", "staging"), [("keyed-process", None), ("running", STAGING)])
def test_state_that_is_handed_on_in_runs_is_that_of_whole_savepoints(
    case, staging, local, bucket, tmp_path, monkeypatch
):
    """Few rows a step, at changing parallelism; drivers and tasks die anywhere. Both savepoints that are kept are whole,
    and a stream goes on from the newest one."""
    rng = random.Random(f"{SEED} {case}")
    print(f"repeat with PENSTOCK_TEST_SEED={SEED}")
    monkeypatch.setattr(taskwork, "LEAST_BYTES", 0)
    places: list[tuple[Any, str]] = [
        *POINTS, (Keeping, "keep"), (Keeping, "snapshot"), (LocalPlace, "put"), (LocalPlace, "adopt"),
        (StoredPlace, "put"), (StoredPlace, "adopt"),
    ]  # fmt: skip
    job, whole = Job(local, tmp_path / "runs", case, staging=staging), Job(local, tmp_path / "whole", case)
    runs, wholes = job.made(), whole.made()
    deltas, kills, before = 0, 0, dict[str, Counter[str]]()
    cuts = [0, 900, *sorted(rng.sample(range(901, 1_000), 6))]
    for number, (first, end) in enumerate(itertools.pairwise(cuts)):
        if number == 4:
            job._parallelism = whole._parallelism = 3
            runs, wholes = job.made(), whole.made()
        job.feed(f"p{number}-", first, end)
        whole.feed(f"p{number}-", first, end)
        for _ in range(rng.randrange(3)):
            place, name = rng.choice(places)
            with monkeypatch.context() as patch:
                patch.setattr(place, name, killed)
                try:
                    runs.run(Rounds(1))
                except Killed:
                    kills += 1
        stopped = runs.run(Rounds(1))
        with monkeypatch.context() as patch:
            patch.setattr(taskwork, "kept_runs", lambda *_: 0)
            expected = _tables(wholes.run(Rounds(1)).savepoint)
        assert _tables(stopped.savepoint) == expected
        deltas += any(part.deltas for part in _kept(stopped.savepoint))
        if number:
            assert _tables(runs._folder.savepoint(number).address) == before
        before = expected
    assert kills
    assert deltas >= 2
    assert job.found() == whole.found()
    job.feed("rest-", cuts[-1], ROWS)
    found, expected_end = to_the_end(job), in_one_run(tmp_path, case)
    if case == "running":  # how often a total is sent depends on how rows come together
        assert _last_totals(found) == _last_totals(expected_end)
    else:
        assert found == expected_end


def _last_totals(found: Counter[str]) -> dict[str, dict[str, Any]]:
    """Of every key the row that counts all of its rows."""
    rows = sorted((json.loads(row) for row in found), key=lambda row: row["n"])
    return {row["key"]: row for row in rows}


def _kept(address: str | None) -> list[OperatorHandles]:
    assert address is not None
    subtasks = savepoint.read(address).manifest.subtasks.values()
    return [part for some in subtasks for each in some.values() for part in each.operators.values()]


def _tables(address: str | None) -> dict[str, Counter[str]]:
    assert address is not None
    kept = savepoint.read(address)
    return {each.uid: _without_clock(kept.table(each.uid)) for each in kept.operators if each.keys.fields}


def _without_clock(table: pl.DataFrame) -> Counter[str]:
    """The rows of a state, without when they were written by the clock on the wall."""
    return Counter(map(str, table.drop("__written_us", "written", strict=False).rows()))


def test_the_job_moves_to_a_stream_and_back(local, tmp_path):
    """From the savepoint of a step; and a new job in the same folder from the savepoint that the stream leaves."""
    job = Job(local, tmp_path)
    job.feed("a-", 0, 1_000)
    stopped = job.run()
    assert stopped.savepoint is not None
    job.feed("b-", 1_000, 2_000)
    streamed = load_pipeline(str(STATE_FILE), job.given | {"out": str(tmp_path / "between"), "rate": "400"})
    directory = tmp_path / "job"
    begin_embedded(streamed, stopped.savepoint, directory)
    interrupt_embedded(streamed, directory, 2, 300, tmp_path / "back", resume=True)
    job.feed("c-", 2_000, ROWS)
    with pytest.raises(UsageError, match="leave --from-savepoint out"):
        job.run(start=tmp_path / "back")
    job.run(start=tmp_path / "back", fresh=True)
    assert [step.number for step in job.done] == [1, 2]
    between = list((tmp_path / "between").glob("part-*"))
    assert between
    for part in between:
        part.rename(tmp_path / "out" / f"part-between-{part.name}")
    assert to_the_end(job) == in_one_run(tmp_path)

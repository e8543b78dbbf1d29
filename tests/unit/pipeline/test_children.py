"""The processes of attempts: started, found again, ended; with a small program in place of spark-submit."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import msgspec
import pytest
from small_pipeline import until

from penstock.platform.processes import identify, is_alive, kill, marked
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import RunOptions
from penstock.runs.run_log import AttemptBegan, AttemptLost, RunHistory, RunOutcome, Submitted, history_of
from penstock.runs.run_views import RunProgress
from penstock.settings import ClusterSettings, RedisSettings, Secret
from penstock.spark.submitted_steps import _settings
from penstock.spark.submitting import AttemptFolder, AttemptSpec, submit_command, submit_environment
from penstock_pipeline import children as children_module
from penstock_pipeline.children import Children

SETTINGS = ClusterSettings("test", redis=RedisSettings(Secret("redis://:hidden@127.0.0.1/0")))
DEFAULTS = RunOptions(master="local[2]", conf={"spark.ui.enabled": "false", "spark.executor.memory": "1g"})
SUBMITTED = Submitted(
    run="nightly", request="r1", name="flights", graph={}, artifact=Artifact("artifacts/a.zip", "a", "flights.py"),
    options=RunOptions(parallelism=2, conf={"spark.executor.memory": "2g"}, native=False),
)  # fmt: skip
WAITS = "import os, subprocess, sys, time; print('started', flush=True); {more}; time.sleep(600)"
WITH_CHILD = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


class Attempts:
    """Children in one folder, whose processes are ended with the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self.children = self.service()

    def service(self) -> Children:
        """What a service that is started again has."""
        return Children(self.folder, "a new place", SETTINGS, DEFAULTS)

    def start(self, program: str) -> RunHistory:
        """Start the first attempt; the process runs this Python program."""

        def command(folder: AttemptFolder, spec: AttemptSpec) -> list[str]:
            return [sys.executable, "-c", program]

        self._monkeypatch.setattr(children_module, "submit_command", command)
        attempt = AttemptBegan(attempt=1, place=self.children.place, host="one")
        history = history_of([SUBMITTED, attempt])
        self.children.start(SUBMITTED, attempt, b"zip")
        return history

    @property
    def files(self) -> AttemptFolder:
        """Of the first attempt."""
        return AttemptFolder(self.folder / "runs" / "nightly" / "1")

    def processes(self) -> int:
        """How many carry the mark."""
        return len(marked((self.files.path / "mark").read_text()))


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Attempts]:
    """In a folder that no run has used."""
    found = Attempts(tmp_path, monkeypatch)
    yield found
    for process in marked(str(tmp_path)):
        asyncio.run(kill(process))


def says(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return condition()

    return ask


async def test_an_attempt_is_found_again_by_the_next_service(attempts: Attempts) -> None:
    """With its progress, its outcome and its last lines; also if its number was never noted."""
    history = attempts.start(WAITS.format(more="pass"))
    await until(says(lambda: "started" in attempts.children.output(history)), "it prints")
    (attempts.files.path / "process.json").unlink()
    again = attempts.service()
    assert again.place == attempts.children.place
    facts = again.facts(history)
    assert (facts.alive, facts.outcome, facts.decided) == (True, None, False)
    assert (attempts.files.path / "process.json").exists()
    attempts.files.write_outcome(RunOutcome("FAILED", "no such column"))
    again.stop(history, forced=False)
    await until(says(lambda: not again.facts(history).alive), "it has ended")
    facts = again.facts(history)
    assert facts.outcome == RunOutcome("FAILED", "no such column")
    assert facts.last_lines == "started"
    again.forget_others({"nightly"})
    assert attempts.files.path.exists()
    again.forget_others({"another"})
    assert not attempts.files.path.exists()


async def test_nothing_of_a_dead_attempt_is_left(attempts: Attempts) -> None:
    """Processes in groups of their own, as Python workers are, end too, before the attempt counts as over."""
    history = attempts.start(WAITS.format(more=WITH_CHILD))
    await until(says(lambda: attempts.processes() == 2), "both run")
    [leader] = [process for process in marked(str(attempts.folder)) if os.getsid(process.pid) == process.pid]
    await kill(leader)
    await until(says(lambda: not attempts.children.facts(history).alive), "it has ended")
    assert attempts.processes() == 0


async def test_what_ignores_the_first_signal_is_killed(attempts: Attempts) -> None:
    """With all that it has started."""
    history = attempts.start(WAITS.format(more=f"{STUBBORN}; {WITH_CHILD}"))
    await until(says(lambda: attempts.processes() == 2), "both run")
    [leader] = [process for process in marked(str(attempts.folder)) if os.getsid(process.pid) == process.pid]
    attempts.children.stop(history, forced=False)
    assert is_alive(leader)
    attempts.children.stop(history, forced=True)
    await until(says(lambda: attempts.processes() == 0), "all have ended")


async def test_of_a_job_in_steps_the_driver_alone_is_told_to_end(attempts: Attempts) -> None:
    """Its step needs what the driver has started; a run of the same name there is decides nothing about it."""
    inherited = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    history = attempts.start(WAITS.format(more=inherited))
    live = msgspec.structs.replace(SUBMITTED, options=RunOptions(every_us=1_000_000))
    history = history_of([live, *history.records[1:]])
    await until(says(lambda: attempts.processes() == 2), "both run")
    attempts.children.stop(history, forced=False)
    await until(says(lambda: attempts.processes() == 1), "the driver has ended")
    (attempts.folder / "steps" / "nightly").mkdir(parents=True)
    (attempts.folder / "steps" / "nightly" / "nightly.json").write_text("of something else")
    attempts.files.write_progress(RunProgress(at="step 4: ...", step=4))
    await until(says(lambda: not attempts.children.facts(history).alive), "what it left is gone")
    facts = attempts.children.facts(history)
    assert (facts.decided, facts.step) == (False, 4)


async def test_a_driver_of_steps_is_told_once_to_end_by_all_services(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal would cancel the step that is to be finished."""
    counts = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))"
    waits = "import time; print('started', flush=True); [time.sleep(0.05) for _ in range(12_000)]"
    history = attempts.start(f"{counts}; {waits}")
    live = msgspec.structs.replace(SUBMITTED, options=RunOptions(every_us=1_000_000))
    history = history_of([live, *history.records[1:]])
    await until(says(lambda: "started" in attempts.children.output(history)), "it prints")
    attempts.children.stop(history, forced=False)
    await until(says(lambda: "told" in attempts.children.output(history)), "it is told")
    sent: list[int] = []
    with monkeypatch.context() as watched:
        watched.setattr(os, "kill", lambda _pid, number: sent.append(number))
        attempts.service().stop(history, forced=False)
    assert signal.SIGTERM not in sent
    attempts.service().stop(history, forced=True)
    await until(says(lambda: attempts.processes() == 0), "it is killed all the same")


async def test_where_a_killed_job_in_steps_stands_is_read_from_its_folder(attempts: Attempts) -> None:
    """Its process could not say it: the newest savepoint that is whole, and the step that is to be repeated."""
    history = attempts.start("pass")
    live = msgspec.structs.replace(SUBMITTED, options=RunOptions(every_us=1_000_000))
    history = history_of([live, *history.records[1:]])
    await until(says(lambda: not attempts.children.facts(history).alive), "it is gone")
    assert attempts.children.facts(history).stands == "", "its steps are elsewhere"
    folder = attempts.folder / "steps" / "nightly"
    folder.mkdir(parents=True)
    assert attempts.children.facts(history).stands == "no step was done"
    for name in ("00000003/x.committed", "00000003/savepoint/savepoint.json", "00000004/x.begin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    lost = history_of([*history.records, AttemptLost(attempt=1, reason="killed")])
    for known in (history, lost):
        said = attempts.children.facts(known).stands
        assert said.startswith("step 4 was begun: submitted again by its id")
        assert said.endswith(f"savepoint of step 3: {folder}/00000003/savepoint")
    (folder / "00000003/x.begin").write_text("{")
    assert "x.begin: does not say what a step reads" in attempts.children.facts(history).stands


def test_a_driver_of_steps_begins_a_jvm_of_its_own(attempts: Attempts) -> None:
    """No spark-submit, whose JVM would end with the first session; its folder is that of the steps of its run."""
    live = msgspec.structs.replace(SUBMITTED, options=RunOptions(every_us=1_000_000))
    attempt = AttemptBegan(attempt=1, place=attempts.children.place, host="one")
    attempts.start("pass")
    attempts.children.start(live, attempt, b"zip")
    spec = attempts.files.spec()
    attempts.children.start(live, AttemptBegan(attempt=2, place=attempts.children.place, host="one"), b"zip")
    assert [path.name for path in (attempts.folder / "runs" / "nightly").iterdir()] == ["2"], (
        "any number of them may be"
    )
    assert spec.manifests == str(attempts.folder / "steps" / "nightly")
    assert submit_command(attempts.files, spec) == [sys.executable, str(attempts.files.launcher)]


async def test_what_cannot_be_started_says_why(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last lines of an attempt that is gone at once."""

    def command(folder: AttemptFolder, spec: AttemptSpec) -> list[str]:
        return [str(attempts.folder / "no-such-program")]

    monkeypatch.setattr(children_module, "submit_command", command)
    attempt = AttemptBegan(attempt=1, place=attempts.children.place, host="one")
    attempts.children.start(SUBMITTED, attempt, b"zip")
    facts = attempts.children.facts(history_of([SUBMITTED, attempt]))
    assert not facts.alive
    assert "spark-submit cannot be started: cannot start" in facts.last_lines


def test_an_attempt_elsewhere_is_not_looked_at(attempts: Attempts) -> None:
    """It has files of that name here, but they are not its own."""
    history = attempts.start("pass")
    other = history_of([SUBMITTED, AttemptBegan(attempt=1, place="elsewhere", host="two")])
    facts = attempts.children.facts(other)
    assert (facts.alive, facts.outcome, attempts.children.output(other)) == (False, None, "")
    assert history.attempt is not None


def test_what_a_process_is_given(attempts: Attempts) -> None:
    """Settings of the run over those of the service, for its owner's eyes only; no settings of a cluster by variables."""
    attempts.start("pass")
    spec = attempts.files.spec()
    assert spec.options.master == "local[2]"
    assert spec.options.conf == {"spark.ui.enabled": "false", "spark.executor.memory": "2g"}
    assert not spec.options.native
    assert "hidden" in attempts.files.cluster.read_text()
    assert attempts.files.cluster.stat().st_mode & 0o077 == 0
    assert attempts.files.path.stat().st_mode & 0o077 == 0
    command = submit_command(attempts.files, spec)
    assert command[0].endswith("/bin/spark-submit")
    assert command[command.index("--master") + 1] == "local[2]"
    assert "spark.executor.memory=2g" in command
    secret = msgspec.structs.replace(spec.options, conf={"spark.hadoop.fs.s3a.secret.key": "hunter2"})
    assert "hunter2" not in str(submit_command(attempts.files, msgspec.structs.replace(spec, options=secret)))
    assert f"spark.local.dir={attempts.files.path}/tmp" in command
    assert command[-1] == str(attempts.files.launcher)
    environment = submit_environment("local[2]", {"PATH": "/bin", "PENSTOCK_KAFKA_BROKERS": "other:9092"})
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert "PENSTOCK_KAFKA_BROKERS" not in environment
    assert "SPARK_LOCAL_IP" not in submit_environment("spark://host:7077", {})
    assert identify(os.getpid()) is not None


def test_secrets_of_a_job_in_steps_are_on_no_command_line(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark hands settings to its JVM there; these go by a file that only its owner may read."""
    attempts.start("pass")
    spec = attempts.files.spec()
    conf = {"spark.hadoop.fs.s3a.secret.key": "hunter\\2\n=é", "spark.executor.cores": "2"}
    spec = msgspec.structs.replace(spec, options=msgspec.structs.replace(spec.options, conf=conf, every_us=1_000_000))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "")
    settings = _settings(attempts.files, spec)
    assert "spark.executor.cores" in settings.conf
    assert "hunter" not in str(settings)
    _, file, *rest = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
    assert rest == ["--load-spark-defaults", "pyspark-shell"]
    assert Path(file).stat().st_mode & 0o777 == 0o600
    assert Path(file).read_text() == "spark.hadoop.fs.s3a.secret.key=hunter\\\\2\\n=é\n"

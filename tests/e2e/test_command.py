"""`penstock run` and `penstock plan` as users meet them: results, wording, exit codes."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from .conftest import EXAMPLES, Command, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.acceptance]

FLIGHTS = EXAMPLES / "data" / "flights.jsonl"
HEAD = """
from dataclasses import dataclass
from datetime import datetime
from penstock import *
from penstock.connectors import console, files, iterables

@dataclass
class Row:
    n: int
"""
SLOW = (
    HEAD
    + """
p = Pipeline("slow")
p.read(iterables.Source([Row(n) for n in range(3000)], rate=param("rate", 2000))).write(files.Sink("out"))
"""
)


def by_day(command: Command) -> list[dict[str, Any]]:
    rows = command.rows("out/departures")
    return sorted(rows, key=lambda row: (row["origin"], row["window_start"]))


def errors(process: Any) -> list[str]:
    """What was said on standard error; no traceback of ours may be in it."""
    assert "site-packages" not in process.stderr
    assert str(EXAMPLES.parent / "shared") not in process.stderr
    return process.stderr.splitlines()


# -- results ------------------------------------------------------------------------------------------------------------


def test_the_demo_gives_what_duckdb_gives(penstock: Command) -> None:
    """Flights, mean and maximum delay per airport and day, compared with a query over the same file."""
    penstock.run("run", EXAMPLES / "departures.py")
    query = f"""
        SELECT origin, strftime(date_trunc('day', scheduled::TIMESTAMPTZ::TIMESTAMP), '%Y-%m-%dT%H:%M:%SZ') AS day,
               count(*), avg(delay_min), max(delay_min)
        FROM read_json('{FLIGHTS}', columns={{scheduled: 'VARCHAR', delay_min: 'BIGINT', origin: 'VARCHAR'}})
        GROUP BY ALL ORDER BY ALL
    """
    with duckdb.connect(config={"threads": 1}) as database:
        database.execute("SET TimeZone = 'UTC'")
        expected = database.execute(query).fetchall()
    got = [
        (row["origin"], row["window_start"], row["flights"], row["mean_delay_min"], row["max_delay_min"])
        for row in by_day(penstock)
    ]
    assert [row[:3] + row[4:] for row in got] == [row[:3] + row[4:] for row in expected]
    assert [row[3] for row in got] == pytest.approx([row[3] for row in expected])


@pytest.mark.parametrize("parallelism", [1, 2])
def test_with_little_patience_every_row_is_accounted_for(penstock: Command, parallelism: int) -> None:
    """The last result of every airport and day, and the rows set aside, make 20,000."""
    penstock.run("run", EXAMPLES / "departures_late.py", "--parallelism", parallelism)
    final = {(row["origin"], row["window_start"]): row["flights"] for row in penstock.rows("out/departures_late")}
    assert sum(final.values()) + len(penstock.rows("out/departures_too_late")) == 20_000


@pytest.mark.parametrize("parallelism", [1, 2])
def test_streaks_of_delays_are_those_of_a_loop(penstock: Command, parallelism: int) -> None:
    """The process with state and timers, compared with a plain loop over each airport's flights."""
    penstock.run("run", EXAMPLES / "delay_streaks.py", "--parallelism", parallelism)
    flights: dict[str, list[dict[str, Any]]] = {}
    for line in FLIGHTS.read_text().splitlines():
        flight = json.loads(line)
        flights.setdefault(flight["origin"], []).append(flight)
    expected = [streak for airport in flights.values() for streak in streaks(airport) if len(streak) >= 3]
    assert len(expected) > 10
    assert Counter(
        (row["airport"], row["begin"], row["end"], row["flights"], row["worst_min"])
        for row in penstock.rows("out/delay_streaks")
    ) == Counter(
        (s[0]["origin"], s[0]["departed"], s[-1]["departed"], len(s), max(flight["delay_min"] for flight in s))
        for s in expected
    )


def streaks(flights: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Late flights of one airport, cut where one is in time or two hours go by."""
    found: list[list[dict[str, Any]]] = [[]]
    for flight in flights:
        left = datetime.fromisoformat(flight["departed"])
        if flight["delay_min"] <= 30:
            found.append([])
        elif found[-1] and left - datetime.fromisoformat(found[-1][-1]["departed"]) >= timedelta(hours=2):
            found.append([flight])
        else:
            found[-1].append(flight)
    return found


def test_restored_at_other_parallelisms_after_sigkill(penstock: Command) -> None:
    """Killed at 2 subtasks, then at 3, ended at 1: the rows are those of an uninterrupted run."""
    penstock.run("run", EXAMPLES / "departures.py", "--dir", "reference")
    expected = by_day(penstock)
    options = ["run", EXAMPLES / "departures.py", "--param", "rate=500", "--checkpoint-interval", "50ms"]
    for number, parallelism in enumerate((2, 3)):
        process = penstock.start(*options, "--parallelism", parallelism, "--resume" if number else "--fresh")
        before = len(completes(penstock))
        wait_until(lambda before=before: len(completes(penstock)) >= before + 3, "three checkpoints", pause_s=0.003)
        process.kill()
        process.communicate()
    result = penstock.run("run", EXAMPLES / "departures.py", "--resume")
    assert "going on from checkpoint" in result.stderr
    assert by_day(penstock) == expected


def completes(penstock: Command) -> list[Path]:
    """COMPLETE records in the job logs below the folder."""
    logs = penstock.folder.glob(".penstock/*/blobs/jobs/*/log/0*")
    return [path for path in logs if b'"Complete"' in path.read_bytes()]


# -- stopping -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_stops_at_a_checkpoint_and_says_how_to_go_on(penstock: Command) -> None:
    """Exit code 130; the command that is printed ends the work, and every row is there once."""
    penstock.pipeline("slow.py", SLOW)
    process = penstock.start("run", "slow.py")
    wait_until(lambda: bool(list(penstock.folder.glob("out/.staging/*"))), "rows", pause_s=0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "stopping at a checkpoint; Ctrl-C again stops at once" in err
    assert "stopped at checkpoint 1; go on with: penstock run slow.py --resume" in err
    assert 0 < len(penstock.rows("out")) < 3_000
    result = penstock.run("run", "slow.py", "--resume", "--param", "rate=1000000")
    assert "rows read since checkpoint 1" in result.stderr
    assert [row["n"] for row in penstock.rows("out")] == list(range(3_000))


def test_a_second_ctrl_c_stops_at_once(penstock: Command) -> None:
    """The first cannot be obeyed while user code sleeps; the second ends the process, and nothing is lost."""
    text = SLOW.replace('rate=param("rate", 2000)', "rate=None").replace(".write(", ".map(wait).write(") + "\n"
    wait = """
import time, pathlib
def wait(row: Row) -> Row:
    if row.n == 2000 and not pathlib.Path("go").exists():
        pathlib.Path("waiting").touch()
        time.sleep(0.3)
    return row
"""
    penstock.pipeline("slow.py", text.replace("p = Pipeline", wait + "p = Pipeline"))
    process = penstock.start("run", "slow.py", "--checkpoint-interval", "10ms")
    wait_until((penstock.folder / "waiting").exists, "the row that waits")
    process.send_signal(signal.SIGINT)
    wait_until(lambda: process.poll() is not None or signal_again(process), "the end", pause_s=0.02)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    (penstock.folder / "go").touch()
    resumed = penstock.start("run", "slow.py", "--resume")
    resumed.communicate(timeout=30)
    assert sorted(row["n"] for row in penstock.rows("out")) == list(range(3_000))


def signal_again(process: Any) -> bool:
    process.send_signal(signal.SIGINT)
    return False


def test_on_a_terminal_there_is_a_live_table(penstock: Command) -> None:
    """Rows in and out, rate, watermark and checkpoints; the cursor is given back at the end."""
    code, screen = penstock.terminal(
        "run", EXAMPLES / "departures.py", "--param", "rate=15000", "--checkpoint-interval", "200ms"
    )
    assert code == 0, screen
    for part in ("rows in", "rows out", "watermark", "read -> window -> write", "rows/s", "end of input", "finished"):
        assert part in screen
    assert screen.rfind("\x1b[?25h") > screen.rfind("\x1b[?25l") >= 0


def test_ctrl_c_on_a_terminal(penstock: Command) -> None:
    """The key itself, as the terminal sends it."""
    penstock.pipeline("slow.py", SLOW)
    code, screen = penstock.terminal("run", "slow.py", keys=lambda screen: "\x03" if "running" in screen else "")
    assert code == 130, screen
    assert "go on with: penstock run slow.py --resume" in screen


# -- resuming -----------------------------------------------------------------------------------------------------------


def test_resume_with_nothing_there(penstock: Command) -> None:
    """Refused, with what to do instead."""
    penstock.pipeline("slow.py", SLOW)
    result = penstock.run("run", "slow.py", "--resume", code=2)
    assert errors(result)[-1] == "error: --resume: .penstock/slow holds no earlier run; start without --resume"


def test_an_unfinished_run_is_not_overwritten_by_accident(penstock: Command) -> None:
    """Neither --resume nor --fresh: refused. A finished run may be repeated."""
    penstock.pipeline("slow.py", SLOW.replace('"out"', '"out", existing="replace"'))
    process = penstock.start("run", "slow.py", "--param", "rate=100")
    wait_until(lambda: bool(list(penstock.folder.glob("out/.staging/*"))), "rows", pause_s=0.005)
    second = penstock.run("run", "slow.py", "--fresh", code=2)
    assert "is in use by another run" in errors(second)[-1]
    process.kill()
    process.communicate()
    result = penstock.run("run", "slow.py", code=2)
    [line] = errors(result)
    assert "unfinished run" in line
    assert "--resume" in line
    assert "--fresh" in line
    for _ in range(2):
        penstock.run("run", "slow.py", "--fresh", "--param", "rate=1000000")
    finished = penstock.run("run", "slow.py", "--resume", code=2)
    assert "has finished" in errors(finished)[-1]


# -- mistakes -----------------------------------------------------------------------------------------------------------

TYPO = (
    HEAD
    + """
p = Pipeline("typo")
p.read(iterables.Source([Row(1)])).key_by("m").agg(x=count()).write(console.Sink())
"""
)

MISTAKES = {
    "no such file": (["run", "nope.py"], "nope.py: there is no such file"),
    "no pipeline file": (
        ["run", "notes.txt"],
        "notes.txt: a pipeline file is a Python file (.py) or one of SQL statements (.sql)",
    ),
    "no pipeline": (["run", "none.py"], "none.py: declares no pipeline; write for example p = Pipeline('my-job')"),
    "two pipelines": (["run", "two.py"], "two.py: declares several pipelines; say which: two.py:a"),
    "unknown pipeline": (["run", "two.py:c"], "two.py: there is no pipeline 'c'; there are: a, b"),
    "wrong --param": (["run", "slow.py", "--param", "rate"], "--param rate: write --param name=value"),
    "unknown --param": (
        ["run", "slow.py", "--param", "rat=1"],
        "--param rat: the pipeline has no such parameter; did you mean 'rate'?",
    ),
    "--param of another type": (["run", "slow.py", "--param", "rate=fast"], "--param rate=fast: not an int"),
    "unknown column": (
        ["plan", "typo.py"],
        "typo.py, line 12: key_by: there is no column 'm'; there are: n",
    ),
    "no parallelism": (
        ["run", "slow.py", "--parallelism", "0"],
        "argument --parallelism: '0' is not a whole number from 1; see penstock run --help",
    ),
    "wrong interval": (["run", "slow.py", "--checkpoint-interval", "soon"], None),
    "both": (
        ["run", "slow.py", "--resume", "--fresh"],
        "--resume continues a run, --fresh discards it: give one of them",
    ),
    "unknown command": (["start", "slow.py"], None),
    "unknown option": (["run", "slow.py", "--parallel", "2"], None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_one_line(penstock: Command, mistake: str) -> None:
    """Exit code 2, what is wrong and what to do, no traceback, nothing on standard output."""
    penstock.pipeline("notes.txt", "")
    penstock.pipeline("none.py", HEAD)
    penstock.pipeline("two.py", 'from penstock import Pipeline\na = Pipeline("a")\nb = Pipeline("b")\n')
    penstock.pipeline("slow.py", SLOW)
    penstock.pipeline("typo.py", TYPO)
    arguments, expected = MISTAKES[mistake]
    result = penstock.run(*arguments, code=2)
    [line] = errors(result)
    assert line.startswith("error: ")
    assert expected is None or line == f"error: {expected}"
    assert result.stdout == ""


def test_without_arguments_it_explains_itself(penstock: Command) -> None:
    """The commands, on standard error, with exit code 2; --help is no error and shows examples."""
    assert "plan" in penstock.run(code=2).stderr
    help_text = penstock.run("run", "--help").stdout
    assert "penstock run examples/departures.py --resume --parallelism 2" in help_text


def test_the_users_exception_shows_the_users_lines(penstock: Command) -> None:
    """Exit code 1, the frames of the pipeline file only, the row; with --debug the whole traceback."""
    text = (
        HEAD
        + """
def invert(row: Row) -> Row:
    return Row(1 // (row.n - 7))

p = Pipeline("boom")
p.read(iterables.Source([Row(n) for n in range(10)])).map(invert).write(files.Sink("out"))
"""
    )
    penstock.pipeline("boom.py", text)
    result = penstock.run("run", "boom.py", code=1)
    lines = errors(result)
    assert "return Row(1 // (row.n - 7))" in result.stderr
    assert lines[-1].startswith("error: map (n1-map): invert raised ZeroDivisionError")
    assert lines[-1].endswith("row: Row(n=7)")
    debugged = penstock.run("run", "boom.py", "--fresh", "--debug", code=1)
    assert "penstock/task" in debugged.stderr


BAD_ROWS = (
    HEAD
    + """
p = Pipeline("bad")
rows = p.read(files.Source("in.jsonl", schema=Row, bad_rows=param("policy", "fail")))
rows.write(files.Sink("good", existing=param("existing", "fail")))
if param("policy", "fail") == "dead_letter":
    rows.dead_letters().write(files.Sink("bad"))
"""
)


def test_bad_rows_go_by_the_policy(penstock: Command) -> None:
    """`fail` names file and line, `skip` counts, `dead_letter` keeps them with their place."""
    penstock.pipeline("bad.py", BAD_ROWS)
    (penstock.folder / "in.jsonl").write_text('{"n": 1}\n{"n": "x"}\n{broken\n{"n": 2}\n')
    failed = penstock.run("run", "bad.py", code=1)
    assert "in.jsonl, line 2" in errors(failed)[-1]
    assert "bad_rows='skip'" in failed.stderr
    skipped = penstock.run("run", "bad.py", "--fresh", "--param", "policy=skip")
    assert "files source in.jsonl: 2 bad rows were skipped" in skipped.stderr
    again = ("run", "bad.py", "--fresh", "--param", "policy=dead_letter", "--dir", "other")
    refused = penstock.run(*again, code=2)
    assert "the folder good holds rows of an earlier run (part-" in errors(refused)[-1]
    kept = penstock.run(*again, "--param", "existing=append")
    assert "2 bad rows went to dead_letters()" in kept.stderr
    assert [row["where"].split(" (")[0] for row in penstock.rows("bad")] == ["in.jsonl, line 2", "in.jsonl, line 3"]
    assert Counter(row["n"] for row in penstock.rows("good")) == {1: 2, 2: 2}


def test_a_missing_input_and_a_folder_that_cannot_be_written(penstock: Command) -> None:
    """Said before, or as soon as, it matters; with the path."""
    penstock.pipeline("bad.py", BAD_ROWS)
    missing = penstock.run("run", "bad.py", code=2)
    assert "in.jsonl" in errors(missing)[-1]
    assert not (penstock.folder / "good").exists()
    (penstock.folder / "in.jsonl").write_text('{"n": 1}\n')
    (penstock.folder / "good").write_text("a file where the folder should be")
    unwritable = penstock.run("run", "bad.py", "--fresh", code=1)
    assert "error: cannot create good/.staging" in unwritable.stderr
    (penstock.folder / "state").write_text("")
    state = penstock.run("run", "bad.py", "--dir", "state/below", code=1)
    assert "state/below" in errors(state)[-1]


# -- plans, metrics, logs -----------------------------------------------------------------------------------------------


def test_the_plan_as_text_json_and_dot(penstock: Command) -> None:
    """Chains, exchanges, key groups, schemas, state and guarantees."""
    text = penstock.run("plan", EXAMPLES / "departures.py", "--parallelism", 4).stdout
    for part in ("parallelism 4", "240 key groups", "hash by origin", "tumbling('1d')", "state: keyed by origin"):
        assert part in text
    assert "guarantee: exactly-once" in text
    graph = json.loads(penstock.run("plan", EXAMPLES / "departures.py", "--json").stdout)
    operators = [operator for vertex in graph["vertices"] for operator in vertex["operators"]]
    assert [operator["verb"] for operator in operators] == ["read", "window", "write"]
    assert operators[1]["schema"][0]["name"] == "origin"
    assert json.loads(operators[1]["state"])["window"] == "tumbling('1d')"
    assert operators[2]["guarantee"] == "exactly-once"
    assert graph["vertices"][0]["max_parallelism"] == 240
    weaker = penstock.run("plan", EXAMPLES / "departures.py", "--at-least-once").stdout
    assert "guarantee: at-least-once: barriers are not aligned in this mode" in weaker
    dot = penstock.run("plan", EXAMPLES / "departures.py", "--dot", "--parallelism", 2).stdout
    assert dot.startswith("digraph {")
    assert "style=dashed" in dot


def test_metrics_and_logs_for_machines(penstock: Command) -> None:
    """The metrics file is whole at the end; every log line is a JSON object; rows alone are on standard output."""
    penstock.pipeline("rows.py", SLOW.replace('files.Sink("out")', "console.Sink()"))
    result = penstock.run(
        "run",
        "rows.py",
        "--param",
        "rate=1000000",
        "--metrics",
        "m.prom",
        "--log-format",
        "json",
        "--log-level",
        "debug",
    )
    assert [json.loads(line)["n"] for line in result.stdout.splitlines()] == list(range(3_000))
    metrics = re.sub(r'job_id="[0-9a-f]{32}"', 'job_id="JOB"', (penstock.folder / "m.prom").read_text())
    assert 'penstock_rows_in_total{job_id="JOB",job_name="slow",operator="n0-read",subtask="0"} 3000.0\n' in metrics
    assert 'penstock_checkpoints_total{job_id="JOB",job_name="slow",state="complete"} 1.0\n' in metrics
    logs = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert {"event", "level", "timestamp"} <= logs[0].keys()
    assert any(line["event"] == "leading" for line in logs)


def test_a_script_that_runs_itself_prints_nothing(penstock: Command) -> None:
    """`p.run()` returns when the input has ended; nothing is said unless something is wrong."""
    text = SLOW.replace('rate=param("rate", 2000)', "rate=None") + "\nif __name__ == '__main__':\n    p.run()\n"
    script = penstock.pipeline("script.py", text)
    result = penstock.python(script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert len(penstock.rows("out")) == 3_000

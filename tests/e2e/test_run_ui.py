"""`penstock run --ui` as users meet it: the command, its dashboard in a browser, what is asked from there."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.browser import started_browser

from .conftest import Command, wait_until
from .test_command import HEAD

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

PIPELINE = (
    HEAD
    + """
p = Pipeline("numbers")
rows = p.read(iterables.Source([Row(n) for n in range(1200)], rate=param("rate", 100)))
rows.filter(col("n") >= 0).write(files.Sink("out"))
"""
)
OPTIONS = ("--checkpoint-interval", "200ms", "--log-level", "warning")


@contextmanager
def started(penstock: Command, *options: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The run, and the address that it says; killed if it has not ended by the end."""
    penstock.pipeline("counted.py", PIPELINE)
    with penstock.start("run", "counted.py", *OPTIONS, *options) as process:
        try:
            yield process, said_address(process)
        finally:
            process.kill()


def said_address(process: subprocess.Popen[str]) -> str:
    """Where the run says that its dashboard is."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.fullmatch(r"dashboard: (http://127\.0\.0\.1:\d+)/\n", line):
            return found[1]
    pytest.fail(f"no dashboard was said; exit code {process.wait()}")


def asked(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """An answer, as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        error.add_note(error.read().decode())
        raise


def checkpoints(address: str) -> int:
    """The newest complete one of the job that runs."""
    jobs = asked(address, "/penstock/v1/jobs")["jobs"]
    return jobs[0]["last_checkpoint"] if jobs else 0


async def shown(page: Page, text: str) -> None:
    """Wait until the page shows this."""
    await expect(page.get_by_text(text).first).to_be_visible(timeout=20_000)


async def test_the_job_page_of_a_run_and_a_stop_from_it(penstock: Command) -> None:
    """Its graph and numbers; what one run cannot do is disabled and says why; stopped there, it goes on with --resume."""
    with started(penstock, "--ui") as (process, address):
        await stop_in_browser(process, address)
    assert 0 < len(penstock.rows("out")) < 1_200
    penstock.run("run", "counted.py", "--resume", "--param", "rate=1000000")
    assert sorted(row["n"] for row in penstock.rows("out")) == list(range(1_200))


async def stop_in_browser(process: subprocess.Popen[str], address: str) -> None:
    """Look at the job, take a savepoint, stop it; until the run has ended."""
    async with started_browser() as browser:
        page = await browser.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        await page.goto(address)
        await expect(page.get_by_role("button", name="Submit a job")).to_be_disabled(timeout=20_000)
        await shown(page, "penstock up starts a cluster")
        await page.get_by_role("link", name="numbers").click()
        await shown(page, "Running")
        await expect(page.get_by_role("button", name="Rescale")).to_be_disabled()
        await shown(page, "An embedded run keeps the parallelism")
        assert await page.get_by_role("link", name="Schedules").count() == 0
        wait_until(lambda: checkpoints(address) > 0, "a checkpoint is complete")
        await page.get_by_role("button", name="Savepoint").click()
        await page.get_by_role("button", name="Take a savepoint").click()
        await shown(page, "Savepoint: done.")
        await page.get_by_role("button", name="Stop", exact=True).click()
        await shown(page, "penstock run … --resume")
        await page.get_by_role("button", name="Stop with a savepoint").click()
        _, said = process.communicate(timeout=60)
        assert wrong == []
    assert process.returncode == 0, said
    expected = r"stopped with a savepoint, checkpoint \d+; go on with: penstock run counted.py --resume"
    assert re.search(expected, said), said


async def test_a_kept_dashboard_shows_how_the_run_ended(penstock: Command) -> None:
    """With the counts of all rows, until Ctrl-C; the exit code is that of the run."""
    with started(penstock, "--ui-keep", "--param", "rate=10000", "--parallelism", "2") as (process, address):
        over = {"FINISHED": 1}
        wait_until(lambda: asked(address, "/penstock/v1/overview")["jobs"] == over, "the run has ended", pause_s=0.1)
        async with started_browser() as browser:
            page = await browser.new_page()
            await page.goto(f"{address}/#/jobs/numbers")
            await shown(page, "Finished")
            await page.get_by_role("link", name=re.compile("read")).first.click()
            await expect(page.get_by_role("table", name="Operators")).to_contain_text("1.2K", timeout=20_000)
            await page.goto(f"{address}/#/jobs")
            await shown(page, "The run has ended")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert f"finished; the dashboard stays at {address}/ until Ctrl-C" in said
    assert len(penstock.rows("out")) == 1_200


def test_a_terminal_is_told_how_to_keep_it(penstock: Command) -> None:
    """Where the run ends before one has looked."""
    penstock.pipeline("counted.py", PIPELINE)
    code, screen = penstock.terminal("run", "counted.py", "--param", "rate=100000", "--ui")
    assert code == 0, screen
    assert "the dashboard ends with the run; --ui-keep keeps it" in screen

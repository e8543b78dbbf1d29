"""`python -m tests.flink --home FLINK`: Flink's own command line and pages, unmodified, at a dispatcher of a cluster.

FLINK is the folder of a distribution of Flink 2.3, or of its Python package (`pyflink`); it needs Java. The cluster is
one of `penstock up`, in a temporary folder, and ends with the check. The pages are those of the distribution's jar,
served in front of the dispatcher as `docs/rest.md` says, and opened in Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Final

import httpx2
from playwright.async_api import Page, Response
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.responses import Response as Answer
from starlette.routing import Route
from tests.browser import started_browser
from tests.services import wait_for

from penstock.service.http_server import http_server

DEADLINE_S: Final = 120
PIPELINE: Final = """
from penstock import Pipeline, count, tumbling
from penstock.connectors import files, generate, nexmark

p = Pipeline("bids")
bids = p.read(generate.Source(nexmark.bids(columns=["auction", "at"]), rate=2_000))
bids.key_by("auction").window(tumbling("1s")).agg(bids=count()).write(files.Sink({out!r}))
"""
PAGES: Final = {
    "/overview": "bids", "/job/running": "bids", "/job/running/{job}/overview": "RUNNING",
    "/job/running/{job}/checkpoints": "Completed", "/job/running/{job}/exceptions": "Exception",
    "/job/running/{job}/configuration": "bids", "/task-manager": "Slots", "/job-manager/config": "rest",
}  # fmt: skip
"""By what follows `#`: what has to be read there."""
NOT_SERVED: Final = re.compile(r"/jobmanager/(log|stdout|thread-dump|profiler)|/rescales|/log-url")
"""What is not there, and is said so (`docs/rest.md`)."""


def main() -> None:
    """Check both, and say what was seen; the first difference ends it."""
    parser = argparse.ArgumentParser(prog="python -m tests.flink", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="of Flink: the folder with bin/flink and lib")
    home: Path = parser.parse_args().home.resolve()
    if not (home / "bin" / "flink").exists():
        parser.error(
            f"{home} has no bin/flink: name the folder of a distribution of Flink 2.3, or of its package pyflink"
        )
    with tempfile.TemporaryDirectory(prefix="penstock-flink-") as folder, cluster(Path(folder)) as rest:
        first, second = (submitted(Path(folder), f"out-{number}") for number in (1, 2))
        asyncio.run(open_pages(home, rest, first, Path(folder)))
        use_client(Client(home, rest, Path(folder)), first, second)
    print("Flink's client and pages: all as expected")


# -- the cluster --------------------------------------------------------------------------------------------------------


def penstock(folder: Path, *arguments: str) -> str:
    """What the command prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def cluster(folder: Path) -> Generator[str]:
    """A cluster with four slots; gives HOST:PORT of its dispatcher."""
    try:
        started = json.loads(penstock(folder, "up", "--json", "--slots", "4"))
        yield started["rest"].removeprefix("http://")
    finally:
        penstock(folder, "down", "--purge")


def submitted(folder: Path, out: str) -> str:
    """The id of a job that runs and has a checkpoint."""
    file = folder / f"{out}.py"
    file.write_text(PIPELINE.format(out=str(folder / out)))
    job = penstock(folder, "submit", str(file), "--checkpoint-interval", "1s", "--detach").split()[-1]

    def complete() -> bool:
        return json.loads(penstock(folder, "status", job, "--json"))["summary"]["last_checkpoint"] > 0

    wait_for(complete, f"a checkpoint of {job}", DEADLINE_S)
    return job


# -- the command line ---------------------------------------------------------------------------------------------------


class Client:
    """`bin/flink` against one dispatcher."""

    def __init__(self, home: Path, rest: str, folder: Path) -> None:
        self._program = str(home / "bin" / "flink")
        conf = folder / "conf"
        conf.mkdir()
        (conf / "config.yaml").write_text("{}\n")
        host, port = rest.split(":")
        self._where = (f"-Drest.address={host}", f"-Drest.port={port}")
        self._environment = {
            **os.environ, "FLINK_HOME": str(home), "FLINK_CONF_DIR": str(conf), "FLINK_LOG_DIR": str(folder),
        }  # fmt: skip

    def __call__(self, command: str, *arguments: str, code: int = 0) -> str:
        """What it prints; its exit code has to be `code`."""
        done = subprocess.run(
            [self._program, command, *self._where, *arguments], capture_output=True, text=True, check=False,
            timeout=DEADLINE_S, env=self._environment,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == code, f"flink {command} {' '.join(arguments)}: {done.returncode}\n{said}"
        print(f"flink {command}: ok")
        return said


def use_client(flink: Client, first: str, second: str) -> None:
    """Every command that a client has, but for `run`, on two jobs."""
    states = dict(re.findall(r"([0-9a-f]{32}) : bids \((\w+)\)", flink("list", "-a")))
    assert states == {first: "RUNNING", second: "RUNNING"}, states
    assert re.search(r"Checkpoint \d+", flink("checkpoint", first))
    place = kept(flink("savepoint", first))
    flink("checkpoint", first)  # a newer one: the job would not go on from the savepoint any more
    assert "disposed" in flink("savepoint", "--dispose", place)
    assert "FlinkException" in flink("savepoint", "--dispose", place, code=1)
    assert kept(flink("stop", second))
    flink("cancel", first)

    def ended() -> bool:
        states = dict(re.findall(r"([0-9a-f]{32}) : bids \((\w+)\)", flink("list", "-a")))
        return states == {first: "CANCELED", second: "FINISHED"}

    wait_for(ended, "both jobs have ended", DEADLINE_S)


def kept(said: str) -> str:
    """Where a savepoint is."""
    found = re.search(r"Savepoint completed\. Path: (\S+)", said)
    assert found is not None, said
    return found[1]


# -- the pages ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served_pages(home: Path, rest: str, folder: Path) -> AsyncGenerator[str]:
    """Flink's pages before the dispatcher: what is no file of theirs is handed to it; gives the URL."""
    (jar,) = (home / "lib").glob("flink-dist*.jar")
    with zipfile.ZipFile(jar) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if name.startswith("web/")])
    web = (folder / "web").resolve()

    async with httpx2.AsyncClient(base_url=f"http://{rest}", trust_env=False, timeout=30) as http:

        async def answer(request: Request) -> Answer:
            file = (web / (request.path_params["path"] or "index.html")).resolve()
            if file.is_relative_to(web) and file.is_file():
                return FileResponse(file)
            asked = await http.request(
                request.method, request.url.path, params=dict(request.query_params), content=await request.body()
            )
            kind = asked.headers.get("content-type", "application/json")
            return Answer(asked.content, asked.status_code, media_type=kind)

        app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "PATCH", "PUT", "DELETE"])])
        async with http_server(app, "127.0.0.1:0") as address:
            yield f"http://{address}"


async def open_pages(home: Path, rest: str, job: str, folder: Path) -> None:
    """Each page of a running job shows what it should, asks for nothing that fails, and raises nothing."""
    async with served_pages(home, rest, folder) as url, started_browser() as browser:
        for path, text in PAGES.items():
            page = await browser.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda error, problems=problems: problems.append(str(error)))
            page.on("response", lambda response, problems=problems: note(response, problems))
            await page.goto(f"{url}/#{path.format(job=job)}")
            await shows(page, text)
            await page.wait_for_load_state("networkidle")
            assert not problems, (path, problems)
            await page.close()
            print(f"page {path}: ok")


def note(response: Response, problems: list[str]) -> None:
    """Keep what was refused, but for what is known not to be there."""
    if response.status >= 400 and not NOT_SERVED.search(response.url):
        problems.append(f"{response.status} {response.url}")


async def shows(page: Page, text: str) -> None:
    """Wait until the text is on the page."""
    await page.get_by_text(text).first.wait_for(timeout=30_000)


main()

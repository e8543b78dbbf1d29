"""How the dashboard's files are served: whole, to everybody, with headers that keep them to themselves."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Final

import httpx2
import pytest
from recorded_cluster import JOB
from shown_cluster import SOURCE_KEY, ShownCluster, served
from small_cluster import sources
from starlette.applications import Starlette

from penstock_dispatcher.page_routes import page_routes

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = Path(str(files("penstock_dispatcher"))) / "dashboard"
IMPORT: Final = re.compile(r'^(?:import|export)[^"\n]*?"(\.[^"]+)";$', re.MULTILINE)


async def test_the_page_and_its_files_need_no_token_but_answers_do() -> None:
    """What holds nothing of the cluster is for all, in the browser's headers for pages of one site; the rest is not."""
    cluster = ShownCluster()
    async with served(cluster, token="open sesame") as address, httpx2.AsyncClient(base_url=address) as http:
        page = await http.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        for path in ("/", "/ui/app.js", "/ui/style/base.css", "/ui/nowhere.js"):
            answer = await http.get(path)
            assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["referrer-policy"] == "no-referrer"
        assert (await http.get("/ui/nowhere.js")).status_code == 404
        for path in ("/penstock/v1/jobs", "/overview", "/docs", "/ui"):
            assert (await http.get(path)).status_code == 401, path
        assert (await http.post("/")).status_code == 401
        again = await http.get("/ui/app.js", headers={"If-None-Match": (await http.get("/ui/app.js")).headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    await cluster.stop()


@pytest.mark.parametrize("path", ["/ui/../app.py", "/ui/%2e%2e/app.py", "/ui//etc/passwd", "/ui/vendor", "/ui/"])
async def test_nothing_but_its_files_is_served(path: str) -> None:
    """Paths are looked up among the files that were read at the start; none leads out of them."""
    cluster = ShownCluster()
    assert (await cluster.http.get(path)).status_code == 404
    await cluster.stop()


async def test_the_documentation_is_served_where_it_was_built(tmp_path: Path) -> None:
    """Its first page below the folder's name, its files with their types; where it is missing that is said."""
    (tmp_path / "source").mkdir()
    files_of_it = {"index.html": "<p>", "search.json": "{}", "picture.png": "P", "source/a.py.txt": "ä"}
    for name, text in files_of_it.items():
        (tmp_path / name).write_text(text)
    app = Starlette(routes=page_routes(tmp_path))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        found = {name: await http.get(f"/documentation/{name}") for name in ("", *files_of_it)}
        assert {name: answer.text for name, answer in found.items() if name} == files_of_it
        assert found[""].text == "<p>"
        assert found["search.json"].headers["content-type"] == "application/json"
        assert all("default-src 'none'" in answer.headers["content-security-policy"] for answer in found.values())
        assert (await http.get("/documentation/none.html")).status_code == 404
        assert (await http.get("/documentation/../page_routes.py")).status_code == 404


async def test_a_dispatcher_without_documentation_says_so(tmp_path: Path) -> None:
    """And has it as soon as it was built. It needs no token, as the page itself needs none."""
    transport = httpx2.ASGITransport(app=Starlette(routes=page_routes(tmp_path / "site")))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.get("/documentation/")
        assert (answer.status_code, "make docs" in answer.text) == (404, True)
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "index.html").write_text("<p>")
        assert (await http.get("/documentation/")).text == "<p>"
    cluster = ShownCluster()
    async with served(cluster, token="open sesame") as address, httpx2.AsyncClient(base_url=address) as http:
        assert (await http.get("/documentation/")).status_code in (200, 404)
    await cluster.stop()


def test_links_to_the_documentation_lead_to_its_pages() -> None:
    """And to headings that are there."""
    documented = re.compile(r'page="([\w-]+)\.html(?:#([\w-]+))?"')
    links = {link for module in FOLDER.rglob("*.js") for link in documented.findall(module.read_text())}
    assert len(links) > 6
    for name, anchor in links:
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        headings = {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
        assert not anchor or anchor in headings, f"docs/{name}.md has no heading {anchor}"


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_inline() -> None:
    """All that is imported lies there; nothing names another host, and the page has neither scripts nor styles in it."""
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", page)
    for path in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert (FOLDER / path.removeprefix("/ui/")).is_file(), path
    modules = [path for path in FOLDER.rglob("*.js") if path.parent.name != "vendor"]
    assert len(modules) > 20
    for module in modules:
        text = module.read_text()
        for name in IMPORT.findall(text):
            target = PurePosixPath(module.parent.relative_to(FOLDER).as_posix()) / name
            assert (module.parent / name).resolve().is_file(), f"{module.name} imports {target}"
        assert not re.search(r"https?://(?!www\.w3\.org/)|innerHTML|\beval\(", text), module.name


def test_what_is_vendored_has_its_licence() -> None:
    """Each library of others lies beside its licence."""
    for library in (FOLDER / "vendor").glob("*.js"):
        assert "icense" in library.with_suffix(".LICENSE.txt").read_text()


async def test_unchanged_answers_are_not_sent_again_by_any_dispatcher() -> None:
    """The tag is the same at two dispatchers, changes with the answer, and errors have none."""
    cluster = ShownCluster()
    other = ShownCluster.__mro__[1](cluster)  # a second dispatcher of the same cluster
    await cluster.record_orders()
    await cluster.refresh()
    first = await cluster.http.get(f"/penstock/v1/jobs/{JOB}")
    known = {"If-None-Match": first.headers["etag"]}
    second = await other.http.get(f"/penstock/v1/jobs/{JOB}", headers=known)
    assert (second.status_code, second.content) == (304, b"")
    assert second.headers["etag"] == first.headers["etag"]
    cluster.jobs[0] = cluster.orders_view(attempts=3)
    await cluster.refresh()
    third = await cluster.http.get(f"/penstock/v1/jobs/{JOB}", headers=known)
    assert third.status_code == 200
    assert third.json()["attempts"] == 3
    assert "etag" not in (await cluster.http.get("/penstock/v1/jobs/none")).headers
    await other.http.aclose()
    await other.client.close()
    await cluster.stop()


async def test_a_list_says_how_jobs_do() -> None:
    """Rows in are those that sources emit, rows out those that come to sinks; nothing is said of a job that has ended."""
    cluster = ShownCluster()
    view = await cluster.record_orders()
    await cluster.record_failed()
    await cluster.refresh()
    running, failed = (await cluster.client.jobs()).jobs
    rates = [task.rates.rows for vertex in view.vertices for task in vertex.tasks if task.rates is not None]
    read = sum(rows[operator][1] for rows in rates for operator in ("n0-read", "n1-read") if operator in rows)
    written = sum(rows[operator][0] for rows in rates for operator in ("n11-write", "n10-write") if operator in rows)
    assert running.load is not None
    assert (running.load.rows_in, running.load.rows_out) == (read, written)
    assert running.load.busy == 0.93
    assert running.load.records_behind == sum(
        int(task.progress.records_behind) for vertex in view.vertices[:2] for task in vertex.tasks
    )
    assert (running.attempts, failed.attempts, failed.load) == (2, 0, None)
    await cluster.stop()


async def test_the_text_of_a_job() -> None:
    """The file that describes the pipeline; what is no zip any more, or gone, is said; a bomb is not unpacked."""
    cluster = ShownCluster()
    await cluster.record_orders()
    path = f"/penstock/v1/jobs/{JOB}/source"
    found = (await cluster.http.get(path)).json()
    assert found == {"job": JOB, "target": "orders.py", "files": ["orders.py"], "text": "p = 1\n", "whole": True}
    for data, said in ((b"no zip", "no zip"), (sources("other.py"), "is not in its sources")):
        await cluster.blobs.put(SOURCE_KEY, data)
        answer = await cluster.http.get(path)
        assert answer.status_code == 404
        assert said in answer.json()["errors"][0]
    await cluster.blobs.put(SOURCE_KEY, _bomb())
    found = (await cluster.http.get(path)).json()
    assert (len(found["text"]), found["whole"]) == (256 << 10, False)
    await cluster.blobs.delete(SOURCE_KEY)
    assert "no longer in the store" in (await cluster.http.get(path)).json()["errors"][0]
    await cluster.stop()


def _bomb() -> bytes:
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("orders.py", "#" * (64 << 20))
    return buffer.getvalue()

"""Every page of the dashboard in a real browser: on a running cluster, a broken one, an empty one; by mouse and by key."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, expect
from recorded_cluster import JOB
from shown_cluster import FAILED_JOB, ShownCluster, orders_graph, served

from penstock.protocol.requests import CancelJob, RescaleJob, StopJob, TakeSavepoint
from tests.browser import started_browser

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIDE: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 800}
TOKEN: Final = "open sesame"
JOB_TABS: Final = {
    "overview": "join → write", "overview/v2": "Subtasks (2)", "checkpoints": "no answer from v2[1] within 10 s",
    "exceptions": "File \"orders.py\", line 31, in price_of", "logs": "No worker of this job has logged anything",
    "source": "p = 1", "configuration": "tumbling('1m')", "history": "AttemptFailed",
}  # fmt: skip
PAGES: Final = {
    "jobs": "orders", **{f"jobs/{JOB}/{tab}": text for tab, text in JOB_TABS.items()},
    "runs": "Nothing has run on Spark yet", "schedules": "Nothing is scheduled", "taskmanagers": "worker-1",
    "cluster": "How this dispatcher is set up",
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with started_browser() as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncGenerator[tuple[ShownCluster, str]]:
    """A cluster with a job that runs, one that has failed, and ended ones; and where it is."""
    cluster = ShownCluster()
    cluster.add_workers()
    await cluster.record_orders()
    await cluster.record_failed()
    for number in range(1, 4):
        await cluster.record_finished(number)
    async with served(cluster) as address:
        yield cluster, address
    await cluster.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncGenerator[Page]:
    """A page in which nothing may go wrong: no exception, no error on the console, nothing that the policy forbids."""
    context = await browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
    opened = await context.new_page()
    opened.set_default_timeout(8_000)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" and "Failed to load" not in said.text else None)
    yield opened
    await context.close()
    assert wrong == []


async def shows(page: Page, text: str) -> None:
    """Wait until the page shows this."""
    await expect(page.get_by_text(text).first).to_be_visible(timeout=8_000)


async def opened(page: Page, address: str, place: str, text: str) -> None:
    """Go there, and wait for what is to be seen."""
    await page.goto(f"{address}/#/{place}")
    await shows(page, text)


async def fits(page: Page) -> bool:
    """Whether the page is not wider than its window."""
    return await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_every_page_of_a_running_cluster(page: Page, running: tuple[ShownCluster, str]) -> None:
    """Each shows what there is, has one heading and one main part, and fits a phone."""
    _, address = running
    for place, text in PAGES.items():
        await opened(page, address, place, text)
        assert await page.locator("main h1").count() == 1, place
        assert await page.locator("main table caption, main table").count() >= 0
        await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        assert await fits(page), f"{place} is wider than a phone"
        await page.set_viewport_size(WIDE)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_breaks_the_rules_of_accessibility(browser: Browser, running: tuple[ShownCluster, str], scheme: Any) -> None:
    """axe finds nothing, contrast among it, in both colour schemes."""
    context = await browser.new_context(viewport=WIDE, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    seen = await context.new_page()
    found: dict[str, list[str]] = {}
    for place in ("jobs", f"jobs/{JOB}", f"jobs/{JOB}/checkpoints", f"jobs/{FAILED_JOB}/exceptions", "taskmanagers"):
        await opened(seen, running[1], place, PAGES.get(place, "prices" if FAILED_JOB in place else "join → write"))
        results = (await Axe().run(seen)).response
        found[place] = [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in results["violations"]]
    await context.close()
    assert {place: problems for place, problems in found.items() if problems} == {}


async def test_numbers_stay_current_without_a_reload(page: Page, running: tuple[ShownCluster, str]) -> None:
    """What the leader shows next is on the page some moments later, in the same row."""
    cluster, address = running
    await opened(page, address, "jobs", "orders")
    row = page.get_by_role("row").filter(has_text="orders")
    await row.evaluate("row => row.dataset.same = 'yes'")
    before, cluster.jobs[0] = cluster.jobs[0], cluster.orders_view(state="RESTARTING", missing_slots=2, attempts=9)
    try:
        await expect(row).to_contain_text("needs 2 slots", timeout=8_000)
        await expect(row).to_contain_text("Restarting")
        await shows(page, "1 job waits for 2 slots.")
        assert await row.get_attribute("data-same") == "yes"
    finally:
        cluster.jobs[0] = before


async def test_a_job_that_failed_says_why(page: Page, running: tuple[ShownCluster, str]) -> None:
    """In the list, at the head of its page with a way to the exceptions, and there with the lines of the user's code."""
    await opened(page, running[1], "jobs?show=troubled", "gave up after 1 restart")
    await page.get_by_role("link", name="prices").click()
    await shows(page, "This job has failed.")
    assert await page.get_by_role("button", name="Cancel").count() == 0
    await page.get_by_role("link", name="See why").click()
    await shows(page, "return PRICES[order.product]")
    await page.goto(f"{running[1]}/#/jobs/{FAILED_JOB}/source")
    await shows(page, "was submitted without sources")


async def test_an_empty_cluster_says_what_to_do_next(page: Page) -> None:
    """No leader, no job, no worker: each page names the command."""
    cluster = ShownCluster()
    cluster.leads = False
    async with served(cluster) as address:
        await opened(page, address, "jobs", "No job has been submitted yet")
        await shows(page, "penstock submit examples/orders.py")
        await shows(page, "No coordinator leads this cluster.")
        await opened(page, address, "taskmanagers", "no coordinator leads this cluster now")
        await opened(page, address, "cluster", "none")
        await opened(page, address, f"jobs/{JOB}", "There is no such job")
        cluster.leads, cluster.slots = True, 0
        await opened(page, address, "taskmanagers", "penstock taskmanager --slots 2")
    await cluster.stop()


async def test_what_does_not_answer_is_said_and_comes_back(page: Page, running: tuple[ShownCluster, str]) -> None:
    """Refused, away, or answering nonsense: what was there stays, marked as old, until there is an answer again."""
    await opened(page, running[1], "jobs", "orders")

    async def unavailable(route: Route) -> None:
        await route.fulfill(status=503, json={"errors": ["the store does not answer within 8 s"]})

    await page.route("**/penstock/v1/jobs", unavailable)
    await shows(page, "the store does not answer within 8 s")
    await shows(page, "This is not current.")
    await expect(page.get_by_role("link", name="orders")).to_be_visible()
    await page.unroute("**/penstock/v1/jobs")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_text("This is not current.")).to_have_count(0)
    await page.route("**/penstock/**", lambda route: route.abort())
    await page.reload()
    await shows(page, "Cannot load the jobs")
    await shows(page, "Not reachable")
    await page.unroute("**/penstock/**")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("link", name="orders")).to_be_visible()
    await page.route("**/penstock/v1/jobs", lambda route: route.fulfill(status=502, body="<html>proxy</html>"))
    await page.reload()
    await shows(page, "The dispatcher answers with HTTP 502.")


async def test_the_token_is_asked_for_and_kept_in_the_tab(page: Page) -> None:
    """A wrong one is said to be wrong; the right one survives a reload, goes with no address, and can be forgotten."""
    cluster = ShownCluster()
    await cluster.record_orders()
    async with served(cluster, token=TOKEN) as address:
        await opened(page, address, "jobs", "This cluster wants its access token")
        await page.get_by_label("Access token", exact=True).fill("wrong")
        await page.keyboard.press("Enter")
        await shows(page, "The token was not accepted.")
        await page.get_by_label("Access token", exact=True).fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="orders")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("link", name="orders")).to_be_visible()
        assert TOKEN not in page.url
        assert await page.evaluate("localStorage.length + document.cookie.length") == 0
        await page.get_by_role("button", name="Forget the access token").click()
        await shows(page, "This cluster wants its access token")
    await cluster.stop()


async def test_actions_are_confirmed_and_followed(page: Page) -> None:
    """Each asks first; a cancellation wants the name; the request arrives once, and what becomes of it is shown."""
    cluster = ShownCluster()
    await cluster.record_orders()
    async with served(cluster) as address:
        await opened(page, address, f"jobs/{JOB}", "join → write")
        await page.get_by_role("button", name="Cancel").click()
        confirm = page.get_by_role("button", name="Cancel the job")
        await expect(confirm).to_be_disabled()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        assert await cluster.asked() == []
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_label("to confirm").fill("orders")
        await confirm.click()
        await shows(page, "Cancel: asked for.")
        await page.get_by_role("button", name="Savepoint").click()
        await page.get_by_role("button", name="Take a savepoint").click()
        await shows(page, "Savepoint: asked for.")
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_label("Drain").check()
        await page.get_by_role("button", name="Stop with a savepoint").click()
        await shows(page, "Stop: asked for.")
        await page.get_by_role("button", name="Rescale").click()
        await page.get_by_label("New parallelism").fill("5000")
        await page.get_by_role("button", name="Go on at").click()
        await shows(page, "Refused.")
        await page.get_by_label("New parallelism").fill("3")
        await page.get_by_role("button", name="Go on at 3 subtasks").click()
        await shows(page, "Rescale: asked for.")
        kinds = [type(request) for request in await cluster.asked()]
        assert kinds == [CancelJob, TakeSavepoint, StopJob, RescaleJob]
        cluster.leads = False
        await cluster.refresh()
        await page.get_by_role("button", name="Savepoint").click()
        await page.get_by_role("button", name="Take a savepoint").click()
        await shows(page, "no coordinator leads this cluster now")
    await cluster.stop()


async def test_a_thousand_jobs_stay_smooth(page: Page) -> None:
    """Of many rows only those that are seen are in the document; sorting and finding take all of them."""
    cluster = ShownCluster()
    for number in range(1, 1_001):
        await cluster.record_finished(number)
    async with served(cluster) as address:
        await opened(page, address, "jobs", "daily-0001")
        assert await page.locator("tbody tr").count() < 60
        table = page.get_by_role("region", name="Jobs")
        await table.evaluate("region => region.scrollTop = region.scrollHeight")
        await shows(page, "daily-1000")
        assert await page.locator("tbody tr").count() < 60
        await page.get_by_role("button", name="Job", exact=True).click()
        await page.get_by_label("Find by name or id").fill("daily-0777")
        await shows(page, "daily-0777")
        await expect(page.locator("tbody tr")).to_have_count(1)
    await cluster.stop()


async def test_a_thousand_subtasks_stay_smooth(page: Page) -> None:
    """A page of a vertex with as many is drawn and redrawn in less time than it is shown."""
    cluster = ShownCluster()
    cluster.orders = msgspec.structs.replace(orders_graph(240), name="wide")
    await cluster.record_orders()
    async with served(cluster) as address:
        await opened(page, address, f"jobs/{JOB}/overview/v2", "Subtasks (240)")
        assert await page.locator("tbody tr").count() < 60
        longest_ms = await page.evaluate(
            """() => new Promise(done => { let longest = 0, last = performance.now(); const begin = last;
                 const frame = now => { longest = Math.max(longest, now - last); last = now;
                   now - begin > 2500 ? done(longest) : requestAnimationFrame(frame); };
                 requestAnimationFrame(frame); })"""
        )
        assert longest_ms < 1_000
    await cluster.stop()


async def test_the_keyboard_is_enough(page: Page, running: tuple[ShownCluster, str]) -> None:
    """Skip to the content, open a job by its link, choose a vertex, take the colours from the button."""
    await opened(page, running[1], "jobs", "orders")
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    link = page.get_by_role("link", name="orders")
    await link.focus()
    await page.keyboard.press("Enter")
    await shows(page, "join → write")
    await expect(page.locator("main")).to_be_focused()
    await page.get_by_role("link", name="join -> write: ").focus()
    await page.keyboard.press("Enter")
    await shows(page, "Subtasks (2)")
    await page.get_by_role("button", name="Colours: system").press("Enter")
    await page.get_by_role("button", name="Colours: light").press("Enter")
    assert await page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"

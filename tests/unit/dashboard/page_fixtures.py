"""What the tests of pages share: the browser, a page in which nothing may go wrong, a cluster to look at."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from recorded_cluster import JOB
from shown_cluster import ShownCluster, served
from tests.browser import started_browser

PATIENCE_MS: Final = 30_000
"""How long the page may take for anything: on a machine that has much else to do it loads its modules for seconds."""
expect.set_options(timeout=PATIENCE_MS)
WIDE: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 800}
TOKEN: Final = "open sesame"
JOB_TABS: Final = {
    "overview": "join → write", "overview/v0": "Splits furthest behind", "overview/v2": "Subtasks (2)",
    "checkpoints": "no answer from v2[1] within 10 s",
    "exceptions": "File \"orders.py\", line 31, in price_of", "logs": "No worker of this job has logged anything",
    "source": "p = 1", "configuration": "tumbling('1m')", "history": "AttemptFailed",
}  # fmt: skip
PAGES: Final = {
    "jobs": "orders", **{f"jobs/{JOB}/{tab}": text for tab, text in JOB_TABS.items()},
    "runs": "Nothing has run on Spark yet", "schedules": "Nothing is scheduled", "taskmanagers": "worker-1",
    "cluster": "Settings of this dispatcher",
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
    opened.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "console",
        lambda said: wrong.append(said.text) if said.type == "error" and "Failed to load" not in said.text else None,
    )
    yield opened
    await context.close()
    assert wrong == []


async def shows(page: Page, text: str) -> None:
    """Wait until the page shows this."""
    await expect(page.get_by_text(text).first).to_be_visible()


async def opened(page: Page, address: str, place: str, text: str) -> None:
    """Go there, and wait for what is to be seen."""
    await page.goto(f"{address}/#/{place}")
    await shows(page, text)


async def fits(page: Page) -> bool:
    """Whether the page is not wider than its window."""
    return await page.evaluate("document.documentElement.scrollWidth <= innerWidth")

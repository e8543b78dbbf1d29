"""What holds for all pages: they are accessible, usable by key alone, and smooth however much there is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from axe_playwright_python.async_playwright import Axe
from page_fixtures import PAGES, WIDE, browser, opened, page, running, shows
from playwright.async_api import Browser, Page, expect
from recorded_cluster import JOB
from shown_cluster import FAILED_JOB, ShownCluster, orders_graph, served

__all__ = ["browser", "page", "running"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_breaks_the_rules_of_accessibility(
    browser: Browser, running: tuple[ShownCluster, str], scheme: Any
) -> None:
    """axe finds nothing, contrast among it, in both colour schemes."""
    context = await browser.new_context(viewport=WIDE, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    seen = await context.new_page()
    found: dict[str, list[str]] = {}
    for place, text in {**PAGES, f"jobs/{FAILED_JOB}/exceptions": "return PRICES"}.items():
        await opened(seen, running[1], place, text)
        results = (await Axe().run(seen)).response
        found[place] = [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in results["violations"]]
    await context.close()
    assert {place: problems for place, problems in found.items() if problems} == {}


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

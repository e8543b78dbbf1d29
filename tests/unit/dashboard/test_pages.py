"""Every page of the dashboard in a real browser: on a running cluster, a broken one, an empty one."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from page_fixtures import PAGES, PHONE, TOKEN, WIDE, browser, fits, opened, page, running, shows
from playwright.async_api import Page, Route, expect
from recorded_cluster import JOB
from shown_cluster import FAILED_JOB, ShownCluster, served

from penstock.protocol.requests import CancelJob, RescaleJob, StopJob, TakeSavepoint
from penstock.service.credentials import digest_of

__all__ = ["browser", "page", "running"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


async def test_numbers_stay_current_without_a_reload(page: Page, running: tuple[ShownCluster, str]) -> None:
    """What the leader shows next is on the page some moments later, in the same row."""
    cluster, address = running
    await opened(page, address, "jobs", "orders")
    row = page.get_by_role("row").filter(has_text="orders")
    await row.evaluate("row => row.dataset.same = 'yes'")
    before, cluster.jobs[0] = cluster.jobs[0], cluster.orders_view(state="RESTARTING", missing_slots=2, attempts=9)
    try:
        await expect(row).to_contain_text("needs 2 slots")
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
    await shows(page, f"penstock submit FILE --from-savepoint {FAILED_JOB[:8]}")
    assert await page.get_by_role("button", name="Cancel").count() == 0
    await page.get_by_role("link", name="See why").click()
    await shows(page, "return PRICES[order.product]")
    await page.goto(f"{running[1]}/#/jobs/{FAILED_JOB}/source")
    await shows(page, "was submitted without sources")


async def test_a_job_in_a_loop_of_restarts_is_not_well(page: Page) -> None:
    """Though it runs at the moment: in the list, in the sum, and on its page with the reason and the age of its state."""
    cluster = ShownCluster()
    await cluster.record_orders(failing=3, checkpoints=())
    async with served(cluster) as address:
        await opened(page, address, "jobs", "3 failures since a checkpoint: v1[0]: KeyError: 'kettle'")
        await shows(page, "Failing")
        await shows(page, "1 job in trouble")
        await page.get_by_role("link", name="orders").click()
        await shows(page, "3 attempts have failed since the newest checkpoint.")
        await shows(page, f"penstock doctor {JOB[:8]}")
        age = page.locator(".fact", has_text="Newest checkpoint")
        await expect(age).to_contain_text("35 min")
        await expect(age).to_have_attribute("data-tone", "bad")
    await cluster.stop()


async def test_what_nobody_leads_is_not_well(page: Page) -> None:
    """No coordinator, or one that hears nothing: how jobs are is not known, and rates are none."""
    cluster = ShownCluster()
    await cluster.record_orders()
    async with served(cluster) as address:
        await opened(page, address, "jobs", "all well")
        cluster.jobs[0], cluster.leads = cluster.orders_view(), False
        await shows(page, "how they are is not known")
        await expect(page.locator("main[data-stale]")).to_have_count(1)
        await expect(page.locator(".fact", has_text="Rows read")).to_contain_text("\N{EN DASH}")
    await cluster.stop()


async def test_links_that_scroll_show_the_page_that_one_is_on(page: Page, running: tuple[ShownCluster, str]) -> None:
    """On a phone the last tab would be out of sight; a shadow says that there are more."""
    await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    await opened(page, running[1], f"jobs/{JOB}/history", "AttemptFailed")
    tabs = page.get_by_role("navigation", name="About this job")
    await expect(tabs.get_by_role("link", name="History")).to_be_in_viewport(ratio=0.9)
    assert await tabs.evaluate("tabs => tabs.scrollWidth > tabs.clientWidth")
    assert "local" in await tabs.evaluate("tabs => getComputedStyle(tabs).backgroundAttachment")
    await opened(page, running[1], f"jobs/{JOB}", "join → write")
    await expect(tabs.get_by_role("link", name="Overview")).to_be_in_viewport(ratio=0.9)


async def test_settings_stand_below_their_sections(page: Page, running: tuple[ShownCluster, str]) -> None:
    """As in the file, in the order of their names; the page of the documentation about them is linked."""
    settings = {"kafka.security_protocol": "SSL", "name": "shop", "redis.url": "redis://", "kafka.brokers": "b:9092"}
    found = [{"key": key, "value": value} for key, value in settings.items()]
    await page.route("**/jobmanager/config", lambda route: route.fulfill(json=found))
    await opened(page, running[1], "cluster", "Secrets are masked.")
    shown = page.locator("main .card :is(h3, dt)")
    assert await shown.all_inner_texts() == [
        "Cluster", "name", "[kafka]", "brokers", "security protocol", "[redis]", "url",
    ]  # fmt: skip
    await expect(page.get_by_role("link", name="All settings")).to_have_attribute(
        "href", "/documentation/settings.html"
    )


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
        await cluster.refresh()
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


async def test_a_late_answer_to_the_former_token_is_none_to_the_next(page: Page) -> None:
    """Its body may arrive when the right token is there already, which is not to be asked for again then."""
    cluster = ShownCluster()
    await cluster.record_orders()
    await page.add_init_script(
        """const plain = window.fetch; let held;
           const isHeld = new Promise(done => { held = done }), goOn = new Promise(done => { window.goOn = done });
           window.fetch = async (path, options) => {
             const answer = await plain(path, options);
             if (answer.status !== 401) return answer;
             if (path.endsWith("/whoami")) answer.json = async () => { held(); await goOn; return { errors: ["late"] }; };
             else await isHeld;
             return answer; };"""
    )
    async with served(cluster, token=TOKEN) as address:
        await opened(page, address, "jobs", "This cluster wants its access token")
        await page.get_by_label("Access token", exact=True).fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="orders")).to_be_visible()
        await page.evaluate("window.goOn(); new Promise(done => setTimeout(done))")
        await expect(page.get_by_role("link", name="orders")).to_be_visible()
        await expect(page.get_by_text("This cluster wants its access token")).to_have_count(0)
    await cluster.stop()


async def test_what_the_role_does_not_allow_is_disabled_and_says_why(page: Page) -> None:
    """Who may only look sees everything; who operates may not submit; forgetting a token forgets its role."""
    cluster = ShownCluster()
    await cluster.record_orders()
    tokens = ",".join(f"{role[:3]} {role} sha256:{digest_of(role)}" for role in ("view", "operate", "submit"))
    async with served(cluster, tokens=tokens) as address:
        await opened(page, address, "jobs", "This cluster wants its access token")
        for role, may in {"view": (False, False), "operate": (False, True), "submit": (True, True)}.items():
            await page.get_by_label("Access token", exact=True).fill(role)
            await page.keyboard.press("Enter")
            for needs, place, button, allowed in (
                ("submit", "jobs", "Submit a job", may[0]), ("operate", f"jobs/{JOB}", "Savepoint", may[1]),
            ):  # fmt: skip
                await opened(page, address, place, "orders")
                why = page.get_by_text(f"The token of {role[:3]} has the role {role}; this needs the role {needs}.")
                await expect(why).to_have_count(0 if allowed else 1)
                await expect(page.get_by_role("button", name=button, exact=True)).to_be_enabled(enabled=allowed)
                if role == "view":
                    problems = (await Axe().run(page)).response["violations"]
                    assert [one["id"] for one in problems] == []
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

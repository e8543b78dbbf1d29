"""Login at an OpenID Connect provider, in Chromium: there, back, and whatever may go wrong between."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Final

import pytest
import pytest_asyncio
from oidc_provider import CLIENT, LoopbackProvider, answering, with_login
from page_fixtures import browser, opened, page, shows
from playwright.async_api import Page, expect
from recorded_cluster import JOB
from shown_cluster import ShownCluster, served

from penstock.platform.free_ports import free_port

__all__ = ["browser", "page"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")
WANTED: Final = "This cluster wants its access token"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncGenerator[LoopbackProvider]:
    async with answering(LoopbackProvider(free_port())) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(provider: LoopbackProvider) -> AsyncGenerator[str]:
    """Of a dispatcher whose only tokens are the provider's."""
    cluster, settings = ShownCluster(), provider.settings(client_id=CLIENT)
    cluster.add_workers()
    await cluster.record_orders()
    async with with_login(cluster, settings) as tokens, served(cluster, issuer=tokens) as listens:
        yield listens
    await cluster.stop()


async def logs_in(page: Page, name: str) -> None:
    """From the page that wants a token."""
    await page.get_by_role("button", name="Log in at 127.0.0.1").click()
    await page.get_by_role("link", name=name).click()


async def test_there_and_back(page: Page, address: str) -> None:
    """To the place that one came for; no code stays in the address; the role counts; it lasts as long as the tab."""
    await opened(page, address, f"jobs/{JOB}/checkpoints", WANTED)
    await logs_in(page, "Log in as vic")
    await shows(page, "no answer from v2[1] within 10 s")
    await expect(page).to_have_url(f"{address}/#/jobs/{JOB}/checkpoints")
    await expect(page.get_by_text("The token of oidc:vic has the role view").first).to_be_visible()
    assert "verifier" not in await page.evaluate("JSON.stringify(sessionStorage)")
    await page.reload()
    await shows(page, "no answer from v2[1] within 10 s")
    await page.get_by_role("button", name="Forget the access token").click()
    await shows(page, WANTED)


async def test_a_login_that_expires_is_offered_again(
    page: Page, address: str, provider: LoopbackProvider
) -> None:  # fmt: skip
    """The page says so by itself, and goes on where it was."""
    await opened(page, address, "jobs", WANTED)
    await logs_in(page, "Log in as sue")
    await expect(page.get_by_role("link", name="orders")).to_be_visible()
    old = provider.token("sue", exp=int(time.time()) - 3_600)
    await page.evaluate("token => sessionStorage.setItem('penstock-token', token)", old)
    await shows(page, "this one has expired")
    await logs_in(page, "Log in as sue")
    await expect(page.get_by_role("link", name="orders")).to_be_visible()


@pytest.mark.parametrize(
    ("link", "said"),
    [("Do not log in", "The provider did not log you in (access_denied)."),
     ("Log in as nob", "the token of oidc:nob gives no role here")],
)  # fmt: skip
async def test_who_is_not_logged_in(page: Page, address: str, link: str, said: str) -> None:
    """It is said why, and offered again."""
    await opened(page, address, "jobs", WANTED)
    await logs_in(page, link)
    await shows(page, "You are not logged in.")
    await shows(page, said)
    await logs_in(page, "Log in as oda")
    await expect(page.get_by_role("link", name="orders")).to_be_visible()


async def test_the_state_and_the_nonce_count(page: Page, address: str, provider: LoopbackProvider) -> None:
    """A code that somebody else has slipped in is sent nowhere; an ID token of another login is no login."""
    before = provider.asked["/token"]
    for query in ("code=c&state=s", "code=c", "error=x&state=s"):
        await page.goto(f"{address}/?{query}")
        await shows(page, "This login was not begun in this tab.")
        await expect(page).to_have_url(f"{address}/")
    assert provider.asked["/token"] == before
    provider.nonce = "of another"
    await logs_in(page, "Log in as oda")
    await shows(page, "is of another login (nonce)")
    provider.nonce = None


async def test_where_nobody_can_log_in_a_token_is_good_all_the_same(page: Page, provider: LoopbackProvider) -> None:
    """While the provider is away."""
    cluster, away = ShownCluster(), LoopbackProvider(free_port()).settings(client_id=CLIENT)
    await cluster.record_orders()
    async with with_login(cluster, away) as tokens, served(cluster, token="own", issuer=tokens) as listens:
        await opened(page, listens, "jobs", "Nobody can log in now.")
        await page.get_by_label("Access token", exact=True).fill("own")
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_role("link", name="orders")).to_be_visible()
    await cluster.stop()

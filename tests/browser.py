"""A real browser for tests of pages: Chromium, driven by Playwright.

Playwright's own download of a browser is not used: it is no package. Chromium comes from the system's packages (`make
platform` installs Debian's `chromium-headless-shell`), or from wherever PENSTOCK_CHROMIUM says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from playwright.async_api import Browser, async_playwright
from tests.lanes import demand_servers

VARIABLE: Final = "PENSTOCK_CHROMIUM"
NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
"""Pages of the tests are our own; as root there is no sandbox. It looks for nothing on the network."""


def chromium() -> str:
    """The program; raises `AssertionError` saying what to type where there is none."""
    found = os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise AssertionError(
            f"there is no Chromium: make platform, apt-get install chromium-headless-shell, or name one in {VARIABLE}"
        )
    return found


@asynccontextmanager
async def started_browser() -> AsyncGenerator[Browser]:
    """A browser without a window."""
    demand_servers("Chromium")
    program = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()

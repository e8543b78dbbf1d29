"""One job from submission to end, all by the page, on real services: a coordinator and workers in this process."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from page_fixtures import browser, page, shows
from playwright.async_api import Page, expect
from shown_cluster import listening
from small_cluster import SmallCluster, small_cluster, sources

from penstock.submission.file import DOCUMENT, SOURCES

__all__ = ["browser", "page"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")


def written(cluster: SmallCluster, path: Path) -> Path:
    """A submission file as `penstock submit --write` makes it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(DOCUMENT, json.dumps({**cluster.document(), "job": ""}))
        archive.writestr(SOURCES, sources())
    return path


async def test_a_job_by_the_page_alone(page: Page, tmp_path: Path) -> None:
    """Submitted from a file, looked at, saved, rescaled, stopped; started again from its savepoint, cancelled."""
    async with small_cluster(slots=3) as cluster, listening(cluster) as address:
        file = written(cluster, tmp_path / "counts.penstock")
        await page.goto(f"{address}/#/jobs")
        await page.get_by_role("button", name="Submit a job").click()
        (tmp_path / "no.penstock").write_bytes(b"nothing of the kind")
        await page.get_by_label("Choose a submission file").set_input_files(tmp_path / "no.penstock")
        await shows(page, "It is no submission file.")
        await page.get_by_label("Choose a submission file").set_input_files(file)
        await page.get_by_role("button", name="Submit", exact=True).click()
        await shows(page, "window → write")
        await expect(page.locator(".job-title .state")).to_have_text("Running", timeout=20_000)
        await asked(page, "Savepoint", "Take a savepoint")
        await page.get_by_role("button", name="Rescale").click()
        await page.get_by_label("New parallelism").fill("3")
        await page.get_by_role("button", name="Go on at 3 subtasks").click()
        await shows_done(page, "Rescale")
        await expect(page.locator(".job-times")).to_contain_text("parallelism 3")
        await asked(page, "Stop", "Stop with a savepoint")
        await expect(page.locator(".job-title .state")).to_have_text("Stopped")
        await page.goto(f"{address}/#/jobs")
        await page.get_by_role("button", name="Submit a job").click()
        await page.get_by_label("Choose a submission file").set_input_files(file)
        await page.get_by_label("Start from").select_option(index=1)
        await page.get_by_role("button", name="Submit", exact=True).click()
        await expect(page.locator(".job-times")).to_contain_text("went on from checkpoint", timeout=20_000)
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_label("to confirm").fill("counts")
        await page.get_by_role("button", name="Cancel the job").click()
        await expect(page.locator(".job-title .state")).to_have_text("Canceled", timeout=20_000)


async def asked(page: Page, action: str, confirm: str) -> None:
    """Ask for it, and wait until it is done."""
    await page.get_by_role("button", name=action).click()
    await page.get_by_role("button", name=confirm).click()
    await shows_done(page, action)


async def shows_done(page: Page, action: str) -> None:
    """Wait until the page says that it was done."""
    await expect(page.get_by_text(f"{action}: done.")).to_be_visible(timeout=20_000)

"""Takes the pictures of the dashboard that stand in docs/: `python -m tools.screenshots http://127.0.0.1:8081`.

They show a real cluster, on which these jobs have run for some minutes:

    penstock up --slots 6
    penstock submit examples/orders_feed.py --detach --param rate=4000
    penstock submit examples/orders.py --parallelism 2 --detach
    penstock submit tools/demo/checkout.py --parallelism 2 --detach --param start=$(date +%s)
    penstock submit tools/demo/prices.py --restart fixed-delay:2:1s --detach
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

from tests.browser import started_browser

FOLDER: Final = Path(__file__).parents[1] / "docs" / "pictures"
WATCHED_S: Final = 20
"""So long a page is looked at, for its lines to have a course."""
PICTURES: Final[tuple[tuple[str, str, str, str, tuple[int, int]], ...]] = (
    ("dashboard-jobs", "jobs", "checkout", "dark", (1280, 640)),
    ("dashboard-job", "jobs/checkout", "Vertices", "light", (1280, 860)),
    ("dashboard-exceptions", "jobs/prices/exceptions", "KeyError", "light", (390, 780)),
)
"""File, page, what is to be seen there, colours, size."""


async def take(address: str) -> None:
    """All of them."""
    FOLDER.mkdir(exist_ok=True)
    async with started_browser() as browser:
        for name, place, text, scheme, (width, height) in PICTURES:
            colours: Any = scheme
            context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
            page = await context.new_page()
            await page.goto(f"{address}/#/{place}")
            await page.get_by_text(text).first.wait_for()
            await asyncio.sleep(WATCHED_S)
            await page.screenshot(path=FOLDER / f"{name}.png")
            await context.close()


if __name__ == "__main__":
    asyncio.run(take(sys.argv[1]))

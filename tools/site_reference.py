"""The reference as the site has it: a page for each family of symbols, made of the one file in the repository.

A page of the site is found by its title and read as a whole; `docs/reference.md` is one file, so that one command writes
it and its anchors are the same wherever it is read. Links to them lead to the page that has them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = "docs/reference.md"
FIRST: Final = "reference.md"
"""The page with the introduction and the list of the others."""
_LEAD: Final = f"Part of the [reference]({FIRST}), which begins with what the examples start from.\n\n"


def pages(text: str) -> dict[str, str]:
    """Name in the site to page, in order."""
    introduction, *families = re.split(r"^## ", text, flags=re.MULTILINE)
    made = {FIRST: re.sub(r"\]\(#([\w-]+)\)", lambda link: f"]({_name(link[1])})", introduction)}
    for family in families:
        title, _, body = family.partition("\n")
        body = re.sub(r"^### ", "## ", body, flags=re.MULTILINE)
        made[_name(anchor_of(title))] = f"# {title}\n\n{_LEAD}{body.lstrip()}"
    return made


@cache
def page_of(anchor: str, root: Path) -> str:
    """The page that has the heading of an anchor; the first one if none has."""
    for name, text in pages((root / FILE).read_text(encoding="utf-8")).items():
        if anchor in map(anchor_of, re.findall(r"^##? (.*)$", text, re.MULTILINE)):
            return name
    return FIRST


def anchor_of(title: str) -> str:
    """Where a link to a title leads, as GitHub and the site name it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _name(anchor: str) -> str:
    return f"reference-{anchor}.md"

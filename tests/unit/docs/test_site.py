"""The site: built without a warning, from current pages, with nothing that browsers would fetch elsewhere or refuse."""

from __future__ import annotations

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tools import drawing, generated_pages, overview, site, site_reference

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def built() -> Path:
    """The site, as `make docs` builds it."""
    site.build()
    return site.SITE


@pytest.mark.parametrize("name", generated_pages.PAGES)
def test_a_page_is_that_of_the_code(name: str) -> None:
    """`python -m tools.generated_pages` writes it anew."""
    made = generated_pages.PAGES[name]()
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == made, "run: python -m tools.generated_pages"


def test_the_picture_is_that_of_the_code() -> None:
    """`python -m tools.overview` draws it anew."""
    assert overview.PICTURE.read_text(encoding="utf-8") == overview.picture(), "run: python -m tools.overview"


def test_the_picture_shows_who_uses_what() -> None:
    """Found in the code, and as the architecture says."""
    uses = overview.uses()
    assert uses["dispatcher", "requests"] == {"v"}
    assert uses["taskmanager", "commands"] == {"^"}
    assert uses["taskmanager", "events"] == {"v"}
    assert uses["coordinator", "events"] == {"^"}
    assert ("taskmanager", "Redis") not in uses


def test_every_page_has_a_place() -> None:
    """In the site's navigation, once."""
    named = list(_targets(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]))
    docs = {page.name for page in (ROOT / "docs").glob("*.md")}
    reference = site_reference.pages((ROOT / site_reference.FILE).read_text(encoding="utf-8"))
    assert sorted(named) == sorted([*site.PAGES.values(), *(docs | reference.keys())])


def _targets(entry: Any) -> list[str]:
    match entry:
        case str():
            return [entry]
        case dict():
            return [target for inner in entry.values() for target in _targets(inner)]
        case _:
            return [target for inner in entry for target in _targets(inner)]


def test_links_lead_to_what_is_in_the_site() -> None:
    """Pages to pages, sources to copies; words of code are no links."""
    text = "[a](../README.md#x), [`b`](../tools/site.py) and `c[d](e)`, [f](time.md), [g](#h), [i](https://j)"
    moved = "[a](index.md#x), [`b`](source/tools/site.py.txt) and `c[d](e)`, [f](time.md), [g](#h), [i](https://j)"
    assert site.rewritten(text, "docs/windows.md") == moved
    assert site.linked_sources(text, "docs/windows.md") == {"tools/site.py"}
    assert site.rewritten("[a](docs/time.md)", "README.md") == "[a](time.md)"


def test_the_reference_has_a_page_for_each_family_of_symbols() -> None:
    """With its entries as headings; what links to one in the repository's file leads to its page."""
    text = "# Reference\n\n* [Rows of a key](#rows-of-a-key)\n\n## Rows of a key\n\nText.\n\n### `KeyedStream.over`\n"
    first, second = site_reference.pages(text).items()
    assert first == ("reference.md", "# Reference\n\n* [Rows of a key](reference-rows-of-a-key.md)\n\n")
    assert second[0] == "reference-rows-of-a-key.md"
    assert second[1].startswith("# Rows of a key\n\nPart of the [reference](reference.md)")
    assert second[1].endswith("Text.\n\n## `KeyedStream.over`\n")
    link = site.rewritten("[a](reference.md#keyedstreamover), [b](reference.md)", "docs/changes.md")
    assert link == "[a](reference-streams-with-a-key.md#keyedstreamover), [b](reference.md)"


@pytest.mark.parametrize("link", ["[a](nothing.md)", "[a](../tools)"])
def test_a_link_that_leads_nowhere_is_an_error(link: str) -> None:
    """Folders among them: a site has none to show."""
    with pytest.raises(site.SiteError, match=r"nothing\.md|tools"):
        site.rewritten(link, "docs/time.md")


def test_images_are_built_from_all_that_is_linked() -> None:
    """What `.dockerignore` keeps back would be missing there."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = tuple(line.removeprefix("!") for line in ignored if line.startswith("!"))
    pages = [*site.PAGES, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
    linked = {
        target for page in pages for target in site.linked_sources((ROOT / page).read_text(encoding="utf-8"), page)
    }
    assert len(linked) > 100
    assert [target for target in linked if not target.startswith(kept)] == []


class Resources(HTMLParser):
    """What a page has the browser fetch, and what stands inline."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: set[str] = set()
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source") and "src" in given:
            self.fetched.add(given["src"])
        if tag == "link":
            self.fetched.add(given["href"])
        data = given.get("type") == "application/json"
        if tag == "style" or "style" in given or (tag == "script" and "src" not in given and not data):
            self.inline.append(f"{tag} {given}")
        self.inline += [name for name in given if name.startswith("on")]


def test_a_page_needs_nothing_from_elsewhere_and_has_nothing_inline(built: Path) -> None:
    """So it is shown without a network, and under the policy of the dispatcher's pages."""
    pages = sorted(built.glob("*.html"))
    assert len(pages) > 40
    for page in pages:
        found = Resources()
        found.feed(page.read_text(encoding="utf-8"))
        assert not found.inline, page.name
        for name in found.fetched:
            assert not re.match(r"[a-z]+:|//", name), (page.name, name)
            assert page.name == "404.html" or (built / name.partition("?")[0]).is_file(), (page.name, name)


def test_style_sheets_fetch_nothing_from_elsewhere(built: Path) -> None:
    for sheet in built.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import )['\"]?(?:https?:|//|data:)", sheet.read_text(encoding="utf-8"))


def test_the_search_finds_a_word_of_every_page(built: Path) -> None:
    """Its index is in the site."""
    index = (built / "search.json").read_text(encoding="utf-8")
    for word in ("max_out_of_orderness", "tumbling_window", "PENSTOCK_KAFKA_BROKERS", "penstock_rows_in_total"):
        assert word in index


def test_the_house_is_a_picture(built: Path) -> None:
    """Drawn from the same lines that GitHub draws."""
    [picture] = built.glob("pictures/drawn-architecture-*.svg")
    text = picture.read_text(encoding="utf-8")
    assert ">protocol</text>" in text
    assert picture.name in (built / "architecture.html").read_text(encoding="utf-8")
    assert "mermaid" not in (built / "architecture.html").read_text(encoding="utf-8")


def test_a_graph_stands_on_floors() -> None:
    """Each box above those that it leads to; a circle cannot stand."""
    assert drawing.heights([("a", "b"), ("b", "c"), ("a", "c")]) == {"c": 0, "b": 1, "a": 2}
    with pytest.raises(ValueError, match="circle"):
        drawing.heights([("a", "b"), ("b", "a")])


def test_floors_are_ordered_so_that_arrows_do_not_cross() -> None:
    assert drawing.ordered([["a", "b"], ["c", "d"]], [("a", "d"), ("b", "c")]) == [["a", "b"], ["d", "c"]]

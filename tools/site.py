"""Builds the documentation site into build/site, with Zensical: `python -m tools.site`, or `make docs`.

* Pages that lie elsewhere in the repository have a place in it (`PAGES`).
* Links are written as they work in the repository. One to a source file leads to a copy of it in the site, so that a site
  without network shows the very code that it was built with; one to what is not there ends the build, as warnings do.
* The reference, one file in the repository, has a page for each family of symbols (`site_reference`).
* Drawings in Mermaid's notation become pictures: no script draws in the browser, and none is fetched.
* Scripts that stand in a page and pictures that stand in a style sheet become files of their own, so that the site can be
  served under a Content-Security-Policy that lets nothing else in (`penstock_dispatcher.page_routes`).
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tools import site_reference
from tools.drawing import drawn

ROOT: Final = Path(__file__).parents[1]
STAGE: Final = ROOT / "build/pages"
SITE: Final = ROOT / "build/site"
"""As `zensical.toml` has them."""
PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "helm/penstock/README.md": "chart.md",
}
"""Pages outside `docs`, and what they are called in the site."""
ICON: Final = "services/dispatcher/src/penstock_dispatcher/dashboard/icon.svg"
_LINK: Final = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]+`)|"  # in code nothing is a link
    r"(?P<text>\[(?:[^\[\]`]|`[^`]*`)*\]\()(?P<path>[^)\s:#]+)(?P<section>#[^)\s]*)?\)",
    re.M | re.S,
)
_MERMAID: Final = re.compile(r"```mermaid\n(.*?)```", re.S)
_SCRIPT: Final = re.compile(r"<script>(.+?)</script>", re.S)
_DATA: Final = re.compile(r"url\((['\"]?)data:image/svg\+xml;(?:charset=)?utf-?8,(.*?)\1\)")
_STYLE: Final = re.compile(r"(\w+)\.appendChild\(\w+\(\"style\",\{\},(\w+)\.toString\(\)\)\)")
"""Where Zensical's script puts a style sheet into the page for the search."""
_ADOPTED: Final = r"\1.adoptedStyleSheets=[(s=>(s.replaceSync(\2.toString()),s))(new CSSStyleSheet)]"
"""The same by a call, which a Content-Security-Policy lets a script do."""


class SiteError(Exception):
    """The site cannot be built as its pages are."""


def build() -> None:
    """The whole site, anew.

    Raises:
        SiteError: a link leads nowhere, or Zensical has warned.
    """
    stage()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or "Warning" in done.stdout + done.stderr:
        raise SiteError(f"{done.stdout}{done.stderr}\nthese are copies in {STAGE.relative_to(ROOT)}: correct docs")
    finish(SITE)


# -- pages and files ----------------------------------------------------------------------------------------------------


def stage() -> None:
    """Write all pages, with what they show and link to, as the site has them."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", STAGE, ignore=shutil.ignore_patterns("*.md"))
    _write("pictures/icon.svg", (ROOT / ICON).read_text(encoding="utf-8"))
    for origin in (*PAGES, *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md")))):
        text = (ROOT / origin).read_text(encoding="utf-8")
        page = rewritten(_pictured(text, origin), origin)
        parts = site_reference.pages(page) if origin == site_reference.FILE else {_in_site(origin): page}
        for name, part in parts.items():
            _write(name, part)
        for target in linked_sources(text, origin):
            _write(copy_of(target), (ROOT / target).read_text(encoding="utf-8"))


def _pictured(text: str, origin: str) -> str:
    """The page with pictures in place of its drawings, which are written beside it."""

    def picture(match: re.Match[str]) -> str:
        name = f"pictures/drawn-{Path(origin).stem}-{match.start()}.svg"
        _write(name, drawn(match[1]))
        return f"![drawn from the code]({posixpath.relpath(f'docs/{name}', posixpath.dirname(origin))})"

    return _MERMAID.sub(picture, text)


def _write(name: str, text: str) -> None:
    file = STAGE / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def copy_of(path: str) -> str:
    """Where the copy of a source file lies: as text, which browsers show."""
    return f"source/{path}.txt"


def linked_sources(text: str, origin: str) -> set[str]:
    """The files of the repository, neither pages nor pictures of the site, that a page links to."""
    paths = {match["path"] for match in _LINK.finditer(text) if match["path"]}
    targets = {_target(path, origin) for path in paths}
    return {target for target in targets if _in_site(target) == copy_of(target)}


def rewritten(text: str, origin: str) -> str:
    """The page with its links as they are in the site."""
    here = posixpath.dirname(_in_site(origin))

    def moved(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        found = _in_site(_target(match["path"], origin))
        if found == site_reference.FIRST and match["section"]:
            found = site_reference.page_of(match["section"].removeprefix("#"), ROOT)
        path = posixpath.relpath(found, here or ".")
        return f"{match['text']}{path}{match['section'] or ''})"

    return _LINK.sub(moved, text)


def _target(path: str, origin: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    if not (ROOT / target).exists() and not (STAGE / target.removeprefix("docs/")).exists():
        raise SiteError(f"{origin}: there is no {target}, to which it links; correct the link")
    return target


def _in_site(target: str) -> str:
    if target in PAGES:
        return PAGES[target]
    if (ROOT / target).is_dir():
        raise SiteError(f"a page links to the folder {target}: link to a file, or name the folder in backticks")
    return target.removeprefix("docs/") if target.startswith("docs/") else copy_of(target)


# -- nothing inline -----------------------------------------------------------------------------------------------------


def finish(site: Path) -> None:
    """Move scripts, styles and icons out of the pages, and leave out what only those need who change the theme."""
    for file in site.rglob("*.map"):
        file.unlink()
    for page in site.rglob("*.html"):
        page.write_text(_without_scripts(page.read_text(encoding="utf-8"), page, site), encoding="utf-8")
    (bundle,) = (site / "assets/javascripts").glob("bundle.*.js")
    _without_style(bundle)
    for sheet in (site / "assets").rglob("*.css"):
        sheet.write_text(_without_data(sheet.read_text(encoding="utf-8"), sheet.parent), encoding="utf-8")


def _without_data(text: str, folder: Path) -> str:
    text = re.sub(r"/\*# sourceMappingURL=.*?\*/", "", text)
    return _DATA.sub(lambda match: f"url(icons/{_saved(folder / 'icons', unquote(match[2]), '.svg')})", text)


def _without_style(script: Path) -> None:
    text, found = _STYLE.subn(_ADOPTED, script.read_text(encoding="utf-8"))
    if found != 1:
        raise SiteError(f"{script.name}: the search's style sheet is put in otherwise ({found} places): adapt _STYLE")
    script.write_text(text, encoding="utf-8")


def _without_scripts(html: str, page: Path, site: Path) -> str:
    up = "../" * (len(page.relative_to(site).parts) - 1) + "assets/inline/"
    folder = site / "assets/inline"
    return _SCRIPT.sub(lambda match: f'<script src="{up}{_saved(folder, match[1], ".js")}"></script>', html)


def _saved(folder: Path, text: str, ending: str) -> str:
    """The name of a file with this content."""
    name = hashlib.sha256(text.encode()).hexdigest()[:12] + ending
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return name


if __name__ == "__main__":
    try:
        build()
    except SiteError as error:
        sys.exit(f"error: {error}")

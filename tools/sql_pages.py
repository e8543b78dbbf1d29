"""Runs the SQL of pages of docs and writes what it prints behind it: `python -m tools.sql_pages`.

The blocks `sql` of a page (`PAGES`) run one after the other in one session, as typed at the prompt of `penstock sql`, in
a folder of their own. The block `text` directly behind one is what it prints; a block without one prints nothing. Files
that statements read are shown by the page as well: a block behind the comment `<!-- file: orders.jsonl -->`. A
block that is not run has a comment in front of it that says why: `<!-- not run: it needs a broker -->`; it is parsed.

A test compares what pages show with what is printed (`tests/unit/docs/test_sql_pages.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from rich.console import Console

from penstock.cli.sql import Asked
from penstock.errors import PenstockError
from penstock.sql.parsing import statements
from penstock.sql.text import SqlText

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ("docs/sql.md", "docs/sql-statements.md", "docs/sql-queries.md", "docs/sql-from-flink.md")
_WIDTH: Final = 110
_BLOCK: Final = re.compile(
    r"^<!-- file: (?P<file>\S+) -->\n```(?:text|python)\n(?P<content>.*?)^```\n"
    r"|(?P<head>(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?^```sql\n(?P<sql>.*?)^```\n)"
    r"(?P<output>\n```text\n.*?^```\n)?",
    re.M | re.S,
)


def rewritten(text: str) -> str:
    """The text of a page with the output that its blocks have now.

    Raises:
        PenstockError: a block that is not run cannot be parsed.
    """
    session = _Session()

    def block(match: re.Match[str]) -> str:
        if match["file"] is not None:
            Path(match["file"]).write_text(match["content"], encoding="utf-8")
            return match[0]
        if match["why"] is not None:
            statements(SqlText(match["sql"]))
            return match[0]
        output = session.output_of(match["sql"])
        return match["head"] + (f"\n```text\n{output}```\n" if output else "")

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), _importable(folder):
        Path("examples").symlink_to(ROOT / "examples")
        return _BLOCK.sub(block, text)


@contextlib.contextmanager
def _importable(folder: str) -> Generator[None]:
    """Modules that a page shows, which another page may have otherwise."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
        for module in Path(folder).glob("*.py"):
            sys.modules.pop(module.stem, None)


class _Session:
    """A prompt whose terminal is a text."""

    def __init__(self) -> None:
        self._terminal = io.StringIO()
        terminal = Console(file=self._terminal, emoji=False, force_terminal=True, color_system=None, width=_WIDTH)
        self._asked = Asked(terminal)

    def output_of(self, text: str) -> str:
        """What the statements print, or the error that they end with."""
        self._terminal.seek(0)
        self._terminal.truncate()
        with contextlib.redirect_stdout(self._terminal):
            try:
                self._asked.run(SqlText(text))
            except PenstockError as error:
                self._terminal.write(f"error: {error}\n")
        return re.sub(r" +$", "", self._terminal.getvalue(), flags=re.M)


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        page = ROOT / name
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")

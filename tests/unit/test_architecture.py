"""What the documents say of the code is so: the drawing, the links, what services load."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.docstring_names import docstrings, unknown_names
from tools.late_imports import needless
from tools.rooms import PAGE, arrows, circles, floors, lines, modules, redrawn, reduced, sources

from penstock import connectors

DOCS = Path(__file__).parents[2] / "docs"
LINK = re.compile(r"\[(`?)([^\]`]+)`?\]\(([^)#:]+)\)")


def test_the_drawing_is_that_of_the_code() -> None:
    """`python -m tools.rooms` draws it anew."""
    page = PAGE.read_text(encoding="utf-8")
    assert redrawn(page) == page, "run: python -m tools.rooms"


def test_every_room_is_in_the_table() -> None:
    """With what is in it; the services have a paragraph."""
    table = PAGE.read_text(encoding="utf-8").partition("| room |")[2].partition("\n\n")[0]
    rooms = {room for room in arrows() if not room.startswith("services/")}
    assert set(re.findall(r"`(\w+)`", table)) == rooms


def test_an_arrow_that_others_imply_is_not_drawn() -> None:
    assert reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == [("a", "b"), ("b", "c")]


@pytest.mark.parametrize("imports", [arrows, modules])
def test_nothing_imports_in_a_circle(imports: Callable[[], dict[str, set[str]]]) -> None:
    """Neither rooms nor modules; imports inside functions count, those for typing do not."""
    assert circles(imports()) == {}


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}).keys() == {"a", "b", "c"}


def test_floors_are_counted_from_what_imports_nothing() -> None:
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}) == 3


def test_no_room_has_more_than_fifteen_percent_of_the_lines() -> None:
    """One that has is two rooms: find what they are, and give the other one a name and a floor.

    The room of connectors is a row of systems that do not know each other, of which none has more than 6 %.
    """
    sizes = lines()
    assert {room: size for room, size in sizes.items() if size > 0.15 * sizes.total()}.keys() <= {"connectors"}
    systems = {
        folder.name: sum(len(file.read_text().splitlines()) for file in folder.rglob("*.py"))
        for folder in Path(connectors.__path__[0]).iterdir()
        if (folder / "__init__.py").exists()
    }
    assert len(systems) > 6
    assert {system: size for system, size in systems.items() if size > 0.06 * sizes.total()} == {}


def test_an_import_inside_a_function_spares_something() -> None:
    """Start-up time or an optional dependency; `python -m tools.late_imports` lists those that could stand at the top."""
    assert list(needless(sources())) == []


def test_an_import_inside_a_function_that_spares_nothing_is_found(tmp_path: Path) -> None:
    """A library that is loaded already, a small part of this one; not a library that is loaded there alone."""
    texts = {
        "ours": "",
        "ours.one": "import json, msgspec\ndef f():\n    import msgspec\ndef g():\n    import polars\n",
        "ours.two": "def h():\n    from ours import one\ndef i():\n    from ours.three import x\n",
        "ours.three": "import typing\n",
    }
    files = {module: tmp_path / module for module in texts}
    for module, file in files.items():
        file.write_text(texts[module])
    assert [line.partition(": ")[2].partition(",")[0] for line in needless(files)] == [
        "f imports msgspec",
        "i imports ours.three",
    ]


def links() -> Iterator[tuple[str, bool, str, str]]:
    for page in sorted(DOCS.glob("*.md")):
        for quoted, text, target in LINK.findall(page.read_text(encoding="utf-8")):
            yield page.name, bool(quoted), text, target


@pytest.mark.parametrize(("page", "quoted", "text", "target"), list(links()))
def test_a_link_leads_to_what_it_names(page: str, quoted: bool, text: str, target: str) -> None:
    """A file that is there; a name in backticks is defined in it, or is its own."""
    file = DOCS / target
    assert file.exists(), f"{page}: there is no {target}"
    if quoted and file.suffix == ".py" and file.stem != text:
        assert text in _defined(file), f"{page}: {target} defines no {text}"


def _defined(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(file.read_bytes()).body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Assign():
                found.update(target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return found


OTHER_HTTP_CLIENTS = {"urllib.request", "urllib.error", "http.client", "httpx", "requests", "aiohttp"}
SOURCES = [file for folder in ("shared/src", "services") for file in (DOCS.parent / folder).rglob("*.py")]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_there_is_one_http_client(file: Path) -> None:
    """HTTPX2, which the client of Kubernetes needs too: one way to set deadlines, and one family of errors."""
    assert not _imported(file) & OTHER_HTTP_CLIENTS


def _imported(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_bytes())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {
        name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    }


@pytest.mark.parametrize("service", ["penstock_coordinator", "penstock_dispatcher"])
def test_services_that_see_no_rows_load_no_data_libraries(service: str) -> None:
    """Neither at the start nor for a constant."""
    program = f"import json, sys, {service}.__main__; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {name for name in json.loads(done.stdout) if name in ("polars", "pyarrow", "numpy", "pandas")} == set()


def test_a_docstring_that_names_what_is_gone_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its line; code in backticks is not a name."""
    monkeypatch.setattr("tools.docstring_names.ROOT", tmp_path)
    file = tmp_path / "module.py"
    file.write_text('"""First.\n\nSee `gone_since` and `here`, or `x = 1`."""\nhere = 1\n')
    assert [line for line, _ in docstrings(file)] == [1]
    assert list(unknown_names(file, {"here"})) == ["module.py:3: nothing is called `gone_since`"]

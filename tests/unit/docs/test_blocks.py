"""Every block of code of every page is run, or looked at as far as it can be; none is left out without a reason.

A block that is run elsewhere, or cannot be run, has a comment in front of it that says so: `<!-- run by FILE -->`, where
the file is a test that reads the page, or `<!-- not run: REASON -->`. Pages whose blocks are all run by a test of their
own stand in `RUN_BY`. Of commands programs, subcommands and options are looked up in the parsers that read them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema_rs
import pytest
import yaml
from given import GIVEN
from tools import sql_pages
from tools.generated_pages import commands

from penstock.graph.jobgraph import build_job_graph
from penstock.pipeline import Pipeline
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.sql.programs import Program
from penstock.sql.text import SqlText
from penstock.testing.sql import read_sql_tests, run_sql_test
from penstock_operator.definitions import KINDS, definition
from penstock_operator.resources import GROUP, VERSION

ROOT = Path(__file__).parents[3]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "helm/penstock/README.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
]
RUN_BY = {
    "README.md": "tests/e2e/test_readme.py",
    "docs/tutorial.md": "tests/e2e/test_readme.py",
    "docs/connectors.md": "tests/integration/test_connector_page.py",
    "docs/testing.md": "tests/unit/testing/test_docs.py",
    "docs/reference.md": "tests/unit/api/test_reference.py",  # and the examples, in docstrings, by test_examples.py
}
"""Where all Python blocks of a page are run."""
SHOWN = ("text", "mermaid")
"""What is shown, and neither typed nor read by a program."""
TYPED = ("", "bash", "console", "sh")
ELSEWHERE = {
    "base64", "cat", "curl", "diff", "docker", "done", "dot", "echo", "export", "for", "head", "helm", "kill",
    "kubectl", "openssl", "pgrep", "pip", "rm", "sleep", "sort", "spark-submit", "until", "venv-pack", "wait",
}  # fmt: skip
"""Programs that are not ours: that they are spelled so is all that is known here."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str
    run_by: str
    not_run: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    pattern = re.compile(
        r"(?:^<!-- (?:run by (?P<by>\S+)|not run: (?P<why>[^\n]+?)|file: \S+) -->\n)?"
        r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$",
        re.M | re.S,
    )
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for found in pattern.finditer(text):
            line = text.count("\n", 0, found.start("kind")) + 1
            yield Block(page, line, found["kind"], found["text"], found["by"] or "", found["why"] or "")


BLOCKS = list(blocks())
PYTHON = [block for block in BLOCKS if block.kind == "python"]


def test_every_fence_is_part_of_a_block() -> None:
    """So that no block is overlooked for the way it is written."""
    for page in PAGES:
        fences = re.findall(r"^ *```", (ROOT / page).read_text(encoding="utf-8"), re.M)
        assert len(fences) == 2 * sum(block.page == page for block in BLOCKS), page


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    """A new kind needs a test here first."""
    assert {block.kind for block in BLOCKS} <= {"python", "sql", "toml", "yaml", *SHOWN, *TYPED}


@pytest.mark.parametrize("page", sorted({block.page for block in PYTHON} - RUN_BY.keys()))
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page one after the other, in a module of their own; pipelines that write become graphs."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("blocks_of_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(GIVEN[page]() if page in GIVEN else {})
    for block in PYTHON:
        if block.page == page:
            code = compile(block.text, str(block), "exec")
            if not (block.not_run or block.run_by):
                exec(code, vars(module))
    for pipeline in {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}.values():
        if any(isinstance(node.operation, Write) for node in pipeline.plan.nodes):
            assert build_job_graph(pipeline.plan, 2).vertices


@pytest.mark.parametrize(
    ("page", "test"),
    sorted({*RUN_BY.items(), *((block.page, block.run_by) for block in BLOCKS if block.run_by)}),
)
def test_what_is_run_elsewhere_is_run_there(page: str, test: str) -> None:
    """By a test that reads the page."""
    assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


TESTS_OF_SQL = [block for block in BLOCKS if block.kind == "sql" and "-- test:" in block.text]


@pytest.mark.parametrize("block", TESTS_OF_SQL, ids=str)
def test_tests_of_sql_pass(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the example, if they do not declare their tables themselves."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "departures.sql", tmp_path)
    Path("departures.test.sql").write_text(block.text, encoding="utf-8")
    tests = read_sql_tests(Path("departures.test.sql"), {})
    assert [run_sql_test(tests, test) for test in tests.file.tests] == [[]] * block.text.count("-- test:")


@pytest.mark.parametrize(
    "block",
    [
        block
        for block in BLOCKS
        if block.kind == "sql" and block not in TESTS_OF_SQL and block.page not in sql_pages.PAGES
    ],
    ids=str,
)
def test_sql_becomes_a_plan(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that fills a table without declaring it fills that of the example. Pages about SQL are run as they stand
    (`test_sql_pages.py`)."""
    monkeypatch.chdir(ROOT)
    declared = (ROOT / "examples" / "departures.sql").read_text(encoding="utf-8").partition("INSERT INTO")[0]
    text = declared + block.text if block.text.startswith("INSERT INTO") else block.text
    plan = LogicalPlan("block")
    Program.of(SqlText(text, str(block))).add_to(plan)
    assert build_job_graph(plan, 2).vertices


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "toml"], ids=str)
def test_toml_is_read(block: Block) -> None:
    assert tomllib.loads(block.text)


RESOURCES = (ROOT / "examples").glob("*_job.yaml")


@pytest.mark.parametrize(
    "text", [*(block.text for block in BLOCKS if block.kind == "yaml"), *(file.read_text() for file in RESOURCES)]
)
def test_yaml_is_values_of_the_chart_or_a_resource_of_the_operator(text: str) -> None:
    """By the schema that helm checks them against, or that of the definition; which has every field that is there."""
    for document in yaml.safe_load_all(text):
        if "apiVersion" in document:
            (kind,) = (kind for kind in KINDS if kind.name == document["kind"])
            assert document["apiVersion"] == f"{GROUP}/{VERSION}"
            schema = closed(definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
            jsonschema_rs.validate(schema, document["spec"])
        else:
            values = json.loads((ROOT / "helm" / "penstock" / "values.schema.json").read_text(encoding="utf-8"))
            jsonschema_rs.validate(values, document)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that takes no field that it does not name."""
    if "properties" not in schema:
        return schema
    properties = {name: closed(inner) for name, inner in schema["properties"].items()}
    return {**schema, "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind in TYPED], ids=str)
def test_what_is_typed_exists(block: Block) -> None:
    """Programs, commands and options; targets of make; modules of Python."""
    for line in typed_lines(block.text):
        for words in simple_commands(line):
            problem = problem_of(words)
            assert not problem, f"{block}: {' '.join(words)}: {problem}"


def typed_lines(text: str) -> list[str]:
    """Whole commands, without what they print where prompts tell it."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.strip()]


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line of the shell, without variables that are set before them and what they are redirected to."""
    line = re.sub(r"\$\(([^()]|\([^()]*\))*\)", "IT", line)
    found = shlex.shlex(line, posix=True, punctuation_chars=";|&")
    found.whitespace_split = True
    words: list[str] = []
    for word in [*found, ";"]:
        if set(word) <= set(";|&"):
            if words:
                yield words
            words = []
        elif words or (word != "do" and not re.match(r"[A-Z_]+=", word)):
            words.append(word)


PARSERS = {name: parser for name, _, parser in commands()}


def problem_of(words: list[str]) -> str:
    """What is wrong with a command; nothing if nothing is."""
    program, *rest = words
    match Path(program).name, rest:
        case "penstock", _:
            return problem_of_penstock(rest)
        case "make", [target, *_]:
            return "" if re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M) else "there is no such target"
        case "python" | "python3", ["-m", module, *_]:
            return "" if module_exists(module) else "there is no such module"
        case name, _:
            return "" if name in ELSEWHERE else "nobody knows this program: correct it, or add it to ELSEWHERE"


def module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that is not there
        return False


def problem_of_penstock(words: list[str]) -> str:
    if not words or words[0].startswith("--"):
        return ""
    name = next((name for name in PARSERS if words[: len(name.split())] == name.split()), None)
    if name is None:
        return "there is no such command"
    given = [word for word in words[len(name.split()) :] if word != ">"]
    try:
        PARSERS[name].parse_args(given)
    except (SystemExit, argparse.ArgumentError):
        return "its parser refuses these options"
    return ""


def test_what_does_not_exist_is_found() -> None:
    """Commands, options, targets, modules, programs."""
    for line in (
        "penstock fly",
        "penstock jobs --high",
        "make hay",
        "python -m no.such.module",
        "frobnicate",
        "a | penstock fly",
    ):
        assert any(problem_of(words) for words in simple_commands(line)), line
    assert not any(
        problem_of(words) for words in simple_commands("X=1 penstock submit a.py --param d={{ds}} && make test")
    )

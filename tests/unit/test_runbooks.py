"""Every alert has a runbook that it leads to, every runbook an alert, and what runbooks say to type exists."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import yaml
from tools.site_reference import anchor_of

from penstock.cli.main import _parser

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "runbooks.md"
RULES = ROOT / "infra" / "prometheus" / "alerts.yml"
PARTS = ("**Means**", "**Look first**", "**Commands**", "**Ends**", "**Wake**")
LINKING = (PAGE, ROOT / "docs" / "operating.md")


def alerts() -> dict[str, dict[str, str]]:
    """The annotations of each alert."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["annotations"] for group in groups for rule in group["rules"]}


def sections() -> dict[str, str]:
    """The text of each runbook by its title."""
    _, *found = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)
    return {title: text for title, _, text in (section.partition("\n") for section in found)}


def anchors(page: Path) -> set[str]:
    """Where links can lead in a page, as GitHub and MkDocs name its titles."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return set(map(anchor_of, titles))


def test_alerts_and_runbooks_are_in_step() -> None:
    """In the same order, so that neither is forgotten."""
    assert list(sections()) == list(alerts())


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_leads_to_its_runbook(alert: str) -> None:
    """By an annotation that Alertmanager and Grafana show as a link where the docs are hosted."""
    page, _, section = alerts()[alert]["runbook_url"].partition("#")
    assert ROOT / page == PAGE
    assert section == alert.lower()
    assert section in anchors(PAGE)


@pytest.mark.parametrize("alert", alerts())
def test_a_runbook_has_all_parts_in_order(alert: str) -> None:
    """What it means, what to look at, what to type, how it ends, whom to wake."""
    places = [sections()[alert].find(part) for part in PARTS]
    assert min(places) >= 0, PARTS[places.index(-1)]
    assert places == sorted(places)


def test_commands_of_runbooks_exist() -> None:
    """With the options that are given."""
    (top,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    found = re.findall(r"penstock ([a-z]+)((?: [\w./=-]+)*)", PAGE.read_text(encoding="utf-8"))
    assert len(found) > 20
    services = {"taskmanager", "pipeline"}  # their packages have their options
    for command, rest in found:
        assert command in top.choices, command
        known = {option for action in top.choices[command]._actions for option in action.option_strings}
        assert command in services or set(re.findall(r"--[a-z-]+", rest)) <= known, (command, rest)


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and to a title in it."""
    for target in re.findall(r"\]\(([^)\s]*)\)", page.read_text(encoding="utf-8")):
        file, _, section = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        assert not section or section in anchors(there), target

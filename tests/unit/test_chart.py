"""What the chart holds that is made from something else is current."""

from __future__ import annotations

from infra.chart import CHART, DEFINITIONS, files


def test_made_files_are_current() -> None:
    """They are what `python -m infra.chart` writes, and there are no others."""
    made = files()
    assert {path: path.read_text(encoding="utf-8") for path in made} == made
    assert {*(CHART / "files").iterdir(), *DEFINITIONS.iterdir()} <= made.keys()


def test_every_value_has_a_row() -> None:
    """The README has the nested ones by their full names."""
    text = (CHART / "README.md").read_text(encoding="utf-8")
    for name in (
        "kafka.brokers",
        "taskmanager.localState.sizeLimit",
        "bundled.kafka.enabled",
        "dispatcher.ingress.host",
    ):
        assert f"| `{name}` |" in text

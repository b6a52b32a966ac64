"""The facts screen: whole on every recorded host, and it never hides a reason."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from checks.facts import HostFacts
from checks.report_facts import render_facts

HOSTS = sorted((Path(__file__).parent / "hosts").glob("*.json"))


def screen(facts: HostFacts) -> str:
    console = Console(file=StringIO(), width=160, no_color=True)
    console.print(render_facts(facts))
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


@pytest.mark.parametrize("path", HOSTS, ids=lambda p: p.stem)
def test_every_host_renders(path: Path) -> None:
    facts = HostFacts.load(path)
    text = screen(facts)
    assert f"host {facts.host}" in text
    assert facts.tree["os"]["pretty"] in text


def test_reasons_are_shown() -> None:
    text = screen(HostFacts.load(HOSTS[0].parent / "h200x2-mismatch.json"))
    assert "unknown: NVML does not answer: RM has detected an NVML/RM version mismatch." in text
    assert "580.173.02" in text


def test_nothing_known_is_said_not_hidden() -> None:
    text = screen(HostFacts("h", 0.0, {}))
    assert text.count("unknown: not probed") > 15

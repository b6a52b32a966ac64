"""The report in a real Chromium: nothing fetched, nothing logged, no sideways scroll, readable by all."""

import re
from pathlib import Path
from typing import Any

import axe_core_python
import pytest

from tests.report import making
from tests.report.chromium import Browser

pytestmark = pytest.mark.browser

AXE = Path(axe_core_python.__file__).parent / "axe.min.js"
#: width, dark
SIGHTS = [(360, False), (360, True), (1280, False), (1280, True)]
WIDER = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .sr, .skip') && "
WIDER += "e.getBoundingClientRect().right > WIDTH + 1).map(e => e.outerHTML.slice(0, 200))"
CHARTS = "[...document.querySelectorAll('svg[role=img]')].map(s => {const b = s.getBoundingClientRect();"
CHARTS += "return [b.width, b.height, s.querySelectorAll('polyline, rect, path').length]})"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize(("width", "dark"), SIGHTS)
def test_it_opens_in_silence_and_fits(page: Browser, whole: Path, width: int, dark: bool) -> None:
    page.look(width, dark=dark)
    page.open(whole)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(WIDER.replace("WIDTH", str(width))) == []
    drawn = page.evaluate(CHARTS)
    assert len(drawn) > 6
    assert [d for d in drawn if d[0] < 150 or d[1] < 20 or not d[2]] == []
    light = sum(map(int, re.findall(r"\d+", page.evaluate(BACKGROUND))[:3])) / 3
    assert light < 60 if dark else light > 200
    assert page.requests == [whole.as_uri()]
    assert page.console == []


def test_an_attack_in_any_text_stays_text(page: Browser, whole: Path) -> None:
    page.look(1280)
    page.open(whole)
    assert page.evaluate("document.scripts.length + document.images.length") == 0
    assert page.evaluate("document.querySelectorAll('[onerror], [onload]').length") == 0
    assert making.HOSTILE in page.evaluate("document.body.textContent")
    assert page.requests == [whole.as_uri()]


def test_what_would_slip_through_could_not_run(page: Browser, whole: Path, tmp_path: Path) -> None:
    """The policy, with a page that does hold markup from elsewhere."""
    evil = tmp_path / "evil.html"
    markup = "<script>document.title = 'taken'</script><img src=https://example.invalid/a.png>"
    markup += "<p style='color:red'>x</p>"
    evil.write_text(whole.read_text(encoding="utf-8").replace("<main", f"{markup}<main"), encoding="utf-8")
    page.open(evil)
    assert page.evaluate("document.title") != "taken"
    assert sum("Content Security Policy" in line for line in page.console) == 3
    assert page.blocked == ["csp"]  # the picture: asked for by the page, refused before it was sent


@pytest.mark.parametrize(("width", "dark"), SIGHTS)
def test_the_accessibility_rules_find_nothing(page: Browser, whole: Path, width: int, dark: bool) -> None:
    page.look(width, dark=dark)
    page.open(whole)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.evaluate(AXE.read_text(encoding="utf-8") + ";0")
    told: dict[str, Any] = page.evaluate(
        "axe.run(document, {resultTypes: ['violations', 'incomplete']}).then(r => ({"
        "violations: r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 160)).slice(0, 3)]), "
        "passes: r.passes.map(p => p.id)}))"
    )
    assert told["violations"] == []
    assert {"color-contrast", "document-title", "html-has-lang", "svg-img-alt"} <= set(told["passes"])


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Browser, whole: Path) -> None:
    page.look(1280)
    page.open(whole)
    page.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#fleet"
    seen = set()
    for _ in range(page.evaluate("document.querySelectorAll('a, summary, [tabindex=\"0\"]').length")):
        page.press("Tab")
        seen.add(page.evaluate("document.activeElement.outerHTML.slice(0, 120)"))
    assert any("summary" in s for s in seen)


def test_paper_shows_what_is_folded(page: Browser, whole: Path) -> None:
    page.look(800)
    page.open(whole)
    page.call("Emulation.setEmulatedMedia", media="print")
    try:
        hidden = "[...document.querySelectorAll('details table')]"
        hidden += ".filter(t => !t.getBoundingClientRect().height).length"
        assert page.evaluate(hidden) == 0
        assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        page.call("Emulation.setEmulatedMedia", media="")

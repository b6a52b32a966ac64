"""Generated pages are current, and what the hand-written ones name exists."""

import re

import pytest

from tests.generate_docs import BEGIN, END, ROOT, pages

PAGES = ("README.md", "DESIGN.md", "CONTRIBUTING.md")
#: A user's own file; a folder of an installed eyas.
ELSEWHERE = {"inventory/hosts.yml", "provision/_systemd"}


def test_generated_pages_are_current() -> None:
    stale = [path.name for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run: invoke docs"


def test_readme_has_one_table() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count(BEGIN) == text.count(END) == 1


def test_every_option_is_explained() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text()
    assert re.findall(r"^\| `(--[^`]*)` \|  \|$", page, re.MULTILINE) == []


@pytest.mark.parametrize("name", PAGES)
def test_named_paths_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    named = re.findall(r"`((?:inventory|checks|provision|systemd|tests|docs)/[\w./-]*)`", text)
    linked = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)
    there = {p for p in named if (ROOT / p).exists() or p in ELSEWHERE or re.search("[A-Z]{3}", p)}
    assert sorted({*named} - there) == []
    assert [p for p in linked if not (ROOT / p).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_named_tasks_and_options_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    page = (ROOT / "docs" / "tasks.md").read_text()
    sections = {s.split("\n", 1)[0]: s for s in page.split("\n## ")[1:]}
    lines = re.findall(r"(?:^|[`|] ?)(?:invoke|\./eyas) ([a-z][a-z-]+)([^\n`|#]*)", text, re.MULTILINE)
    for task, rest in lines:
        assert task in sections, f"{name}: invoke {task}"
        for option in re.findall(r"(?<=\s)--[a-z-]+", rest):
            assert f"`{option}" in sections[task] or option == "--help", f"{name}: invoke {task} {option}"

"""Score the doctor over a folder of cases: a contributor's measure, not a diagnosis.

A case is a folder with ``case.json`` ({"engine", "facts", "expected": {"code": SLUG, "wrong_fixes"}}),
``log.txt`` and, where they matter, ``metrics.json`` or ``metrics.txt`` and ``unit.service``.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.doctor.catalogue import catalogue
from checks.doctor.diagnose import diagnose
from checks.doctor.model import Inputs, Report
from checks.outcome import Fix
from inventory.errors import UsageError

__all__ = ["CaseScore", "Score", "load_case", "score"]

_FILLER = {"the", "a", "an", "to", "of", "set", "by", "it", "is", "this", "that", "another"}


@dataclass(frozen=True)
class CaseScore:
    name: str
    expected: str
    got: tuple[str, ...]
    family: bool
    wrong_first: bool

    @property
    def top1(self) -> bool:
        return self.got[:1] == (self.expected,)

    @property
    def top3(self) -> bool:
        return self.expected in self.got[:3]


@dataclass(frozen=True)
class Score:
    cases: tuple[CaseScore, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "cases": len(self.cases),
            "top1": sum(c.top1 for c in self.cases),
            "top3": sum(c.top3 for c in self.cases),
            "family": sum(c.family for c in self.cases),
            "wrong_first": sum(c.wrong_first for c in self.cases),
            "missed": [
                {"case": c.name, "expected": c.expected, "got": list(c.got[:3]), "wrong_first": c.wrong_first}
                for c in self.cases
                if not c.top1 or c.wrong_first
            ],
        }


def score(folder: Path) -> Score:
    """Diagnose every case below ``folder``. Raises UsageError when there is none."""
    found = tuple(_score(path.parent) for path in sorted(folder.glob("*/case.json")))
    if not found:
        raise UsageError(
            f"no */case.json below {folder}", hint="a case is a folder with case.json and log.txt"
        )
    return Score(found)


def load_case(folder: Path) -> tuple[dict[str, Any], Inputs]:
    """The case's description and its inputs."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    texts = {p.name: p.read_text(encoding="utf-8") for p in folder.iterdir() if p.name in _FILES}
    log = folder / "log.txt"
    return case, Inputs(
        log=[log.read_bytes()] if log.exists() else None,
        facts=case.get("facts") or {},
        unit=texts.get("unit.service"),
        metrics=texts.get("metrics.json", texts.get("metrics.txt")),
        engine=case.get("engine") or "",
        engine_version=case.get("engine_version") or "",
    )


_FILES = {"unit.service", "metrics.json", "metrics.txt"}


def _score(folder: Path) -> CaseScore:
    case, inputs = load_case(folder)
    report = diagnose(inputs)
    expected = case["expected"]["code"]
    return CaseScore(
        folder.name,
        expected,
        tuple(f.slug for f in report.findings),
        _family(report, expected),
        wrong_first(report, case["expected"].get("wrong_fixes", ())),
    )


def _family(report: Report, expected: str) -> bool:
    book = catalogue().by_slug
    top = next((book[f.slug].family for f in report.findings), "")
    return bool(top) and expected in book and book[expected].family == top


def wrong_first(report: Report, wrong: Iterator[str] | list[str] | tuple[str, ...]) -> bool:
    """The first advice of the first finding says what the case calls wrong."""
    fixes = report.findings[0].fix[:1] if report.findings else ()
    return any(_says(fix, text) for fix in fixes for text in wrong)


def _says(fix: Fix, wrong: str) -> bool:
    said = _words(f"{fix.change} {fix.value} {fix.command}")
    meant = _words(re.sub(r"\([^)]*\)", "", wrong))
    meant -= {"lower", "raise", "increase", "decrease"} if _knob(meant) else set()
    return bool(meant) and meant <= said


def _knob(words: set[str]) -> bool:
    return any("_" in w for w in words)


def _words(text: str) -> set[str]:
    normal = text.lower().replace("--", "").replace("-", "_")
    return {w for w in re.findall(r"[a-z_]{2,}", normal) if w not in _FILLER}

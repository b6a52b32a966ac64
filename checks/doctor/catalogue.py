"""The codes (what, why, example, fix) and the log signatures: data files beside this module.

One code is one cause. A signature belongs to a cause or sets a mark that a rule reads together with
facts. Adding either touches its data file and a case, no code.
"""

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from checks.outcome import Severity

__all__ = ["Catalogue", "Code", "FixStep", "Signature", "catalogue"]

HERE = Path(__file__).resolve().parent
_NAME = re.compile(r"(?<!\{)\{(\w+)\}(?!\})")
STRENGTH = {"high": 3, "medium": 2, "low": 1}


@dataclass(frozen=True)
class FixStep:
    """One change of a code's fix. ``{name}`` in value, command, why is filled from the finding's values;
    a step whose ``needs`` are not all known, or one of whose ``unless`` is known, is left out.
    """

    change: str
    value: str = ""
    command: str = ""
    why: str = ""
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    @cached_property
    def asks(self) -> frozenset[str]:
        """Every name that must be known before this step can be said."""
        used = _NAME.findall(f"{self.value} {self.command} {self.why}")
        return frozenset(self.needs) | frozenset(used)


@dataclass(frozen=True)
class Code:
    code: str
    slug: str
    family: str
    severity: Severity
    title: str
    what: str
    why: str
    example: str
    fix: tuple[FixStep, ...]
    explains: tuple[str, ...] = ()
    #: Which of ``invoke doctor --fix``'s safe kinds mends it; "" prints the commands only.
    safe_fix: str = ""


@dataclass(frozen=True, eq=False)
class Signature:
    """A regular expression with the literals that must be on the line before it is tried.

    Case does not matter: the expression is lower-cased once and tried on the lower-cased line, which is
    several times faster than IGNORECASE; groups are cut from the line as it was.
    ``cause`` is a code's slug; ``mark`` a name rules look up; ``window`` keeps the surrounding lines;
    ``sticky`` lines (kernel, driver) count whatever restart they belong to.
    """

    id: str
    regex: re.Pattern[str]
    anchors: tuple[str, ...]
    cause: str = ""
    mark: str = ""
    strength: int = 3
    window: bool = False
    sticky: bool = False
    severity: Severity | None = None
    examples: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()
    source: str = ""

    def match(self, text: str) -> dict[str, str] | None:
        """The groups of the first match, None when there is none."""
        found = self.regex.search(text.lower())
        if found is None:
            return None
        spans = ((name, found.span(name)) for name in self.regex.groupindex)
        return {name: text[begin:end] for name, (begin, end) in spans if begin >= 0}


@dataclass(frozen=True)
class Catalogue:
    codes: dict[str, Code]
    signatures: tuple[Signature, ...]
    by_slug: dict[str, Code] = field(default_factory=dict)

    def find(self, name: str) -> Code | None:
        """A code by its code (any case) or slug."""
        return self.codes.get(name.upper()) or self.by_slug.get(name.lower())

    def nearest(self, name: str) -> list[str]:
        """Names close to a mistyped one, best first."""
        import difflib  # noqa: PLC0415 - only on a typing error

        names = [*self.codes, *self.by_slug]
        close = difflib.get_close_matches(name, names, 3, 0.5) + difflib.get_close_matches(
            name.upper(), names, 3, 0.6
        )
        return list(dict.fromkeys(close))


@cache
def catalogue() -> Catalogue:
    codes = {c.code: c for path in sorted(HERE.glob("codes/*.toml")) for c in _codes(path)}
    signatures = tuple(s for path in sorted(HERE.glob("signatures/*.toml")) for s in _signatures(path))
    return Catalogue(codes, signatures, {c.slug: c for c in codes.values()})


def _codes(path: Path) -> list[Code]:
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    return [_code(code, raw) for code, raw in tree.items()]


def _code(code: str, raw: dict[str, Any]) -> Code:
    steps = tuple(
        FixStep(**{**step, **{k: tuple(step.get(k, ())) for k in ("needs", "unless")}}) for step in raw["fix"]
    )
    return Code(
        code=code,
        slug=raw["slug"],
        family=raw["family"],
        severity=Severity(raw.get("severity", "error")),
        title=raw["title"],
        what=raw["what"].strip(),
        why=raw["why"].strip(),
        example=raw["example"].strip(),
        fix=steps,
        explains=tuple(raw.get("explains", ())),
        safe_fix=raw.get("safe_fix", ""),
    )


def _signatures(path: Path) -> list[Signature]:
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    return [_signature(raw) for raw in tree["signature"]]


_KEEP_CASE = re.compile(r"\\.|\(\?P<\w+>|\(\?P=\w+\)")


def _lowered(pattern: str) -> str:
    r"""The expression in lower case, escapes (\S, \B) and group names left as they are."""
    out, at = [], 0
    for found in _KEEP_CASE.finditer(pattern):
        out += [pattern[at : found.start()].lower(), found[0]]
        at = found.end()
    return "".join(out) + pattern[at:].lower()


def _signature(raw: dict[str, Any]) -> Signature:
    example = raw.get("example", ())
    quiet = raw.get("quiet", ())
    return Signature(
        id=raw["id"],
        regex=re.compile(_lowered(raw["regex"])),
        anchors=tuple(a.lower() for a in raw["anchors"]),
        cause=raw.get("cause", ""),
        mark=raw.get("mark", ""),
        strength=STRENGTH[raw.get("strength", "high")],
        window=raw.get("window", False),
        sticky=raw.get("sticky", False),
        severity=Severity(raw["severity"]) if "severity" in raw else None,
        examples=(example,) if isinstance(example, str) else tuple(example),
        quiet=(quiet,) if isinstance(quiet, str) else tuple(quiet),
        source=raw.get("source", ""),
    )

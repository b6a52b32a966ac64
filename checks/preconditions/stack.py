"""Wheels against the host: Python, glibc, compute capability, compiler."""

from collections.abc import Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from checks.facts import HostFacts
from checks.outcome import Severity
from checks.preconditions.common import do, each, seen, version
from checks.preconditions.want import Floors, Want
from checks.rule import Found, NotApplicable, NotLooked, known, need, rule

__all__ = ["RULES"]


def _floors(want: Want) -> Floors:
    if want.floors is None:
        raise NotApplicable("no engine release to compare with")
    return want.floors


@rule("python-unsupported")
def python_range(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The host's Python is outside the range the wheels are for."""
    floors = _floors(want)
    have = need(facts, "python.version")
    try:
        allowed = SpecifierSet(floors.python)
    except InvalidSpecifier as e:
        raise NotLooked(f"the catalogue's Python range {floors.python!r}: {e}") from e
    if version(have, "python.version") not in allowed:
        others = ", ".join(known(facts, "python.others", [])) or "none"
        yield Found(
            f"the host's Python is {have}, {floors.label} needs {floors.python} (others there: {others})",
            seen("python.version", have),
            do("serve a release for this Python, or install another one", value="engine_version: auto"),
        )


@rule("glibc-too-old")
def glibc(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The host's C library is older than the wheels need."""
    floors = _floors(want)
    if not floors.glibc:
        raise NotApplicable("the wheels name no glibc")
    have = need(facts, "os.glibc")
    if version(have, "os.glibc") < version(floors.glibc, "glibc floor"):
        yield Found(
            f"the host's glibc is {have}, {floors.label} needs {floors.glibc} or newer",
            seen("os.glibc", have),
            do(
                "use a newer operating system, or a release that runs on this one",
                value="engine_version: auto",
            ),
        )


@rule("torch-no-kernel-image", needs_cards=True)
def compute_capability(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The wheels hold no code for this card's compute capability."""
    floors = _floors(want)
    if floors.compute_capability is None:
        raise NotApplicable("the catalogue names no compute capabilities for this release")
    low, high = floors.compute_capability
    for card, cc in each(facts, want, "cc"):
        have = version(cc, f"gpus.{card['index']}.cc")
        if not version(low, "lowest") <= have <= version(high, "highest"):
            yield Found(
                f"card {card['index']} ({card.get('name')}) has compute capability {cc}, "
                f"{floors.label} has code for {low} to {high}",
                seen(f"gpus.{card['index']}.cc", cc),
                do("serve a release with code for this card", value="engine_version: auto"),
            )


@rule("compiler-missing", severity=Severity.WARNING, needs_cards=True)
def compiler(facts: HostFacts, want: Want) -> Iterator[Found]:
    """Kernels compiled at start need a C compiler and Python's headers."""
    lacking = {
        "gcc": need(facts, "tools.gcc") is None and need(facts, "tools.cc") is None,
        "g++": need(facts, "tools.g++") is None,
        "python3-dev": need(facts, "python.headers") is False,
    }
    names = [name for name, absent in lacking.items() if absent]
    if names:
        yield Found(
            f"not installed: {', '.join(names)}; kernels that are compiled at start fail without",
            seen("tools", " ".join(names)),
            do("install them", f"sudo apt-get install -y {' '.join(names)}"),
        )


RULES = (python_range, glibc, compute_capability, compiler)

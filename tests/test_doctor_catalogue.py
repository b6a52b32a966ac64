"""The catalogue is whole: texts, unique slugs, signatures that match their examples and keep quiet."""

import re
import time
from functools import cache
from pathlib import Path

from checks.doctor.catalogue import Signature, catalogue
from checks.doctor.diagnose import _fixes
from checks.doctor.patterns import option, phases, prose
from checks.doctor.scan import LINE_CAP, scan

HERE = Path(__file__).resolve().parent
BOOK = catalogue()
PREFIXES = {"DRV", "STK", "GPU", "TP", "MEM", "DRF", "WGT", "DSK", "SVC", "NET", "OPS"}


def test_all_public_causes_have_a_code_of_their_family() -> None:
    lines = (HERE / "cases" / "TAXONOMY.txt").read_text().splitlines()[1:]
    wanted = dict(line.split() for line in lines)
    assert {s: BOOK.by_slug[s].family for s in wanted} == wanted


def test_codes_and_slugs_are_unique() -> None:
    text = "".join(p.read_text() for p in sorted((HERE.parent / "checks/doctor/codes").glob("*.toml")))
    codes = re.findall(r"^\[([A-Z]+\d{3})\]$", text, re.MULTILINE)
    assert len(codes) == len(set(codes)) == len(BOOK.codes) == len(BOOK.by_slug)
    assert {re.sub(r"\d", "", c) for c in codes} <= PREFIXES


def test_codes_are_whole() -> None:
    wrong = {}
    for code in BOOK.codes.values():
        faults = [name for name in ("title", "what", "why", "example", "fix") if not getattr(code, name)]
        if all(step.asks for step in code.fix):
            faults.append("no fix when nothing is known")
        faults += [f"explains {s}" for s in code.explains if s not in BOOK.by_slug or s == code.slug]
        if faults:
            wrong[code.code] = faults
    assert wrong == {}


def test_half_known_values_never_leave_a_cause_without_a_fix() -> None:
    for code in BOOK.codes.values():
        names = sorted({n for s in code.fix for n in (*s.asks, *s.unless)})
        for bits in range(2 ** len(names)):
            have = {n: "7" for i, n in enumerate(names) if bits >> i & 1}
            assert _fixes(code.fix, have), (code.code, have)


def test_signature_ids_are_unique_and_causes_exist() -> None:
    ids = [s.id for s in BOOK.signatures]
    assert len(ids) == len(set(ids))
    for sig in BOOK.signatures:
        assert bool(sig.cause) != bool(sig.mark), sig.id
        assert not sig.cause or sig.cause in BOOK.by_slug, sig.id
        assert sig.source, sig.id


@cache
def found_in(text: str) -> tuple[Signature, ...]:
    return tuple(h.sig for h in scan([text.encode() + b"\n"], BOOK.signatures).hits)


def test_signatures_find_their_examples_and_nothing_quiet() -> None:
    assert [s.id for s in BOOK.signatures if not s.examples] == []
    missed = [(s.id, text) for s in BOOK.signatures for text in s.examples if s not in found_in(text)]
    assert missed == []
    loud = [(s.id, text) for s in BOOK.signatures for text in s.quiet if s in found_in(text)]
    assert loud == []


def test_no_example_names_another_cause() -> None:
    """An example of a cause matches no signature of another cause that would win."""
    clashes = [
        (sig.id, other.id, text)
        for sig in BOOK.signatures
        if sig.cause
        for text in sig.examples
        for other in found_in(text)
        if other.cause and other.cause != sig.cause and other.strength > sig.strength
    ]
    allowed = {("tool", "nvcc")}
    assert [c for c in clashes if c[:2] not in allowed] == []


NESTED = re.compile(r"(?<!\\)[+*}]\)(?:[+*]|\{\d+,\})")


def test_signatures_repeat_nothing_that_repeats() -> None:
    """No repetition inside a repetition, no unbounded wildcard."""
    bare = {s.id: re.sub(r"\[[^\]]*\]", "x", s.regex.pattern) for s in BOOK.signatures}
    assert {i: p for i, p in bare.items() if NESTED.search(p)} == {}
    wild = re.compile(r"(?<!\\)\.[*+]")
    assert {i: p for i, p in bare.items() if wild.search(re.sub(r"\(\?[!=].*?\)", "", p))} == {}


def hostile(sig: Signature) -> list[str]:
    """Lines made to hurt this signature."""
    example = sig.examples[0]
    return [
        " ".join(sig.anchors) * 200,
        (example + " ") * 40,
        (example[: len(example) // 2] + " ") * 80,
        f"{sig.anchors[0]} not " * 200,
        f"{sig.anchors[0]} 1" * 200,
        "a" * LINE_CAP,
        "0" * LINE_CAP,
        "/a" * LINE_CAP,
    ]


def test_signatures_are_linear() -> None:
    slow = {}
    for sig in BOOK.signatures:
        began = time.process_time()
        for text in hostile(sig):
            sig.regex.search(text[:LINE_CAP].lower())
        took = time.process_time() - began
        if took > 0.4:
            slow[sig.id] = took
    assert slow == {}


def test_patterns_compile() -> None:
    for name in ("tp", "util", "k", "topk", "port"):
        assert option(name)
    assert len(phases()) >= 8
    assert prose("neighbour").search("a second instance on the same gpu")

"""The catalogue is whole: texts, unique slugs, signatures that match their examples and keep quiet."""

import re
import time
from pathlib import Path

import pytest

from checks.doctor.catalogue import Code, Signature, catalogue
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


@pytest.mark.parametrize("code", BOOK.codes.values(), ids=lambda c: c.code)
def test_code_is_whole(code: Code) -> None:
    assert all((code.title, code.what, code.why, code.example)), code.code
    assert code.fix
    assert any(not s.asks for s in code.fix), "a fix must exist when nothing is known"
    assert all(other in BOOK.by_slug and other != code.slug for other in code.explains)


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


@pytest.mark.parametrize("sig", BOOK.signatures, ids=lambda s: s.id)
def test_signature_finds_its_examples(sig: Signature) -> None:
    assert sig.examples
    for text in sig.examples:
        found = scan([text.encode() + b"\n"], BOOK.signatures)
        assert sig.id in {h.sig.id for h in found.hits}, text
    for text in sig.quiet:
        found = scan([text.encode() + b"\n"], BOOK.signatures)
        assert sig.id not in {h.sig.id for h in found.hits}, text


def test_no_example_names_another_cause() -> None:
    """An example of a cause matches no signature of another cause that would win."""
    clashes = []
    for sig in BOOK.signatures:
        for text in sig.examples:
            hits = scan([text.encode() + b"\n"], BOOK.signatures).hits
            clashes += [
                (sig.id, h.sig.id, text)
                for h in hits
                if sig.cause and h.sig.cause and h.sig.cause != sig.cause and h.sig.strength > sig.strength
            ]
    allowed = {("tool", "nvcc")}
    assert [c for c in clashes if c[:2] not in allowed] == []


NESTED = re.compile(r"(?<!\\)[+*}]\)(?:[+*]|\{\d+,\})")


@pytest.mark.parametrize("sig", BOOK.signatures, ids=lambda s: s.id)
def test_signature_is_linear(sig: Signature) -> None:
    """No repetition inside a repetition, no unbounded wildcard, and fast on text made to hurt it."""
    pattern = re.sub(r"\[[^\]]*\]", "x", sig.regex.pattern)
    assert not NESTED.search(pattern), pattern
    assert not re.search(r"(?<!\\)\.[*+]", re.sub(r"\(\?[!=].*?\)", "", pattern)), pattern
    example = sig.examples[0]
    hostile = [
        " ".join(sig.anchors) * 200,
        (example + " ") * 40,
        (example[: len(example) // 2] + " ") * 80,
        f"{sig.anchors[0]} not " * 200,
        f"{sig.anchors[0]} 1" * 200,
        "a" * LINE_CAP,
        "0" * LINE_CAP,
        "/a" * LINE_CAP,
    ]
    began = time.process_time()
    for text in hostile:
        sig.regex.search(text[:LINE_CAP].lower())
    assert time.process_time() - began < 0.4


def test_patterns_compile() -> None:
    for name in ("tp", "util", "k", "topk", "port"):
        assert option(name)
    assert len(phases()) >= 8
    assert prose("neighbour").search("a second instance on the same gpu")

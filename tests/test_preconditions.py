"""Every rule against recorded hosts. A case is data: a host, patches of its facts, the wish, the result."""

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from checks.facts import HostFacts
from checks.outcome import Outcome, Severity, Status
from checks.preconditions import RULES, Want, run_preconditions, verdict
from checks.preconditions.fit import floors_of, host_floors
from checks.rule import Found, Rule, code_of, observe
from inventory.catalogue import load_catalogue
from inventory.resolve import resolve_version

HERE = Path(__file__).parent
HOSTS = HERE / "hosts"
#: The current line of vLLM (CUDA 13), the one before (CUDA 12.8), the oldest: as the catalogue has them.
LINES = {"cuda13": "0.33.0", "cuda12": "0.19.1", "old": "0.6.2"}
FLOORS = {name: floors_of(load_catalogue().release("vllm", version)) for name, version in LINES.items()}


def load_cases() -> list[dict[str, Any]]:
    return [
        {"file": path.stem, **case}
        for path in sorted((HERE / "preconditions").glob("*.toml"))
        for case in tomllib.loads(path.read_text())["case"]
    ]


CASES = load_cases()


@cache
def text_of(host: str) -> tuple[HostFacts, str]:
    facts = HostFacts.load(HOSTS / f"{host}.json")
    return facts, json.dumps(facts.tree)


def recorded(host: str) -> tuple[HostFacts, dict[str, Any]]:
    """A recorded host, and a copy of its facts to be changed."""
    facts, text = text_of(host)
    return facts, json.loads(text)


def facts_of(case: dict[str, Any]) -> HostFacts:
    facts, tree = recorded(case["host"])
    for path, value in case.get("facts", {}).items():
        put(tree, path, value)
    return HostFacts(facts.host, facts.taken_at, tree)


def put(node: Any, path: str, value: Any) -> None:
    """Set a dotted path; "none" stands for null, which TOML lacks."""
    *parts, last = path.split("/") if "/" in path else path.split(".")
    for part in parts:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    value = nulls(value)
    if isinstance(node, list):
        node[int(last) : int(last) + 1] = [value]
    else:
        node[last] = value


def nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: nulls(v) for k, v in value.items()}
    return None if value == "none" else value


def want_of(case: dict[str, Any]) -> Want:
    given = dict(case.get("want", {}))
    floors = given.pop("floors", None)
    for name in ("cards", "tools"):
        if name in given:
            given[name] = tuple(given[name])
    return Want(floors=FLOORS[floors] if floors else None, **given)


def outcomes_of(case: dict[str, Any]) -> list[Outcome]:
    return run_preconditions(facts_of(case), want_of(case))


@cache
def all_outcomes() -> tuple[Outcome, ...]:
    """Of every case."""
    return tuple(o for case in CASES for o in outcomes_of(case))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['file']}-{c['name']}".replace(" ", "-"))
def test_case(case: dict[str, Any]) -> None:
    outcomes = outcomes_of(case)
    seen = verdict(outcomes)
    assert sorted({f.slug for f in seen.errors}) == sorted(case.get("errors", []))
    assert sorted({f.slug for f in seen.warnings}) == sorted(case.get("warnings", []))
    assert not [o for o in outcomes if o.status is Status.CRASHED]
    if "unknown" in case:
        assert sorted(o.check for o in seen.unseen) == sorted(case["unknown"])
    text = "\n".join(f.cause for o in outcomes for f in o.findings)
    assert all(words in text for words in case.get("says", [])), text


def test_every_rule_fires_and_stays_quiet_somewhere() -> None:
    every = all_outcomes()
    fired = {o.check for o in every if o.findings}
    quiet = {o.check for o in every if o.status is Status.OK}
    names = {r.slug for r in RULES}
    assert names - fired == set(), "never fires"
    assert names - quiet == set(), "never quiet"


def slugs() -> set[str]:
    return {f.slug for o in all_outcomes() for f in o.findings}


def test_every_finding_names_a_way_out_and_shows_evidence() -> None:
    for outcome in all_outcomes():
        for finding in outcome.findings:
            assert finding.fix, finding
            assert finding.fix[0].change, finding
            assert finding.evidence, finding
            assert not re.search(r"\bNone\b|\{|missing", finding.cause), finding.cause


#: Causes the doctor sees on a live service; their cases are with its rules.
LIVE = {"engine-hung", "service-not-running"}


def test_own_causes_are_in_the_catalogue() -> None:
    ours = tomllib.loads((HERE.parent / "checks/doctor/codes/host.toml").read_text())
    named = {raw["slug"]: code for code, raw in ours.items()}
    assert all(code_of(slug) == code for slug, code in named.items())
    assert set(named) - LIVE <= slugs(), "a code no case reaches"


def test_a_crash_is_that_rules_outcome_alone() -> None:
    def broken(facts: HostFacts, want: Want) -> Any:
        yield Found("seen before")
        raise ZeroDivisionError("a bug")

    facts = HostFacts("h", 0.0, {})
    outcome = observe(Rule("x", "X", Severity.ERROR, broken), facts, Want())
    assert outcome.status is Status.CRASHED
    assert outcome.findings
    assert "ZeroDivisionError" in outcome.why


def test_a_host_nobody_could_look_at_is_never_ok() -> None:
    """With no facts at all no rule says OK about a card deployment, and none crashes."""
    want = Want(
        floors=FLOORS["cuda13"],
        tensor_parallel=2,
        port=8000,
        disk={"/opt/eyas": {"wheels": 1}},
        weights_bytes=1,
    )
    outcomes = run_preconditions(HostFacts("h", 1.0, {}), want)
    assert [o.check for o in outcomes if o.status not in {Status.UNKNOWN, Status.SKIPPED}] == []


def test_device_cpu_skips_the_cards() -> None:
    outcomes = run_preconditions(HostFacts.load(HOSTS / "rtx4090x2-no-driver.json"), Want(device="cpu"))
    skipped = {o.check for o in outcomes if o.status is Status.SKIPPED}
    assert {r.slug for r in RULES if r.needs_cards} <= skipped
    assert not verdict(outcomes).refused


@pytest.mark.parametrize(
    ("host", "cuda"), [("rtx4090x2-570", "12.8"), ("h200x2-580", "13.0"), ("rtx4090x2-xid79", "12.8")]
)
def test_auto_takes_the_line_that_the_driver_runs(host: str, cuda: str) -> None:
    """A release that `auto` picks by the host's facts is never one that the preconditions refuse."""
    catalogue = load_catalogue()
    facts = HostFacts.load(HOSTS / f"{host}.json")
    have = host_floors(facts)
    version = resolve_version(
        catalogue,
        "vllm",
        "auto",
        driver=have.driver,
        glibc=have.glibc,
        python=have.python,
        compute_capability=have.compute_capability,
        candidates=catalogue.releases("vllm"),
    ).version
    release = catalogue.release("vllm", version)
    assert release.stack.cuda == cuda
    about_wheels = {"driver-too-old", "python-unsupported", "glibc-too-old", "torch-no-kernel-image"}
    outcomes = run_preconditions(facts, Want(floors=floors_of(release)))
    assert [o for o in outcomes if o.check in about_wheels and o.status is not Status.OK] == []


def test_cpu_floors_ask_for_no_driver() -> None:
    floors = floors_of(load_catalogue().release("vllm", "0.32.0"), "cpu")
    assert (floors.driver, floors.cuda, floors.compute_capability) == ("", "", None)
    assert floors.python

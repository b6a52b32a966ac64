"""The parts of a live diagnosis that need no host: which start counts, merging, remedies, edits in place."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.doctor import Inputs, diagnose
from checks.doctor.journal import latest_starts
from checks.doctor.merge import merge, titled, with_host_rules
from checks.facts import HostFacts
from checks.outcome import Evidence, Finding, Fix, Outcome, Severity, Status
from inventory.errors import InventoryError
from inventory.model import Deployment, ModelRef
from inventory.yamlfile import parse_yaml
from provision.edit import set_value
from provision.explain import explain
from provision.looking import Drift, Seen, Sight, gather, host_rules
from provision.remedy import host_remedy, remedy_for
from provision.replan import replanner

UNIT = "eyas-demo.service"


def start(*lines: str) -> str:
    first = f"systemd[1]: Starting {UNIT} - eyas demo (vllm 0.33.0, draft: eagle3)..."
    return "".join(f"2026-11-30T22:20:37+0000 gpu01 {line}\n" for line in (first, *lines))


OVER = f"systemd[1]: {UNIT}: Main process exited, code=exited, status=1/FAILURE"
TOO_OLD = "python3[9]: RuntimeError: The NVIDIA driver on your system is too old (found version 12060)."
HEADS = (
    "python3[9]: Value error, Total number of attention heads (40) must be divisible"
    " by tensor parallel size (3)."
)
READY = "python3[9]: eyas: ready after 31.0 s"


@pytest.mark.parametrize(
    ("journal", "seen", "unseen"),
    [
        (start(TOO_OLD, OVER) + start(HEADS, OVER), HEADS, TOO_OLD),
        (start(HEADS, OVER) + start(TOO_OLD, OVER) + start(), TOO_OLD, HEADS),
        (start(TOO_OLD, OVER) + start(HEADS, OVER) + start(READY), HEADS, TOO_OLD),
        (start(HEADS), HEADS, "nothing else"),
        ("2026 gpu01 python3[9]: no start at all\n", "no start", "Starting"),
        ("", "", "x"),
    ],
)
def test_the_start_that_matters_is_read(journal: str, seen: str, unseen: str) -> None:
    text = latest_starts(journal, UNIT)
    assert seen in text
    assert unseen not in text


def test_another_unit_of_a_like_name_starts_nothing() -> None:
    other = start(READY).replace("eyas-demo.service", "eyas-demo-2.service")
    assert latest_starts(start(HEADS, OVER) + other, UNIT).count(HEADS) == 1


def test_what_only_earlier_starts_had_stays_a_warning_however_often_it_came() -> None:
    report = diagnose(Inputs(log=[(start(TOO_OLD, OVER) * 3 + start(HEADS, OVER)).encode()]))
    found = {f.slug: f for f in report.findings}
    assert report.findings[0].slug == "tp-heads-indivisible"
    assert found["driver-too-old"].severity is Severity.WARNING
    assert "earlier start" in found["driver-too-old"].title


def test_a_failed_start_is_one_sentence() -> None:
    told, findings = explain(start(TOO_OLD, OVER) + start(HEADS, OVER))
    assert findings[0].slug == "tp-heads-indivisible"
    assert told.startswith("tp-heads-indivisible: ")
    assert "next: tensor_parallel" in told
    assert "\n" not in told


@pytest.mark.parametrize("text", ["", "all is well\n", "\0\xff" * 1000])
def test_what_names_nothing_is_explained_by_nothing(text: str) -> None:
    assert explain(text) == ("", ())


# ---- merging


def finding(slug: str, **more: Any) -> Finding:
    from checks.rule import code_of

    severity = more.pop("severity", Severity.ERROR)
    return Finding(code_of(slug), slug, severity, slug, "why", **more)


def rules(*found: Finding) -> list[Outcome]:
    return [Outcome("x", Status.FINDINGS if found else Status.OK, found)]


def test_a_cause_that_log_and_facts_name_is_one_finding_with_both_proofs() -> None:
    report = diagnose(Inputs(log=[start(TOO_OLD, OVER).encode()]))
    host = finding("driver-too-old", evidence=(Evidence("driver.module_version", "535.274"),))
    merged = with_host_rules(report, rules(host))
    named = [f for f in merged.findings if f.slug == "driver-too-old"]
    assert len(named) == 1
    assert {e.source for e in named[0].evidence} == {"log", "driver.module_version"}
    assert merged.verdict.startswith("DRV001 driver-too-old")


def test_a_fact_that_explains_the_log_is_the_root() -> None:
    log = start(f"systemd[1]: {UNIT}: Start request repeated too quickly.")
    report = diagnose(Inputs(log=[log.encode()]))
    merged = with_host_rules(report, rules(finding("disk-full")))
    assert merged.findings[0].slug == "disk-full"
    assert [f.slug for f in merged.findings if f.root] == ["disk-full"]


def test_a_warning_makes_no_error_a_symptom() -> None:
    report = diagnose(Inputs(log=[b"all is well\n"]))
    pending = finding("driver-reboot-pending", severity=Severity.WARNING)
    merged = with_host_rules(report, rules(pending, finding("driver-nvml-mismatch")))
    assert next(f.slug for f in merged.findings if f.root) == "driver-nvml-mismatch"


def test_a_hint_that_a_fact_confirms_is_a_root() -> None:
    log = start("python3[9]: RuntimeError: NCCL error: unhandled system error", OVER)
    unit_text = "ExecStart=/opt/v/bin/vllm serve m --tensor-parallel-size 4\n"
    two = {"gpus": [CARD, CARD | {"index": 1}]}
    report = diagnose(
        Inputs(log=[log.encode()], unit=unit_text, facts={"schema": 1, "host": "h", "taken_at": 1, **two})
    )
    merged = with_host_rules(report, rules(finding("tp-world-size-exceeds-gpus")))
    assert merged.findings[0].slug == "tp-world-size-exceeds-gpus"
    assert merged.findings[0].root


def test_a_rule_that_could_not_look_is_told_and_one_that_crashed_is_not_ok() -> None:
    report = diagnose(Inputs(log=[b"all is well\n"]))
    unknown = with_host_rules(report, [Outcome("disk", Status.UNKNOWN, why="no df"), *rules()])
    assert [o.why for o in unknown.outcomes if o.check == "host rules"] == ["disk: no df"]
    crashed = with_host_rules(report, [Outcome("disk", Status.CRASHED, why="KeyError"), *rules()])
    assert "host rules (disk: KeyError)" in crashed.verdict


def test_two_units_of_a_host_say_what_they_share_once() -> None:
    one = with_host_rules(diagnose(Inputs(log=[start(HEADS, OVER).encode()])), rules(finding("disk-full")))
    two = with_host_rules(diagnose(Inputs(log=[b"all is well\n"])), rules(finding("disk-full")))
    both = merge([one, two])
    assert sorted(f.slug for f in both.findings) == ["disk-full", "tp-heads-indivisible"]
    assert titled(both, "gpu07").verdict.startswith("gpu07: ")


# ---- live facts


def facts(**tree: Any) -> HostFacts:
    return HostFacts("gpu01", 1.0, tree)


def unit(**more: Any) -> dict[str, Any]:
    shown = {
        "load": "loaded",
        "active": "active",
        "result": "success",
        "enabled": "enabled",
        "status_text": "",
    }
    return {"units": {UNIT: shown | more}}


@pytest.mark.parametrize(
    ("state", "slug", "severity"),
    [
        ({"status_text": "unhealthy for 9 s: 2 requests wait and no token came"}, "engine-hung", "error"),
        ({"status_text": "unhealthy for 1 s: /health answered 503 "}, "worker-died", "error"),
        ({"active": "failed", "result": "exit-code"}, "service-not-running", "error"),
        ({"active": "inactive"}, "service-not-running", "error"),
        ({"active": "inactive", "enabled": "disabled"}, "service-not-running", "warning"),
        ({"status_text": "serving"}, "", ""),
        ({"active": "activating", "status_text": "starting, 3 s: refused"}, "", ""),
        ({"active": "inactive", "load": "not-found"}, "", ""),
    ],
)
def test_the_unit_as_systemd_holds_it(state: dict[str, str], slug: str, severity: str) -> None:
    sight = Sight(facts(eyas=unit(**state)))
    report = diagnose(gather(sight, None))
    assert [(f.slug, f.severity.value) for f in report.findings] == ([(slug, severity)] if slug else [])


def test_a_value_nobody_could_read_inside_a_fact_breaks_no_rule() -> None:
    gone = {"missing": "not supported by this card"}
    card = {
        "index": 0,
        "name": "X",
        "fabric": {"state": gone, "status": gone},
        "ecc": gone,
        "processes": gone,
    }
    stopped = unit(argv=gone, limits=gone, environment=gone)
    sight = Sight(
        facts(eyas=stopped, gpus=[card], driver={"fabric_manager": {"active": None}, "module_version": gone})
    )
    for log in (start(HEADS, OVER), start("python3[9]: torch.OutOfMemoryError: CUDA out of memory.", OVER)):
        report = diagnose(gather(sight, Seen(UNIT, {"journal": log})))
        assert [o for o in report.outcomes if o.status is Status.CRASHED] == []
        assert report.errors


def test_a_host_without_our_units_says_so() -> None:
    inputs = gather(Sight(facts()), None)
    assert inputs.unseen["log"] == "no eyas service on this host"
    assert {o.status for o in host_rules(Sight(facts()), None)} <= set(Status)


def test_what_could_not_be_read_of_a_unit_is_unseen_with_its_reason() -> None:
    raw = {
        "journal": {"missing": "journalctl: no"},
        "unit": "",
        "metrics": {"status": 401, "text": ""},
        "release": {},
    }
    inputs = gather(
        Sight(facts(), kernel={"missing": "no"}), Seen(UNIT, raw, Drift(unseen="no deployment is named"))
    )
    assert inputs.log is None
    assert inputs.unseen["log"] == "journalctl: no"
    assert "401" in inputs.unseen["metrics"]
    assert inputs.unseen["kernel"] == "no"


# ---- numbers from the planner

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "head_dim": 128,
}  # fmt: skip
CARD = {"index": 0, "name": "NVIDIA H200", "memory_total": 150754820096, "memory_used": 0, "cc": "9.0"}


def release(**settings: Any) -> dict[str, Any]:
    told = {"name": "demo", "engine": "vllm", "engine_version": "0.33.0", "tensor_parallel": 1, **settings}
    weights = {"target": {"label": "x/y", "commit": "c", "path": "/var/lib/eyas/weights/x/c"}}
    return {"engine_version": "0.33.0", "settings": told, "weights": weights, "draft": {"method": "none"}}


def test_a_memory_fix_is_planned_again() -> None:
    replan = replanner(release(), {"target": CONFIG}, facts(gpus=[CARD, CARD | {"index": 1}]))
    assert replan is not None
    fixes = list(replan("kv-cache-too-small", {}))
    assert fixes
    assert all(f.change and f.value and "planned again" in f.why for f in fixes)
    assert list(replan("gpu-memory-occupied", {})) == []


def test_nothing_is_planned_from_what_could_not_be_read() -> None:
    assert replanner(release(), {"target": {"missing": "denied"}}, facts()) is None
    assert replanner({}, {"target": CONFIG}, facts()) is None
    replan = replanner(release(), {"target": CONFIG}, facts(gpus={"missing": "no driver"}))
    assert replan is not None
    assert list(replan("oom-weights-load", {})) == []


# ---- remedies

DEPLOYMENT = Deployment(
    name="demo", engine="vllm", target=ModelRef(repo="x/y"), tensor_parallel=3, max_num_seqs=256
)


@pytest.mark.parametrize(
    ("slug", "fixes", "loc", "value"),
    [
        ("tp-heads-indivisible", [Fix("tensor_parallel", "2")], ("tensor_parallel",), 2),
        ("oom-sampler-warmup", [Fix("max_num_seqs", "64")], ("max_num_seqs",), 64),
        ("oom-spec-draft", [Fix("gpu_memory_utilization", "0.85")], ("gpu_memory_utilization",), 0.85),
        ("spec-slow-under-load", [Fix("draft.max_batch_size", "4")], ("draft", "max_batch_size"), 4),
        ("port-in-use", [Fix("stop the holder", "pid 7"), Fix("port", "8001")], ("port",), 8002),
        ("port-in-use", [Fix("stop it, or another port", "port: 8003")], ("port",), 8003),
        ("tp-heads-indivisible", [Fix("tensor_parallel", "a divisor of num_attention_heads")], None, None),
        ("tp-heads-indivisible", [Fix("tensor_parallel", "3")], None, None),
        ("oom-sampler-warmup", [Fix("max_num_seqs", "0"), Fix("env.X", "1"), Fix("name", "fp8")], None, None),
        ("driver-too-old", [Fix("max_num_seqs", "64")], None, None),
        ("gpu-xid-fell-off-bus", [Fix("port", "8001")], None, None),
    ],
)
def test_only_values_a_key_can_take_become_edits(
    slug: str, fixes: list[Fix], loc: tuple[str, ...] | None, value: object
) -> None:
    there = facts(ports=[{"port": 8000}, {"port": 8001}])
    found = remedy_for(finding(slug, fix=tuple(fixes)), DEPLOYMENT, None, there)
    assert (found and (found.loc, found.value)) == ((loc, value) if loc else None)


def test_only_drop_ins_of_the_admin_are_set_aside() -> None:
    files = ["/usr/lib/systemd/system/service.d/vendor.conf", f"/etc/systemd/system/{UNIT}.d/mine.conf"]
    found = finding("service-start-timeout")
    remedy = remedy_for(found, DEPLOYMENT, Seen(UNIT, {}), facts(eyas=unit(drop_ins=files)))
    assert remedy is not None
    assert files[1] in remedy.do[1]
    assert files[0] not in remedy.do[1]
    assert remedy_for(found, DEPLOYMENT, Seen(UNIT, {}), facts(eyas=unit(drop_ins=files[:1]))) is None


def test_ownership_is_given_back_below_our_own_folders_alone() -> None:
    mine = finding("cache-not-writable", evidence=(Evidence("log", "denied: '/var/cache/eyas-demo/vllm'"),))
    remedy = remedy_for(mine, DEPLOYMENT, None, facts())
    assert remedy is not None
    assert remedy.do == (("chown", "-R", "eyas:eyas", "--", "/var/cache/eyas-demo"),)
    for path in ("/home/op/cache", "/var/cache/eyas-demo-2/x", "/", "/var/lib/other"):
        other = finding("cache-not-writable", evidence=(Evidence("log", f"denied: '{path}'"),))
        assert remedy_for(other, DEPLOYMENT, None, facts()) is None


def test_only_packages_that_nobody_holds_are_held_and_released() -> None:
    there = facts(
        driver={
            "packages": {"nvidia-driver-570": "1", "nvidia-utils-570": "1"},
            "holds": ["nvidia-driver-570"],
        }
    )
    remedy = host_remedy(finding("driver-not-held"), there)
    assert remedy is not None
    assert remedy.host_only
    assert (remedy.do, remedy.undo) == (
        (("apt-mark", "hold", "nvidia-utils-570"),),
        (("apt-mark", "unhold", "nvidia-utils-570"),),
    )
    assert host_remedy(finding("port-in-use"), there) is None
    assert host_remedy(finding("driver-not-held"), facts(driver={"packages": {"missing": "no dpkg"}})) is None


def test_weights_outside_our_folder_are_left_alone() -> None:
    told = {"weights": {"target": {"path": "/var/lib/eyas/weights/x/c"}, "draft": {"path": "/srv/models/y"}}}
    remedy = remedy_for(finding("weights-truncated"), DEPLOYMENT, Seen(UNIT, {"release": told}), facts())
    assert remedy is not None
    assert "/var/lib/eyas/weights/x/c" in remedy.do[0]
    assert "/srv/models/y" not in json.dumps(remedy.do)


# ---- edits in place

TEXT = """# how we serve it
engine: vllm
target: {repo: x/y}
draft:
  # measured best
  method: ngram
  num_speculative_tokens: 5 # long
port: 8000   # behind the proxy
extra_args: ["--a", "b"]
"""


@pytest.mark.parametrize(
    ("loc", "value", "line"),
    [
        (("port",), 8001, "port: 8001   # behind the proxy"),
        (("draft", "num_speculative_tokens"), 2, "  num_speculative_tokens: 2 # long"),
        (("draft", "max_batch_size"), 4, "  max_batch_size: 4"),
        (("max_num_seqs",), 64, "max_num_seqs: 64"),
        (("dtype",), "float16", 'dtype: "float16"'),
        (("extra_args",), ["--a"], 'extra_args: ["--a"]'),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_one_line_changes_and_no_other(loc: tuple[str, ...], value: object, line: str, newline: str) -> None:
    before = TEXT.replace("\n", newline)
    after = set_value(parse_yaml(before, Path("d.yml")), before, loc, value)
    gone = set(before.split(newline)) - set(after.split(newline))
    assert line in after.split(newline)
    assert len(gone) <= 1
    assert after.count("#") == before.count("#")


@pytest.mark.parametrize(
    ("text", "loc"),
    [("{engine: vllm, port: 8000}\n", ("port",)), ("draft: {method: ngram, topk: 3}\n", ("draft", "topk"))],
)
def test_a_line_that_holds_more_is_refused_with_what_to_write(text: str, loc: tuple[str, ...]) -> None:
    with pytest.raises(InventoryError, match="without touching more") as e:
        set_value(parse_yaml(text, Path("d.yml")), text, loc, 2)
    assert e.value.hint.endswith("to 2 there yourself")


def test_a_file_without_a_last_newline_gets_its_key_on_a_line_of_its_own() -> None:
    text = "engine: vllm"
    assert set_value(parse_yaml(text, Path("d.yml")), text, ("port",), 9) == "engine: vllm\nport: 9\n"

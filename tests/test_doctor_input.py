"""Hostile and odd input, restarts, silence, bundles, the command line."""

import io
import json
import resource
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.doctor import Inputs, catalogue, cli, diagnose
from checks.doctor.bundle import read_bundle, write_bundle
from checks.doctor.metrics import parse_metrics
from checks.doctor.reader import BLOCK, windows
from checks.doctor.redact import MASK, Redactor
from checks.doctor.report import combine, exit_code, report_json
from checks.doctor.scan import scan
from checks.doctor.text import clean
from checks.doctor.unit import parse_unit
from checks.outcome import Fix, Severity, Status
from inventory.errors import UsageError

KV = b"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\n"
HEADS = b"ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).\n"
BANNER = " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.25.1\n".encode()
READY = b"INFO:     Application startup complete.\n"


def slugs(log: bytes, **more: Any) -> list[str]:
    return [f.slug for f in diagnose(Inputs(log=[log], **more)).findings]


# -- odd input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (bytes(range(256)) * 300, "not text"),
        (b"\x1f\x8b\x08\x00" + b"\x00\x01" * 900, "not text"),
    ],
)
def test_could_not_look_is_unknown_not_ok(data: bytes, why: str) -> None:
    report = diagnose(Inputs(log=[data]))
    outcome = report.outcomes[0]
    assert (outcome.status, outcome.why) == (Status.UNKNOWN, why)
    assert exit_code(report) == 3
    assert "could not look" in report.verdict


def test_a_log_of_something_else_is_silence_with_what_was_looked_at() -> None:
    report = diagnose(Inputs(log=[b"nginx: GET / 200\n" * 500]))
    assert report.findings == ()
    assert report.verdict.startswith("no cause found; looked at log; could not see kernel")
    assert exit_code(report) == 0


def test_invalid_utf8_nul_utf16_and_cr_are_read() -> None:
    assert slugs(b"\x80\x81 noise\n" + KV) == ["kv-cache-no-memory"]
    assert slugs(b"a\x00b\n" + KV) == ["kv-cache-no-memory"]
    assert slugs(KV.decode().encode("utf-16")) == ["kv-cache-no-memory"]
    assert slugs(b"10%|#   |\r50%|##  |\r" + KV) == ["kv-cache-no-memory"]


def test_line_numbers_and_text_are_those_of_the_file() -> None:
    log = b"x\n" * 40_000 + KV + b"y\n" * 40_000
    evidence = diagnose(Inputs(log=[log])).findings[0].evidence[0]
    assert evidence.line == 40_001
    assert evidence.text == KV.decode().strip()


@given(st.lists(st.integers(1, 3_000_000), max_size=4), st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_windows_cover_every_line_once_however_it_is_cut(cuts: list[int], crlf: int) -> None:
    text = ("line\r\n" if crlf == 1 else "line\n") * 300_000 + "tail"
    data = text.encode()
    marks = sorted({0, *(c % len(data) for c in cuts), len(data)})
    blocks = [data[a:b] for a, b in pairwise(marks)]
    joined = "".join(w.text[w.begin : w.end] for w in windows(blocks))
    assert joined == text.replace("\r\n", "\n")


def test_a_cause_on_any_block_border_is_found() -> None:
    for shift in range(-120, 120, 60):
        filler = b"z" * 79 + b"\n"
        head = filler * (BLOCK // 80) + b"q" * (BLOCK % 80 + shift + 130) + b"\n"
        assert slugs(head + KV + filler * 10) == ["kv-cache-no-memory"], shift


def blocks_of(line: bytes, mebibytes: int) -> Iterator[bytes]:
    block = (line * (BLOCK // len(line) + 1))[:BLOCK]
    return (block for _ in range(mebibytes))


def test_memory_stays_bounded_on_a_long_log() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    view = scan(
        blocks_of(b"INFO 11-05 12:19:32 [loggers.py:1] Running: 7 reqs, Waiting: 0 reqs\n", 12),
        catalogue().signatures,
    )
    assert view.size == 12 << 20
    assert len(view.hits) < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000


def test_one_line_without_end_is_bounded() -> None:
    assert scan(blocks_of(b"A" * 1000, 4), catalogue().signatures).hits == []


@given(st.binary(max_size=4000))
@settings(max_examples=25, deadline=None)
def test_any_bytes_anywhere_never_raise(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    report = diagnose(
        Inputs(log=[data], facts={"flags": text, text: 1}, unit=text, metrics=text, kernel=[data])
    )
    assert [o for o in report.outcomes if o.status is Status.CRASHED] == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=30),
        lambda c: (
            st.lists(c, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "gpus",
                        "driver",
                        "xid",
                        "shm",
                        "disks",
                        "ports",
                        "count",
                        "driver",
                        "torch",
                        "python",
                        "meminfo",
                        "fabric_manager",
                        "remapped",
                        "free",
                        "total",
                        "code",
                        "pci",
                        "eyas",
                        "units",
                    ]
                ),
                c,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
@settings(max_examples=20, deadline=None)
def test_any_facts_never_raise(tree: Any) -> None:
    facts = tree if isinstance(tree, dict) else {"gpus": tree}
    for given_facts in (facts, {"schema": 1, "host": "h", "taken_at": 1.0, **facts}):
        report = diagnose(Inputs(log=[KV + b"NVRM: Xid (PCI:0000:01:00): 79, x\n"], facts=given_facts))
        assert [o for o in report.outcomes if o.status is Status.CRASHED] == []


# -- restarts and order ---------------------------------------------------------------------------------


def test_the_last_start_counts_and_an_earlier_cause_is_a_warning() -> None:
    report = diagnose(Inputs(log=[BANNER + HEADS + BANNER + KV]))
    assert report.findings[0].slug == "kv-cache-no-memory"
    earlier = report.findings[1]
    assert (earlier.slug, earlier.severity) == ("tp-heads-indivisible", Severity.WARNING)
    assert "earlier start" in earlier.title


def test_a_start_that_came_up_makes_former_failures_warnings() -> None:
    report = diagnose(Inputs(log=[BANNER + KV + BANNER + READY]))
    assert not report.errors
    assert report.findings[0].severity is Severity.WARNING


def test_a_start_that_has_said_nothing_yet_does_not_hide_the_failure_before() -> None:
    assert diagnose(Inputs(log=[BANNER + KV + BANNER])).errors


def test_the_same_cause_in_several_starts_says_so() -> None:
    report = diagnose(Inputs(log=[(BANNER + KV) * 3]))
    assert [f.slug for f in report.findings] == ["kv-cache-no-memory"]
    assert "in 3 starts" in report.findings[0].title


def test_symptoms_alone_are_no_cause() -> None:
    log = b"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    report = diagnose(Inputs(log=[log]))
    assert report.findings[0].slug == "unrecognised-failure"
    assert report.findings[0].confidence == "low"
    assert report.verdict.startswith("no cause found")


def test_an_orderly_stop_is_no_failure() -> None:
    log = READY + (
        b"INFO [launcher.py:254] [shutdown] API server: shutdown triggered\n"
        b"ERROR 1 EngineDeadError: EngineCore encountered an issue. See stack trace (above).\n"
    )
    assert diagnose(Inputs(log=[log])).findings == ()


def test_what_a_cause_explains_is_listed_and_not_root() -> None:
    log = b"vllm.service: Scheduled restart job, restart counter is at 7.\n"
    log += b"OSError: [Errno 98] Address already in use\n"
    report = diagnose(Inputs(log=[log]))
    assert report.findings[0].slug == "port-in-use"
    assert report.findings[0].explains == ("SVC006",)
    assert [f.root for f in report.findings] == [True, False]


def test_a_planner_comes_first_when_there_is_one() -> None:
    def replan(slug: str, values: Any) -> list[Fix]:
        return [Fix("max_model_len", "29264", why=f"planned for {slug}")]

    report = diagnose(Inputs(log=[KV], replan=replan))
    assert report.findings[0].fix[0].value == "29264"


# -- probes ---------------------------------------------------------------------------------------------


def probe(**tree: Any) -> dict[str, Any]:
    return {"schema": 1, "host": "box1", "taken_at": 1.0, **tree}


@pytest.mark.parametrize(
    ("tree", "slug"),
    [
        (
            {"driver": {"module_version": "580.159.03", "library_version": "580.173.02"}},
            "driver-nvml-mismatch",
        ),
        ({"driver": {"nouveau": True}}, "driver-conflicting-module"),
        ({"driver": {"nova": True}}, "driver-conflicting-module"),
        ({"xid": [{"code": 79, "pci": "0000:41:00"}]}, "gpu-xid-fell-off-bus"),
        ({"gpus": [{"index": 0, "pci": "x", "remapped": {"failed": True}}]}, "gpu-xid-ecc"),
        ({"gpus": [{"index": 0, "error": "GPU is lost"}]}, "gpu-xid-fell-off-bus"),
        ({"driver": {"nvml_error": "Driver Not Loaded"}, "gpus": []}, "gpu-not-visible"),
        ({"disks": [{"path": "/srv", "free": 1 << 20, "total": 1 << 40}]}, "disk-full"),
        (
            {
                "driver": {"module_version": "580.1", "fabric_manager": {"installed": True, "active": False}},
                "gpus": [{"index": 0, "fabric": {"state": "not started"}}],
            },
            "driver-fabric-manager",
        ),
    ],
)
def test_a_probe_alone_finds(tree: dict[str, Any], slug: str) -> None:
    report = diagnose(Inputs(facts=probe(**tree)))
    assert [f.slug for f in report.findings] == [slug]
    assert report.findings[0].evidence


def test_a_healthy_probe_is_clean_and_missing_facts_are_not_findings() -> None:
    missing = {"missing": "no nvidia-smi"}
    tree = probe(
        driver={
            "module_version": "580.1",
            "library_version": "580.1",
            "nouveau": False,
            "nova": False,
            "secure_boot": missing,
            "nvml_error": missing,
        },
        gpus=[
            {
                "index": 0,
                "remapped": {"failed": False, "pending": False},
                "ecc": {"volatile_uncorrected": 0},
                "error": missing,
            }
        ],
        shm={"total": 64 << 30, "free": 60 << 30},
        xid=[],
        disks=[{"path": "/srv", "free": 1 << 40, "total": 1 << 41}],
    )
    assert diagnose(Inputs(facts=tree)).findings == ()
    assert (
        diagnose(Inputs(facts=probe(driver=missing, gpus=missing, xid=missing, disks=missing))).findings == ()
    )


# -- unit and metrics -----------------------------------------------------------------------------------


def test_unit_files_are_read_leniently() -> None:
    unit = parse_unit(
        '[Service]\n# x\nEnvironment="A=1 2" B=3\nEnvironment=C=4\nTimeoutStartSec=1min 30s\n'
        "ExecStart=/a \\\n  --b\nbroken\n"
    )
    assert unit.environment == {"A": "1 2", "B": "3", "C": "4"}
    assert unit.seconds("TimeoutStartSec") == 90
    assert unit.get("ExecStart") == "/a --b"
    assert parse_unit('Environment="A=1').environment == {'"A': "1"}


def test_start_timeout_computes_a_longer_one() -> None:
    log = b"systemd[1]: vllm.service: start operation timed out. Terminating.\n"
    report = diagnose(Inputs(log=[log], unit="[Service]\nTimeoutStartSec=90\n"))
    assert report.findings[0].fix[0].value == "TimeoutStartSec=1800"


def test_bad_metrics_are_unknown() -> None:
    assert parse_metrics("{not json").error
    assert parse_metrics("<html>502</html>").error
    report = diagnose(Inputs(metrics="<html>502</html>"))
    assert next(o for o in report.outcomes if o.check == "metrics").status is Status.UNKNOWN
    assert exit_code(report) == 3


def test_good_speculation_gives_nothing() -> None:
    page = (
        "# TYPE vllm:spec_decode_num_drafts counter\nvllm:spec_decode_num_drafts_total 164\n"
        "# TYPE vllm:spec_decode_num_draft_tokens counter\nvllm:spec_decode_num_draft_tokens_total 492\n"
        "# TYPE vllm:spec_decode_num_accepted_tokens counter\n"
        "vllm:spec_decode_num_accepted_tokens_total 308\n"
    )
    read = parse_metrics(page)
    assert read.rate == pytest.approx(308 / 492)
    assert read.length == pytest.approx(1 + 308 / 164)
    assert diagnose(Inputs(metrics=page)).findings == ()


# -- prefixes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text", "proc"),
    [
        (
            "Nov 30 12:00:00 gpu-1 vllm[12]: (EngineCore_DP0 pid=3) ERROR 11-30 12:00:00 [core.py:1] hello",
            "hello",
            "EngineCore_DP0 pid=3",
        ),
        (
            "(VllmWorker rank=3 pid=1090) ERROR 06-05 06:18:13 [multiproc_executor.py:470] x y",
            "x y",
            "VllmWorker rank=3 pid=1090",
        ),
        ("ERROR 12-16 05:03:28 engine.py:366] ValueError: z", "ValueError: z", ""),
        ("[2026-01-01 10:00:00 DP0 TP1] hello", "hello", ""),
        ("[rank4]:[E304 12:54:52.122900428 ProcessGroupNCCL.cpp:616] [Rank 4] hi", "[Rank 4] hi", "rank4"),
        ("[ 1843.308145] NVRM: x", "NVRM: x", ""),
        ("[Wed Jul 31 23:14:18 2024] NVRM: x", "NVRM: x", ""),
        ("vllm-1  | INFO:     up", "up", ""),
        (
            '{"log":"ValueError: \\"x\\"\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}',
            'ValueError: "x"',
            "",
        ),
        ("no prefix at all", "no prefix at all", ""),
        ("", "", ""),
    ],
)
def test_prefixes_are_taken_off(line: str, text: str, proc: str) -> None:
    got = clean(line)
    assert (got.text, got.proc) == (text, proc)


# -- secrets --------------------------------------------------------------------------------------------

#: Made up, and in two parts, so that nobody's scanner takes it for a real one.
HUB_TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"
CANARIES = {
    HUB_TOKEN: f"HF_TOKEN={HUB_TOKEN}",
    "sk-proj-abcdefghijklmnop0123": "key sk-proj-abcdefghijklmnop0123 used",
    "s3cr3t-Bearer-Value": "Authorization: Bearer s3cr3t-Bearer-Value",
    "hunter2hunter2": "Environment=DB_PASSWORD=hunter2hunter2",
    "p4ssw0rd": "proxy http://user:p4ssw0rd@proxy.example:3128/",
    "my-plain-api-key": "vllm serve x --api-key my-plain-api-key --port 8000",
    "another-plain-key": "'api_key': ['another-plain-key'], 'port': 8000",
    "abcdefSIGNED": "https://x.example/y?X-Amz-Signature=abcdefSIGNED&b=1",
    "ghp_abcdefghijklmnopqrst": "git clone https://ghp_abcdefghijklmnopqrst@github.com/x/y",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig_value": "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig_value",
}


@pytest.mark.parametrize("secret", CANARIES)
def test_secrets_are_taken_out(secret: str) -> None:
    redactor = Redactor()
    out = redactor.text(CANARIES[secret])
    assert secret not in out
    assert MASK in out
    assert sum(redactor.removed.values()) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "GPU KV cache size: 2,434,192 tokens",
        "Maximum concurrency for 16,384 tokens per request: 148.57x",
        "num_speculative_tokens=5 must be divisible by n_predict=2",
        "KeyError: 'layers.0.mlp.down_proj.weight'",
        "Key was rejected by service",
        "Failed to load the tokenizer. If the tokenizer is a custom tokenizer",
        "LoadCredential=api_key:/run/eyas/api_key",
    ],
)
def test_diagnostic_words_stay(text: str) -> None:
    assert Redactor().text(text) == text


def test_a_bundle_holds_no_secret_and_reads_back(tmp_path: Path) -> None:
    log = ("\n".join(CANARIES.values()) + "\n").encode() + KV
    inputs = Inputs(
        log=[log],
        facts={"env": {"HF_TOKEN": "plain-token-value"}, "flags": CANARIES["my-plain-api-key"]},
        unit="[Service]\n" + CANARIES["hunter2hunter2"],
        metrics='{"draft_acceptance_rate": 0.5}',
        engine="vllm",
        host="box1",
    )
    report = diagnose(inputs)
    path = write_bundle(tmp_path, inputs, report, now=1_800_000_000)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as tar:
        whole = b"".join(file.read() for m in tar if (file := tar.extractfile(m)))
        member = tar.extractfile("manifest.json")
        assert member
        manifest = json.load(member)
    for secret in [*CANARIES, "plain-token-value"]:
        assert secret.encode() not in whole, secret
    assert manifest["removed"]["hub token"] >= 1
    again = diagnose(read_bundle(path))
    assert again.findings[0].slug == report.findings[0].slug == "kv-cache-no-memory"


@pytest.mark.parametrize("data", [b"", b"not a tar", b"\x1f\x8b\x08\x00broken"])
def test_a_broken_bundle_is_a_usage_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(data)
    with pytest.raises(UsageError):
        read_bundle(path)


def test_a_bundle_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("../../etc/passwd")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(UsageError):
        read_bundle(path)


# -- command line ---------------------------------------------------------------------------------------


def test_json_document_and_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(HEADS)
    assert cli.show_diagnosis(cli.gather(log=str(log)), as_json=True) == 4
    tree = json.loads(capsys.readouterr().out)
    finding = tree["findings"][0]
    assert tree["schema"] == 1
    assert set(finding) == {
        "code",
        "slug",
        "severity",
        "host",
        "title",
        "evidence",
        "cause",
        "fix",
        "confidence",
        "root",
        "explains",
    }
    assert finding["evidence"][0] == {"source": "x.log", "line": 1, "text": HEADS.decode().strip()}
    assert set(finding["fix"][0]) == {"change", "value", "command", "why"}
    assert finding["fix"][0]["value"] == "2"


def test_text_output_names_code_evidence_and_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"[bold]markup[/nope] is not ours\n" + HEADS)
    cli.show_diagnosis(cli.gather(log=str(log)))
    out = capsys.readouterr().out
    assert "TP001" in out
    assert "x.log:2" in out
    assert "tensor_parallel: 2" in out


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"log": "/nonexistent/x"},
        {"log": "/"},
        {"facts": "/nonexistent"},
        {"log": "x", "engine": "tgi"},
        {"bundle": "x", "log": "y"},
    ],
)
def test_bad_usage_is_said_with_a_way_on(kwargs: dict[str, str]) -> None:
    with pytest.raises(UsageError) as e:
        cli.show_diagnosis(cli.gather(**kwargs))
    assert e.value.message


@pytest.mark.parametrize("text", ["[]", "{", "nul\0", "3"])
def test_bad_facts_are_a_usage_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        cli.gather(facts=str(path))


def test_list_and_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.show_list(as_json=True) == 0
    assert len(json.loads(capsys.readouterr().out)["codes"]) == len(catalogue().codes)
    assert cli.show_code("kv-cache-too-small") == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("MEM010", "What", "Why", "Example", "Fix"))
    with pytest.raises(UsageError, match="no code") as e:
        cli.show_code("kv-cache-small")
    assert "kv-cache-too-small" in e.value.hint


def test_reports_of_several_hosts_join() -> None:
    one = diagnose(Inputs(log=[KV], host="a"))
    two = diagnose(Inputs(log=[HEADS], host="b"))
    tree = report_json(combine([one, two]))
    assert [(f["host"], f["slug"]) for f in tree["findings"]] == [
        ("a", "kv-cache-no-memory"),
        ("b", "tp-heads-indivisible"),
    ]


def test_save_writes_a_bundle_beside_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(HEADS * 3)
    assert cli.show_diagnosis(cli.gather(log=str(log)), as_json=True, save=str(tmp_path / "out")) == 4
    captured = capsys.readouterr()
    json.loads(captured.out)
    (bundle,) = (tmp_path / "out").iterdir()
    assert str(bundle) in captured.err
    assert cli.show_diagnosis(cli.gather(bundle=str(bundle)), as_json=True) == 4

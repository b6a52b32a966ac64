"""A fleet that never was, for the report's tests: every kind of document, whole, odd and hostile."""

import json
from pathlib import Path
from typing import Any

from checks.planner import Scenario, plan

DATA = Path(__file__).parent.parent / "data"
GIB = 1 << 30
HOSTILE = "<script>alert('x')</script><img src=//evil.example/a onerror=alert(1)>"
SECRET = "hf_" + "Q" * 34

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
HEAD: dict[str, Any] = CONFIG | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
}


def row(host: str, **more: Any) -> dict[str, Any]:
    """A line of ``status --json``."""
    return {
        "host": host,
        "deployment": "llama-3.1-8b-eagle3",
        "release": "3f9a1c77d2e04b15",
        "ready": True,
        "state": "serving",
        "restarts": 0,
        "gpu_percent": 71,
        "kv_usage": 0.38,
        "running": 6.0,
        "waiting": 0.0,
        "acceptance": 0.647,
        "drift": [],
    } | more


def status() -> dict[str, Any]:
    down = dict.fromkeys(("kv_usage", "running", "waiting", "acceptance"))
    return {
        "schema": 1,
        "hosts": [
            row("gpu01"),
            row(
                "gpu02",
                gpu_percent=88,
                kv_usage=0.81,
                running=14.0,
                waiting=3.0,
                acceptance=0.612,
                drift=["limits"],
            ),
            row("gpu03", ready=False, state="failed", **down),
            {
                "host": "gpu05",
                "deployment": None,
                "release": None,
                "ready": False,
                "state": "serves nothing",
                "drift": [],
            },
        ],
        "unreachable": [
            {"host": "gpu04", "error": "no answer on port 22 within 10 s", "hint": "ssh gpu04.lan"}
        ],
    }


def finding(**more: Any) -> dict[str, Any]:
    return {
        "code": "MEM010",
        "slug": "kv-cache-too-small",
        "severity": "error",
        "host": "gpu03",
        "title": "the KV cache holds fewer tokens than one request may have",
        "evidence": [
            {
                "source": "log",
                "line": 412,
                "text": "ValueError: To serve at least one request with the models's max seq len (16384), "
                "2.13 GiB KV cache is needed, which is larger than the available KV cache memory (1.42 GiB).",
            }
        ],
        "cause": "After weights, draft and working memory 1.42 GiB are left for keys and values; one request"
        " of 16,384 tokens needs 2.13 GiB.",
        "fix": [
            {
                "change": "max_model_len",
                "value": "10240",
                "why": "planned again, it fits with 10,912 tokens",
                "command": "invoke provision --host gpu03 --check --diff",
            },
            {
                "change": "max_num_seqs",
                "value": "8",
                "why": "planned again, it starts, tightly",
                "command": "",
            },
        ],
        "confidence": "high",
        "root": True,
        "explains": [],
    } | more


def doctor(*more: dict[str, Any]) -> dict[str, Any]:
    nofile = finding(
        code="SVC020",
        slug="limit-nofile-low",
        severity="warning",
        host="gpu02",
        title="the engine may open only 1024 files",
        cause="A drop-in lowers LimitNOFILE; at some hundred connections requests fail.",
        evidence=[{"source": "eyas.units", "line": None, "text": "LimitNOFILE=1024"}],
        fix=[
            {
                "change": "remove the drop-in",
                "value": "",
                "why": "",
                "command": "sudo systemctl revert eyas-llama-3.1-8b-eagle3.service",
            }
        ],
    )
    return {
        "schema": 1,
        "findings": [
            finding(),
            nofile,
            finding(code="SVC004", slug="restart-loop", root=False, title="started 5 times in 10 min"),
            *more,
        ],
        "outcomes": [
            {"check": "log rules", "status": "findings", "why": ""},
            {
                "check": "metrics rules",
                "status": "unknown",
                "why": "/metrics: connection refused",
                "data": {"host": "gpu03"},
            },
        ],
        "verdict": "MEM010 kv-cache-too-small on gpu03",
    }


def gpu(index: int, used: float, *processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "name": "NVIDIA GeForce RTX 4090",
        "memory_total": 25757220864,
        "memory_used": int(used * GIB),
        "processes": list(processes),
    } | more


def process(
    gib: float, unit: str = "eyas-llama-3.1-8b-eagle3.service", name: str = "python3"
) -> dict[str, Any]:
    return {"pid": 1234, "bytes": int(gib * GIB), "name": name, "unit": unit, "uid": 990, "kind": "compute"}


def facts() -> dict[str, Any]:
    told = {"schema": 1, "taken_at": 1780000000.0}
    return {
        "schema": 1,
        "hosts": [
            told | {"host": "gpu01", "gpus": [gpu(0, 21.9, process(21.4))]},
            told
            | {
                "host": "gpu02",
                "gpus": [gpu(0, 22.9, process(20.4), process(2.1, "user@1000.service", "jupyter"))],
            },
            told | {"host": "gpu03", "gpus": [gpu(0, 0.4), {"index": 1, "error": "GPU is lost"}]},
            told | {"host": "gpu05", "gpus": {"missing": "no driver is loaded"}},
        ],
        "unreachable": [],
    }


def plans() -> dict[str, Any]:
    made = plan(
        Scenario(
            config=CONFIG,
            draft_config=HEAD,
            device="RTX 4090",
            device_total=25251807232,
            version="0.33.0",
            speculative={"method": "eagle3", "num_speculative_tokens": 3},
            max_len=16384,
            seqs=16,
            utilization=0.88,
        )
    )
    return {"schema": 1, "hosts": [made.to_json() | {"host": "gpu01"}], "unreachable": []}


def drift() -> dict[str, Any]:
    same = {
        "traits": {},
        "differences": [],
        "unseen": [],
        "pending": [],
        "compared_with_deployment": True,
        "outlier": "",
    }
    odd = {
        "differences": ["llama-3.1-8b-eagle3: limits: Max open files is 1024, the unit says 65535"],
        "outlier": "gpu02 differs from the other 3 in: driver 570.172.08 (others 580.159.03)",
    }
    return {
        "schema": 1,
        "hosts": [same | {"host": "gpu01"}, same | odd | {"host": "gpu02"}],
        "unreachable": [],
    }


def bench() -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads((DATA / "bench" / "sample.json").read_text(encoding="utf-8"))
    return decoded


def benches(count: int = 4) -> list[dict[str, Any]]:
    """The same bench on following weeks, a little slower each time; the served strategy first."""
    made = []
    for n in range(count):
        one = bench()
        one["taken_at"] = f"2026-11-{2 + 7 * n:02}T03:00:00Z"
        one["strategies"].sort(key=lambda s: s["strategy"] != "eagle3")
        for cell in (c for s in one["strategies"] for c in s["cells"]):
            for key in ("median", "low", "high"):
                cell["tokens_per_s_total"][key] *= 1 - 0.02 * n
            if cell["acceptance"]:
                cell["acceptance"]["rate"] -= 0.012 * n
        made.append(one)
    return made


def review() -> dict[str, Any]:
    """The history that two hosts keep; the third look came while others' requests ran."""
    history = [
        {
            "time": 1762052400 + 604800 * n,
            "release": "3f9a1c77d2e04b15",
            "busy": n == 2,
            "now": {"tokens_per_s": 201.0 - 3 * n, "acceptance_rate": 0.65 - 0.01 * n, "ttft_ms": 61.0},
        }
        for n in range(5)
    ]
    told = {
        "deployment": "llama-3.1-8b-eagle3",
        "history": history,
        "answer": "fail",
        "differences": {},
        "text": "6 % fewer tokens/s than when its release was proven",
    }
    return {"schema": 1, "task": "review", "hosts": [{"host": "gpu02", "reviews": [told]}], "unreachable": []}


def hostile() -> dict[str, Any]:
    """A doctor's document in which every text is an attack, and one holds a token."""
    bad = finding(
        title=HOSTILE,
        cause=HOSTILE,
        host=HOSTILE,
        code=HOSTILE,
        slug=HOSTILE,
        severity=HOSTILE,
        evidence=[{"source": HOSTILE, "line": HOSTILE, "text": f"{HOSTILE} token={SECRET}"}],
        fix=[
            {
                "change": HOSTILE,
                "value": "'\"><svg onload=alert(1)>",
                "command": f"HF_TOKEN={SECRET} {HOSTILE}",
                "why": HOSTILE,
            }
        ],
    )
    return doctor(bad)


def fill(folder: Path) -> Path:
    """All of it as a folder of saved documents."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"status": status(), "doctor": doctor(), "facts": facts(), "plan": plans(), "drift": drift()}
    documents["review"] = review()
    documents |= {f"bench-{n}": b for n, b in enumerate(benches())}
    for name, document in documents.items():
        save(folder / f"{name}.json", document)
    return folder


def save(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")

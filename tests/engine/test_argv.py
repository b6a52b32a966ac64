"""Proof against the engine: its own parser and config take what we render and refuse what the catalogue retired.

Needs an environment with the engine's CPU build: EYAS_ENGINE_PYTHON, or the one `demo` makes in the cache.
"""

import json
import os
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inventory.catalogue import EngineRelease, load_catalogue
from inventory.command import render
from inventory.errors import UsageError
from inventory.model import Deployment
from inventory.translate import translate

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
PYTHON = Path(os.environ.get("EYAS_ENGINE_PYTHON", CACHE / "eyas/engine/venv/bin/python"))

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 448,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "torch_dtype": "float32",
    "hidden_act": "silu",
}  # fmt: skip
HEAD = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 448}


@cache
def engine_release() -> EngineRelease:
    if not PYTHON.exists():
        pytest.skip(f"no engine environment at {PYTHON}; EYAS_ENGINE_PYTHON names one")
    asked = "from importlib.metadata import version; print(version('vllm'))"
    said = subprocess.run([PYTHON, "-c", asked], capture_output=True, text=True, check=False)
    if said.returncode:
        pytest.skip(f"{PYTHON} has no vllm: {said.stderr.strip()[-200:]}")
    return load_catalogue().release("vllm", said.stdout.strip())


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with a configuration and no weights: enough to validate, nothing to load."""
    root = tmp_path_factory.mktemp("models")
    eagle1 = LLAMA | {"num_hidden_layers": 1}
    for name, config in {"target": LLAMA, "draft": eagle1, "eagle3": HEAD, "eagle1": eagle1}.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return root


def deployments(release: EngineRelease, root: Path) -> dict[str, dict[str, Any]]:
    """What is validated to the end: local models, the device of this environment, every draft it has."""
    head: dict[str, Any] = {
        "method": "eagle3",
        "model": {"path": f"{root}/eagle3"},
        "num_speculative_tokens": 3,
    }
    drafts: dict[str, dict[str, Any]] = {
        "none": {},
        "ngram": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        },
        "eagle3": head,
        "eagle": {"method": "eagle", "model": {"path": f"{root}/eagle1"}, "num_speculative_tokens": 2},
        "draft": {"method": "draft_model", "model": {"path": f"{root}/draft"}, "num_speculative_tokens": 4},
        "limit": head | {"max_batch_size": 16},
        "extra": head | {"extra": {"max_model_len": 256}},
        "tp1": head | {"tensor_parallel": 1},
    }
    base = {
        "engine": "vllm", "target": {"path": f"{root}/target"}, "device": "cpu", "dtype": "float32",
        "served_model_name": "tiny", "max_model_len": 512, "max_num_seqs": 4, "enforce_eager": True,
        "kv_cache_memory_bytes": 67108864, "max_num_batched_tokens": 1024, "enable_prefix_caching": False,
        "disable_custom_all_reduce": True, "trust_remote_code": True, "block_size": 32,
        "distributed_executor_backend": "mp", "gpu_memory_utilization": 0.5,
    }  # fmt: skip
    return {name: base | ({"draft": draft} if draft else {}) for name, draft in drafts.items()}


@pytest.fixture(scope="session")
def answers(models: Path) -> dict[str, str]:
    """One process of the engine's environment judges every argv: starting one costs some ten seconds."""
    release = engine_release()
    cases = [
        *({"id": f"config/{n}", "argv": list(render(Deployment.model_validate({"name": n, **d}), release)),
           "config": True} for n, d in deployments(release, models).items()),
        *({"id": f"golden/{n}", "argv": list(a), "config": False} for n, a in golden(release).items()),
        *({"id": f"translated/{n}", "argv": list(a), "config": False} for n, a in translated(release).items()),
        *({"id": f"old/{a[3]}", "argv": a, "config": False} for a in old_spellings(release)),
        *({"id": f"key/{k}", "argv": a, "config": True} for k, a in old_keys(release, models).items()),
        {"id": "refused/tp", "config": True, "argv": [
            "vllm", "serve", f"{models}/target", "--max-model-len", "512", "--speculative-config", json.dumps(
                {"method": "eagle3", "model": f"{models}/eagle3", "num_speculative_tokens": 3,
                 "draft_tensor_parallel_size": 2})]},
    ]  # fmt: skip
    run = subprocess.run(
        [PYTHON, HERE / "argv_driver.py"], input=json.dumps(cases), capture_output=True, text=True, timeout=300,
        check=False, env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, str] = json.loads(run.stdout.strip().splitlines()[-1])["results"]
    assert set(found) == {c["id"] for c in cases}
    return found


def golden(release: EngineRelease) -> dict[str, tuple[str, ...]]:
    """The golden deployments, at this engine's version."""
    found = {}
    for name, fields in tomllib.loads((GOLDEN / "command.toml").read_text())["deployment"].items():
        try:
            found[name] = render(
                Deployment.model_validate({"name": name, "engine": "vllm", **fields}), release
            )
        except UsageError:
            continue
    return found


def translated(release: EngineRelease) -> dict[str, tuple[str, ...]]:
    """Commands people find, the six among them, at this engine's version."""
    cases = tomllib.loads((GOLDEN / "translate.toml").read_text())["case"]
    commands = {c["name"]: c["command"] for c in cases if c["name"] not in {"unknown"}}
    return {n: translate(c, engine="vllm", engine_version=release.version).argv for n, c in commands.items()}


def old_spellings(release: EngineRelease) -> list[list[str]]:
    """Each flag the catalogue says this version lacks, as a command."""
    data = load_catalogue().engine("vllm")
    now = {f.flag for f in release.flags.values()} | {r.flag for r in release.retired}
    roles = [(f.flag, f.kind == "value") for f in data.flag if f.flag not in now]
    gone = [(r.flag, bool(r.takes_value)) for r in data.retired if r.flag not in now]
    return [["vllm", "serve", "org/model", f, *(["1"] if v else [])] for f, v in dict.fromkeys(roles + gone)]


def old_keys(release: EngineRelease, root: Path) -> dict[str, list[str]]:
    """Each key of the JSON the catalogue says this version refuses."""
    base = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    return {
        k.key: ["vllm", "serve", f"{root}/target", "--max-model-len", "512", str(release.json_flag),
                json.dumps(base | {k.key: 1})]
        for k in release.retired_keys
    }  # fmt: skip


def failures(answers: dict[str, str], kind: str, *, wanted: bool) -> dict[str, str]:
    mine = {k: v for k, v in answers.items() if k.startswith(kind)}
    assert mine, f"nothing of {kind} was judged"
    return {k: v for k, v in mine.items() if bool(v) == wanted}


def test_the_config_takes_every_draft_we_render(answers: dict[str, str]) -> None:
    assert failures(answers, "config/", wanted=True) == {}


def test_the_parser_takes_every_golden_deployment(answers: dict[str, str]) -> None:
    assert failures(answers, "golden/", wanted=True) == {}


def test_the_parser_takes_every_translation(answers: dict[str, str]) -> None:
    assert failures(answers, "translated/", wanted=True) == {}


def test_the_parser_refuses_every_flag_catalogued_as_gone(answers: dict[str, str]) -> None:
    assert failures(answers, "old/", wanted=False) == {}


def test_the_config_refuses_every_key_catalogued_as_gone(answers: dict[str, str]) -> None:
    assert failures(answers, "key/", wanted=False) == {}


def test_the_config_refuses_what_render_refuses(answers: dict[str, str]) -> None:
    assert "cannot be other value than 1 or target model" in answers["refused/tp"]

"""Proof against the engine: its own parser and config take what we render and refuse what is retired.

Needs an environment with the engine's CPU build: EYAS_ENGINE_PYTHON, or the one `demo` makes in the cache.
"""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inventory.catalogue import EngineRelease, load_catalogue
from inventory.command import render
from inventory.errors import UsageError
from inventory.model import Deployment
from inventory.roles import Node
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
    for name, config in {"target": LLAMA, "draft": eagle1, "eagle3": HEAD, "eagle": eagle1}.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return root


def deployments(release: EngineRelease, root: Path) -> dict[str, dict[str, Any]]:
    """What is validated to the end: local models, the device of this environment, every draft it has."""
    eagle3 = {"method": "eagle3", "model": {"path": f"{root}/eagle3"}, "num_speculative_tokens": 3}
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    drafts: dict[str, dict[str, Any]] = {
        "ngram": ngram,
        "eagle3": eagle3 | {"max_batch_size": 16, "tensor_parallel": 1, "extra": {"max_model_len": 256}},
        "eagle": {"method": "eagle", "model": {"path": f"{root}/eagle"}, "num_speculative_tokens": 2},
        "draft": {"method": "draft_model", "model": {"path": f"{root}/draft"}, "num_speculative_tokens": 4},
    }
    base = {
        "engine": "vllm", "target": {"path": f"{root}/target"}, "device": "cpu", "dtype": "float32",
        "served_model_name": "tiny", "max_model_len": 512, "max_num_seqs": 4, "enforce_eager": True,
        "kv_cache_memory_bytes": 67108864, "max_num_batched_tokens": 1024, "enable_prefix_caching": False,
        "disable_custom_all_reduce": True, "trust_remote_code": True, "block_size": 32,
        "distributed_executor_backend": "mp", "gpu_memory_utilization": 0.5,
    }  # fmt: skip
    return {name: base | {"draft": draft} for name, draft in drafts.items()}


@pytest.fixture(scope="session")
def answers(models: Path) -> dict[str, str]:
    """One process of the engine's environment judges every argv: starting one costs some ten seconds."""
    release = engine_release()
    local = deployments(release, models)
    unequal = {"method": "eagle3", "model": f"{models}/eagle3", "num_speculative_tokens": 3}
    refused = [*render(deployment("x", local["ngram"]), release)[:-1], json.dumps(UNEQUAL | unequal)]
    cases = [
        *(case("config", n, render(deployment(n, d), release)) for n, d in local.items()),
        *(case("parser", f"golden/{n}", a) for n, a in golden(release).items()),
        *(case("parser", f"translated/{n}", a) for n, a in translated(release).items()),
        *(case("parser", f"old/{a[3]}", a) for a in old_spellings(release)),
        *(case("keys", k, a) for k, a in old_keys(release).items()),
        *(case("parser", f"nodes/{n}", a) for n, a in over_nodes(release, local["eagle3"]).items()),
        case("config", "refused", refused),
    ]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    run = subprocess.run(
        [PYTHON, HERE / "argv_driver.py"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | quiet,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, str] = json.loads(run.stdout.strip().splitlines()[-1])
    assert set(found) == {c["id"] for c in cases}
    return found


UNEQUAL = {"draft_tensor_parallel_size": 2}


def deployment(name: str, fields: dict[str, Any]) -> Deployment:
    return Deployment.model_validate({"name": name, "engine": "vllm", **fields})


def case(depth: str, name: str, argv: Sequence[str]) -> dict[str, Any]:
    return {"id": f"{depth}/{name}", "argv": list(argv), "depth": depth}


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
    commands = {c["name"]: c["command"] for c in cases if c["name"] != "unknown"}
    return {n: translate(c, engine="vllm", engine_version=release.version).argv for n, c in commands.items()}


def over_nodes(release: EngineRelease, fields: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Each rank of two hosts by the engine's own way, and rank 0 through Ray."""
    d = deployment("x", fields | {"nodes": 2, "tensor_parallel": 2, "distributed_executor_backend": None})
    ranks = {f"native-{n}": render(d, release, node=Node(n, "10.0.0.1")) for n in range(2)}
    through = d.model_copy(update={"distributed": "ray"})
    return ranks | {"ray": render(through, release, node=Node(0, "10.0.0.1"))}


def old_spellings(release: EngineRelease) -> list[list[str]]:
    """Each flag the catalogue says this version lacks, as a command."""
    data = load_catalogue().engine("vllm")
    now = {f.flag for f in release.flags.values()} | {r.flag for r in release.retired}
    roles = [(f.flag, f.kind == "value") for f in data.flag if f.flag not in now]
    gone = [(r.flag, bool(r.takes_value)) for r in data.retired if r.flag not in now]
    return [["vllm", "serve", "org/model", f, *(["1"] if v else [])] for f, v in dict.fromkeys(roles + gone)]


def old_keys(release: EngineRelease) -> dict[str, list[str]]:
    """Each key of the JSON the catalogue says this version refuses."""
    base = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    return {
        k.key: ["vllm", "serve", "org/model", str(release.json_flag), json.dumps(base | {k.key: 1})]
        for k in release.retired_keys
    }


def of(answers: dict[str, str], kind: str) -> dict[str, str]:
    mine = {k: v for k, v in answers.items() if k.startswith(kind)}
    assert mine, f"nothing of {kind} was judged"
    return mine


@pytest.mark.parametrize("name", ["ngram", "eagle3", "eagle", "draft"])
def test_the_config_takes_every_draft_we_render(answers: dict[str, str], name: str) -> None:
    assert answers[f"config/{name}"] == ""


@pytest.mark.parametrize("kind", ["parser/golden/", "parser/translated/", "parser/nodes/"])
def test_the_parser_takes_what_we_render_and_translate(answers: dict[str, str], kind: str) -> None:
    assert {k: v for k, v in of(answers, kind).items() if v} == {}


def test_the_parser_refuses_every_flag_catalogued_as_gone(answers: dict[str, str]) -> None:
    refusal = re.compile(r"unrecognized arguments|ambiguous option")
    assert {k: v for k, v in of(answers, "parser/old/").items() if not refusal.search(v)} == {}


def test_the_config_refuses_every_key_catalogued_as_gone(answers: dict[str, str]) -> None:
    for name, said in of(answers, "keys/").items():
        key = name.removeprefix("keys/")
        assert key in said, (name, said)
        assert re.search(r"[Uu]nexpected keyword|not a valid argument", said), (name, said)


def test_the_config_refuses_what_render_refuses(answers: dict[str, str]) -> None:
    assert "cannot be other value than 1 or target model" in answers["config/refused"]

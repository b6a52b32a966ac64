"""Deployments: the reference and the shipped ones load, and every wrong file says where it is wrong."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from inventory import yamlfile
from inventory.errors import EyasError, InventoryError, UsageError
from inventory.hosts import load_inventory
from inventory.load import (
    REFERENCE,
    SHIPPED,
    deployment_for,
    find_deployment,
    list_deployments,
    load_deployment,
)
from inventory.model import Deployment, Draft, Host, ModelRef
from inventory.yamlfile import read_yaml

GOOD = """\
engine: vllm
target:
  repo: org/model
draft:
  method: eagle3
  model: {repo: org/head}
  num_speculative_tokens: 3
"""


def save(folder: Path, text: str | bytes, name: str = "box.yml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_reference_loads_and_names_every_key() -> None:
    load_deployment(REFERENCE)
    text = REFERENCE.read_text()
    data: dict[str, Any] = read_yaml(REFERENCE).data
    assert set(data) == set(Deployment.model_fields)
    assert set(data["draft"]) == set(Draft.model_fields)
    assert [k for k in ModelRef.model_fields if f"  {k}:" not in text and f"# {k}:" not in text] == []


def test_the_reference_shows_the_defaults() -> None:
    """A key shown as null, false or empty is at its default, so the page cannot promise another."""
    shown = load_deployment(REFERENCE).model_dump()
    chosen = {
        "target",
        "draft",
        "served_model_name",
        "max_model_len",
        "gpu_memory_utilization",
        "max_num_seqs",
    }
    chosen |= {"api_key", "hub_token", "env", "name", "engine"}
    defaults = Deployment(name="x", engine="vllm", target=ModelRef(path="x")).model_dump()
    assert {k: v for k, v in shown.items() if k not in chosen} == {
        k: v for k, v in defaults.items() if k not in chosen
    }


def test_every_choice_is_explained_in_the_reference() -> None:
    text = REFERENCE.read_text()
    models: list[type[BaseModel]] = [Deployment, Draft]
    for model in models:
        for field in model.model_fields.values():
            choices = [c for c in get_args(field.annotation) if isinstance(c, str)]
            assert [c for c in choices if c not in text] == []


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yml")), ids=lambda p: p.stem)
def test_shipped_deployments(path: Path) -> None:
    deployment = load_deployment(path)
    assert deployment.target.repo
    assert deployment.draft.method != "none"
    assert f"invoke pin --deployment {path.stem}`" in path.read_text()


def test_the_pairs_that_are_promised_are_shipped() -> None:
    shipped = {d.deployment.target.repo: d.deployment for d in list_deployments(root=SHIPPED) if d.deployment}
    assert shipped["meta-llama/Llama-3.1-8B-Instruct"].tensor_parallel == 1
    assert shipped["ibnzterrell/Meta-Llama-3.3-70B-Instruct-AWQ-INT4"].tensor_parallel == 4
    assert "Qwen/Qwen3-Coder-30B-A3B-Instruct" in shipped
    coder = [d.deployment for d in list_deployments(root=SHIPPED) if "coder-32b" in d.name]
    assert {d.draft.method for d in coder if d} == {"draft_model", "ngram"}
    assert {d.tensor_parallel for d in coder if d} == {2}


def test_name_comes_from_the_file(tmp_path: Path) -> None:
    assert load_deployment(save(tmp_path, GOOD)).name == "box"
    with pytest.raises(InventoryError, match=r"box.yml:1: name 'other' differs from the file's name 'box'"):
        load_deployment(save(tmp_path, "name: other\n" + GOOD))


WRONG = {
    "tensor_paralel: 2\n": (r"box.yml:8: unknown key 'tensor_paralel'", "did you mean tensor_parallel?"),
    "tensor_parallel: two\n": (r"box.yml:8: tensor_parallel must be a valid integer, found 'two'", ""),
    "tensor_parallel: yes\n": (r"box.yml:8: tensor_parallel must be a valid integer, found True", ""),
    "tensor_parallel: 0\n": (r"box.yml:8: tensor_parallel must be greater than 0, found 0", ""),
    "tensor_parallel: '2'\n": (r"box.yml:8: tensor_parallel must be a valid integer, found '2'", ""),
    "port: 99999\n": (r"box.yml:8: port must be less than 65536", ""),
    "engine_version: 0.33\n": (
        r"box.yml:8: engine_version must be text, found 0.33",
        'engine_version: "0.33"',
    ),
    "gpu_memory_utilization: 1.5\n": (r"box.yml:8: gpu_memory_utilization must be less", ""),
    "gpu_memory_utilization: .nan\n": (r"box.yml: .*not JSON compliant", "finite"),
    "env: {CUDA_VISIBLE_DEVICES: 0}\n": (r"box.yml:8: env.CUDA_VISIBLE_DEVICES must be text, found 0", '"0"'),
    "env: {A: ''}\n": (r"box.yml:8: env: A needs a value", ""),
    "env: {A-B: x}\n": (r"box.yml:8: env: 'A-B' is not the name", ""),
    "env: {HF_TOKEN: x}\n": (r"box.yml:8: env: HF_TOKEN is a secret", ""),
    'extra_args: ["--a\\nb"]\n': (r"box.yml:8: extra_args: each item is one word", ""),
    "extra_args: --seed 7\n": (r"box.yml:8: extra_args must be a valid", ""),
    "device: gpu\n": (r"box.yml:8: device must be 'cuda' or 'cpu', found 'gpu'", ""),
    "api_key: sk-1\n": (r"box.yml:8: api_key: a secret is a reference", ""),
    "api_key: 31337\n": (r'box.yml:8: api_key must be a reference, "env:NAME" or "file:PATH"', ""),
    "host: 0.0.0.0\n": (r"host 0.0.0.0 is not loopback", ""),
    "port: 8000\nport: 8001\n": (r"box.yml:9: key 'port' is given twice \(first on line 8\)", "keep one"),
    "port: [8000\n": (r"box.yml:\d+: not YAML", ""),
    "a: *nobody\n": (r"box.yml:8: not YAML: found undefined alias", ""),
    "\tport: 1\n": (r"box.yml:8: not YAML", "spaces"),
    "---\nport: 1\n": (r"not YAML: but found another document", "one document"),
    "port: !!python/object/apply:os.system [id]\n": (r"box.yml:8: tag .*os.system is not supported", ""),
    "port: !!binary aGk=\n": (r"box.yml:8: tag .*binary is not supported", ""),
    "port: 0x_\n": (r"box.yml:8: '0x_' is not a number", "quote"),
    f"port: {'9' * 5000}\n": (r"box.yml:8: '9+' is not a number", "quote"),
    "? [a, b]\n: 1\n": (r"box.yml:8: a key must be a word", ""),
    "env: &e\n  A: *e\n": (r"box.yml:8: an alias contains itself", ""),
}


@pytest.mark.parametrize("tail", WRONG, ids=lambda t: t[:30])
def test_a_wrong_line_is_named(tmp_path: Path, tail: str) -> None:
    says, hint = WRONG[tail]
    with pytest.raises(InventoryError, match=says) as caught:
        load_deployment(save(tmp_path, GOOD + tail))
    assert hint in caught.value.hint
    assert caught.value.hint
    assert "31337" not in str(caught.value)


NESTED = [
    (GOOD.replace("eagle3", "eagel3"), r"box.yml:5: draft.method must be 'none', .* found 'eagel3'"),
    (GOOD.replace("  repo: org/model", "  rep: org/model"), r"box.yml:3: unknown key 'target.rep'"),
    (GOOD.replace("org/model", "no-owner"), r"box.yml:2: target: repo 'no-owner' is not owner/name"),
    (GOOD.replace("{repo: org/head}", "{repo: o/h, revision: -x}"), "revision '-x' is not a commit"),
    (GOOD.replace("  model: {repo: org/head}\n", ""), r"box.yml:4: draft: method eagle3 needs a model"),
    (
        GOOD.replace("engine: vllm", "engine: vlm"),
        r"box.yml:1: engine must be 'vllm' or 'sglang', found 'vlm'",
    ),
    ("target: {repo: a/b}\n", r"box.yml:1: key 'engine' is missing"),
    ("", "box.yml is empty, a deployment is a mapping"),
    ("# only a comment\n", "box.yml is empty"),
    ("- engine: vllm\n", "box.yml is a list"),
    ("just words\n", "box.yml is a str"),
    (b"engine: \xff\xfe\n", "box.yml:1: not UTF-8"),
    (b"\x00\x01\x02", "box.yml: not YAML"),
    (b"\x7fELF\x02\x01", "box.yml: not YAML"),
    ("[" * 900, "box.yml: nested too deeply"),
    (b"# " + b"x" * (2 * 1024 * 1024), "larger than 2048 KiB"),
]


@pytest.mark.parametrize(("text", "says"), NESTED, ids=[str(n) for n in range(len(NESTED))])
def test_a_wrong_file_is_named(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(InventoryError, match=says) as caught:
        load_deployment(save(tmp_path, text))
    assert caught.value.hint


def test_all_errors_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InventoryError) as caught:
        load_deployment(save(tmp_path, GOOD + "prt: 1\ntensor_parallel: x\n"))
    assert "box.yml:8" in caught.value.message
    assert "also" in caught.value.message
    assert "box.yml:9" in caught.value.message


def test_alias_bomb_is_refused_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamlfile, "MAX_NODES", 10_000)
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(InventoryError, match="expands to more than"):
        load_deployment(save(tmp_path, bomb))


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = "engine: vllm\ntarget: &m {repo: a/b, revision: dev}\ndraft:\n  method: eagle3\n"
    text += "  model: {<<: *m, repo: a/c}\n"
    draft = load_deployment(save(tmp_path, text)).draft
    assert draft.model == ModelRef(repo="a/c", revision="dev")


def test_overrides_lie_over_the_file(tmp_path: Path) -> None:
    path = save(tmp_path, GOOD)
    over = {"port": 9000, "draft": {"num_speculative_tokens": 2}, "max_num_seqs": 4}
    changed = load_deployment(path, overrides=over)
    assert (changed.port, changed.draft.num_speculative_tokens, changed.draft.method) == (9000, 2, "eagle3")
    assert load_deployment(path, overrides={"draft": None}).draft == Draft()
    with pytest.raises(InventoryError, match=r"^eyas_overrides of gpu01: unknown key 'prt'") as caught:
        load_deployment(path, overrides={"prt": 1}, overrides_from="eyas_overrides of gpu01")
    assert caught.value.hint == "did you mean port?"


def test_a_host_names_its_deployment(tmp_path: Path) -> None:
    save(tmp_path, GOOD)
    host = Host(name="g", address="g", vars={"eyas_deployment": "box", "eyas_overrides": {"port": 8001}})
    assert deployment_for(host, root=tmp_path).port == 8001
    save(tmp_path, GOOD, "other.yml")
    assert deployment_for(host, "other", root=tmp_path).name == "other"
    with pytest.raises(UsageError, match="g: no deployment is named"):
        deployment_for(Host(name="g", address="g"), root=tmp_path)


def test_the_example_inventory_fits_the_shipped_deployments() -> None:
    fleet = load_inventory(REFERENCE.with_name("hosts.example.yml"))
    ports = {h.name: deployment_for(h, root=SHIPPED).port for h in fleet.select("all")}
    assert ports == {**{f"gpu0{n}": 8000 for n in range(1, 9)}, "quad01": 8000, "quad02": 8001}


def test_names_and_paths(tmp_path: Path) -> None:
    path = save(tmp_path, GOOD)
    assert find_deployment("box", root=tmp_path) == path
    assert find_deployment(str(path)) == path
    with pytest.raises(UsageError) as caught:
        find_deployment("bix", root=tmp_path)
    assert caught.value.hint == "did you mean box?"
    for bad in ("", " ", "-x"):
        with pytest.raises(UsageError):
            find_deployment(bad, root=tmp_path)
    with pytest.raises(InventoryError, match="does not exist"):
        load_deployment(tmp_path / "none.yml")


def test_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    save(tmp_path, GOOD)
    save(tmp_path, "engine: [", "broken.yml")
    listed = {item.name: item for item in list_deployments(root=tmp_path)}
    assert listed["box"].deployment
    assert isinstance(listed["broken"].error, EyasError)

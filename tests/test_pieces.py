"""What an engine uses beside its wheel: named where the lock does not bring it."""

from pathlib import Path

import pytest

from inventory.catalogue import load_catalogue
from inventory.locks import find_lock
from inventory.model import Deployment
from provision.beside import lacking


@pytest.mark.parametrize(
    ("version", "lock", "method", "names"),
    [
        ("0.33.0", "vllm-0.33.0-cu130-cp312", "none", ["flashinfer-cubin"]),
        ("0.33.0", "vllm-0.33.0-cu130-cp312", "suffix", ["flashinfer-cubin", "arctic-inference"]),
        ("0.19.1", "vllm-0.19.1-cu128-cp312", "none", []),
    ],
)
def test_what_the_lock_lacks_is_said(version: str, lock: str, method: str, names: list[str]) -> None:
    d = Deployment.model_validate(
        {"name": "x", "engine": "vllm", "target": {"repo": "a/b"}, "draft": {"method": method}}
    )
    said = lacking(d, load_catalogue().release("vllm", version), find_lock(lock))
    assert [line.split(":")[0] for line in said] == [f"the lock has no {name}" for name in names]


def test_an_engines_own_command_writes_where_the_service_looks() -> None:
    d = Deployment.model_validate({"name": "x", "engine": "vllm", "target": {"repo": "a/b"}})
    lock = find_lock("vllm-0.33.0-cu130-cp312")
    [note] = lacking(d, load_catalogue().release("vllm", "0.33.0"), lock)
    assert "sudo -u eyas env HOME=/var/lib/eyas-x XDG_CACHE_HOME=/var/cache/eyas-x " in note
    assert f"/opt/eyas/envs/{lock.id[:16]}/bin/vllm download-kernels" in note
    page = Path(__file__).parent.parent / "docs" / "beside-the-wheels.md"
    assert f"docs/{page.name}" in note
    assert all(p.wheel in page.read_text() for p in load_catalogue().engines["vllm"].piece)


def test_every_piece_names_the_wheel_that_its_command_installs() -> None:
    pieces = [p for engine in load_catalogue().engines.values() for p in engine.piece]
    assert [p.name for p in pieces if p.how == "wheel" and not p.argv[0].startswith(p.wheel)] == []

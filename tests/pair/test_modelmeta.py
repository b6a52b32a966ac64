"""Reading a model: folder, hub and mirror agree; every kind of broken input has its own clear error."""

import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.facts import Missing
from checks.modelmeta import (
    HubDenied,
    HubUnreachable,
    ModelMeta,
    NotAModel,
    RateLimited,
    RepoMissing,
    RevisionMissing,
    TokenizerInfo,
    WeightsBroken,
    load_model_meta,
    model_ref,
)
from inventory.errors import EyasError, UsageError
from inventory.model import ModelRef
from tests.pair import hub as stand_in
from tests.pair.making import make, tokenizer, write_json, write_safetensors, write_torch

INFO = "/api/models/org/m/"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[stand_in.Hub]:
    with stand_in.serve() as running:
        running.repos["org/m"] = make(tmp_path / "m", files={"tokenizer.json": tokenizer()})
        yield running


def local(path: Path) -> ModelMeta:
    return load_model_meta(ModelRef(path=str(path)))


def remote(
    hub: stand_in.Hub, repo: str = "org/m", revision: str = "main", token: str | None = None
) -> ModelMeta:
    return load_model_meta(ModelRef(repo=repo, revision=revision), endpoint=hub.url, token=token, timeout=5)


def test_three_ways_agree(hub: stand_in.Hub) -> None:
    folder, repo = local(hub.repos["org/m"]), remote(hub)
    mirror = load_model_meta(ModelRef(url=f"{hub.url}/mirror/org/m/"))
    assert folder.tensors == repo.tensors or set(folder.tensors) == set(repo.tensors)  # type: ignore[arg-type]
    for seen in (repo, mirror):
        assert seen.config == folder.config
        assert seen.weight_bytes == folder.weight_bytes
        assert seen.total_bytes == folder.total_bytes
        assert seen.tokenizer == folder.tokenizer
    assert (folder.commit, repo.commit, mirror.commit) == (None, stand_in.COMMIT, None)
    assert repo.files["model.safetensors"].sha256
    assert isinstance(folder.generation_config, Missing)


def test_weights_are_never_downloaded(hub: stand_in.Hub) -> None:
    write_safetensors(hub.repos["org/m"] / "model.safetensors", {"a": (1024, 4096), "b": (1024, 4096)})
    size = (hub.repos["org/m"] / "model.safetensors").stat().st_size
    assert size > 32 << 20
    assert remote(hub).total_bytes > size
    assert hub.sent < 1 << 20


def test_server_without_ranges(hub: stand_in.Hub) -> None:
    hub.ranges = False
    names = {f"layer.{n}.{'x' * 900}": (1,) for n in range(300)}  # a header beyond the first read
    write_safetensors(hub.repos["org/m"] / "model.safetensors", names)
    tensors = remote(hub).tensors
    assert not isinstance(tensors, Missing)
    assert set(tensors) == set(names)


def test_listing_without_sizes(hub: stand_in.Hub) -> None:
    info = {"sha": stand_in.COMMIT, "siblings": [{"rfilename": p.name} for p in hub.repos["org/m"].iterdir()]}
    hub.fail[INFO] = (200, {}, json.dumps(info).encode())
    assert remote(hub).total_bytes == local(hub.repos["org/m"]).total_bytes


def test_shards_by_index(hub: stand_in.Hub) -> None:
    folder = hub.repos["org/m"]
    (folder / "model.safetensors").unlink()
    for n in (1, 2):
        write_safetensors(folder / f"model-0000{n}-of-00002.safetensors", {f"t{n}": (2, 3)}, "BF16")
    weights = {f"t{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    write_json(folder / "model.safetensors.index.json", {"weight_map": weights})
    write_safetensors(folder / "consolidated.safetensors", {"other": (9, 9)})
    for seen in (local(folder), remote(hub), load_model_meta(ModelRef(url=f"{hub.url}/mirror/org/m"))):
        assert seen.weight_bytes == 24
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsBroken, match=r"which model\.safetensors\.index\.json names"):
        local(folder)
    with pytest.raises(WeightsBroken, match=r"which model\.safetensors\.index\.json names"):
        remote(hub)


def test_the_token_goes_out_only_when_given(hub: stand_in.Hub) -> None:
    remote(hub)
    assert not any("Authorization" in headers for _, headers in hub.seen)
    hub.seen.clear()
    remote(hub, token="hf_canary")
    assert {headers.get("Authorization") for _, headers in hub.seen} == {"Bearer hf_canary"}


def test_commit_of_a_cache_snapshot(tmp_path: Path) -> None:
    snapshot = make(tmp_path / "models--org--m" / "snapshots" / stand_in.COMMIT)
    assert local(snapshot).commit == stand_in.COMMIT
    with pytest.raises(NotAModel) as error:
        local(tmp_path / "models--org--m")
    assert str(snapshot) in error.value.hint


GATED = {"X-Error-Code": "GatedRepo"}
HTML = b"<html>Please log in</html>"


@pytest.mark.parametrize(
    ("answer", "token", "kind", "says", "code"),
    [
        ((401, GATED, b""), None, HubDenied, "no token was sent", 3),
        ((401, GATED, b""), "t", HubDenied, "no access", 3),
        ((403, GATED, b""), "t", HubDenied, "no access", 3),
        (
            (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, b""),
            "t",
            HubDenied,
            "token",
            3,
        ),
        ((401, {"X-Error-Code": "RepoNotFound"}, b""), None, RepoMissing, "private and no token", 4),
        ((404, {"X-Error-Code": "RepoNotFound"}, b""), "t", RepoMissing, "is not on", 4),
        ((404, {"X-Error-Code": "RevisionNotFound"}, b""), None, RevisionMissing, "no revision", 4),
        ((403, {"X-Error-Message": "blocked"}, b""), "t", HubDenied, "blocked", 3),
        ((429, {"Retry-After": "300"}, b""), None, RateLimited, "429", 3),
        ((429, {"RateLimit": '"api";r=0;t=42'}, b""), None, RateLimited, "429", 3),
        ((500, {}, b"oops"), None, HubUnreachable, "500", 3),
        ((200, {"Content-Type": "text/html"}, HTML), None, HubUnreachable, "text/html", 3),
        ((200, {"Content-Type": "application/json"}, b"[]"), None, HubUnreachable, "no object", 3),
        ((200, {"Content-Type": "application/json"}, b"{}"), None, HubUnreachable, "no sha", 3),
    ],
)
def test_what_the_hub_may_say(
    hub: stand_in.Hub, answer: tuple[int, dict[str, str], bytes], token: str | None, kind: type[EyasError],
    says: str, code: int,
) -> None:  # fmt: skip
    hub.fail[INFO] = answer
    with pytest.raises(kind, match=says) as error:
        remote(hub, token=token)
    assert type(error.value) is kind
    assert error.value.exit_code == code
    assert error.value.hint or kind is RepoMissing


def test_how_long_to_wait(hub: stand_in.Hub) -> None:
    hub.fail[INFO] = (429, {"RateLimit": '"api";r=0;t=42'}, b"")
    with pytest.raises(RateLimited, match="again in 42 s") as error:
        remote(hub)
    assert error.value.retry_after == 42


def test_gate_that_stands_only_before_the_files(hub: stand_in.Hub) -> None:
    hub.fail["/org/m/resolve/"] = (403, GATED, b"")
    with pytest.raises(HubDenied, match="gated") as error:
        remote(hub, token="t")
    assert error.value.slug == "hf-forbidden"


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(HubUnreachable, match="cannot be reached"):
        load_model_meta(ModelRef(repo="org/m"), endpoint=f"http://127.0.0.1:{port}")
    with pytest.raises(HubUnreachable, match="not a URL"):
        load_model_meta(ModelRef(repo="org/m"), endpoint="not-a-url")


def test_an_endpoint_that_never_answers() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(HubUnreachable, match=r"within 0\.1 s"),
    ):
        load_model_meta(
            ModelRef(repo="org/m"), endpoint=f"http://127.0.0.1:{mute.getsockname()[1]}", timeout=0.1
        )


def test_unknown_repository(hub: stand_in.Hub) -> None:
    with pytest.raises(RepoMissing):
        remote(hub, "org/other")
    with pytest.raises(NotAModel):
        load_model_meta(ModelRef(url=f"{hub.url}/mirror/org/none/"))


# ---- broken folders


def raw(length: int, rest: bytes) -> bytes:
    return struct.pack("<Q", length) + rest


ENTRY = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


@pytest.mark.parametrize(
    ("content", "slug", "says"),
    [
        (b"", "weights-truncated", "too few"),
        (b"\x01\x02", "weights-truncated", "too few"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "weights-lfs-pointer", "LFS pointer"),
        (b"<!doctype html><html>", "weights-lfs-pointer", "starts with '<!doctyp'"),
        (raw(1 << 20, b"{"), "weights-truncated", "header alone"),
        (raw(5, b"{nope"), "weights-truncated", "not JSON"),
        (raw(2, b"[]"), "weights-truncated", "not a JSON object"),
        (raw(20, b"[" * 20), "weights-truncated", "not JSON"),
        (raw(7, b'{"a":1}'), "weights-truncated", "no dtype"),
        (raw(len(ENTRY), ENTRY), "weights-truncated", "of 70 bytes"),
        (raw(len(ENTRY), ENTRY) + b"0" * 9, "weights-truncated", "1 bytes follow"),
        (
            raw(len(ENTRY), ENTRY.replace(b"[2]", b"[3]")) + b"0" * 8,
            "weights-truncated",
            "does not take 8 bytes",
        ),
        (
            raw(len(ENTRY) + 1, ENTRY.replace(b"[2]", b"[-2]")) + b"0" * 8,
            "weights-truncated",
            "does not take",
        ),
    ],
)
def test_broken_weights(content: bytes, slug: str, says: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsBroken, match=says) as error:
        local(folder)
    assert error.value.slug == slug
    assert error.value.hint
    assert "model.safetensors" in error.value.message


@pytest.mark.parametrize("text", ["", "{", "[]", "<html>", "[" * 100_000, "\x00"])
def test_broken_configuration(text: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / "config.json").write_text(text)
    with pytest.raises(NotAModel, match=r"config\.json"):
        local(folder)


def test_not_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, says in (("none", "does not exist"), ("file", "is a file"), (".", "no config.json")):
        with pytest.raises(NotAModel, match=says) as error:
            local(tmp_path / path)
        assert error.value.exit_code == 2
    make(tmp_path / "inner")
    with pytest.raises(NotAModel) as error:
        local(tmp_path)
    assert "did you mean" in error.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_no_permission(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / "config.json").chmod(0)
    with pytest.raises(NotAModel, match="cannot be read"):
        local(folder)


def test_index_without_a_map(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", files={"model.safetensors.index.json": {"metadata": {}}})
    with pytest.raises(NotAModel, match="weight_map"):
        local(folder)


# ---- torch files


def test_hub_trouble_while_a_torch_file_is_read(hub: stand_in.Hub) -> None:
    folder = hub.repos["org/m"]
    (folder / "model.safetensors").unlink()
    write_torch(folder / "pytorch_model.bin", {"fc.weight": (256, 512)})
    hub.fail["/org/m/resolve/" + stand_in.COMMIT + "/pytorch_model.bin"] = (500, {}, b"")
    with pytest.raises(HubUnreachable):
        remote(hub)


def test_torch_file_by_ranges(hub: stand_in.Hub) -> None:
    folder = hub.repos["org/m"]
    (folder / "model.safetensors").unlink()
    write_torch(folder / "pytorch_model.bin", {"fc.weight": (256, 512), "layers.0.x": (3,)})
    (folder / "training_args.bin").write_bytes(b"\x80")
    for seen in (local(folder), remote(hub), load_model_meta(ModelRef(url=f"{hub.url}/mirror/org/m"))):
        assert not isinstance(seen.tensors, Missing)
        assert {k: (t.dtype, t.shape, t.nbytes) for k, t in seen.tensors.items()} == {
            "fc.weight": ("F16", (256, 512), 262144),
            "layers.0.x": ("F16", (3,), 6),
        }


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("extra", "says"),
    [(Evil(), "it names posix.system"), ([1], "no state dict"), ({"a": 1}, "no tensors by name")],
)
def test_a_pickle_is_never_run(extra: object, says: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    write_torch(folder / "pytorch_model.bin", {}, extra=extra)
    tensors = local(folder).tensors
    assert isinstance(tensors, Missing)
    assert says in tensors.reason


def test_broken_torch_files(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    write_torch(path, {"fc.weight": (2, 2)})
    whole = path.read_bytes()
    for content, says in ((whole[:-30], "truncated"), (b"version https://git-lfs.github.com/spec/v1", "LFS")):
        path.write_bytes(content)
        with pytest.raises(WeightsBroken, match=says):
            local(folder)
    for content in (b"", b"\x80\x02legacy"):
        path.write_bytes(content)
        assert isinstance(local(folder).tensors, Missing)


# ---- tokenizers


def test_two_layouts_of_one_tokenizer_are_equal(tmp_path: Path) -> None:
    one, two = tokenizer(), tokenizer()
    two["model"]["merges"] = [m.split() for m in two["model"]["merges"]]
    a = local(make(tmp_path / "a", files={"tokenizer.json": one})).tokenizer
    (tmp_path / "b").mkdir()
    b_folder = make(tmp_path / "b")
    (b_folder / "tokenizer.json").write_text(json.dumps(two, indent=4))
    assert a == local(b_folder).tokenizer
    assert isinstance(a, TokenizerInfo)
    assert a.vocab_size == 448


def test_tokenizer_settings(tmp_path: Path) -> None:
    settings = {"chat_template": "{{ x }}", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    files = {"vocab.json": {"a": 0, "b": 1}, "tokenizer_config.json": settings}
    found = local(make(tmp_path / "m", files=files)).tokenizer
    assert isinstance(found, TokenizerInfo)
    assert (found.source, found.vocab_size) == ("vocab.json", 2)
    assert found.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert found.chat_template_sha256


@pytest.mark.parametrize(
    "content",
    [{}, {"model": {"vocab": 3}}, {"model": {"vocab": {}}, "added_tokens": [1, {"id": "x", "content": "y"}]}],
)
def test_odd_tokenizers_do_not_crash(content: object, tmp_path: Path) -> None:
    assert local(make(tmp_path / "m", files={"tokenizer.json": content})).tokenizer


def test_no_tokenizer(tmp_path: Path) -> None:
    assert local(make(tmp_path / "m")).tokenizer == Missing("no tokenizer files")


# ---- what an operator writes


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("org/m", ModelRef(repo="org/m")),
        ("org/m@abc", ModelRef(repo="org/m", revision="abc")),
        ("./here", ModelRef(path="./here")),
        ("https://mirror/m", ModelRef(url="https://mirror/m")),
    ],
)
def test_model_ref(text: str, want: ModelRef) -> None:
    assert model_ref(text) == want


@pytest.mark.parametrize(
    "text", ["", "  ", "--help", "gpt2", "a/b/c", "a/../b", "a b/c", "org/m.git", "org/--x"]
)
def test_no_model_ref(text: str) -> None:
    with pytest.raises(UsageError):
        model_ref(text)

"""Wheel locks: the committed ones are whole, their identity is their content, refusals are explained."""

import base64
import hashlib
import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from inventory.errors import (
    ChangeFailed,
    CheckRefused,
    EyasError,
    HostUnreachable,
    InventoryError,
    UsageError,
)
from inventory.locks import (
    SHIPPED,
    WheelLock,
    accelerator,
    find_lock,
    list_locks,
    lock_for,
    parse_lock,
    read_lock,
)
from provision import wheellock
from provision.lockcommand import lock_engine, requirement_lines
from provision.wheellock import ENGINES, compile_lock

DIGEST = "a" * 64
HEAD = (
    '# eyas-lock: {"schema": 1, "engine": "vllm", "engine_version": "1.0", "accelerator": "cu130", '
    '"python": "3.12", "platform": "x86_64-manylinux_2_39"}\n'
)
PATH = Path("x.txt")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.txt")), ids=lambda p: p.stem)
def test_committed_locks_are_whole(path: Path) -> None:
    lock = read_lock(path)
    assert lock.name == lock.target.name == path.stem
    assert Version(lock.packages[lock.engine]).public == lock.target.engine_version
    assert accelerator(lock.packages) == lock.target.accelerator
    assert len(lock.packages) > (100 if lock.engine in ENGINES else 20)
    assert all(lock.hashes.values())
    assert re.search(r"https?://|--index|--find-links|file:", lock.text) is None


def test_the_promised_lines_are_locked() -> None:
    targets = {
        (t.engine, t.engine_version): t for t in (find_lock(n, root=SHIPPED).target for n in list_locks())
    }
    assert targets["vllm", "0.33.0"].accelerator == "cu130"
    assert targets["vllm", "0.19.1"].accelerator == "cu128"
    assert targets["sglang", "0.5.23"].accelerator == "cu130"
    for target in targets.values():
        assert target.machine == "x86_64"
        if target.accelerator != "cpu":  # the CPU build is for the lab's hosts
            assert (target.python_tag, target.glibc) == ("cp312", "2.39")


def test_identity_is_the_content() -> None:
    one, two = f"a==1 \\\n    --hash=sha256:{DIGEST}\n", f"B_b==2 --hash=sha256:{DIGEST}\n"
    lock = parse_lock(HEAD + one + two, PATH)
    assert lock.packages == {"a": "1", "b-b": "2"}
    assert parse_lock(f"# other comment\n{HEAD}\n{two}{one}", Path("y.txt")).id == lock.id
    for other in (one, one + two.replace("==2", "==3"), one + two.replace(DIGEST, "b" * 64)):
        assert parse_lock(HEAD + other, PATH).id != lock.id
    assert parse_lock(HEAD.replace("3.12", "3.13") + one + two, PATH).id != lock.id


PIN = f"a==1 --hash=sha256:{DIGEST}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a wheel lock"),
        (PIN, "not a wheel lock"),
        (HEAD, "the lock is empty"),
        (HEAD + "a==1\n", "x.txt:2: a has no or a broken sha256 hash"),
        (HEAD + f"a==1 --hash=sha256:{DIGEST[:-1]}\n", "broken sha256"),
        (HEAD + f"a==1 --hash=md5:{DIGEST}\n", "broken sha256"),
        (HEAD + f"a==1 ; sys_platform == 'x' --hash=sha256:{DIGEST}\n", "broken sha256"),
        (HEAD + PIN + PIN, "x.txt:3: a is pinned twice"),
        (HEAD + "--index-url https://example.invalid\n", "expected name==version"),
        (HEAD + f"a>=1 --hash=sha256:{DIGEST}\n", "expected name==version"),
        (HEAD + f"a @ file:///x.whl --hash=sha256:{DIGEST}\n", "expected name==version"),
        (HEAD + f"a==one --hash=sha256:{DIGEST}\n", "Invalid version"),
        (HEAD.replace('"schema": 1', '"schema": 9') + PIN, "found 9"),
        (HEAD.replace('"engine": "vllm", ', "") + PIN, "description is broken"),
        ("# eyas-lock: {\n" + PIN, "description is broken"),
        ("# eyas-lock: []\n" + PIN, "description is broken"),
        (HEAD + PIN.replace("\n", " \\"), None),
    ],
)
def test_a_damaged_lock_is_refused(text: str, says: str | None) -> None:
    if says is None:
        assert parse_lock(text, PATH).packages == {"a": "1"}
        return
    with pytest.raises(InventoryError, match=re.escape(says)) as caught:
        parse_lock(text, PATH)
    assert caught.value.hint


def test_a_truncated_lock_is_refused() -> None:
    """A cut in the middle of a file never yields a smaller lock that looks whole."""
    text = HEAD + f"a==1 \\\n    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{'b' * 64}\n"
    whole = parse_lock(text, PATH)
    for size in range(len(HEAD), len(text) - 1):
        try:
            assert parse_lock(text[:size], PATH).id != whole.id
        except InventoryError:
            continue


@given(st.text(max_size=40))
@settings(max_examples=30)
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        parse_lock(HEAD + text, PATH)
    except InventoryError:
        return


@pytest.mark.parametrize(
    ("packages", "name"),
    [
        ({}, "any"),
        ({"torch": "2.13.0+cpu"}, "cpu"),
        ({"torch": "2.9.0+cu129"}, "cu129"),
        ({"torch": "2.14.0", "cuda-toolkit": "13.0.3.0"}, "cu130"),
        ({"torch": "2.10.0", "nvidia-cuda-runtime-cu12": "12.8.90"}, "cu128"),
        ({"torch": "2.10.0"}, "cpu"),
    ],
)
def test_accelerator(packages: dict[str, str], name: str) -> None:
    assert accelerator(packages) == name


def test_an_unknown_lock_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "vllm-0.33.0-cu130-cp312.txt").write_text(HEAD + PIN)
    with pytest.raises(UsageError) as caught:
        find_lock("vllm-0.33.0-cu130-cp311", root=tmp_path)
    assert caught.value.hint == "did you mean vllm-0.33.0-cu130-cp312?"


def test_a_lock_is_chosen_by_engine_version_device_and_python(tmp_path: Path) -> None:
    for name in (
        "vllm-1.0-cu130-cp312",
        "vllm-1.0-cpu-cp312",
        "vllm-1.0.1-cu130-cp312",
        "vllm-1.0-cpu-cp311",
    ):
        (tmp_path / f"{name}.txt").write_text(HEAD + PIN)
    assert lock_for("vllm", "1.0", "cuda", root=tmp_path).name == "vllm-1.0-cu130-cp312"
    assert lock_for("vllm", "1.0", "cpu", python="3.11", root=tmp_path).name == "vllm-1.0-cpu-cp311"
    (tmp_path / "vllm-1.0-cu128-cp312.txt").write_text(HEAD + PIN)
    with pytest.raises(UsageError, match=r"several .* vllm-1\.0-cu128-cp312, vllm-1\.0-cu130-cp312"):
        lock_for("vllm", "1.0", "cuda", root=tmp_path)
    with pytest.raises(UsageError) as caught:
        lock_for("vllm", "2.0", "cuda", python="3.11", root=tmp_path)
    assert caught.value.hint == "invoke lock --engine vllm --engine-version 2.0 --python 3.11"


# --- compiling, against a wheelhouse of tiny wheels ---


def wheel(
    folder: Path, name: str, version: str, tag: str = "py3-none-any", *needs: str, python: str = ">=3"
) -> str:
    """A minimal valid wheel; returns its sha256."""
    info = f"{name}-{version}.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n"
    files = {
        f"{info}/METADATA": meta + "".join(f"Requires-Dist: {n}\n" for n in needs),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},"
        f"{len(text)}"
        for path, text in files.items()
    ]
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in {**files, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,", ""])}.items():
            archive.writestr(member, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    folder = tmp_path / "house"
    folder.mkdir()
    wheel(folder, "vllm", "9.1", "py3-none-any", "torch==2.0+cpu", "triton")
    wheel(folder, "torch", "2.0+cpu", "cp312-cp312-manylinux_2_28_x86_64")
    wheel(folder, "new", "1.0", "py3-none-any", python=">=3.13")
    return folder


DROP = ["triton ; sys_platform == 'never'"]


@pytest.mark.process
def test_compile_from_a_wheelhouse(house: Path, tmp_path: Path) -> None:
    info = compile_lock(["vllm==9.1"], find_links=house, no_index=True, overrides=DROP, output=tmp_path)
    assert info.path == tmp_path / "vllm-9.1-cpu-cp312.txt"
    lock: WheelLock = read_lock(info.path)
    assert lock.packages == {"vllm": "9.1", "torch": "2.0+cpu"}
    digest = hashlib.sha256(next(house.glob("torch*")).read_bytes()).hexdigest()
    assert lock.hashes["torch"] == (digest,)
    assert str(house) not in lock.text
    again = compile_lock(["vllm==9.1"], find_links=house, no_index=True, overrides=DROP, output=info.path)
    assert (info.changed, again.changed, again.lock.id) == (True, False, lock.id)


@pytest.mark.process
def test_the_command_line_names_the_lock_by_its_content(house: Path, tmp_path: Path) -> None:
    (tmp_path / "drop.txt").write_text(f"# why\n{DROP[0]}  # reason\n\n")
    info = lock_engine(
        "vllm", "9.1", device="cpu", find_links=str(house), no_index=True,
        override_files=[str(tmp_path / "drop.txt")], output=str(tmp_path / "new"),
    )  # fmt: skip
    assert info.path.name == "vllm-9.1-cpu-cp312.txt"
    assert "invoke lock --engine vllm --engine-version 9.1 --python 3.12" in info.lock.text
    assert "--override drop.txt --find-links DIR --no-index" in info.lock.text
    assert str(tmp_path) not in info.lock.text
    with pytest.raises(CheckRefused, match="resolves to cpu, not to cuda"):
        lock_engine("vllm", "9.1", device="cuda", find_links=str(house), no_index=True,
                    override_files=[str(tmp_path / "drop.txt")], output=str(tmp_path / "none"))  # fmt: skip
    assert not (tmp_path / "none").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    ("wanted", "options", "kind", "says"),
    [
        (["vllm==9.9"], {}, CheckRefused, "no version of vllm==9.9"),
        (["vllm==9.1"], {"overrides": []}, CheckRefused, "triton was not found"),
        (["vllm==9.1"], {"python": "3.11"}, CheckRefused, "torch==2.0"),
        (["vllm==9.1"], {"platform": "aarch64-manylinux_2_39"}, CheckRefused, "torch==2.0"),
        (["new"], {}, CheckRefused, "Python >=3.13"),
        (["vllm==9.1"], {"platform": "amiga"}, UsageError, "invalid value 'amiga'"),
        (["vllm==9.1"], {"python": "three"}, UsageError, "'three' is not a version"),
        (["vllm=="], {}, UsageError, "requirement 'vllm=='"),
        (["vllm @ file:///x.whl"], {}, UsageError, "names a URL"),
        ([], {}, UsageError, "nothing to lock"),
        (["vllm"], {"find_links": Path("/does/not/exist")}, UsageError, "not a folder"),
    ],
)
def test_refusals(
    house: Path,
    tmp_path: Path,
    wanted: list[str],
    options: dict[str, object],
    kind: type[EyasError],
    says: str,
) -> None:
    given_: dict[str, object] = {"find_links": house, "no_index": True, "overrides": DROP, **options}
    with pytest.raises(kind, match=re.escape(says)) as caught:
        compile_lock(wanted, output=tmp_path / "x.txt", **given_)  # type: ignore[arg-type]
    assert caught.value.hint
    assert not (tmp_path / "x.txt").exists()


def test_an_unreachable_index_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://me:canary@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(HostUnreachable) as caught:
        compile_lock(["vllm==1"], output=tmp_path / "x.txt")
    assert "UV_DEFAULT_INDEX" in caught.value.hint
    assert "canary" not in str(caught.value)


#: What uv 0.13.9 printed (its telling part), the class of error and a part of the hint.
RECORDED: list[tuple[str, type[EyasError], str]] = [
    ("not found in the package registry\nhint: (401 Unauthorized)", HostUnreachable, "credentials"),
    ("not found in the package registry\nhint: a 403 Forbidden error.", HostUnreachable, "credentials"),
    ("error: Failed to fetch: http://h/a/\n cause: 429 Too Many", HostUnreachable, "UV_DEFAULT_INDEX"),
    ("Because abc was not found in the package registry and you require abc==1", CheckRefused, "correct"),
    ("Packages were unavailable because the network was disabled.", HostUnreachable, "UV_OFFLINE"),
    ("Because vllm==0.33.0 has no usable wheels and you require it", CheckRefused, "--platform"),
    ("the requested Python version (>=3.9) does not satisfy Python>=3.11,<3.15", CheckRefused, "--python"),
    ("Because there is no version of vllm==9.9.9 and you require vllm==9.9.9", CheckRefused, "published"),
    ("something new", ChangeFailed, "UV_LOG"),
    ("", ChangeFailed, "UV_LOG"),
]


@pytest.mark.parametrize(("said", "kind", "hint"), RECORDED)
def test_what_uv_says_is_explained(said: str, kind: type[EyasError], hint: str) -> None:
    error = wheellock._failure(said)
    assert type(error) is kind
    assert hint in error.hint


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine": None, "engine_version": None}, "belong together"),
        ({"engine": "vllm", "engine_version": None}, "belong together"),
        ({"engine": "vlm", "engine_version": "1"}, "not known"),
        ({"engine": "vllm", "engine_version": "1", "device": "gpu"}, "not cuda or cpu"),
        ({"engine": "vllm", "engine_version": "1", "no_index": True}, "nowhere to look"),
        ({"engine": "vllm", "engine_version": "1; import os"}, "requirement"),
        ({"engine": "vllm", "engine_version": "1", "requirement_files": ["/none"]}, "cannot read /none"),
    ],
)
def test_wrong_options(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        lock_engine(**options)  # type: ignore[arg-type]


def test_options_in_a_requirements_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    path.write_text("a==1 # why\n--index-url https://example.invalid\n")
    with pytest.raises(UsageError, match="not allowed here"):
        requirement_lines(path)


def test_missing_uv_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def gone() -> str:
        raise FileNotFoundError("uv")

    monkeypatch.setattr(wheellock, "find_uv_bin", gone)
    with pytest.raises(UsageError, match="uv, which makes locks, is not installed"):
        compile_lock(["vllm==1"], output=tmp_path)


@pytest.mark.process
def test_an_unwritable_place_is_said(house: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        compile_lock(["torch"], find_links=house, no_index=True, output=tmp_path / "file" / "x.txt")


def test_versions_in_locks_are_normal() -> None:
    for path in SHIPPED.glob("*.txt"):
        assert [v for v in read_lock(path).packages.values() if str(Version(v)) != v] == []

"""Weights: which files a model is (manifest, asked here) and how they get to a host, verified."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventory.errors import ChangeFailed, CheckRefused, InventoryError
from inventory.model import ModelRef
from provision import layout
from provision.change import Change
from provision.programs import FOLDER, program
from provision.shell import Shell

__all__ = ["FileSpec", "Manifest", "manifest_of", "plan_weights", "verify_copy"]

_WANTED = re.compile(r".*\.(json|model|txt|jinja|py|tiktoken|safetensors)|.*merges.*|.*vocab.*")
_UNWANTED = re.compile(
    r"(original|onnx|metal|openvino|coreml|gguf|\..*)(/.*)?|consolidated.*|README.*", re.IGNORECASE
)
_HOURS_6 = 6 * 3600

NEXT_STEP = {
    "gated-no-token": "the repo is gated: set hub_token (env:NAME or file:PATH) to a token that may read it",
    "gated-no-access": "the token works but access was not granted: accept the licence on its page",
    "bad-token": "the hub refuses the token: make a new one and update hub_token",
    "forbidden": "the token is fine but may not read this repo: fine-grained tokens need 'read gated repos'",
    "repo-missing": "check the spelling; `invoke check-pair` names the nearest existing repos",
    "revision-missing": "that commit or branch does not exist: `invoke pin` writes today's commit",
    "missing": "a file of the pinned commit is gone from the hub: pin a newer commit",
    "rate-limited": "the hub limits this address: wait some minutes, or set hub_token for a higher limit",
    "disk-full": "free space (`invoke prune` removes releases nobody serves), then run again",
    "corrupt": "the transfer changes bytes: check the link or the mirror, then run again",
    "pointer": "the source was never pulled from LFS: `git lfs pull` in it, or pin another commit",
    "truncated": "the source itself is damaged: copy or upload it again, or pin another commit",
    "network": "check the host's way to the hub, or push from here: weights_from: push",
    "filesystem": "look at the folder's file system on the host",
}

#: How a source fails -> the doctor's name for it.
CAUSE = {
    "gated-no-token": "hf-unauthorized",
    "bad-token": "hf-unauthorized",
    "gated-no-access": "hf-forbidden",
    "forbidden": "hf-forbidden",
    "repo-missing": "hub-repo-not-found",
    "revision-missing": "hub-repo-not-found",
    "missing": "hub-repo-not-found",
    "rate-limited": "hf-rate-limited",
    "disk-full": "disk-full",
    "pointer": "weights-lfs-pointer",
    "truncated": "weights-truncated",
    "network": "hub-unreachable",
}


def _told(kind: str) -> dict[str, str]:
    return {"hint": NEXT_STEP.get(kind, ""), "cause": CAUSE.get(kind, "")}


@dataclass(frozen=True)
class FileSpec:
    """One file: size in bytes and the hash the hub gives for it (sha256 of LFS files, git sha1 of others)."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""

    def as_dict(self) -> dict[str, Any]:
        hashes = {"sha256": self.sha256, "git_sha1": self.git_sha1}
        return {"path": self.path, "size": self.size, **{k: v for k, v in hashes.items() if v}}


@dataclass(frozen=True)
class Manifest:
    """All files of one model at one commit."""

    ref: ModelRef
    commit: str
    files: tuple[FileSpec, ...]

    @property
    def total_bytes(self) -> int:
        return sum(f.size for f in self.files)

    @property
    def folder(self) -> str:
        return layout.weights_dir(self.ref.label, self.commit)


def manifest_of(ref: ModelRef, *, endpoint: str | None, token: str | None) -> Manifest:
    """Ask the hub (or read the folder). Raises CheckRefused with the next step of the hub's refusal."""
    if ref.path:
        return _local(ref, Path(ref.path).expanduser())
    if ref.repo:
        return _hub(ref, endpoint, token)
    return _mirror(ref)


def _select(names: Iterable[str]) -> list[str]:
    names = list(names)
    wanted = [n for n in names if _WANTED.fullmatch(n) and not _UNWANTED.fullmatch(n)]
    if not any(n.endswith(".safetensors") for n in wanted):
        wanted += [n for n in names if re.fullmatch(r"pytorch_model.*\.bin|.*\.bin\.index\.json", n)]
    return sorted(wanted)


def _local(ref: ModelRef, folder: Path) -> Manifest:
    if not (folder / "config.json").is_file():
        raise InventoryError(f"{folder} is not a model folder: it has no config.json")
    names = _select(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    fetching = _fetch_program()
    try:
        fetching["refuse_unusable"](folder, [{"path": n} for n in names])
    except fetching["Failed"] as e:
        raise InventoryError(f"{folder}: {e}", **_told(e.kind)) from e
    files = tuple(FileSpec(n, (folder / n).stat().st_size, sha256=_file_hash(folder / n)) for n in names)
    digest = hashlib.sha256(json.dumps([f.as_dict() for f in files]).encode()).hexdigest()
    return Manifest(ref, digest[:40], files)


def _mirror(ref: ModelRef) -> Manifest:
    """A plain web server: sizes are asked for; hashes stand in its SHA256SUMS, or nothing is proven."""
    import requests  # noqa: PLC0415 - dear, and few deployments have a mirror

    from checks.modelmeta import load_model_meta  # noqa: PLC0415 - the same

    assert ref.url is not None
    found = load_model_meta(ref, tokenizer=False).files
    try:
        answer = requests.get(f"{ref.url.rstrip('/')}/SHA256SUMS", timeout=20)
    except requests.RequestException as e:
        raise CheckRefused(f"{ref.url}: {e}", **_told("network")) from e
    lines = answer.text.splitlines() if answer.ok else []
    sums = {name.lstrip("*"): digest for digest, _, name in (line.partition("  ") for line in lines)}
    if missing := [n for n in found if n not in sums]:
        raise CheckRefused(
            f"{ref.url} has no SHA256SUMS with {missing[0]}: its bytes can't be verified",
            hint="in the mirror's folder: sha256sum * > SHA256SUMS",
        )
    files = tuple(FileSpec(n, found[n].size, sha256=sums[n]) for n in sorted(found))
    digest = hashlib.sha256(json.dumps([f.as_dict() for f in files]).encode()).hexdigest()
    return Manifest(ref, digest[:40], files)


def _file_hash(path: Path) -> str:
    """sha256 of a local file, remembered by (size, mtime): hashing 100 GB takes minutes."""
    info = path.stat()
    key = hashlib.sha256(f"{path.resolve()}:{info.st_size}:{info.st_mtime_ns}".encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "eyas" / "hashes" / key
    if cache.is_file():
        return cache.read_text()
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while data := f.read(1 << 22):
            digest.update(data)
    cache.parent.mkdir(parents=True, exist_ok=True)
    partial = cache.with_suffix(f".{os.getpid()}")
    partial.write_text(digest.hexdigest())
    partial.replace(cache)
    return digest.hexdigest()


def _hub(ref: ModelRef, endpoint: str | None, token: str | None) -> Manifest:
    from huggingface_hub import HfApi  # noqa: PLC0415 - costs half a second that other tasks need not pay

    assert ref.repo is not None
    api = HfApi(endpoint=endpoint, token=token or False)
    try:
        info = api.model_info(ref.repo, revision=ref.revision, files_metadata=True, timeout=20)
        names = set(_select(s.rfilename for s in info.siblings or []))
        # Info of a gated repo can say 200 while its files are refused: ask for one file's head.
        if names:
            from huggingface_hub import get_hf_file_metadata, hf_hub_url  # noqa: PLC0415

            url = hf_hub_url(ref.repo, min(names), revision=info.sha, endpoint=endpoint)
            get_hf_file_metadata(url, token=token or False, endpoint=endpoint, timeout=20)
    except Exception as e:
        kind, text = _classify(e)
        raise CheckRefused(f"{ref.repo}@{ref.revision}: {text}", **_told(kind)) from e
    files = tuple(
        FileSpec(
            s.rfilename,
            s.size or 0,
            sha256=s.lfs.sha256 if s.lfs else "",
            git_sha1="" if s.lfs else (s.blob_id or ""),
        )
        for s in info.siblings or []
        if s.rfilename in names
    )
    if not files:
        raise CheckRefused(f"{ref.repo}@{ref.revision} holds no weights in a format the engines read")
    return Manifest(ref, str(info.sha), tuple(sorted(files, key=lambda f: f.path)))


def _classify(error: Exception) -> tuple[str, str]:
    """The same words as the host's own program uses; it is loaded so that they cannot differ."""
    failed = _fetch_program()["classify"](error)
    return failed.kind, str(failed) or type(error).__name__


def _fetch_program() -> dict[str, Any]:
    import runpy  # noqa: PLC0415

    return runpy.run_path(str(FOLDER / "fetch.py"), run_name="eyas_fetch")


Say = Callable[[str], None]


def plan_weights(
    manifests: Iterable[Manifest],
    have: set[str],
    *,
    python: str,
    endpoint: str | None,
    token: str | None,
    push: bool,
    say: Say,
) -> list[Change]:
    """One change per model folder that is not complete on the host. ``have``: folders that are."""
    changes = []
    for m in {m.folder: m for m in manifests}.values():
        if m.folder in have:
            continue
        how = "push" if push or m.ref.path else "download"
        title = f"{how} {m.ref.label}@{m.commit[:12]} ({len(m.files)} files, {m.total_bytes / 1e9:.2f} GB)"
        if how == "push":
            changes.append(Change(title, _pusher(m, endpoint, token, say)))
        else:
            changes.append(Change(title, _fetcher(m, python, endpoint, token, say)))
    return changes


def _request(m: Manifest, endpoint: str | None, token: str | None) -> bytes:
    request = {
        "repo": m.ref.repo,
        "url": m.ref.url,
        "commit": m.commit,
        "endpoint": endpoint,
        "token": token,
        "dest": m.folder,
    }
    request["work"] = layout.WORK
    return json.dumps({**request, "files": [f.as_dict() for f in m.files]}).encode()


def _program(shell: Shell, python: str, word: str, m: Manifest, request: bytes, say: Say) -> None:
    """Run fetch.py on the host. The program travels in argv-free form: written once, request on stdin."""
    path = f"{layout.ROOT}/lib/fetch.py"
    shell.write(path, program("fetch.py"))
    last: dict[str, Any] = {}

    def on_line(line: str) -> None:
        nonlocal last
        try:
            last = json.loads(line)
        except ValueError:
            return
        if "done" in last:
            say(f"{m.ref.label}: {last['done'] / 1e9:.2f} of {last['total'] / 1e9:.2f} GB")

    got = shell.run(
        (python, "-sEB", path, word), timeout=_HOURS_6, stdin=request, check=False, on_line=on_line
    )
    if last.get("error"):
        raise ChangeFailed(
            f"{m.ref.label}@{m.commit[:12]}: {last['text']}",
            **_told(last["error"]),
            host=shell.host.name,
        )
    if not got.ok or not last.get("ok"):
        raise ChangeFailed(f"{m.ref.label}: fetch ended with {got.exit}: {got.tail(5)}", host=shell.host.name)


def verify_copy(shell: Shell, m: Manifest, say: Say) -> None:
    """Check every byte of a folder that was copied to ``m.folder + ".partial"`` and give it its name.

    Raises ChangeFailed when a file is wrong; wrong files are removed, so that a further copy mends them.
    """
    _program(shell, "/usr/bin/python3", "verify", m, _request(m, None, None), say)


def _fetcher(
    m: Manifest, python: str, endpoint: str | None, token: str | None, say: Say
) -> Callable[[Shell], None]:
    return lambda shell: _program(shell, python, "fetch", m, _request(m, endpoint, token), say)


def _pusher(m: Manifest, endpoint: str | None, token: str | None, say: Say) -> Callable[[Shell], None]:
    def apply(shell: Shell) -> None:
        source = Path(m.ref.path).expanduser() if m.ref.path else _local_copy(m, endpoint, token)
        need = m.total_bytes
        free = shell.run(
            ("sh", "-c", 'mkdir -p "$1" && df -B1 --output=avail "$1" | tail -1', "sh", layout.STATE),
            timeout=20,
        )
        if int(free.stdout) < need:
            raise ChangeFailed(
                f"{m.ref.label}: {need} bytes are needed, {free.stdout.strip()} are free",
                **_told("disk-full"),
                host=shell.host.name,
            )
        names = [f.path for f in m.files]
        shell.push(
            source,
            m.folder + ".partial",
            files=names,
            on_line=lambda line: say(f"{m.ref.label}: {line.strip()}"),
        )
        _program(shell, "/usr/bin/python3", "verify", m, _request(m, None, None), say)

    return apply


def _local_copy(m: Manifest, endpoint: str | None, token: str | None) -> Path:
    """Download to the operator's cache with the same program, for hosts without a way to the hub."""
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "eyas" / "weights"
    dest = cache / Path(m.folder).relative_to(layout.STATE + "/weights")
    if (dest / ".eyas-verified.json").is_file():
        return dest
    request = {**json.loads(_request(m, endpoint, token)), "dest": str(dest), "work": None}
    got = subprocess.run(
        [sys.executable, "-sEB", str(FOLDER / "fetch.py"), "fetch"],
        input=json.dumps(request), capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = json.loads((got.stdout.strip().splitlines() or ["{}"])[-1])
    if not last.get("ok"):
        raise ChangeFailed(
            f"{m.ref.label}: {last.get('text', got.stderr[-400:])}",
            **_told(last.get("error", "")),
        )
    return dest

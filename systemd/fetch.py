"""Weights on the host: download one pinned commit, verify every byte, only then give the folder its name.

    fetch.py fetch  < request.json    with the engine environment's Python (needs huggingface_hub)
    fetch.py verify < request.json    any Python 3.10; for folders that were pushed

Request: {"repo", "commit", "endpoint", "token", "dest", "work", "files": [{"path", "size",
"sha256"|"git_sha1"}]}. The file "work" is kept open (see hold_lock.py).
Prints JSON lines: {"done", "total"} (bytes) while it works, at the end {"ok": true} or {"error", "text"}.
The hub's client checks only a file's length, so every hash is checked here. A file that is whole and
right is never fetched again; a broken one is deleted and fetched once more.
"""

import concurrent.futures
import errno
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

MARK = ".eyas-verified.json"
CHUNK = 1 << 22
TOLD = {"pointer": "a Git LFS pointer", "truncated": "not a whole safetensors file"}


class Failed(Exception):
    """`kind` is one of the words provision/weights.py turns into a next step."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


def say(**words):
    print(json.dumps(words), flush=True)


def is_right(path, want):
    """True when size and hash are as the hub says. A git sha1 covers 'blob <size>\\0' and the content."""
    try:
        if path.stat().st_size != want["size"]:
            return False
        if want.get("sha256"):
            digest, expected = hashlib.sha256(), want["sha256"]
        elif want.get("git_sha1"):
            digest, expected = hashlib.sha1(b"blob %d\0" % want["size"]), want["git_sha1"]
        else:
            return True
        with open(path, "rb") as f:
            while data := f.read(CHUNK):
                digest.update(data)
    except FileNotFoundError:
        return False
    return digest.hexdigest() == expected


def wrong_files(folder, files):
    """The files that are missing or not what they should be; large files are hashed side by side."""
    with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        right = list(pool.map(lambda f: is_right(folder / f["path"], f), files))
    return [f for f, ok in zip(files, right) if not ok]


def unusable(path):
    """Why a safetensors file with the right hash is no weights: "pointer", "truncated", "" when it is whole.

    A repository can hold a file that was cut, or never pulled from LFS, before it was uploaded.
    """
    size = path.stat().st_size
    with open(path, "rb") as f:
        start = f.read(64)
        if start.startswith(b"version https://git-lfs"):
            return "pointer"
        length = int.from_bytes(start[:8], "little")
        if not 2 <= length <= size - 8:
            return "truncated"
        f.seek(8)
        try:
            header = json.loads(f.read(length))
            end = max([t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"] or [0])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "truncated"
    return "" if 8 + length + end == size else "truncated"


def refuse_unusable(folder, files):
    for path in [folder / f["path"] for f in files if f["path"].endswith(".safetensors")]:
        kind = unusable(path)
        if kind:
            size = path.stat().st_size
            raise Failed(kind, "%s (%d bytes) is %s as its source has it" % (path.name, size, TOLD[kind]))


def remove_leftovers(folder):
    """The client leaves partial files of killed runs for ever and never resumes them."""
    for path in folder.rglob("*.incomplete"):
        path.unlink()


def used(folder):
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            pass
    return total


class Progress:
    def __init__(self, folder, total):
        self.folder, self.total, self.stop = folder, total, threading.Event()
        self.thread = threading.Thread(target=self.loop, daemon=True)

    def loop(self):
        while not self.stop.wait(1.0):
            say(done=min(used(self.folder), self.total), total=self.total)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def need_space(folder, files):
    need = sum(f["size"] for f in files)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise Failed("disk-full", "%d bytes are needed in %s, %d are free" % (need, folder, free))


def download(request, folder, files):
    if request.get("url"):
        for f in files:
            plain(request["url"].rstrip("/") + "/" + urllib.parse.quote(f["path"]), folder / f["path"])
    else:
        snapshot(request, folder, files)


def plain(url, path):
    """One file from a mirror; a part that a cut or killed run left is gone on with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".eyas-part")
    have = part.stat().st_size if part.exists() else 0
    asked = urllib.request.Request(url, headers={"Range": "bytes=%d-" % have} if have else {})
    try:
        with (
            urllib.request.urlopen(asked, timeout=60) as r,
            open(part, "ab" if r.status == 206 else "wb") as f,
        ):
            shutil.copyfileobj(r, f, CHUNK)
    except urllib.error.HTTPError as e:
        kinds = {401: "bad-token", 403: "forbidden", 404: "missing", 429: "rate-limited"}
        if e.code != 416:  # 416: the part is whole already, or longer than the file now is
            raise Failed(kinds.get(e.code, "network"), "%s answered %d" % (url, e.code)) from e
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as e:
        raise Failed("network", "%s: %s" % (url, e)) from e
    os.replace(part, path)


def snapshot(request, folder, files):
    os.environ.setdefault("HF_HOME", str(folder / ".cache"))
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if request.get("endpoint"):
        os.environ["HF_ENDPOINT"] = request["endpoint"]
    if (request.get("endpoint") or "").startswith("http://"):
        os.environ["HF_HUB_DISABLE_XET"] = "1"
    from huggingface_hub import snapshot_download  # read after the environment is set

    try:
        snapshot_download(
            request["repo"],
            revision=request["commit"],
            local_dir=str(folder),
            allow_patterns=[glob_escape(f["path"]) for f in files],
            token=request.get("token") or False,
        )
    except Exception as e:
        raise classify(e) from e


def glob_escape(path):
    return "".join("[" + c + "]" if c in "[]*?" else c for c in path)


def classify(error):
    """The client wraps causes (a 429 comes out as "check your connection"): walk them all."""
    chain, e = [], error
    while e is not None and e not in chain:
        chain.append(e)
        e = e.__cause__ or e.__context__
    text = " | ".join(str(e).strip().splitlines()[0][:300] for e in chain if str(e).strip())
    for e in chain:
        if isinstance(e, OSError) and e.errno == errno.ENOSPC:
            return Failed("disk-full", text)
        status = getattr(getattr(e, "response", None), "status_code", None)
        name = type(e).__name__
        if name == "GatedRepoError":
            return Failed("gated-no-token" if status == 401 else "gated-no-access", text)
        if name == "RevisionNotFoundError":
            return Failed("revision-missing", text)
        if name == "RepositoryNotFoundError":
            return Failed("repo-missing", text)
        if status in (401, 403, 404, 429):
            return Failed(
                {401: "bad-token", 403: "forbidden", 404: "missing", 429: "rate-limited"}[status], text
            )
        if "Consistency check failed" in str(e):
            return Failed("corrupt", text)
    return Failed("network", text)


def drop(folder, files):
    for f in files:
        for path in (folder / f["path"], folder / ".cache/huggingface/download" / (f["path"] + ".metadata")):
            path.unlink(missing_ok=True)


def fetch(request, folder):
    files, total = request["files"], sum(f["size"] for f in request["files"])
    for attempt in (1, 2):
        remove_leftovers(folder)
        wrong = wrong_files(folder, files)
        if not wrong:
            return
        drop(folder, wrong)
        need_space(folder, wrong)
        try:
            with Progress(folder, total):
                download(request, folder, wrong)
        except Failed as e:
            # The client gives up at once on a 503 in a body; a second try goes on with what is whole.
            if e.kind != "network" or attempt == 2:
                raise
            time.sleep(2)
        say(done=total, total=total, attempt=attempt)
    broken = wrong_files(folder, files)
    if broken:
        drop(folder, broken)
        raise Failed(
            "corrupt", "hash differs after two downloads: " + ", ".join(f["path"] for f in broken[:5])
        )


def verify(request, folder):
    broken = wrong_files(folder, request["files"])
    if broken:
        drop(folder, broken)
        raise Failed("corrupt", "missing or wrong: " + ", ".join(f["path"] for f in broken[:5]))


def seal(request, folder, dest):
    """Readable by the service user, durable, then named. The mark is what "complete" means to the probe."""
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    mark = {"repo": request.get("repo"), "commit": request["commit"], "files": request["files"]}
    os.sync()
    with open(folder / MARK, "w", encoding="utf-8") as f:
        json.dump(mark, f)
        f.flush()
        os.fsync(f.fileno())
    if dest.exists():
        shutil.rmtree(dest)
    os.rename(folder, dest)


def main():
    request = json.load(sys.stdin)
    dest = pathlib.Path(request["dest"])
    folder = dest.with_name(dest.name + ".partial")
    held = os.open(request["work"], os.O_WRONLY | os.O_CREAT, 0o644) if request.get("work") else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        {"fetch": fetch, "verify": verify}[sys.argv[1]](request, folder)
        refuse_unusable(folder, request["files"])
        seal(request, folder, dest)
    except Failed as e:
        say(error=e.kind, text=str(e))
        return 1
    except OSError as e:
        say(error="disk-full" if e.errno == errno.ENOSPC else "filesystem", text=str(e))
        return 1
    finally:
        if held is not None:
            os.close(held)
    say(ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What eyas left on this host: folders, environments, releases, weights, lock, managed files, user."""

import grp
import hashlib
import json
import os
import pwd
import stat

from .base import Look, LookFailed, attempt, missing, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROOT, STATE, ETC = "/opt/eyas", "/var/lib/eyas", "/etc/eyas"
PROOF = "eyas-proof.json"
VERIFIED = ".eyas-verified.json"
FOLDERS = (ROOT, ROOT + "/envs", ROOT + "/lib", STATE, STATE + "/releases", STATE + "/weights", ETC)
MOST_FILES = 20000
LARGEST_FILE = 64 << 20
LARGEST_JSON = 1 << 20


def collect(look: Look) -> "dict[str, Any]":
    user = look.params.get("user", "eyas")
    facts = {
        "root": attempt(look.exists, ROOT),
        "current": attempt(_current, look),
        "lock_holder": attempt(_lock, look),
        "releases": attempt(_releases, look),
        "reviews": attempt(_reviews, look),
        "uv": attempt(_uv, look),
        "envs": attempt(_envs, look),
        "weights": attempt(_weights, look),
        "user": attempt(_user, user),
        "folders": {f: attempt(_folder, look, f) for f in (*FOLDERS, *look.params.get("own_folders", ()))},
        "files": {f: attempt(_file, look, f) for f in look.params.get("files", ())},
    }
    return {"eyas": facts}


def _json(look: Look, path: str) -> "Any":
    try:
        return json.loads(look.text(path, LARGEST_JSON))
    except ValueError as e:
        raise LookFailed(f"{path} is not JSON: {e}") from e


def _current(look: Look) -> "dict[str, str]":
    folder = STATE + "/current"
    links = [n for n in look.names(folder) if os.path.islink(look.path(folder + "/" + n))]
    return {n: os.path.basename(os.readlink(look.path(folder + "/" + n))) for n in links}


def _lock(look: Look) -> "Any":
    """What the holder wrote, while the lock is held: the kernel's table tells, nothing is taken."""
    try:
        inode = os.stat(look.path(STATE + "/lock/flock")).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None
    held = [line.split() for line in look.text("/proc/locks").splitlines()]
    if not any(
        w[1] == "FLOCK" and w[3] == "WRITE" and w[5].endswith(f":{inode}") for w in held if len(w) > 5
    ):
        return None
    return attempt(_json, look, STATE + "/lock/owner.json")


def _reviews(look: Look) -> "dict[str, Any]":
    """What the host's own review measured last, by deployment; empty where none is installed."""
    base = STATE + "/review"
    there = [n for n in look.names(base) if look.exists(base + "/" + n + "/latest.json")]
    return {n: attempt(_json, look, base + "/" + n + "/latest.json") for n in there}


def _uv(look: Look) -> "list[str]":
    """Versions of uv that were brought along, as /opt/eyas/uv/VERSION/uv."""
    return [n for n in look.names(ROOT + "/uv") if look.exists(ROOT + "/uv/" + n + "/uv")]


def _releases(look: Look) -> "list[dict[str, Any]]":
    return [attempt(_release, look, name) for name in look.names(STATE + "/releases") if name[0] != "."]


def _release(look: Look, name: str) -> "dict[str, Any]":
    path = STATE + f"/releases/{name}/release.json"
    if not look.exists(path):
        return {"id": name, "complete": False}
    try:
        told = _json(look, path)
    except (OSError, LookFailed) as e:
        return {"id": name, "complete": missing(reason(e))}
    keep = (
        "deployment",
        "created",
        "engine",
        "engine_version",
        "lock",
        "env",
        "weights",
        "draft",
        "endpoint",
    )
    proven = look.exists(STATE + f"/releases/{name}/proof.json")
    kept = {k: told[k] for k in keep if k in told}
    return dict(kept, id=name, complete=True, proven=proven, sha256=_sha256(look, path))


def _envs(look: Look) -> "list[dict[str, Any]]":
    out = []
    for name in look.names(ROOT + "/envs"):
        if name[0] != ".":
            path = f"{ROOT}/envs/{name}/{PROOF}"
            complete = attempt(look.exists, path)
            proof = attempt(_json, look, path) if complete is True else None
            told = proof if isinstance(proof, dict) and "missing" not in proof else {}
            out.append(
                {
                    "id": name,
                    "complete": complete if proof == told or proof is None else proof,
                    "torch": told.get("torch"),
                    "engine_version": told.get("engine_version"),
                    "proof": proof,
                }
            )
    return out


def _weights(look: Look) -> "list[dict[str, Any]]":
    base = STATE + "/weights"
    found = [(slug, commit) for slug in look.names(base) for commit in look.names(base + "/" + slug)]
    return [attempt(_weight, look, slug, commit) for slug, commit in found if slug[0] != "."]


def _refuse(error: OSError) -> None:
    """A folder that can't be read makes the whole entry Missing: a partial sum would read as a size."""
    raise error


def _weight(look: Look, slug: str, commit: str) -> "dict[str, Any]":
    folder = f"{STATE}/weights/{slug}/{commit}"
    total = files = partial = 0
    for here, _, names in os.walk(look.path(folder), onerror=_refuse):
        for name in names:
            files += 1
            partial += name.endswith(".incomplete")
            total += os.lstat(here + "/" + name).st_size if name != VERIFIED else 0
        if files > MOST_FILES:
            break
    return {
        "id": slug + "/" + commit,
        "complete": look.exists(folder + "/" + VERIFIED),
        "bytes": total,
        "files": files,
        "partial_files": partial,
    }


def _user(name: str) -> "dict[str, Any] | None":
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    groups = [g.gr_name for g in grp.getgrall() if name in g.gr_mem]
    return {"name": name, "uid": entry.pw_uid, "gid": entry.pw_gid, "home": entry.pw_dir, "groups": groups}


def _owner(seen: os.stat_result) -> "dict[str, str]":
    try:
        user = pwd.getpwuid(seen.st_uid).pw_name
    except KeyError:
        user = str(seen.st_uid)
    try:
        group = grp.getgrgid(seen.st_gid).gr_name
    except KeyError:
        group = str(seen.st_gid)
    return {"owner": user + ":" + group, "mode": f"{stat.S_IMODE(seen.st_mode):04o}"}


def _folder(look: Look, path: str) -> "dict[str, str] | None":
    """Owner and mode; None when there is no such folder."""
    if not look.exists(path):
        return None
    seen = os.lstat(look.path(path))
    kinds = ((stat.S_ISLNK, "link"), (stat.S_ISDIR, "folder"), (stat.S_ISREG, "file"))
    return dict(_owner(seen), kind=next((k for test, k in kinds if test(seen.st_mode)), "other"))


def _file(look: Look, path: str) -> "dict[str, Any] | None":
    """Digest, size, owner and mode of a file we manage; None when it does not exist."""
    try:
        seen = os.lstat(look.path(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(seen.st_mode):
        return dict(_owner(seen), link=os.readlink(look.path(path)))
    if not stat.S_ISREG(seen.st_mode):
        raise LookFailed(f"{path} is not a regular file")
    if seen.st_size > LARGEST_FILE:
        raise LookFailed(f"{path} is larger than any file eyas writes")
    return dict(_owner(seen), sha256=_sha256(look, path), bytes=seen.st_size)


def _sha256(look: Look, path: str) -> str:
    with open(look.path(path), "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()

"""Our units as systemd holds them, and their main processes as they really run."""

import os
import re
import time

from .base import Look, LookFailed, attempt, digest, missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROPERTIES = [
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "NRestarts",
    "ExecMainPID",
    "MainPID",
    "ExecMainStatus",
    "ExecMainCode",
    "FragmentPath",
    "DropInPaths",
    "UnitFileState",
    "TimeoutStartUSec",
    "MemoryCurrent",
    "ExecMainStartTimestampMonotonic",
    "NeedDaemonReload",
    "StatusText",
    "User",
]
SERVICES = ("nvidia-fabricmanager.service", "nvidia-persistenced.service", "unattended-upgrades.service")
UNIT_FOLDER = "/etc/systemd/system"
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CRED|AUTH|COOKIE", re.IGNORECASE)
#: Only names known to hold no secret keep their value.
PLAIN = re.compile(
    r"^(PATH|HOME|USER|LANG|LC_ALL|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|PYTHON\w*|CUDA_\w+|NVIDIA_\w+|NCCL_\w+"
    r"|GLOO_\w+|OMP_\w+|MKL_\w+|XDG_\w+|\w*CACHE\w*|HF_HOME|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|HF_ENDPOINT"
    r"|TORCH\w*|VLLM_\w+|SGLANG_\w+|SGL_\w+|RAY_\w+|TRITON_\w+|FLASHINFER_\w+|DO_NOT_TRACK|CC|CXX)$"
)
MASK = "***"
SECRET_FLAG = re.compile(r"^--?[\w-]*(key|token|secret|password)[\w-]*$", re.IGNORECASE)
NOT_SECRET_FLAG = re.compile(r"tokens|-keyfile$|tokenizer", re.IGNORECASE)
SECRET_VALUE = re.compile(r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,})|(?<=://)[^/@\s]+@")
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800, "month": 2629800}
LIMITS = {"Max open files": "nofile", "Max locked memory": "memlock", "Max processes": "nproc"}


def collect(look: Look) -> "dict[str, Any]":
    shown = attempt(_show, look)
    if "missing" in shown:
        return {"eyas": {"units": shown}, "services": shown}
    services = {n: shown.pop(n) for n in list(shown) if not n.startswith("eyas")}
    return {
        "eyas": {"units": {n: attempt(_unit, look, p) for n, p in shown.items()}},
        "services": {
            n.replace(".service", ""): {"active": p.get("ActiveState"), "load": p.get("LoadState")}
            for n, p in services.items()
        },
        "driver": {"fabric_manager": {"active": _active(services.get(SERVICES[0], {}))}},
    }


def _active(shown: "dict[str, str]") -> "str | None":
    return shown.get("ActiveState") if shown.get("LoadState") not in (None, "not-found") else None


def _ours(look: Look) -> "list[str]":
    kinds = (".service", ".timer", ".target", ".slice")
    return [
        n for n in look.names(UNIT_FOLDER) if n.startswith("eyas") and n.endswith(kinds) and "@." not in n
    ]


def _show(look: Look) -> "dict[str, dict[str, str]]":
    """One call for all: units on disk by name, loaded ones by pattern."""
    names = [*_ours(look), *SERVICES, "eyas-*"]
    out = look.run("systemctl", "show", "--no-pager", "-p", ",".join(PROPERTIES), "--", *names, limit=4.0)
    shown = {}
    for block in out.split("\n\n"):
        pairs = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if pairs.get("Id"):
            shown[pairs["Id"]] = pairs
    if not shown:
        raise LookFailed("systemctl show printed nothing")
    return shown


def _unit(look: Look, p: "dict[str, str]") -> "dict[str, Any]":
    pid = int(p.get("MainPID") or 0)
    started = int(p.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    memory = p.get("MemoryCurrent", "")
    out = {
        "load": p.get("LoadState"),
        "active": p.get("ActiveState"),
        "sub": p.get("SubState"),
        "result": p.get("Result"),
        "status_text": mask(p.get("StatusText", "")),
        "restarts": int(p["NRestarts"]) if p.get("NRestarts", "").isdigit() else None,
        "main_pid": pid or None,
        "exit_status": int(p["ExecMainStatus"]) if p.get("ExecMainStatus", "").isdigit() else None,
        "fragment": p.get("FragmentPath") or None,
        "fragment_sha256": attempt(digest, look, p["FragmentPath"]) if p.get("FragmentPath") else None,
        "drop_ins": (p.get("DropInPaths") or "").split(),
        "enabled": p.get("UnitFileState") or None,
        "needs_reload": p.get("NeedDaemonReload") == "yes",
        "user": p.get("User") or None,
        "timeout_start_s": attempt(seconds, p.get("TimeoutStartUSec", "")),
        "memory_current": int(memory)
        if memory.isdigit() and int(memory) < 1 << 63
        else missing("not accounted"),
        "started_at": time.time() - (time.monotonic() - started) if started else None,
    }
    return dict(out, **_process(look, pid))


def seconds(text: str) -> "float | None":
    """``1min 30s`` as systemd writes it; None is unlimited."""
    if text == "infinity":
        return None
    found = re.findall(r"([\d.]+)(us|ms|s|min|h|d|w|month)(?![a-z])", text)
    if not found:
        raise LookFailed(f"systemd wrote the time as {text!r}")
    return sum(float(n) * SECONDS[unit] for n, unit in found)


def _process(look: Look, pid: int) -> "dict[str, Any]":
    """What the main process really got; a limit of None is unlimited."""
    folder = f"/proc/{pid}"
    asks = {"limits": _limits, "argv": _argv, "environment": _environment, "exec": _exec}
    if not pid:
        return {name: missing("the unit runs no process") for name in asks}
    return {name: attempt(ask, look, folder) for name, ask in asks.items()}


def _exec(look: Look, folder: str) -> str:
    return os.readlink(look.path(folder + "/exe"))


def _limits(look: Look, folder: str) -> "dict[str, int | None]":
    out: dict[str, int | None] = {}
    for line in look.text(folder + "/limits").splitlines()[1:]:
        words = re.split(r"\s{2,}", line.strip())
        if words[0] in LIMITS and len(words) > 2:
            out[LIMITS[words[0]]] = None if words[1] == "unlimited" else int(words[1])
    return out


def _argv(look: Look, folder: str) -> "list[str]":
    return masked_argv(look.text(folder + "/cmdline").rstrip("\0").split("\0"))


def masked_argv(argv: "list[str]") -> "list[str]":
    """Values of secret-looking options never leave the host."""
    out: list[str] = []
    hide = False
    for word in argv:
        flag, eq, _ = word.partition("=")
        secret = bool(SECRET_FLAG.match(flag)) and not NOT_SECRET_FLAG.search(flag)
        if hide and not word.startswith("--"):
            out.append(MASK)
        else:
            out.append(flag + eq + MASK if secret and eq else mask(word))
        hide = (secret and not eq) or (hide and not word.startswith("--"))
    return out


def mask(text: str) -> str:
    return SECRET_VALUE.sub(MASK, text)


def _environment(look: Look, folder: str) -> "dict[str, str]":
    """Names of all variables; values only of those known to be harmless."""
    out = {}
    for entry in look.text(folder + "/environ").split("\0"):
        name, eq, value = entry.partition("=")
        if eq:
            plain = PLAIN.match(name) and not SECRET.search(name)
            out[name] = mask(value)[:2000] if plain else MASK
    return out

"""The command ``vllm``: ``vllm serve MODEL [flags]`` and ``vllm --version``."""

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import __version__
from .core import Lines, fork
from .options import options, parse, shown
from .refuse import Refused, check
from .say import Log
from .settings import Watched
from .texts import text

__all__ = ["main"]

_BANNER = (
    "",
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
    "  █▄█▀ █     █     █     █  model   {model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    "",
)


def main(argv: list[str] | None = None) -> int:
    """Exit 0 stopped or engine dead, 1 failed to start, 2 wrong flags."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in {"-v", "--version"}:
        print(__version__)
        return 0
    if not argv or argv[0] != "serve":
        return _usage()
    values = parse(argv[1:])
    log = Log("APIServer")
    for line in _BANNER:
        log.note("api_utils.py:347", line.format(version=__version__, model=values["model"]))
    log.note("api_utils.py:286", f"non-default args: {shown(values)}")
    try:
        Watched().get()
        listener = _bind(values)
        configs = check(values, options()["retired_keys"])
        values["length"] = values.get("max_model_len") or configs[0].get("max_position_embeddings") or 4096
    except (OSError, Refused, ValueError) as e:
        said = str(e) if isinstance(e, Refused) else f"{type(e).__name__}: {e}"
        log.plain("Traceback (most recent call last):\n" + said)
        return 1
    return _run(values, configs, listener, log)


def _usage() -> int:
    commands = "{chat,complete,serve,launch,bench,collect-env,run-batch}"
    sys.stderr.write(f"usage: vllm [-h] [-v]\n            {commands} ...\n")
    return 2


def _bind(values: dict[str, Any]) -> socket.socket:
    """Bound at once, as the real one does, and listening only when the engine is ready."""
    host = values.get("host") or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, values.get("port", 8000)))
    return listener


def _run(
    values: dict[str, Any], configs: tuple[dict[str, Any], dict[str, Any]], listener: socket.socket, log: Log
) -> int:
    for config in configs:
        if names := config.get("architectures"):
            log.note("model.py:733", f"Resolved architecture: {names[0]}")
    log.note("model.py:2152", f"Using max model len {values['length']}")
    shared = _shared(values.get("tensor_parallel", 1))
    core, link = fork(values, configs, "VLLM::EngineCore")
    signal.signal(signal.SIGTERM, lambda *_: _give_up(core))
    if not _ready(link):
        _, status = os.waitpid(core, 0)
        dead = {"EngineCore": os.waitstatus_to_exitcode(status)}
        log.plain("Traceback (most recent call last):\n" + text("start", "failed", dead=dead))
        return 1
    from .server import Engine, serve  # loaded after the fork: the core needs none of it

    served = values.get("served_model_name")
    model = (served[0] if isinstance(served, list) else served) or values["model"]
    host, port = listener.getsockname()[:2]
    log.note("entry.py:140", f"Starting vLLM server on http://{host}:{port}")
    engine = Engine(link, values, model)
    code = serve(listener, engine, log, core)
    if not engine.dead.is_set():
        for path in shared:
            path.unlink(missing_ok=True)
    return code


def _shared(ranks: int) -> list[Path]:
    """What tensor-parallel runs keep in shared memory, and leave there when they are killed."""
    if ranks == 1:
        return []
    paths = [Path(f"/dev/shm/vllm_dist_{os.urandom(16).hex()}") for _ in range(2)]
    with suppress(PermissionError):  # a unit may keep shared memory to itself
        for path in paths:
            path.write_bytes(bytes(4096))
    return paths


def _ready(link: socket.socket) -> bool:
    first = Lines(link).receive(wait=True)
    return bool(first and "ready" in first[0])


def _give_up(core: int) -> None:
    """SIGTERM during the start."""
    os.kill(core, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
